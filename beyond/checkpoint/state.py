"""What is remembered between two checkpoints of a work tree, beside the kept index. Losing it costs time, nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from beyond.checkpoint.shadow import replace

VERSION = 1


def signature(path: Path | str) -> list[int] | None:
    """Changes whenever the file does; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino]


@dataclass
class State:
    """The last checkpoint's tree, and which files it held for which reason."""

    #: `signature` of the kept index that this belongs to, and of the user's index as read.
    index: list[int] | None = None
    users: list[Any] | None = None
    tree: str = ""
    files: int = 0
    #: Files that git doesn't track and doesn't ignore, as last listed.
    extra: list[str] = field(default_factory=list)
    #: Of these, the ones that couldn't be taken: tried again each time.
    left: list[str] = field(default_factory=list)
    #: Tracked files that are not on disk on purpose (sparse checkout): mode and object of each.
    absent: dict[str, list[str]] = field(default_factory=dict)
    #: Such files that are on disk all the same.
    shown: dict[str, list[str]] = field(default_factory=dict)
    #: Tracked files that are not on disk although they should be: deleted.
    missing: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    #: Submodules.
    links: list[str] = field(default_factory=list)
    #: Left out because of a limit: size, time and reason. They stay out until they change.
    declined: dict[str, list[Any]] = field(default_factory=dict)
    #: Repositories inside this one.
    nested: list[str] = field(default_factory=list)
    #: Every folder that git doesn't ignore: ctime, inode, whether it has a .gitignore, then what is neither file, folder
    #: nor link in it. `ignored` are the folders that git does ignore, `rules` the files that say so.
    folders: dict[str, list[Any]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    rules: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    #: The ref, its commit and that one's tree: while it stands, nothing of the kept index can be pruned away.
    anchor: list[str] | None = None

    @classmethod
    def load(cls, path: Path, index: Path) -> State | None:
        """What belongs to the kept index as it is now; None where that can't be said."""
        try:
            found = json.loads(path.read_bytes())
            if found.pop("version") != VERSION:
                return None
            state = cls(**found)
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return None
        return state if state.index is not None and state.index == signature(index) else None

    def copy(self) -> State:
        """As it is now, whatever happens to it later (folders excepted: who changes them says so)."""
        return dataclasses.replace(self, absent=dict(self.absent), shown=dict(self.shown), declined=dict(self.declined))

    def save(self, path: Path) -> None:
        """Writes it; lone surrogates stand for bytes of names that are not UTF-8."""
        replace(path, json.dumps(asdict(self) | {"version": VERSION}, separators=(",", ":")).encode())
