"""The tree of a conversation: causal order, links, turns, and which branch is active.

Lines are nodes; the events of a line hang on its node. The tree is kept in flat arrays (about 100 bytes an
event, no content), so that a gigabyte of transcript can be followed in bounded memory. `flush` works on what is
new; only where a late line changes the past (a parent that comes after its child, a late parallel result) is
everything derived again, so that the outcome never depends on the pieces in which a file was read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import intern

from beyond.event import LINK_SIZE, canonical, content_digest, make_link
from beyond.ingest.base import Event
from beyond.ingest.branches import CALL, CODE, IS_LINKED, NONE, RESULT, WAITING, Branches

_UNKNOWN = bytes(LINK_SIZE)


@dataclass(slots=True)
class Row:
    """An event with everything derived for it."""

    seq: int
    parent_seq: int | None
    turn: int
    active: bool
    link: bytes | None
    result_seq: int | None
    is_error: bool | None
    tokens: tuple[int, int, int, int] | None
    event: Event | None = None


@dataclass(slots=True)
class Delta:
    """`fresh` events in causal order, and rows of older ones whose derived columns changed."""

    fresh: list[Row] = field(default_factory=list)
    changed: list[Row] = field(default_factory=list)


class Tree(Branches):
    """One thread of conversation (the main one, or a subagent's)."""

    # -- feeding ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._parent)

    def add(
        self,
        key: str | None,
        parent: str | None,
        events: Iterable[Event],
        *,
        line: int,
        prompt: bool = False,
        leaf: bool = True,
        parent_node: int | None = None,
        guess: bool = False,
        side: bool = False,
    ) -> int:
        """Adds a line. `parent` is its parent's key (None: a root), `parent_node` the parent itself. `guess`: a line
        without a usable parent goes on from the line before it. `leaf`: the conversation goes on from here. `side`: it
        is a step of the branch it hangs on though nothing hangs on it. A key seen before adds nothing (returns -1)."""
        if key is not None:
            known = self.keys.get(key)
            if known is not None:
                if parent is not None:
                    self._aliases.setdefault(known, []).append(parent)
                return NONE
        node = len(self._parent)
        if key is not None:
            self.keys[key] = node
        if parent_node is not None:
            up = parent_node
        elif parent is None:
            up = node - 1 if guess else NONE
        else:
            up = self.keys.get(parent, WAITING)
            if up == WAITING:
                self.waiting[node] = parent
        self._parent.append(up)
        self._first.append(len(self._kind))
        self._prompt.append(prompt)
        self._side.append(side)
        self._tail.append(NONE)
        self._turns.append(0)
        self._line.append(line)
        for event in events:
            self._append(event, node)
        self._child.append(NONE)
        self._leafable.append(leaf)
        if leaf:
            self.leaf, self._rewound = node, False
            if up >= 0:
                self._child[up] = node
        return node

    def move(self, key: str, parent: str | None) -> None:
        """Hangs a line on another parent: where it belongs was learned only now."""
        node = self.keys[key]
        up = self.keys.get(parent, NONE) if parent is not None else NONE
        if up != NONE and up != self._parent[node]:
            self._parent[node] = up
            self._side[node] = 0
            if node < self._flushed_nodes:
                self._full = True

    def loose(self, event: Event, line: int) -> None:
        """Adds an event that is on no branch (an unknown record): it hangs after the line before it."""
        self.add(None, None, (event,), line=line, leaf=False, guess=True)

    def _append(self, event: Event, node: int) -> None:
        index = len(self._kind)
        code = CODE[event.kind]  # type: ignore[index]
        self._kind.append(code)
        self._node.append(node)
        self._seq.append(0)
        self._prev.append(NONE)
        self._turn.append(0)
        self._active.append(0)
        self._result.append(NONE)
        self._error.append(0 if event.is_error is None else 2 if event.is_error else 1)
        group = NONE
        if IS_LINKED[code]:
            content = canonical(event.kind, event.content, self._places(), event.value, event.canonical)
            self._digest += content_digest(event.kind, event.tool if code == CALL else None, content)
            if code == CALL:
                group = self._open_call(event, index)
            elif code == RESULT and event.tool_id is not None:
                self._results.setdefault(event.tool_id, []).append(index)
                call = self._call_of(event.tool_id, index)
                if call != NONE:
                    event.tool = self._tools.get(call)
                    if self._result[call] == NONE and self._used[self._group[call]]:
                        self._full = True  # a parallel result that came after what it caused
        else:
            self._digest += bytes(LINK_SIZE)
        self._link += bytes(LINK_SIZE)
        self._group.append(group)
        if event.tokens is not None:
            self._tokens[index] = event.tokens
        self._pending.append(event)

    def _open_call(self, event: Event, index: int) -> int:
        name = event.group or f"\0{index}"
        group = self._groups.get(name, NONE)
        if group == NONE:
            group = self._groups[name] = len(self._group_calls)
            self._group_calls.append([])
            self._group_results.append([])
            self._used.append(0)
        self._group_calls[group].append(index)
        if event.tool_id is not None:
            early = self._results.get(event.tool_id)
            if early and event.tool_id not in self._calls and early[0] < self._flushed_events:
                self._full = True
            self._calls.setdefault(event.tool_id, []).append(index)
            if event.tool is not None:
                self._tools[index] = intern(event.tool)
        return group

    def _call_of(self, tool_id: str, result: int) -> int:
        """The call that a result answers: the newest one of its id before it, else the first after it."""
        calls = self._calls.get(tool_id)
        if not calls:
            return NONE
        before = bisect_left(calls, result)
        return calls[before - 1] if before else calls[0]

    def usage(self, key: str, event: Event, offset: int) -> bool:
        """Counts the usage of one API message once. True when `event` is the first of `key` and has to be added,
        as number `offset` of its line's events; else its counts are merged, the larger one of each field."""
        index = self._usage.get(key)
        if event.tokens is None:
            return False
        if index is None:
            self._usage[key] = len(self._kind) + offset
            return True
        old = self._tokens[index]
        new = tuple(max(a, b) for a, b in zip(old, event.tokens, strict=True))
        if new != old:
            self._tokens[index] = new  # type: ignore[assignment]
            self._touched.add(index)
        return False

    def rewind(self, node: int) -> None:
        """The conversation goes on from `node`; lines after it are no longer on the active branch."""
        self.leaf, self._rewound = node, True
        self._full = True

    # -- deriving ---------------------------------------------------------------------------------

    def flush(self, assign: Callable[[Event], int]) -> Delta:
        """Derives what is new and returns it; `assign` gives each fresh event its seq, causes first."""
        first_event, first_node = self._flushed_events, self._flushed_nodes
        self._resolve(first_node)
        full = self._full and first_event > 0
        before = self._snapshot() if full else None
        if full:
            self._link = bytearray(len(self._link))
            for index in range(len(self._result)):
                self._result[index] = NONE
        start = 0 if full else first_node
        order = list(self._topological(start))
        fresh: list[int] = []
        for node in order:
            self._derive_node(node)
            for index in self._events_of(node):
                if index >= first_event:
                    fresh.append(index)
        for index in fresh:
            self._seq[index] = assign(self._pending[index - first_event])
        self._pair_results(0 if full else first_event)
        for node in order:
            for index in self._events_of(node):
                if IS_LINKED[self._kind[index]]:
                    self._derive_link(index)
        self._derive_active(first_node, full)
        touched = self._touched
        if before is not None:
            touched = touched | set(self._differences(before, first_event))
        delta = Delta([self._row(i, self._pending[i - first_event]) for i in fresh])
        delta.changed = [self._row(i, None) for i in sorted(touched) if i < first_event]
        self._pending = []
        self._touched = set()
        self._full = False
        self._flushed_events = len(self._kind)
        self._flushed_nodes = len(self._parent)
        return delta

    def _resolve(self, first_node: int) -> None:
        for node, parent in list(self.waiting.items()):
            up = self.keys.get(parent, WAITING)
            if up != WAITING:
                del self.waiting[node]
            else:
                up = self._before(node)
            if self._parent[node] != up:
                self._parent[node] = up
                if up >= 0 and self._leafable[node]:
                    self._child[up] = max(self._child[up], node)
                if node < first_node:
                    self._full = True

    def _before(self, node: int) -> int:
        """The nearest earlier line that doesn't itself descend from `node`: where a gap is joined."""
        for candidate in range(node - 1, max(-1, node - 200), -1):
            walk, steps = candidate, 0
            while walk >= 0 and walk != node and steps < 10_000:
                walk, steps = self._parent[walk], steps + 1
            if walk != node:
                return candidate
        return NONE

    def _topological(self, start: int) -> Iterator[int]:
        """Nodes from `start` on, parents before children, else in file order. A cycle is cut at the node
        where it is entered."""
        total = len(self._parent)
        state = bytearray(total - start)  # 0 new, 1 being climbed, 2 done
        for node in range(start, total):
            if state[node - start]:
                continue
            path = [node]
            state[node - start] = 1
            up = self._parent[node]
            while up >= start and not state[up - start]:
                path.append(up)
                state[up - start] = 1
                up = self._parent[up]
            if up >= start and state[up - start] == 1:
                top = path[-1]
                self._parent[top] = NONE
                self.cycles.append(top)
            for item in reversed(path):
                state[item - start] = 2
                yield item

    def _derive_node(self, node: int) -> None:
        up = self._parent[node]
        tail = self._tail[up] if up >= 0 else NONE
        turn = (self._turns[up] if up >= 0 else 0) + self._prompt[node]
        self._turns[node] = turn
        for index in self._events_of(node):
            self._turn[index] = turn
            self._prev[index] = tail
            if IS_LINKED[self._kind[index]]:
                tail = index
        self._tail[node] = tail

    def _pair_results(self, start: int) -> None:
        """Finds each result's call: the call causes it, whatever line the result hangs on. First result counts."""
        if start == 0:
            for results in self._group_results:
                results.clear()
            ids: Iterable[str] = list(self._results)
        else:
            ids = [e.tool_id for e in self._pending if e.kind == "tool_result" and e.tool_id is not None]
        for tool_id in dict.fromkeys(ids):
            for index in self._results[tool_id]:
                call = self._call_of(tool_id, index)
                if call != NONE and (index >= start or start == 0):
                    self._pair(call, index)

    def _pair(self, call: int, result: int) -> None:
        self._prev[result] = call
        group = self._group[result] = self._group[call]
        if self._result[call] == NONE:
            self._result[call] = result
            self._error[call] = self._error[result] or 1
            self._group_results[group].append(result)
            self._touched.add(call)

    def causes(self, index: int) -> list[int]:
        """The causal parents: all results of the calls before an event, or the event before it on its branch."""
        prev = self._prev[index]
        if prev == NONE:
            return []
        kind = self._kind[index]
        if kind != RESULT and self._kind[prev] == RESULT:
            group = self._group[prev]
            if group != NONE and group != self._group[index]:
                self._used[group] = 1
                members = self._group_results[group]
                return members if prev in members else [*members, prev]
        return [prev]

    def _derive_link(self, index: int) -> None:
        size = LINK_SIZE
        causes = self.causes(index)
        if len(causes) == 1:  # nearly always: one cause, whose link is known
            at = causes[0] * size
            cause = bytes(self._link[at : at + size])
            if cause != _UNKNOWN and causes[0] != index:
                at = index * size
                self._link[at : at + size] = make_link((cause,), bytes(self._digest[at : at + size]))
                return
        stack = [index]
        climbing: set[int] = set()
        while stack:
            top = stack[-1]
            causes = self.causes(top)
            missing = [c for c in causes if not any(self._link[c * size : c * size + size]) and c not in climbing]
            if missing and top not in climbing:
                climbing.add(top)
                stack.extend(missing)
                continue
            stack.pop()
            climbing.add(top)
            parents = [bytes(self._link[c * size : c * size + size]) for c in causes if c != top]
            link = make_link(parents, bytes(self._digest[top * size : top * size + size]))
            self._link[top * size : top * size + size] = link

    # -- results ----------------------------------------------------------------------------------

    def _snapshot(self) -> tuple[bytes, ...]:
        count = self._flushed_events
        return (
            bytes(self._link),
            self._prev.tobytes(),
            self._turn.tobytes(),
            bytes(self._active[:count]),
            self._result.tobytes(),
            bytes(self._error),
        )

    def _differences(self, before: tuple[bytes, ...], count: int) -> Iterator[int]:
        link, prev_b, turn_b, active, result_b, error = before
        prev, turn, result = array("i", prev_b), array("i", turn_b), array("i", result_b)
        size = LINK_SIZE
        for i in range(count):
            if (
                link[i * size : i * size + size] != self._link[i * size : i * size + size]
                or prev[i] != self._prev[i]
                or turn[i] != self._turn[i]
                or active[i] != self._active[i]
                or result[i] != self._result[i]
                or error[i] != self._error[i]
            ):
                yield i

    def _row(self, index: int, event: Event | None) -> Row:
        prev, result, error = self._prev[index], self._result[index], self._error[index]
        link = None
        if IS_LINKED[self._kind[index]]:
            link = bytes(self._link[index * LINK_SIZE : (index + 1) * LINK_SIZE])
        return Row(
            self._seq[index],
            self._seq[prev] if prev != NONE else None,
            self._turn[index],
            bool(self._active[index]),
            link,
            self._seq[result] if result != NONE else None,
            None if error == 0 else error == 2,
            self._tokens.get(index),
            event,
        )

    def lines_waiting(self) -> list[int]:
        """Line numbers of lines whose parent is missing."""
        return [self._line[node] for node in self.waiting]

    def lines_in_cycles(self) -> list[int]:
        """Line numbers at which a circle of parents was cut."""
        return [self._line[node] for node in self.cycles]
