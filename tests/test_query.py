"""Reading a journal: what a query may do, naming runs and steps, the causal past, what the views cost."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.agents import content_of
from beyond.errors import Ambiguous, BeyondError, JournalDamaged, JournalError, NotFound, UsageError
from beyond.journal import Journal
from beyond.naming import Run, causal_past, ends_at, resolve, resolve_place, step_at
from beyond.query import Query, connect
from beyond.record import record
from tests.reading import CASES, FIXTURES, Reading, name_of, read, transcripts

TUI = FIXTURES / "claude/2.1.218/tui"
FORKED = FIXTURES / "claude/2.1.218/forked"
SUBAGENT = FIXTURES / "claude/2.1.218/subagent"


def make(path: Path, *homes: Path) -> Path:
    """A journal with what is in these stores of Claude Code."""
    with Journal.open(path) as journal:
        for home in homes:
            os.environ["CLAUDE_CONFIG_DIR"] = str(home)
            record(journal, agents.conversations("claude"))
    return path


@pytest.fixture
def tui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(TUI))
    return make(tmp_path / "tui.db", TUI)


def made_by_hand(path: Path, events: list[tuple[Any, ...]]) -> Path:
    """A journal with one run and events (seq, kind, parent_seq, result_seq, turn, active)."""
    with Journal.open(path) as journal, journal.write() as con:
        con.execute(
            "insert into run (id, run, cli, mode, recorded_at, events) values (1, 'aaaaaaaaaaaa', 'claude', 'transcript', 1, ?)",
            (len(events),),
        )
        con.executemany(
            "insert into event (run, seq, part, kind, parent_seq, result_seq, turn, active, link) "
            "values (1, ?, 0, ?, ?, ?, ?, ?, ?)",
            [(*row, None if row[1] in ("usage", "meta", "error") else b"x") for row in events],
        )
    return path


# -- the connection ---------------------------------------------------------------------------------


def test_the_file_is_not_changed_by_reading(tui: Path) -> None:
    before = tui.read_bytes()
    with connect(tui, content_of) as query:
        query.execute("select * from events").fetchall()
        query.execute("select * from usage_by_day").fetchall()
        for statement in ("delete from event", "create temp table t (x)", "pragma user_version = 3", "savepoint s"):
            with pytest.raises(UsageError, match="refused"):
                query.execute(statement)
        # what the authorizer lets through for virtual tables, SQLite itself refuses
        with pytest.raises(UsageError):
            query.execute("update sqlite_master set sql = ''")
        assert query.execute("select count(*) from json_each('[1, 2]')").fetchone() == (2,)
    assert tui.read_bytes() == before


@pytest.mark.parametrize("name", ["plain.db", "with space.db", "what?#%41.db", "o'x.db", "ü.db"])
def test_names_that_mean_something_in_a_uri(tui: Path, name: str) -> None:
    path = tui.with_name(name)
    shutil.copy(tui, path)
    with connect(path, content_of) as query:
        assert query.execute("select count(*) from events").fetchone() == (32,)


def test_an_empty_file_is_an_empty_journal(tmp_path: Path) -> None:
    zero = tmp_path / "zero.db"
    zero.touch()
    sqlites = tmp_path / "sqlite.db"
    con = sqlite3.connect(sqlites)
    con.executescript("create table x (y); drop table x")
    con.close()
    for path in (zero, sqlites):
        before = path.read_bytes()
        with connect(path, content_of) as query:
            assert query.execute("select * from runs").fetchall() == []
        assert path.read_bytes() == before
    with pytest.raises(NotFound):
        connect(tmp_path / "missing.db", content_of)
    assert not (tmp_path / "missing.db").exists()


def test_js_08_what_is_no_journal(tmp_path: Path) -> None:
    for name, error in (("JS-08-notadb.db", JournalError), ("JS-08-malformed.db", BeyondError)):
        path = tmp_path / name
        shutil.copy(CASES / name, path)
        before = path.read_bytes()
        with pytest.raises(error) as caught, connect(path, content_of) as query:
            query.execute("select * from events").fetchall()
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before
    other = tmp_path / "other.db"
    con = sqlite3.connect(other)
    con.execute("create table runs (x)")
    con.close()
    with pytest.raises(JournalError, match="another program's"):
        connect(other, content_of)


def test_a_folder_that_cannot_be_written(tui: Path) -> None:
    """WAL wants to make files beside the journal. As somebody who may not, it is read all the same."""
    folder = Path(tempfile.mkdtemp(prefix="bnd-ro-"))  # pytest's own folders are closed to other users
    path = folder / "j.db"
    shutil.copy(tui, path)
    path.chmod(0o444)
    folder.chmod(0o555)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child of a process with threads: it does little
        child = os.fork()
    if child == 0:  # in a process of its own, which gives up being root
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with connect(path, content_of) as query:
                code = 0 if query.execute("select count(content) from events").fetchone() == (24,) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [p.name for p in folder.iterdir()] == ["j.db"]
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_hostile_schema_gets_nowhere(tui: Path) -> None:
    """Views and triggers in somebody's file are not trusted with functions, and don't take the place of ours."""
    con = sqlite3.connect(tui)
    con.execute("create view runs as select 'evil' as run")
    con.execute("create view events as select bnd_content(1, 1, 0) as content")
    con.execute("create view v as select bnd_content(1, 10, 0)")
    con.commit()
    con.close()
    with connect(tui, content_of) as query:
        assert query.execute("select count(*) from events").fetchone() == (32,)
        assert query.execute("select run from runs").fetchone() != ("evil",)
        with pytest.raises(UsageError, match="unsafe use"):
            query.execute("select * from v")


def test_a_time_limit_ends_a_query(tui: Path) -> None:
    with connect(tui, content_of) as query:
        query.limit(0.2)
        with pytest.raises(UsageError, match="takes too long"):
            query.execute("with recursive n (i) as (values (1) union all select i + 1 from n) select count(*) from n").fetchall()
        query.limit(None)
        assert query.execute("select count(*) from runs").fetchone() == (1,)


def test_errors_say_whose_they_are(tui: Path) -> None:
    """A query's mistake is no damage of the journal, and a damaged journal is no mistake of the query."""
    with connect(tui, content_of) as query:
        for sql, message in (
            ("select json_extract('{', '$.a')", "malformed JSON"),
            ("select * from missing", "no such table"),
            ("select content from events where content regexp '('", "regexp: .*correct the pattern"),
            ("select :x", "-p NAME VALUE"),
            ("select 1; select 2", "one statement"),
        ):
            with pytest.raises(UsageError, match=message):
                query.execute(sql).fetchall()

        def fail(value: Any) -> Any:
            raise ZeroDivisionError("by nothing")

        query.add_function("fail", 1, fail)
        with pytest.raises(UsageError, match=r"fail\(\) raised ZeroDivisionError: by nothing"):
            query.execute("select fail(1)")

        def interrupt() -> Any:
            raise KeyboardInterrupt

        query.add_function("interrupt", 0, interrupt)
        with pytest.raises(KeyboardInterrupt):
            query.execute("select interrupt()")
    con = sqlite3.connect(tui)
    con.executescript("drop trigger pack_content; update pack set data = zeroblob(length(data))")
    con.close()
    with connect(tui, content_of) as query, pytest.raises(JournalDamaged):
        list(query.rows(query.execute("select content from events")))


def test_content_is_the_ingesters(tmp_path: Path) -> None:
    """What `events.content` gives is what the ingester emitted, for every event of every case."""
    files = [p for p in sorted(CASES.glob("*.jsonl")) if p.name.startswith(("TP-0", "TA-", "JS-"))]
    with Journal.open(tmp_path / "x.db") as journal:
        from beyond.record import find

        for file in files:
            try:
                record(journal, find(str(file), None))
            except BeyondError:
                continue
    with connect(tmp_path / "x.db", content_of) as query:
        paths = dict(query.execute("select path, run from sources where generation = 0").fetchall())
        checked = 0
        for path, run in paths.items():
            reading = read(Path(path))
            rows = query.execute("select source_line, kind, content from events where run = ?", (run,)).fetchall()
            wanted = sorted(
                (e[0], e[2], e[4].encode("utf-8", "surrogatepass").decode("utf-8", "replace") if e[4] is not None else None)
                for (thread, _), e in reading.events.items()
                if thread == "main"
            )
            if len(rows) == len(wanted):  # (a file that goes on another one's run has more)
                assert sorted(rows, key=str) == sorted(wanted, key=str), path
                checked += 1
    assert checked > 12


# -- naming -----------------------------------------------------------------------------------------


def test_naming_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(TUI))
    path = make(tmp_path / "x.db", FORKED, SUBAGENT)
    here = tmp_path / "proj" / "sub"
    here.mkdir(parents=True)
    con = sqlite3.connect(path)
    names = [row[0] for row in con.execute("select run from run where agent = 'main' order by ended_at desc, id desc")]
    con.execute("update run set label = 'mine' where run = ?", (names[0],))
    con.execute("update run set label = 'twice' where run in (?, ?)", tuple(names[1:3]))
    con.execute("update run set label = 'odd:7' where relation = 'subagent'")
    con.commit()
    told: list[str] = []
    monkeypatch.chdir(tmp_path)
    for text in (names[0], names[0].upper(), names[0][:8], "mine", "@"):
        assert resolve(con, text, tell=told.append).run == names[0]
    assert resolve(con, "@1").run == names[1]
    assert len(told) == 1
    con.execute("update run set project = ? where run = ?", (str(tmp_path / "proj"), names[2]))
    con.execute("update run set project = ? where run = ?", (str(tmp_path / "pro"), names[1]))
    con.commit()
    monkeypatch.chdir(here)
    assert resolve(con, "@", tell=told.append).run == names[2]
    assert len(told) == 1
    with pytest.raises(NotFound, match="only 1 run of this directory"):
        resolve(con, "@1")
    with pytest.raises(Ambiguous, match=rf"'twice' fits 2 runs: .*{names[1]}.*give more"):
        resolve(con, "twice")
    assert resolve(con, "00000000-0000-4000-8000-000000000005").agent == "main"
    assert resolve(con, "ac95a231570774487").agent == "ac95a231570774487"
    assert resolve_place(con, "mine:3")[1] == 3
    assert resolve_place(con, "mine")[1] is None
    assert resolve_place(con, "odd:7") == (resolve(con, "ac95a231570774487"), None)
    for text in ("@x", "@-1"):
        with pytest.raises(UsageError):
            resolve(con, text)
    for text in ("", "zzz", "@99", "%", "no such", "\udcff"):
        with pytest.raises(NotFound):
            resolve(con, text)
    with pytest.raises(NotFound, match="no event 999"):
        resolve_place(con, "mine:999")


def test_naming_a_step(tui: Path) -> None:
    with connect(tui, content_of) as query:
        run = resolve(query.con, "@")
        assert [step_at(query.con, run, text) for text in ("1", "32", "-1", "-32", "turn:1", "turn:2")] == [
            1, 32, 32, 1, 13, 32,
        ]  # fmt: skip
        for text in ("0", "33", "-33", "turn:3", "turn:0", "cp:1", "i:1"):
            with pytest.raises(NotFound):
                step_at(query.con, run, text)
        for text in ("", "x", "turn:", "turn:-1", "1.5", "1e3", "٣"):
            with pytest.raises(UsageError):
                step_at(query.con, run, text)


# -- the causal past --------------------------------------------------------------------------------


def causes(reading: Reading, thread: str, seq: int) -> set[int]:
    """The causal past as the ingester's own tree has it when it makes links."""
    tree = reading.ingester.threads[thread]
    seqs = list(tree._seq)
    past: set[int] = set()
    queue = [seqs.index(seq)]
    while queue:
        index = queue.pop()
        if seqs[index] in past or seqs[index] > seq:
            continue
        past.add(seqs[index])
        queue += tree.causes(index)
    rows = {number: row for (name, number), row in reading.rows.items() if name == thread}
    loose = {n for n, row in rows.items() if n <= seq and row.link is None and row.parent_seq in past}
    return past | loose


def journal_of(reading: Reading, thread: str) -> sqlite3.Connection:
    con = sqlite3.connect(":memory:")
    con.execute("create table event (run, seq, kind, parent_seq, result_seq, link, primary key (run, seq)) without rowid")
    for (name, seq), row in reading.rows.items():
        if name == thread:
            kind = reading.events[name, seq][2]
            con.execute("insert into event values (1, ?, ?, ?, ?, ?)", (seq, kind, row.parent_seq, row.result_seq, row.link))
    return con


@pytest.mark.parametrize("path", transcripts(), ids=name_of)
def test_the_causal_past_is_what_links_are_made_of(path: Path) -> None:
    reading = read(path)
    for thread in reading.ingester.threads:
        con = journal_of(reading, thread)
        for (seq,) in con.execute("select seq from event").fetchall():
            assert causal_past(con, Run(1, "", "", ""), seq) == causes(reading, thread, seq), (thread, seq)


def test_the_causal_past_of_calls_made_together() -> None:
    """Text between the calls of one answer, results in any order, an answer that goes on after the first result."""

    def line(uuid: int, parent: int | None, kind: str, content: list[Any], message: str | None = None) -> bytes:
        body: dict[str, Any] = {"role": kind, "content": content}
        if message:
            body |= {"id": message, "type": "message", "model": "m"}
        return json.dumps(
            {"type": kind, "uuid": f"u{uuid}", "parentUuid": f"u{parent}" if parent else None, "message": body,
             "sessionId": "s" * 36, "timestamp": f"2026-01-01T00:00:{uuid:02}.000Z", "cwd": "/w", "version": "2.1.218"}
        ).encode()  # fmt: skip

    def call(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": name}}

    def result(name: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": name, "content": f"result of {name}"}

    def said(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    together = [
        line(1, None, "user", [said("go")]),
        line(2, 1, "assistant", [call("a")], "m1"),
        line(3, 2, "assistant", [said("and")], "m1"),
        line(4, 3, "assistant", [call("b")], "m1"),
        line(5, 4, "assistant", [call("c")], "m1"),
        line(6, 5, "user", [result("c")]),
        line(7, 2, "user", [result("a")]),
        line(8, 4, "user", [result("b")]),
        line(9, 8, "assistant", [said("done")], "m2"),
        line(10, 1, "user", [said("another branch")]),
        line(11, 10, "assistant", [said("there")], "m3"),
    ]
    orders = [together]
    for seed in range(6):
        shuffled = together[5:8]
        random.Random(seed).shuffle(shuffled)
        orders.append([*together[:5], *shuffled, *together[8:]])
    for lines in orders:
        reading = read(next(FIXTURES.glob("claude/2.1.218/simple/projects/*/*.jsonl")), b"\n".join(lines) + b"\n")
        con = journal_of(reading, "main")
        run = Run(1, "", "", "")
        for (seq,) in con.execute("select seq from event").fetchall():
            assert causal_past(con, run, seq) == causes(reading, "main", seq), seq
        contents = {seq: event[4] for (_, seq), event in reading.events.items()}
        done = next(seq for seq, content in contents.items() if content == "done")
        past = {contents[seq] for seq in causal_past(con, run, done)}
        assert {"go", "and", "result of a", "result of b", "result of c", "done"} <= past
        assert not {"another branch", "there"} & past


def test_the_end_of_a_turn_has_all_of_it(tmp_path: Path) -> None:
    """The last turn ends in two results: neither causes the other, the turn holds both."""
    path = made_by_hand(
        tmp_path / "x.db",
        [
            (1, "user_msg", None, None, 1, 1), (2, "tool_call", 1, 4, 1, 1), (3, "tool_call", 2, 5, 1, 1),
            (4, "tool_result", 2, None, 1, 1), (5, "tool_result", 3, None, 1, 1), (6, "usage", 3, None, 1, 1),
            (7, "user_msg", 1, None, 2, 0),
        ],
    )  # fmt: skip
    con = sqlite3.connect(path)
    run = resolve(con, "aaaa")
    assert causal_past(con, run, 5) == {1, 2, 3, 5}
    assert causal_past(con, run, *ends_at(con, run, "turn:1")) == {1, 2, 3, 4, 5, 6}
    with pytest.raises(NotFound, match="1 turns"):
        ends_at(con, run, "turn:2")


def test_a_long_run_is_walked_in_linear_time(tmp_path: Path) -> None:
    rows, count = [], 60_000
    for seq in range(1, count + 1):
        kind = ("user_msg", "assistant_msg", "tool_call", "tool_call", "tool_result", "tool_result")[seq % 6]
        parent = seq - 2 if kind == "tool_result" else seq - 1
        rows.append((seq, kind, max(parent, 0) or None, seq + 2 if kind == "tool_call" else None, seq // 6, 1))
    con = sqlite3.connect(made_by_hand(tmp_path / "x.db", rows))
    import time

    start = time.process_time()
    past = causal_past(con, resolve(con, "aaaa"), count)
    assert len(past) > count - 3
    assert time.process_time() - start < 3


# -- what the views cost ----------------------------------------------------------------------------


def plan(query: Query, sql: str) -> str:
    return " / ".join(row[3] for row in query.execute("explain query plan " + sql))


def test_the_aggregates_stay_on_their_indexes(tui: Path) -> None:
    with connect(tui, content_of) as query:
        tools = plan(query, "select tool, count(*), sum(is_error) from tool_calls group by tool")
        assert "USING COVERING INDEX event_tools" in tools
        assert "TEMP B-TREE" not in tools
        usage = plan(query, "select model, sum(input_tokens), sum(output_tokens) from events where kind = 'usage' group by 1")
        assert "USING COVERING INDEX event_usage" in usage
        one = plan(query, "select seq, content from events where run = 'x' order by seq")
        assert "SEARCH e USING PRIMARY KEY (run=?)" in one
        assert "TEMP B-TREE" not in one
        assert "SEARCH e USING PRIMARY KEY (run=? AND seq=?)" in plan(query, "select * from events where run = 'x' and seq = 1")
        assert "CORRELATED" not in plan(query, "select run, input_tokens, output_tokens from runs")


def test_sums_are_the_same_however_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native fork holds copies of its parent's messages: they count once."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(FORKED))
    with connect(make(tmp_path / "x.db", FORKED), content_of) as query:
        for column in ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"):
            sums = {
                query.execute(f"select sum({column}) from {source}").fetchone()
                for source in ("runs", "events", "usage_by_day", "usage_by_day_local")
            }
            assert len(sums) == 1, (column, sums)
        raw = query.execute("select count(*) from events where kind = 'usage' and input_tokens is null").fetchone()
        assert raw[0] > 0


def test_nothing_heavy_is_loaded_for_reading(tui: Path) -> None:
    """A list of runs needs none of the packages for writing, tables and git."""
    import subprocess

    code = (
        "import sys; sys.argv = ['bnd', '-j', sys.argv[1], 'runs', '--json']\n"
        "import beyond.cli\n"
        "try: beyond.cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in ('sqlite_utils', 'tabulate', 'git', 'orjson', 'beyond.ingest.claude') if m in sys.modules), "
        "file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tui)], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
