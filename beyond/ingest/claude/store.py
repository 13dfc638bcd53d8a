"""Claude Code's store: ``projects/<encoded cwd>/<conversation>.jsonl`` and what lies beside it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from beyond.event import printable
from beyond.ingest.base import NotARecord, parse
from beyond.ingest.found import Found, holds, read_json, scan, stat_of, text_or_none

_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4,12}$")


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


def home() -> Path:
    """Claude Code's store: ``CLAUDE_CONFIG_DIR``, else ``~/.claude``."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def subagents_in(folder: str, conversation: str) -> Iterator[Found]:
    """The subagents' transcripts below a conversation's folder, at any depth."""
    for entry in scan(folder):
        if entry.is_dir():
            yield from subagents_in(entry.path, conversation)
        elif entry.name.startswith("agent-") and entry.name.endswith(".jsonl"):
            stat = stat_of(entry)
            if stat is not None:
                yield Found("claude", Path(entry.path), conversation, entry.name[6:-6], stat=stat)


def conversations(root: Path | None = None) -> Iterator[Found]:
    """Every transcript in Claude Code's store: main files first, each followed by its subagents'."""
    for project in scan(str((root or home()) / "projects")):
        if not project.is_dir():
            continue
        for entry in scan(project.path):
            if not entry.name.endswith(".jsonl") or not entry.is_file():
                continue
            stat = stat_of(entry)
            if stat is None:
                continue
            stem = entry.name[:-6]
            if stem.startswith("agent-"):  # older versions kept subagents beside the conversation
                yield Found("claude", Path(entry.path), None, stem[6:], stat=stat)
                continue
            children = list(subagents_in(os.path.join(project.path, stem, "subagents"), stem))
            yield Found("claude", Path(entry.path), stem, stat=stat, subagents=len(children))
            yield from children


def belongs(found: Found, directory: str) -> bool:
    """Whether the first lines name `directory`, or one above it, as the working directory. The folder's name only
    rules out: different paths can share one."""
    folder = found.path.parent.name
    above = [directory, *map(str, Path(directory).parents)]
    if folder not in {encode_path(path) for path in above}:
        return False
    with found.path.open("rb") as file:
        for _ in range(100):
            line = file.readline(1 << 20)
            if not line:
                break
            if b'"cwd"' in line:
                try:
                    cwd = text_or_none(parse(line).get("cwd"))
                except (NotARecord, RecursionError):
                    continue
                if cwd is not None:
                    return holds(printable(cwd), directory)
    return False


def describe(found: Found) -> Found:
    """Adds what the file beside a subagent's transcript says (read only when it is about to be recorded)."""
    if found.agent != "main":
        meta = read_json(found.path.with_suffix(".meta.json"))
        found.tool_id = text_or_none(meta.get("toolUseId"))
        found.title = text_or_none(meta.get("description"))
    return found


def subagents(found: Found) -> list[Found]:
    """The subagents' transcripts that belong to a main one."""
    if found.conversation is None:
        return []
    beside = [
        Found("claude", Path(entry.path), found.conversation, entry.name[6:-6], stat=stat)
        for entry in scan(str(found.path.parent))
        if entry.name.startswith("agent-") and entry.name.endswith(".jsonl") and entry.is_file()
        if (stat := stat_of(entry)) is not None and _conversation_in(Path(entry.path)) == found.conversation
    ]
    return [*subagents_in(str(found.path.with_suffix("") / "subagents"), found.conversation), *beside]


def _conversation_in(path: Path) -> str | None:
    """The conversation's id as the first lines of an older subagent's transcript give it."""
    try:
        with path.open("rb") as file:
            for _ in range(20):
                line = file.readline(1 << 20)
                if b'"sessionId"' in line:
                    with contextlib.suppress(NotARecord, RecursionError):
                        return text_or_none(parse(line).get("sessionId"))
    except OSError:
        pass
    return None


def recognise(path: Path, head: bytes) -> Found | None:
    """What a file of JSON lines is, from its place; `path` is absolute, `head` its first bytes."""
    if head.strip(b"\0 \r\n\t\xef\xbb\xbf")[:1] not in (b"{", b"") and b'{"' not in head:
        return None
    parts, stem = path.parts, path.stem
    if "subagents" in parts[:-1] and stem.startswith("agent-"):
        at = len(parts) - 1 - parts[::-1].index("subagents")
        return Found("claude", path, parts[at - 1], stem[6:])
    if stem.startswith("agent-"):
        return Found("claude", path, None, stem[6:])
    found = Found("claude", path, stem if _UUID.match(stem) else None)
    found.subagents = len(subagents(found))
    return found


def folder_of(path: Path) -> Path:
    """The folder with the files that lie beside a main transcript: subagents, spilled tool results."""
    return path.with_suffix("")
