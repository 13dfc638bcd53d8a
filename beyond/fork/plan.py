"""From a step of a recorded run to the frozen plan of a fork: what is kept, and the lines that hold it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from beyond import agents
from beyond.blob import Reader
from beyond.ingest.base import Event
from beyond.naming import Run, causal_past
from beyond.schema import load
from beyond.surgery.base import ForkPlan, Line, Step, SubPlan

_Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a fork shall live: the CLI's store, the directory it runs in, and what it is called."""

    store: Path
    new_root: str
    new_conversation: str
    now_ms: int
    title: str
    version: str | None = None
    side_file: Callable[[str], bytes | None] = lambda _: None
    without: frozenset[str] = frozenset()


@cache
def _single(part: int) -> frozenset[int]:
    """One set for all lines that have only this part."""
    return frozenset((part,))


@dataclass(slots=True)
class _Cut:
    """What a query over the events of a file gave: the kept parts of each line, and the kept events in order."""

    kept: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    dropped: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    steps: list[tuple[Step, int]] = field(default_factory=list)  # with source.id
    open_calls: list[tuple[Step, int]] = field(default_factory=list)


class Planner:
    """Makes plans from one open journal (of a `Journal` or a `Query`)."""

    def __init__(self, con: sqlite3.Connection, reader: Reader) -> None:
        self._con = con
        self._reader = reader

    def plan(self, run: Run, ends: Sequence[int], target: Target) -> ForkPlan:
        """The plan for keeping the causal past of the events `ends` of `run`."""
        con = self._con
        past = causal_past(con, run, *ends)
        conversation, project, version = con.execute(
            "select conversation, project, cli_version from run where id = ?", (run.id,)
        ).fetchone()
        seq = ends[-1]
        (cut_ts,) = con.execute(
            "select max(ts) from event where run = ? and seq in (select value from json_each(?))",
            (run.id, json.dumps(sorted(ends))),
        ).fetchone()
        sources = con.execute("select generation, id from source where run = ? order by generation", (run.id,)).fetchall()
        if not sources:  # a subagent written into its parent's file
            sources = con.execute(
                "select generation, id from source where id in (select distinct source from event where run = ?) "
                "order by generation",
                (run.id,),
            ).fetchall()
        inside, beside = self._subagents(run, past)
        cut = self._cut(run.id, past, inside, cut_ts)
        main = [(step, source) for step, source in cut.steps]
        paths = con.execute(
            "select f.path from source s join file f on f.source = s.id where s.run = ? order by s.generation desc", (run.id,)
        ).fetchall()
        return ForkPlan(
            cli=run.cli,
            source_version=version,
            target_version=target.version,
            conversation=conversation or "",
            new_conversation=target.new_conversation,
            old_root=project,
            new_root=target.new_root,
            store=target.store,
            old_paths=tuple(path for (path,) in paths),
            run=run.run,
            seq=seq,
            cut_ts=cut_ts,
            now_ms=target.now_ms,
            title=target.title,
            steps=lambda: self._read_steps(run.cli, main),
            lines=lambda: self._lines(sources, cut),
            open_calls=tuple(self._read_steps(run.cli, cut.open_calls)),
            subagents=tuple(self._subplan(sub, cut_ts) for sub in beside),
            side_file=target.side_file,
            without=target.without,
            cut=next((step.place for step, _ in reversed(cut.steps) if step.seq == seq), None),
        )

    def _cut(self, run_id: int, past: set[int], others: list[int], until: int | None) -> _Cut:
        cut = _Cut()
        rows = self._con.execute(
            load("queries/fork.sql"),
            {"run": run_id, "past": json.dumps(sorted(past)), "others": json.dumps(others), "until": until},
        )
        for run, seq, generation, line, part, kind, ts, tool, tool_id, error, mark, path, turn, kept, result, source in rows:
            if line is None:
                continue
            parts = cut.kept if kept else cut.dropped
            key = generation, line
            parts[key] = parts[key] | {part} if key in parts else _single(part)
            if kept and run == run_id:
                flag = None if error is None or kind != "tool_result" else bool(error)
                step = Step(seq, kind, None, tool, tool_id, flag, ts, mark, path, (generation, line, part), turn)
                cut.steps.append((step, source))
                if kind == "tool_call" and result not in past:
                    cut.open_calls.append((step, source))
        return cut

    def _subagents(self, run: Run, past: set[int]) -> tuple[list[int], list[tuple[int, str, str | None, str, bool]]]:
        """The subagents that a kept call started: those written into the same file (run.id), and those with their own:
        (run.id, agent, tool_id, path, whether their call's result is kept)."""
        inside: list[int] = []
        beside: list[tuple[int, str, str | None, str, bool]] = []
        todo = [(run.id, past)]
        while todo:
            parent, kept = todo.pop()
            rows = self._con.execute(
                "select r.id, r.agent, r.parent_seq, e.tool_id, e.result_seq, (select f.path from source s join file f on "
                "f.source = s.id where s.run = r.id order by s.generation desc limit 1), "
                "exists (select 1 from source s where s.run = r.id) from run r "
                "left join event e on e.run = r.parent and e.seq = r.parent_seq "
                "where r.parent = ? and r.relation = 'subagent' order by r.id",
                (parent,),
            ).fetchall()
            for run_id, agent, seq, tool_id, result, path, own in rows:
                if seq is None or seq not in kept:
                    continue
                if own:
                    beside.append((run_id, agent, tool_id, path or "", result in kept))
                else:
                    inside.append(run_id)
                seqs = self._con.execute("select seq from event where run = ?", (run_id,)).fetchall()
                todo.append((run_id, {s for (s,) in seqs}))
        return inside, beside

    def _subplan(self, sub: tuple[int, str, str | None, str, bool], until: int | None) -> SubPlan:
        run_id, agent, tool_id, path, ended = sub
        sources = self._con.execute("select generation, id from source where run = ? order by generation", (run_id,)).fetchall()
        seqs = self._con.execute("select seq, ts from event where run = ?", (run_id,)).fetchall()
        kept = {seq for seq, ts in seqs if until is None or (ts is not None and ts <= until)}
        cut = self._cut(run_id, kept, [], until)
        return SubPlan(agent, tool_id, path, lambda: self._lines(sources, cut), ended and len(kept) == len(seqs))

    def _lines(self, sources: list[tuple[int, int]], cut: _Cut) -> Iterator[Line]:
        nothing: frozenset[int] = frozenset()
        kept, dropped = cut.kept, cut.dropped
        for generation, source in sources:
            number = 0
            for number, _, raw in self._reader.lines(source):
                key = generation, number
                yield Line(generation, number, raw, kept.get(key, nothing), dropped.get(key, nothing))
            key = generation, number + 1
            if key in kept or key in dropped:  # a whole record without its newline
                yield Line(*key, self._reader.tail(source), kept.get(key, nothing), dropped.get(key, nothing))

    def _read_steps(self, cli: str, steps: list[tuple[Step, int]]) -> Iterator[Step]:
        """The steps with their contents; the line parsed last is kept for its other parts."""
        read = agents.content_of(cli)
        last: tuple[int, int] | None = None
        parts: dict[int, Event] = {}
        for step, source in steps:
            assert step.place is not None
            _, line, part = step.place
            if (source, line) != last:
                last = source, line
                try:
                    parts = read(self._reader.line(source, line))
                except ValueError:
                    parts = {}
            event = parts.get(part)
            content = event.content if event is not None else None
            yield Step(
                step.seq, step.kind, content, step.tool, step.tool_id, step.is_error, step.ts, step.mark, step.path,
                step.place, step.turn,
            )  # fmt: skip
