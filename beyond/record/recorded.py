"""What is recorded of a transcript file already, and the ingester brought up to there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from beyond import agents
from beyond.blob import tagged_hash
from beyond.errors import SourceError
from beyond.event import printable
from beyond.ingest.base import Event, Facts, Ingester, NotARecord, parse, wrong_encoding
from beyond.ingest.tree import Delta, Row
from beyond.journal.append import ReadSide, ThreadBatch
from beyond.record.rows import CHUNK, FORK_MARK, Empty, Thread, changed_row, complete, fresh_row, line_ends, run_id_of
from beyond.store import Found, describe

_KNOWN = """select source, line, part, seq, parent_seq, turn, active, link, result_seq, is_error, counted,
    input_tokens, output_tokens, cache_read_tokens, cache_write_tokens from event where run = ?"""


class Recorded:
    """One source file and its runs, as far as they are recorded."""

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
        self._rejected: set[str] = set()
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
        #: True while all of the file has been compared with what is recorded; a follower compares only the seam.
        self.compared = True
        self.ingester: Ingester

    # -- what is recorded already ------------------------------------------------------------------

    def open(self) -> None:
        """Finds the run that the file belongs to and reads what is recorded of it."""
        describe(self.found)
        self.found.agent = printable(self.found.agent)
        with self.found.path.open("rb") as file:
            head = file.read(4096)
            encoding = wrong_encoding(head)
            if encoding:
                raise SourceError(f"{self.found.path} is {encoding}: transcripts are UTF-8; convert a copy and record that")
            file.seek(0)
            first = file.readline()
            if not first.endswith(b"\n") and not complete(first):
                raise Empty
            self.first_hash = tagged_hash(first.rstrip(b"\r\n"))
            if self.found.conversation is None:
                self.found.conversation = self._conversation_inside(file)
            if self.found.conversation is not None:
                self.found.conversation = printable(self.found.conversation)
            run_id = self._known_path() or self._matching_run(file)
            self.created = run_id is None
            if run_id is None:
                self._adopt(file)
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
            (printable(str(self.found.path)), self.found.cli, self.found.conversation),
        ).fetchone()
        return row[0] if row else None

    def _matching_run(self, file: BinaryIO) -> int | None:
        """A recorded run of the same conversation of which this file is a prefix or an extension."""
        rows = self.journal.con.execute(
            "select id from run where cli = ? and conversation is ? and agent = ? and first_hash = ? order by id",
            (self.found.cli, self.found.conversation, self.found.agent, self.first_hash),
        ).fetchall()
        for (run_id,) in rows:
            sources = self._sources_of(run_id)
            if not sources:  # a fork that was made beforehand: see `_adopt`
                continue
            if self._verify(sources[-1][1], file)[0]:
                return int(run_id)
            self._rejected.add(self.journal.con.execute("select run from run where id = ?", (run_id,)).fetchone()[0])
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

    def _adopt(self, file: BinaryIO) -> None:
        """Takes the run that a fork made beforehand, where this is the fork's conversation: by its id, or by the mark
        that the first prompt of a composed one carries."""
        if self.found.agent != "main":
            return
        waiting = self.journal.con.execute(
            "select r.id, r.run, r.conversation, r.first_hash from fork f join run r on r.id = f.run where r.cli = ? "
            "and r.agent = 'main' and not exists (select 1 from source s where s.run = r.id)",
            (self.found.cli,),
        ).fetchall()
        if not waiting:
            return
        file.seek(0)
        marks = {mark.decode() for mark in FORK_MARK.findall(file.read(1 << 20))}
        for number, run, conversation, first_hash in waiting:
            named = conversation is not None and conversation == self.found.conversation
            if run in marks or (named and first_hash in (None, self.first_hash)):
                thread = Thread(self.found.agent, run, number)
                thread.adopted = {"conversation": self.found.conversation}
                if first_hash is None:
                    thread.adopted["first_hash"] = self.first_hash
                self.threads["main"] = thread
                return

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
        # Where something was glued to the record since, the line is read anew, as a whole reading would.
        if tail_line and (self.shrunk or line_ends(file, offset + len(tail))):
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

    def usage(self, run_id: int) -> dict[int, tuple[int, int, int, int]]:
        """The tokens of a recorded run's usage events by seq, from all the lines that each message stands on."""
        row = self.journal.con.execute("select project, first_hash from run where id = ?", (run_id,)).fetchone()
        gens = self._sources_of(run_id)
        self.sources = dict(gens)
        self._replay(run_id, row[1], row[0], gens, gens[-1][0])
        self._absorb(self.ingester.flush(self._assign))
        derived = self._derived.get("main", {})
        return {seq: row.tokens for seq, row in derived.items() if row.tokens is not None}

    def rederive(self, run_id: int) -> list[tuple[str, int]]:
        """Derives a recorded run again, from the journal alone. Returns (run, number of events that come out
        otherwise than they are stored)."""
        row = self.journal.con.execute("select project, first_hash from run where id = ?", (run_id,)).fetchone()
        gens = self._sources_of(run_id)
        self.sources = dict(gens)
        self._replay(run_id, row[1], row[0], gens, gens[-1][0])
        self._absorb(self.ingester.flush(self._assign))
        differing = []
        missing = {
            thread.run: sum(known[0] not in self._derived.get(name, {}) for known in thread.known.values())
            for name, thread in self.threads.items()
        }
        for batch in self._thread_batches({}):
            thread = next(t for t in self.threads.values() if t.run == batch.run)
            wrong = len(batch.changed) + max(thread.next_seq - thread.expected, 0) + missing.get(batch.run, 0)
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
            self._feed(generation, number, offset, raw)
            if generation < latest:  # afterwards: a line must not be taken for its own repetition
                self._older.add(hashlib.sha256(raw).digest()[:12])
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

    # -- deriving ----------------------------------------------------------------------------------

    def _feed(self, generation: int, number: int, offset: int, raw: bytes) -> None:
        if generation and self._older and hashlib.sha256(raw).digest()[:12] in self._older:
            return
        self.ingester.feed(generation, number, offset, raw)

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
            if agent == self.found.agent:
                # Only runs that were compared are other ones. One that appeared since is this file's, recorded by another
                # process: the id then conflicts when it is appended, and the file is compared again.
                taken = run in self._rejected
            else:
                taken = self.journal.con.execute("select 1 from run where run = ?", (run,)).fetchone() is not None
            if not taken:
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
                    batch.fresh.append(fresh_row(row))
            for row in delta.changed:
                if thread.known:
                    derived[row.seq] = row
                else:
                    batch.changed.append(changed_row(row))
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
                batch.changed.append(changed_row(row))

    def _columns(self, name: str, thread: Thread) -> dict[str, Any]:
        """Columns of the run's row that are not as they were written last."""
        facts: Facts = self.ingester.facts
        wanted: dict[str, Any]
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
            if self.label is not None and self.found.agent == "main":
                wanted["label"] = self.label
            extra = {
                "directories": [printable(d) for d in facts.directories],
                "subagents": {printable(a): printable(t) for a, t in facts.subagents.items()},
                "summaries": {printable(leaf): printable(title) for leaf, title in facts.summaries.items()},
            }
            if any(extra.values()):
                wanted["extra"] = json.dumps({key: value for key, value in extra.items() if value})
        wanted.update(thread.adopted)
        return {key: value for key, value in wanted.items() if value is not None and thread.columns.get(key) != value}
