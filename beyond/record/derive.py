"""Deriving recorded runs again: what `fsck` compares, and what a corrected ingester would change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from beyond import agents
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


def recount(cli: str, raw: bytes) -> tuple[int, int, int, int] | None:
    """The token counts of the usage event of a line."""
    from beyond.event import USAGE_PART

    event = agents.content_of(cli)(raw).get(USAGE_PART)
    return event.tokens if event is not None else None
