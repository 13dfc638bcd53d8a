"""Claude Code's transcripts (2.1.x): ``projects/<encoded cwd>/<conversation>.jsonl``.

Format facts were found by running 2.1.218, 2.1.276 and 2.1.332 (see DECISIONS.md, "Claude Code"):
one line a content block, tied into a tree by ``uuid`` and ``parentUuid``; file order is not causal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from beyond.event import USAGE_PART, Places
from beyond.ingest.base import (
    Damage,
    Event,
    Facts,
    NotARecord,
    canonical_input,
    count,
    milliseconds,
    nul_damage,
    parse,
    parse_exactly,
    text_of,
)
from beyond.ingest.tree import Delta, Tree

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
#: A character of a path as it stands in a text.
_BREAK = r"[^\s\"'`<>|;]"
_INTERRUPTED = "[Request interrupted by user"
_PATHS = ("file_path", "path", "notebook_path", "filePath")


def encode_path(path: str) -> str:
    """The name of the folder in which Claude Code keeps the conversations of a directory (an absolute real path).

    Every UTF-16 unit outside ``[A-Za-z0-9]`` becomes ``-``; above 200 characters the rest is a base-36 hash.
    """
    units = []
    for char in path:
        wide = 2 if ord(char) > 0xFFFF else 1
        units.append(char if char.isascii() and char.isalnum() else "-" * wide)
    name = "".join(units)
    if len(name) <= 200:
        return name
    value = 0
    raw = path.encode("utf-16-le", "surrogatepass")
    for i in range(0, len(raw), 2):
        value = (value * 31 + raw[i] + (raw[i + 1] << 8)) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    value = abs(value)
    digits = ""
    while value:
        value, rest = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return f"{name[:200]}-{digits or '0'}"


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
    writes = usage.get("cache_creation")
    split = 0
    if isinstance(writes, dict):  # the same tokens by life time; the flat number may leave some out, never the reverse
        split = count(writes.get("ephemeral_5m_input_tokens")) + count(writes.get("ephemeral_1h_input_tokens"))
    event.tokens = (
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(usage.get("cache_read_input_tokens")),
        max(count(usage.get("cache_creation_input_tokens")), split),
    )
    return event


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


def _string(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) and value else None


class ClaudeIngester:
    """Reads one transcript file. Subagent lines inside it (older versions) become threads of their own."""

    cli: ClassVar[str] = "claude"

    def __init__(self, conversation: str | None = None, root: str | None = None, agent: str = "main") -> None:
        self.facts = Facts(conversation=conversation, project=root)
        self.damage: list[Damage] = []
        self.stale = False
        self._agent = agent
        self._linked = False
        self._root_given = root is not None
        self.places = self._make_places()
        self.threads: dict[str, Tree] = {"main": Tree(lambda: self.places)}
        self._requests: dict[str, str | None] = {}
        self._queue: list[str] = []
        self._removed: dict[str, str] = {}
        self._sums: dict[str, str] = {}

    def _make_places(self) -> Places:
        root, conversation = self.facts.project, self.facts.conversation
        store = hint = None
        if root:
            hint = f"/projects/{encode_path(root)}"
            # The look-behind: else a long text without a break is searched from each of its characters.
            store = rf"(?<!{_BREAK}){_BREAK}*{re.escape(hint)}(?![A-Za-z0-9\-])"
        return Places(root, conversation, store, hint or "")

    def feed(self, source: int, number: int, offset: int, raw: bytes) -> None:
        try:
            record = parse(raw)
            kind = record.get("type")
            if not isinstance(kind, str):
                raise NotARecord("an object without a type")
            if self.facts.first_ts is None:
                self.facts.first_ts = milliseconds(record.get("timestamp"))
            if raw[:1] == b"\0" or raw[-1:] == b"\0":
                self.damage += nul_damage(number, offset, raw)
            if kind in ("user", "assistant", "system", "attachment"):
                self._tree_line(record, source, number, raw)
            else:
                self._side_line(record, source, number, raw)
        except NotARecord as error:
            if raw.strip(b" \t\r"):
                self.damage.append(Damage(number, offset, len(raw), str(error)))

    def _note_facts(self, record: dict[str, Any]) -> None:
        facts = self.facts
        cwd = record.get("cwd")
        if isinstance(cwd, str) and cwd:
            if facts.project is None:
                facts.project = cwd
                self.places = self._make_places()
                self.stale = self._linked
            elif cwd != facts.project and cwd not in facts.directories:
                facts.directories.append(cwd)
        if facts.conversation is None:
            facts.conversation = _string(record, "sessionId")
            self.places = self._make_places()
        facts.cli_version = _string(record, "version") or facts.cli_version
        facts.git_branch = facts.git_branch or _string(record, "gitBranch")

    def _thread(self, record: dict[str, Any]) -> Tree:
        if self._agent == "main" and record.get("isSidechain") is True:
            agent = _string(record, "agentId") or "sidechain"
            tree = self.threads.get(agent)
            if tree is None:
                tree = self.threads[agent] = Tree(lambda: self.places)
            return tree
        return self.threads["main"]

    def _tree_line(self, record: dict[str, Any], source: int, number: int, raw: bytes) -> None:
        self._note_facts(record)
        events = events_of(record, raw)
        tree = self._thread(record)
        main = tree is self.threads["main"]
        kind = record["type"]
        uuid = _string(record, "uuid")
        parent = _string(record, "parentUuid")
        ts = events[0].ts if events else milliseconds(record.get("timestamp"))
        if main:
            self.facts.seen(ts)
        guess = "parentUuid" not in record
        if kind == "system" and record.get("subtype") == "compact_boundary" and parent is None:
            parent = _string(record, "logicalParentUuid")
            guess = parent is None
            if parent is not None and parent not in tree.keys:
                parent, guess = None, True
        known = uuid is not None and uuid in tree.keys
        prompt = False
        if kind == "assistant":
            events = self._count_usage(record, events, tree, known)
            self._note_model(events, main)
        elif kind == "user":
            prompt = any(e.kind == "user_msg" for e in events)
            self._note_subagent(record, events)
            if not known:
                self._deliver(events)
        elif kind == "attachment" and events and not known:
            steered = self._removed.pop(str(events[0].content), None)
            if steered:
                tree.move(steered, parent)
                parent, events = steered, []
            else:
                self._deliver(events)
                prompt = True
        for event in events:
            event.source, event.line = source, number
        self._linked = self._linked or bool(events)
        if prompt and main and not known:
            self.facts.entitle(next((e.content for e in events if e.kind == "user_msg"), None), 0)
        tree.add(uuid, parent, events, line=number, prompt=prompt, guess=guess)

    def _count_usage(self, record: dict[str, Any], events: list[Event], tree: Tree, known: bool) -> list[Event]:
        if not events or events[-1].kind != "usage":
            return events
        usage = events.pop()
        message_id = record["message"].get("id")
        request = _string(record, "requestId")
        if isinstance(message_id, str) and message_id:
            key = message_id
            seen = self._requests.setdefault(message_id, request)
            if seen is not None and request is not None and seen != request:
                key = f"{message_id}\0{request}"
            elif seen is None and request is not None:
                self._requests[message_id] = request
        else:
            key = _string(record, "uuid") or f"{record.get('timestamp')}"
        # A copy in another file keeps id, request and time; an id alone is not trusted to be unique there.
        usage.usage_key = f"{message_id or key}\0{request or ''}\0{record.get('timestamp')}"
        if tree.usage(key, usage, len(events)) and not known:
            events.append(usage)
        return events

    def _note_model(self, events: list[Event], main: bool) -> None:
        for event in events:
            if main and event.model and event.model != "<synthetic>":
                self.facts.model = event.model
                return

    def _note_subagent(self, record: dict[str, Any], events: list[Event]) -> None:
        result = record.get("toolUseResult")
        if isinstance(result, dict):
            agent = _string(result, "agentId")
            if agent is not None:
                for event in events:
                    if event.kind == "tool_result" and event.tool_id:
                        self.facts.subagents.setdefault(agent, event.tool_id)

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if event.kind == "user_msg" and event.content in self._queue:
                self._queue.remove(str(event.content))

    def _side_line(self, record: dict[str, Any], source: int, number: int, raw: bytes) -> None:
        kind = record.get("type")
        tree = self.threads["main"]
        if kind == "queue-operation":
            self._queue_line(record, source, number)
        elif kind == "last-prompt":
            leaf = _string(record, "leafUuid")
            pinned = leaf if record.get("explicit") is True else None
            if pinned != tree.pinned:
                tree.pinned = pinned
        elif kind == "custom-title":
            self.facts.entitle(record.get("customTitle"), 3)
        elif kind == "ai-title":
            self.facts.entitle(record.get("aiTitle"), 2)
        elif kind == "summary":
            leaf = _string(record, "leafUuid")
            if leaf is not None and isinstance(record.get("summary"), str):
                self._sums[leaf] = record["summary"]
        elif kind == "progress" and _string(record, "uuid"):
            self._thread(record).add(
                _string(record, "uuid"), _string(record, "parentUuid"), (), line=number, leaf=False
            )
        elif kind not in BOOKKEEPING:
            events = events_of(record, raw)
            self._note_facts(record)
            for event in events:
                event.source, event.line = source, number
            uuid = _string(record, "uuid")
            if uuid is not None and "parentUuid" in record:
                self._thread(record).add(uuid, _string(record, "parentUuid"), events, line=number, leaf=False)
            else:
                for event in events:
                    tree.loose(event, number)

    def _queue_line(self, record: dict[str, Any], source: int, number: int) -> None:
        """A queued prompt becomes a step where it reaches the model: as a user line, as an attachment, or, taken out
        of the queue while the model works, right there (its attachment, if one follows, is then the same step)."""
        operation, content = record.get("operation"), record.get("content")
        if operation == "enqueue" and isinstance(content, str):
            self._queue.append(content)
        elif operation == "remove" and isinstance(content, str) and content in self._queue:
            self._queue.remove(content)
            event = Event("user_msg", 0, content, ts=milliseconds(record.get("timestamp")))
            event.mark = "steering"
            event.source, event.line = source, number
            self._steer(event, number)

    def _steer(self, event: Event, number: int) -> None:
        key = f"\0steer{number}"
        self._removed[str(event.content)] = key
        self._linked = True
        self.threads["main"].add(key, None, (event,), line=number, prompt=True, leaf=False, guess=True, side=True)

    def summaries(self) -> dict[str, str]:
        """Titles by the uuid of the message that they end with; it may be in another conversation."""
        return self._sums

    def flush(self, assign: Callable[[str, Event], int]) -> dict[str, Delta]:
        return {
            name: tree.flush(lambda event, name=name: assign(name, event))  # type: ignore[misc]
            for name, tree in self.threads.items()
        }
