"""The first reading of a transcript: its lines as a tree, as the reader of transcripts sees it, without their texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from beyond.surgery.base import Line
from beyond.surgery.raw import dump, whole

#: Lines that make up a conversation for the CLI.
TREE_TYPES: Final = frozenset({"user", "assistant", "system", "attachment"})
#: Attachments that say how things are now: the CLI makes them again.
SNAPSHOTS: Final = frozenset({"prompt_snapshot", "environment", "session_context", "date", "edited_text_file"})
#: How long lines begin that hold a whole request: they are never of the tree, and not parsed.
_REQUESTS: Final = (b'{"type":"api-request-', b'{"type":"api-request"')
_TOOL_RESULT = re.compile(rb"tool-results/([A-Za-z0-9_.\-]+)")
_COMMAND = ("<command-name>", "<local-command-", "[Request interrupted by user")
NONE: Final = -1
_NOTHING: Final[frozenset[int]] = frozenset()
_NO_PAIRS: Final[tuple[tuple[int, str], ...]] = ()


@dataclass(slots=True)
class Node:
    """A line of the tree. `up` is its parent's index."""

    place: tuple[int, int]
    kind: str
    uuid: str
    #: `parentUuid` as it stands there; `stated` is False where the line has no such field.
    parent: str | None
    stated: bool
    up: int
    kept: frozenset[int]
    dropped: frozenset[int]
    thread: str
    ts: str
    #: Version, branch and user type, for lines of ours that come after it.
    facts: tuple[Any, ...]
    #: A parent that a later copy of the line names.
    alias: str | None = None
    #: An attachment's type, or a system line's subtype.
    subtype: str = ""
    #: Parts that are calls, or results, with their ids.
    calls: tuple[tuple[int, str], ...] = _NO_PAIRS
    results: tuple[tuple[int, str], ...] = _NO_PAIRS
    #: Parts that are texts without a word, and results that hold such texts.
    blank: frozenset[int] = _NOTHING
    hollow: frozenset[int] = _NOTHING
    #: Thinking blocks that have an old place in them: these bytes are signed.
    fixed: frozenset[int] = _NOTHING
    parts: int = 0
    #: It is no step: a remark of the CLI, a summary, an error of the API.
    loose: bool = False
    summary: bool = False
    #: A queued prompt of which no attachment tells; its text.
    queued: str | None = None
    #: More or less than the record is on its line.
    ragged: bool = False
    #: What of its top-level fields has to be set: sessionId, session_id, cwd, entrypoint.
    odd: tuple[str, ...] = ()
    #: Names of files that it refers to.
    files: tuple[str, ...] = ()
    #: Paths outside of the project that it read or wrote.
    outside: tuple[str, ...] = ()

    @property
    def boundary(self) -> bool:
        """Whether a compaction begins here."""
        return self.kind == "system" and self.subtype == "compact_boundary"

    @property
    def events(self) -> bool:
        """Whether it carries steps, kept or not."""
        return bool(self.kept or self.dropped)


@dataclass(slots=True)
class Survey:
    """What the first reading found."""

    nodes: list[Node] = field(default_factory=list)
    #: Lines with kept steps that can't be placed: they have no uuid.
    nameless: int = 0
    #: Lines that are no record.
    torn: int = 0
    at: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the survey looks for in a line besides its place in the tree."""

    conversation: str
    #: Whether a text has an old place in it.
    touches: Callable[[str], bool]
    #: Whether a directory is the old project or in it.
    inside: Callable[[str], bool]


class _Surveyor:
    def __init__(self, asked: Asked, main: bool) -> None:
        self._asked, self._main = asked, main
        self.found = Survey()
        self._keys: dict[tuple[str, str], int] = {}
        self._last: dict[str, int] = {}
        self._late: dict[int, tuple[str, str]] = {}
        self._removed: dict[str, int] = {}
        self._facts: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def feed(self, line: Line) -> None:
        raw = line.raw
        events = bool(line.kept or line.dropped)
        if not events and raw.startswith(_REQUESTS):
            return
        try:
            body, record = whole(raw)
        except ValueError:
            self.found.torn += bool(raw.strip())
            return
        if not isinstance(record, dict):
            return
        kind, uuid = record.get("type"), record.get("uuid")
        uuid = uuid if isinstance(uuid, str) and uuid else None
        if kind == "queue-operation":
            if events and isinstance(record.get("content"), str):
                self._queued(line, record)
        elif kind in TREE_TYPES or (uuid is not None and "parentUuid" in record):
            if uuid is None:
                self.found.nameless += bool(line.kept)
                return
            self._tree_line(line, record, str(kind), uuid, ragged=body is not raw)

    def _queued(self, line: Line, record: dict[str, Any]) -> None:
        node = self._node(line, record, "user", f"\0{line.generation}.{line.number}")
        node.queued, node.parts = record["content"], 1
        node.up, node.stated = self._last.get("", NONE), False
        self._removed[record["content"]] = self._last[""] = self._append(node)

    def _tree_line(self, line: Line, record: dict[str, Any], kind: str, uuid: str, *, ragged: bool) -> None:
        thread = ""
        if self._main and record.get("isSidechain") is True:
            thread = str(record.get("agentId") or "sidechain")
        key = thread, uuid
        known = self._keys.get(key)
        node = self._node(line, record, kind, uuid)
        node.thread, node.ragged = thread, ragged
        self._describe(node, line, record)
        if known is not None:
            self._again(self.found.nodes[known], node)
            return
        if kind == "attachment" and node.queued is not None and not node.events:
            steered = self._removed.pop(node.queued, None)
            if steered is not None:  # the line tells of the prompt that was taken from the queue before
                queued = self.found.nodes[steered]
                node.kept, node.dropped = queued.kept, queued.dropped
                self.found.at[queued.place] = steered
                self.found.nodes[steered] = node
                self._keys[key] = steered
                self.found.at[node.place] = steered
                self._link(steered, node, key)
                return
        index = self._append(node)
        self._keys[key] = index
        self._link(index, node, key)

    def _append(self, node: Node) -> int:
        index = len(self.found.nodes)
        self.found.nodes.append(node)
        self.found.at[node.place] = index
        return index

    def _link(self, index: int, node: Node, key: tuple[str, str]) -> None:
        thread = key[0]
        before = self._last.get(thread, NONE)
        self._last[thread] = index
        if not node.stated:
            node.up = before if before != index else NONE
        elif node.parent is None:
            node.up = NONE
        else:
            up = self._keys.get((thread, node.parent))
            if up is not None:
                node.up = up
            elif node.boundary:
                node.up = before
            else:
                node.up = before
                self._late[index] = thread, node.parent
        if index not in self._late and node.up == index:
            node.up = NONE

    def _again(self, first: Node, copy: Node) -> None:
        if copy.kept and not first.kept:
            self.found.at[copy.place] = self.found.at[first.place]
            first.place, first.kept, first.dropped = copy.place, copy.kept, copy.dropped
            first.parts, first.calls, first.results, first.blank = copy.parts, copy.calls, copy.results, copy.blank
            first.hollow, first.fixed, first.odd = copy.hollow, copy.fixed, copy.odd
        if copy.parent is not None and copy.parent != first.parent:
            first.alias = copy.parent

    def _node(self, line: Line, record: dict[str, Any], kind: str, uuid: str) -> Node:
        facts = (record.get("version"), record.get("gitBranch"), record.get("userType"))
        try:
            facts = self._facts.setdefault(facts, facts)
        except TypeError:  # something that no version writes
            facts = (None, None, None)
        parent, ts = record.get("parentUuid"), record.get("timestamp")
        return Node(
            (line.generation, line.number), kind, uuid, parent if isinstance(parent, str) and parent else None,
            "parentUuid" in record, NONE, line.kept, line.dropped, "", ts if isinstance(ts, str) else "", facts,
        )  # fmt: skip

    def _describe(self, node: Node, line: Line, record: dict[str, Any]) -> None:
        kind = node.kind
        if kind == "system":
            node.loose, node.subtype = True, str(record.get("subtype"))
            if node.boundary and node.parent is None:
                logical = record.get("logicalParentUuid")
                node.stated = isinstance(logical, str)
                node.parent = logical if isinstance(logical, str) else None
        elif kind == "attachment":
            attachment = record.get("attachment")
            if isinstance(attachment, dict):
                node.subtype = str(attachment.get("type"))
                if node.subtype == "queued_command":
                    node.queued = _text_of(attachment.get("prompt"))
        elif kind in ("user", "assistant"):
            message = record.get("message")
            content = message.get("content") if isinstance(message, dict) else message
            node.summary = record.get("isCompactSummary") is True
            node.loose = node.summary or record.get("isMeta") is True or record.get("isApiErrorMessage") is True
            self._blocks(node, content)
        node.odd = self._odd(record)
        if b"tool-results/" in line.raw:
            raw = line.raw
            if node.parts > 1 and any(part >= 0 for part in line.dropped):  # what is kept of it
                raw = dump([record["message"]["content"][part] for part in sorted(line.kept) if 0 <= part < node.parts])
            names = (match.decode().rstrip(".") for match in _TOOL_RESULT.findall(raw))
            node.files = tuple(dict.fromkeys(name for name in names if name))

    def _odd(self, record: dict[str, Any]) -> tuple[str, ...]:
        asked = self._asked
        odd: list[str] = [key for key in ("sessionId", "session_id") if key in record and record[key] != asked.conversation]
        cwd = record.get("cwd")
        if cwd is not None and not (isinstance(cwd, str) and asked.inside(cwd)):
            odd.append("cwd")
        if record.get("entrypoint", "cli") != "cli":
            odd.append("entrypoint")
        return tuple(odd)

    def _blocks(self, node: Node, content: Any) -> None:
        if not isinstance(content, list) or not content:
            node.parts = 1
            if content is None or content == [] or (isinstance(content, str) and not content.strip()):
                node.blank = frozenset((0,))
            node.loose = node.loose or (isinstance(content, str) and content.startswith(_COMMAND))
            return
        node.parts = len(content)
        calls: list[tuple[int, str]] = []
        results: list[tuple[int, str]] = []
        blank, hollow, fixed = [], [], []
        outside: list[str] = []
        for part, block in enumerate(content):
            if not isinstance(block, dict):
                if isinstance(block, str) and not block.strip():
                    blank.append(part)
                continue
            kind = block.get("type")
            if kind == "text":
                text = block.get("text")
                if not isinstance(text, str):
                    continue
                if not text.strip():
                    blank.append(part)
                elif part == 0 and text.startswith(_COMMAND):
                    node.loose = True
            elif kind == "tool_use":
                calls.append((part, str(block.get("id"))))
                outside += self._outside(block.get("input"))
            elif kind == "tool_result":
                results.append((part, str(block.get("tool_use_id"))))
                if _hollow(block.get("content")):
                    hollow.append(part)
            elif kind in ("thinking", "redacted_thinking") and any(
                self._asked.touches(value) for value in block.values() if isinstance(value, str)
            ):
                fixed.append(part)
        node.calls, node.results, node.outside = tuple(calls), tuple(results), tuple(outside)
        node.blank, node.hollow, node.fixed = frozenset(blank), frozenset(hollow), frozenset(fixed)

    def _outside(self, given: Any) -> list[str]:
        if not isinstance(given, dict):
            return []
        out = []
        for key in ("file_path", "path", "notebook_path"):
            path = given.get(key)
            if isinstance(path, str) and path.startswith("/") and not self._asked.inside(path):
                out.append(path)
        return out

    def resolve(self) -> None:
        """Finds the parents that came after their children; what has none goes on from a line before it."""
        nodes = self.found.nodes
        for index, (thread, parent) in self._late.items():
            up = self._keys.get((thread, parent))
            nodes[index].up = self._before(index, thread) if up is None else up
        self._break_circles()

    def _before(self, index: int, thread: str) -> int:
        nodes = self.found.nodes
        for candidate in range(index - 1, max(-1, index - 200), -1):
            if nodes[candidate].thread != thread:
                continue
            walk, steps = candidate, 0
            while walk not in (NONE, index) and steps < 10_000:
                walk, steps = nodes[walk].up, steps + 1
            if walk == NONE:
                return candidate
        return NONE

    def _break_circles(self) -> None:
        """Cuts each circle of parents at the line where it is entered."""
        nodes = self.found.nodes
        state = bytearray(len(nodes))  # 0 new, 1 being climbed, 2 sound
        for index in range(len(nodes)):
            path, walk = [], index
            while walk != NONE and not state[walk]:
                state[walk] = 1
                path.append(walk)
                walk = nodes[walk].up
            if walk != NONE and state[walk] == 1:
                nodes[path[-1]].up = NONE
            for climbed in path:
                state[climbed] = 2


def _hollow(content: Any) -> bool:
    return isinstance(content, list) and any(
        isinstance(b, dict) and b.get("type") == "text" and isinstance(b.get("text"), str) and not b["text"].strip()
        for b in content
    )


def _text_of(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(isinstance(b, dict) and isinstance(b.get("text"), str) for b in prompt):
        return "\n".join(b["text"] for b in prompt)
    return None


def survey(lines: Iterable[Line], asked: Asked, main: bool = True) -> Survey:
    """Reads the lines of a transcript. `main`: lines marked as a sidechain are subagents' (older versions)."""
    surveyor = _Surveyor(asked, main)
    for line in lines:
        surveyor.feed(line)
    surveyor.resolve()
    return surveyor.found
