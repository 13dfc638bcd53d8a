"""The second reading: the kept lines as the fork has them, each byte that needs no change as it was."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from beyond.surgery.base import INTERRUPTED, ForkPlan, Line
from beyond.surgery.claude.choose import Choice, Closing
from beyond.surgery.claude.places import Moves, spelled
from beyond.surgery.claude.survey import NONE, Node, Survey
from beyond.surgery.raw import Path, dump, only_items, replaced, spans, whole

_CONTENT: Path = ("message", "content")
#: Bytes that are given out at once.
_PIECE = 1 << 18


class Composer:
    """Writes one transcript of a fork: the main one, or a subagent's."""

    def __init__(self, plan: ForkPlan, moves: Moves, found: Survey, choice: Choice) -> None:
        self._plan, self._moves, self._found, self._choice = plan, moves, found, choice
        self._closings: dict[int, list[Closing]] = {}
        for closing in choice.closings:
            self._closings.setdefault(closing.node, []).append(closing)
        self._places = {found.nodes[index].place: index for index in choice.parent}
        self.session = plan.new_conversation if "set-session" not in plan.without else plan.conversation
        self._uuids: set[str] | None = None

    def stream(self, lines: Callable[[], Iterable[Line]], title: str | None = None) -> Iterator[bytes]:
        """The file in pieces. Parents come before children, the leaf and what closes its calls last."""
        pieces: list[bytes] = []
        size = 0
        for piece in self._lines(lines()):
            pieces.append(piece)
            size += len(piece) + 1
            if size > _PIECE:
                yield b"\n".join((*pieces, b""))
                pieces, size = [], 0
        if title is not None:
            pieces.append(dump({"type": "custom-title", "customTitle": title, "sessionId": self.session}))
        if pieces:
            yield b"\n".join((*pieces, b""))

    def _lines(self, lines: Iterable[Line]) -> Iterator[bytes]:
        done = bytearray(len(self._found.nodes))
        waiting: dict[int, list[tuple[int, bytes]]] = {}
        last: list[tuple[int, bytes]] = []
        places, parent, leaf = self._places, self._choice.parent, self._choice.leaf
        everything = "tree-types-only" in self._plan.without
        for line in lines:
            index = places.get((line.generation, line.number), NONE)
            if index == NONE:
                if everything and line.raw[:1] == b"{" and (line.generation, line.number) not in self._found.at:
                    yield self._moves.line(line.raw)
                continue
            ready = [(index, line.raw)]
            while ready:
                index, raw = ready.pop()
                up = parent[index]
                up = self._choice.logical.get(index, up)
                if up != NONE and not done[up]:
                    waiting.setdefault(up, []).append((index, raw))
                elif index == leaf:
                    last = [(index, raw)]
                else:
                    done[index] = 1
                    yield self._line(index, raw)
                    yield from self._closed(index)
                    ready += reversed(waiting.pop(index, []))
        for index, raw in last:
            yield self._line(index, raw)
            yield from self._closed(index)

    # -- one line ---------------------------------------------------------------------------------

    def _line(self, index: int, raw: bytes) -> bytes:
        node, choice = self._found.nodes[index], self._choice
        if node.queued is not None and (node.kind != "attachment" or index == choice.leaf):
            return self._prompt(index, node, raw)
        if node.ragged:
            raw, _ = whole(raw)
        if index in choice.trimmed:
            raw = self._trimmed(raw, node, choice.trimmed[index])
        if node.hollow:
            raw = self._filled(raw, node)
        raw = self._fields(raw, index, node)
        if node.boundary:
            raw = self._boundary(raw, index)
        fixed: list[tuple[int, int]] = []
        if node.fixed and "thinking-untouched" not in self._plan.without:
            fixed = self._thinking(raw)
        return self._moves.line(raw, fixed)

    def _fields(self, raw: bytes, index: int, node: Node) -> bytes:
        """Sets the fields of the record itself: its parent, its conversation, its directory."""
        new: dict[str, Any] = {}
        up = self._choice.parent[index]
        parent = self._name(up) if up != NONE else None
        if not node.boundary and parent != node.parent:
            raw = self._set(raw, "parentUuid", node.parent, parent) if node.parent is not None else raw
            if node.parent is None and parent is not None:
                new["parentUuid"] = parent
        for key in node.odd:
            if key == "entrypoint":
                if "entrypoint" not in self._plan.without:
                    new[key] = "cli"
            elif key == "cwd":
                new[key] = self._plan.new_root
            else:
                new[key] = self.session
        if new.get("entrypoint") and b'"entrypoint":"sdk-cli"' in raw:
            raw = self._set(raw, "entrypoint", "sdk-cli", new.pop("entrypoint"))
        return with_fields(raw, new) if new else raw

    def _set(self, raw: bytes, key: str, old: Any, new: Any) -> bytes:
        """Sets one field of the record: in place where it is the only thing that is spelled so."""
        name = b'"%s":' % key.encode()
        before = name + dump(old)
        at = raw.find(name[:-1])
        if raw.startswith(before, at) and raw.find(name[:-1], at + 1) == -1 and not spelled(raw):
            return b"".join((raw[: at + len(name)], dump(new), raw[at + len(before) :]))
        return with_fields(raw, {key: new})

    def _name(self, index: int) -> str:
        """The uuid of a kept line in the fork."""
        node = self._found.nodes[index]
        return self._made("prompt", node.uuid) if node.uuid.startswith("\0") else node.uuid

    def _made(self, *names: str) -> str:
        """A uuid for a line of ours; the same each time that the file is written."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, "\0".join((self._plan.new_conversation, *names))))

    def _trimmed(self, raw: bytes, node: Node, gone: frozenset[int]) -> bytes:
        raw = only_items(raw, _CONTENT, lambda part: part not in gone)
        if any(part in gone for part, _ in node.results):  # it may tell of the one that went
            raw = without_field(raw, "toolUseResult")
        return raw

    def _filled(self, raw: bytes, node: Node) -> bytes:
        """Takes texts without a word out of results."""
        gone = self._choice.trimmed.get(self._places.get(node.place, NONE), frozenset())
        kept = [part for part in range(node.parts) if part not in gone]
        for part in node.hollow - gone:
            path: Path = (*_CONTENT, kept.index(part), "content")
            found = spans(raw, lambda at, path=path: at == path)  # type: ignore[misc]
            _, blocks = whole(raw[slice(*found[path])])
            full = [n for n, b in enumerate(blocks) if not (b.get("type") == "text" and not str(b.get("text")).strip())]
            if not full:
                raw = replaced(raw, [(found[path], b'""')])
                continue
            raw = only_items(raw, path, lambda n, full=full: n in full)  # type: ignore[misc]
        return raw

    def _thinking(self, raw: bytes) -> list[tuple[int, int]]:
        """Where the thinking blocks stand."""
        found = spans(raw, lambda path: len(path) == 3 and path[:2] == _CONTENT)
        out = []
        for span in sorted(found.values()):
            _, block = whole(raw[slice(*span)])
            if isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking"):
                out.append(span)
        return out

    def _boundary(self, raw: bytes, index: int) -> bytes:
        """A compaction's boundary: it names only lines that are here."""
        if self._uuids is None:
            self._uuids = {self._name(i) for i in self._choice.parent}
        here = self._uuids
        up = self._choice.logical.get(index, NONE)
        logical = self._name(up) if up != NONE else None
        _, record = whole(raw)
        if record.get("logicalParentUuid") != logical:
            raw = with_fields(raw, {"logicalParentUuid": logical})
        if record.get("parentUuid") is not None:
            raw = with_fields(raw, {"parentUuid": None})
        about = record.get("compactMetadata")
        if not isinstance(about, dict):
            return raw
        segment, messages = about.get("preservedSegment"), about.get("preservedMessages")
        gone = isinstance(segment, dict) and any(isinstance(v, str) and v not in here for v in segment.values())
        if isinstance(messages, dict) and (gone or messages.get("anchorUuid") not in here):
            gone = True
        lists = [
            ("compactMetadata", "preservedMessages", key)
            for key, value in (messages.items() if isinstance(messages, dict) else ())
            if isinstance(value, list) and any(v not in here for v in value)
        ]
        if gone:
            for key in ("preservedSegment", "preservedMessages"):
                raw = without_field(raw, key, ("compactMetadata",))
        else:
            for path in lists:
                names = messages[path[-1]]  # type: ignore[index]
                raw = only_items(raw, path, lambda n, names=names: names[n] in here)  # type: ignore[misc]
        return raw

    # -- lines of ours ----------------------------------------------------------------------------

    def _closed(self, index: int) -> Iterator[bytes]:
        """Error results for the calls of a line that have none."""
        call = self._found.nodes[index]
        parent = self._name(index)
        last = index == self._choice.leaf
        for closing in self._closings.get(index, ()):
            name = self._made("result", closing.tool_id)
            block = {"type": "tool_result", "content": INTERRUPTED, "is_error": True, "tool_use_id": closing.tool_id}
            yield self._own(
                call, name, parent, [block], self._choice.newest if last else call.ts,
                toolUseResult=f"Error: {INTERRUPTED}", sourceToolAssistantUUID=self._name(index),
            )  # fmt: skip
            parent = name

    def _prompt(self, index: int, node: Node, raw: bytes) -> bytes:
        """A queued prompt as the user's line: one of which only the queue tells, or that the conversation ends with,
        where 2.1.218 doesn't count an attachment."""
        up = self._choice.parent[index]
        content: Any = node.queued
        if node.kind == "attachment":
            _, record = whole(raw)
            content = record["attachment"]["prompt"]
        ts = self._choice.newest if index == self._choice.leaf else node.ts
        line = self._own(node, self._name(index), self._name(up) if up != NONE else None, content, ts)
        return self._moves.line(line)

    def _own(self, node: Node, name: str, parent: str | None, content: Any, ts: str, **more: Any) -> bytes:
        version, branch, kind = node.facts
        record: dict[str, Any] = {"parentUuid": parent, "isSidechain": bool(node.thread), "type": "user"}
        if node.thread and node.thread != "sidechain":
            record["agentId"] = node.thread
        record |= {"message": {"role": "user", "content": content}, "uuid": name, "timestamp": ts, **more}
        record |= {"userType": kind or "external", "entrypoint": "cli", "cwd": self._plan.new_root, "sessionId": self.session}
        if version is not None:
            record["version"] = version
        if branch is not None:
            record["gitBranch"] = branch
        return dump(record)


# -- fields of a record --------------------------------------------------------------------------------


def with_fields(raw: bytes, new: dict[str, Any]) -> bytes:
    """A record with some of its fields set; those that it lacks are put in front."""
    found = spans(raw, lambda path: len(path) == 1 and path[0] in new)
    edits = [(found[key,], dump(value)) for key, value in new.items() if (key,) in found]
    missing = {key: value for key, value in new.items() if (key,) not in found}
    raw = replaced(raw, edits)
    if missing:
        start = raw.index(b"{") + 1
        raw = raw[:start] + dump(missing)[1:-1] + b"," + raw[start:]
    return raw


def without_field(raw: bytes, key: str, inside: Path = ()) -> bytes:
    """A record without a field of it, or of an object in it; of a repeated field the last one, which counts."""
    path = (*inside, key)
    found = spans(raw, lambda at: at in (path, inside))
    if path not in found:
        return raw
    start, end = found[path]
    colon = raw.rindex(b":", 0, start)
    quote = raw.rindex(b'"', 0, colon)
    opening = raw.rindex(json.dumps(key).encode(), 0, quote + 1)
    while raw[end : end + 1].isspace():
        end += 1
    if raw[end : end + 1] == b",":
        return raw[:opening] + raw[end + 1 :]
    before = raw[:opening].rstrip()
    return (before[:-1] if before.endswith(b",") else before) + raw[end:]
