"""One look at the lines of a wire: where the kept prefix ends, and what in it is not of the causal past."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import orjson

from beyond.surgery.base import Line
from beyond.surgery.raw import whole

#: The start of a record as the CLI writes it; anything else is parsed.
_HEAD = re.compile(
    rb'\{"type":"(?:context\.append_loop_event",(?:"agentId":"[^"\\]*",)?"event":\{"type":"([a-z_.]+)"|([A-Za-z_.]+)")'
)
#: Files beside the wire that a line can name; for the agent's own folder where only a name of it stands.
_MENTION = re.compile(
    rb"(?:agents/([A-Za-z0-9_-]+)/)?"
    rb"(?:(file-history/[A-Za-z0-9_-]+@v[0-9]+)|tasks/([A-Za-z0-9_-]+)/output\.log|(tool-results/[A-Za-z0-9_-][A-Za-z0-9._-]*)"
    rb"|blobref:[^;\"\\]*;([A-Za-z0-9_-]+))"
)
_UNDO = frozenset(("context.undo", "agent.switched"))
_STEP = frozenset(("content.part", "tool.call", "tool.result", "step.end", "turn.prompt", "context.append_message"))
#: Records that can be the first to name a file beside the wire: large outputs, images, versions of edited files.
_NAMING = frozenset(("tool.result", "turn.prompt", "context.append_message", "file_history.checkpoint", "file_history.tracked"))
#: What a step that came to its end leaves behind, without a word of the conversation.
MEASURES = frozenset(
    "config.update context.update_token_count file_history.checkpoint file_history.tracked full_compaction.complete llm.request "
    "llm.tools_snapshot mcp.tools_discovered metadata permission.set_mode profile.bind runtime.set_binding step.begin step.end "
    "token_counting.measured token_counting.rebased token_counting.turn_recorded tools.set_active_tools usage.record".split()
)
#: How many lines behind a prompt its delivery is looked for.
_REACH = 40


def dict_of(value: Any) -> dict[str, Any]:
    """`value` where it is an object."""
    return value if isinstance(value, dict) else {}


def kind_of(raw: bytes) -> str:
    """A record's type, of a loop event its inner one; empty where the line is none."""
    match = _HEAD.match(raw)
    if match:
        return (match[1] or match[2]).decode()
    try:
        return kind_in(whole(raw)[1])
    except ValueError:
        return ""


def kind_in(record: Any) -> str:
    """The same of a parsed record."""
    kind = dict_of(record).get("type")
    if kind == "context.append_loop_event":
        kind = dict_of(record.get("event")).get("type")
    return kind if isinstance(kind, str) else ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the last step that has no kept result. `loop`: written as a loop event, not inside a message."""

    id: str
    uuid: str
    line: int
    loop: bool


@dataclass(slots=True)
class Prompt:
    """The prompt that the prefix ends with: its line, and that on which it came into the context, if it did."""

    line: int
    raw: bytes
    kept: frozenset[int]
    whole: bool
    delivered: int | None = None


@dataclass(slots=True)
class Survey:
    """What was found. Lines are those of `generation`; the prefix is 1 … `end`."""

    generation: int
    first: bytes
    end: int
    #: Lines of the prefix that hold only what is outside of the past and that no record of the CLI takes back.
    concurrent: set[int] = field(default_factory=set)
    #: A compaction that was begun and had not come to its summary; one whose summary is the last that is kept.
    begun: int | None = None
    compacted: bool = False
    #: The record that began the last step, while nothing ended it.
    step: dict[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)
    #: Whether the last step made any call; whether it only thought.
    called: bool = False
    silent: bool = False
    prompt: Prompt | None = None
    #: Files that lines name, by line.
    mentions: dict[int, set[tuple[str | None, str]]] = field(default_factory=dict)
    #: The newest kept prompt.
    asked: str | None = None
    #: Lines with kept parts in the prefix.
    kept: int = 0
    #: Whether the file had been written again.
    rewritten: bool = False
    #: Steps of earlier generations that this one no longer holds.
    lost: int = 0


@dataclass(slots=True)
class _Generation:
    """What one pass over the lines of a generation remembers; only what comes up to the last kept line counts."""

    number: int
    first: bytes = b""
    end: int = 0
    kept: int = 0
    last: Line | None = None
    prompt: Line | None = None
    undone: int = 0
    begun: int | None = None
    begin: tuple[int, bytes] | None = None
    items: list[tuple[int, str, Line]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    mentions: dict[int, set[tuple[str | None, str]]] = field(default_factory=dict)
    behind: list[tuple[str, Line]] = field(default_factory=list)
    snapshot: tuple[int, int | None, tuple[int, bytes] | None, list[tuple[int, str, Line]]] = (0, None, None, [])

    def see(self, line: Line) -> None:
        raw = line.raw
        if not self.first:
            self.first = raw
        kind = kind_of(raw)
        if kind in _UNDO:
            self.undone = line.number
        elif kind == "step.begin":
            self.begin, self.items = (line.number, raw), []
        elif kind in _STEP:
            self.items.append((line.number, kind, line))
        elif kind == "full_compaction.begin":
            self.begun = line.number
        elif kind in ("full_compaction.complete", "full_compaction.cancel", "context.apply_compaction"):
            self.begun = None
        if line.dropped and not line.kept:
            self.dropped.append(line.number)
        if kind in _NAMING and (b"blobref:" in raw or b"output_path" in raw or b'"file-history/' in raw):
            self.mentions[line.number] = _mentions(raw)
        if line.kept and kind == "turn.prompt":
            self.prompt = line
        if line.kept:
            self.end, self.last, self.kept, self.behind = line.number, line, self.kept + 1, []
            self.snapshot = self.undone, self.begun, self.begin, self.items
        elif len(self.behind) < _REACH:
            self.behind.append((kind, line))


def _mentions(raw: bytes) -> set[tuple[str | None, str]]:
    """The files that a line names: the agent (None: the wire's own) and the path in its folder."""
    out = set()
    for agent, history, task, result, blob in _MENTION.findall(raw):
        name = history or result or (b"blobs/" + blob if blob else b"tasks/" + task + b"/output.log")
        out.add((agent.decode() or None, name.decode()))
    return out


def survey(lines: Iterable[Line]) -> Survey | None:
    """Looks at every line once. None where nothing is kept."""
    generations: list[_Generation] = []
    for line in lines:
        if not generations or generations[-1].number != line.generation:
            generations.append(_Generation(line.generation))
        generations[-1].see(line)
    last = max((g for g in generations if g.kept), key=lambda g: g.number, default=None)
    if last is None:
        return None
    found = _found(last)
    found.rewritten = last is not generations[0]
    return found


def _found(seen: _Generation) -> Survey:
    undone, begun, begin, items = seen.snapshot
    found = Survey(seen.number, seen.first, seen.end, begun=begun, kept=seen.kept, mentions=seen.mentions)
    assert seen.last is not None
    found.concurrent = {number for number in seen.dropped if undone < number < seen.end}
    kind = kind_of(seen.last.raw)
    if kind == "turn.prompt":
        found.prompt = _prompt(seen.last, seen.behind)
        if found.prompt.delivered is not None:
            found.concurrent |= {line.number for _, line in seen.behind if line.dropped and line.number < found.prompt.delivered}
            found.end = found.prompt.delivered
    if kind == "context.apply_compaction":
        found.compacted = True
        for after, line in seen.behind:
            if after.startswith("token_counting."):
                found.end = line.number
            elif after == "full_compaction.complete":
                found.end, found.compacted = line.number, False
                break
            else:
                break
    if seen.prompt is not None:
        found.asked = "\n".join(texts(whole(seen.prompt.raw)[1].get("input"))) or None
    _last_step(found, begin, [item for item in items if item[0] <= seen.end])
    return found


def _prompt(line: Line, behind: list[tuple[str, Line]]) -> Prompt:
    """A prompt at the end: the record that brought it into the context is a line further on, without an event."""
    record = whole(line.raw)[1]
    prompt = Prompt(line.number, line.raw, line.kept, not line.dropped)
    for kind, after in behind:
        if kind in ("turn.prompt", "step.begin"):
            break
        if kind != "context.append_message" or after.kept or after.dropped:
            continue
        message = dict_of(whole(after.raw)[1].get("message"))
        own, given = message.get("id"), record.get("promptId")
        same = own == given if own and given else texts(message.get("content")) == texts(record.get("input"))
        if message.get("role") == "user" and same:
            prompt.delivered = after.number
            break
    return prompt


def texts(content: Any) -> list[str]:
    """The texts of a message's blocks."""
    blocks = content if isinstance(content, list) else [content]
    found = [block if isinstance(block, str) else dict_of(block).get("text") for block in blocks]
    return [text for text in found if isinstance(text, str)]


def _last_step(found: Survey, begin: tuple[int, bytes] | None, items: list[tuple[int, str, Line]]) -> None:
    """The open calls of the last step, and whether it is still open."""
    calls: list[Call] = []
    results: set[str] = set()
    ended = prompted = said = thought = False
    for number, kind, line in items:
        if kind in ("step.end", "turn.prompt"):
            ended, prompted = ended or kind == "step.end", prompted or kind == "turn.prompt"
            continue
        if kind == "context.append_message" and b'"toolCalls":[]' in line.raw:
            continue
        if not line.kept:  # a result outside of the past leaves its call open
            continue
        try:
            record = whole(line.raw)[1]
        except ValueError:
            continue
        event, message = dict_of(record.get("event")), dict_of(record.get("message"))
        if kind == "content.part":
            part = dict_of(event.get("part"))
            think = part.get("type") in ("think", "thinking")
            thought, said = thought or think, said or (not think and (part.get("type") != "text" or _has_words(part)))
        elif kind == "tool.call":
            calls.append(Call(str(event.get("toolCallId")), str(event.get("uuid")), number, True))
        elif kind == "tool.result":
            results.add(str(event.get("toolCallId")))
        elif message.get("role") == "tool":
            results.add(str(message.get("toolCallId")))
        else:
            calls += _message_calls(message, number, line.kept)
    found.calls = [call for call in calls if call.id not in results]
    found.called = bool(calls)
    found.silent = thought and not said and not calls
    if begin is not None and begin[0] <= found.end and not ended and not prompted:
        found.step = whole(begin[1])[1]


def _has_words(part: dict[str, Any]) -> bool:
    return bool(str(part.get("text") or "").strip())


def _message_calls(message: dict[str, Any], number: int, kept: frozenset[int]) -> list[Call]:
    content, listed = message.get("content"), message.get("toolCalls")
    if message.get("role") != "assistant" or not isinstance(listed, list):
        return []
    before = len(content) if isinstance(content, list) else int(content is not None)
    ids = [str(dict_of(call).get("id")) for call in listed]
    return [Call(name, name, number, False) for part, name in enumerate(ids, before) if part in kept]


# -- a file that was written again ------------------------------------------------------------------


def signature(raw: bytes) -> bytes | None:
    """What a record says, however it is spelled: by it a record of a rewritten file is known again."""
    try:
        record = dict_of(whole(raw)[1])
        record.pop("agentId", None)
        data = orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError):
        return None
    return blake2b(data, digest_size=12).digest()


def compare_generations(found: Survey, lines: Iterable[Line]) -> None:
    """Where the cut lies in a file that was written again, lines that were known before carry their events in an
    earlier generation: what of these is outside of the past, and what is no longer there."""
    kept: set[bytes] = set()
    dropped: set[bytes] = set()
    for line in lines:
        if line.generation > found.generation or (line.generation == found.generation and line.number > found.end):
            break
        if line.generation < found.generation:
            if kind_of(line.raw) in _UNDO:
                dropped.clear()
            if line.kept or line.dropped:
                known = signature(line.raw)
                if known is not None:
                    (kept if line.kept else dropped).add(known)
        elif not line.kept and not line.dropped:
            known = signature(line.raw)
            if known in dropped:
                found.concurrent.add(line.number)
            elif known is not None:
                kept.discard(known)
    found.lost = len(kept)
