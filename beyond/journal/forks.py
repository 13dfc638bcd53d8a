"""Rows about checkpoints, forks and proofs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beyond.event import printable
from beyond.journal import Journal, now_ms


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A git tree of the working copy after an event. Times in Unix milliseconds; ids are git's hex ones."""

    run_id: int
    seq: int
    repository: str
    tree_id: str
    head_id: str | None
    commit_id: str | None
    ref: str | None
    how: str
    aligned: bool
    taken_at: int
    files_changed: int | None
    skipped: tuple[tuple[str, str], ...] = ()
    id: int | None = None


_COLUMNS = "run, seq, repository, tree_id, head_id, commit_id, ref, how, aligned, taken_at, files_changed, skipped, id"


def _checkpoint(row: tuple[Any, ...]) -> Checkpoint:
    skipped = json.loads(row[11]) if row[11] else []
    run, seq, repository, tree, head, commit, ref, how, aligned, taken_at, changed, _, number = row
    what = tuple((path, why) for path, why in skipped)
    return Checkpoint(run, seq, repository, tree, head, commit, ref, how, bool(aligned), taken_at, changed, what, number)


def add_checkpoint(journal: Journal, checkpoint: Checkpoint) -> None:
    """Keeps a checkpoint's row."""
    one = checkpoint
    skipped = json.dumps([[printable(path), why] for path, why in one.skipped]) if one.skipped else None
    with journal.write() as con:
        con.execute(
            f"insert into checkpoint ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                one.run_id, one.seq, printable(one.repository), one.tree_id, one.head_id, one.commit_id, one.ref, one.how,
                int(one.aligned), one.taken_at, one.files_changed, skipped, None,
            ),
        )  # fmt: skip


def last_checkpoint(con: sqlite3.Connection, run_id: int) -> Checkpoint | None:
    """The newest checkpoint of a run."""
    row = con.execute(f"select {_COLUMNS} from checkpoint where run = ? order by id desc limit 1", (run_id,)).fetchone()
    return _checkpoint(row) if row else None


def checkpoint_at(con: sqlite3.Connection, run_id: int, seq: int) -> Checkpoint | None:
    """The checkpoint at or before an event: of the newest event not later than `seq`, the one taken last. One that was
    taken after the fact stands for no earlier step than its own."""
    row = con.execute(
        f"select {_COLUMNS} from checkpoint where run = ? and seq <= ? order by seq desc, id desc limit 1", (run_id, seq)
    ).fetchone()
    return _checkpoint(row) if row else None


def moved_since(con: sqlite3.Connection, checkpoint: Checkpoint, seq: int) -> bool:
    """Whether a tool ran between a checkpoint and a later event, so that the files may have changed in between."""
    row = con.execute(
        "select 1 from event where run = ? and seq > ? and seq <= ? and kind in ('tool_call', 'tool_result') limit 1",
        (checkpoint.run_id, checkpoint.seq, seq),
    ).fetchone()
    return row is not None


@dataclass(frozen=True, slots=True)
class Fork:
    """What is kept about a fork besides its run."""

    run: str
    cli: str
    conversation: str | None
    first_hash: bytes | None
    parent_id: int
    ends: Sequence[int]
    method: str
    reason: str | None
    checkpoint: int | None
    worktree: str
    launch: dict[str, Any]
    notes: Sequence[str]
    title: str
    label: str | None


def add_fork(journal: Journal, fork: Fork) -> int:
    """Makes the run of a fork (or marks the one that somebody recorded already). Returns its number."""
    now = now_ms()
    with journal.write() as con:
        row = con.execute("select id from run where run = ?", (fork.run,)).fetchone()
        if row is None:
            columns = {
                "run": fork.run, "cli": fork.cli, "mode": "transcript", "conversation": fork.conversation,
                "first_hash": fork.first_hash, "agent": "main", "title": printable(fork.title), "title_rank": 1,
                "project": printable(fork.worktree), "started_at": now, "ended_at": now, "recorded_at": now,
            }  # fmt: skip
            cursor = con.execute(
                f"insert into run ({', '.join(columns)}) values ({', '.join('?' * len(columns))})", tuple(columns.values())
            )
            number = int(cursor.lastrowid or 0)
        else:
            number = row[0]
        con.execute(
            "update run set relation = 'fork', parent = ?, parent_seq = ?, forked_at = ?, method = ?, label = coalesce(?, label) "
            "where id = ?",
            (fork.parent_id, fork.ends[-1], fork.ends[-1], fork.method, fork.label, number),
        )
        con.execute(
            "insert into fork (run, ends, method, reason, files_from, worktree, launch, notes, made_at) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                number, json.dumps(list(fork.ends)), fork.method, fork.reason, fork.checkpoint, printable(fork.worktree),
                json.dumps(fork.launch), json.dumps(list(fork.notes)), now,
            ),
        )  # fmt: skip
        con.execute(
            # What the fork repeats counts for its parent, whichever of the two was recorded first.
            "update event set counted = 0, input_tokens = null, output_tokens = null, cache_read_tokens = null, "
            "cache_write_tokens = null where run = ? and kind = 'usage' and counted = 1 and exists (select 1 from event o "
            "where o.kind = 'usage' and o.usage_key = event.usage_key and o.run <> event.run and o.counted = 1)",
            (number,),
        )
    return number


def add_proof(journal: Journal, cli: str, version: str, passed: bool, certificate: dict[str, Any]) -> None:
    """Keeps a certificate. It is a record; what opens a gate stands elsewhere."""
    with journal.write() as con:
        con.execute(
            "insert into proof (cli, version, passed, certificate, made_at) values (?, ?, ?, ?, ?)",
            (cli, version, int(passed), json.dumps(certificate), now_ms()),
        )
