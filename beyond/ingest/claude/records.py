"""What a line of a Claude Code transcript says, by itself: records to events."""

from __future__ import annotations

import re
from typing import Any

from beyond.event import USAGE_PART
from beyond.ingest.base import Event, NotARecord, canonical_input, count, milliseconds, parse, parse_exactly, text_of

#: Lines that carry no step of the conversation. Their bytes are kept; they make no event.
BOOKKEEPING = frozenset(
    "queue-operation last-prompt mode permission-mode ai-title custom-title summary file-history-snapshot "
    "file-history-delta cost-state tools-used atis-latch api-request api-request-shape api-request-blob "
    "attachment progress agent-name agent-color agent-setting tag pr-link worktree-state".split()
)
#: `system` lines that only measure or inform.
SYSTEM_NOTES = frozenset(
    "turn_duration informational local_command stop_hook_summary away_summary bridge_status memory_saved "
    "permission_retry scheduled_task_fire agents_killed thinking microcompact_boundary".split()
)
#: Slash commands that act in the CLI itself and ask the model nothing.
LOCAL_COMMANDS = frozenset(
    "add-dir agents bug clear color compact config context copy cost doctor effort exit export extra-usage fast "
    "feedback fork help hooks ide keybindings login logout mcp memory model output-style permissions plan plugin "
    "privacy-settings release-notes rename resume rewind sandbox skills stats status statusline tasks terminal-setup "
    "theme todos upgrade usage vim".split()
)
_COMMAND = re.compile(r"\s*<command-name>/?([^<]*)</command-name>")
_EXPONENT = re.compile(r"[0-9][eE]\+?[0-9]")
_INTERRUPTED = "[Request interrupted by user"
_PATHS = ("file_path", "path", "notebook_path", "filePath")


def tool_path(tool_input: Any) -> str | None:
    """The file that a tool call is about, where its input names one."""
    if isinstance(tool_input, dict):
        for key in _PATHS:
            value = tool_input.get(key)
            if isinstance(value, str):
                return value
    return None


def _result_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if (
        isinstance(content, list)
        and content
        and all(isinstance(b, dict) and b.get("type") == "text" and isinstance(b.get("text"), str) for b in content)
    ):
        return "\n".join(b["text"] for b in content)
    return text_of(content)


def _user_block(block: Any, part: int) -> Event:
    if isinstance(block, str):
        return Event("user_msg", part, block)
    if isinstance(block, dict):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            return Event("user_msg", part, block["text"])
        if kind == "tool_result":
            tool_id = block.get("tool_use_id")
            return Event(
                "tool_result",
                part,
                _result_text(block.get("content")),
                tool_id=tool_id if isinstance(tool_id, str) else None,
                is_error=block.get("is_error") is True,
            )
    return Event("user_msg", part, text_of(block))


def _assistant_block(block: Any, part: int) -> Event:
    if isinstance(block, str):
        return Event("assistant_msg", part, block)
    if isinstance(block, dict):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            return Event("assistant_msg", part, block["text"])
        if kind == "thinking":
            return Event("thinking", part, text_of(block.get("thinking") or ""))
        if kind == "redacted_thinking":
            return Event("thinking", part, text_of(block.get("data") or ""))
        if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            value = block.get("input")
            tool, tool_id = block.get("name"), block.get("id")
            return Event(
                "tool_call",
                part,
                text_of(value if value is not None else {}),
                tool=tool if isinstance(tool, str) else None,
                tool_id=tool_id if isinstance(tool_id, str) else None,
                value=value,
                path=tool_path(value),
            )
        if isinstance(kind, str) and kind.endswith("_tool_result"):
            tool_id = block.get("tool_use_id")
            return Event(
                "tool_result",
                part,
                _result_text(block.get("content")),
                tool_id=tool_id if isinstance(tool_id, str) else None,
            )
    return Event("assistant_msg", part, text_of(block))


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else message
    if content is None or content == []:
        return [""]
    return content if isinstance(content, list) else [content]


def _is_local_command(text: str | None) -> bool:
    if not text or "<" not in text[:40]:
        return False
    if text.lstrip().startswith(("<local-command-stdout>", "<local-command-stderr>", "<local-command-caveat>")):
        return True
    match = _COMMAND.match(text)
    return bool(match) and match.group(1).strip() in LOCAL_COMMANDS  # type: ignore[union-attr]


def _user_events(record: dict[str, Any]) -> list[Event]:
    events = [_user_block(block, part) for part, block in enumerate(_blocks(record.get("message")))]
    beside = record.get("isMeta") is True or record.get("isCompactSummary") is True
    for event in events:
        if event.kind == "user_msg" and (
            beside or _is_local_command(event.content) or (event.content or "").startswith(_INTERRUPTED)
        ):
            event.kind = "meta"
            if record.get("isCompactSummary") is True:
                event.mark = "compaction"
    return events


def _usage_event(message: dict[str, Any]) -> Event | None:
    usage = message.get("usage")
    if not isinstance(usage, dict) or message.get("model") == "<synthetic>":
        return None
    event = Event("usage", USAGE_PART, None, usage=usage)
    if usage == _last_usage[0]:  # each line of a message repeats it
        event.tokens = _last_usage[1]
    else:
        event.tokens = usage_tokens(usage)
        _last_usage[:] = usage, event.tokens
    return event


_last_usage: list[Any] = [None, None]


def usage_tokens(usage: dict[str, Any]) -> tuple[int, int, int, int]:
    """Input, output, cache read, cache write of an API message's usage."""
    writes = usage.get("cache_creation")
    split = 0
    if isinstance(writes, dict):  # the same tokens by life time; the flat number may leave some out, never the reverse
        split = count(writes.get("ephemeral_5m_input_tokens")) + count(writes.get("ephemeral_1h_input_tokens"))
    return (
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(usage.get("cache_read_input_tokens")),
        max(count(usage.get("cache_creation_input_tokens")), split),
    )


def _assistant_events(record: dict[str, Any]) -> list[Event]:
    message = record.get("message")
    model = message.get("model") if isinstance(message, dict) else None
    model = model if isinstance(model, str) else None
    if record.get("isApiErrorMessage") is True:
        return [
            Event("error", part, text_of(b.get("text", b) if isinstance(b, dict) else b), model=model, is_error=True)
            for part, b in enumerate(_blocks(message))
        ]
    events = [_assistant_block(block, part) for part, block in enumerate(_blocks(message))]
    if isinstance(message, dict):
        usage = _usage_event(message)
        if usage is not None:
            events.append(usage)
        group = message.get("id")
        for event in events:
            event.model = model
            event.group = group if isinstance(group, str) else None
    return events


def _system_events(record: dict[str, Any]) -> list[Event]:
    subtype = record.get("subtype")
    if subtype == "compact_boundary":
        boundary = Event("meta", 0, text_of(record.get("content") or "Conversation compacted"))
        boundary.mark = "compaction"
        return [boundary]
    if subtype == "api_error":
        return [Event("error", 0, text_of(record.get("error") or record.get("content") or ""), is_error=True)]
    if subtype in SYSTEM_NOTES:
        return []
    return [Event("meta", 0, text_of(record))]


def _queued(record: dict[str, Any]) -> str | None:
    attachment = record.get("attachment")
    if isinstance(attachment, dict) and attachment.get("type") == "queued_command":
        prompt = attachment.get("prompt")
        if prompt is not None:
            return _result_text(prompt)
    return None


def events_of(record: dict[str, Any], raw: bytes = b"") -> list[Event]:
    """All events that a record can give, by itself. Which of them count depends on the lines before it.

    `raw` is its line: numbers beyond 64 bits, which the fast parser rounds, are read again from it.
    """
    events = _events_of(record)
    for event in events:
        if event.kind == "tool_call":
            event.canonical = canonical_input(event.value)
            if event.canonical is None and raw and _EXPONENT.search(event.content or ""):
                return _events_of(parse_exactly(raw))
        elif event.kind == "meta" and raw and _EXPONENT.search(event.content or ""):
            return _events_of(parse_exactly(raw))
    return events


def _events_of(record: dict[str, Any]) -> list[Event]:
    kind = record.get("type")
    if kind == "user":
        events = _user_events(record)
    elif kind == "assistant":
        events = _assistant_events(record)
    elif kind == "system":
        events = _system_events(record)
    elif kind == "attachment":
        prompt = _queued(record)
        events = [] if prompt is None else [Event("user_msg", 0, prompt)]
    elif kind == "queue-operation":
        content = record.get("content")
        events = [Event("user_msg", 0, content)] if isinstance(content, str) and content else []
    elif kind in BOOKKEEPING:
        return []
    elif isinstance(kind, str):
        events = [Event("meta", 0, text_of(record))]
    else:
        raise NotARecord("an object without a type")
    ts = milliseconds(record.get("timestamp"))
    for event in events:
        event.ts = ts
    return events


def content_of(raw: bytes) -> dict[int, Event]:
    """The events of a line by part, for reading content back from the journal."""
    return {event.part: event for event in events_of(parse(raw), raw)}
