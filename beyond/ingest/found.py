"""A transcript file as it was found, and what the stores' readers share. Reads directories; writes nothing."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

#: What an id may look like before a path is made of it.
SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,127}$")


@dataclass(slots=True)
class Found:
    """A transcript file. `conversation` is None where only its lines can tell."""

    cli: str
    path: Path
    conversation: str | None
    agent: str = "main"
    #: Id of the tool call that started a subagent, where a file beside it says so.
    tool_id: str | None = None
    project: str | None = None
    title: str | None = None
    #: Subagent files that belong to a main file.
    subagents: int = 0
    #: (size, mtime_ns, inode), taken when the file was found.
    stat: tuple[int, int, int] = field(default=(0, 0, 0))

    def look(self) -> Found:
        """Takes the file's size and times."""
        stat = os.stat(self.path)
        self.stat = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return self


def read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _usable(entry: os.DirEntry[str]) -> bool:
    """Whether an entry can be looked at: no link in a circle, no name that isn't text."""
    try:
        entry.stat()
        entry.name.encode()
    except (OSError, UnicodeEncodeError):
        return False
    return True


def scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if _usable(e)), key=lambda e: e.name)
    except OSError:
        return []


def stat_of(entry: os.DirEntry[str]) -> tuple[int, int, int] | None:
    try:
        stat = entry.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def holds(project: str | None, directory: str) -> bool:
    if not project or "\0" in project:
        return False
    project = os.path.realpath(project)
    return directory == project or directory.startswith(project.rstrip(os.sep) + os.sep)
