"""Naming a run and a step: ids, prefixes, ``@``, labels, ``--at``, and a step's causal past."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beyond.errors import Ambiguous, NotFound, UsageError
from beyond.event import printable


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was named: its number in the tables, and its id."""

    id: int
    run: str
    cli: str
    agent: str


# -- naming a run -----------------------------------------------------------------------------------

_RUN = "select r.id, r.run, r.cli, r.agent, coalesce(r.label, r.title, ''), r.project from run r"
_FORMS = (
    ("r.run = lower(?)", "r.id"),
    ("r.label = ?", "r.id"),
    ("r.conversation = ? and r.agent = 'main'", "r.id"),
    ("r.agent = ? and r.relation = 'subagent'", "r.id"),
)
#: Candidates that the message of `Ambiguous` names.
_NAMED = 10


def resolve(con: sqlite3.Connection, text: str, *, tell: Callable[[str], None] = lambda _: None) -> Run:
    """The run that `text` names: ``@``, ``@N``, a unique prefix of an id, a label, or a conversation's id.

    Raises `NotFound`, or `Ambiguous` with the candidates. `tell` is told when ``@`` finds no run of this directory.
    """
    text = printable(text)
    if text.startswith("@"):
        return _newest(con, text, tell)
    for condition, order in _FORMS:
        rows = con.execute(f"{_RUN} where {condition} order by {order}", (text,)).fetchall()
        if rows:
            return _only(text, rows)
    if re.fullmatch(r"[0-9a-fA-F]{1,12}", text):
        low = text.lower()
        rows = con.execute(f"{_RUN} where r.run >= ? and r.run < ? order by r.run", (low, low + "g")).fetchall()
        if rows:
            return _only(text, rows)
    raise NotFound(f"no run {text!r}: `bnd runs` lists them")


def _only(text: str, rows: list[tuple[Any, ...]]) -> Run:
    if len(rows) == 1:
        return Run(*rows[0][:4])
    shown = ", ".join(f"{row[1]} ({row[4][:40]})" if row[4] else row[1] for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    raise Ambiguous(f"{text!r} fits {len(rows)} runs: {shown}{more}: give more of the id")


def _newest(con: sqlite3.Connection, text: str, tell: Callable[[str], None]) -> Run:
    digits = text[1:] or "0"
    if not re.fullmatch(r"[0-9]{1,9}", digits):
        raise UsageError(f"{text!r} names no run: use @ for the newest of this project, @1 for the one before it")
    number = int(digits)
    # A fork that nobody has started yet holds nothing to look at.
    there = "r.agent = 'main' and exists (select 1 from event e where e.run = r.id)"
    rows = con.execute(f"{_RUN} where {there} order by coalesce(r.ended_at, r.recorded_at) desc, r.id desc").fetchall()
    here = os.path.realpath(Path.cwd())
    chosen = [row for row in rows if row[5] and inside(here, row[5])]
    place = "of this directory"
    if not chosen:
        chosen, place = rows, "in the journal"
        if rows:
            tell("no run of this directory; taken from all projects")
    if number >= len(chosen):
        counted = f"only {len(chosen)} run{'s' * (len(chosen) != 1)} {place}" if chosen else "no run in the journal"
        raise NotFound(f"{text}: there is {counted}: `bnd runs` lists them")
    return Run(*chosen[number][:4])


def inside(path: str, folder: str) -> bool:
    """Whether `path` (a real one) is `folder` or lies in it."""
    if "\0" in folder:
        return False
    folder = os.path.realpath(folder)
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def resolve_id(con: sqlite3.Connection, text: str) -> int:
    """The number of the run that `text` names."""
    return resolve(con, text).id


def resolve_place(con: sqlite3.Connection, text: str, *, tell: Callable[[str], None] = lambda _: None) -> tuple[Run, int | None]:
    """RUN or RUN:SEQ."""
    name, colon, seq = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,9}", seq):
        return resolve(con, text, tell=tell), None
    try:
        run = resolve(con, name, tell=tell)
    except NotFound:
        try:
            return resolve(con, text, tell=tell), None  # a label may end so
        except NotFound:
            pass
        raise
    if not con.execute("select 1 from event where run = ? and seq = ?", (run.id, int(seq))).fetchone():
        raise NotFound(f"run {run.run} has no event {seq}: `bnd show {run.run}` lists them")
    return run, int(seq)


# -- steps ------------------------------------------------------------------------------------------

#: Kinds of the steps that one answer of the model is made of.
_ANSWER = ("tool_call", "assistant_msg", "thinking")


def step_at(con: sqlite3.Connection, run: Run, text: str) -> int:
    """The seq that ``--at`` names: N, -N, turn:N, cp:N or i:N. Raises `UsageError` or `NotFound`."""
    return ends_at(con, run, text)[-1]


def ends_at(con: sqlite3.Connection, run: Run, text: str) -> list[int]:
    """The seqs that ``--at`` names, the last one in the end: one step, or all active ones of a turn."""
    match = re.fullmatch(r"(turn|cp|i):([0-9]{1,9})|(-?[0-9]{1,9})", text)
    if not match:
        raise UsageError(f"--at {text!r} is no step: use N, -N, turn:N, cp:N or i:N")
    if match[3]:
        (last,) = con.execute("select coalesce(max(seq), 0) from event where run = ?", (run.id,)).fetchone()
        number = int(match[3])
        seq = last + 1 + number if number < 0 else number
        if not 1 <= seq <= last:
            raise NotFound(f"run {run.run} has events 1 to {last}: --at {text} is not one of them")
        return [seq]
    if match[1] == "turn":
        rows = con.execute(
            "select seq from event where run = ? and turn = ? and active = 1 order by seq", (run.id, int(match[2]))
        ).fetchall()
        if not rows:
            (turns,) = con.execute("select max(turn) from event where run = ? and active = 1", (run.id,)).fetchone()
            raise NotFound(f"run {run.run} has {turns or 0} turns: --at {text} is not one of them")
        return [row[0] for row in rows]
    if match[1] == "cp":
        rows = con.execute("select seq from checkpoint where run = ? order by id", (run.id,)).fetchall()
        number = int(match[2])
        if not 1 <= number <= len(rows):
            has = f"checkpoints 1 to {len(rows)}" if rows else "no checkpoints: use an event's number or turn:N"
            raise NotFound(f"run {run.run} has {has}" + (f": --at {text} is not one of them" if rows else ""))
        if not rows[number - 1][0]:
            raise NotFound(f"checkpoint {number} of run {run.run} was taken before its first step: nothing to fork there")
        return [rows[number - 1][0]]
    raise NotFound(f"run {run.run} has no interchanges: use an event's number or turn:N")


def causal_past(con: sqlite3.Connection, run: Run, *ends: int) -> set[int]:
    """The seqs of everything that the events `ends` came from, themselves included, and what hangs on those steps up
    to the last of them (usage, errors, unknown records).

    The causes of a step are the step before it on its branch, or, after tool calls, the results of all calls of the
    same answer. Exactly the causes that its link is made of.
    """
    cut = max(ends)
    rows = con.execute(
        "select seq, kind, parent_seq, result_seq, link is null from event where run = ? and seq <= ?", (run.id, cut)
    ).fetchall()
    graph = _Graph(rows, cut)
    past = graph.past(ends)
    past.update(seq for seq, _, parent, _, loose in rows if loose and parent in past)
    return past


class _Graph:
    """The steps of a run up to a cut, as dictionaries by seq."""

    def __init__(self, rows: Iterable[tuple[int, str, int | None, int | None, int]], cut: int) -> None:
        self._kind: dict[int, str] = {}
        self._parent: dict[int, int | None] = {}
        self._result: dict[int, int] = {}
        for seq, kind, parent, result, _ in rows:
            self._kind[seq], self._parent[seq] = kind, parent
            if result is not None and result <= cut:
                self._result[seq] = result
        #: The steps that go on an answer, by the one that they go on.
        self._next: dict[int, list[int]] = {}
        for seq, parent in self._parent.items():
            if parent is not None and self._in_answer(seq) and self._in_answer(parent):
                self._next.setdefault(parent, []).append(seq)

    def _in_answer(self, seq: int | None) -> bool:
        return seq is not None and self._kind.get(seq) in _ANSWER

    def past(self, ends: Iterable[int]) -> set[int]:
        """`ends` and all that they came from."""
        past: set[int] = set()
        asked: set[int] = set()
        queue = list(ends)
        while queue:
            seq = queue.pop()
            if seq in past or seq not in self._kind:
                continue
            past.add(seq)
            parent = self._parent[seq]
            if parent is None:
                continue
            queue.append(parent)
            if self._kind[seq] != "tool_result" and self._kind.get(parent) == "tool_result":
                queue += self._results_with(self._parent[parent], asked)
        return past

    def _results_with(self, call: int | None, asked: set[int]) -> Iterator[int]:
        """The results of the calls that were made in the same answer as `call`, that one's included."""
        if call is None or self._kind.get(call) != "tool_call":
            return
        queue = [call]
        while queue:
            seq = queue.pop()
            if seq in asked:
                continue
            asked.add(seq)
            if seq in self._result:
                yield self._result[seq]
            queue += self._next.get(seq, ())
            parent = self._parent[seq]
            if parent is not None and self._in_answer(parent):
                queue.append(parent)
