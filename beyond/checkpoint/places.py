"""Finding the repository that a folder belongs to, and saying plainly when it has none of its own."""

from __future__ import annotations

import contextlib
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from beyond.checkpoint.git import Git, ignored
from beyond.errors import NotARepository, Refused
from beyond.text import one_line

#: Where agent CLIs and people keep worktrees inside the work tree that they belong to.
_WORKTREE_FOLDERS = {"worktrees", ".worktrees"}


@dataclass(frozen=True)
class Places:
    """The work tree, its git folder, the folder that its worktrees share, and the name of the hash."""

    toplevel: Path
    git_dir: Path
    common_dir: Path
    hash_name: str

    @property
    def objects(self) -> Path:
        return self.common_dir / "objects"


def find(directory: Path, *, allow_home: bool = False, expect: Path | None = None) -> Places:
    """The places of `directory`. NotARepository or Refused, and nothing is created, where it has none that are right."""
    shown = one_line(str(directory))
    if not directory.is_dir():
        raise NotARepository(f"{shown} is not a folder: checkpoints are taken inside a git work tree")
    git = Git(directory)
    code, out, err = git.ask(
        "rev-parse", "--is-bare-repository", "--is-inside-work-tree", "--show-object-format", "--git-dir", "--git-common-dir"
    )  # fmt: skip
    if code and "dubious ownership" in err:
        raise Refused(
            f"{shown} belongs to another user, so git won't touch it: "
            f"`git config --global --add safe.directory {shown}` if you trust it"
        )
    if code and _broken_link(directory):
        raise NotARepository(
            f"{shown} has a .git file that leads nowhere (a moved or removed worktree): "
            "run `git worktree repair` in its repository, or record with --no-git"
        )
    if code:
        raise NotARepository(f"{shown} is in no git work tree: run `git init` there, or record with --no-git")
    rest = out.split(b"\n", 3)
    bare, inside, hash_name = (line.decode() for line in rest[:3])
    if inside != "true":
        what = "a bare repository" if bare == "true" else "inside a git folder"
        raise NotARepository(f"{shown} is {what}, without a work tree: checkpoints need one; use --no-git here")
    # A path may hold a newline, and rev-parse has no -z: where one does, each is asked for by itself.
    paths = rest[3].split(b"\n")
    git_dir, common_dir = paths[:2] if len(paths) == 3 else (_one(git, "--git-dir"), _one(git, "--git-common-dir"))
    top = Path(os.fsdecode(_one(git, "--show-toplevel")))
    base = directory.resolve()
    places = Places(top, (base / os.fsdecode(git_dir)).resolve(), (base / os.fsdecode(common_dir)).resolve(), hash_name)
    if not allow_home:
        _refuse_home(top)
    _own(base, places, expect)
    return places


def _one(git: Git, option: str) -> bytes:
    return git.run("rev-parse", option)[:-1]


def _broken_link(directory: Path) -> bool:
    """Whether the nearest .git above is a file (git read it, and it led nowhere)."""
    base = directory.resolve()
    for folder in (base, *base.parents):
        found = folder / ".git"
        if os.path.lexists(found):
            return not found.is_dir() or found.is_symlink()
    return False


def _refuse_home(top: Path) -> None:
    homes = {os.environ.get("HOME") or "/"}
    with contextlib.suppress(KeyError):
        homes.add(pwd.getpwuid(os.getuid()).pw_dir)
    real = top.resolve()
    for home in homes:
        place = Path(home).resolve()
        if real == place or real in place.parents:
            what = "/" if real == Path("/") else "the home directory" if real == place else "a folder above the home directory"
            raise Refused(
                f"the work tree of this repository is {one_line(str(top))}, {what}: checkpoints there would hold everything; "
                "make a repository for the project, or record with --no-git"
            )


def _own(directory: Path, places: Places, expect: Path | None) -> None:
    """Refuses a folder that only lies in somebody else's work tree: git would work on that one without a word."""
    top = places.toplevel.resolve()
    shown = one_line(str(directory))
    said = f"{shown} is not a work tree of its own: it lies in that of {one_line(str(top))}"
    if expect is not None and expect.resolve() != top:
        raise NotARepository(f"{said}, and {one_line(str(expect))} was expected: make its worktree again, or use --no-git")
    if directory == top or top not in directory.parents:
        return
    between = [folder for folder in (directory, *directory.parents) if top in folder.parents]
    registered = places.common_dir / "worktrees"
    if registered.is_dir():
        for entry in registered.iterdir():
            try:
                link = Path(os.fsdecode((entry / "gitdir").read_bytes().rstrip(b"\n")))
            except OSError:
                continue
            if (entry / link).resolve().parent in between:
                raise NotARepository(f"{said}, and its own .git file is gone: run `git worktree repair`, or use --no-git")
    relative = os.fspath(directory.relative_to(top))
    git = Git(places.toplevel, {"GIT_DIR": places.git_dir, "GIT_WORK_TREE": places.toplevel})
    if ignored(git, [f"{relative}/"]):
        raise NotARepository(f"{said}, which ignores it: run `git init` there, or use --no-git")
    if any(folder.parent.name in _WORKTREE_FOLDERS for folder in between) and not git.run("ls-files", "-z", "--", relative):
        raise NotARepository(f"{said}, which tracks nothing there: make its worktree again, or use --no-git")
