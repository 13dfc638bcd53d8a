"""Rows for the journal from what an ingester derived, and what a session tells about itself."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from beyond.event import PREVIEW, printable
from beyond.ingest.base import NotARecord, parse
from beyond.ingest.tree import Row
from beyond.journal.append import ThreadBatch

#: Bytes of a file that are read, parsed and handed to the journal at a time.
CHUNK = 8 * 1024 * 1024


#: How the first prompt of a composed fork names the fork's run, as bytes of a JSON string.
FORK_MARK = re.compile(rb"\[bnd fork ([0-9a-f]{12})\]")
#: What a file can raise that nobody thought of. It ends that file's recording, not the others'.
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, AssertionError)


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
    #: Columns that a run which was made before its file gets with the file's first batch.
    adopted: dict[str, Any] = field(default_factory=dict)


def complete(raw: bytes) -> bool:
    """Whether bytes without a newline already are a whole record (a last line that was written without one)."""
    if not raw.rstrip(b"\0 \t\r\n").endswith(b"}"):
        return False
    try:
        parse(raw)
    except NotARecord:
        return False
    return True


def line_ends(file: BinaryIO, at: int) -> bool:
    """Whether a line ends at byte `at` of a file: there is a newline, or nothing (yet)."""
    file.seek(at)
    after = file.read(2)
    return after[:1] in (b"", b"\n") or after in (b"\r", b"\r\n")


def read_lines(file: BinaryIO, chunk: int = CHUNK) -> bytes:
    """About a chunk, ending in a newline unless the file ends first; one longer line whole."""
    data = file.read(chunk)
    if len(data) < chunk:
        return data
    cut = data.rfind(b"\n") + 1
    if cut:
        return data[:cut]
    pieces = [data]
    while True:
        more = file.read(chunk)
        at = more.find(b"\n") + 1
        pieces.append(more[:at] if at else more)
        if at or not more:
            return b"".join(pieces)


def fresh_row(row: Row) -> tuple[Any, ...]:
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


def changed_row(row: Row) -> tuple[Any, ...]:
    return (
        row.parent_seq, row.turn, int(row.active), row.link, row.result_seq,
        None if row.is_error is None else int(row.is_error), *(row.tokens or (None,) * 4), row.seq,
    )  # fmt: skip
