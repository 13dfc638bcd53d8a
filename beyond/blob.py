"""Content-addressed bytes: hash the plain bytes, then compress many together in a pack.

Lines of a source are kept in *segments*: runs of whole lines, from which long JSON strings are lifted out and kept
once each, wherever they stand again. Cutting is lexical and is checked by putting the pieces together again, so the
same bytes always come back.
"""

from __future__ import annotations

import hashlib
import sqlite3
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from beyond import codec
from beyond.errors import JournalDamaged

#: Tag before a sha256: the multihash code of sha2-256.
SHA256 = b"\x12"
#: JSON strings of at least this many bytes are kept once per journal.
LIFT = 2048
#: Bytes of lines in a segment, and plain bytes of a pack while recording.
SEGMENT_SIZE = 256 * 1024
PACK_SIZE = 4 * 1024 * 1024
#: A chain of prefix packs is no longer than this, so that reading one line stays cheap.
MAX_CHAIN = 8
#: No segment of ours is larger (its lifted strings may lie in several packs): what a file claims is no reason to set
#: memory aside.
MAX_SEGMENT = 4 * codec.MAX_PACK
#: Lifted strings of a segment whose places are looked up by one query.
_AT_ONCE = 500


def tagged_hash(data: bytes) -> bytes:
    """The tagged sha256 that names `data`."""
    return SHA256 + hashlib.sha256(data).digest()


def hash_head(tagged: bytes) -> int:
    """The look-up key of a tagged hash: its first 8 bytes as a signed integer."""
    return int.from_bytes(tagged[1:9], "big", signed=True)


def put_varints(numbers: Iterable[int]) -> bytes:
    """Non-negative integers as LEB128, one after another."""
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def get_varints(data: bytes) -> list[int]:
    """The integers of `put_varints`. Raises ValueError when the last one is cut off, or one takes more than 140 bits."""
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 140:
                raise ValueError("a number is too large")
        else:
            numbers.append(value)
            value = shift = 0
    if shift:
        raise ValueError("a number is cut off")
    return numbers


def _string_end(piece: bytes) -> int:
    """Where the JSON string that starts `piece` ends (its closing quote), or -1."""
    at = piece.find(b'"')
    while at > 0 and piece[at - 1] == 0x5C:
        slashes = at - 1
        while slashes >= 0 and piece[slashes] == 0x5C:
            slashes -= 1
        if (at - 1 - slashes) % 2 == 0:
            return at
        at = piece.find(b'"', at + 1)
    return at


def lift(data: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """`data` without its long strings, and those as (bytes of the rest since the one before, string)."""
    pieces = data.split(b':"')
    if len(max(pieces, key=len)) < LIFT:
        return data, []
    lifted: list[tuple[int, bytes]] = []
    rest: list[bytes] = []
    done = 0
    for i, size in enumerate(map(len, pieces)):
        if size < LIFT or i == 0:
            continue
        piece = pieces[i]
        end = _string_end(piece)
        if end < LIFT:
            continue
        before = b':"'.join(pieces[done:i]) + b':"'
        rest.append(before)
        lifted.append((len(before), piece[:end]))
        pieces[i] = piece[end:]
        done = i
    if not lifted:
        return data, []
    rest.append(b':"'.join(pieces[done:]))
    return b"".join(rest), lifted


def lift_lines(data: bytes, lengths: list[int]) -> tuple[bytes, list[tuple[int, bytes]]]:
    """`lift` for whole lines: only lines that are long enough to hold a long string are looked into."""
    rest: list[bytes] = []
    lifted: list[tuple[int, bytes]] = []
    done = at = gap = 0
    for length in lengths:
        end = at + length
        if length > LIFT:
            part, found = lift(data[at:end])
            if found:
                rest += (data[done:at], part)
                gap += at - done
                for before, string in found:
                    lifted.append((gap + before, string))
                    gap = 0
                gap = len(part) - sum(before for before, _ in found)
                done = end
        at = end
    if not lifted:
        return data, []
    rest.append(data[done:])
    return b"".join(rest), lifted


def join(rest: bytes, lifted: Iterable[tuple[int, bytes]]) -> bytes:
    """The inverse of `lift`."""
    out, at = [], 0
    for gap, string in lifted:
        out.append(rest[at : at + gap])
        out.append(string)
        at += gap
    out.append(rest[at:])
    return b"".join(out)


@dataclass(slots=True)
class Segment:
    """Whole lines of a source, ready to be written. `pieces` are keys of a `PackBuilder`."""

    line: int
    lines: int
    offset: int
    size: int
    hash: bytes
    lengths: bytes
    rest: bytes
    lifted: list[tuple[int, bytes]]


def make_segment(line: int, offset: int, data: bytes, lengths: list[int]) -> Segment:
    """Cuts the bytes of whole lines (`lengths` each, newlines included) into a segment."""
    rest, lifted = lift_lines(data, lengths)
    if lifted and join(rest, lifted) != data:
        rest, lifted = data, []
    return Segment(line, len(lengths), offset, len(data), tagged_hash(data), put_varints(lengths), rest, lifted)


def _numbers(*values: object) -> bool:
    """Whether these are integers that are not negative: a damaged journal holds anything anywhere."""
    return all(isinstance(value, int) and value >= 0 for value in values)


Key = TypeVar("Key")
Value = TypeVar("Value")


class _Lru(Generic[Key, Value]):
    """A small cache bounded by the bytes of what it holds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Value | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        if key in self._held:
            return
        self._held[key] = (value, size)
        self._bytes += size
        while self._bytes > self._limit and len(self._held) > 1:
            _, (_, gone) = self._held.popitem(last=False)
            self._bytes -= gone


class Reader:
    """Reads blobs, lines and whole sources through a bounded cache (32 MB of packs and segments)."""

    def __init__(self, con: sqlite3.Connection, cache: int = 32 * 1024 * 1024) -> None:
        self._con = con
        self._packs: _Lru[int, bytes] = _Lru(cache)
        self._segments: _Lru[tuple[int, int], tuple[bytes, list[int]]] = _Lru(cache // 2)
        self._starts: dict[int, list[int]] = {}

    def pack(self, pack: int, depth: int = 0) -> bytes:
        """The plain bytes of a pack."""
        plain = self._packs.get(pack)
        if plain is not None:
            return plain
        row = self._con.execute("select codec, prefix, size, data from pack where id = ?", (pack,)).fetchone()
        if row is None:
            raise JournalDamaged(f"pack {pack} is missing: restore a copy of the journal")
        name, prefix, size, data = row
        if not isinstance(size, int) or not isinstance(data, bytes):
            raise JournalDamaged(f"pack {pack} holds no bytes, or no size of them: restore a copy of the journal")
        if depth > MAX_CHAIN:
            raise JournalDamaged(f"pack {pack}: its chain of packs doesn't end: restore a copy of the journal")
        try:
            base = self.pack(prefix, depth + 1) if prefix is not None else None
            plain = codec.decompress(data, size, base, name)
        except codec.CodecError as error:
            raise JournalDamaged(f"pack {pack} can't be read ({error}): restore a copy of the journal") from None
        self._packs.put(pack, plain, len(plain))
        return plain

    def blob(self, blob: int) -> bytes:
        """The plain bytes of a blob."""
        row = self._con.execute("select pack, offset, size from blob where id = ?", (blob,)).fetchone()
        if row is None:
            raise JournalDamaged(f"blob {blob} is missing: restore a copy of the journal")
        return self.cut(blob, *row)

    def cut(self, blob: int, pack: int, offset: int, size: int) -> bytes:
        """The plain bytes of a blob whose place is known."""
        plain = self.pack(pack)
        if not _numbers(offset, size) or offset + size > len(plain):
            raise JournalDamaged(f"blob {blob} reaches beyond its pack: restore a copy of the journal")
        return plain[offset : offset + size]

    def _segment(self, source: int, line: int) -> tuple[bytes, list[int]]:
        """The bytes of the segment that starts at `line`, and where each of its lines starts."""
        found = self._segments.get((source, line))
        if found is not None:
            return found
        row = self._con.execute(
            "select size, blob, lengths, lifted from segment where source = ? and line = ?", (source, line)
        ).fetchone()
        if row is None:
            raise JournalDamaged(f"source {source}: line {line} is missing: restore a copy of the journal")
        size, blob, lengths, recipe = row
        try:
            sizes, data = get_varints(lengths), self._joined(size, blob, get_varints(recipe))
        except (TypeError, ValueError, OverflowError):
            raise JournalDamaged(f"source {source}: line {line} can't be put together: restore a copy of the journal") from None
        starts = [0]
        for length in sizes:
            starts.append(starts[-1] + length)
        if len(data) != size or starts[-1] != size:
            raise JournalDamaged(f"source {source}: line {line} has the wrong size: restore a copy of the journal")
        self._segments.put((source, line), (data, starts), size + 32 * len(starts))
        return data, starts

    def _joined(self, size: int, blob: int, recipe: list[int]) -> bytes:
        """The bytes of a segment from its pieces. Raises ValueError where they can't come to `size`."""
        if not _numbers(size) or size > MAX_SEGMENT or len(recipe) % 2:
            raise ValueError
        data = self.blob(blob)
        if not recipe:
            return data
        lifted, total = [], len(data)
        pieces = recipe[1::2][:_AT_ONCE]
        rows = self._con.execute(f"select id, pack, offset, size from blob where id in ({','.join('?' * len(pieces))})", pieces)
        places = {found: (pack, offset, length) for found, pack, offset, length in rows}
        for gap, piece in zip(recipe[::2], recipe[1::2], strict=True):
            string = self.cut(piece, *places[piece]) if piece in places else self.blob(piece)
            lifted.append((gap, string))
            total += len(string)
            if total > size:
                raise ValueError
        return join(data, lifted)

    def forget_places(self) -> None:
        """Drops what is remembered about where segments start (new ones were written)."""
        self._starts.clear()

    def line(self, source: int, line: int) -> bytes:
        """One line of a source, without its newline; also the unfinished last one."""
        starts = self._starts.get(source)
        if starts is None or not starts:
            rows = self._con.execute("select line from segment where source = ? order by line", (source,))
            starts = self._starts[source] = [row[0] for row in rows if isinstance(row[0], int)]
        if not isinstance(line, int):
            raise JournalDamaged(f"source {source} has no line {line!r}: restore a copy of the journal")
        at = bisect_right(starts, line) - 1
        if at >= 0:
            data, ends = self._segment(source, starts[at])
            index = line - starts[at]
            if index < len(ends) - 1:
                raw = data[ends[index] : ends[index + 1]]
                return raw[:-1] if raw.endswith(b"\n") else raw
        row = self._con.execute("select lines, tail from source where id = ?", (source,)).fetchone()
        if row is not None and row[1] is not None and isinstance(row[0], int) and line == row[0] + 1:
            return self.tail(source)
        raise JournalDamaged(f"source {source} has no line {line}: restore a copy of the journal")

    def tail(self, source: int) -> bytes:
        """The bytes of a source after its last newline."""
        row = self._con.execute("select tail from source where id = ?", (source,)).fetchone()
        if row is None or row[0] is None:
            return b""
        if not isinstance(row[0], bytes):
            raise JournalDamaged(f"the tail of source {source} is no bytes: restore a copy of the journal")
        try:
            size = int.from_bytes(row[0][:8], "big")
            return codec.decompress(row[0][8:], size)
        except codec.CodecError as error:
            raise JournalDamaged(f"the tail of source {source} can't be read ({error}): restore a copy") from None

    def segments(self, source: int) -> Iterator[tuple[int, int, int, bytes, bytes, list[int]]]:
        """(first line, offset, size, tagged hash, bytes, line starts) of each segment of a source, in order."""
        rows = self._con.execute(
            "select line, offset, size, hash from segment where source = ? order by line", (source,)
        ).fetchall()
        for line, offset, size, tagged in rows:
            if not _numbers(line, offset):
                raise JournalDamaged(f"source {source}: the place of a segment is no number: restore a copy of the journal")
            data, starts = self._segment(source, line)
            yield line, offset, size, tagged, data, starts

    def lines(self, source: int) -> Iterator[tuple[int, int, bytes]]:
        """(number, byte offset, line without newline) of every complete line of a source."""
        for first, offset, _, _, data, starts in self.segments(source):
            for i in range(len(starts) - 1):
                raw = data[starts[i] : starts[i + 1]]
                yield first + i, offset + starts[i], raw[:-1] if raw.endswith(b"\n") else raw

    def raw(self, source: int) -> Iterator[bytes]:
        """The source file's own bytes, piece by piece."""
        for _, _, _, _, data, _ in self.segments(source):
            yield data
        tail = self.tail(source)
        if tail:
            yield tail


def pack_tail(data: bytes) -> bytes | None:
    """How the bytes after the last newline are stored."""
    return len(data).to_bytes(8, "big") + codec.compress(data) if data else None
