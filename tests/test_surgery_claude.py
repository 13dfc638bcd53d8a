"""Forks of Claude Code's conversations, from the journal into a scratch store, and read again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.fork.plan import Planner, Target
from beyond.journal import Journal
from beyond.naming import Run, causal_past, resolve
from beyond.record import record
from beyond.surgery.base import ForkPlan, Written

NEW_ID = "0f0e0d0c-0b0a-4908-8706-050403020100"
NEW_ROOT = "/home/u/.bnd/worktrees/notes-1"


@dataclass
class Parent:
    """A recorded conversation, with what its events say."""

    journal: Journal
    run: Run
    store: Path
    conversation: str
    #: seq: (generation, line, part, kind, link, active).
    events: dict[int, tuple[int, int, int, str, bytes | None, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, journal: Journal, folder: Path, conversation: str | None = None) -> Parent:
        found = list(agents.store("claude").conversations(folder))
        list(record(journal, found))
        return cls.known(journal, folder, conversation or str(found[0].conversation))

    @classmethod
    def known(cls, journal: Journal, folder: Path, conversation: str) -> Parent:
        parent = cls(journal, resolve(journal.con, conversation), folder, conversation)
        rows = journal.con.execute(
            "select e.seq, s.generation, e.line, e.part, e.kind, e.link, e.active from event e join source s "
            "on s.id = e.source where e.run = ? order by e.seq",
            (parent.run.id,),
        )
        parent.events = {seq: tuple(rest) for seq, *rest in rows}
        return parent

    def plan(self, *ends: int, store: Path, root: str = NEW_ROOT, new: str = NEW_ID, **more: Any) -> ForkPlan:
        given = {"now_ms": 1796090000000, "title": "notes @ 1", "side_file": self.side_file, **more}
        target = Target(store, root, new_conversation=new, **given)
        return Planner(self.journal.con, self.journal.reader).plan(self.run, ends, target)

    def side_file(self, name: str) -> bytes | None:
        for path in self.store.glob(f"projects/*/{self.conversation}/{name}"):
            return path.read_bytes()
        return None

    def past(self, *ends: int) -> set[int]:
        return causal_past(self.journal.con, self.run, *ends)

    def result_of(self, call: int) -> int:
        """The result of a call."""
        row = self.journal.con.execute("select result_seq from event where run = ? and seq = ?", (self.run.id, call)).fetchone()
        return int(row[0])


def put(written: Written, store: Path) -> Path:
    """Places what was written, as the fork command does but for syncing. The transcript."""
    for part in written.parts:
        for name, chunks in part.files.items():
            path = store / part.path / name if name else store / part.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for chunk in chunks():
                    file.write(chunk)
    return store / written.main


def everything(transcript: Path) -> bytes:
    """All bytes of a conversation's files, and their names."""
    out = [transcript.read_bytes()]
    for path in sorted(transcript.with_suffix("").rglob("*")):
        out.append(path.name.encode())
        if path.is_file():
            out.append(path.read_bytes())
    return b"\n".join(out)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "parent.db") as opened:
        yield opened
