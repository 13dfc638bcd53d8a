"""A checkpoint back as files: in a new work tree, never in the one that the user has.

Everything is built under another name beside the target and renamed at the end: a killed restore leaves no target.
The files are written by git itself under our own settings (see `shadow`), which refuse `.git` in any disguise, names
that lead out, and links in the way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beyond.checkpoint.git import Git, lines, names, object_id
from beyond.checkpoint.index import links, set_times
from beyond.checkpoint.places import Places
from beyond.checkpoint.shadow import Shadow, replace
from beyond.checkpoint.state import State, signature
from beyond.errors import CheckpointMissing, GitFailed, Refused
from beyond.text import one_line

#: The time of every restored file: older than any transcript, so that an agent CLI that has read a file may write it.
OLD = 1_000_000_000

#: Settings of the repository that decide how files look to git; a repository of its own takes them along. No remotes, no
#: credentials, nothing that names a branch.
_CARRIED = (
    r"^(core\.(autocrlf|eol|safecrlf|ignorecase|symlinks|precomposeunicode|excludesfile|attributesfile|filemode|quotepath)"
    r"|filter\..*|diff\..*\.textconv|user\.(name|email))$"
)


@dataclass(frozen=True)
class Restored:
    """A restored work tree. `tree` is the id of its files as read back: equal to the checkpoint's where `same`, empty
    where they aren't what was written."""

    path: Path
    tree: str
    same: bool
    head: str | None
    isolated: bool
    files: int
    #: Left as empty folders.
    submodules: tuple[str, ...] = ()
    #: Outside the sparse checkout of the repository: as in HEAD, and not written.
    sparse: int = 0


def restore(
    places: Places,
    tree: str,
    head: str | None,
    dest: Path,
    *,
    isolated: bool,
    old_times: bool,
    inside: bool,
) -> Restored:
    """See `Repository.restore`. `inside` allows a target in the work tree (whose root is the home directory)."""
    dest = Path(os.path.abspath(dest))
    _look_for(places, tree, head)
    closed = [places.common_dir, places.git_dir, *([] if inside else [places.toplevel.resolve()])]
    # Without a commit there is nothing that a linked worktree could stand on (`worktree add --orphan` is new in git 2.42).
    isolated = isolated or head is None

    def start(build: _Build) -> None:
        if isolated:
            build.isolated()
        else:
            build.linked()

    return _make(_Build(places, tree, head, dest), dest, closed, start, isolated, old_times)


def unpack(pack: bytes, tree: str, head: str | None, dest: Path, *, old_times: bool) -> Restored:
    """Like `restore`, where the repository itself is absent: a new one, made from what `exchange.pack` gave."""
    dest = Path(os.path.abspath(dest))
    hash_name = "sha1" if len(object_id(tree)) == 40 else "sha256"
    if head is not None:
        object_id(head)
    places = Places(dest, dest / ".git", dest / ".git", hash_name)

    def start(build: _Build) -> None:
        build.unpacked(pack)
        _look_for(build.places(), tree, head)

    return _make(_Build(places, tree, head, dest), dest, [], start, True, old_times)


def _make(
    build: _Build, dest: Path, closed: list[Path], start: Callable[[_Build], None], isolated: bool, old_times: bool
) -> Restored:
    _look_at(dest, closed)
    above = [folder for folder in dest.parents if not folder.exists()]
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        holder = Path(tempfile.mkdtemp(prefix=".bnd-", dir=dest.parent))
    except OSError as error:
        _remove(above)
        raise GitFailed(f"{one_line(str(dest))} can't be made ({error.strerror}): give another --dest") from None
    build.top = holder / dest.name
    try:
        start(build)
        count, links, sparse = build.files(old_times)
        build.settle()
        found = build.check()
        build.move(dest)
    except OSError as error:
        build.undo()
        raise GitFailed(f"{one_line(str(dest))} can't be written ({error.strerror}): nothing was left there") from None
    except BaseException:
        build.undo()
        raise
    finally:
        shutil.rmtree(holder, ignore_errors=True)
        if not dest.exists():
            _remove(above)
    return Restored(dest, found, found == build.tree, build.head, isolated, count, links, sparse)


def _remove(empty: list[Path]) -> None:
    for folder in empty:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _look_for(places: Places, tree: str, head: str | None) -> None:
    """Whether the objects are there."""
    object_id(tree)
    wanted = [(f"{tree}^{{tree}}", f"the checkpoint's tree {tree[:12]}")]
    if head is not None:
        object_id(head)
        wanted.append((f"{head}^{{commit}}", f"the commit {head[:12]} that HEAD was at"))
    git = Git(places.toplevel, {"GIT_DIR": places.git_dir})
    said = git.run("cat-file", "--batch-check", stdin="".join(f"{name}\n" for name, _ in wanted).encode()).splitlines()
    for (_, what), line in zip(wanted, said, strict=True):
        if line.endswith(b" missing"):
            raise CheckpointMissing(
                f"{what} is not in {one_line(str(places.common_dir))}: it was pruned or never imported; "
                "fork without files (--no-env) or import the run with its objects"
            )


def _look_at(dest: Path, closed: list[Path]) -> None:
    """Whether the target is free."""
    shown = one_line(str(dest))
    if dest.is_symlink() or (dest.exists() and not dest.is_dir()):
        raise Refused(f"{shown} exists and is not a folder: give another --dest")
    if dest.is_dir() and any(dest.iterdir()):
        raise Refused(f"{shown} exists and is not empty: give another --dest, or empty it")
    real = dest.parent.resolve() / dest.name
    for folder in closed:
        if real == folder or folder in real.parents:
            raise Refused(
                f"{shown} lies in the repository that the checkpoint is of: give a --dest outside of {one_line(str(folder))}"
            )


class _Build:
    """A work tree in the making."""

    def __init__(self, places: Places, tree: str, head: str | None, top: Path) -> None:
        self._places = places
        self.tree = tree
        self.head = head
        self.top = top
        self._linked: Path | None = None
        self._timed = False

    @property
    def _git_dir(self) -> Path:
        return self._linked or self.top / ".git"

    def linked(self) -> None:
        """A worktree of the repository, HEAD detached, no file yet."""
        assert self.head is not None
        self._outer().run(
            "-c", "worktree.useRelativePaths=false", "worktree", "add", "--detach", "--no-checkout", "--quiet",
            "--", os.fspath(self.top), self.head,
        )  # fmt: skip
        link = (self.top / ".git").read_bytes()
        self._linked = Path(os.fsdecode(link.removeprefix(b"gitdir: ").removesuffix(b"\n")))
        # The log of a HEAD that was set once says nothing but when.
        shutil.rmtree(self._git_dir / "logs", ignore_errors=True)

    def _init(self) -> None:
        self.top.mkdir()
        Git(self.top).run("init", "-q", "--template=", f"--object-format={self._places.hash_name}", "--initial-branch=main", ".")

    def unpacked(self, pack: bytes) -> None:
        """A repository of its own from a pack. Nothing in that is trusted: every object is checked, none is run."""
        self._init()
        git = Git(self.top, {"GIT_DIR": self._git_dir})
        git.run("-c", "transfer.fsckObjects=false", "index-pack", "--stdin", "--fsck-objects", stdin=pack)
        if self.head is not None:
            # Its parents stayed behind.
            (self._git_dir / "shallow").write_text(f"{self.head}\n")
            git.run("update-ref", "--no-deref", "HEAD", self.head)

    def isolated(self) -> None:
        """A repository of its own that borrows the objects: no ref, no log, no remote of the other one."""
        self._init()
        info = self._git_dir / "info"
        info.mkdir(exist_ok=True)
        source = os.fspath(self._places.objects)
        quoted = source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        alternates = f'"{quoted}"' if source.startswith(('"', "#")) or "\n" in source else source
        (self._git_dir / "objects" / "info").mkdir(exist_ok=True)
        (self._git_dir / "objects" / "info" / "alternates").write_bytes(os.fsencode(alternates) + b"\n")
        for name in ("shallow", "info/exclude", "info/attributes"):
            found = self._places.common_dir / name
            if found.is_file():
                shutil.copyfile(found, self._git_dir / name)
        _, kept, _ = self._outer().ask("config", "--local", "-z", "--get-regexp", _CARRIED)
        inner = self._git()
        for entry in kept.split(b"\0")[:-1]:
            key, _, value = os.fsdecode(entry).partition("\n")
            inner.run("config", "--add", key, value)
        if self.head is not None:
            inner.run("update-ref", "--no-deref", "HEAD", self.head)
        else:
            code, ref, _ = self._outer().ask("symbolic-ref", "-q", "HEAD")
            if code == 0 and ref.startswith(b"refs/heads/"):
                inner.run("symbolic-ref", "HEAD", os.fsdecode(ref[:-1]))

    def places(self) -> Places:
        """Of the new work tree."""
        common = self._git_dir if self._linked is None else self._places.common_dir
        return Places(self.top, self._git_dir, common, self._places.hash_name)

    def _shadow(self) -> Shadow:
        return Shadow(self._git_dir / "bnd", self.top, self.places().objects, self._places.hash_name)

    def _outer(self) -> Git:
        places = self._places
        return Git(places.toplevel, {"GIT_DIR": places.git_dir, "GIT_WORK_TREE": places.toplevel})

    def _git(self) -> Git:
        return Git(self.top, {"GIT_DIR": self._git_dir, "GIT_WORK_TREE": self.top})

    def files(self, old_times: bool) -> tuple[int, tuple[str, ...], int]:
        """Writes the files of the tree; then the work tree's own index: HEAD's, knowing which files are as in HEAD."""
        shadow = self._shadow()
        shadow.ensure()
        kept = shadow.git()
        sparse = self._outside(kept)
        # Where cores are idle, two writers take half the time of one; where none is, they take 1.4 times as long.
        idle = (os.cpu_count() or 1) - int(os.getloadavg()[0])
        workers = ("-c", f"checkout.workers={max(1, idle)}")
        if sparse:
            kept.run("read-tree", self.tree)
            kept.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=lines(sparse))
            kept.run(*workers, "checkout-index", "--all", "--index", "--quiet", "--force")
        else:
            kept.run(*workers, "read-tree", "-m", "-u", self.tree)
        self._timed = old_times
        if old_times:
            set_times(shadow.index, self.top, self._places.hash_name, OLD)
        count, submodules = links(shadow.index, len(shadow.null) // 2)
        for link in submodules:
            (self.top / link).mkdir(parents=True, exist_ok=True)
        shutil.copy2(shadow.index, self._git_dir / "index")
        return count, tuple(submodules), len(sparse)

    def _outside(self, kept: Git) -> list[str]:
        """Files that the user's sparse checkout leaves out, as far as the checkpoint has them as HEAD has."""
        if self.head is None or not (self._places.git_dir / "info" / "sparse-checkout").is_file():
            return []
        tagged = self._outer().run("ls-files", "-z", "-t").split(b"\0")[:-1]
        differ = set(names(kept.run("diff-tree", "-r", "-z", "--no-renames", "--name-only", self.head, self.tree)))
        inside = set(names(kept.run("ls-tree", "-r", "-z", "--name-only", self.tree)))
        hidden = [os.fsdecode(row[2:]) for row in tagged if row.startswith(b"S ")]
        return [path for path in hidden if path in inside and path not in differ]

    def check(self) -> str:
        """The tree of what lies there now, by the index that the files were written from. That is what a checkpoint does
        in a work tree that it knows; `set_times` has looked at every file, else git does."""
        shadow = self._shadow()
        kept = shadow.git()
        listed = kept.run("ls-files", "-z", "--others")
        changed = b"" if self._timed else kept.run("diff-files", "-z", "--raw", "--no-renames", "--ignore-submodules=all")
        if listed or changed:
            return ""
        tree = kept.run("write-tree", "--missing-ok").decode().strip()
        # The first checkpoint here goes on from the index that the files were written from.
        State(index=signature(shadow.index)).save(shadow.state)
        return tree

    def settle(self) -> None:
        """The index becomes HEAD's; where a file is as in HEAD, what is known of it stays known."""
        if self.head is None:
            (self._git_dir / "index").unlink()
            return
        self._git().run("read-tree", "-m", self.head)

    def move(self, dest: Path) -> None:
        """To the place it was made for, at once."""
        if self._linked is not None:
            replace(self._linked / "gitdir", os.fsencode(dest / ".git") + b"\n")
        os.rename(self.top, dest)

    def undo(self) -> None:
        """Removes what was made in the repository; the folder itself goes with its holder."""
        if self._linked is None and self.top.is_dir() and (self.top / ".git").is_file():
            try:
                link = (self.top / ".git").read_bytes()
                self._linked = Path(os.fsdecode(link.removeprefix(b"gitdir: ").removesuffix(b"\n")))
            except OSError:
                return
        if self._linked is not None and self._linked.parent == self._places.common_dir / "worktrees":
            shutil.rmtree(self._linked, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._linked.parent.rmdir()
