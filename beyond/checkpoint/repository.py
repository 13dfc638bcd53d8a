"""A repository as far as checkpoints are concerned."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

from beyond.checkpoint import exchange
from beyond.checkpoint import restore as _restore
from beyond.checkpoint.facts import Limits, Snapshot
from beyond.checkpoint.git import Git, object_id, ref_value
from beyond.checkpoint.places import Places, find
from beyond.checkpoint.restore import Restored
from beyond.checkpoint.shadow import Shadow
from beyond.checkpoint.snapshot import Snapshotter
from beyond.checkpoint.state import State
from beyond.errors import CheckpointMissing, UsageError
from beyond.text import one_line

_RUN = re.compile(r"[0-9a-f]{12}\Z")


@dataclass(frozen=True)
class Kept:
    """How a checkpoint is kept: None twice where an earlier one holds the same tree."""

    commit: str | None
    ref: str | None
    tree: str


@dataclass(frozen=True)
class Changed:
    """A path that differs between two trees; `how` is git's letter: A, D, M or T."""

    path: str
    how: str


class Repository:
    """Opened on a directory; everything else is about the work tree that it lies in."""

    def __init__(self, places: Places, *, allow_home: bool = False) -> None:
        self._places = places
        self._allow_home = allow_home
        self._user = Git(places.toplevel, {"GIT_DIR": places.git_dir, "GIT_WORK_TREE": places.toplevel})
        self._index: Path | None = None

    @classmethod
    def open(cls, directory: Path, *, allow_home: bool = False, expect: Path | None = None) -> Repository:
        """The repository of `directory`. NotARepository where there is none with a work tree of its own, or not the
        one at `expect`; Refused for / and the home directory. Nothing is created."""
        return cls(find(Path(directory), allow_home=allow_home, expect=expect), allow_home=allow_home)

    @property
    def toplevel(self) -> Path:
        """The work tree's root."""
        return self._places.toplevel

    @property
    def git_dir(self) -> Path:
        """The git folder of this work tree."""
        return self._places.git_dir

    @property
    def common_dir(self) -> Path:
        """The git folder that all its worktrees share."""
        return self._places.common_dir

    def _shadow(self, index: Path | None = None) -> Shadow:
        index = index or self._index
        return Shadow(self.git_dir / "bnd", self.toplevel, self._places.objects, self._places.hash_name, index)

    def head(self) -> str | None:
        """The commit that HEAD is at; None when there is no commit yet."""
        try:
            text = (self.git_dir / "HEAD").read_text().rstrip("\n")
            if text.startswith("ref: refs/heads/"):
                value = ref_value(self.common_dir, self._user, text[5:])
            elif re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text):
                value = text
            else:
                value = None
            if value is not None:
                return value
        except (OSError, ValueError):
            pass
        code, out, _ = self._user.ask("rev-parse", "--verify", "-q", "HEAD^{commit}")
        return out.decode().strip() if code == 0 else None

    def snapshot(self, index: Path | None = None, *, limits: Limits | None = None) -> Snapshot:
        """The work tree as a tree, written to the repository, unreferenced until `keep`. `index`: where the kept index
        is to be, if not under the work tree's git folder."""
        self._index = index or self._index
        shadow = self._shadow()
        with shadow.guarded():
            taker = Snapshotter(shadow, self._user, self.git_dir / "index", limits or Limits())
            return taker.take(self.head())

    def keep(
        self,
        snapshot: Snapshot,
        run: str,
        seq: int,
        previous_tree: str | None,
        when_ms: int,
        message: str,
        *,
        previous_head: str | None = None,
    ) -> Kept:
        """Holds a snapshot under refs/bnd/RUN/SEQ, as a commit on top of HEAD's, so that `git gc` keeps both. No new ref
        where the tree is `previous_tree`; with `previous_head` given, HEAD has to be the same, too."""
        _check_run(run)
        if snapshot.tree == previous_tree and (previous_head is None or previous_head == snapshot.head):
            return Kept(None, None, snapshot.tree)
        shadow = self._shadow()
        shadow.ensure()
        # Without the @ git takes small numbers for something else.
        when = f"@{when_ms // 1000} +0000"
        git = shadow.git().also({"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when})
        parents = [] if snapshot.head is None else ["-p", object_id(snapshot.head)]
        said = one_line(message).encode("utf-8", "replace") + b"\n"
        commit = git.run("commit-tree", *parents, object_id(snapshot.tree), stdin=said).decode().strip()
        ref = self._new_ref(f"refs/bnd/{run}/{int(seq)}", commit, snapshot.tree)
        with shadow.guarded():
            state = State.load(shadow.state, shadow.index)
            if state is not None and state.tree == snapshot.tree:
                state.anchor = [ref, commit, snapshot.tree]
                state.save(shadow.state)
        return Kept(commit, ref, snapshot.tree)

    def _new_ref(self, ref: str, commit: str, tree: str) -> str:
        """Creates the ref; one that is there with another commit holds somebody's checkpoint, so the name gets a suffix."""
        name = ref
        for n in range(2, 1000):
            code, _, err = self._user.ask("update-ref", "--no-deref", name, commit, "0" * len(commit))
            if code == 0 or ref_value(self.common_dir, self._user, name) == commit:
                return name
            if ref_value(self.common_dir, self._user, name) is None:
                raise UsageError(f"{name} can't be made ({one_line(err, 200)}): look at it with `git for-each-ref`")
            name = f"{ref}.{n}"
        raise UsageError(f"{ref} exists a thousand times: `bnd gc` removes refs that nothing needs")

    def restore(self, tree: str, head: str | None, dest: Path, *, isolated: bool = False, old_times: bool = True) -> Restored:
        """The files of `tree` in a new work tree at `dest`, HEAD detached at `head`: a worktree of this repository, or
        one of a repository of its own that borrows the objects (`isolated`, and always without `head`). All or nothing."""
        return _restore.restore(
            self._places,
            tree,
            head,
            Path(dest),
            isolated=isolated,
            old_times=old_times,
            inside=self._allow_home,
        )

    @staticmethod
    def unpack(pack: bytes, tree: str, head: str | None, dest: Path, *, old_times: bool = True) -> Restored:
        """The same where the repository is absent: a new one at `dest`, from what `export_objects` gave, history shallow."""
        return _restore.unpack(pack, tree, head, Path(dest), old_times=old_times)

    def export_objects(self, trees: Iterable[str], heads: Iterable[str]) -> bytes:
        """A pack of all that these trees hold and of these commits, without the commits' history."""
        return exchange.pack(self._user, trees, heads)

    def import_objects(self, pack: bytes) -> None:
        """Puts such a pack into this repository; every object is checked. They stay until `git gc` prunes them: no ref may
        hold a commit whose history isn't there."""
        exchange.unpack(self._user, pack)

    def diff_names(self, tree_a: str | None, tree_b: str) -> list[Changed]:
        """The paths that differ between two trees; None is the empty one."""
        git = self._shadow().git() if self._shadow().root.is_dir() else self._user
        first = git.run("hash-object", "-t", "tree", os.devnull).decode().strip() if tree_a is None else object_id(tree_a)
        out = git.run("diff-tree", "-r", "-z", "--no-renames", "--name-status", first, object_id(tree_b)).split(b"\0")
        return [Changed(os.fsdecode(name), how.decode()) for how, name in zip(out[0:-1:2], out[1::2], strict=True)]

    def changed_files(self, tree_a: str | None, tree_b: str) -> int:
        """How many paths differ between two trees."""
        return 0 if tree_a == tree_b else len(self.diff_names(tree_a, tree_b))

    def file(self, tree: str, path: str) -> bytes | None:
        """The bytes of a file in a tree (of a symbolic link: where it leads); None where there is none."""
        object_id(tree)
        if not path or path.startswith("/") or "\0" in path or {"", ".", ".."} & set(path.split("/")):
            return None
        code, out, err = self._user.ask("cat-file", "blob", f"{tree}:{path}")
        if code and "could not get object info" in err:
            raise CheckpointMissing(f"the content of {one_line(path)} is not in the repository: it was pruned or never fetched")
        return out if code == 0 else None

    def drop_refs(self, run: str, keep: Set[str] = frozenset()) -> int:
        """Deletes the refs of a run but those in `keep` (full names); how many went."""
        _check_run(run)
        found = self._user.run("for-each-ref", "--format=%(refname) %(objectname)", f"refs/bnd/{run}/").decode().splitlines()
        gone = [line.split(" ") for line in found if line.split(" ")[0] not in keep]
        if gone:
            orders = b"".join(f"option no-deref\0delete {name}\0{oid}\0".encode() for name, oid in gone)
            self._user.run("update-ref", "-z", "--stdin", stdin=orders)
        return len(gone)

    def delete_refs(self, refs: Iterable[str]) -> int:
        """Deletes these refs, as far as they lie under refs/bnd and are there; how many went."""
        found = self._user.run("for-each-ref", "--format=%(refname) %(objectname)", "refs/bnd/").decode().splitlines()
        wanted = set(refs)
        gone = [line.split(" ") for line in found if line.split(" ")[0] in wanted]
        if gone:
            orders = b"".join(f"option no-deref\0delete {name}\0{oid}\0".encode() for name, oid in gone)
            self._user.run("update-ref", "-z", "--stdin", stdin=orders)
        return len(gone)


def _check_run(run: str) -> None:
    if not _RUN.match(run):
        raise UsageError(f"{one_line(run, 40)!r} is not a run's id: give 12 hex digits")
