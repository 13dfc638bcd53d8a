"""`bnd sql`: the options of `sqlite-utils query`, the schema, and what may reach a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.reading import CASES, FIXTURES
from tests.terminal import on_terminal

TUI = FIXTURES / "claude/2.1.218/tui"


@pytest.fixture
def tui(bnd: Any) -> Any:
    bnd("record", next(TUI.glob("projects/*/*.jsonl"))).ok()
    return bnd


@pytest.fixture
def hostile(bnd: Any) -> Any:
    bnd("record", CASES / "WS-08.jsonl").ok()
    return bnd


def test_every_option_of_sqlite_utils_is_there(bnd: Any) -> None:
    theirs = subprocess.run(
        [sys.executable, "-m", "sqlite_utils", "query", "--help"], capture_output=True, text=True, check=True,
        env={**bnd.environment(), "COLUMNS": "200"},
    ).stdout  # fmt: skip
    options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", theirs, re.MULTILINE))
    assert len(options) > 12
    ours = bnd("sql", "--help", env={"COLUMNS": "200"}).ok().out
    assert options - {"--load-extension"} <= set(re.findall(r"--[a-z-]+", ours))
    ran = bnd("sql", "select 1", "--load-extension", "x")
    assert (ran.code, "could write" in ran.err) == (2, True)


COMBINED = [
    ["--csv", "--fmt", "github"], ["--csv", "-t"], ["--nl", "-t"], ["--arrays", "--csv"], ["--tsv", "--csv"], ["-r", "--csv"],
    ["--raw-lines", "--nl"], ["-r", "--raw-lines"], ["--json-cols", "--arrays", "--nl"], ["--ascii", "--nl"],
    ["--no-headers", "--fmt", "psql"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMBINED, ids=" ".join)
def test_options_together_do_what_they_do_there(tui: Any, words: list[str]) -> None:
    plain = tui.root / "plain.db"
    sqlite3.connect(plain).close()
    for query in ("select 'a,b' as x, 2 as x, 3 as x_2, '[1, 2]' as j", "select null as n, 1 as b union select 2, 3"):
        theirs = subprocess.run(
            [sys.executable, "-m", "sqlite_utils", "query", str(plain), query, *words], capture_output=True, check=True,
            env=tui.environment(),
        )  # fmt: skip
        assert tui("sql", query, *words).ok().stdout == theirs.stdout, query


def test_an_id_that_looks_like_a_number_stays_one(tui: Any) -> None:
    query = "select '12e500000000' as run, '001234567890' as id, 1.50 as n"
    for words in (["-t"], ["--fmt", "plain"], ["--csv"], []):
        out = tui("sql", query, *words).ok().out
        assert "12e500000000" in out
        assert "001234567890" in out


def test_empty_queries_are_mistakes(tui: Any) -> None:
    for query in ("", " ", ";", "-- nothing"):
        ran = tui("sql", "--", query)
        assert (ran.code, ran.out) == (2, "")
        assert "no statement" in ran.err
    assert tui("sql", "-", stdin="").code == 2


def test_functions_from_a_file(tui: Any) -> None:
    code = tui.root / "f.py"
    code.write_text("from math import sqrt, hypot\nimport json\ndef both(a, b):\n    return f'{a}/{b}'\n")
    query = "select both(1, 2) as a, sqrt(4) as b"
    assert tui("sql", query, "--functions", "f.py").json() == [{"a": "1/2", "b": 2.0}]
    more = tui("sql", "select one() + two() as n", "--functions", "def one(): return 1", "--functions", "def two(): return 2")
    assert more.json() == [{"n": 3}]
    for words in (["--functions", "missing.py"], ["--functions", "def f(:"], ["--functions", "raise SystemError('x')"]):
        ran = tui("sql", "select 1", *words)
        assert ran.code == 2
        assert re.fullmatch(r"bnd: --functions[^\n]+\n", ran.err)
    ran = tui("sql", "select f(1)", "--functions", "def f(x): return x / 0")
    assert (ran.code, "f() raised ZeroDivisionError" in ran.err) == (2, True)


def test_a_journal_can_be_attached(tui: Any) -> None:
    """In WAL, with another writer at it: read as it is, and never written."""
    other = tui.root / "other.db"
    con = sqlite3.connect(other, isolation_level=None)
    con.execute("pragma journal_mode = wal")
    con.execute("create table t (x)")
    con.execute("insert into t values (1)")
    assert tui("sql", "select x from o.t", "--attach", "o", other).json() == [{"x": 1}]
    for statement in ("insert into o.t values (2)", "delete from o.t", "drop table o.t", "create table o.u (x)"):
        assert tui("sql", statement, "--attach", "o", other).code == 2
    assert con.execute("select count(*) from t").fetchone() == (1,)
    for alias in ("main", "temp", "", "a b", 'x"; drop', "1x"):
        assert tui("sql", "select 1", "--attach", alias, other).code == 2
    text = tui.root / "text.db"
    text.write_text("no database " * 100)
    assert tui("sql", "select * from o.t", "--attach", "o", text).code == 2


def test_the_schema_is_what_the_comments_say(tui: Any) -> None:
    found = {item["name"]: item for item in tui("sql", "--schema", "--json").json()}
    for view in ("runs", "events", "tool_calls", "interchanges", "io", "checkpoints", "sources", "usage_by_day", "notes"):
        names = tui("sql", f"select name from pragma_table_xinfo('{view}')", "--raw-lines").ok().out.split()
        assert list(found[view]["columns"]) == names
        assert all(found[view]["columns"].values()), f"a column of {view} has no comment"
    con = sqlite3.connect(tui.journal)
    for (table,) in con.execute("select name from sqlite_master where type = 'table' and sql like '%--%'").fetchall():
        names = [row[1] for row in con.execute(f"pragma table_xinfo({table})")]
        assert list(found[table]["columns"]) == names
    assert "given once, never reused" in found["event"]["columns"]["seq"]
    # what stands in the file is what is printed, whatever this version would write
    con.executescript("create table extra (\n    x text  -- said in the file\n)")
    con.close()
    assert re.search(r"^table extra\n  x +said in the file$", tui("sql", "--schema").ok().out, re.MULTILINE)
    missing = tui("-j", "missing.db", "sql", "--schema").ok().out
    assert "table event" in missing
    assert not (tui.root / "missing.db").exists()


def test_json_is_json_whatever_is_in_it(bnd: Any) -> None:
    """Valid, and the same values, in UTF-8 and where the terminal can take only ASCII."""
    for name in ("TP-05.jsonl", "TP-06.jsonl", "WS-08.jsonl", "JS-05.jsonl"):
        bnd("record", CASES / name)
    query = "select run, seq, content, usage from events order by 1, 2"
    wanted = bnd("sql", query).ok()
    assert re.search("[\x80-\x9f\u202a-\u202e\u2066-\u2069]", wanted.out) is None
    rows = wanted.json()
    assert any("\x1b" in (row["content"] or "") for row in rows)
    assert any("\u202e" in (row["content"] or "") for row in rows)
    poor = {"PYTHONIOENCODING": "ascii", "LANG": "C"}
    assert bnd("sql", query, env=poor).ok().json() == rows
    assert bnd("sql", query, "--nl", env=poor).ok().jsonl() == rows
    assert [r["run"] for r in bnd("runs", "--json", env=poor).json()] == [r["run"] for r in bnd("runs", "--json").json()]
    for row in bnd("runs", "--json").json():
        whole = bnd("show", row["run"], "--json").ok().jsonl()
        assert bnd("show", row["run"], "--json", env=poor).ok().jsonl() == whole
        assert [s["content"] for s in whole] == [r["content"] for r in rows if r["run"] == row["run"]]
    (cols,) = bnd("sql", 'select \'{"a": "\\ud83d"}\' as j', "--json-cols").json()
    assert cols == {"j": {"a": "\ud83d"}}


def test_ws_08_nothing_steers_the_terminal(hostile: Any) -> None:
    query = "select run, content from events order by seq"
    env = {**hostile.environment(), "TERM": "xterm", "PAGER": "cat"}
    options = [[], ["-t"], ["--csv"], ["--tsv"], ["--nl"], ["--arrays"], ["-r"], ["--raw-lines"], ["--fmt", "github"], ["--json"]]
    for words in options:
        code, out = on_terminal(hostile.argv("sql", query, *words), env)
        assert code == 0, out
        text = out.decode()
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), (words, text)
    # piped, CSV is data and stays as it is
    rows = list(csv.reader(io.StringIO(hostile("sql", query, "--csv").ok().out)))
    assert any("\x1b" in row[1] for row in rows)


def test_a_terminal_gets_a_short_table(tui: Any) -> None:
    env = {**tui.environment(), "TERM": "xterm"}
    query = "select seq, content from events where length(content) > 100"
    code, out = on_terminal(tui.argv("sql", query), env, columns=200)
    lines = out.decode().replace("\r", "").splitlines()
    assert code == 0
    assert lines[0].split() == ["seq", "content"]
    assert all(len(line) < 100 for line in lines)
    assert any(line.endswith("…") for line in lines)
    _, whole = on_terminal(tui.argv("sql", query, "-t"), env, columns=200)
    assert max(map(len, whole.decode().splitlines())) > 100
    _, as_json = on_terminal(tui.argv("sql", query, "--json"), env)
    assert json.loads(as_json)[0]["seq"] > 0


def start(tui: Any, query: str, *words: str) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = tui.start("sql", query, *words)
    return process


@pytest.mark.parametrize(
    "query",
    [
        "with recursive n (i) as (values (1) union all select i + 1 from n) select max(i) from n",
        "with recursive n (i) as (values (1) union all select i + 1 from n) select i from n where i % 10000000 = 0",
        "select count(*) from events a, events b, events c, events d where a.content || b.content || c.content = d.content",
        f"select '{'a' * 40}!' regexp '(a*)*b'",
        "select slow()",
    ],
    ids=["aggregate", "rows", "contents", "regexp", "function"],
)
def test_ctrl_c_is_heard_everywhere(tui: Any, query: str) -> None:
    code = "import time\ndef slow():\n    while True: time.sleep(0.05)"
    process = start(tui, query, "--functions", code)
    try:
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out.strip(), err.strip()) == (b"", b"")


def test_the_zone_of_local_days_is_said(tui: Any) -> None:
    ran = tui("sql", "select day, zone from usage_by_day_local", env={"TZ": "Pacific/Kiritimati"})
    assert ran.json() == [{"day": "2026-12-01", "zone": "Pacific/Kiritimati"}]
    assert "Pacific/Kiritimati" in ran.err
    assert tui("sql", "select day from usage_by_day_local", "-q", env={"TZ": "Pacific/Kiritimati"}).err == ""
    west = tui("sql", "select day from usage_by_day_local", "-q", env={"TZ": "America/Los_Angeles"})
    assert west.json() == [{"day": "2026-11-30"}]
    assert tui("sql", "select day from usage_by_day", env={"TZ": "America/Los_Angeles"}).json() == [{"day": "2026-12-01"}]


def test_params_of_every_sort(tui: Any) -> None:
    rows = tui("sql", "select :a as a, :b as b, :a || :b as c", "-p", "a", "1", "--param", "b", "x'y").json()
    assert rows == [{"a": "1", "b": "x'y", "c": "1x'y"}]
    ran = tui("sql", "select :a")
    assert (ran.code, "-p NAME VALUE" in ran.err) == (2, True)


@pytest.mark.parametrize(("first", "second"), list(product(["-j", "--journal"], ["before", "after"])))
def test_the_journal_option_stands_anywhere(tui: Any, first: str, second: str) -> None:
    words = [first, str(tui.journal)]
    query = ["sql", "select count(*) n from events"]
    argv = [*words, *query] if second == "before" else [*query, *words]
    assert tui(*argv, env={"BND_JOURNAL": "/nowhere/x.db"}).json() == [{"n": 32}]


def test_a_query_from_a_file(tui: Any) -> None:
    path = Path(tui.root) / "q.sql"
    path.write_text("-- all\nselect kind, count(*) as n\nfrom events\nwhere kind = :k\ngroup by 1;\n")
    assert tui("sql", "-", "-p", "k", "usage", stdin=path.read_text()).json() == [{"kind": "usage", "n": 8}]
