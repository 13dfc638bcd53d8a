"""Which lines of a transcript a fork keeps, what each hangs on, and which calls have to be closed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from beyond.surgery.claude.survey import NONE, SNAPSHOTS, TREE_TYPES, Node, Survey


@dataclass(slots=True)
class Closing:
    """An open call, and the line that holds it."""

    node: int
    tool_id: str


@dataclass(slots=True)
class Choice:
    """What is kept of a survey."""

    #: The kept lines' parents by their index: another kept line, or NONE.
    parent: dict[int, int] = field(default_factory=dict)
    #: Parts that go, of lines that are kept in part.
    trimmed: dict[int, frozenset[int]] = field(default_factory=dict)
    #: Parents of boundaries, where the old one is not kept.
    logical: dict[int, int] = field(default_factory=dict)
    leaf: int = NONE
    closings: list[Closing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: The newest time of a kept line.
    newest: str = ""


class _Chooser:
    def __init__(self, found: Survey, cut: tuple[int, int] | None, without: frozenset[str]) -> None:
        self._found, self._nodes, self._cut = found, found.nodes, cut
        self._without = without
        self._keep = bytearray(len(found.nodes))
        self.choice = Choice()

    def _on(self, rule: str) -> bool:
        return rule not in self._without

    def _kept(self, node: Node) -> bool:
        return any(part >= 0 for part in node.kept)

    # -- the leaf ---------------------------------------------------------------------------------

    def _find_leaf(self) -> int:
        """The line of the step that the fork ends with."""
        nodes = self._nodes
        if self._cut is not None:
            found = self._found.at.get(self._cut, NONE)
            if found != NONE:
                return found
        below = bytearray(len(nodes))
        tips = [i for i, node in enumerate(nodes) if self._kept(node) and not node.thread]
        for index in tips:
            up = nodes[index].up
            while up != NONE and not below[up]:
                below[up] = 1
                up = nodes[up].up
        tips = [i for i in tips if not below[i]]
        depth = {i: self._depth(i) for i in tips}
        # A summary, an error, a remark may hang beside the branch; a result beside it is never its deepest line.
        steps = [i for i in tips if not nodes[i].loose]
        last = max(tips, key=lambda i: nodes[i].place, default=NONE)
        best = max(steps, key=lambda i: depth[i], default=NONE)
        if last == NONE or best == NONE or nodes[last].loose:
            return last
        return best

    def _depth(self, index: int) -> int:
        depth = 0
        while index != NONE:
            index, depth = self._nodes[index].up, depth + 1
        return depth

    def _off_boundary(self, leaf: int) -> int:
        """A fork that ends at a boundary: its summary is the line after it."""
        nodes = self._nodes
        if leaf == NONE or not nodes[leaf].boundary or not self._on("move-off-boundary"):
            return leaf
        for index, node in enumerate(nodes):
            if node.summary and node.up == leaf:
                node.kept, node.dropped = node.kept | node.dropped, frozenset()
                self.choice.notes.append("the cut is at a compaction: moved to its summary")
                return index
        nodes[leaf].kept, nodes[leaf].dropped = frozenset(), nodes[leaf].kept
        nodes[leaf].loose = False
        self.choice.notes.append("the cut is at a compaction that has no summary: moved to the step before it")
        return nodes[leaf].up

    # -- the branch -------------------------------------------------------------------------------

    def _branch(self, leaf: int) -> list[int]:
        """The lines from the leaf to the root. Older versions repeat the lines that a compaction preserves after its
        summary: with the summary in the past they stand there, once."""
        plain = self._climb(leaf, aliases=False)
        if any(self._nodes[i].alias is not None for i in plain):
            other = self._climb(leaf, aliases=True)
            on = set(plain)
            if any(self._nodes[i].summary and self._kept(self._nodes[i]) and i not in on for i in other):
                return other
        return plain

    def _climb(self, leaf: int, *, aliases: bool) -> list[int]:
        nodes, branch, seen = self._nodes, [], set()
        names = {node.uuid: i for i, node in enumerate(nodes)} if aliases else {}
        walk = leaf
        while walk != NONE and walk not in seen:
            seen.add(walk)
            branch.append(walk)
            node = nodes[walk]
            up = names.get(node.alias, node.up) if aliases and node.alias is not None else node.up
            if aliases:
                while up in seen and node.boundary:
                    up = nodes[up].up
            walk = up
        return branch

    def _follow(self, branch: Iterable[int]) -> None:
        """Keeps what the plan keeps of the branch; lines without steps belong to the step before them."""
        sound = True
        for index in reversed(list(branch)):
            node = self._nodes[index]
            if node.events:
                sound = self._kept(node) or (node.loose and sound)
                keep = sound and (node.kind in TREE_TYPES or node.queued is not None)
            else:
                keep = sound and node.kind in TREE_TYPES
                if node.kind == "attachment" and node.subtype in SNAPSHOTS and self._on("drop-snapshots"):
                    keep = False
            self._keep[index] = keep

    def _beside(self, branch: set[int]) -> None:
        """Keeps what is beside the branch: results of kept calls, and subagents in the same file."""
        nodes = self._nodes
        calls = {tool_id for i, n in enumerate(nodes) if self._keep[i] for part, tool_id in n.calls if part in n.kept}
        for index, node in enumerate(nodes):
            if index in branch:
                continue
            if not self._on("ancestors-only"):
                self._everything(index, node)
            elif node.thread:
                self._keep[index] = self._kept(node) or (not node.events and self._hangs_on_kept(index))
            elif self._kept(node):
                self._keep[index] = not node.loose and node.kind in TREE_TYPES
            elif not self._on("side-results-cut") and any(tool_id in calls for _, tool_id in node.results):
                self._everything(index, node)

    def _everything(self, index: int, node: Node) -> None:
        if node.kind in TREE_TYPES:
            node.kept, node.dropped = node.kept | node.dropped, frozenset()
            self._keep[index] = True

    def _hangs_on_kept(self, index: int) -> bool:
        node = self._nodes[index]
        return node.kind in TREE_TYPES and node.up != NONE and bool(self._keep[node.up])

    # -- what becomes of them ---------------------------------------------------------------------

    def _trim(self) -> None:
        """Takes the dropped parts and empty texts out of lines; a line without any other part goes."""
        empty = 0
        for index, node in enumerate(self._nodes):
            if not self._keep[index] or not node.events or node.kind not in ("user", "assistant") or node.queued is not None:
                continue
            if not self._kept(node):  # a remark that the plan knows nothing of
                continue
            gone = frozenset(part for part in range(node.parts) if part not in node.kept)
            if not self._on("trim-parts"):
                gone = frozenset()
            gone |= node.blank
            if len(gone) >= node.parts:
                self._keep[index] = 0
                empty += 1
            elif gone:
                self.choice.trimmed[index] = gone
        if empty:
            self.choice.notes.append(f"{empty} message{'s' * (empty != 1)} without any text left out")

    def _relink(self, branch: list[int], leaf: int) -> None:
        nodes, parent = self._nodes, self.choice.parent
        last = NONE
        for index in reversed(branch):
            node = nodes[index]
            if not self._keep[index]:
                continue
            if node.boundary:
                self.choice.logical[index] = last
                parent[index] = NONE
            else:
                parent[index] = last
            last = index
        self.choice.leaf = last
        on = set(branch)
        for index, node in enumerate(nodes):
            if self._keep[index] and index not in on:
                up = node.up
                while up != NONE and not self._keep[up]:
                    up = nodes[up].up
                parent[index] = NONE if node.boundary else up
                if node.boundary:
                    self.choice.logical[index] = up

    def _close(self) -> None:
        """Finds the kept calls without a kept result."""
        if not self._on("complete-calls"):
            return
        answered: set[str] = set()
        calls: list[Closing] = []
        for index in self.choice.parent:
            node, gone = self._nodes[index], self.choice.trimmed.get(index, frozenset())
            answered.update(tool_id for part, tool_id in node.results if part not in gone)
            calls += [Closing(index, tool_id) for part, tool_id in node.calls if part not in gone]
            self.choice.newest = max(self.choice.newest, node.ts)
        calls.sort(key=lambda closing: closing.node)
        self.choice.closings = [closing for closing in calls if closing.tool_id not in answered]

    def choose(self) -> Choice:
        leaf = self._off_boundary(self._find_leaf())
        branch = self._branch(leaf)
        self._follow(branch)
        self._beside(set(branch))
        self._trim()
        self._relink(branch, leaf)
        self._close()
        count = len([closing for closing in self.choice.closings if not self._nodes[closing.node].thread])
        if count:
            self.choice.notes.append(f"{count} call{'s' * (count != 1)} without a result at the cut closed as interrupted")
        return self.choice


def choose(found: Survey, cut: tuple[int, int] | None, without: frozenset[str]) -> Choice:
    """What a fork keeps of the lines that were surveyed; `cut`: the line that it ends with, where that is known."""
    return _Chooser(found, cut, without).choose()


__all__ = ["Choice", "Closing", "choose"]
