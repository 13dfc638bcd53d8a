"""A git folder of our own beside the repository's: kept index, settings without the user's, new objects set apart.

Commands that read or write files of the work tree run with GIT_DIR set to this folder. So the user's index is never
opened for writing, and none of the user's settings, hooks, monitors or filters takes part. Bytes are stored as they
are on disk: of `hash-object --no-filters`, `-c core.attributesFile` and an `info/attributes` that outranks every
`.gitattributes`, only the last also reaches `update-index`, which keeps the stat data that makes an unchanged
checkpoint cheap; and `info/attributes` of the repository itself is the user's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from beyond.checkpoint.git import Git, path_list
from beyond.errors import CheckpointBusy, GitFailed

#: How long one checkpoint waits for another of the same work tree, in seconds.
PATIENCE = 60.0
#: More new objects than this are put into one pack.
LOOSE = 500
#: From here on `update-index` writes all of them into one pack by itself, at twice the speed; before, into one each.
_BULK = (2, 38)

# `-working-tree-encoding` would be an error; `!` makes an attribute unspecified.
_ATTRIBUTES = b"* -text -crlf !eol -ident !filter !working-tree-encoding\n"
_CONFIG = """\
[core]
	repositoryFormatVersion = {version}
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = false
	precomposeUnicode = false
	autocrlf = false
	safecrlf = false
	protectHFS = true
	protectNTFS = true
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	sparseCheckout = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	logAllRefUpdates = false
[index]
	version = 2
	sparse = false
[user]
	name = beyond
	email = beyond@localhost
[commit]
	gpgSign = false
[gc]
	auto = 0
"""


class Shadow:
    """The folder, for one work tree. `index` says where the kept index is to be, if not in the folder."""

    def __init__(self, root: Path, toplevel: Path, objects: Path, hash_name: str, index: Path | None = None) -> None:
        self.root = root
        self.toplevel = toplevel
        self.objects = objects
        self.index = index or root / "index"
        self.state = self.index.with_name(self.index.name + ".state")
        self._guard = self.index.with_name(self.index.name + ".guard")
        self._hash = hash_name
        self.null = "0" * (40 if hash_name == "sha1" else 64)
        self._fresh = self.index.with_name(f"{self.index.name}.{os.getpid()}")
        self._incoming = root / f"incoming.{os.getpid()}"

    def _variables(self) -> dict[str, str | Path]:
        return {
            "GIT_DIR": self.root,
            "GIT_WORK_TREE": self.toplevel,
            "GIT_INDEX_FILE": self.index,
            "GIT_OBJECT_DIRECTORY": self.objects,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "beyond",
            "GIT_AUTHOR_EMAIL": "beyond@localhost",
            "GIT_COMMITTER_NAME": "beyond",
            "GIT_COMMITTER_EMAIL": "beyond@localhost",
        }

    def git(self) -> Git:
        """git, reading the kept index; objects go straight into the repository."""
        return Git(self.toplevel, self._variables())

    def ensure(self) -> None:
        """Makes the folder, or sets it right."""
        config = _CONFIG.format(version=0 if self._hash == "sha1" else 1)
        if self._hash != "sha1":
            config += f"[extensions]\n\tobjectFormat = {self._hash}\n"
        try:
            for name in ("refs", "info"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self.index.parent.mkdir(parents=True, exist_ok=True)
            for path, data in (
                (self.root / "HEAD", b"ref: refs/heads/none\n"),
                (self.root / "info" / "attributes", _ATTRIBUTES),
                (self.root / "config", config.encode()),
            ):
                if not path.is_file() or path.read_bytes() != data:
                    replace(path, data)
        except OSError as error:
            raise GitFailed(f"{self.root} can't be written ({error.strerror}): checkpoints need that folder") from None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Nobody else uses the kept index meanwhile. The kernel lets go of it when a process dies, however it does."""
        self.ensure()
        handle = os.open(self._guard, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise CheckpointBusy(
                            f"another checkpoint of {self.toplevel} is being taken: try again when it is done"
                        ) from None
                    time.sleep(0.005)
            yield
        finally:
            os.close(handle)

    def forget(self) -> None:
        """Drops the kept index: the next checkpoint looks at every file again."""
        for path in (self.state, self.index):
            path.unlink(missing_ok=True)

    # --- changing the index ------------------------------------------------------------------------------------------

    def change(self) -> Change:
        """A copy of the kept index to change; see `Change`."""
        self._sweep()
        return Change(self, self._fresh, self._incoming, self._variables())

    def _sweep(self) -> None:
        """Removes what a killed checkpoint left. A git that outlived it may write there still, and harms nothing."""
        for entry in os.scandir(self.root):
            if entry.name.startswith("incoming."):
                shutil.rmtree(entry.path, ignore_errors=True)
        prefix = self.index.name + "."
        kept = {self.state.name, self._guard.name}
        for entry in os.scandir(self.index.parent):
            if entry.name.startswith(prefix) and entry.name not in kept and entry.name[len(prefix)].isdigit():
                os.unlink(entry.path)


class Change:
    """One change of the kept index: made on a copy, new objects set apart; `finish` puts both in place, in that order.

    Killed in between, the kept index is as it was, and no half-written object lies in the repository.
    """

    def __init__(self, shadow: Shadow, index: Path, incoming: Path, variables: dict[str, str | Path]) -> None:
        self._shadow = shadow
        self._index = index
        self._incoming = incoming
        if shadow.index.exists():
            # The index's own time tells git which entries were written too shortly before to be trusted.
            shutil.copy2(shadow.index, index)
        incoming.mkdir()
        self.git = Git(
            shadow.toplevel,
            variables
            | {
                "GIT_INDEX_FILE": index,
                "GIT_OBJECT_DIRECTORY": incoming,
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": path_list(shadow.objects),
            },
        )

    def bulk(self, files: int) -> tuple[str, ...]:
        """Options for storing that many files."""
        if files <= LOOSE:
            return ()
        found = re.match(rb"git version (\d+)\.(\d+)", self.git.run("version"))
        if found is None or (int(found[1]), int(found[2])) < _BULK:
            return ()
        return ("-c", "core.bigFileThreshold=1")

    def finish(self) -> None:
        """Objects into the repository, then the index into its place."""
        self._migrate()
        if self._index.exists():
            os.replace(self._index, self._shadow.index)

    def abandon(self) -> None:
        """Leaves nothing behind (also called after `finish`)."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        for path in (self._index, self._index.with_name(self._index.name + ".lock")):
            path.unlink(missing_ok=True)

    def _migrate(self) -> None:
        loose = [
            (folder.name, entry.name)
            for folder in os.scandir(self._incoming)
            if len(folder.name) == 2
            for entry in os.scandir(folder.path)
            if not entry.name.startswith("tmp_")
        ]
        if len(loose) > LOOSE:
            ids = "".join(f"{folder}{name}\n" for folder, name in loose).encode()
            pack = self._incoming / "pack"
            pack.mkdir(exist_ok=True)
            self.git.run("-c", "pack.window=0", "pack-objects", "-q", os.fspath(pack / "pack"), stdin=ids)
            loose = []
        # What the folder of objects allows is what the repository shares with a group or keeps to its owner.
        mode = os.stat(self._shadow.objects).st_mode & 0o7777
        packs = self._incoming / "pack"
        if packs.is_dir():
            found = [entry.name for entry in os.scandir(packs) if entry.name.startswith("pack-")]
            # A pack counts once its .idx is there, so that comes last.
            for name in sorted(found, key=lambda name: name.endswith(".idx")):
                self._move(packs / name, self._shadow.objects / "pack", name, mode)
        for folder, name in loose:
            self._move(self._incoming / folder / name, self._shadow.objects / folder, name, mode)

    @staticmethod
    def _move(source: Path, folder: Path, name: str, mode: int) -> None:
        target = folder / name
        if mode & 0o022 or not mode & 0o004:
            os.chmod(source, 0o444 & mode)
        try:
            os.rename(source, target)
        except FileNotFoundError:
            folder.mkdir(exist_ok=True)
            os.chmod(folder, mode)
            os.rename(source, target)


def replace(path: Path, data: bytes) -> None:
    """Writes a file so that it is either the old or the new one."""
    beside = path.with_name(f"{path.name}.new.{os.getpid()}.{threading.get_ident()}")
    beside.write_bytes(data)
    os.replace(beside, path)
