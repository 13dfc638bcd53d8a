"""Reads a Claude Code transcript: which of a line's events count, and where on the tree they hang."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from beyond.event import Places, printable
from beyond.ingest.base import Damage, Event, Facts, NotARecord, glue_damage, milliseconds, nul_damage, parse
from beyond.ingest.claude.records import BOOKKEEPING, events_of
from beyond.ingest.claude.store import encode_path
from beyond.ingest.tree import Delta, Tree

#: A character of a path as it stands in a text.
_BREAK = r"[^\s\"'`<>|;]"


def _string(record: dict[str, Any], key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) and value else None


def _name(record: dict[str, Any], key: str) -> str | None:
    """A string that goes into a column: it can be stored."""
    value = _string(record, key)
    return None if value is None else printable(value)


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
            self.damage += glue_damage(number, offset, raw, record)
            if kind in ("user", "assistant", "system", "attachment"):
                self._tree_line(record, source, number, raw)
            else:
                self._side_line(record, source, number, raw)
        except NotARecord as error:
            if raw.strip(b" \t\r"):
                self.damage.append(Damage(number, offset, len(raw), str(error)))

    def _note_facts(self, record: dict[str, Any]) -> None:
        facts = self.facts
        cwd = _name(record, "cwd")
        if cwd is not None:
            if facts.project is None:
                facts.project = cwd
                self.places = self._make_places()
                self.stale = self._linked
            elif cwd != facts.project and cwd not in facts.directories:
                facts.directories.append(cwd)
        if facts.conversation is None:
            facts.conversation = _name(record, "sessionId")
            self.places = self._make_places()
        facts.cli_version = _name(record, "version") or facts.cli_version
        facts.git_branch = facts.git_branch or _name(record, "gitBranch")

    def _thread(self, record: dict[str, Any]) -> Tree:
        if self._agent == "main" and record.get("isSidechain") is True:
            agent = _name(record, "agentId") or "sidechain"
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
            agent = _name(result, "agentId")
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
                self.facts.summaries[leaf] = record["summary"]
        elif kind == "progress" and _string(record, "uuid"):
            self._thread(record).add(_string(record, "uuid"), _string(record, "parentUuid"), (), line=number, leaf=False)
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

    def flush(self, assign: Callable[[str, Event], int]) -> dict[str, Delta]:
        return {
            name: tree.flush(lambda event, name=name: assign(name, event))  # type: ignore[misc]
            for name, tree in self.threads.items()
        }
