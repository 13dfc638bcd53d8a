"""Reading a transcript through an ingester, whole or in pieces, as the recorder does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.ingest.tree import Row
from beyond.store import Found, describe, identify

FIXTURES = Path(__file__).parent / "fixtures"
CASES = FIXTURES / "cases"


def transcripts() -> list[Path]:
    """Every transcript of the fixtures of every agent CLI that has a row."""
    found = [
        *FIXTURES.glob("claude/*/*/projects/**/*.jsonl"),
        *FIXTURES.glob("kimi/*/*/kimi-code/sessions/*/*/agents/*/wire.jsonl"),
    ]
    return sorted(found)


def name_of(path: Path) -> str:
    """A short name for a fixture's transcript."""
    parts = path.relative_to(FIXTURES).parts
    stem = path.parent.name if path.name == "wire.jsonl" else path.stem[-12:]
    return "-".join((*parts[:3], stem))


class Reading:
    """What came of feeding bytes to an ingester in pieces."""

    def __init__(self, found: Found, root: str | None = None) -> None:
        self.found = found
        self.root = root if root is not None else found.project
        self.ingester = agents.make_ingester(found.cli, found.conversation, self.root, found.agent)
        self.rows: dict[tuple[str, int], Row] = {}
        self.events: dict[tuple[str, int], tuple[Any, ...]] = {}
        self._next: dict[str, int] = {}
        self._number = 0
        self._offset = 0

    def _assign(self, thread: str, _event: Any) -> int:
        self._next[thread] = self._next.get(thread, 0) + 1
        return self._next[thread]

    def feed(self, lines: Iterable[bytes]) -> None:
        for raw in lines:
            self._number += 1
            self.ingester.feed(0, self._number, self._offset, raw)
            self._offset += len(raw) + 1

    def flush(self) -> None:
        for thread, delta in self.ingester.flush(self._assign).items():
            for row in delta.fresh:
                e = row.event
                assert e is not None
                self.events[thread, row.seq] = (e.line, e.part, e.kind, e.tool, e.content, e.mark)
                self.rows[thread, row.seq] = row
            for row in delta.changed:
                self.rows[thread, row.seq] = row

    def outcome(self) -> dict[tuple[str, int, int], tuple[Any, ...]]:
        """By identity: everything that must not depend on the pieces."""
        out = {}
        seqs = {key: self.events[key][:2] for key in self.events}
        for key, row in self.rows.items():
            line, part, kind, tool, content, mark = self.events[key]
            thread = key[0]
            out[thread, line, part] = (
                kind, tool if kind == "tool_call" else None, content, mark, row.link, row.turn, row.active, row.is_error,
                row.tokens, seqs.get((thread, row.parent_seq or 0)), seqs.get((thread, row.result_seq or 0)),
            )  # fmt: skip
        return out


def read(path: Path, data: bytes | None = None, cuts: Iterable[int] = (), *, found: Found | None = None) -> Reading:
    """Reads a file (or `data` in its place), flushing after the lines whose numbers are in `cuts`."""
    found = found or describe(identify(path))
    reading = Reading(found)
    lines = (path.read_bytes() if data is None else data).split(b"\n")
    if lines and lines[-1] == b"":
        lines.pop()
    stops = set(cuts)
    for number, raw in enumerate(lines, 1):
        reading.feed([raw])
        if number in stops:
            reading.flush()
    reading.flush()
    if reading.ingester.stale and reading.root is None:
        again = Reading(found, reading.ingester.facts.project)
        again.feed(lines)
        again.flush()
        return again
    return reading
