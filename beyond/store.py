"""Finding conversations in the agent CLIs' own stores, whichever they are. Writes nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from beyond import agents
from beyond.errors import NotFound, SourceError
from beyond.ingest.base import wrong_encoding
from beyond.ingest.found import SAFE_ID, Found

__all__ = ["SAFE_ID", "Found", "describe", "identify"]


def describe(found: Found) -> Found:
    """Adds what files beside a transcript say about it."""
    return agents.store(found.cli).describe(found)


def identify(path: Path) -> Found:
    """What kind of transcript a file is, from its place and its first bytes. Raises `SourceError`, `NotFound`."""
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):  # a pipe would keep us waiting
            raise SourceError(f"{path} is no regular file: give a transcript file, or save what comes from there first")
        with path.open("rb") as file:
            head = file.read(65536)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file: give a transcript file, a conversation's id, or nothing") from None
    except IsADirectoryError:
        raise SourceError(f"{path} is a folder: give a transcript file, or use --all with the store's variable") from None
    except OSError as error:
        raise SourceError(f"{path} can't be read ({error.strerror}): check its permissions") from None
    encoding = wrong_encoding(head)
    if encoding:
        raise SourceError(f"{path} is {encoding}: transcripts are UTF-8; convert a copy with iconv and record that")
    if b'"session_meta"' in head[:4096] and b'"payload"' in head[:4096]:
        raise SourceError(f"{path} is a Codex rollout: this version records {', '.join(agents.AGENTS)}")
    absolute = path.absolute()
    # Kimi's wires name their protocol; what else is JSON lines may be Claude's.
    for name in sorted(agents.AGENTS, key=lambda name: name == "claude"):
        found = agents.store(name).recognise(absolute, head)
        if found is not None:
            return found.look()
    raise SourceError(f"{path} is no transcript (not JSON lines): give a file of Claude Code or Kimi Code")
