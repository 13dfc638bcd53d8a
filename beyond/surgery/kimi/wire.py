"""Composes the wire of a fork: the prefix of the lines, edited where it must be, and what closes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from beyond.errors import Refused
from beyond.surgery.base import INTERRUPTED, Line
from beyond.surgery.kimi.places import Moves
from beyond.surgery.kimi.survey import MEASURES, Call, Survey, dict_of, kind_in
from beyond.surgery.raw import as_written, dump, only_items, replaced, spans, whole

#: Stands for the answer where the cut lies behind its first thought.
STOPPED = "[The answer stops here: the conversation was forked at this point.]"
_CWD = re.compile(r"current working directory is `([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all wires of a fork share."""

    moves: Moves
    #: For records that tell the model its directory: the moves, with directories that these name as well.
    moves_from: Callable[[Iterable[str]], Moves]
    workspace: str
    protocol: str
    cut_ts: int | None
    without: frozenset[str]

    def on(self, rule: str) -> bool:
        """Whether a rule holds."""
        return rule not in self.without


def compose(setting: Setting, found: Survey, lines: Iterable[Line], agent: str) -> Iterator[bytes]:
    """The lines of the fork's wire, each with its newline. Raises `Refused` where a kept line is missing."""
    kept, time = 0, setting.cut_ts
    window = min(found.concurrent, default=found.prompt.line + 1 if found.prompt else found.end + 1)
    closed: set[str] = set()
    for line in lines:
        if line.generation != found.generation:
            if line.generation > found.generation:
                break
            continue
        if line.number > found.end and setting.on("prefix-only"):
            break
        kept += bool(line.kept)
        if line.kept and not line.dropped and as_written(line.raw) and setting.cut_ts is not None:
            yield setting.moves.line(line.raw) + b"\n"
            continue
        try:
            raw, record = whole(line.raw)
        except ValueError:
            yield b"\n"  # what can't be read would end the CLI's reading there; it counts no empty line
            continue
        if not isinstance(record, dict):
            yield b"\n"
            continue
        stamp = record.get("time", record.get("created_at"))
        time = int(stamp) if setting.cut_ts is None and isinstance(stamp, int | float) else time
        if line.number <= found.end:
            raw = _edited(setting, found, line, raw, record, window, closed, agent)
        yield _moved(setting, raw, record) + b"\n"
    if kept < found.kept:
        raise Refused(f"{found.kept - kept} lines of the conversation could not be read again: record it anew")
    for ending in _endings(setting, found, agent, time, closed):
        yield setting.moves.line(ending) + b"\n"


def _edited(
    setting: Setting,
    found: Survey,
    line: Line,
    raw: bytes,
    record: dict[str, Any],
    window: int,
    closed: set[str],
    agent: str,
) -> bytes:
    """A line of the prefix as the fork has it, but for the places."""
    kind = kind_in(record)
    if line.kept:
        return _trimmed(raw, record, kind, line.kept) if line.dropped and setting.on("trim") else raw
    if line.number == found.begun and setting.on("close-compaction"):
        return _nothing(setting, record)
    if found.prompt is not None and line.number == found.prompt.delivered:
        return raw if found.prompt.whole or not setting.on("trim") else _same_words(raw, found)
    if line.number in found.concurrent and kind not in MEASURES and setting.on("neutralise"):
        called = dict_of(record.get("event")).get("toolCallId")
        for call in found.calls:
            if kind == "tool.result" and call.id == called and call.id not in closed:
                closed.add(call.id)
                return _interrupted(setting, call, agent, record.get("time"))
        return _nothing(setting, record)
    if line.number >= window and not line.dropped and setting.on("neutralise") and not _harmless(kind, record, found, line):
        return _nothing(setting, record)
    if kind == "runtime.set_binding" and setting.on("workspace-id"):
        place = spans(raw, lambda path: path == ("workspaceId",))
        return replaced(raw, [(span, dump(setting.workspace)) for span in place.values()])
    return raw


def _harmless(kind: str, record: dict[str, Any], found: Survey, line: Line) -> bool:
    """Whether a record without an event, written while something outside of the past went on, holds nothing of it."""
    if kind in MEASURES:
        return True
    # Between a prompt and its delivery stands what the CLI puts beside the prompt: captions of its images.
    origin = dict_of(dict_of(record.get("message")).get("origin"))
    return found.prompt is not None and line.number > found.prompt.line and origin.get("kind") == "injection"


def _trimmed(raw: bytes, record: dict[str, Any], kind: str, kept: frozenset[int]) -> bytes:
    """A line without those of its blocks that are not kept."""
    if kind == "turn.prompt":
        return only_items(raw, ("input",), lambda item: item in kept)
    if kind != "context.append_message":
        return raw
    content = dict_of(record.get("message")).get("content")
    if isinstance(content, list):
        raw = only_items(raw, ("message", "content"), lambda item: item in kept)
    before = len(content) if isinstance(content, list) else int(content is not None)
    return only_items(raw, ("message", "toolCalls"), lambda item: item + before in kept)


def _moved(setting: Setting, raw: bytes, record: dict[str, Any]) -> bytes:
    """A line with the fork's places. In a record with the system prompt that is also the directory that it tells the
    model, whatever that is."""
    if record.get("type") not in ("config.update", "profile.bind"):
        return setting.moves.line(raw)
    if not setting.on("system-prompt-cwd"):
        return raw
    named = _CWD.search(str(record.get("systemPrompt") or ""))
    places = (named[1] if named else None, record.get("cwd"), dict_of(record.get("environmentDisclosure")).get("cwd"))
    return setting.moves_from(p.rstrip("/") for p in places if isinstance(p, str) and p.rstrip("/")).line(raw)


# -- records of ours ---------------------------------------------------------------------------------


def _nothing(setting: Setting, record: dict[str, Any]) -> bytes:
    """A record in the place of one that is left out, so that references to lines stay right: every version of the
    CLI passes over a second `metadata`."""
    time = record.get("time", record.get("created_at"))
    return dump({"type": "metadata", "protocol_version": setting.protocol, "created_at": time if _is_time(time) else 0})


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _record(setting: Setting, kind: str, agent: str, time: Any, **fields: Any) -> bytes:
    """A record in the format of the transcript's protocol."""
    owner = {"agentId": agent} if setting.protocol >= "1.5" else {}
    stamp = {"time": time} if _is_time(time) else {}
    return dump({"type": kind, **owner, **fields, **stamp})


def _interrupted(setting: Setting, call: Call, agent: str, time: Any) -> bytes:
    """The result of a call that had none."""
    if not call.loop:
        content = [{"type": "text", "text": INTERRUPTED}]
        message = {"role": "tool", "content": content, "toolCalls": [], "toolCallId": call.id, "isError": True}
        return _record(setting, "context.append_message", agent, time, message=message)
    result = {"output": INTERRUPTED, "isError": True}
    event: dict[str, Any] = {"type": "tool.result", "parentUuid": call.uuid, "toolCallId": call.id, "result": result}
    return _record(setting, "context.append_loop_event", agent, time, event=event)


def _endings(setting: Setting, found: Survey, agent: str, time: Any, closed: set[str]) -> Iterator[bytes]:
    """What closes the prefix: the last prompt's delivery, a compaction's end, results of open calls, the step's end."""
    if found.prompt is not None and found.prompt.delivered is None and setting.on("deliver-prompt"):
        yield _delivery(setting, found, agent, time)
    if found.compacted and setting.on("close-compaction"):
        yield _record(setting, "full_compaction.complete", agent, time)
    if not setting.on("complete-calls"):
        return
    for call in found.calls:
        if call.id not in closed:
            yield _interrupted(setting, call, agent, time)
    if found.step is not None:
        begun = dict_of(found.step.get("event"))
        if found.silent:  # a message with nothing but a thought is refused
            part = {"type": "text", "text": STOPPED}
            place = {"turnId": begun.get("turnId"), "step": begun.get("step"), "stepUuid": begun.get("uuid")}
            event = {"type": "content.part", "uuid": f"{begun.get('uuid')}-stopped", **place, "part": part}
            yield _record(setting, "context.append_loop_event", agent, time, event=event)
        known: dict[str, Any] = {key: begun[key] for key in ("uuid", "turnId", "step") if key in begun}
        event = {"type": "step.end", **known, "finishReason": "tool_use" if found.called else "end_turn"}
        yield _record(setting, "context.append_loop_event", agent, time, event=event)


def _delivery(setting: Setting, found: Survey, agent: str, time: Any) -> bytes:
    """The message that brings the last prompt into the context, which the CLI had not come to."""
    assert found.prompt is not None
    raw, record = whole(found.prompt.raw)
    own = {"id": record["promptId"]} if isinstance(record.get("promptId"), str) else {}
    message = {"role": "user", "content": 0, **own, "toolCalls": [], "origin": 0}
    line = _record(setting, "context.append_message", agent, time, message=message)
    origin = spans(raw, lambda path: path == ("origin",)).get(("origin",))
    empty = spans(line, lambda path: path == ("message", "origin"))["message", "origin"]
    line = replaced(line, [(empty, raw[slice(*origin)] if origin else b'{"kind":"user"}')])
    return _same_words(line, found)


def _same_words(line: bytes, found: Survey) -> bytes:
    """The delivery of the last prompt with what of the prompt is kept."""
    assert found.prompt is not None
    raw, record = whole(found.prompt.raw)
    if not found.prompt.whole:
        raw = _trimmed(raw, record, "turn.prompt", found.prompt.kept)
    given = spans(raw, lambda path: path == ("input",)).get(("input",))
    words = raw[slice(*given)] if given else b"[]"
    if words[:1] != b"[":
        words = dump([{"type": "text", "text": record.get("input")}])
    place = spans(line, lambda path: path == ("message", "content"))
    return replaced(line, [(span, words) for span in place.values()])
