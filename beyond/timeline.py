"""What `runs`, `show` and `step` print: runs as rows, and a run's steps in reading order with subagents inline."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from beyond.naming import Run, causal_past, ends_at
from beyond.query import Query
from beyond.text import columns, fit, json_text, one_line, readable, visible

#: Keys of `show --json`, exactly these.
STEP_KEYS = ("seq", "ts", "kind", "agent", "content", "tool", "tool_id", "model", "usage", "is_error")
#: Lines and characters of a content that are printed without --full.
SHORT_LINES, SHORT_CHARS = 12, 1200
#: Columns of `bnd runs` that are text; in a damaged journal they may be anything, which keeps no other run from view.
_TEXTS = frozenset(("run", "cli", "agent", "label", "title", "project", "parent_run"))
#: Ends of branches that are named above a timeline.
_TIPS = 12


@dataclass(slots=True)
class Step:
    """An event as it is printed. `depth` counts the subagents it is inside of."""

    depth: int
    run: str
    row: dict[str, Any]


def list_runs(
    query: Query,
    *,
    project: str | None = None,
    cli: str | None = None,
    count: int | None = None,
    subagents: bool = False,
) -> list[dict[str, Any]]:
    """Runs, newest first, as the view has them, with the number of checkpoints."""
    where, values = ["1"], []
    if cli is not None:
        where.append("r.cli = ?")
        values.append(cli)
    if not subagents:
        where.append("(r.relation is null or r.relation <> 'subagent')")
    if project is not None:
        path = os.path.realpath(project)
        where.append("(r.project = ? or r.project = ? or substr(r.project, 1, ?) = ?)")
        values += [project, path, len(path) + 1, path.rstrip(os.sep) + os.sep]  # type: ignore[list-item]
    sql = (
        "select r.*, (select count(*) from checkpoints c where c.run = r.run) as checkpoints, "
        "(select count(*) from run s join run p on p.id = s.parent where p.run = r.run and s.relation = 'subagent') "
        f"as subagents from runs r where {' and '.join(where)} order by coalesce(r.ended_at, r.recorded_at) desc, r.run"
    )
    if count is not None:
        sql += f" limit {min(count, _NOWHERE)}"
    cursor = query.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [{name: readable(value, name in _TEXTS) for name, value in zip(names, row, strict=True)} for row in query.rows(cursor)]


def any_runs(query: Query) -> bool:
    """Whether anything is recorded."""
    return query.execute("select 1 from run limit 1").fetchone() is not None


def _number(value: object) -> bool:
    return isinstance(value, int | float)


def _local(text: str, form: str) -> str | None:
    """A UTC time in the local zone; None at the ends of the calendar."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime(form)
    except (OverflowError, ValueError):
        return None


def _when(text: str | None) -> str:
    """A UTC time in the local zone, to the minute."""
    return "-" if not text else _local(text, "%Y-%m-%d %H:%M") or text[:16].replace("T", " ")


def _count(number: int | None) -> str:
    if not number:
        return "0" if number == 0 else "-"
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def run_table(rows: list[dict[str, Any]], width: int) -> list[str]:
    """The lines of `bnd runs`. Times are local; the zone stands in the head."""
    zone = datetime.now().astimezone().tzname() or "local"
    head = ("run", f"last ({zone})", "cli", "events", "in", "out", "cp", "from", "exit", "project", "title")
    table = [head]
    for row in rows:
        tokens_in = [row[k] for k in ("input_tokens", "cache_read_tokens", "cache_write_tokens") if _number(row[k])]
        parent = f"{row['parent_run']}@{row['parent_seq'] or '?'}" if row["parent_run"] else "-"
        notes = []
        if row["ended"] != "complete":
            notes.append(row["ended"])
        if row["source_gone"]:
            notes.append("source gone")
        if not row["events"] and row["subagents"]:
            notes.append(f"no main transcript, {row['subagents']} subagent{'s' * (row['subagents'] != 1)}")
        title = row["label"] or row["title"] or ""
        title += f" [{', '.join(notes)}]" if notes else ""
        cli = row["cli"] if row["agent"] == "main" else f"{row['cli']}/{row['agent'][:8]}"
        table.append(
            (
                row["run"], _when(row["ended_at"] or row["recorded_at"]), cli, str(row["events"]),
                _count(sum(tokens_in) if tokens_in else None), _count(row["output_tokens"]), str(row["checkpoints"]),
                parent, "-" if row["exit_status"] is None else str(row["exit_status"]),
                os.path.basename((row["project"] or "-").rstrip("/")) or "/", title,
            )
        )  # fmt: skip
    plain = [tuple(one_line(str(cell), None) for cell in line) for line in table]
    drop = {i for i in (6, 7, 8) if all(line[i] in ("-", "0") for line in plain[1:])}
    shown = [tuple(cell for i, cell in enumerate(line) if i not in drop) for line in plain]
    widths = [max(columns(line[i]) for line in shown) for i in range(len(shown[0]))]
    out = []
    for line in shown:
        text = "  ".join(cell + " " * (widths[i] - columns(cell)) for i, cell in enumerate(line)).rstrip()
        out.append(fit(text, width) if width else text)
    return out


_EVENT_COLUMNS = (
    "seq, ts, kind, agent, content, tool, tool_id, model, is_error, turn, parent_seq, active, mark, "
    "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens"
)


#: Where a subagent stands whose call is unknown: after everything.
_NOWHERE = 1 << 62


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which steps are to be read, and whether the usage objects come along."""

    kinds: tuple[str, ...]
    tools: tuple[str, ...]
    usage: bool

    def query(self, run: str) -> tuple[str, list[Any]]:
        columns = _EVENT_COLUMNS + (", usage" if self.usage else "")
        where, values = ["run = ?"], [run]
        for name, wanted in (("kind", self.kinds), ("tool", self.tools)):
            if wanted:
                where.append(f"{name} in ({', '.join('?' * len(wanted))})")
                values += wanted
        return f"select {columns} from events where {' and '.join(where)} order by seq", values


def steps(
    query: Query,
    run: Run,
    *,
    at: str | None = None,
    kinds: tuple[str, ...] = (),
    tools: tuple[str, ...] = (),
    usage: bool = False,
) -> Iterator[Step]:
    """The steps of a run in the order in which they were recorded, each subagent's after the call that started it.
    With `at`, only the causal past of that step. `usage` puts the API's own usage objects into the rows."""
    past = causal_past(query.con, run, *ends_at(query.con, run, at)) if at is not None else None
    yield from _steps(query, run.id, run.run, past, _Wanted(kinds, tools, usage), 0, set())


def _subagents(query: Query, run_id: int, past: set[int] | None) -> list[tuple[int, int, str]]:
    """(seq that it stands after, number, id) of each run that was started by `run_id`: those of unknown place last.
    Within a causal past, only those whose result is in it."""
    rows = query.execute(
        "select r.parent_seq, r.id, r.run, c.result_seq from run r left join event c on c.run = r.parent "
        "and c.seq = r.parent_seq where r.parent = ? and r.relation = 'subagent' order by r.id",
        (run_id,),
    ).fetchall()
    if past is not None:
        rows = [row for row in rows if row[3] in past]
    return sorted((_NOWHERE if seq is None else seq, number, name) for seq, number, name, _ in rows)


def _steps(
    query: Query, run_id: int, run: str, past: set[int] | None, wanted: _Wanted, depth: int, seen: set[int]
) -> Iterator[Step]:
    seen.add(run_id)
    waiting = [child for child in _subagents(query, run_id, past) if child[1] not in seen]

    def inside(before: float) -> Iterator[Step]:
        while waiting and waiting[0][0] < before:
            _, child, name = waiting.pop(0)
            yield from _steps(query, child, name, None, wanted, depth + 1, seen)

    cursor = query.execute(*wanted.query(run))
    names = [column[0] for column in cursor.description]
    for values in query.rows(cursor):
        row = dict(zip(names, values, strict=True))
        yield from inside(row["seq"])
        if past is None or row["seq"] in past:
            yield Step(depth, run, row)
    yield from inside(float("inf"))


def step_json(step: Step, *, ascii_only: bool = False) -> str:
    """A step (read with its usage) as one line of JSON, with `STEP_KEYS` exactly."""
    row = {key: step.row[key] for key in STEP_KEYS}
    row["usage"] = json.loads(row["usage"]) if row["usage"] else None
    row["is_error"] = None if row["is_error"] is None else bool(row["is_error"])
    return json_text(row, ascii_only=ascii_only)


def notes_of(query: Query, run: str) -> dict[int | None, list[str]]:
    """Remarks by the step that they are about."""
    out: dict[int | None, list[str]] = {}
    for seq, text in query.rows(query.execute("select seq, text from notes where run = ? order by made_at", (run,))):
        out.setdefault(seq, []).append(text)
    return out


def head_lines(query: Query, run: Run) -> list[str]:
    """What stands above a timeline."""
    cursor = query.execute("select * from runs where run = ?", (run.run,))
    row = dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True))
    lines = [f"run {row['run']}  {row['cli']} {row['cli_version'] or ''}".rstrip() + f"  {row['model'] or ''}".rstrip()]
    if row["label"] or row["title"]:
        lines.append(f"{row['label'] or row['title']}")
    lines.append(f"{row['project'] or '-'}  {_when(row['started_at'])} to {_when(row['ended_at'])}  {row['ended']}")
    (extra,) = query.execute("select extra from run where id = ?", (run.id,)).fetchone()
    later = json.loads(extra).get("directories") if extra else None
    if later:
        lines.append(f"later in {', '.join(later[:8])}{' …' if len(later) > 8 else ''}")
    if row["parent_run"]:
        lines.append(f"{row['relation']} of {row['parent_run']}@{row['parent_seq'] or '?'}")
    tips = branch_tips(query, run)
    if len(tips) > 1:
        shown = ("… " if len(tips) > _TIPS else "") + ", ".join(map(str, tips[-_TIPS:]))
        lines.append(f"{len(tips)} branches end at events {shown}; the active one is not marked ~")
    for generation, damage, gone in query.execute(
        "select generation, damage, gone_since from sources where run = ? order by generation", (run.run,)
    ):
        if gone:
            lines.append(f"source gone since {gone}")
        if damage:
            lines += [f"source{f' (generation {generation})' if generation else ''}: {text}" for text in _damage(damage)]
    return list(dict.fromkeys(lines))


def _damage(text: str) -> Iterator[str]:
    for item in json.loads(text):
        where = f" (byte {item['offset']}, {item['length']} bytes)" if "offset" in item else ""
        yield f"line {item['line']}{where}: {item['what']}"


def branch_tips(query: Query, run: Run) -> list[int]:
    """The last step of each branch."""
    rows = query.execute(
        "select seq, kind, parent_seq, result_seq, turn, active from event where run = ? and link is not null order by seq",
        (run.id,),
    ).fetchall()
    followed = {parent for _, _, parent, _, _, _ in rows}
    last = {(turn, active): seq for seq, _, _, _, turn, active in rows}
    # of calls made together, only one result is followed: the others are no ends where their turn goes on
    followed |= {result for _, _, _, result, turn, active in rows if result and last[turn, active] > result}
    return [seq for seq, kind, *_ in rows if kind != "tool_call" and seq not in followed]


_SIGNS = {
    "user_msg": "user", "assistant_msg": "assistant", "thinking": "thinking", "tool_call": "call", "tool_result": "result",
    "usage": "usage", "meta": "meta", "error": "error", "io": "io",
}  # fmt: skip
_COLOURS = {"user_msg": "green", "thinking": "bright_black", "tool_call": "cyan", "tool_result": "blue", "error": "red"}


def step_lines(step: Step, *, full: bool, notes: list[str], style: Callable[..., str]) -> list[str]:
    """A step as text; `style` is click's."""
    row = step.row
    pad = "    " * step.depth
    marks = []
    if not row["active"]:
        marks.append("~rewound")
    if row["mark"]:
        marks.append(row["mark"])
    if row["is_error"] and row["kind"] in ("tool_result", "tool_call"):
        marks.append("failed")
    what = _SIGNS[row["kind"]] + (f" {row['tool']}" if row["tool"] else "")
    clock = _clock(row["ts"])
    head = f"{pad}{row['seq']:>5}{'' if row['active'] else '~'}  {clock}  {what}"
    if step.depth:
        head += f"  ({step.run})"
    if marks:
        head += f"  [{', '.join(marks)}]"
    faint = not row["active"] or row["kind"] in ("usage", "thinking")
    dim = True if faint else None  # False would end boldness too
    lines = [
        style(
            visible(head), fg=_COLOURS.get(row["kind"]), dim=dim, bold=True if row["kind"] == "user_msg" and not faint else None
        )
    ]
    if row["kind"] == "usage":
        counts = "  ".join(
            f"{name} {row[key]:,}"
            for name, key in (("in", "input_tokens"), ("out", "output_tokens"), ("cache read", "cache_read_tokens"),
                              ("cache write", "cache_write_tokens"))
            if row[key] is not None
        )  # fmt: skip
        lines[0] = style(visible(head + "  " + (counts or "counted with the run it was copied from")), dim=True)
    elif row["content"]:
        lines += [style(f"{pad}       {line}", dim=dim) for line in _body(visible(row["content"]), full)]
    lines += [style(f"{pad}       note: {' '.join(visible(note).split())}", fg="yellow") for note in notes]
    return lines


def _clock(ts: str | None) -> str:
    return "--:--:--" if not ts else _local(ts, "%H:%M:%S") or ts[11:19]


def _body(text: str, full: bool) -> list[str]:
    lines = text.split("\n")
    if full:
        return lines
    out, size = [], 0
    for number, line in enumerate(lines):
        if number >= SHORT_LINES or size > SHORT_CHARS:
            out.append(f"… {len(lines) - number} lines more (--full)")
            break
        if len(line) > SHORT_CHARS - size:
            out.append(line[: max(SHORT_CHARS - size, 0)] + f"… {len(line)} characters in all (--full)")
        else:
            out.append(line)
        size += len(line)
    return out


class Walk:
    """A place in a run, for stepping through it. Steps of subagents are left to their own runs."""

    def __init__(self, query: Query, run: Run) -> None:
        self._query = query
        self._run = run
        self._seqs = [row[0] for row in query.execute("select seq from event where run = ? order by seq", (run.id,))]
        self._notes = notes_of(query, run.run)
        self.place = 0
        self.count = len(self._seqs)
        self.last = self._seqs[-1] if self._seqs else 0

    def _row(self, seq: int) -> dict[str, Any]:
        cursor = self._query.execute(
            f"select {_EVENT_COLUMNS}, usage from events where run = ? and seq = ?", (self._run.run, seq)
        )
        return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))

    def here(self) -> tuple[Step, list[str]]:
        """The step at this place, and the remarks on it."""
        seq = self._seqs[self.place]
        return Step(0, self._run.run, self._row(seq)), self._notes.get(seq, [])

    def go(self, by: int) -> bool:
        """Moves on or back; False at the ends."""
        if not 0 <= self.place + by < self.count:
            return False
        self.place += by
        return True

    def go_to(self, seq: int) -> bool:
        """Moves to a step by its number, a negative one counted from the end."""
        seq = self.last + 1 + seq if seq < 0 else seq
        if seq not in self._seqs:
            return False
        self.place = self._seqs.index(seq)
        return True

    def search(self, text: str) -> bool:
        """Moves to the next step whose content holds `text`, in any case."""
        wanted = text.casefold()
        for place in range(self.place + 1, self.count):
            content = self._row(self._seqs[place])["content"]
            if content and wanted in content.casefold():
                self.place = place
                return True
        return False
