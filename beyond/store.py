"""Finding conversations in the agent CLIs' own stores. Reads directories and a few bytes of files; writes nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from beyond.errors import NotFound, SourceError
from beyond.ingest.base import wrong_encoding

_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4,12}$")
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


def _read_json(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def claude_home() -> Path:
    """Claude Code's store: ``CLAUDE_CONFIG_DIR``, else ``~/.claude``."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def kimi_home() -> Path:
    """Kimi Code's store: ``KIMI_CODE_HOME``, else ``~/.kimi-code``."""
    return Path(os.environ.get("KIMI_CODE_HOME") or Path.home() / ".kimi-code")


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError:
        return []


def _stat(entry: os.DirEntry[str]) -> tuple[int, int, int] | None:
    try:
        stat = entry.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def claude_subagents(folder: str, conversation: str) -> Iterator[Found]:
    """The subagents' transcripts below a conversation's folder, at any depth."""
    for entry in _scan(folder):
        if entry.is_dir():
            yield from claude_subagents(entry.path, conversation)
        elif entry.name.startswith("agent-") and entry.name.endswith(".jsonl"):
            stat = _stat(entry)
            if stat is not None:
                yield Found("claude", Path(entry.path), conversation, entry.name[6:-6], stat=stat)


def claude_conversations(home: Path | None = None) -> Iterator[Found]:
    """Every transcript in Claude Code's store: main files first, each followed by its subagents'."""
    for project in _scan(str((home or claude_home()) / "projects")):
        if not project.is_dir():
            continue
        for entry in _scan(project.path):
            if not entry.name.endswith(".jsonl") or not entry.is_file():
                continue
            stat = _stat(entry)
            if stat is None:
                continue
            stem = entry.name[:-6]
            if stem.startswith("agent-"):  # older versions kept subagents beside the conversation
                yield Found("claude", Path(entry.path), None, stem[6:], stat=stat)
                continue
            children = list(claude_subagents(os.path.join(project.path, stem, "subagents"), stem))
            yield Found("claude", Path(entry.path), stem, stat=stat, subagents=len(children))
            yield from children


def kimi_conversations(home: Path | None = None) -> Iterator[Found]:
    """Every wire in Kimi Code's store. Directories are the truth; `session_index.jsonl` is only a hint to Kimi."""
    for work in _scan(str((home or kimi_home()) / "sessions")):
        if not work.is_dir():
            continue
        for session in _scan(work.path):
            if not session.is_dir():
                continue
            agents = [a for a in _scan(os.path.join(session.path, "agents")) if a.is_dir()]
            agents.sort(key=lambda a: (a.name != "main", a.name))
            for agent in agents:
                wire = Path(agent.path) / "wire.jsonl"
                try:
                    found = Found("kimi", wire, session.name, agent.name).look()
                except OSError:
                    continue
                yield found


def _holds(project: str | None, directory: str) -> bool:
    if not project:
        return False
    project = os.path.realpath(project)
    return directory == project or directory.startswith(project.rstrip(os.sep) + os.sep)


def claude_belongs(found: Found, directory: str) -> bool:
    """Whether the first lines name `directory`, or one above it, as the working directory. The folder's name only
    rules out: different paths can share one."""
    from beyond.ingest.claude import encode_path

    folder = found.path.parent.name
    above = [directory, *map(str, Path(directory).parents)]
    if folder not in {encode_path(path) for path in above}:
        return False
    with found.path.open("rb") as file:
        for _ in range(100):
            line = file.readline(1 << 20)
            if not line:
                break
            match = re.search(rb'"cwd":"((?:[^"\\\\]|\\\\.)*)"', line)
            if match:
                return _holds(_text(json.loads(b'"' + match[1] + b'"')), directory)
    return False


def kimi_belongs(found: Found, directory: str) -> bool:
    """Whether ``state.json`` names `directory`, or one above it."""
    return _holds(describe(found).project, directory)


def describe(found: Found) -> Found:
    """Adds what files beside a transcript say about it (read only when it is about to be recorded)."""
    if found.cli == "claude" and found.agent != "main":
        meta = _read_json(found.path.with_suffix(".meta.json"))
        found.tool_id = _text(meta.get("toolUseId"))
        found.title = _text(meta.get("description"))
    elif found.cli == "kimi" and found.path.name == "wire.jsonl":
        state = _read_json(found.path.parent.parent.parent / "state.json")
        found.project = _text(state.get("workDir")) or _text(state.get("cwd"))
        if found.agent == "main" and state.get("isCustomTitle") is True:
            found.title = _text(state.get("title"))
    return found


def identify(path: Path) -> Found:
    """What kind of transcript a file is, from its place and its first lines. Raises `SourceError`, `NotFound`."""
    try:
        with path.open("rb") as file:
            head = file.read(65536)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file: give a transcript file, a conversation's id, or nothing") from None
    except IsADirectoryError:
        raise SourceError(
            f"{path} is a folder: give a transcript file, or use --all with the store's variable"
        ) from None
    except OSError as error:
        raise SourceError(f"{path} can't be read ({error.strerror}): check its permissions") from None
    encoding = wrong_encoding(head)
    if encoding:
        raise SourceError(f"{path} is {encoding}: transcripts are UTF-8; convert a copy with iconv and record that")
    absolute = path.absolute()
    parts = absolute.parts
    if path.name == "wire.jsonl" or b'"protocol_version"' in head[:4096]:
        if len(parts) >= 4 and parts[-3] == "agents":
            return Found("kimi", absolute, parts[-4], parts[-2]).look()
        return Found("kimi", absolute, absolute.stem if absolute.stem != "wire" else None).look()
    if b'"session_meta"' in head[:4096] and b'"payload"' in head[:4096]:
        raise SourceError(f"{path} is a Codex rollout: this version records Claude Code and Kimi Code")
    if head.strip(b"\0 \r\n\t\xef\xbb\xbf")[:1] not in (b"{", b"") and b'{"' not in head:
        raise SourceError(f"{path} is no transcript (not JSON lines): give a file of Claude Code or Kimi Code")
    stem = absolute.stem
    if "subagents" in parts[:-1] and stem.startswith("agent-"):
        at = len(parts) - 1 - parts[::-1].index("subagents")
        return Found("claude", absolute, parts[at - 1], stem[6:]).look()
    if stem.startswith("agent-"):
        return Found("claude", absolute, None, stem[6:]).look()
    found = Found("claude", absolute, stem if _UUID.match(stem) else None).look()
    found.subagents = sum(1 for _ in claude_subagents(str(absolute.with_suffix("") / "subagents"), stem))
    return found
