"""What a line of a Kimi Code wire says, by itself: records to events."""

from __future__ import annotations

import re
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import orjson

from beyond.event import USAGE_PART
from beyond.ingest.base import (
    Event,
    NotARecord,
    count,
    milliseconds,
    parse,
    parse_exactly,
    text_of,
)

#: Families of records that carry no step: settings, measurements, notices, mirrors of other records.
BOOKKEEPING = frozenset(
    "agent config cron environment file_history forked full_compaction goal human interaction interruptionReminder llm "
    "mcp metadata micro_compaction permission plan plan_mode plugin profile prompt runtime staleGuard subagent "
    "swarm_mode task token_counting tools tower_mode usage".split()
)
SILENT = frozenset(("context.undo", "context.undone", "context.update_token_count"))
#: Why a step ended early where it is no wish of the user.
FAILURES = frozenset(("error", "max_steps", "filtered", "blocked"))
#: Nesting of a tool's input above this does not survive canonical JSON.
MAX_INPUT_DEPTH = 200
_KNOWN_PROTOCOL = re.compile(r"1\.[0-5]")
_EXPONENT = re.compile(r"[0-9][eE]\+?[0-9]")
_CWD = re.compile(r"current working directory is `([^`\n]+)`")
#: How the result of a call names the subagents that it started.
_AGENT_IDS = {
    "Agent": re.compile(r"\A(?:[^\n]+\n)*?agent_id: (\S+)"),
    "AgentSwarm": re.compile(r"<subagent [^<>]*?\bagent_id=\"([^\"]+)\""),
}
_BREAK = "[^\\s\"'`<>|;]"


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [] if content is None else [content]


def _text(content: Any) -> str:
    """A result's output: its text parts one below the other, else its JSON."""
    parts = content if isinstance(content, list) else []
    texts = [b["text"] for b in map(_dict, parts) if b.get("type") == "text" and isinstance(b.get("text"), str)]
    if texts and len(texts) == len(parts):
        return "\n".join(texts)
    return "" if content is None else text_of(content)


def _block_event(kind: str, block: Any, part: int) -> Event:
    form, text = _dict(block).get("type"), _dict(block).get("text")
    if form == "text" and isinstance(text, str):
        return Event(kind, part, text)
    if form in ("think", "thinking") and kind == "assistant_msg":
        return Event("thinking", part, text_of(block.get("think") or block.get(form) or block.get("encrypted") or ""))
    return Event(kind, part, text_of(block))


def _user_events(content: Any, origin: dict[str, Any]) -> list[Event]:
    """A message with role `user` is a prompt by where it came from, as for the engine's own undo; or a notice."""
    came = origin.get("kind")
    if came == "injection":
        return []
    prompt = came in (None, "user")
    prompt = prompt or (came == "system_trigger" and origin.get("name") == "subagent")
    prompt = prompt or (came in ("skill_activation", "plugin_command") and origin.get("trigger") == "user-slash")
    kind = "user_msg" if prompt else "meta"
    events = [_block_event(kind, block, part) for part, block in enumerate(_blocks(content))]
    for event in events:
        event.mark = "compaction" if came == "compaction_summary" else None
    return events


def _call_event(part: int, name: Any, tool_id: Any, args: Any) -> Event:
    level = [args]
    for _ in range(MAX_INPUT_DEPTH):
        level = [x for v in level if isinstance(v, dict | list) for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            break
    else:
        raise NotARecord("nested too deep")
    event = Event("tool_call", part, text_of({} if args is None else args), value=args)
    event.tool, event.tool_id = _string(name), _string(tool_id)
    event.path = _string(_dict(args).get("path")) or _string(_dict(args).get("file_path"))
    return event


def _result_event(tool_id: Any, output: Any, failed: bool) -> Event:
    return Event("tool_result", 0, _text(output), tool_id=_string(tool_id), is_error=failed)


def _message_events(message: dict[str, Any]) -> list[Event]:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        return _user_events(_blocks(content) or "", _dict(message.get("origin")))
    if role == "tool":
        return [_result_event(message.get("toolCallId"), content, message.get("isError") is True)]
    if role != "assistant":
        return [Event("meta", 0, text_of(message))]
    events = [_block_event("assistant_msg", block, part) for part, block in enumerate(_blocks(content))]
    for call in map(_dict, _blocks(message.get("toolCalls"))):
        inner = _dict(call.get("function")) or call  # nested before protocol 1.1
        args = inner.get("arguments")
        with suppress(orjson.JSONDecodeError):
            args = orjson.loads(args) if isinstance(args, str) else args
        events.append(_call_event(len(events), inner.get("name"), call.get("id"), args))
    return events


def _loop_events(event: dict[str, Any]) -> list[Event]:
    kind, result = event.get("type"), event.get("result")
    if kind in ("step.begin", "step.end"):
        return _usage_events(event.get("usage"))
    if kind == "tool.result":
        failed = any(_dict(o).get(key) is True for o in (result, event) for key in ("isError", "is_error"))
        output = result.get("output") if isinstance(result, dict) else result
        return [_result_event(event.get("toolCallId"), output, failed)]
    if kind == "content.part":
        only = _block_event("assistant_msg", event.get("part"), 0)
    elif kind == "tool.call":
        only = _call_event(0, event.get("name"), event.get("toolCallId"), event.get("args"))
    else:
        return [Event("meta", 0, text_of(event))]
    only.group = _string(event.get("stepUuid"))
    return [only]


def _usage_events(usage: Any) -> list[Event]:
    if not isinstance(usage, dict):
        return []
    event = Event("usage", USAGE_PART, None, usage=usage)
    numbers = [count(usage.get(key)) for key in ("inputOther", "output", "inputCacheRead", "inputCacheCreation")]
    event.tokens = (numbers[0], numbers[1], numbers[2], numbers[3])
    return [event]


def _turn_events(kind: str, record: dict[str, Any]) -> list[Event]:
    reason, said = record.get("reason"), None
    if kind == "turn.prompt":
        return _user_events(record.get("input"), _dict(record.get("origin")))
    if kind == "turn.step.interrupted" and reason not in FAILURES:
        return [Event("meta", 0, text_of(record))]
    if kind == "turn.step.interrupted":
        said = record.get("message") or reason
    elif kind == "turn.step.retrying":
        said = record.get("errorMessage") or record.get("errorName") or "retrying"
    elif kind == "turn.ended" and reason == "failed":
        said = _dict(record.get("error")).get("message") or record.get("error") or reason
    return [] if said is None else [Event("error", 0, text_of(said), is_error=True)]


def events_of(record: dict[str, Any], raw: bytes = b"") -> list[Event]:
    """All events that a record can give, by itself. Which of them count depends on the lines before it.

    `raw` is its line: numbers beyond 64 bits, which the fast parser rounds, are read again from it.
    """
    events = _events_of(record)
    if raw and any(e.kind in ("tool_call", "meta") and e.content and _EXPONENT.search(e.content) for e in events):
        with suppress(ValueError, RecursionError, OverflowError):
            events = _events_of(parse_exactly(raw))
    return events


def _events_of(record: dict[str, Any]) -> list[Event]:
    kind = record.get("type")
    if not isinstance(kind, str):
        raise NotARecord("an object without a type")
    if kind == "context.append_loop_event" and isinstance(record.get("event"), dict):
        events = _loop_events(record["event"])
    elif kind == "context.append_message" and isinstance(record.get("message"), dict):
        events = _message_events(record["message"])
    elif kind == "usage.record":
        events = _usage_events(record.get("usage"))
    elif kind.startswith("turn."):
        events = _turn_events(kind, record)
    elif kind in SILENT or kind.partition(".")[0] in BOOKKEEPING:
        return []
    else:
        events = [Event("meta", 0, None)]
        said: Any = record
        if kind == "context.apply_compaction":
            summary = record.get("summary")  # a whole message, in the oldest
            said = _text(summary.get("content")) if isinstance(summary, dict) else summary
            said, events[0].mark = said or record.get("contextSummary") or record, "compaction"
        elif kind == "context.clear":
            said, events[0].mark = "Context cleared", "clear"
        events[0].content = text_of(said)
    ts = milliseconds(record.get("time"))
    for event in events:
        event.ts = ts
    return events


def content_of(raw: bytes) -> dict[int, Event]:
    """The events of a line by part, for reading content back from the journal."""
    return {event.part: event for event in events_of(parse(raw), raw)}


def _hash(*texts: str | None) -> str:
    return blake2b("\0".join(t or "" for t in texts).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _words(content: Any) -> str:
    """A hash of a message's words: by it a prompt and its delivery into the context are known to be one."""
    blocks = _blocks(content)
    texts = [b if isinstance(b, str) else _dict(b).get("text") for b in blocks]
    return _hash(*([t for t in texts if isinstance(t, str)] or [text_of(blocks)]))
