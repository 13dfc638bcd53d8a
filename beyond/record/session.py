"""Reading one transcript file from where the journal left off.

A session compares the file with what is recorded, feeds the ingester, and hands out batches for the journal. It keeps
the ingester, so that a follower pays for new lines only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from beyond import agents
from beyond.blob import SEGMENT_SIZE, Segment, make_segment
from beyond.event import printable
from beyond.ingest.base import Damage
from beyond.ingest.tree import Delta
from beyond.journal.append import Batch, PackBuilder, damage_json
from beyond.record.recorded import Recorded
from beyond.record.rows import CHUNK, Empty, Report, complete, line_ends, read_lines

__all__ = ["CHUNK", "Empty", "Report", "Session"]


class Session(Recorded):
    """One source file and its runs. `open` once, then `batches` whenever the file may have grown."""

    def batches(self, builder: PackBuilder, *, always: bool = True) -> Iterator[Batch]:
        """What the file holds beyond the recorded lines, in pieces of bounded size. Each must be appended before the
        next is asked for. Without `always` nothing is yielded where nothing is new. Raises `Empty` where there is
        nothing that is worth a run."""
        if self._unflushed or self._fed:
            self._absorb(self.ingester.flush(self._assign))
        # A file that takes several pieces is read in smaller ones: the piece, what is parsed of it and what is packed
        # stand in memory together.
        chunk = CHUNK if self.found.stat[0] <= CHUNK else CHUNK // 2
        with self.found.path.open("rb") as file:
            file.seek(self.offset)
            while True:
                data = b"" if self.shrunk else read_lines(file, chunk)
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
            if file.read(len(self._check)) != self._check or not file.read(len(self.tail)).startswith(self.tail):
                return True
            return self._fed > self.lines and not line_ends(file, self.offset + len(self.tail))

    def differs(self) -> bool:
        """Whether the file is no longer an extension of what was read from it (all of it compared)."""
        if self.source_id is None or self.shrunk:
            return self.shrunk
        with self.found.path.open("rb") as file:
            return not self._verify(self.source_id, file)[0]

    def _batch(self, data: bytes, tail: bytes, builder: PackBuilder) -> Batch:
        expected_lines = self.lines
        segments = list(self._segments(data, builder)) if data else []
        tail_line = bool(tail) and complete(tail)
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
            path=printable(str(self.found.path)),
            # A time that no file has: whoever records next compares the whole file.
            stat=self.found.stat if self.compared else (self.found.stat[0], -1, self.found.stat[2]),
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

    def _segments(self, data: bytes, builder: PackBuilder) -> Iterator[Segment]:
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
        if main is not None and main.run_id is not None and not main.adopted:
            self._load_threads(main.run_id, self.first_hash)
            self._absorb(self.ingester.flush(self._assign))
            return {}
        self.threads = {"main": main} if main is not None and main.adopted else {}
        return self.ingester.flush(self._assign)

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
