"""The GC cases: each script makes a repository that is hard to checkpoint; git really runs in every one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beyond.checkpoint import Limits, Repository, Restored, Snapshot
from beyond.errors import BeyondError, NotARepository, Refused

RUN = "0123456789ab"
ROOT = os.geteuid() == 0


def git(folder: Path, *args: str, check: bool = True, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0", **env}
    done = subprocess.run(["git", *args], cwd=folder, env=clean, capture_output=True)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture
def made(case: Any, tmp_path: Path) -> Any:
    """made("GC-01"): the folder that the case's script made."""

    def make(name: str, **env: str) -> Path:
        folder = tmp_path / "w"
        subprocess.run(["sh", case(f"{name}.sh"), folder], check=True, capture_output=True, env=os.environ | env)
        return folder

    return make


def step(folder: Path, n: int) -> None:
    subprocess.run(["sh", f"{folder}.step{n}.sh"], check=True, capture_output=True)


def print_of(folder: Path, *, meta: bool = True) -> dict[str, object]:
    """All that must stay: the user's files with their times, and the git folder but what is ours and objects."""
    found: dict[str, object] = {}
    for base, folders, files in os.walk(os.fsencode(folder)):
        if base.endswith((b"/.git/objects", b"/refs/bnd", b"/.git/bnd")) or b"/bnd" in base.partition(b"/.git/worktrees/")[2]:
            folders.clear()
            continue
        for name in files + [each for each in folders if os.path.islink(os.path.join(base, each))]:
            path = os.path.join(base, name)
            now = os.lstat(path)
            if stat.S_ISLNK(now.st_mode):
                data = os.readlink(path)
            elif stat.S_ISREG(now.st_mode) and os.access(path, os.R_OK):
                data = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).digest()
            else:
                data = b""
            found[os.fsdecode(path)] = (now.st_mode, now.st_mtime_ns, now.st_ino, data) if meta else (now.st_mode, data)
    return found


def refs(folder: Path) -> list[str]:
    lines = git(folder, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return [line for line in lines if not line.startswith("refs/bnd/")]


def take(folder: Path, seq: int = 1, limits: Limits | None = None) -> Snapshot:
    """A checkpoint, kept, with the proof that nothing of the user's moved."""
    before = print_of(folder), refs(folder)
    repository = Repository.open(folder)
    snapshot = repository.snapshot(limits=limits)
    repository.keep(snapshot, RUN, seq, None, 1_700_000_000_000, f"step {seq}")
    assert (print_of(folder), refs(folder)) == before
    return snapshot


def held(folder: Path, snapshot: Snapshot) -> dict[str, bytes]:
    """The tree's files with their bytes."""
    listed = subprocess.run(["git", "ls-tree", "-r", "-z", snapshot.tree], cwd=folder, check=True, capture_output=True)
    rows = [row.partition(b"\t") for row in listed.stdout.split(b"\0")[:-1]]
    ids = b"".join(meta.split()[2] + b"\n" for meta, _, _ in rows)
    batch = subprocess.run(["git", "cat-file", "--batch"], cwd=folder, check=True, capture_output=True, input=ids).stdout
    found = {}
    for meta, _, name in rows:
        head, _, batch = batch.partition(b"\n")
        size = int(head.split()[2]) if head.endswith(b"missing") is False else -1
        found[os.fsdecode(name)] = meta.split()[0] + b" " + batch[: max(size, 0)]
        batch = batch[size + 1 :]
    return found


def back(folder: Path, snapshot: Snapshot, dest: Path | None = None, **how: bool) -> Restored:
    """Restored beside, with the proof that the user's work tree didn't move."""
    before = print_of(folder), refs(folder)
    restored = Repository.open(folder).restore(snapshot.tree, snapshot.head, dest or folder.parent / "out", **how)
    now = print_of(folder)
    mine = {path: what for path, what in now.items() if "/.git/worktrees/" not in path}
    assert (mine, refs(folder)) == ({path: what for path, what in before[0].items() if "/.git/worktrees/" not in path}, before[1])
    assert restored.same and restored.tree == snapshot.tree
    return restored


def reasons(snapshot: Snapshot) -> dict[str, str]:
    return {skipped.path: skipped.why for skipped in snapshot.skipped}


def as_nobody(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Runs Python that knows `folder` as a user other than root."""
    code = (
        "import os, sys, json, hashlib, subprocess, tempfile, shutil, encodings.idna\n"
        "from pathlib import Path\nfrom beyond.checkpoint import *\nfrom beyond.errors import *\n"
        # Only now: this Python may lie where the other user can't read.
        + ("os.setgroups([]); os.setgid(65534); os.setuid(65534)\n" if ROOT else "")
        + f"folder = Path({os.fspath(folder)!r})\n"
        + script
    )
    env = {**os.environ, "HOME": "/nonexistent", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd="/")


def open_up(folder: Path) -> None:
    """Gives a tree to the other user."""
    if not ROOT:
        return
    for parent in folder.parents:
        if parent == Path("/"):
            break
        try:
            os.chmod(parent, os.stat(parent).st_mode | 0o011)
        except OSError:
            break
    for path in [folder.parent, folder, *folder.rglob("*")]:
        if not path.is_symlink():
            os.chown(path, 65534, 65534)


def test_gc_01_inherited_variables(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made("GC-01")
    victim = Path(f"{folder}.victim")
    before = print_of(victim)
    for name, value in {
        "GIT_DIR": f"{victim}/.git",
        "GIT_WORK_TREE": str(victim),
        "GIT_INDEX_FILE": f"{victim}/.git/index",
        "GIT_OBJECT_DIRECTORY": f"{victim}/.git/objects",
        "GIT_PREFIX": "sub/",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.worktree",
        "GIT_CONFIG_VALUE_0": str(victim),
        "GIT_NAMESPACE": "elsewhere",
        "GIT_LITERAL_PATHSPECS": "0",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_TRACE": str(victim / "trace"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    repository = Repository.open(Path())
    assert repository.toplevel == folder
    snapshot = repository.snapshot()
    kept = repository.keep(snapshot, RUN, 1, None, 0, "x")
    assert kept.ref == f"refs/bnd/{RUN}/1"
    restored = repository.restore(snapshot.tree, snapshot.head, folder.parent / "out")
    monkeypatch.undo()
    assert restored.same
    assert set(held(folder, snapshot)) == {"a.txt", "new.txt", "sub/b.txt"}
    assert print_of(victim) == before
    assert git(victim, "ls-files") == "v.txt\n"


def test_gc_02_no_commit_yet(made: Any) -> None:
    folder = made("GC-02")
    snapshot = take(folder)
    assert snapshot.head is None
    assert held(folder, snapshot) == {"a.txt": b"100644 one\n", "d/b.txt": b"100644 x\n"}
    assert not (folder / ".git" / "index").exists()
    restored = back(folder, snapshot)
    assert restored.isolated
    assert (restored.path / "d" / "b.txt").read_text() == "x\n"
    assert git(restored.path, "status", "--porcelain") == "?? a.txt\n?? d/\n"


def test_gc_02_zero_byte_index(made: Any) -> None:
    folder = Path(f"{made('GC-02')}.zero")
    (folder / "b.txt").write_text("b\n")
    snapshot = take(folder)
    assert set(held(folder, snapshot)) == {"a.txt", "b.txt"}
    assert (folder / ".git" / "index").read_bytes() == b""
    assert ".git/index" in reasons(snapshot)
    assert take(folder, 2).tree == snapshot.tree


@pytest.mark.parametrize(("which", "words"), [("bare", "bare"), ("none", "no git work tree")])
def test_gc_02_no_work_tree(made: Any, which: str, words: str) -> None:
    folder = Path(f"{made('GC-02')}.{which}")
    before = print_of(folder)
    with pytest.raises(NotARepository, match=words):
        Repository.open(folder)
    assert print_of(folder) == before


def test_gc_03_nested_repository_without_a_commit(made: Any) -> None:
    folder = made("GC-03")
    snapshot = take(folder)
    found = held(folder, snapshot)
    assert found["a.txt"] == b"100644 two\n" and found["new.txt"] == b"100644 new\n"
    assert "nested/" in reasons(snapshot)
    assert not [path for path in found if path.startswith("nested")]


def test_gc_04_submodules_and_nested_repositories(made: Any) -> None:
    folder = made("GC-04")
    snapshot = take(folder)
    assert {"lib", "nested/"} <= set(reasons(snapshot))
    found = held(folder, snapshot)
    assert found["lib"] == b"160000 "
    inner = print_of(folder / "lib"), print_of(folder / "nested")
    restored = back(folder, snapshot)
    assert restored.submodules == ("lib",)
    assert list((restored.path / "lib").iterdir()) == []
    assert (print_of(folder / "lib"), print_of(folder / "nested")) == inner
    git(folder / "lib", "checkout", "-q", "--", ".")
    (folder / "lib" / "untracked.txt").unlink()
    assert "lib" not in reasons(take(folder, 2))
    git(folder / "lib", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "-q", "--allow-empty", "-m", "x")
    third = take(folder, 3)
    assert git(folder, "ls-tree", third.tree, "lib").split()[2] == git(folder / "lib", "rev-parse", "HEAD").strip()


def test_gc_05_what_cannot_be_read(made: Any) -> None:
    folder = made("GC-05")
    open_up(folder)
    (folder / "shut").mkdir()
    (folder / "shut" / "in").write_text("x")
    os.mkfifo(folder / "sub" / "deep")
    os.chown(folder / "shut", 65534 if ROOT else -1, -1)
    os.chmod(folder / "shut", 0)
    script = """
for n in (1, 2):
    s = Repository.open(folder).snapshot()
    print(s.tree, *sorted(x.path for x in s.skipped), sep="|")
"""
    done = as_nobody(folder, script)
    os.chmod(folder / "shut", 0o755)
    assert done.returncode == 0, done.stderr
    one, two = done.stdout.splitlines()
    assert one == two
    tree, *skipped = one.split("|")
    assert skipped == ["locked.bin", "pipe", "shut/", "sock", "sub/deep"]
    listed = git(folder, "-c", f"safe.directory={folder}", "ls-tree", "-r", tree, GIT_CONFIG_COUNT="1",
                 GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")  # fmt: skip
    assert {line.split("\t")[1]: line[:6] for line in listed.splitlines()} == {
        "a.txt": "100644", "abs": "120000", "dangling": "120000", "sub/b.txt": "100644"
    }  # fmt: skip


def test_gc_05_special_files_as_any_user(made: Any) -> None:
    folder = made("GC-05")
    first = take(folder)
    assert {"pipe", "sock"} <= set(reasons(first))
    with socket.socket(socket.AF_UNIX) as late:
        os.chdir(folder)
        late.bind("sub/late")
        os.chdir("/")
    (folder / "pipe").unlink()
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    second = take(folder, 2)
    assert {"sock", "sub/late", "a.txt"} <= set(reasons(second))
    assert "pipe" not in reasons(second)
    restored = back(folder, first)
    assert os.readlink(restored.path / "dangling") == "nowhere"
    assert os.readlink(restored.path / "abs") == "/etc/hostname"


def test_gc_06_only_what_the_checkpoint_held(made: Any) -> None:
    folder = made("GC-06")
    snapshot = take(folder)
    step(folder, 2)
    take(folder, 2)
    out = back(folder, snapshot).path
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.name != ".git"}
    assert files == {".gitignore", "a.txt", "sub/b.txt", "untracked-before.txt", "work.txt"}
    assert (out / "work.txt").read_text() == "w\n" and (out / "untracked-before.txt").read_text() == "u1\n"
    assert (folder / "added-after.txt").exists() and (folder / ".env").read_text() == "k\n"


def test_gc_09_links_that_lead_out(made: Any) -> None:
    folder = made("GC-09")
    snapshot = take(folder)
    step(folder, 2)
    second = take(folder, 2)
    out = back(folder, snapshot).path
    assert not (out / "d").is_symlink() and (out / "d" / "f").read_text() == "inside\n"
    assert os.readlink(out / "link") == "d"
    other = back(folder, second, folder.parent / "out2").path
    assert (other / "d").is_symlink() and (other / "link" / "y").read_text() == "x\n"
    outside = Path(f"{folder}.outside")
    assert (outside / "f").read_text() == "precious\n" and (outside / "only").exists()


def test_gc_10_modes_and_times(made: Any) -> None:
    folder = made("GC-10")
    snapshot = take(folder)
    assert held(folder, snapshot)["new.sh"].startswith(b"100755 ")
    os.chmod(folder / "new.sh", 0o644)
    os.chmod(folder / "run.sh", 0o644)
    second = take(folder, 2)
    assert held(folder, second)["run.sh"].startswith(b"100644 ")
    out = back(folder, snapshot).path
    assert os.access(out / "run.sh", os.X_OK) and os.access(out / "new.sh", os.X_OK)
    assert (out / "ro").read_text() == "ro\n"
    for name in ("run.sh", "new.sh", "p", "ro"):
        assert os.stat(out / name).st_mtime == 1_000_000_000
    assert int(os.stat(folder / "p").st_mtime) == 1_577_836_800


def test_gc_11_open_conflict(made: Any) -> None:
    folder = made("GC-11")
    snapshot = take(folder)
    assert git(folder, "ls-files", "-u") == Path(f"{folder}.unmerged").read_text()
    assert (folder / ".git" / "MERGE_HEAD").exists()
    assert b"<<<<<<<" in held(folder, snapshot)["f"] and held(folder, snapshot)["keep"] == b"100644 k\n"
    out = back(folder, snapshot).path
    assert git(out, "status", "--porcelain") == " M f\n"
    assert git(folder, "ls-files", "-u") == Path(f"{folder}.unmerged").read_text()


def test_gc_12_intent_to_add(made: Any) -> None:
    folder = made("GC-12")
    snapshot = take(folder)
    assert held(folder, snapshot) == {
        "a.txt": b"100644 worktree\n", "ita.txt": b"100644 new\n", "sub/b.txt": b"100644 one\n"
    }  # fmt: skip
    back(folder, snapshot)
    assert git(folder, "diff", "--cached") == Path(f"{folder}.cached").read_text()
    (folder / "ita.txt").unlink()
    assert "ita.txt" not in held(folder, take(folder, 2))


def test_gc_14_sparse_checkout(made: Any) -> None:
    folder = made("GC-14")
    snapshot = take(folder)
    found = held(folder, snapshot)
    assert found == {
        "in/f": b"100644 two\n", "in/g": b"100644 2\n", "out/f": b"100644 1\n", "out/g": b"100644 2\n",
        "out/untracked": b"100644 u\n", "r": b"100644 r\n",
    }  # fmt: skip
    restored = back(folder, snapshot)
    out = restored.path
    assert (out / "out" / "untracked").exists() and not (out / "out" / "f").exists() and restored.sparse == 2
    assert git(out, "status", "--porcelain") == " M in/f\n?? out/untracked\n"
    assert not (folder / "out" / "f").exists()
    (folder / "out" / "f").write_text("shown\n")
    second = take(folder, 2)
    assert held(folder, second)["out/f"] == b"100644 shown\n"
    third = back(folder, second, folder.parent / "out2").path
    assert (third / "out" / "f").read_text() == "shown\n" and not (third / "out" / "g").exists()
    (folder / "out" / "f").unlink()
    assert take(folder, 3).tree == snapshot.tree
    git(folder, "sparse-checkout", "disable")
    assert held(folder, take(folder, 4))["out/f"] == b"100644 1\n"


def test_gc_15_stale_locks(made: Any) -> None:
    folder = made("GC-15")
    snapshot = take(folder)
    assert held(folder, snapshot)["a.txt"] == b"100644 two\n"
    assert (folder / ".git" / "index.lock").read_bytes() == b""
    ours = folder / ".git" / "bnd"
    for name in ("index.lock", "index.4194305", "index.4194305.lock", "config.lock"):
        (ours / name).write_bytes(b"")
    (ours / "incoming.4194305").mkdir()
    (folder / "a.txt").write_text("three\n")
    assert held(folder, take(folder, 2))["a.txt"] == b"100644 three\n"
    assert not (ours / "index.4194305").exists() and not (ours / "incoming.4194305").exists()


def test_gc_17_huge_untracked_trees(made: Any) -> None:
    folder = made("GC-17", SMALL="1")
    limits = Limits(max_file=10_000_000)
    snapshot = take(folder, 1, limits)
    assert "big.bin" in reasons(snapshot) and "10" not in held(folder, snapshot)
    assert len(held(folder, snapshot)) == 2002 and "node_modules/f7.js" in held(folder, snapshot)

    def size() -> int:
        return sum(path.stat().st_size for path in (folder / ".git" / "objects").rglob("*") if path.is_file())

    before = size()
    again = take(folder, 2, limits)
    assert again.tree == snapshot.tree and "big.bin" in reasons(again)
    assert size() - before < 1000
    few = Limits(max_files=10, max_new_total=1 << 40)
    Repository.open(folder)._shadow().forget()
    limited = take(folder, 3, few)
    assert len(reasons(limited)) == 1992
    assert take(folder, 4, few).tree == limited.tree
    loose = [path for path in (folder / ".git" / "objects").rglob("*") if len(path.parent.name) == 2 and path.is_file()]
    assert len(loose) < 100


@pytest.mark.parametrize("wait", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_gc_17_killed(made: Any, wait: float) -> None:
    folder = made("GC-17", SMALL="1")
    before = print_of(folder)
    code = (
        "from pathlib import Path\nfrom beyond.checkpoint import Repository\n"
        f"r = Repository.open(Path({os.fspath(folder)!r}))\nprint(flush=True)\nr.snapshot()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(wait)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
    assert print_of(folder) == before
    assert not list((folder / ".git" / "objects").rglob("tmp_*"))
    snapshot = take(folder)
    assert len(held(folder, snapshot)) == 2003
    assert not list((folder / ".git" / "bnd").glob("incoming*"))
    git(folder, "fsck", "--strict")


def test_gc_17_home(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made("GC-03")
    for home in (folder, folder / "sub"):
        monkeypatch.setenv("HOME", str(home))
        with pytest.raises(Refused, match="home directory"):
            Repository.open(folder / "sub")
    assert not (folder / ".git" / "bnd").exists()
    assert Repository.open(folder / "sub", allow_home=True).snapshot().files == 3


def test_gc_18_names(made: Any) -> None:
    folder = made("GC-18")
    files = {path: data for path, data in print_of(folder, meta=False).items() if "/.git/" not in path}
    assert len(files) == 21
    snapshot = take(folder)
    assert not snapshot.skipped and snapshot.files == 21
    out = back(folder, snapshot).path
    found = {path.replace(f"{out}/", f"{folder}/"): data for path, data in print_of(out, meta=False).items()}
    del found[f"{folder}/.git"]
    assert found == files
    for path in [path for path in folder.iterdir() if path.name != ".git"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert take(folder, 2).files == 0
    assert not list(folder.parent.rglob("PWNED"))
    changed = Repository.open(folder).diff_names(None, snapshot.tree)
    assert {os.fsencode(each.path) for each in changed} >= {b"latin1-\xe9.txt", b"new\nline.txt", b":(top)magic"}
    assert Repository.open(folder).file(snapshot.tree, "new\nline.txt") == b"xnew\nl"


def test_gc_19_filters(made: Any) -> None:
    folder = made("GC-19")
    wanted = Path(f"{folder}.sums").read_text()

    def sums(base: Path) -> str:
        command = "find . -path ./.git -prune -o -type f -print | sort | xargs sha1sum"
        return subprocess.run(["sh", "-c", command], cwd=base, check=True, capture_output=True, text=True,
                              env={**os.environ, "LC_ALL": "C"}).stdout  # fmt: skip

    snapshot = take(folder)
    assert not snapshot.skipped
    out = back(folder, snapshot).path
    assert sums(out) == wanted
    assert sums(back(folder, snapshot, folder.parent / "iso", isolated=True).path) == wanted


def test_gc_19_committed_with_filters(made: Any) -> None:
    """The user's own index calls these files unchanged although their objects have other bytes."""
    folder = made("GC-19")
    (folder / "w.fail").unlink()
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "-qm", "x")
    # Old enough for git to trust its stat data.
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, (1_500_000_000, 1_500_000_000))
    git(folder, "update-index", "-q", "--refresh")
    git(folder, "config", "filter.up.smudge", "touch SMUDGED; cat")
    git(folder, "config", "filter.up.clean", "touch CLEANED; tr a-z A-Z")
    (folder / "ident.id").write_text("$Id: later $\n")
    snapshot = take(folder)
    found = held(folder, snapshot)
    assert found["x.up"] == b"100644 lower\n" and found["crlf.txt"] == b"100644 crlf\r\n"
    out = back(folder, snapshot).path
    assert (out / "x.up").read_bytes() == b"lower\n" and (out / "mixed.txt").read_bytes() == b"mixed\r\nlines\nhere\r\n"
    assert not list(folder.parent.rglob("SMUDGED")) and not list(folder.parent.rglob("CLEANED"))
    # A tree without attributes, whose files were converted by a setting alone.
    git(folder, "rm", "-q", "--cached", ".gitattributes")
    (folder / ".gitattributes").unlink()
    assert held(folder, take(folder, 2))["crlf.txt"] == b"100644 crlf\r\n"


def test_gc_20_hostile_configuration(made: Any) -> None:
    folder = made("GC-20")
    snapshot = take(folder)
    found = held(folder, snapshot)
    assert found["new.txt"] == b"100644 n\n" and found["a.txt"] == b"100644 two\n"
    for isolated in (False, True):
        back(folder, snapshot, folder.parent / f"out{isolated}", isolated=isolated)
    assert Repository.open(folder).drop_refs(RUN) == 1
    assert not Path(f"{folder}.hook-ran").exists()
    assert not list(folder.parent.rglob("PAGER_RAN"))


def test_gc_21_nothing_is_pushed(made: Any) -> None:
    folder = made("GC-21")
    snapshot = take(folder)
    assert snapshot.sensitive == (".env",)
    for how in ([], ["--all"], ["--tags"]):
        git(folder, "push", "-q", *how)
    remote = Path(f"{folder}.remote")
    assert git(remote, "for-each-ref", "--format=%(refname)") == "refs/heads/main\n"
    git(folder, "gc", "-q", "--prune=now")
    back(folder, snapshot)


def test_gc_22_restore_beside_leaves_all(made: Any) -> None:
    folder = made("GC-22")
    snapshot = take(folder)
    step(folder, 2)
    try:
        second = take(folder, 2)
        assert held(folder, second)["f150"] == b"100644 user-edit\n"
        out = back(folder, snapshot).path
        assert (out / "ro" / "x").read_text() == "v1\n" and (out / "f150").read_text() == "v1 150\n"
    finally:
        os.chmod(folder / "ro", 0o755)


def test_gc_22_restore_where_it_cannot_be_written(made: Any) -> None:
    folder = made("GC-22")
    open_up(folder)
    shut = folder.parent / "shut"
    shut.mkdir(mode=0o555)
    done = as_nobody(
        folder,
        """
r = Repository.open(folder)
s = r.snapshot()
try:
    r.restore(s.tree, s.head, folder.parent / "shut" / "out")
except GitFailed as error:
    print(error)
print(sorted(os.listdir(folder.parent / "shut")), (folder / ".git" / "worktrees").exists())
""",
    )
    assert done.returncode == 0, done.stderr
    said, left = done.stdout.splitlines()
    assert "shut/out can't be made" in said and left == "[] False"


def test_gc_23_removed_worktree(made: Any) -> None:
    folder = made("GC-23")
    for place, words in (
        (folder / ".worktrees" / "wt", "not a work tree of its own"),
        (Path(f"{folder}.moved") / "wt2", "leads nowhere"),
    ):
        before = print_of(folder), print_of(place)
        with pytest.raises(NotARepository, match=words):
            Repository.open(place)
        assert (print_of(folder), print_of(place)) == before
    assert not (folder / ".git" / "bnd").exists()
    (folder / ".git" / "info" / "exclude").write_text("")
    with pytest.raises(NotARepository, match="tracks nothing there"):
        Repository.open(folder / ".worktrees" / "wt")
    with pytest.raises(NotARepository, match="was expected"):
        Repository.open(folder / "sub", expect=folder / "sub")
    assert Repository.open(folder / "sub").toplevel == folder


def test_gc_23_worktree_that_is_still_registered(made: Any) -> None:
    folder = made("GC-23")
    git(folder, "worktree", "add", "-q", "-b", "third", "plain/third")
    (folder / "plain" / "third" / ".git").unlink()
    with pytest.raises(NotARepository, match=r"its own \.git file is gone"):
        Repository.open(folder / "plain" / "third" / "sub")


def test_gc_24_somebody_else(made: Any) -> None:
    folder = made("GC-24")
    first = take(folder)
    step(folder, 2)
    take(folder, 2)
    step(folder, 3)
    out = back(folder, first).path
    assert (out / "shared.txt").read_text() == "l1\nl2\nl3\n" and not (out / "mine.txt").exists()
    assert (folder / "mine.txt").read_text() == "mine\n" and git(folder, "log", "-1", "--format=%s") == "a commit of the person\n"
    assert git(out, "rev-parse", "HEAD").strip() == first.head
    assert "a commit of the person" not in git(out, "log", "--format=%s")
    alone = back(folder, first, folder.parent / "alone", isolated=True).path
    assert "a commit of the person" not in git(alone, "log", "--all", "--format=%s")
    with pytest.raises(BeyondError):
        Repository.open(folder).restore(first.tree, first.head, folder)
