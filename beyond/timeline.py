"""What `runs`, `show` and `step` print: runs as rows, and a run's steps in reading order with subagents inline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from beyond.naming import Run, causal_past, step_at
from beyond.query import Query
from beyond.text import one_line, visible

#: Keys of `show --json`, exactly these.
STEP_KEYS = ("seq", "ts", "kind", "agent", "content", "tool", "tool_id", "model", "usage", "is_error")
#: Lines and characters of a content that are printed without --full.
SHORT_LINES, SHORT_CHARS = 12, 1200


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
        "(select count(*) from runs s where s.parent_run = r.run and s.relation = 'subagent') as subagents "
        f"from runs r where {' and '.join(where)} order by coalesce(r.ended_at, r.recorded_at) desc, r.run"
    )
    if count is not None:
        sql += f" limit {count}"
    cursor = query.execute(sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in query.rows(cursor)]


def _when(text: str | None) -> str:
    """A UTC time in the local zone, to the minute."""
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")


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
        tokens_in = [row[k] for k in ("input_tokens", "cache_read_tokens", "cache_write_tokens") if row[k] is not None]
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
    widths = [max(len(line[i]) for line in shown) for i in range(len(shown[0]))]
    out = []
    for line in shown:
        text = "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip()
        out.append(one_line_keep(text, width) if width else text)
    return out


def one_line_keep(text: str, width: int) -> str:
    """`text` cut at the width of the terminal, its spacing kept."""
    return text if len(text) <= width else text[: width - 1] + "…"


_EVENT_COLUMNS = (
    "seq, ts, kind, agent, content, tool, tool_id, model, usage, is_error, turn, parent_seq, active, mark, "
    "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens"
)


def steps(
    query: Query,
    run: Run,
    *,
    at: str | None = None,
    kinds: tuple[str, ...] = (),
    tools: tuple[str, ...] = (),
    inline: bool = True,
) -> Iterator[Step]:
    """The steps of a run in the order in which they were recorded, each subagent's after the call that started it.
    With `at`, only the causal past of that step."""
    past = causal_past(query.con, run, step_at(query.con, run, at)) if at is not None else None
    yield from _steps(query, run.id, run.run, past, kinds, tools, inline, 0, set())


def _steps(
    query: Query,
    run_id: int,
    run: str,
    past: set[int] | None,
    kinds: tuple[str, ...],
    tools: tuple[str, ...],
    inline: bool,
    depth: int,
    seen: set[int],
) -> Iterator[Step]:
    seen.add(run_id)
    children: dict[int | None, list[tuple[int, str]]] = {}
    if inline:
        for seq, child, name in query.execute(
            "select parent_seq, id, run from run where parent = ? and relation = 'subagent' order by id", (run_id,)
        ).fetchall():
            children.setdefault(seq, []).append((child, name))
    cursor = query.execute(f"select {_EVENT_COLUMNS} from events where run = ? order by seq", (run,))
    names = [column[0] for column in cursor.description]
    for values in query.rows(cursor):
        row = dict(zip(names, values, strict=True))
        if past is not None and row["seq"] not in past:
            continue
        if (not kinds or row["kind"] in kinds) and (not tools or row["tool"] in tools):
            yield Step(depth, run, row)
        for child, name in children.pop(row["seq"], ()):
            if child not in seen:
                yield from _steps(query, child, name, None, kinds, tools, inline, depth + 1, seen)
    if past is None:
        for rest in children.values():
            for child, name in rest:
                if child not in seen:
                    yield from _steps(query, child, name, None, kinds, tools, inline, depth + 1, seen)


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
    if row["parent_run"]:
        lines.append(f"{row['relation']} of {row['parent_run']}@{row['parent_seq'] or '?'}")
    tips = branch_tips(query, run)
    if len(tips) > 1:
        lines.append(f"{len(tips)} branches end at events {', '.join(map(str, tips))}; the active one is not marked ~")
    for generation, damage, gone in query.execute(
        "select generation, damage, gone_since from sources where run = ? order by generation", (run.run,)
    ):
        if gone:
            lines.append(f"source gone since {gone}")
        if damage:
            lines += [f"source{f' (generation {generation})' if generation else ''}: {text}" for text in _damage(damage)]
    return list(dict.fromkeys(lines))


def _damage(text: str) -> Iterator[str]:
    import json

    for item in json.loads(text):
        where = f" (byte {item['offset']}, {item['length']} bytes)" if "offset" in item else ""
        yield f"line {item['line']}{where}: {item['what']}"


def branch_tips(query: Query, run: Run) -> list[int]:
    """The last step of each branch."""
    rows = query.execute(
        "select e.seq from event e where e.run = ? and e.link is not null and e.kind <> 'tool_call' and not exists "
        "(select 1 from event c where c.run = e.run and c.parent_seq = e.seq and c.link is not null) order by e.seq",
        (run.id,),
    ).fetchall()
    answered = {
        row[0]
        for row in query.execute(
            "select c.result_seq from event c where c.run = ? and c.kind = 'tool_call' and c.result_seq is not null "
            "and exists (select 1 from event n where n.run = c.run and n.seq > c.result_seq and n.turn = c.turn "
            "and n.active = c.active and n.link is not null)",
            (run.id,),
        )
    }
    return [row[0] for row in rows if row[0] not in answered]


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
    dim = not row["active"] or row["kind"] in ("usage", "thinking")
    lines = [style(visible(head), fg=_COLOURS.get(row["kind"]), dim=dim, bold=row["kind"] == "user_msg" and not dim)]
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
    return datetime.fromisoformat(ts).astimezone().strftime("%H:%M:%S") if ts else "--:--:--"


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
        cursor = self._query.execute(f"select {_EVENT_COLUMNS} from events where run = ? and seq = ?", (self._run.run, seq))
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
