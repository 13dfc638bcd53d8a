"""The arrays of a conversation's tree, and which branch of it is active."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from beyond.event import KINDS, LINKED, Places
from beyond.ingest.base import Event

CODE = {kind: code for code, kind in enumerate(KINDS)}
IS_LINKED = bytes(kind in LINKED for kind in KINDS)
CALL, RESULT = CODE["tool_call"], CODE["tool_result"]
NONE, WAITING = -1, -2


class Branches:
    """Lines as nodes, their events, and the walk from the leaf to the root."""

    def __init__(self, places: Callable[[], Places]) -> None:
        self._places = places
        self.keys: dict[str, int] = {}
        self.leaf = NONE
        self._rewound = False
        self.pinned: str | None = None
        #: Node indexes whose parent is in no line read so far.
        self.waiting: dict[int, str] = {}
        self.cycles: list[int] = []
        self._aliases: dict[int, list[str]] = {}
        # nodes
        self._parent = array("i")
        self._first = array("i")
        self._prompt = bytearray()
        self._side = bytearray()
        self._tail = array("i")
        self._turns = array("i")
        self._line = array("q")
        self._child = array("i")  # newest line that hangs on this one and can carry the conversation on
        self._leafable = bytearray()
        # events
        self._kind = bytearray()
        self._node = array("i")
        self._digest = bytearray()
        self._link = bytearray()
        self._seq = array("i")
        self._prev = array("i")
        self._turn = array("i")
        self._active = bytearray()
        self._group = array("i")
        self._result = array("i")
        self._error = bytearray()  # 0 unknown, 1 no, 2 yes
        # calls and their results
        self._calls: dict[str, list[int]] = {}  # an id may be used again after a rewind
        self._tools: dict[int, str] = {}
        self._groups: dict[str, int] = {}
        self._group_calls: list[list[int]] = []
        self._group_results: list[list[int]] = []
        self._used: bytearray = bytearray()
        self._results: dict[str, list[int]] = {}
        self._tokens: dict[int, tuple[int, int, int, int]] = {}
        self._usage: dict[str, int] = {}
        # since the last flush
        self._pending: list[Event] = []
        self._flushed_nodes = 0
        self._flushed_events = 0
        self._touched: set[int] = set()
        self._full = False
        self._leaf_done = NONE

    def _events_of(self, node: int) -> range:
        last = self._first[node + 1] if node + 1 < len(self._first) else len(self._kind)
        return range(self._first[node], last)

    # -- the active branch ------------------------------------------------------------------------

    def _leaf_node(self) -> int:
        if self.pinned is not None:
            node = self.keys.get(self.pinned, NONE)
            if node != NONE:
                return node
        leaf, steps = self.leaf, 0
        while not self._rewound and leaf >= 0 and steps < len(self._parent):  # file order is not causal
            child = self._child[leaf]
            if child == NONE or self._parent[child] != leaf:
                break
            leaf, steps = child, steps + 1
        return leaf

    def _derive_active(self, first_node: int, full: bool) -> None:
        leaf = self._leaf_node()
        old = self._leaf_done
        if not full and old != NONE and leaf != old:
            walk = leaf
            while walk >= first_node:
                walk = self._parent[walk]
            full = walk != old
        elif leaf == old and len(self._parent) == first_node:
            return
        if full or old == NONE:
            was = bytes(self._active)
            self._active = bytearray(len(self._active))
            stop = NONE
        else:
            was = b""
            stop = old
        self._walk_active(leaf, stop)
        for node in range(first_node if stop != NONE else 0, len(self._parent)):
            self._adopt_loose(node)
        self._leaf_done = leaf
        for index in range(min(len(was), self._flushed_events)):
            if was[index] != self._active[index]:
                self._touched.add(index)

    def _walk_active(self, leaf: int, stop: int) -> None:
        seen: set[int] = set()
        queue = [leaf]
        while queue:
            node = queue.pop()
            while node >= 0 and node != stop and node not in seen:
                seen.add(node)
                for index in self._events_of(node):
                    self._activate(index)
                for alias in self._aliases.get(node, ()):
                    queue.append(self.keys.get(alias, NONE))
                node = self._parent[node]

    def _activate(self, index: int) -> None:
        self._active[index] = 1
        group = self._group[index]
        if group != NONE:
            for member in (*self._group_calls[group], *self._group_results[group]):
                if not self._active[member]:
                    self._active[member] = 1
                    if member < self._flushed_events:
                        self._touched.add(member)

    def _adopt_loose(self, node: int) -> None:
        """Events beside the branch (usage, unknown records, a late side result's company) follow what they hang on."""
        for index in self._events_of(node):
            if self._active[index]:
                continue
            if IS_LINKED[self._kind[index]] and self._kind[index] != RESULT and not self._side[node]:
                continue
            prev = self._prev[index]
            if self._kind[index] == RESULT:
                if prev != NONE and self._kind[prev] == CALL and self._active[prev]:
                    self._active[index] = 1
            elif self._same_branch(node):
                self._active[index] = 1

    def _same_branch(self, node: int) -> bool:
        """Whether a line without linked events of its own hangs on the active branch, or its own events are active."""
        own = [self._active[index] for index in self._events_of(node) if IS_LINKED[self._kind[index]]]
        if own and not self._side[node]:
            return any(own)
        up = self._parent[node]
        steps = 0
        while up >= 0 and steps < 10_000:
            events = self._events_of(up)
            if len(events):
                return any(self._active[i] for i in events)
            up, steps = self._parent[up], steps + 1
        return up == NONE
