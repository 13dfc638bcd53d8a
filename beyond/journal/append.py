"""Appending to the journal: packs, lines, events, and which run a repeated API message counts for."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from beyond import codec
from beyond.blob import PACK_SIZE, Reader, Segment, hash_head, pack_tail, put_varints, tagged_hash
from beyond.journal import Journal, now_ms

#: Columns of an event as `ThreadBatch.fresh` carries them; `run` comes first, `source` holds a generation there.
EVENT_COLUMNS = (
    "seq source line part kind ts tool tool_id model preview size path mark is_error turn active parent_seq "
    "result_seq link usage_key counted input_tokens output_tokens cache_read_tokens cache_write_tokens"
).split()
_SOURCE = EVENT_COLUMNS.index("source")
_USAGE = EVENT_COLUMNS.index("usage_key")
_INSERT_EVENT = f"insert into event (run, {', '.join(EVENT_COLUMNS)}) values (?{', ?' * len(EVENT_COLUMNS)})"
#: Columns of `ThreadBatch.changed`, then the seq. Tokens are left alone where the run doesn't own them.
_UPDATE_EVENT = """
update event set parent_seq = ?, turn = ?, active = ?, link = ?, result_seq = ?, is_error = ?,
    input_tokens = iif(counted, ?, null), output_tokens = iif(counted, ?, null),
    cache_read_tokens = iif(counted, ?, null), cache_write_tokens = iif(counted, ?, null)
where run = ? and seq = ?"""


class Conflict(Exception):
    """Another process recorded the same file meanwhile: read again what is there."""


@dataclass(slots=True)
class ThreadBatch:
    """New events of one run."""

    agent: str
    run: str
    run_id: int | None
    expected: int
    fresh: list[tuple[Any, ...]] = field(default_factory=list)
    changed: list[tuple[Any, ...]] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Batch:
    """What one source file brought."""

    path: str
    stat: tuple[int, int, int]
    cli: str
    conversation: str | None
    first_hash: bytes
    generation: int
    source_id: int | None
    #: source ids of earlier generations, by generation.
    sources: dict[int, int]
    expected_lines: int
    segments: list[Segment]
    lines: int
    size: int
    tail: bytes
    tail_line: bool
    damage: list[dict[str, Any]]
    threads: list[ThreadBatch]


class ReadSide(Protocol):
    """What preparing needs of a journal: it may be open for reading only, in another process."""

    con: sqlite3.Connection
    reader: Reader

    def meta(self, key: str) -> str | int | None:
        """A property of the file."""


class Pool(Protocol):
    """Where packs are compressed."""

    def submit(self, fn: Any, /, *args: Any) -> Future[bytes]:
        """Starts a call."""


class PackBuilder:
    """Collects blobs, leaves out those that the journal has, and compresses full packs on another core."""

    def __init__(self, journal: ReadSide, pool: Pool, level: int = codec.LIVE_LEVEL) -> None:
        self._journal = journal
        self._pool = pool
        self._level = level
        self.clear()

    def clear(self) -> None:
        """Forgets what was collected."""
        self._epoch = self._journal.meta("epoch")
        self._heads: set[int] | None = None
        self._known: dict[bytes, int] = {}
        self._new: dict[bytes, tuple[int, int, int]] = {}
        self._packs: list[tuple[int, Future[bytes]]] = []
        self._open: list[bytes] = []
        self._open_size = 0
        self.size = 0

    def put(self, data: bytes) -> bytes:
        """Adds a blob; returns its tagged hash."""
        tagged = tagged_hash(data)
        if tagged in self._new or tagged in self._known:
            return tagged
        if hash_head(tagged) in self._journal_heads():
            known = find_blob(self._journal.con, tagged)
            if known is not None:
                self._known[tagged] = known
                return tagged
        self._new[tagged] = (len(self._packs), self._open_size, len(data))
        self._open.append(data)
        self._open_size += len(data)
        self.size += len(data)
        if self._open_size >= PACK_SIZE:
            self._seal()
        return tagged

    def _journal_heads(self) -> set[int]:
        """Look-up keys of the blobs that the journal has: one query a batch in place of one a string."""
        if self._heads is None:
            self._heads = {head for (head,) in self._journal.con.execute("select head from blob")}
        return self._heads

    def _seal(self) -> None:
        if self._open:
            plain = b"".join(self._open)
            self._packs.append((len(plain), self._pool.submit(codec.compress, plain, self._level)))
            self._open, self._open_size = [], 0

    def take(self) -> Packed:
        """What was collected, compressed; the builder is empty afterwards."""
        self._seal()
        packed = Packed([(size, future.result()) for size, future in self._packs], self._new, self._known, self._epoch)
        self.clear()
        return packed


@dataclass(slots=True)
class Packed:
    """Compressed packs and the blobs in them: (pack, offset, size) by tagged hash, and ids of blobs that were there."""

    packs: list[tuple[int, bytes]]
    new: dict[bytes, tuple[int, int, int]]
    known: dict[bytes, int]
    epoch: str | int | None

    def write(self, journal: Journal, con: sqlite3.Connection) -> dict[bytes, int]:
        """Writes the packs inside the caller's transaction; returns blob ids by tagged hash. Raises `Conflict` where
        blobs may have been deleted since."""
        if self.known and journal.meta("epoch") != self.epoch:
            raise Conflict
        ids = dict(self.known)
        numbers = []
        for size, data in self.packs:
            cursor = con.execute("insert into pack (codec, size, data) values (?, ?, ?)", (codec.NAME, size, data))
            numbers.append(cursor.lastrowid)
        (last,) = con.execute("select coalesce(max(id), 0) from blob").fetchone()
        rows = []
        for tagged, (pack, offset, size) in self.new.items():
            there = find_blob(con, tagged)  # another process, or another worker, may have written it meanwhile
            if there is not None:
                ids[tagged] = there
                continue
            last += 1
            ids[tagged] = last
            rows.append((last, hash_head(tagged), tagged, numbers[pack], offset, size))
        con.executemany("insert into blob (id, head, hash, pack, offset, size) values (?, ?, ?, ?, ?, ?)", rows)
        return ids


def find_blob(con: sqlite3.Connection, tagged: bytes) -> int | None:
    """The id of the blob with this tagged hash."""
    for number, found in con.execute("select id, hash from blob where head = ?", (hash_head(tagged),)):
        if found == tagged:
            return int(number)
    return None


def usage_hash(cli: str, key: str) -> int:
    """The number under which an API message is known in the whole journal."""
    return int.from_bytes(hashlib.sha256(f"{cli}\0{key}".encode("utf-8", "replace")).digest()[:8], "big", signed=True)


def append(journal: Journal, packed: Packed, batches: list[Batch]) -> list[Batch]:
    """Writes batches in one transaction. Returns those that another process had changed: they were left out."""
    late: list[Batch] = []
    with journal.write() as con:
        try:
            ids = packed.write(journal, con)
        except Conflict:
            return batches
        for batch in batches:
            try:
                con.execute("savepoint batch")
                _append_one(con, batch, ids)
                con.execute("release batch")
            except Conflict:
                con.execute("rollback to batch")
                con.execute("release batch")
                late.append(batch)
    journal.reader.forget_places()
    return late


def _append_one(con: sqlite3.Connection, batch: Batch, ids: dict[bytes, int]) -> None:
    for thread in batch.threads:
        _append_run(con, batch, thread)
    _append_source(con, batch)
    assert batch.source_id is not None
    rows = []
    for segment in batch.segments:
        numbers = [n for gap, tagged in segment.lifted for n in (gap, ids[tagged])]
        rows.append(
            (
                batch.source_id, segment.line, segment.lines, segment.offset, segment.size, segment.hash,
                ids[segment.rest], segment.lengths, put_varints(numbers),
            )
        )  # fmt: skip
    con.executemany("insert into segment values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    sources = {**batch.sources, batch.generation: batch.source_id}
    for thread in batch.threads:
        _append_events(con, batch.cli, thread, sources)
    con.execute(
        "insert into file (path, source, size, mtime_ns, inode) values (?, ?, ?, ?, ?) on conflict (path) do update "
        "set source = excluded.source, size = excluded.size, mtime_ns = excluded.mtime_ns, inode = excluded.inode, "
        "gone_at = null",
        (batch.path, batch.source_id, *batch.stat),
    )


def _append_run(con: sqlite3.Connection, batch: Batch, thread: ThreadBatch) -> None:
    if thread.run_id is None:
        if con.execute("select 1 from run where run = ?", (thread.run,)).fetchone():
            raise Conflict
        columns = {
            "run": thread.run,
            "cli": batch.cli,
            "mode": "transcript",
            "conversation": batch.conversation,
            "first_hash": batch.first_hash,
            "agent": thread.agent,
            "relation": "subagent" if thread.agent != "main" else None,
            "recorded_at": now_ms(),
            **thread.columns,
        }
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        cursor = con.execute(f"insert into run ({names}) values ({marks})", tuple(columns.values()))
        thread.run_id = cursor.lastrowid
    else:
        row = con.execute("select events from run where id = ?", (thread.run_id,)).fetchone()
        if row is None or row[0] != thread.expected:
            raise Conflict
        if thread.columns:
            sets = ", ".join(f"{name} = ?" for name in thread.columns)
            con.execute(f"update run set {sets} where id = ?", (*thread.columns.values(), thread.run_id))


def _append_source(con: sqlite3.Connection, batch: Batch) -> None:
    damage = json.dumps(batch.damage) if batch.damage else None
    values = (batch.lines, batch.size, pack_tail(batch.tail), int(batch.tail_line), damage)
    if batch.source_id is None:
        run_id = batch.threads[0].run_id
        if con.execute("select 1 from source where run = ? and generation = ?", (run_id, batch.generation)).fetchone():
            raise Conflict
        cursor = con.execute(
            "insert into source (run, generation, lines, bytes, tail, tail_line, damage) values (?, ?, ?, ?, ?, ?, ?)",
            (run_id, batch.generation, *values),
        )
        batch.source_id = cursor.lastrowid
    else:
        row = con.execute("select lines from source where id = ?", (batch.source_id,)).fetchone()
        if row is None or row[0] != batch.expected_lines:
            raise Conflict
        con.execute(
            "update source set lines = ?, bytes = ?, tail = ?, tail_line = ?, damage = ? where id = ?",
            (*values, batch.source_id),
        )


def _append_events(con: sqlite3.Connection, cli: str, thread: ThreadBatch, sources: dict[int, int]) -> None:
    run_id = thread.run_id
    assert run_id is not None
    owners = _Owners(con, run_id)
    rows: list[tuple[Any, ...]] = []
    for row in thread.fresh:
        key = row[_USAGE]
        if key is not None:
            number = usage_hash(cli, key)
            mine = owners.take(number)
            row = (*row[:_USAGE], number, int(mine), *(row[_USAGE + 2 :] if mine else (None,) * 4))
        rows.append((run_id, row[0], sources[row[_SOURCE]], *row[_SOURCE + 1 :]))
    con.executemany(_INSERT_EVENT, rows)
    if thread.changed:
        con.executemany(_UPDATE_EVENT, ((*row[:-1], run_id, row[-1]) for row in thread.changed))
    con.execute("update run set events = events + ? where id = ?", (len(rows), run_id))


class _Owners:
    """Decides for which run the tokens of an API message count when several hold it (resumed copies, native forks):
    the one whose file begins first, then the smaller id."""

    def __init__(self, con: sqlite3.Connection, run_id: int) -> None:
        self._con = con
        self._run_id = run_id
        self._ages: dict[int, tuple[int, int, str]] = {}

    def _age(self, run_id: int) -> tuple[int, int, str]:
        age = self._ages.get(run_id)
        if age is None:
            first, made, run = self._con.execute(
                "select first_ts, exists (select 1 from fork where run = run.id) * id, run from run where id = ?", (run_id,)
            ).fetchone()
            # A fork of ours begins with its parent's first line: of those, the one that was made later is younger.
            age = self._ages[run_id] = (first if first is not None else 1 << 62, made, run)
        return age

    def take(self, number: int) -> bool:
        """Whether this run owns the message; takes it from a younger run."""
        others = self._con.execute(
            "select run, seq from event where kind = 'usage' and usage_key = ? and run <> ? and counted = 1",
            (number, self._run_id),
        ).fetchall()
        for other, seq in others:
            if self._age(other) < self._age(self._run_id):
                return False
            self._con.execute(
                "update event set counted = 0, input_tokens = null, output_tokens = null, cache_read_tokens = null, "
                "cache_write_tokens = null where run = ? and seq = ?",
                (other, seq),
            )
        return True


def damage_json(damage: Iterable[Any]) -> list[dict[str, Any]]:
    """Damage as it is kept with a source."""
    return [asdict(item) for item in damage]


def add_note(journal: Journal, run_id: int, seq: int | None, text: str) -> None:
    """Keeps a remark on a run or on one of its steps."""
    from beyond.event import printable

    with journal.write() as con:
        con.execute("insert into note (run, seq, text, made_at) values (?, ?, ?, ?)", (run_id, seq, printable(text), now_ms()))
