"""Deriving recorded runs again: what `fsck` compares, and what a corrected ingester would change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beyond import agents
from beyond.event import printable
from beyond.journal import Journal
from beyond.record.session import Session
from beyond.store import Found


def differing(journal: Journal) -> Iterator[str]:
    """Yields a line for each run whose stored links and other derived columns don't follow from its lines."""
    rows = journal.con.execute(
        "select r.id, r.run, r.cli, r.conversation, r.agent from run r where exists "
        "(select 1 from source s where s.run = r.id) order by r.id"
    ).fetchall()
    for run_id, run, cli, conversation, agent in rows:
        if cli not in agents.AGENTS:
            continue
        session = Session(journal, Found(cli, Path(f"run {run}"), conversation, agent))
        for name, count in session.rederive(run_id):
            yield f"run {name}: {count} events are stored otherwise than they follow from its lines"


class Survivors:
    """What `forget` asks about the runs that stay: derived again from their own lines."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def _session(self, run_id: int) -> Session:
        row = self._journal.con.execute("select run, cli, conversation, agent from run where id = ?", (run_id,)).fetchone()
        return Session(self._journal, Found(row[1], Path(f"run {row[0]}"), row[2], row[3]))

    def usage(self, run_id: int) -> dict[int, tuple[int, int, int, int]]:
        """The tokens of a run's usage events by seq, whether they count for it or not."""
        return self._session(run_id).usage(run_id)

    def title(self, run_id: int) -> tuple[str | None, int]:
        """The title that a run's own lines give it, and its rank."""
        session = self._session(run_id)
        session.rederive(run_id)
        facts = session.ingester.facts
        return (printable(facts.title) if facts.title else None), facts.title_rank
