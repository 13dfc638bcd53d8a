"""Exact checkpoints: the agent CLI's own hooks take them, in step with each tool call.

A hook only takes a snapshot and leaves a note in a spool folder; the follower, the one writer, makes rows of the notes
when the call's event is recorded. A hook never fails and never speaks: the agent must not notice it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.checkpoint import Repository, Skipped, Snapshot
from beyond.errors import BeyondError, UsageError
from beyond.journal import home, now_ms
from beyond.naming import inside

#: What marks a command as ours, whoever installed it.
_MARK = "-m beyond hook "


@dataclass(frozen=True, slots=True)
class Note:
    """What a hook left: a snapshot before or after a call. `at` is Unix milliseconds."""

    path: Path
    moment: str
    call: str
    conversation: str
    at: int
    snapshot: Snapshot


@dataclass(slots=True)
class Hooks:
    """Our hooks in the CLIs' settings, and the spool that they write to."""

    spool: Path
    command: str
    #: By settings file: its bytes before (None: it was not there) and as we wrote it.
    written: dict[Path, tuple[bytes | None, bytes]] = field(default_factory=dict)

    def notes(self) -> list[Note]:
        """The notes that are there, oldest first."""
        found = []
        for path in sorted(self.spool.glob("*.json")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                data = json.loads(path.read_bytes())
                skipped = tuple(Skipped(name, why) for name, why in data["skipped"])
                snapshot = Snapshot(data["tree"], data["head"], data["files"], skipped)
                found.append(Note(path, data["moment"], data["call"], data["conversation"], data["at"], snapshot))
        return found

    def remove(self, tell: Callable[[str], None]) -> None:
        """Takes the hooks out again. A file that nobody changed meanwhile gets its very bytes back."""
        for path, (before, ours) in self.written.items():
            try:
                now = path.read_bytes()
                if now == ours and before is None:
                    path.unlink()
                elif now == ours and before is not None:
                    _replace(path, before)
                else:
                    cli = next(name for name in agents.AGENTS if _settings(name) == path)
                    _replace(path, agents.writer(cli).remove_hooks(now, str(self.spool)))
            except (OSError, ValueError, StopIteration) as error:
                tell(f"the hooks in {path} could not be removed ({error}): delete the commands with {self.spool.name} there")
        shutil.rmtree(self.spool, ignore_errors=True)


def install(names: Iterable[str], toplevel: Path) -> Hooks:
    """Puts our hooks into the settings of these CLIs. Raises `UsageError` where a file can't be changed safely."""
    root = home() / "hooks"
    root.mkdir(0o700, parents=True, exist_ok=True)
    sweep()
    spool = root / str(os.getpid())
    shutil.rmtree(spool, ignore_errors=True)
    spool.mkdir(0o700)
    (spool / "repository").write_bytes(os.fsencode(toplevel))
    hooks = Hooks(spool, f"{shlex.quote(sys.executable)} {_MARK}{shlex.quote(str(spool))}")
    try:
        for name in names:
            path = _settings(name)
            if path is None or not path.parent.is_dir():
                continue
            before = path.read_bytes() if path.exists() else None
            ours = agents.writer(name).add_hooks(before, hooks.command)
            _replace(path, ours)
            hooks.written[path] = before, ours
    except (OSError, ValueError) as error:
        hooks.remove(lambda _: None)
        raise UsageError(f"{path} can't take hooks ({error}): follow without --hooks") from None
    return hooks


def _settings(cli: str) -> Path | None:
    return agents.home(cli) / agents.writer(cli).HOOKS_FILE if agents.row(cli).surgery else None


def _replace(path: Path, data: bytes) -> None:
    """Writes a settings file whole, through a link to the file that it leads to, with the mode that it had."""
    real = Path(os.path.realpath(path))
    mode = real.stat().st_mode & 0o777 if real.exists() else 0o600
    scratch = real.with_name(f".{real.name}.bnd-{os.getpid()}")
    try:
        with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, mode)
        os.replace(scratch, real)
    finally:
        with suppress(OSError):
            scratch.unlink()


def sweep() -> None:
    """Takes out the hooks of followers that were killed."""
    root = home() / "hooks"
    dead = [folder for folder in root.glob("*") if folder.name.isdigit() and not _alive(int(folder.name))]
    for folder in dead:
        for name in agents.AGENTS:
            path = _settings(name)
            with suppress(OSError, ValueError):
                if path is not None and str(folder).encode() in (text := path.read_bytes()):
                    left = agents.writer(name).remove_hooks(text, f"{folder}")
                    _replace(path, left) if left else path.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def take(spool: Path, given: bytes) -> None:
    """What a hook does: a snapshot of the followed repository, and a note of it. Silent, whatever happens."""
    with suppress(BeyondError, OSError, ValueError, TypeError):
        if not spool.name.isdigit() or not _alive(int(spool.name)):
            return
        toplevel = Path(os.fsdecode((spool / "repository").read_bytes()))
        data: dict[str, Any] = json.loads(given)
        read = next((found for found in _readings(data) if found is not None), None)
        where = data.get("cwd")
        if read is None or not isinstance(where, str) or not inside(os.path.realpath(where), str(toplevel)):
            return
        snapshot = Repository.open(toplevel).snapshot()
        moment, call, conversation = read
        note = {
            "moment": moment, "call": call, "conversation": conversation, "at": now_ms(), "tree": snapshot.tree,
            "head": snapshot.head, "files": snapshot.files, "skipped": [[s.path, s.why] for s in snapshot.skipped],
        }  # fmt: skip
        name = f"{time.time_ns():020d}-{os.getpid()}"
        (spool / name).write_text(json.dumps(note))
        os.replace(spool / name, spool / f"{name}.json")


def _readings(data: dict[str, Any]) -> Iterator[tuple[str, str, str] | None]:
    for name, row in agents.AGENTS.items():
        if row.surgery:
            yield agents.writer(name).read_hook(data)
