"""Aggregates over a million events, and other programs on the same transcripts."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from .asking import TOOLS
from .measure import Cost, Row, best_of, run
from .place import Place, Result, say, size_of

_DUCKDB = """
import duckdb, json, sys
rows = duckdb.sql('''
    select block->>'$.name' as tool, count(*) from (
        select unnest(from_json(message->'$.content', '["JSON"]')) as block
        from read_json($files, format='newline_delimited', maximum_object_size=268435456,
                       columns={type: 'VARCHAR', message: 'JSON'})
        where type = 'assistant' and json_type(message, '$.content') = 'ARRAY'
    ) where block->>'$.type' = 'tool_use' group by tool''', params={"files": sys.argv[1] + "/**/*.jsonl"}).fetchall()
print(json.dumps(rows))
"""
_JQ = (
    'reduce (inputs | select(.type == "assistant") | .message.content | arrays | .[] | '
    'select(.type == "tool_use") | .name) as $name ({}; .[$name] += 1) | to_entries | map([.key, .value])'
)


def _enlarge(journal: Path, events: int) -> tuple[int, int]:
    """Copies the runs and event rows of a journal under new runs until there are `events`: (events, copies)."""
    con = sqlite3.connect(journal, isolation_level=None)
    try:
        con.execute("pragma journal_mode = delete")
        con.execute("pragma synchronous = off")
        con.execute("pragma cache_size = -262144")
        (have,) = con.execute("select count(*) from event").fetchone()
        (step,) = con.execute("select max(id) from run").fetchone()
        copies = max(0, -(-events // have) - 1)
        changed = {
            "run": {"id": "id + :by", "run": "printf('%012x', 1 + :by * 4096 + id)", "parent": "parent + :by"},
            "event": {"run": "run + :by", "usage_key": "usage_key + :number"},
        }
        con.execute("begin")
        for number in range(1, copies + 1):
            for table, new in changed.items():
                names = [row[1] for row in con.execute(f"pragma table_info({table})")]
                values = ", ".join(new.get(name, name) for name in names)
                sql = f"insert into {table} ({', '.join(names)}) select {values} from {table} where {names[0]} <= :step"
                con.execute(sql, {"by": number * step, "number": number, "step": step})
        con.execute("commit")
        (made,) = con.execute("select count(*) from event").fetchone()
        con.execute("pragma journal_mode = wal")
        return made, copies
    finally:
        con.close()


def aggregates(place: Place) -> Result:
    """Tool counts, error rate and tokens by model through the public views."""
    journal = place.copy("million.db")
    say(f"copying event rows until there are {place.sizes.events:,}")
    events, copies = _enlarge(journal, place.sizes.events)
    say("the three aggregates")
    asked = json.loads(place.python("-m", "tests.bench.asking", journal, "3", keep=True).stdout)
    each = asked["seconds"]
    listed = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in each.items())
    notes = [
        f"aggregates: {events:,} events in {size_of(journal):,} bytes: the recorded set and {copies} copies of its run and "
        "event rows under new run ids, made with SQL (not recorded: lines and blobs are shared)",
        f"aggregates: {listed}; best of 3, each on a new connection, of which opening takes {asked['connect'] * 1000:.1f} ms "
        "more",
    ]
    for left in place.scratch.glob("million.db*"):
        left.unlink()
    row = Row(f"{events / 1e6:.2g}M events: three aggregates", sum(each.values()), 0.3, 0.12, unit=" s")
    return Result([row], notes)


def _counts(cost: Cost) -> Counter[str]:
    """The answer of any of the programs: a list of objects or of pairs."""
    rows = (list(row.values()) if isinstance(row, dict) else row for row in json.loads(cost.stdout))
    return Counter(dict(rows))


def peers(place: Place) -> Result:
    """The tool counts by others, from the same files; and reading one conversation."""
    times = place.sizes.peers
    journal, store, files = place.recorded(), place.store(), place.files()
    say("tool counts: bnd sql")
    ours = best_of(times, lambda: place.bnd(journal, "sql", TOOLS, keep=True))
    notes = [f"peers, tool counts of the whole set, whole processes by wall, best of {times}: bnd sql {ours.wall:.3f} s"]

    def beside(name: str, command: Callable[[], Cost]) -> None:
        say(f"tool counts: {name}")
        cost = best_of(times, command)
        same = "same answer" if _counts(cost) == _counts(ours) else "ANOTHER ANSWER"
        notes.append(f"    {name} {cost.wall:.3f} s, {cost.wall / ours.wall:.1f} times as long ({same})")

    if find_spec("duckdb"):
        beside(f"DuckDB {version('duckdb')} read_json", lambda: place.python("-I", "-c", _DUCKDB, store, keep=True))
    else:
        notes.append("    DuckDB: missing (pip install duckdb)")
    if shutil.which("jq"):
        beside("jq", lambda: run(["jq", "-nc", _JQ, *files], env=place.env(), keep=True))
    else:
        notes.append("    jq: missing")
    return Result([], notes + _reading(place, journal, files))


def _reading(place: Place, journal: Path, files: list[Path]) -> list[str]:
    """`bnd show` of one conversation beside claude-code-log of its transcript."""
    times = place.sizes.peers
    mains = sorted((f for f in files if "subagents" not in f.parts), key=lambda f: f.stat().st_size)
    notes: list[str] = []
    for what, path in (("median", mains[len(mains) // 2]), ("largest", mains[-1])):
        say(f"reading the {what} conversation")
        show = best_of(times, partial(place.bnd, journal, "show", path.stem))
        full = best_of(times, partial(place.bnd, journal, "show", path.stem, "--full"))
        text = f"peers, reading the {what} conversation ({path.stat().st_size / 1e6:.1f} MB): bnd show {show.wall:.2f} s, "
        notes.append(f"{text}--full {full.wall:.2f} s")
        program = Path(sys.executable).with_name("claude-code-log")
        if not program.exists():
            notes.append("    claude-code-log: missing (pip install claude-code-log)")
            continue
        copy = place.folder(f"log-{what}") / path.name  # it writes beside what it reads
        shutil.copyfile(path, copy)
        for kind in ("html", "md"):
            command = [str(program), str(copy), "--no-cache", "-f", kind, "-o", str(copy.with_suffix(f".{kind}"))]
            cost = best_of(times, partial(run, command, env=place.env(), cwd=copy.parent))
            ratio = cost.wall / full.wall
            name = f"claude-code-log {version('claude-code-log')} --no-cache -f {kind}"
            notes.append(f"    {name} {cost.wall:.2f} s, {ratio:.1f} times --full")
    return notes
