"""Checkpoints: the kept index against a fresh one, what git sees of ours, and restores that are hostile or cut short."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import git as gitpython
import pytest

from beyond.checkpoint import Limits, Repository
from beyond.checkpoint.git import Git, Running
from beyond.errors import BeyondError, CheckpointMissing, GitFailed, NotFound, Refused, UsageError

RUN = "0123456789ab"


def git(folder: Path, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_CONFIG_NOSYSTEM": "1", **(env or {})}
    who = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *who, *args], cwd=folder, env=clean, capture_output=True, input=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


@pytest.fixture(params=["sha1", "sha256"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A repository with a commit, for both kinds of hash."""
    return new(tmp_path / "w", request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return new(tmp_path / "w")


def new(folder: Path, kind: str = "sha1") -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", f"--object-format={kind}", ".")
    (folder / "sub").mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / "sub" / "b.txt").write_text("one\n")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    return folder


def listed(folder: Path, tree: str) -> dict[str, str]:
    rows = git(folder, "ls-tree", "-r", "-z", tree).split("\0")[:-1]
    return {row.partition("\t")[2]: row.split()[2] for row in rows}


def fresh(folder: Path) -> str:
    """The tree that an empty index gives, by git's own porcelain."""
    index = folder / ".git" / "fresh-index"
    index.unlink(missing_ok=True)
    head = git(folder, "rev-parse", "HEAD")
    env = {"GIT_INDEX_FILE": str(index)}
    # What is tracked counts although it's ignored.
    shutil.copy2(folder / ".git" / "index", index)  # its time is part of what it says
    git(folder, "add", "-A", env=env)
    tree = git(folder, "write-tree", env=env)
    index.unlink()
    assert head
    return tree


def test_places(made: Path, tmp_path: Path) -> None:
    repository = Repository.open(made / "sub")
    assert (repository.toplevel, repository.git_dir, repository.common_dir) == (made, made / ".git", made / ".git")
    assert repository.head() == git(made, "rev-parse", "HEAD")
    git(made, "pack-refs", "--all")
    assert repository.head() == git(made, "rev-parse", "HEAD")
    git(made, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    linked = Repository.open(tmp_path / "linked")
    assert (linked.toplevel, linked.common_dir) == (tmp_path / "linked", made / ".git")
    assert linked.git_dir.parent == made / ".git" / "worktrees"
    assert linked.head() == repository.head()
    (tmp_path / "linked" / "only-here").write_text("x")
    assert "only-here" in listed(made, linked.snapshot().tree)
    assert "only-here" not in listed(made, repository.snapshot().tree)


def test_a_folder_with_a_newline(tmp_path: Path) -> None:
    folder = new(tmp_path / "two\nlines")
    repository = Repository.open(folder)
    assert repository.toplevel == folder
    snapshot = repository.snapshot()
    restored = repository.restore(snapshot.tree, snapshot.head, tmp_path / "o\nut")
    assert restored.same and (restored.path / "sub" / "b.txt").read_text() == "one\n"
    assert repository.restore(snapshot.tree, snapshot.head, tmp_path / "a:b", isolated=True).same


def test_unchanged_gives_the_tree_of_head_and_no_ref(made: Path) -> None:
    repository = Repository.open(made)
    one = repository.snapshot()
    assert one.tree == git(made, "rev-parse", "HEAD^{tree}") and one.files == 3 and not one.skipped
    kept = repository.keep(one, RUN, 1, None, 1_700_000_000_123, "first\nsecond line")
    two = repository.snapshot()
    assert two == one
    assert repository.keep(two, RUN, 2, one.tree, 1_700_000_000_123, "x").ref is None
    assert git(made, "for-each-ref", "--format=%(refname)", "refs/bnd/") == f"refs/bnd/{RUN}/1"
    assert kept.commit is not None
    assert git(made, "log", "-1", "--format=%an <%ae> %at %P %s", kept.commit) == (
        f"beyond <beyond@localhost> 1700000000 {one.head} first second line"
    )
    assert git(made, "rev-parse", f"{kept.commit}^{{tree}}") == one.tree
    git(made, "commit", "-q", "--allow-empty", "-m", "same files")
    assert repository.keep(repository.snapshot(), RUN, 3, one.tree, 0, "x").ref is None
    assert repository.keep(repository.snapshot(), RUN, 3, one.tree, 0, "x", previous_head=one.head).ref is not None


@pytest.mark.filterwarnings("ignore:GitDB is deprecated:DeprecationWarning")  # a second opinion has to run no git
def test_what_another_implementation_reads(plain: Path) -> None:
    """GitPython with its own object database, which runs no git: the trees and commits are as git's format says."""
    (plain / "run.sh").write_bytes(b"#!/bin/sh\n")
    (plain / "run.sh").chmod(0o755)
    (plain / "link").symlink_to("a.txt")
    (plain / "sub" / "n\u00e4me").write_bytes(bytes(range(256)))
    os.rename(plain / "a.txt", plain / "sub" / "moved.txt")
    repository = Repository.open(plain)
    taken = repository.snapshot()
    kept = repository.keep(taken, RUN, 7, None, 1_700_000_000_000, "x")
    assert kept.commit is not None
    with gitpython.Repo(plain, odbt=gitpython.GitDB) as other:
        commit = other.commit(kept.commit)
        assert (commit.tree.hexsha, [parent.hexsha for parent in commit.parents]) == (taken.tree, [taken.head])
        assert {ref.path: ref.commit.hexsha for ref in other.refs} == {
            "refs/heads/main": taken.head,
            f"refs/bnd/{RUN}/7": kept.commit,
        }
        found = {item.path: (item.mode, item.data_stream.read()) for item in commit.tree.traverse() if item.type == "blob"}
        at_head = {item.path for item in other.head.commit.tree.traverse() if item.type == "blob"}
    wanted = {}
    for path in sorted(plain.rglob("*")):
        name = str(path.relative_to(plain))
        if name.partition("/")[0] == ".git" or (path.is_dir() and not path.is_symlink()):
            continue
        mode = 0o120000 if path.is_symlink() else 0o100755 if os.access(path, os.X_OK) and name == "run.sh" else 0o100644
        wanted[name] = mode, os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    assert found == wanted
    assert at_head == {".gitignore", "a.txt", "sub/b.txt"}


def test_a_ref_that_is_taken_keeps_what_it_held(plain: Path) -> None:
    repository = Repository.open(plain)
    one = repository.keep(repository.snapshot(), RUN, 1, None, 0, "x")
    (plain / "a.txt").write_text("two\n")
    two = repository.keep(repository.snapshot(), RUN, 1, None, 0, "x")
    assert (one.ref, two.ref) == (f"refs/bnd/{RUN}/1", f"refs/bnd/{RUN}/1.2")
    assert git(plain, "rev-parse", f"{one.ref}^{{tree}}", f"{two.ref}^{{tree}}").split() == [one.tree, two.tree]
    assert repository.keep(repository.snapshot(), RUN, 1, None, 0, "x") == two
    assert repository.drop_refs(RUN, {two.ref or ""}) == 1
    assert repository.drop_refs(RUN) == 1 and repository.drop_refs(RUN) == 0
    assert not git(plain, "for-each-ref", "refs/bnd/")


@pytest.mark.parametrize("run", ["", "x", "../../heads/x", "0123456789AB", "0123456789ab/..", "0123456789ab\n"])
def test_a_run_is_twelve_hex_digits(plain: Path, run: str) -> None:
    repository = Repository.open(plain)
    with pytest.raises(UsageError):
        repository.keep(repository.snapshot(), run, 1, None, 0, "x")
    with pytest.raises(UsageError):
        repository.drop_refs(run)


def test_ignored_and_tracked(plain: Path) -> None:
    repository = Repository.open(plain)
    (plain / "kept.log").write_text("tracked although ignored\n")
    git(plain, "add", "-f", "kept.log")
    (plain / "other.log").write_text("x")
    (plain / "build").mkdir()
    (plain / "build" / "x").write_text("x")
    (plain / "new").write_text("x")
    assert set(listed(plain, repository.snapshot().tree)) == {".gitignore", "a.txt", "kept.log", "new", "sub/b.txt"}
    git(plain, "rm", "-q", "--cached", "kept.log")
    (plain / ".git" / "info" / "exclude").write_text("new\n")
    assert set(listed(plain, repository.snapshot().tree)) == {".gitignore", "a.txt", "sub/b.txt"}
    (plain / ".git" / "info" / "exclude").write_text("")
    (plain / "sub" / ".gitignore").write_text("*\n")
    (plain / "sub" / "c").write_text("x")
    assert set(listed(plain, repository.snapshot().tree)) == {".gitignore", "a.txt", "new", "sub/b.txt"}
    (Path(os.environ["HOME"]) / ".config" / "git").mkdir(parents=True)
    (Path(os.environ["HOME"]) / ".config" / "git" / "ignore").write_text("new\n")
    assert "new" not in listed(plain, repository.snapshot().tree)
    git(plain, "update-index", "--assume-unchanged", "a.txt")
    (plain / "a.txt").write_text("looks unchanged\n")
    assert repository.file(repository.snapshot().tree, "a.txt") == b"looks unchanged\n"


@pytest.mark.parametrize("seed", [0, 4, 18, 25, 38, 47])
def test_the_kept_index_says_what_a_fresh_one_says(plain: Path, seed: int) -> None:
    """Random work, checkpoint after checkpoint: never a file that stuck, was lost or came late."""
    rng = random.Random(seed)
    repository = Repository.open(plain)
    names = ["a.txt", "b", "sub/b.txt", "sub/c", "d/e/f", "d/e/g", "x.log", "build/y", "d/z", "sub", "d"]

    def write(name: str) -> None:
        path = plain / name
        with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()
            path.write_text(str(rng.random()) if rng.random() < 0.9 else "")
            path.chmod(rng.choice([0o644, 0o755]))

    def remove(name: str) -> None:
        path = plain / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink()

    for _ in range(25):
        for _ in range(rng.randint(0, 3)):
            name = rng.choice(names)
            what = rng.randrange(9)
            if what < 3:
                write(name)
            elif what == 3:
                remove(name)
            elif what == 4:
                remove(name)
                with contextlib.suppress(OSError):
                    os.symlink(rng.choice(["a.txt", "..", "nowhere"]), plain / name)
            elif what == 5:
                git(plain, "add", "-A")
            elif what == 6:
                git(plain, "commit", "-q", "--allow-empty", "-am", "x")
            elif what == 7:
                git(plain, "rm", "-q", "-rf", "--cached", "--ignore-unmatch", name)
            else:
                (plain / ".gitignore").write_text(rng.choice(["*.log\nbuild/\n", "sub/c\n", "d/\n!d/z\n", "d/*\n!d/z\n"]))
        if rng.random() < 0.4:
            # Long enough for folders to be trusted: what is left out then must be right, too.
            time.sleep(0.12)
            repository.snapshot()
            if rng.random() < 0.5:
                write(rng.choice(names))
        before = (plain / ".git" / "index").read_bytes(), os.stat(plain / ".git" / "index").st_mtime_ns
        snapshot = repository.snapshot()
        assert ((plain / ".git" / "index").read_bytes(), os.stat(plain / ".git" / "index").st_mtime_ns) == before
        if rng.random() < 0.5:
            repository.keep(snapshot, RUN, 1, None, 0, "x")
        assert listed(plain, snapshot.tree) == listed(plain, fresh(plain))
        assert snapshot.tree == fresh(plain)
        assert snapshot.files == len(listed(plain, snapshot.tree))


def test_an_unchanged_checkpoint_is_one_process(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain / "deep" / "empty").mkdir(parents=True)
    (plain / "build").mkdir()
    repository = Repository.open(plain)
    repository.keep(repository.snapshot(), RUN, 1, None, 0, "x")
    time.sleep(0.15)
    repository.snapshot()
    ran: list[str] = []
    start = Git.start

    def counted(self: Git, *args: str, stdin: bool = False) -> Running:
        ran.append(next(arg for arg in args if not arg.startswith("-")))
        return start(self, *args, stdin=stdin)

    monkeypatch.setattr(Git, "start", counted)
    one = repository.snapshot()
    assert ran == ["diff-files"]
    (plain / "build" / "ignored").write_text("x")
    assert repository.snapshot() == one and ran == ["diff-files"] * 2
    for path in ("deep/empty/x", "sub/y", "z"):
        (plain / path).write_text("x")
        assert path in listed(plain, repository.snapshot().tree)
        time.sleep(0.15)
        repository.snapshot()
    (plain / ".gitignore").write_text("*.log\nz\n")
    after = listed(plain, repository.snapshot().tree)
    assert "z" not in after and "build/ignored" in after


def test_objects_that_were_pruned_are_written_again(plain: Path) -> None:
    repository = Repository.open(plain)
    (plain / "new").write_text("only here\n")
    snapshot = repository.snapshot()
    repository.keep(snapshot, RUN, 1, None, 0, "x")
    repository.drop_refs(RUN)
    git(plain, "gc", "-q", "--prune=now")
    assert repository.file(snapshot.tree, "new") is None
    assert repository.snapshot().tree == snapshot.tree
    assert repository.file(snapshot.tree, "new") == b"only here\n"


def test_a_damaged_memory_costs_time_only(plain: Path) -> None:
    repository = Repository.open(plain)
    (plain / "new").write_text("x\n")
    tree = repository.snapshot().tree
    for name, data in (("index.state", b"{"), ("index.state", b"[]"), ("index", b"DIRC"), ("index", b""), ("config", b"[")):
        (plain / ".git" / "bnd" / name).write_bytes(data)
        assert repository.snapshot().tree == tree
    shutil.rmtree(plain / ".git" / "bnd")
    assert repository.snapshot().tree == tree


def test_a_split_index_and_other_kinds(plain: Path) -> None:
    (plain / "new").write_text("x\n")
    tree = Repository.open(plain).snapshot().tree
    for args in (["--split-index"], ["--index-version", "4"], ["--untracked-cache"], ["--force-untracked-cache"]):
        git(plain, "update-index", *args)
        shutil.rmtree(plain / ".git" / "bnd")
        assert Repository.open(plain).snapshot().tree == tree


def test_elsewhere(plain: Path, tmp_path: Path) -> None:
    index = tmp_path / "mine" / "index"
    snapshot = Repository.open(plain).snapshot(index)
    assert index.exists() and not (plain / ".git" / "bnd" / "index").exists()
    assert snapshot.tree == git(plain, "rev-parse", "HEAD^{tree}")


def test_many_at_once(plain: Path) -> None:
    for n in range(50):
        (plain / f"n{n}").write_text(str(n))
    with ThreadPoolExecutor(4) as pool:
        trees = set(pool.map(lambda _: Repository.open(plain).snapshot().tree, range(8)))
    assert len(trees) == 1


def test_a_file_that_git_cannot_store(plain: Path) -> None:
    (plain / "git~1").write_text("a name that is .git to another system\n")
    (plain / "fine").write_text("x\n")
    snapshot = Repository.open(plain).snapshot()
    assert "fine" in listed(plain, snapshot.tree)
    assert [skipped.path for skipped in snapshot.skipped] == ["git~1"]
    assert [skipped.path for skipped in Repository.open(plain).snapshot().skipped] == ["git~1"]


def test_read_only_files_are_named(plain: Path) -> None:
    os.chmod(plain / "a.txt", 0o444)
    repository = Repository.open(plain)
    assert "read-only" in {skipped.path: skipped.why for skipped in repository.snapshot().skipped}["a.txt"]
    os.chmod(plain / "a.txt", 0o644)
    assert not repository.snapshot().skipped


def test_limits_hold_until_the_file_changes(plain: Path) -> None:
    repository = Repository.open(plain)
    (plain / "big").write_bytes(b"x" * 5000)
    (plain / "a.txt").write_bytes(b"y" * 5000)
    limits = Limits(max_file=1000)
    one = repository.snapshot(limits=limits)
    assert {skipped.path for skipped in one.skipped} == {"big", "a.txt"}
    assert repository.file(one.tree, "a.txt") == b"one\n" and repository.file(one.tree, "big") is None
    assert repository.snapshot(limits=limits) == one
    (plain / "big").write_bytes(b"x" * 500)
    two = repository.snapshot(limits=limits)
    assert {skipped.path for skipped in two.skipped} == {"a.txt"} and repository.file(two.tree, "big") == b"x" * 500


def test_what_differs(made: Path) -> None:
    repository = Repository.open(made)
    one = repository.snapshot().tree
    (made / "a.txt").write_text("two\n")
    (made / "sub" / "b.txt").unlink()
    (made / "n\new").write_text("x")
    two = repository.snapshot().tree
    assert {(each.how, each.path) for each in repository.diff_names(one, two)} == {
        ("M", "a.txt"), ("D", "sub/b.txt"), ("A", "n\new")
    }  # fmt: skip
    assert repository.changed_files(one, two) == 3 and repository.changed_files(one, one) == 0
    assert repository.changed_files(None, one) == 3
    assert repository.file(two, "a.txt") == b"two\n"
    for path in ("", "/a.txt", "sub", "sub/../a.txt", "./a.txt", "nothing", "a.txt/x", "a\0"):
        assert repository.file(two, path) is None
    for bad in ("HEAD", "--help", "main:a.txt", one[:12], ""):
        with pytest.raises(UsageError):
            repository.file(bad, "a.txt")
        with pytest.raises(UsageError):
            repository.changed_files(one, bad)


# --- restoring ------------------------------------------------------------------------------------------------------


def test_restore_says_what_git_said(made: Path, tmp_path: Path) -> None:
    repository = Repository.open(made)
    (made / "a.txt").write_text("two\n")
    (made / "new").write_text("x\n")
    (made / "sub" / "b.txt").unlink()
    said = git(made, "status", "--porcelain")
    snapshot = repository.snapshot()
    repository.keep(snapshot, RUN, 1, None, 0, "a checkpoint")
    git(made, "add", "-A")
    git(made, "commit", "-qm", "the future")
    git(made, "branch", "later")
    for isolated in (False, True):
        out = tmp_path / f"deep/er/{isolated}"
        restored = repository.restore(snapshot.tree, snapshot.head, out, isolated=isolated)
        assert restored.same and restored.path == out and restored.isolated is isolated and restored.files == 3
        assert git(out, "status", "--porcelain") == said
        assert git(out, "rev-parse", "HEAD") == snapshot.head
        assert git(out, "log", "--format=%s") == "base"
        times = {os.lstat(path).st_mtime for path in out.rglob("*") if path.is_file() and ".git" not in path.parts}
        assert times == {1_000_000_000.0}
        # The index knows the files: nothing has to be read again.
        assert git(out, "diff-files", "--name-only").split() == ["a.txt", "sub/b.txt"]
        again = Repository.open(out)
        assert again.snapshot().tree == snapshot.tree
        (out / "more").write_text("x")
        assert again.snapshot().files == 4
    assert git(out, "log", "--all", "--format=%s") == "base"
    assert not git(out, "for-each-ref") and not git(out, "reflog") and not git(out, "remote")
    assert "future" not in git(out, "log", "--all", "--reflog", "--format=%s")
    git(made, "worktree", "prune")
    assert str(tmp_path / "deep/er/False") in git(made, "worktree", "list")
    git(made, "worktree", "remove", "--force", str(tmp_path / "deep/er/False"))


def test_new_times_on_wish(plain: Path, tmp_path: Path) -> None:
    repository = Repository.open(plain)
    snapshot = repository.snapshot()
    assert repository.restore(snapshot.tree, snapshot.head, tmp_path / "o", old_times=False).same
    assert os.stat(tmp_path / "o" / "a.txt").st_mtime > time.time() - 600


def test_restore_needs_an_empty_target(plain: Path, tmp_path: Path) -> None:
    repository = Repository.open(plain)
    snapshot = repository.snapshot()
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    for dest in (full, tmp_path / "file", tmp_path / "link", plain, plain / "sub" / "in", plain / ".git" / "x"):
        with pytest.raises(Refused):
            repository.restore(snapshot.tree, snapshot.head, dest)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "home", "link", "w"]
    assert not (plain / ".git" / "worktrees").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert repository.restore(snapshot.tree, snapshot.head, empty).same


def test_what_is_missing_is_said(plain: Path, tmp_path: Path) -> None:
    repository = Repository.open(plain)
    snapshot = repository.snapshot()
    for tree, head in (("1" * 40, snapshot.head), (snapshot.tree, "2" * 40), (snapshot.head or "", "2" * 40)):
        with pytest.raises(CheckpointMissing):
            repository.restore(tree, head, tmp_path / "deep" / "out")
    assert issubclass(CheckpointMissing, NotFound)
    with pytest.raises(UsageError):
        repository.restore("--help", snapshot.head, tmp_path / "out")
    assert not (tmp_path / "deep").exists()


def tree_of(folder: Path, *entries: tuple[str, str, str]) -> str:
    """A tree as somebody hostile writes it: git's own check is off."""
    raw = b"".join(f"{mode} {name}".encode() + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)
    return git(folder, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=raw)


@pytest.mark.parametrize("isolated", [False, True])
def test_hostile_trees(plain: Path, tmp_path: Path, isolated: bool) -> None:
    repository = Repository.open(plain)
    head = repository.head()
    blob = git(plain, "hash-object", "-w", "--stdin", stdin=b"gotcha")
    outside = tmp_path / "outside"
    outside.mkdir()
    link = git(plain, "hash-object", "-w", "--stdin", stdin=os.fsencode(outside))
    inner = tree_of(plain, ("100755", "post-checkout", blob))
    before = sorted(path.name for path in tmp_path.iterdir())
    files = [".git", ".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".g\u200cit", "..", ".", "../x", "a/b", "/etc/bnd-x"]
    trees = [tree_of(plain, ("100644", name, blob)) for name in (*files, "sub/../../x")]
    trees += [tree_of(plain, ("40000", name, inner)) for name in (".git", ".GIT", "..", ".git::$INDEX_ALLOCATION", "git~1")]
    trees += [
        tree_of(plain, ("120000", "d", link), ("40000", "d", inner)),
        tree_of(plain, ("40000", "d", inner), ("120000", "d", link)),
        tree_of(plain, ("100644", "d/x", blob), ("120000", "d", link)),
        tree_of(plain, ("120000", ".gitmodules", link)),
        tree_of(plain, ("100644", "gone", "3" * 40)),
        tree_of(plain, ("40000", "gone", "3" * 40)),
    ]
    for n, tree in enumerate(trees):
        dest = tmp_path / "out"
        try:
            restored = repository.restore(tree, head, dest, isolated=isolated)
        except BeyondError as error:
            assert "\n" not in str(error)
            assert sorted(path.name for path in tmp_path.iterdir()) == before, n
            assert not (plain / ".git" / "worktrees").exists()
        else:
            assert restored.path == dest
            for path in dest.rglob("*"):
                assert (
                    path.name == ".git" or ".git" in path.parts or path.name in {"a", "b", "d", "post-checkout", ".gitmodules"}
                ), n
            if not isolated:
                git(plain, "worktree", "remove", "--force", str(dest))
            shutil.rmtree(dest, ignore_errors=True)
        assert list(outside.iterdir()) == []
        assert not (tmp_path / "x").exists() and not Path("/etc/bnd-x").exists()


def test_a_failing_restore_leaves_nothing(plain: Path, tmp_path: Path) -> None:
    (plain / "big").write_bytes(os.urandom(300_000))
    repository = Repository.open(plain)
    snapshot = repository.snapshot()
    before = sorted(path.name for path in tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for isolated in (False, True):
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            with pytest.raises(GitFailed):
                repository.restore(snapshot.tree, snapshot.head, tmp_path / "new" / "out", isolated=isolated)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert not (plain / ".git" / "worktrees").exists()
    signal.signal(signal.SIGXFSZ, old)
    assert repository.restore(snapshot.tree, snapshot.head, tmp_path / "out").same


def test_a_failing_checkpoint_leaves_nothing(plain: Path) -> None:
    repository = Repository.open(plain)
    repository.snapshot()
    (plain / "big").write_bytes(os.urandom(300_000))
    before = sorted((plain / ".git" / "objects").rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(GitFailed):
            repository.snapshot()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert sorted((plain / ".git" / "objects").rglob("*")) == before
    assert not list((plain / ".git" / "bnd").glob("incoming*"))
    assert "big" in listed(plain, repository.snapshot().tree)


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.02, 0.04, 0.08, 0.15])
def test_a_killed_restore_leaves_no_target(plain: Path, tmp_path: Path, wait: float) -> None:
    for n in range(300):
        (plain / f"n{n}").write_text(str(n))
    repository = Repository.open(plain)
    snapshot = repository.snapshot()
    dest = tmp_path / "out"
    code = (
        "from pathlib import Path\nfrom beyond.checkpoint import Repository\n"
        f"r = Repository.open(Path({os.fspath(plain)!r}))\nprint(flush=True)\n"
        f"r.restore({snapshot.tree!r}, {snapshot.head!r}, Path({os.fspath(dest)!r}))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    if dest.exists():
        assert Repository.open(dest).snapshot().tree == snapshot.tree
        assert not git(dest, "status", "--porcelain", "--untracked-files=no")
    else:
        assert repository.restore(snapshot.tree, snapshot.head, dest).same


def test_a_shallow_clone_and_a_fork_of_a_fork(plain: Path, tmp_path: Path) -> None:
    git(plain, "commit", "-q", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{plain}", "shallow")
    source = Repository.open(tmp_path / "shallow")
    (tmp_path / "shallow" / "new").write_text("x\n")
    snapshot = source.snapshot()
    source.keep(snapshot, RUN, 1, None, 0, "x")
    alone = source.restore(snapshot.tree, snapshot.head, tmp_path / "alone", isolated=True)
    assert git(alone.path, "log", "--all", "--format=%s") == "second"
    inner = Repository.open(alone.path)
    (alone.path / "deeper").write_text("x\n")
    second = inner.snapshot()
    inner.keep(second, RUN, 2, None, 0, "x")
    third = inner.restore(second.tree, second.head, tmp_path / "third", isolated=True)
    assert third.same and git(third.path, "status", "--porcelain") == "?? deeper\n?? new"
    git(third.path, "fsck", "--connectivity-only")


def test_objects_travel(made: Path, tmp_path: Path) -> None:
    git(made, "commit", "-q", "--allow-empty", "-m", "second")
    repository = Repository.open(made)
    (made / "a.txt").write_text("two\n")
    (made / "new").write_text("x\n")
    said = git(made, "status", "--porcelain")
    one = repository.snapshot()
    assert one.head is not None
    (made / "new").write_text("the future\n")
    git(made, "add", "-A")
    git(made, "commit", "-qm", "the future")
    pack = repository.export_objects([one.tree], [one.head])
    restored = Repository.unpack(pack, one.tree, one.head, tmp_path / "out")
    assert restored.same and restored.isolated
    assert git(restored.path, "log", "--all", "--format=%s") == "second"
    assert git(restored.path, "status", "--porcelain") == said
    assert not [line for line in git(restored.path, "cat-file", "--batch-check", "--batch-all-objects").splitlines()
                if git(made, "rev-parse", "HEAD:new") in line]  # fmt: skip
    kind = git(made, "rev-parse", "--show-object-format")
    other = new(tmp_path / "other", kind)
    Repository.open(other).import_objects(pack)
    assert Repository.open(other).file(one.tree, "new") == b"x\n"
    for bad in (b"", b"PACK", pack[:-10], pack[:40] + b"x" + pack[41:]):
        with pytest.raises(GitFailed):
            Repository.unpack(bad, one.tree, one.head, tmp_path / "bad" / "out")
    with pytest.raises(CheckpointMissing):
        Repository.unpack(pack, "1" * len(one.tree), one.head, tmp_path / "bad" / "out")
    assert not (tmp_path / "bad").exists()
    with pytest.raises(CheckpointMissing):
        repository.export_objects(["1" * len(one.tree)], [])


def test_no_network(plain: Path, tmp_path: Path) -> None:
    """A partial clone that lacks blobs says so; it doesn't fetch."""
    git(plain, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{plain}", "partial")
    partial = tmp_path / "partial"
    repository = Repository.open(partial)
    head = repository.head()
    assert head is not None
    tree = git(partial, "rev-parse", "HEAD^{tree}")
    with pytest.raises(BeyondError):
        repository.restore(tree, head, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with contextlib.suppress(BeyondError):
        repository.file(tree, "a.txt")
    assert "?" in git(partial, "rev-list", "--objects", "--missing=print", "HEAD")


def test_errors_are_one_line(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BeyondError, match="not a folder"):
        Repository.open(tmp_path / "nowhere")
    repository = Repository.open(plain)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="not on the PATH"):
        Repository.open(plain).snapshot()
    monkeypatch.undo()
    shutil.rmtree(plain)
    with pytest.raises(BeyondError) as error:
        repository.snapshot()
    assert "\n" not in str(error.value)
