"""The few facts of an index file that git has no fast command for: sizes on disk, and stat data after times were set."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_STAT = struct.Struct(">10I")
_FLAGS = struct.Struct(">H")


def _entries(data: bytes | bytearray, hash_size: int) -> Iterator[tuple[int, bytes]]:
    """Where each entry starts, and its name. ValueError for a version that packs names, or a cut file."""
    if data[:4] != b"DIRC" or int.from_bytes(data[4:8], "big") not in (2, 3):
        raise ValueError("not an index of version 2 or 3")
    at = 12
    for _ in range(int.from_bytes(data[8:12], "big")):
        (flags,) = _FLAGS.unpack_from(data, at + 40 + hash_size)
        name = at + 42 + hash_size + (2 if flags & 0x4000 else 0)
        end = data.index(b"\0", name)
        yield at, bytes(data[name:end])
        at += (end - at + 8) & ~7


def entry_sizes(index: Path, hash_size: int) -> dict[str, int] | None:
    """The size on disk of every file, as the index knows it; None where the index is of a kind that can't be read here.

    A size of 0 may also mean that git doesn't trust the entry.
    """
    try:
        data = index.read_bytes()
        return {os.fsdecode(name): int.from_bytes(data[at + 36 : at + 40], "big") for at, name in _entries(data, hash_size)}
    except (OSError, ValueError, struct.error):
        return None


def links(index: Path, hash_size: int) -> tuple[int, list[str]]:
    """How many entries there are, and which are submodules."""
    data = index.read_bytes()
    count, mode = int.from_bytes(data[8:12], "big"), b"\0\0\xe0\0"
    if mode not in data:
        return count, []
    return count, [os.fsdecode(name) for at, name in _entries(data, hash_size) if data[at + 24 : at + 28] == mode]


def set_times(index: Path, top: Path, hash_name: str, seconds: int) -> None:
    """Gives every file of a fresh checkout the same time, and the index the stat data that belongs to it.

    Only for files that git just wrote from this index: their content isn't read again, their size has to be as written.
    """
    data = bytearray(index.read_bytes())
    hash_size = 20 if hash_name == "sha1" else 32
    base = os.fsencode(top) + b"/"
    when = (seconds * 1_000_000_000, seconds * 1_000_000_000)
    for at, name in _entries(data, hash_size):
        _, _, mtime, _, _, _, mode, _, _, size = _STAT.unpack_from(data, at)
        # A submodule, or a file that the sparse checkout leaves out.
        if mode == 0o160000 or mtime == 0:
            continue
        path = base + name
        os.utime(path, ns=when, follow_symlinks=False)
        now = os.lstat(path)
        if now.st_size & 0xFFFFFFFF != size:
            raise OSError(errno.EIO, "a file isn't as it was written")
        _STAT.pack_into(
            data, at,
            now.st_ctime_ns // 1_000_000_000 & 0xFFFFFFFF, now.st_ctime_ns % 1_000_000_000, seconds, 0,
            now.st_dev & 0xFFFFFFFF, now.st_ino & 0xFFFFFFFF, mode, now.st_uid, now.st_gid, size,
        )  # fmt: skip
    data[-hash_size:] = hashlib.new(hash_name, bytes(data[:-hash_size]), usedforsecurity=False).digest()
    index.write_bytes(data)
