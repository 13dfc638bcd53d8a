"""What a proof looks for: canaries of the future in every place where one could stand, and what has to be there."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from beyond import agents
from beyond.blob import Reader
from beyond.event import PATH_END, PATH_START
from beyond.model import ModelRequest
from beyond.naming import Run, causal_past
from beyond.proof.story import SINCE

#: Kinds whose words the first request has to hold.
_TOLD = frozenset({"user_msg", "assistant_msg", "tool_call", "tool_result"})


@dataclass(slots=True)
class World:
    """Which event brings which canary, as the journal has it."""

    #: By canary: the events of the run that hold it, with their kinds.
    holders: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    #: By canary of a subagent's inside: the call that started it.
    inside: dict[str, int] = field(default_factory=dict)
    #: Events that took the place of all before them.
    summaries: list[int] = field(default_factory=list)


def look(con: sqlite3.Connection, reader: Reader, run: Run, words: Mapping[str, str]) -> World:
    """Reads a recorded run (and its subagents) for canaries."""
    world = World()
    for seq, kind, mark, text in _contents(con, reader, run.id, run.cli):
        for name, word in words.items():
            if word in text:
                world.holders.setdefault(name, []).append((seq, kind))
        if mark == "compaction":
            world.summaries.append(seq)
    rows = con.execute(
        "select id, parent_seq from run where parent = ? and relation = 'subagent' and parent_seq is not null", (run.id,)
    ).fetchall()
    for number, seq in rows:
        for _, _, _, text in _contents(con, reader, number, run.cli):
            for name, word in words.items():
                if word in text:
                    world.inside.setdefault(name, seq)
    return world


def _contents(con: sqlite3.Connection, reader: Reader, run_id: int, cli: str) -> Iterator[tuple[int, str, str | None, str]]:
    read = agents.content_of(cli)
    rows = con.execute("select seq, kind, mark, source, line, part from event where run = ? order by seq", (run_id,)).fetchall()
    for seq, kind, mark, source, line, part in rows:
        event = read(reader.line(source, line)).get(part)
        yield seq, kind, mark, (event.content or "") if event is not None else ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a fork at a cut must hold in its first request, and what it must hold nowhere."""

    kept: tuple[str, ...]
    gone: tuple[str, ...]


def wanted(con: sqlite3.Connection, run: Run, ends: Sequence[int], world: World, words: Mapping[str, str]) -> Wanted:
    """By the causal past of the cut."""
    past = causal_past(con, run, *ends)
    newest = max((seq for seq in world.summaries if seq in past), default=0)
    kept, gone = [], []
    for name in words:
        holders = world.holders.get(SINCE.get(name, name), [])
        if any(seq in past for seq, _ in holders):
            if name not in SINCE and any(seq in past and seq >= newest and kind in _TOLD for seq, kind in holders):
                kept.append(name)
            if name == "summary":
                kept.append(name)
        elif name in world.inside:
            if world.inside[name] not in past:
                gone.append(name)
        else:
            gone.append(name)
    return Wanted(tuple(dict.fromkeys(kept)), tuple(gone))


def in_requests(requests: Iterable[ModelRequest], words: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Canaries in what was sent, heads included."""
    out = []
    for request in requests:
        data = request.body + repr(request.headers).encode() + request.target.encode()
        out += [f"{name} in request {request.target}" for name in names if words[name].encode() in data]
    return sorted(set(out))


def names_origin(requests: Iterable[ModelRequest], root: str, conversation: str) -> list[str]:
    """Requests that name the directory of the conversation that was forked, or it: its files are of the future."""
    place = re.compile(PATH_START + re.escape(root) + PATH_END)
    out = set()
    for request in requests:
        # What stands before a path in a JSON string may be an escaped line end.
        text = re.sub(r"\\[nrt]", " ", request.body.decode("utf-8", "replace"))
        if place.search(text):
            out.add(f"the old directory in request {request.target}")
        if conversation in text:
            out.add(f"the old conversation in request {request.target}")
    return sorted(out)


def in_files(root: Path, words: Mapping[str, str], names: Sequence[str], what: str) -> list[str]:
    """Canaries in the names and contents of the files below a folder (or in one file); git's own folder left out."""
    out = []
    for path in _files(root):
        shown = str(path.relative_to(root)) if path != root else path.name
        data = os.fsencode(shown) + b"\0" + (os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes())
        out += [f"{name} in {what} {shown}" for name in names if words[name].encode() in data]
    return out


def _files(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        if root.exists():
            yield root
        return
    for folder, folders, names in os.walk(root):
        if ".git" in folders:
            folders.remove(".git")
        for name in sorted(names):
            if name != ".git":
                yield Path(folder) / name
        for name in folders:
            if (Path(folder) / name).is_symlink():
                yield Path(folder) / name


def in_git(
    worktree: Path, env: Mapping[str, str], words: Mapping[str, str], names: Sequence[str], *, everything: bool
) -> list[str]:
    """Canaries in what git tells about the work tree: status, log, HEAD. `everything`: also every ref (`--isolated`)."""
    commands = [("status",), ("log", "-p", "--stat", "HEAD"), ("symbolic-ref", "-q", "HEAD"), ("stash", "list"), ("reflog",)]
    if everything:
        commands += [("log", "-p", "--all"), ("for-each-ref",)]
    out = []
    for command in commands:
        said = subprocess.run(["git", *command], cwd=worktree, env=dict(env), capture_output=True, check=False).stdout
        out += [f"{name} in git {' '.join(command)}" for name in names if words[name].encode() in said]
    return out
