"""Putting a composed conversation into an agent CLI's store: whole or not at all, and never over anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from beyond.errors import BeyondError, Refused
from beyond.surgery.base import Part, Written

#: Folder of the store in which files are made before they are renamed to their places. The CLIs don't look into it.
_SCRATCH = ".bnd-fork-"


def install(store: Path, written: Written) -> list[Path]:
    """Puts the parts in place, in order, each by one rename, then appends the shared lines. Returns the new paths.

    Raises `Refused` where a target is there already, and `BeyondError` where the file system says no (a full disk, no
    permission); then whatever was put in place is taken away again.
    """
    targets = [_target(store, part.path) for part in written.parts]
    for target in targets:
        if os.path.lexists(target):
            raise Refused(f"{target} is there already: nothing was written; fork again for another id")
    done: list[Path] = []
    try:
        with _scratch(store) as scratch:
            made = [_make(scratch / str(number), part) for number, part in enumerate(written.parts)]
            for source, target in zip(made, targets, strict=True):
                _make_folders(store, target.parent)
                _place(source, target)
                done.append(target)
        for path, line in written.appends:
            _append(_target(store, path), line)
    except BaseException as error:
        take_away(done)
        if isinstance(error, OSError):
            raise BeyondError(
                f"the fork could not be written ({error.strerror or error}): nothing of it was left; make room in {store} or "
                "check its permissions"
            ) from None
        raise
    return done


def take_away(paths: list[Path]) -> None:
    """Removes what `install` put in place, the visible part first."""
    for target in reversed(paths):
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            with suppress(OSError):
                target.unlink()


def _target(store: Path, path: str) -> Path:
    """A path below the store. The names in it come from a journal: they are checked."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path or not pure.parts:
        raise Refused(f"the fork would be written outside {store}: this journal is not to be trusted")
    return store / pure


def _make_folders(store: Path, folder: Path) -> None:
    """Makes missing folders below the store (0700), refusing links that lead out of it."""
    real = os.path.realpath(folder)
    root = os.path.realpath(store)
    if real != root and not real.startswith(root + os.sep):
        raise Refused(f"{folder} leads out of {store} by a symbolic link: nothing was written there")
    os.makedirs(folder, 0o700, exist_ok=True)


@contextmanager
def _scratch(store: Path) -> Iterator[Path]:
    """A folder on the store's own file system. Those of processes that were killed are swept."""
    os.makedirs(store, 0o700, exist_ok=True)
    for entry in os.scandir(store):
        if entry.name.startswith(_SCRATCH) and not _alive(entry.name.removeprefix(_SCRATCH)):
            shutil.rmtree(entry.path, ignore_errors=True)
    scratch = store / f"{_SCRATCH}{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(0o700)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _alive(pid: str) -> bool:
    if not pid.isascii() or not pid.isdigit():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _make(place: Path, part: Part) -> Path:
    """Writes a part's files and syncs them."""
    if list(part.files) == [""]:
        _write(place, part, "")
        return place
    place.mkdir(0o700)
    for name in part.files:
        target = _target(place, name)
        os.makedirs(target.parent, 0o700, exist_ok=True)
        _write(target, part, name)
    for folder, _, _ in os.walk(place):
        _sync_folder(Path(folder))
    return place


def _write(path: Path, part: Part, name: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.writelines(part.files[name]())
        file.flush()
        os.fsync(file.fileno())


def _place(source: Path, target: Path) -> None:
    """Renames without overwriting."""
    if source.is_dir():
        if os.path.lexists(target):
            raise Refused(f"{target} is there already: nothing was written; fork again for another id")
        os.rename(source, target)  # fails where somebody was quicker and put something in
    else:
        try:
            os.link(source, target)
        except FileExistsError:
            raise Refused(f"{target} is there already: nothing was written; fork again for another id") from None
        os.unlink(source)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _append(path: Path, line: bytes) -> None:
    """Appends one line to a shared file in one write; a torn last line is ended first."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line
        if os.write(descriptor, data) != len(data):
            os.ftruncate(descriptor, size)
            raise OSError(28, "No space left on device")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
