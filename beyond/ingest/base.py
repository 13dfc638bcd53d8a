"""What every ingester shares: parsing a line, the emitted event, damage, facts about a run.

An ingester is fed complete lines (`feed`) and asked for what became of them (`flush`). It may be fed a file
whole, line by line or in any pieces: identities ``(source, line, part)``, causal links and kinds come out the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import orjson

if TYPE_CHECKING:
    from beyond.event import Places
    from beyond.ingest.tree import Delta, Tree

#: One token count above this is not believed (a context of 10**12 tokens doesn't exist) and not summed.
MAX_TOKENS = 10**12
#: Lines with deeper nesting than this are kept as bytes and counted as bad.
MAX_DEPTH = 1000


class Event:
    """One canonical event as an ingester emits it. `ts` is Unix milliseconds, or None where the source has none.

    `value` is the parsed input of a tool call; `usage` the API's own usage object; `tokens` the four counts
    (input, output, cache read, cache write), input without what came from or went to the cache.
    """

    __slots__ = (
        "canonical",
        "content",
        "group",
        "is_error",
        "kind",
        "line",
        "mark",
        "model",
        "part",
        "path",
        "source",
        "tokens",
        "tool",
        "tool_id",
        "ts",
        "usage",
        "usage_key",
        "value",
    )

    def __init__(
        self,
        kind: str,
        part: int,
        content: str | None = None,
        *,
        tool: str | None = None,
        tool_id: str | None = None,
        model: str | None = None,
        is_error: bool | None = None,
        value: Any = None,
        usage: Any = None,
        path: str | None = None,
        group: str | None = None,
        ts: int | None = None,
    ) -> None:
        self.kind = kind
        self.part = part
        self.content = content
        self.tool = tool
        self.tool_id = tool_id
        self.model = model
        self.is_error = is_error
        self.value = value
        self.usage = usage
        self.path = path
        self.group = group
        self.ts = ts
        self.source = 0
        self.line = 0
        #: The canonical input of a tool call, where it is known already.
        self.canonical: str | None = None
        self.tokens: tuple[int, int, int, int] | None = None
        self.usage_key: str | None = None
        #: What is special about the step: `steering` (a prompt taken from the queue while the model worked),
        #: `compaction` (the summary that took the place of what came before).
        self.mark: str | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.source}:{self.line}.{self.part} {self.content!r:.40}>"


@dataclass(slots=True, frozen=True)
class Damage:
    """A stretch of a source that could not be read as records. `offset` and `length` are bytes of the file."""

    line: int
    offset: int
    length: int
    what: str


@dataclass(slots=True)
class Facts:
    """What a transcript says about its run. First one counts for the place, last one for the title."""

    conversation: str | None = None
    project: str | None = None
    cli_version: str | None = None
    git_branch: str | None = None
    title: str | None = None
    #: How good the title is: 0 the first prompt, 1 a summary, 2 one that the CLI made, 3 the user's own.
    title_rank: int = -1
    model: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    #: Time of the first line that has one, in file order: a copy of a conversation begins later than the original.
    first_ts: int | None = None
    #: Directories that the conversation moved to later, in order.
    directories: list[str] = field(default_factory=list)
    #: subagent id → id of the tool call that started it.
    subagents: dict[str, str] = field(default_factory=dict)
    #: Titles by the message that they end with; it may be in another conversation.
    summaries: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def seen(self, ts: int | None) -> None:
        """Notes the time of a record."""
        if ts is not None:
            if self.started_at is None or ts < self.started_at:
                self.started_at = ts
            if self.ended_at is None or ts > self.ended_at:
                self.ended_at = ts

    def entitle(self, title: Any, rank: int) -> None:
        """Takes `title` (first line, at most 200 characters) unless a better one is known."""
        if not isinstance(title, str) or rank < self.title_rank or (rank == self.title_rank == 0):
            return
        line = " ".join(title.split())[:200]
        if line:
            self.title, self.title_rank = line, rank


class Ingester(Protocol):
    """Reads one source file. `threads` holds the main conversation and subagents written into the same file."""

    cli: ClassVar[str]
    facts: Facts
    threads: dict[str, Tree]
    damage: list[Damage]
    places: Places
    #: True when the project directory became known only after events were linked without it:
    #: the caller starts again with ``root=`` given.
    stale: bool

    def __init__(self, conversation: str | None = None, root: str | None = None, agent: str = "main") -> None: ...

    def feed(self, source: int, number: int, offset: int, raw: bytes) -> None:
        """Takes line `number` (1 …), which starts at byte `offset` and is given without its newline."""

    def flush(self, assign: Callable[[str, Event], int]) -> dict[str, Delta]:
        """What the lines since the last flush brought, by thread. `assign(thread, event)` gives an event's seq."""


class NotARecord(ValueError):
    """A line that is no record: the message says why, without the line's own text."""


class Glued(dict[str, Any]):
    """A record with more bytes behind it on its line: the next one was written before this one's newline.

    It is the same step that it was while it stood there alone, so that reading in pieces and reading whole agree.
    """

    #: Bytes of the line that are not the record's.
    rest: int


_NON_JSON = {"NaN": None, "Infinity": None, "-Infinity": None}


def _refuse_constant(name: str) -> Any:
    raise NotARecord(f"not strict JSON ({name})")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def parse(raw: bytes) -> dict[str, Any]:
    """The record on a line.

    Tolerates NUL bytes at both ends, a UTF-8 byte-order mark, a carriage return, lone surrogates and bytes that
    are no UTF-8 (these become U+FFFD in the parsed form only). Raises `NotARecord` for all else.
    """
    try:
        record = orjson.loads(raw)
    except orjson.JSONDecodeError:
        record = _parse_hard(raw)
    if not isinstance(record, dict):
        raise NotARecord(f"a {type(record).__name__}, not an object" if record is not None else "null, not an object")
    return record


def _parse_hard(raw: bytes) -> Any:
    body = raw.strip(b"\0 \t\r\n")
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    if not body:
        raise NotARecord("NUL bytes only" if b"\0" in raw else "blank")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    if body[:1] != b"{":
        raise NotARecord("not JSON")
    text = body.decode("utf-8", "replace")
    try:
        record, end = _DECODER.raw_decode(text)
    except NotARecord:
        raise
    except RecursionError:
        raise NotARecord("nested too deep") from None
    except ValueError as error:
        reason = str(error)
        raise NotARecord("a number of too many digits" if "digit" in reason else "not JSON, or cut off") from None
    rest = text[end:].strip(" \t\r\n\0")
    if not rest:
        return record
    glued = Glued(record)
    glued.rest = min(len(rest.encode("utf-8", "replace")), len(raw) - 2)
    return glued


def parse_exactly(raw: bytes) -> dict[str, Any]:
    """Like `parse` for a line that it could read, with whole numbers of any size."""
    text = raw.strip(b"\0 \t\r\n").removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    record, _ = json.JSONDecoder().raw_decode(text)
    assert isinstance(record, dict)
    return record


def glue_damage(number: int, offset: int, raw: bytes, record: dict[str, Any]) -> list[Damage]:
    """What stands behind a record on its line, as damage."""
    if type(record) is not Glued:
        return []
    return [Damage(number, offset + len(raw) - record.rest, record.rest, "bytes behind a record, without a newline between")]


def nul_damage(number: int, offset: int, raw: bytes) -> list[Damage]:
    """The NUL bytes around a record (left by a crash or a full disk), as damage."""
    left = len(raw) - len(raw.lstrip(b"\0"))
    right = len(raw) - len(raw.rstrip(b"\0"))
    out = []
    if left:
        out.append(Damage(number, offset, left, "NUL bytes before a record"))
    if right:
        out.append(Damage(number, offset + len(raw) - right, right, "NUL bytes after a record"))
    return out


def wrong_encoding(head: bytes) -> str | None:
    """The name of the encoding of a file that starts with `head`, if it is one that can't be read as UTF-8."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if len(head) >= 4 and (head[:4] == b'{\0"\0' or head[:4] == b'\0{\0"'):
        return "UTF-16"
    return None


def text_of(value: Any) -> str:
    """JSON of a value for reading: strict, compact, in the source's own key order."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_minutes: dict[str, int] = {}
_ZERO = timedelta(0)


def has_odd_number(value: Any) -> bool:
    """Whether a parsed value holds a float: it may stand for a whole number beyond 64 bits, and its text isn't canonical."""
    if isinstance(value, float):
        return True
    if isinstance(value, dict):
        return any(has_odd_number(v) for v in value.values())
    if isinstance(value, list):
        return any(has_odd_number(v) for v in value)
    return False


def canonical_input(value: Any) -> str | None:
    """`event.canonical_json` by the fast serializer, where it gives the same; None where it may not."""
    try:
        return None if has_odd_number(value) else orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (TypeError, orjson.JSONEncodeError, RecursionError):
        return None


def milliseconds(value: Any) -> int | None:
    """Unix milliseconds of a time as the CLIs write it: ISO 8601 with or without zone (then UTC), or a
    number of seconds or milliseconds, told apart by size. None for anything else."""
    if isinstance(value, str):
        if len(value) == 24 and value[23] == "Z":  # the usual form, JavaScript's: one look-up a minute
            base = _minutes.get(value[:17])
            rest = value[17:19] + value[20:23]
            if base is not None and value[19] == "." and rest.isascii() and rest.isdigit() and rest < "60":
                return base + int(rest)
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        try:
            ms = round(when.timestamp() * 1000)
        except (OverflowError, ValueError):
            return None
        if len(value) == 24 and value[23] == "Z" and value[10] == "T" and when.utcoffset() == _ZERO:
            if len(_minutes) > 10_000:
                _minutes.clear()
            _minutes[value[:17]] = ms - when.second * 1000 - when.microsecond // 1000
        return ms
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 < value < 10**15:
            return None
        unix = value * 1000 if value < 10**11 else value
        return round(unix) if unix < 253402300800000 else None  # up to the year 9999
    return None


def count(value: Any) -> int:
    """A token count: whole, never negative, believable; numeric strings are not accepted."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TOKENS:
        return 0
    return int(value)
