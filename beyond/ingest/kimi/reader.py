"""Reads a Kimi Code wire: which records are steps, and what they hang on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from beyond.event import Places, printable
from beyond.ingest.base import (
    Damage,
    Event,
    Facts,
    NotARecord,
    glue_damage,
    milliseconds,
    nul_damage,
    parse,
    text_of,
)
from beyond.ingest.branches import NONE
from beyond.ingest.kimi.records import (
    _AGENT_IDS,
    _BREAK,
    _CWD,
    _KNOWN_PROTOCOL,
    _dict,
    _hash,
    _string,
    _words,
    events_of,
)
from beyond.ingest.tree import Delta, Tree


class KimiIngester:
    """Reads the wire of one agent. Lines of a later generation of the file that say what is known add nothing."""

    __slots__ = (
        "_absorbed", "_agent", "_agents", "_alias", "_anchors", "_appends", "_boundary", "_content", "_counts",
        "_deferred", "_failed", "_last", "_linked", "_number", "_open", "_owed", "_request_model", "_resume", "_slot",
        "_steers", "_step", "_tree", "_ts", "_undone", "_working", "damage", "facts", "places", "stale",
        "threads",
    )  # fmt: skip
    cli: ClassVar[str] = "kimi"

    def __init__(self, conversation: str | None = None, root: str | None = None, agent: str = "main") -> None:
        self.facts = Facts(conversation=conversation, project=root)
        self.damage: list[Damage] = []
        self.stale = self._linked = self._appends = self._working = self._failed = False
        self.places = self._make_places()
        self._tree = Tree(lambda: self.places)
        self.threads: dict[str, Tree] = {"main": self._tree}
        self._agent, self._number, self._last = agent, 0, (-1, 0)
        self._ts: int | None = None
        #: How often a record without id and time was seen in this pass; keys of records that repeat another's event.
        self._counts: dict[str, int] = {}
        self._absorbed: set[str] = set()
        self._request_model: str | None = None
        self._alias: str | None = None
        #: The step at work, its open calls, its last node, the node that a call after a result hangs on.
        self._step: str | None = None
        self._open: set[str] = set()
        self._content = self._resume = NONE
        #: Usage that one record of this step gave and its twin still owes.
        self._owed: list[tuple[bool, tuple[int, ...]]] = []
        #: By call id: how its result names subagents.
        self._agents: dict[str, re.Pattern[str]] = {}
        #: The newest turn.prompt until it reaches the context: its id, its words, whether it has an anchor.
        self._slot: tuple[str | None, str, bool] | None = None
        self._steers: list[str] = []
        #: Messages that wait for open calls: key, node, number of the anchor.
        self._deferred: list[tuple[str, int, int]] = []
        #: The nodes before the prompts that can be undone, and what no undo goes behind.
        self._anchors: list[int] = []
        self._boundary = NONE
        self._undone: Any = None

    def _make_places(self) -> Places:
        conversation, store = self.facts.conversation, None
        if conversation:  # the look-behind: else a long text without a break is searched from each of its characters
            store = rf"(?<!{_BREAK}){_BREAK}*/sessions/wd_[a-z0-9._-]+_[0-9a-f]{{12}}/{re.escape(conversation)}"
        return Places(self.facts.project, conversation, store, "/sessions/wd_")

    def feed(self, source: int, number: int, offset: int, raw: bytes) -> None:
        try:
            record = parse(raw)
            events, self._ts = events_of(record, raw), milliseconds(record.get("time", record.get("created_at")))
        except (NotARecord, RecursionError, OverflowError) as error:
            if raw.strip(b" \t\r"):
                what = {RecursionError: "nested too deep", OverflowError: "a number out of range"}.get(type(error))
                self.damage.append(Damage(number, offset, len(raw), what or str(error)))
            return
        self.damage += nul_damage(number, offset, raw) + glue_damage(number, offset, raw, record)
        if source != self._last[0] or number <= self._last[1]:  # another pass, or another generation of the file
            self._counts.clear()
            self._slot = None
        self._last, self._number = (source, number), number
        for event in events:
            event.source, event.line = source, number
        self._note_facts(record)
        self._read(record, events)

    def _read(self, record: dict[str, Any], events: list[Event]) -> None:
        kind = record["type"]
        if kind == "context.append_loop_event":
            self._loop(_dict(record.get("event")), events)
        elif kind == "context.append_message":
            self._message(_dict(record.get("message")), events)
        elif kind == "turn.prompt":
            self._prompt(record, events)
        elif kind == "turn.steer" and self._working:
            self._steers.append(_words(record.get("input")))
        elif kind == "usage.record":
            self._usage(events, False, record.get("usageScope") in (None, "turn"))
        elif kind in ("context.undo", "agent.switched"):
            self._undo(kind, record.get("count", record.get("turns")))
        elif kind in ("context.apply_compaction", "context.clear"):
            self._close()
            if self._place(self._key(kind, events), events) != NONE:
                self._anchors, self._boundary = [], self._tree.leaf
        elif events and not (kind == "turn.ended" and self._failed):  # the interruption of the step said it
            self._failed = kind == "turn.step.interrupted" and events[0].kind == "error"
            self._place(self._key(kind, events), events)
        if kind in ("turn.ended", "turn.cancel"):
            self._working = False

    # -- placing lines ----------------------------------------------------------------------------

    def _key(self, kind: str, events: list[Event]) -> str:
        """The identity of a record without an id: its time and its content."""
        return self._timed(kind, _hash(*[t for e in events for t in (e.kind, e.content)]))

    def _timed(self, kind: str, what: str) -> str:
        """`what` at its time; where the record has none, which of those alike in this pass it is."""
        base = f"{kind}\0{self._ts}\0{what}"
        if self._ts is not None:
            return base
        self._counts[base] = self._counts.get(base, 0) + 1
        return f"{base}\0{self._counts[base]}"

    def _place(self, key: str, events: list[Event], prompt: bool = False, parent: int | None = None) -> int:
        """Adds a line at the tip, or after `parent`. A known key adds nothing (NONE)."""
        parent = self._tree.leaf if parent is None else parent
        node = self._tree.add(key, None, events, line=self._number, prompt=prompt, parent_node=parent)
        if node != NONE:
            self._linked, self._undone = True, None
            if events[0].kind not in ("tool_result", "usage"):
                self._resume = NONE
        return node

    def _close(self, after: str | None = None) -> None:
        """No call is open any more: what waited for them are steps now, behind the result with the key `after`."""
        if self._deferred:
            key, _, anchor = self._deferred[0]
            if after is not None:
                self._tree.move(key, after)
                self._anchors[anchor] = self._tree.keys[after]
            self._tree.leaf, self._resume = self._deferred[-1][1], NONE
            self._deferred.clear()
        self._open.clear()

    def _undo(self, kind: str, turns: Any) -> None:
        """Takes the last prompts and all after them off the branch, not past a compaction or clear. `agent.switched`
        comes with a `context.undo` that says the same to older readers."""
        key, told = self._timed(kind, f"{turns!r:.40}"), self._undone
        self._undone = turns if kind == "agent.switched" else None
        known = key in self._absorbed
        self._absorbed.add(key)
        if known or (kind == "context.undo" and told is not None and told == turns):
            return
        if isinstance(turns, int) and not isinstance(turns, bool) and turns > 0:
            self._close()
            self._drop_undelivered()
            kept = len(self._anchors) - turns
            self._tree.rewind(self._anchors[kept] if kept >= 0 else self._boundary)
            del self._anchors[max(kept, 0) :]
            self._content = self._resume = NONE

    def _drop_undelivered(self) -> None:
        """A prompt that never came into the context is no turn that an undo counts."""
        if self._slot is not None and self._slot[2] and self._appends and self._anchors:
            self._anchors.pop()
        self._slot = None

    # -- messages ---------------------------------------------------------------------------------

    def _prompt(self, record: dict[str, Any], events: list[Event]) -> None:
        """A prompt's event stands here; its delivery into the context, the message that follows, is absorbed."""
        self._close()
        self._drop_undelivered()
        if events:
            before, prompt = self._tree.leaf, events[0].kind == "user_msg"
            anchored = self._place(self._key("turn.prompt", events), events, prompt) != NONE and prompt
            if anchored:
                self._anchors.append(before)
                self.facts.entitle(events[0].content, 0)
            self._slot = (_string(record.get("promptId")), _words(record.get("input")), anchored)

    def _message(self, message: dict[str, Any], events: list[Event]) -> None:
        if not events:
            return
        key = self._key("message", events)
        if message.get("role") != "user":
            for event in events:
                event.group, event.model = key, self._model() if message.get("role") == "assistant" else None
            self._place(key, events)
            return
        prompt, slot = events[0].kind == "user_msg", self._slot
        own, words = _string(message.get("id")), _words(message.get("content"))
        self._appends = self._appends or prompt
        if key in self._absorbed or (slot is not None and (own == slot[0] if own and slot[0] else words == slot[1])):
            self._slot = None
            self._absorbed.add(key)
            return
        if words in self._steers:
            self._steers.remove(words)
            for event in events:
                event.mark = "steering" if prompt else event.mark
        before = self._tree.leaf
        if prompt and self._open:
            before = self._deferred[-1][1] if self._deferred else before
            node = self._tree.add(key, None, events, line=self._number, prompt=True, leaf=False, parent_node=before, side=True)
            if node != NONE:
                self._linked = True
                self._deferred.append((key, node, len(self._anchors)))
        else:
            node = self._place(key, events, prompt)
        if prompt and node != NONE:
            self._anchors.append(before)
            self.facts.entitle(events[0].content, 0)

    # -- steps ------------------------------------------------------------------------------------

    def _loop(self, event: dict[str, Any], events: list[Event]) -> None:
        kind, uuid = event.get("type"), _string(event.get("uuid"))
        if kind == "step.begin":
            self._close()
            self._owed.clear()
            self._content = self._resume = NONE
            self._step, self._working, self._failed, self._slot = uuid, True, False, None
        elif kind == "step.end":
            self._close()
            self._step, self._working = uuid or self._step, event.get("finishReason") in ("tool_use", "tool_calls")
            self._usage(events, True, True)
        elif kind == "tool.call":
            self._call(events)
        elif kind == "tool.result":
            self._result(events)
        else:
            only = events[0]
            if kind == "content.part":
                only.model, only.group = self._model(), only.group or self._step
            self._content = self._place(f"part\0{uuid}" if uuid else self._key(f"{kind}", events), events)

    def _call(self, events: list[Event]) -> None:
        only, call = events[0], events[0].tool_id
        key = f"call\0{only.group}\0{call}" if call and only.group else self._key("call", events)
        only.model, only.group = self._model(), only.group or self._step
        parent = self._resume if self._resume != NONE and only.group == self._step else None
        node = self._place(key, events, parent=parent)
        if call and only.tool in _AGENT_IDS:
            self._agents[call] = _AGENT_IDS[only.tool]
        if node != NONE:
            self._content = node
            if call:
                self._open.add(call)

    def _result(self, events: list[Event]) -> None:
        only, call = events[0], events[0].tool_id
        key = self._timed("result", call) if call else self._key("result", events)
        if self._place(key, events) != NONE and self._resume == NONE:
            self._resume = self._content
        if call in self._agents:
            for agent in self._agents[call].findall(only.content or ""):
                self.facts.subagents.setdefault(agent, call)
        if call in self._open:
            self._open.discard(call)
            if not self._open:
                self._close(key)

    def _usage(self, events: list[Event], ended: bool, paired: bool) -> None:
        """`step.end` and `usage.record` report the same request, in either order: the first one counts."""
        if not events or events[0].tokens is None:
            return
        event, tokens = events[0], events[0].tokens
        line = self._timed("usage", f"{ended}\0{tokens}")
        known = line in self._absorbed
        self._absorbed.add(line)
        if paired and (not ended, tokens) in self._owed:
            self._owed.remove((not ended, tokens))
            return
        if paired:
            self._owed.append((ended, tokens))
        if known:
            return
        event.usage_key, event.model = f"{self._step}\0{line}", self._model()
        if self._step is None or self._ts is None:  # then only its place tells it from the requests of others
            event.usage_key += f"\0{self.facts.conversation}\0{self._agent}"
        if self._tree.usage(event.usage_key, event, 0):
            self._place(f"usage\0{event.usage_key}", events)

    # -- facts ------------------------------------------------------------------------------------

    def _model(self) -> str | None:
        return self._request_model or self._alias

    def _note_facts(self, record: dict[str, Any]) -> None:
        kind, facts, model = record["type"], self.facts, _string(record.get("model"))
        facts.seen(self._ts)
        facts.first_ts = self._ts if facts.first_ts is None else facts.first_ts
        if kind == "metadata":
            version = text_of(record.get("protocol_version"))
            warning = f"protocol {version:.40} is not a known one: read like 1.5"
            if not _KNOWN_PROTOCOL.fullmatch(version) and warning not in facts.warnings:
                facts.warnings.append(warning)
        elif kind in ("config.update", "profile.bind"):
            self._alias = _string(record.get("modelAlias")) or self._alias
            named = _CWD.search(_string(record.get("systemPrompt")) or "")
            disclosed = _dict(record.get("environmentDisclosure")).get("cwd")
            self._note_place(record.get("cwd") or disclosed or (named and named.group(1)), True)
        elif kind == "usage.record":
            self._alias = model or self._alias
        elif kind == "llm.request":
            self._request_model = model or self._request_model
        elif kind == "context.append_loop_event":
            self._note_place(_dict(_dict(record.get("event")).get("display")).get("cwd"), False)
        elif kind == "subagent.spawned":
            agent, call = _string(record.get("subagentId")), _string(record.get("parentToolCallId"))
            if agent and call:
                facts.subagents.setdefault(printable(agent), call)
        facts.model = self._model()

    def _note_place(self, place: Any, moved: bool) -> None:
        """The first directory that is named is the project; others that settings name are where it moved."""
        path, facts = printable(_string(place) or ""), self.facts
        if path and facts.project is None:
            facts.project, self.stale = path, self._linked
            self.places = self._make_places()
        elif path and moved and path != facts.project and path not in facts.directories:
            facts.directories.append(path)

    def flush(self, assign: Callable[[str, Event], int]) -> dict[str, Delta]:
        return {"main": self._tree.flush(lambda event: assign("main", event))}
