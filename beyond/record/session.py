"""Reading one transcript file from where the journal left off.

A session compares the file with what is recorded, feeds the ingester, and hands out batches for the journal. It keeps
the ingester, so that a follower pays for new lines only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from beyond import agents
from beyond.blob import SEGMENT_SIZE, make_segment, tagged_hash
from beyond.errors import SourceError
from beyond.event import PREVIEW, printable
from beyond.ingest.base import Damage, Event, Facts, Ingester, NotARecord, parse, wrong_encoding
from beyond.ingest.tree import Delta, Row
from beyond.journal.append import Batch, PackBuilder, ReadSide, ThreadBatch, damage_json
from beyond.store import Found, describe

#: Bytes of a file that are read, parsed and handed to the journal at a time.
CHUNK = 8 * 1024 * 1024


class Empty(Exception):
    """The file holds no step of a conversation (yet)."""


@dataclass(slots=True)
class Report:
    """What a session found out, apart from the events: it crosses processes."""

    run: str
    title: str | None
    created: bool
    rewritten: bool
    new_lines: int
    new_events: int
    tool_id: str | None
    subagents: dict[str, str]
    summaries: dict[str, str]
    warnings: list[str]


def run_id_of(cli: str, conversation: str | None, agent: str, first_hash: bytes, salt: int = 0) -> str:
    """The id of a run: 12 hex digits that depend on nothing but what the run key is made of."""
    text = "\0".join((cli, conversation or "", agent, first_hash.hex(), str(salt) if salt else ""))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(slots=True)
class Thread:
    """A run that the file feeds: the conversation itself, or a subagent written into the same file."""

    agent: str
    run: str
    run_id: int | None = None
    expected: int = 0
    next_seq: int = 0
    known: dict[tuple[int, int, int], tuple[Any, ...]] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    batch: ThreadBatch | None = None


_KNOWN = """select source, line, part, seq, parent_seq, turn, active, link, result_seq, is_error, counted,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens from event where run = ?"""


class Session:
    """One source file and its runs. `open` once, then `batches` whenever the file may have grown."""

    def __init__(self, journal: ReadSide, found: Found, label: str | None = None) -> None:
        self.journal = journal
        self.found = found
        self.label = label
        self.generation = 0
        self.source_id: int | None = None
        self.sources: dict[int, int] = {}
        self.lines = 0
        self.offset = 0
        self.tail = b""
        self.new_lines = 0
        self.new_events = 0
        self.rewritten = False
        self.threads: dict[str, Thread] = {}
        self.first_hash = b""
        self._older: set[bytes] = set()
        self._fed = 0
        self.shrunk = False
        #: True where the file made a new run.
        self.created = False
        #: True while the file holds more than the batch that was handed out last.
        self.more = False
        self._derived: dict[str, dict[int, Row]] = {}
        self._unflushed = 0
        self._stored_tail: tuple[bytes, bool] = (b"", False)
        self._stored_damage = -1
        self._check = b""
        self.ingester: Ingester

    # -- what is recorded already ------------------------------------------------------------------

    def open(self) -> None:
        """Finds the run that the file belongs to and reads what is recorded of it."""
        describe(self.found)
        with self.found.path.open("rb") as file:
            head = file.read(4096)
            encoding = wrong_encoding(head)
            if encoding:
                raise SourceError(f"{self.found.path} is {encoding}: transcripts are UTF-8; convert a copy and record that")
            file.seek(0)
            first = file.readline()
            if not first.endswith(b"\n") and not _complete(first):
                raise Empty
            self.first_hash = tagged_hash(first.rstrip(b"\r\n"))
            if self.found.conversation is None:
                self.found.conversation = self._conversation_inside(file)
            run_id = self._known_path() or self._matching_run(file)
            self.created = run_id is None
            if run_id is None:
                self._fresh()
            else:
                self._resume(run_id, file)

    def _conversation_inside(self, file: BinaryIO) -> str | None:
        """The conversation's id as the lines give it, from the first that has one."""
        file.seek(0)
        for _ in range(200):
            line = file.readline()
            if not line:
                break
            try:
                record = parse(line.rstrip(b"\r\n"))
            except NotARecord:
                continue
            value = record.get("sessionId")
            if isinstance(value, str) and value:
                return value
        return None

    def _known_path(self) -> int | None:
        row = self.journal.con.execute(
            "select r.id from file f join source s on s.id = f.source join run r on r.id = s.run "
            "where f.path = ? and r.cli = ? and r.conversation is ?",
            (str(self.found.path), self.found.cli, self.found.conversation),
        ).fetchone()
        return row[0] if row else None

    def _matching_run(self, file: BinaryIO) -> int | None:
        """A recorded run of the same conversation of which this file is a prefix or an extension."""
        rows = self.journal.con.execute(
            "select id from run where cli = ? and conversation is ? and agent = ? and first_hash = ? order by id",
            (self.found.cli, self.found.conversation, self.found.agent, self.first_hash),
        ).fetchall()
        for (run_id,) in rows:
            source = self._sources_of(run_id)[-1][1]
            if self._verify(source, file)[0]:
                return int(run_id)
        return None

    def _sources_of(self, run_id: int) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = self.journal.con.execute(
            "select generation, id from source where run = ? order by generation", (run_id,)
        ).fetchall()
        return rows

    def _verify(self, source: int, file: BinaryIO) -> tuple[bool, int, int]:
        """Compares a file with recorded lines: (same as far as both go, lines and bytes that both have)."""
        con = self.journal.con
        file.seek(0)
        lines = offset = 0
        segments = con.execute("select line, lines, size, hash from segment where source = ? order by line", (source,)).fetchall()
        for line, count, size, tagged in segments:
            data = file.read(size)
            if len(data) < size or tagged_hash(data) != tagged:
                ours = b"".join(raw + b"\n" for _, _, raw in self._lines_from(source, line, count))
                same = len(data) < size and ours.startswith(data)
                return same, lines, offset
            lines, offset = line + count - 1, offset + size
        tail = self.journal.reader.tail(source)
        data = file.read(len(tail))
        return (data.startswith(tail) or tail.startswith(data)), lines, offset

    def _lines_from(self, source: int, line: int, count: int) -> Iterator[tuple[int, int, bytes]]:
        for number in range(line, line + count):
            yield number, 0, self.journal.reader.line(source, number)

    def _fresh(self) -> None:
        self.ingester = agents.make_ingester(self.found.cli, self.found.conversation, self.found.project, self.found.agent)

    def _resume(self, run_id: int, file: BinaryIO) -> None:
        con = self.journal.con
        project, first_hash = con.execute("select project, first_hash from run where id = ?", (run_id,)).fetchone()
        gens = self._sources_of(run_id)
        self.sources = dict(gens)
        same, lines, offset = self._verify(gens[-1][1], file)
        if same and lines < self._count(gens[-1][1]):  # the file shrank: nothing new, all is kept
            self.shrunk = True
            lines, offset = con.execute("select lines, bytes from source where id = ?", (gens[-1][1],)).fetchone()
        latest = gens[-1][0] + (0 if same else 1)
        self._replay(run_id, first_hash, project, gens[:-1] if same else gens, latest)
        if not same:  # earlier lines were rewritten: read the file whole, take only the lines that are new
            self.rewritten = True
            self.generation = latest
            return
        self.generation, self.source_id = gens[-1]
        self._feed_recorded(self.generation, self.source_id, latest)
        self.lines = lines
        self.offset = offset
        tail_line, tail = self._tail_of(self.source_id)
        self._stored_tail = (tail, tail_line)
        if tail_line:
            self._feed(self.generation, lines + 1, 0, tail)
            self._fed = lines + 1
        (damage,) = con.execute("select damage from source where id = ?", (self.source_id,)).fetchone()
        self._stored_damage = len(damage) if damage else 0

    def _replay(self, run_id: int, first_hash: bytes, project: str | None, gens: list[tuple[int, int]], latest: int) -> None:
        """Feeds recorded generations to a new ingester."""
        self.ingester = agents.make_ingester(self.found.cli, self.found.conversation, project, self.found.agent)
        self._load_threads(run_id, first_hash)
        for generation, source in gens:
            self._feed_recorded(generation, source, latest)
            tail_line, tail = self._tail_of(source)
            if tail_line and tail:
                self._feed(generation, self._count(source) + 1, 0, tail)

    def rederive(self, run_id: int) -> list[tuple[str, int]]:
        """Derives a recorded run again, from the journal alone. Returns (run, number of events that come out
        otherwise than they are stored)."""
        row = self.journal.con.execute("select project, first_hash from run where id = ?", (run_id,)).fetchone()
        gens = self._sources_of(run_id)
        self.sources = dict(gens)
        self._replay(run_id, row[1], row[0], gens, gens[-1][0])
        self._absorb(self.ingester.flush(self._assign))
        differing = []
        for batch in self._thread_batches({}):
            thread = next(t for t in self.threads.values() if t.run == batch.run)
            wrong = len(batch.changed) + max(thread.next_seq - thread.expected, 0)
            if wrong:
                differing.append((batch.run, wrong))
        return differing

    def _count(self, source: int) -> int:
        (lines,) = self.journal.con.execute("select lines from source where id = ?", (source,)).fetchone()
        return int(lines)

    def _tail_of(self, source: int) -> tuple[bool, bytes]:
        (tail_line,) = self.journal.con.execute("select tail_line from source where id = ?", (source,)).fetchone()
        return bool(tail_line), self.journal.reader.tail(source)

    def _feed_recorded(self, generation: int, source: int, latest: int) -> None:
        for number, offset, raw in self.journal.reader.lines(source):
            if generation < latest:
                self._older.add(hashlib.sha256(raw).digest()[:12])
            self._feed(generation, number, offset, raw)
            self._unflushed += len(raw)
            if self._unflushed > CHUNK:
                self._absorb(self.ingester.flush(self._assign))

    def _absorb(self, deltas: dict[str, Delta]) -> None:
        """Notes what is derived for recorded events; their content is not kept."""
        self._unflushed = 0
        for name, delta in deltas.items():
            rows = self._derived.setdefault(name, {})
            for row in (*delta.fresh, *delta.changed):
                row.event = None
                rows[row.seq] = row

    def _load_threads(self, run_id: int, first_hash: bytes) -> None:
        con = self.journal.con
        rows = con.execute(
            "select id, run, agent, events from run where id = ? or (cli = ? and conversation is ? and first_hash = ? "
            "and agent <> 'main' and id <> ?)",
            (run_id, self.found.cli, self.found.conversation, first_hash, run_id),
        ).fetchall()
        generations = {source: generation for generation, source in self.sources.items()}
        for number, run, agent, events in rows:
            name = "main" if number == run_id else agent
            thread = Thread(agent if number != run_id else self.found.agent, run, number, events, events)
            for source, line, part, *rest in con.execute(_KNOWN, (number,)):
                if source in generations:
                    thread.known[generations[source], line, part] = tuple(rest)
            self.threads[name] = thread

    # -- reading on --------------------------------------------------------------------------------

    def _feed(self, generation: int, number: int, offset: int, raw: bytes) -> None:
        if generation and self._older and hashlib.sha256(raw).digest()[:12] in self._older:
            return
        self.ingester.feed(generation, number, offset, raw)

    def batches(self, builder: PackBuilder, *, always: bool = True) -> Iterator[Batch]:
        """What the file holds beyond the recorded lines, in pieces of bounded size. Each must be appended before the
        next is asked for. Without `always` nothing is yielded where nothing is new. Raises `Empty` where there is
        nothing that is worth a run."""
        if self._unflushed or self._fed:
            self._absorb(self.ingester.flush(self._assign))
        with self.found.path.open("rb") as file:
            file.seek(self.offset)
            while True:
                data = b"" if self.shrunk else _read_lines(file)
                cut = data.rfind(b"\n") + 1
                rest = data[cut:]
                self.more = bool(data) and not rest and self.offset + cut < self.found.stat[0]
                if self.shrunk or (self._stored_tail[0].startswith(rest) and not cut):
                    rest = self._stored_tail[0]
                batch = self._batch(data[:cut], rest, builder)
                if always or self._news(batch):
                    yield batch
                self._check = (data[:cut] or self._check)[-256:]
                if not self.more:
                    return
                file.seek(self.offset)

    def _news(self, batch: Batch) -> bool:
        return bool(
            batch.segments
            or (batch.tail, batch.tail_line) != self._stored_tail
            or any(t.fresh or t.changed for t in batch.threads)
        )

    def overtaken(self) -> bool:
        """Whether the file is no longer an extension of what was read from it (compared at the seam)."""
        with self.found.path.open("rb") as file:
            if self.shrunk or file.seek(0, 2) < self.offset:
                return True
            file.seek(self.offset - len(self._check))
            return file.read(len(self._check)) != self._check or not file.read(len(self.tail)).startswith(self.tail)

    def _batch(self, data: bytes, tail: bytes, builder: PackBuilder) -> Batch:
        expected_lines = self.lines
        segments = list(self._segments(data, builder)) if data else []
        tail_line = bool(tail) and _complete(tail)
        if tail_line and self._fed <= self.lines:
            self._feed(self.generation, self.lines + 1, self.offset, tail)
            self._fed = self.lines + 1
        self.tail = tail
        deltas = self.ingester.flush(self._assign)
        if self.ingester.stale:
            deltas = self._restart()
        threads = self._thread_batches(deltas)
        nothing = self.source_id is None and not any(t.fresh for t in threads)
        if nothing and not self.found.subagents and not self.rewritten:
            raise Empty
        return Batch(
            path=str(self.found.path),
            stat=self.found.stat,
            cli=self.found.cli,
            conversation=self.found.conversation,
            first_hash=self.first_hash,
            generation=self.generation,
            source_id=self.source_id,
            sources=dict(self.sources),
            expected_lines=expected_lines,
            segments=segments,
            lines=self.lines,
            size=self.offset,
            tail=tail,
            tail_line=tail_line,
            damage=self._damage(),
            threads=threads,
        )

    def _segments(self, data: bytes, builder: PackBuilder) -> Iterator[Any]:
        start, first = 0, self.lines + 1
        lengths: list[int] = []
        at = 0
        offset = self.offset
        feed, generation = self._feed, self.generation
        while at < len(data):
            end = data.index(b"\n", at) + 1
            number = self.lines + 1
            if number > self._fed:
                feed(generation, number, offset + at, data[at : end - 1])
                self._fed = number
            self.lines = number
            lengths.append(end - at)
            at = end
            if at - start >= SEGMENT_SIZE or at == len(data):
                segment = make_segment(first, offset + start, data[start:at], lengths)
                segment.lifted = [(gap, builder.put(string)) for gap, string in segment.lifted]
                segment.rest = builder.put(segment.rest)
                yield segment
                start, first, lengths = at, number + 1, []
        self.offset = offset + len(data)

    def _restart(self) -> dict[str, Delta]:
        """The project directory became known too late for the first links: derive them again with it."""
        facts = self.ingester.facts
        self.ingester = agents.make_ingester(self.found.cli, self.found.conversation, facts.project, self.found.agent)
        with self.found.path.open("rb") as file:
            offset = 0
            for number in range(1, self.lines + 1):
                raw = file.readline()
                self.ingester.feed(self.generation, number, offset, raw.rstrip(b"\n"))
                offset += len(raw)
            if self._fed > self.lines:
                self.ingester.feed(self.generation, self._fed, offset, file.read(len(self.tail)))
        main = self.threads.get("main")
        if main is not None and main.run_id is not None:
            self._load_threads(main.run_id, self.first_hash)
            self._absorb(self.ingester.flush(self._assign))
            return {}
        self.threads = {}
        return self.ingester.flush(self._assign)

    def _assign(self, name: str, event: Event) -> int:
        thread = self.threads.get(name)
        if thread is None:
            agent = self.found.agent if name == "main" else name
            run = self._free_id(agent)
            thread = self.threads[name] = Thread(agent, run)
        known = thread.known.get((event.source, event.line, event.part))
        if known is not None:
            return int(known[0])
        thread.next_seq += 1
        return thread.next_seq

    def _free_id(self, agent: str) -> str:
        """An id for a new run; another one with the same key (a file that parted from it) makes it the next."""
        salt = 0
        while True:
            run = run_id_of(self.found.cli, self.found.conversation, agent, self.first_hash, salt)
            if not self.journal.con.execute("select 1 from run where run = ?", (run,)).fetchone():
                return run
            salt += 1

    def _thread_batches(self, deltas: dict[str, Delta]) -> list[ThreadBatch]:
        if "main" not in self.threads:
            self.threads["main"] = Thread(self.found.agent, self._free_id(self.found.agent))
        out = []
        for name, thread in sorted(self.threads.items(), key=lambda item: item[0] != "main"):
            delta = deltas.get(name) or Delta()
            batch = ThreadBatch(thread.agent, thread.run, thread.run_id, thread.expected)
            derived = self._derived.pop(name, {})
            for row in delta.fresh:
                if row.event is not None and (row.event.source, row.event.line, row.event.part) in thread.known:
                    derived[row.seq] = row
                else:
                    batch.fresh.append(_fresh(row))
            for row in delta.changed:
                if thread.known:
                    derived[row.seq] = row
                else:
                    batch.changed.append(_changed(row))
            self._compare(thread, derived, batch)
            batch.columns = self._columns(name, thread)
            thread.batch = batch
            out.append(batch)
        return out

    def _compare(self, thread: Thread, derived: dict[int, Row], batch: ThreadBatch) -> None:
        """Finds recorded events for which something else is derived now than what is stored."""
        for known in thread.known.values():
            row = derived.get(known[0])
            if row is None:
                continue
            error = None if row.is_error is None else int(row.is_error)
            now = (row.parent_seq, row.turn, int(row.active), row.link, row.result_seq, error)
            if now != known[1:7] or (known[7] and row.tokens is not None and row.tokens != known[8:12]):
                batch.changed.append(_changed(row))

    def _columns(self, name: str, thread: Thread) -> dict[str, Any]:
        """Columns of the run's row that are not as they were written last."""
        facts: Facts = self.ingester.facts
        if name != "main":
            wanted = {"project": facts.project, "cli_version": facts.cli_version, "first_ts": facts.first_ts}
        else:
            if self.found.title:
                facts.entitle(self.found.title, 3)
            wanted = {
                "project": facts.project,
                "cli_version": facts.cli_version,
                "git_branch": facts.git_branch,
                "title": printable(facts.title) if facts.title else None,
                "title_rank": facts.title_rank,
                "model": facts.model,
                "started_at": facts.started_at,
                "ended_at": facts.ended_at,
                "first_ts": facts.first_ts if facts.first_ts is not None else facts.started_at,
            }
            if self.label is not None:
                wanted["label"] = self.label
        return {key: value for key, value in wanted.items() if value is not None and thread.columns.get(key) != value}

    def _damage(self) -> list[dict[str, Any]]:
        found = list(self.ingester.damage)
        tail = self.tail
        if tail and not tail.strip(b"\0"):
            found.append(Damage(self.lines + 1, max(self.offset, 0), len(tail), "NUL bytes only"))
        out = damage_json(found)
        for tree in self.ingester.threads.values():
            out += [{"line": n, "what": "its parent is missing", "note": True} for n in tree.lines_waiting()]
            out += [{"line": n, "what": "its parents form a circle", "note": True} for n in tree.lines_in_cycles()]
        return out

    def damage_so_far(self) -> list[dict[str, Any]]:
        """What could not be read, also of a file that makes no run."""
        return self._damage() if hasattr(self, "ingester") else []

    def report(self) -> Report:
        """What is known so far."""
        facts = self.ingester.facts
        return Report(
            run=self.threads["main"].run,
            title=printable(facts.title) if facts.title else None,
            created=self.created,
            rewritten=self.rewritten,
            new_lines=self.new_lines,
            new_events=self.new_events,
            tool_id=self.found.tool_id,
            subagents=dict(facts.subagents),
            summaries=dict(facts.summaries),
            warnings=list(facts.warnings),
        )

    def done(self, batch: Batch) -> None:
        """Called when a batch is in the journal."""
        self.source_id = batch.source_id
        if batch.source_id is not None:  # None in a process that only prepares
            self.sources[self.generation] = batch.source_id
        self._stored_tail = (batch.tail, batch.tail_line)
        for thread in self.threads.values():
            wrote = thread.batch
            if wrote is not None:
                thread.run_id = wrote.run_id
                thread.expected += len(wrote.fresh)
                thread.columns.update(wrote.columns)
                self.new_events += len(wrote.fresh)
                thread.batch = None
            thread.known = {}
        self.new_lines += sum(segment.lines for segment in batch.segments)


def _complete(raw: bytes) -> bool:
    """Whether bytes without a newline already are a whole record (a last line that was written without one)."""
    if not raw.rstrip(b"\0 \t\r\n").endswith(b"}"):
        return False
    try:
        parse(raw)
    except NotARecord:
        return False
    return True


def _read_lines(file: BinaryIO) -> bytes:
    """About a chunk, ending in a newline unless the file ends first; one longer line whole."""
    data = file.read(CHUNK)
    if len(data) < CHUNK:
        return data
    cut = data.rfind(b"\n") + 1
    if cut:
        return data[:cut]
    pieces = [data]
    while True:
        more = file.read(CHUNK)
        at = more.find(b"\n") + 1
        pieces.append(more[:at] if at else more)
        if at or not more:
            return b"".join(pieces)


def _fresh(row: Row) -> tuple[Any, ...]:
    event = row.event
    assert event is not None
    content = event.content
    preview = size = None
    if content is not None:
        size = len(content)
        preview = printable(content[:PREVIEW])
    tokens = row.tokens if event.kind == "usage" and row.tokens is not None else (None, None, None, None)
    return (
        row.seq, event.source, event.line, event.part, event.kind, event.ts, _plain(event.tool), _plain(event.tool_id),
        _plain(event.model), preview, size, _plain(event.path), event.mark,
        None if row.is_error is None else int(row.is_error), row.turn, int(row.active), row.parent_seq, row.result_seq,
        row.link, event.usage_key, None, *tokens,
    )  # fmt: skip


def _plain(text: str | None) -> str | None:
    return text if text is None or text.isascii() else printable(text)


def _changed(row: Row) -> tuple[Any, ...]:
    return (
        row.parent_seq, row.turn, int(row.active), row.link, row.result_seq,
        None if row.is_error is None else int(row.is_error), *(row.tokens or (None,) * 4), row.seq,
    )  # fmt: skip
