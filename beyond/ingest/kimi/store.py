"""Kimi Code's store: ``sessions/wd_<slug>_<hash>/<conversation>/agents/<agent>/wire.jsonl``.

Directories are the truth; ``session_index.jsonl`` is only a hint that Kimi itself needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from beyond.ingest.found import Found, holds, read_json, scan, text_or_none


def home() -> Path:
    """Kimi Code's store: ``KIMI_CODE_HOME``, else ``~/.kimi-code``."""
    return Path(os.environ.get("KIMI_CODE_HOME") or Path.home() / ".kimi-code")


def conversations(root: Path | None = None) -> Iterator[Found]:
    """Every wire in Kimi Code's store. Directories are the truth; `session_index.jsonl` is only a hint to Kimi."""
    for work in scan(str((root or home()) / "sessions")):
        if not work.is_dir():
            continue
        for session in scan(work.path):
            if not session.is_dir():
                continue
            agents = [a for a in scan(os.path.join(session.path, "agents")) if a.is_dir()]
            agents.sort(key=lambda a: (a.name != "main", a.name))
            for agent in agents:
                wire = Path(agent.path) / "wire.jsonl"
                try:
                    found = Found("kimi", wire, session.name, agent.name).look()
                except OSError:
                    continue
                yield found


def describe(found: Found) -> Found:
    """Adds what ``state.json`` says: the working directory (0.28: workDir, 2.1.0: cwd) and a title of the user's."""
    if found.path.name == "wire.jsonl":
        state = read_json(found.path.parent.parent.parent / "state.json")
        found.project = text_or_none(state.get("workDir")) or text_or_none(state.get("cwd"))
        if found.agent == "main" and state.get("isCustomTitle") is True:
            found.title = text_or_none(state.get("title"))
    return found


def belongs(found: Found, directory: str) -> bool:
    """Whether ``state.json`` names `directory`, or one above it."""
    return holds(describe(found).project, directory)


def subagents(found: Found) -> list[Found]:
    """The wires of a conversation's other agents."""
    if found.conversation is None or found.path.name != "wire.jsonl":
        return []
    wires = sorted(found.path.parent.parent.glob("*/wire.jsonl"))
    return [Found("kimi", w, found.conversation, w.parent.name).look() for w in wires if w.parent.name != found.agent]


def recognise(path: Path, head: bytes) -> Found | None:
    """What a wire is, from its place; `path` is absolute, `head` its first bytes."""
    if path.name != "wire.jsonl" and b'"protocol_version"' not in head[:4096]:
        return None
    parts = path.parts
    if len(parts) >= 4 and parts[-3] == "agents":
        return Found("kimi", path, parts[-4], parts[-2])
    return Found("kimi", path, path.stem if path.stem != "wire" else None)


def folder_of(path: Path) -> Path:
    """The folder with the files that lie beside a main wire: the session's own."""
    return path.parent.parent.parent
