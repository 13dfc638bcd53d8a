"""The commands, run as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from beyond.journal import Journal
from tests.reading import CASES, FIXTURES

TUI = FIXTURES / "claude/2.1.218/tui"
SUBAGENT = FIXTURES / "claude/2.1.218/subagent"
HOMES = [*sorted(FIXTURES.glob("claude/*/*/")), *sorted(FIXTURES.glob("kimi/*/*/kimi-code"))]


def store(home: Path) -> dict[str, str | Path | None]:
    """The variable that points an agent CLI's store to a fixture."""
    return {"KIMI_CODE_HOME" if "kimi" in home.relative_to(FIXTURES).parts else "CLAUDE_CONFIG_DIR": home}


@pytest.fixture
def tui(bnd: Any) -> Any:
    """`bnd` with the interactive fixture recorded in its journal."""
    bnd("record", "--all", env=store(TUI)).ok()
    return bnd


@pytest.mark.parametrize("home", HOMES, ids=lambda h: "-".join(h.relative_to(FIXTURES).parts[:3]))
def test_record_all_and_show_raw(bnd: Any, home: Path) -> None:
    """Must show 2: one run a conversation and a subagent, the file's own bytes back, fsck clean."""
    bnd("-j", "x.db", "record", "--all", env=store(home)).ok()
    rows = json.loads(bnd("-j", "x.db", "sql", "select run, path from sources").ok().out)
    files = [*home.glob("projects/**/*.jsonl"), *home.glob("sessions/*/*/agents/*/wire.jsonl")]
    assert sorted(row["path"] for row in rows) == sorted(map(str, files))
    for row in rows:
        assert bnd("-j", "x.db", "show", row["run"], "--raw").ok().stdout == Path(row["path"]).read_bytes()
    assert bnd("-j", "x.db", "fsck").code == 0


def test_counts_by_hand(tui: Any) -> None:
    """Must show 4, counted in the transcript by hand."""
    out = tui("sql", "select kind, count(*) n from events group by kind", "--csv").ok().out
    assert list(csv.reader(io.StringIO(out))) == [
        ["kind", "n"], ["assistant_msg", "5"], ["meta", "1"], ["thinking", "1"], ["tool_call", "6"],
        ["tool_result", "6"], ["usage", "8"], ["user_msg", "5"],
    ]  # fmt: skip
    rows = tui("sql", "select tool, count(*), sum(is_error) from tool_calls group by tool", "--arrays").json()
    assert rows == [["Bash", 3, 1], ["Read", 1, 0], ["Write", 2, 0]]


def test_plain_sqlite_works(tui: Any) -> None:
    """Must show 5: without beyond."""
    ran = subprocess.run(
        ["sqlite3", tui.journal, "pragma integrity_check; select kind, count(*) from event group by kind"],
        capture_output=True, text=True, check=False,
    ) if shutil.which("sqlite3") else None  # fmt: skip
    if ran is not None:
        assert ran.stdout.splitlines()[0] == "ok"
        assert "tool_call|6" in ran.stdout.splitlines()
    con = sqlite3.connect(tui.journal)
    assert con.execute("pragma integrity_check").fetchone() == ("ok",)
    assert dict(con.execute("select kind, count(*) from event group by kind"))["tool_call"] == 6


@pytest.mark.parametrize(
    "query",
    [
        "delete from event", "attach 'y.db' as y", "pragma writable_schema=1", "insert into note values (1,1,1,'x',1)",
        "create table t (x)", "create temp table t (x)", "drop view events", "vacuum into 'y.db'", "vacuum",
        "select load_extension('x')", "pragma journal_mode = delete", "pragma user_version = 9", "begin; delete from run",
        "update run set title = 'x'", "replace into meta values ('a', 1)", "reindex", "analyze", "detach main",
        "with x as (select 1) delete from event", "pragma query_only = off", "update sqlite_master set name = 'x'",
    ],
)  # fmt: skip
def test_sql_only_reads(tui: Any, query: str) -> None:
    """Must show 6: refused with exit 2, the journal as it was."""
    before = tui.journal.read_bytes()
    ran = tui("sql", query)
    assert ran.code == 2, ran.out
    assert re.fullmatch(r"bnd: [^\n]+\n", ran.err)
    assert tui.journal.read_bytes() == before
    assert not (tui.root / "y.db").exists()


def test_sql_attaches_read_only(tui: Any) -> None:
    other = tui.root / "o'ther ?.db"
    con = sqlite3.connect(other)
    con.execute("create table t (x)")
    con.execute("insert into t values (7)")
    con.commit()
    con.close()
    rows = tui("sql", "select t.x, count(*) n from y.t t join events e", "--attach", "y", str(other)).json()
    assert rows == [{"x": 7, "n": 32}]
    assert tui("sql", "insert into y.t values (8)", "--attach", "y", str(other)).code == 2
    assert tui("sql", "select 1", "--attach", "y", "missing.db").code == 2
    assert tui("sql", "select 1", "--attach", "y y", str(other)).code == 2


OPTIONS = [
    [], ["--nl"], ["--arrays"], ["--arrays", "--nl"], ["--csv"], ["--tsv"], ["--csv", "--no-headers"], ["-t"],
    ["-t", "--no-headers"], ["--fmt", "github"], ["--fmt", "html"], ["--json-cols"], ["--json-cols", "--nl"], ["--ascii"],
    ["-r"], ["--raw-lines"], ["-p", "n", "x y"], ["--functions", "def twice(x):\n    return str(x) * 2"],
]  # fmt: skip
QUERIES = [
    "select 1 as a, 'é' as a, null as b, 1.5 as c, x'00ff' as d, '{\"k\": [1, \"é\"]}' as e, 'two\nlines' as f",
    "select 1 as a where 0",
    "with recursive n (i) as (values (1) union all select i + 1 from n where i < 4) select i, i * 1000 as k from n",
]


@pytest.mark.parametrize("words", OPTIONS, ids=lambda w: " ".join(w)[:20] or "default")
def test_sql_prints_as_sqlite_utils_does(tui: Any, words: list[str]) -> None:
    """Option by option, the same bytes as `sqlite-utils query`."""
    queries = QUERIES
    if "-p" in words:
        queries = ["select :n as n"]
    if "--functions" in words:
        queries = ["select twice('ab') as t"]
    if words == ["-r"]:
        queries = QUERIES[:1]
    if words and words[0] in ("-t", "--fmt"):
        queries = [q.replace("x'00ff'", "'00ff'") for q in queries]
    other = tui.root / "plain.db"
    sqlite3.connect(other).close()
    for query in queries:
        theirs = subprocess.run(
            [sys.executable, "-m", "sqlite_utils", "query", str(other), query, *words], capture_output=True, check=True,
            env=tui.environment(),
        )  # fmt: skip
        ours = tui("sql", query, *words).ok()
        assert ours.stdout == theirs.stdout, query


def test_sql_reads_stdin_and_prints_the_schema(tui: Any) -> None:
    assert tui("sql", "-", stdin="select count(*) n from runs").json() == [{"n": 1}]
    text = tui("sql", "--schema").ok().out
    for view in "runs events tool_calls interchanges io checkpoints sources usage_by_day usage_by_day_local notes".split():
        assert f"\n{view}: " in "\n" + text
    columns = {c["name"] for c in tui("sql", "select name from pragma_table_xinfo('events')").json()}
    section = text.split("\nevents: ")[1].split("\n\n")[0]
    assert columns == {line.split()[0] for line in section.splitlines()[1:]}


PUBLIC = {
    "runs": "run cli cli_version mode relation parent_run parent_seq forked_at method conversation title label project "
    "git_branch model command exit_status started_at ended_at ended events input_tokens output_tokens cache_read_tokens "
    "cache_write_tokens cost",
    "events": "run seq ts kind agent content tool tool_id model usage input_tokens output_tokens cache_read_tokens "
    "cache_write_tokens is_error turn parent_seq active source_line link",
    "tool_calls": "run seq tool tool_id input result is_error result_seq started_at duration_ms path",
    "interchanges": "run i seq arrival provider method path status request response streamed frames model input_tokens "
    "output_tokens started_at first_byte_ms duration_ms ended",
    "io": "run i seq name args value is_error duration_ms",
    "checkpoints": "run seq ref commit_id tree_id head_id aligned taken_at files_changed",
    "sources": "run path generation bytes lines damage",
    "usage_by_day": "day project cli model runs input_tokens output_tokens cache_read_tokens cache_write_tokens cost",
}


@pytest.mark.parametrize("view", PUBLIC)
def test_the_views_are_the_public_ones(tui: Any, view: str) -> None:
    rows = tui("sql", f"select name from pragma_table_xinfo('{view}')", "--raw-lines").ok().out.split()
    wanted = PUBLIC[view].split()
    assert rows[: len(wanted)] == wanted


def test_view_values(tui: Any) -> None:
    (run,) = tui("sql", "select * from runs").json()
    assert (run["conversation"], run["events"], run["ended"]) == (
        "00000000-0000-4000-8000-000000000008",
        32,
        "complete",
    )
    assert (run["input_tokens"], run["output_tokens"], run["cache_read_tokens"]) == (189859, 160, 0)
    assert run["started_at"] == "2026-12-01T00:09:31.541Z"
    calls = tui("sql", "select * from tool_calls order by seq").json()
    assert calls[0]["input"] == '{"file_path":"/home/dev/src/work/2.1.218/tui/repo/notes.txt","content":"phase one\\n"}'
    assert calls[0]["path"] == "/home/dev/src/work/2.1.218/tui/repo/notes.txt"
    assert (calls[0]["result_seq"], calls[0]["duration_ms"]) == (6, 100)
    assert calls[2]["result"] == "phase one\nok"
    (usage,) = tui("sql", "select usage from events where seq = 3", "--json-cols").json()
    assert usage["usage"]["input_tokens"] == 23364
    (regexp,) = tui("sql", "select count(*) n from events where content regexp '^Remembered'").json()
    assert regexp["n"] == 2


def test_ta_11_days_and_the_clock_change(bnd: Any) -> None:
    bnd("record", CASES / "TA-11.jsonl").ok()
    utc = bnd("sql", "select day, sum(output_tokens) n from usage_by_day group by 1 order by 1", "--arrays").json()
    assert utc == [["2025-10-25", 11], ["2025-10-26", 111100]]
    ran = bnd(
        "sql", "select day, sum(output_tokens) n, zone from usage_by_day_local group by 1 order by 1", "--arrays",
        env={"TZ": "Europe/Berlin"},
    )  # fmt: skip
    assert ran.json() == [
        ["2025-10-25", 1, "Europe/Berlin"], ["2025-10-26", 11110, "Europe/Berlin"], ["2025-10-27", 100000, "Europe/Berlin"],
    ]  # fmt: skip
    assert "Europe/Berlin" in ran.err


def test_ctrl_c_stops_a_query(tui: Any) -> None:
    endless = "with recursive n (i) as (values (1) union all select i + 1 from n) select count(*) from n"
    process = tui.start("sql", endless)
    time.sleep(1.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_forget_leaves_nothing(bnd: Any) -> None:
    """Must show 10."""
    home = bnd.root / "store"
    shutil.copytree(FIXTURES / "claude/2.1.218/forked", home)
    shutil.copytree(TUI / "projects", home / "projects", dirs_exist_ok=True)
    secret = "zebrafinch" * 3
    file = next(home.glob("projects/*/*0008.jsonl"))
    long = (secret + " filler text. ") * 400
    file.write_bytes(file.read_bytes().replace(b"slow SILVERWOLF", f"slow SILVERWOLF {long}".encode()))
    bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": home}).ok()
    assert bnd("search", secret).ok().out.count(secret) >= 1
    bnd("forget", "00000000-0000-4000-8000-000000000008").ok()
    wal = bnd.journal.with_name(bnd.journal.name + "-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    assert secret.encode() not in bnd.journal.read_bytes()
    con = sqlite3.connect(bnd.journal)
    with Journal.open(bnd.journal) as journal:
        for (pack,) in con.execute("select id from pack"):
            assert secret.encode() not in journal.reader.pack(pack)
    assert con.execute("select count(*) from sqlite_master where name = 'search'").fetchone() == (0,)
    con.close()
    assert bnd("search", secret).ok().out == ""
    assert bnd("fsck").code == 0
    assert len(bnd("runs", "--json").json()) == 2
    again = bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": home}).ok()
    assert "forgotten" in again.out
    assert len(bnd("runs", "--json").json()) == 2
    bnd("record", "00000000-0000-4000-8000-000000000008", env={"CLAUDE_CONFIG_DIR": home}).ok()
    assert len(bnd("runs", "--json").json()) == 3


def test_forget_passes_tokens_on_to_the_copy(bnd: Any) -> None:
    bnd("record", "--all", env=store(FIXTURES / "claude/2.1.218/forked")).ok()
    total = "select sum(input_tokens) n from runs"
    before = bnd("sql", total).json()
    bnd("forget", "00000000-0000-4000-8000-000000000002").ok()
    (run,) = bnd("runs", "--json").json()
    assert run["conversation"].endswith("3")
    assert run["parent_run"] is None
    assert bnd("sql", total).json() == before  # the fork held copies of all of the parent's messages
    assert bnd("fsck").code == 0


def test_a_reader_blocks_forget(tui: Any) -> None:
    reader = sqlite3.connect(tui.journal, isolation_level=None)
    reader.execute("begin")
    reader.execute("select count(*) from event").fetchone()
    ran = tui("forget", "@")
    assert ran.code == 1
    assert "read by another process" in ran.err
    reader.execute("commit")
    reader.close()
    tui("gc").ok()
    assert b"SILVERWOLF" not in tui.journal.read_bytes()


def test_gc_packs_and_is_done_once(bnd: Any) -> None:
    for home in HOMES:
        bnd("record", "--all", "-q", env=store(home)).ok()
    before = bnd("sql", "select run, seq, content, lower(hex(link)) from events order by 1, 2").stdout
    first = bnd("gc", "--json").json()
    assert first["after"] < first["before"]
    assert bnd("gc", "--json").json()["packs"] == 0
    assert bnd("fsck").code == 0
    assert bnd("sql", "select run, seq, content, lower(hex(link)) from events order by 1, 2").stdout == before


def test_follow(bnd: Any) -> None:
    """Must show 9: within a second, through half a line, a shrinking file, and Ctrl-C."""
    real = next(TUI.glob("projects/*/*.jsonl"))
    lines = real.read_bytes().splitlines(keepends=True)
    project = bnd.root / "project"
    project.mkdir()
    from beyond.ingest.claude import encode_path

    folder = bnd.home / ".claude/projects" / encode_path(str(project.resolve()))
    folder.mkdir(parents=True)
    file = folder / real.name
    lines = [line.replace(b"/home/dev/src/work/2.1.218/tui/repo", str(project.resolve()).encode()) for line in lines]
    process = bnd.start("record", "--follow", cwd=project)
    time.sleep(1.0)
    file.write_bytes(b"".join(lines[:12]))

    def until(wanted: int, seconds: float = 1.0) -> float:
        start = time.monotonic()
        while time.monotonic() - start < 10:
            if bnd.journal.exists():
                con = sqlite3.connect(bnd.journal, timeout=10)
                try:
                    (n,) = con.execute("select coalesce(sum(events), 0) from run").fetchone()
                except sqlite3.OperationalError:
                    n = -1
                con.close()
                if n == wanted:
                    return time.monotonic() - start
            time.sleep(0.02)
        raise AssertionError(f"{n} events, not {wanted}")

    until(5)
    with file.open("ab") as out:
        out.write(lines[12])
        out.flush()
        assert until(6) < 1.0
        out.write(lines[13][:50])
        out.flush()
        time.sleep(0.6)
        until(6)
        out.write(lines[13][50:])
        out.flush()
        assert until(8) < 1.0
    assert bnd("runs", "--json").json()[0]["ended"] == "live"
    file.write_bytes(b"".join(lines[:10]))  # it shrinks …
    time.sleep(0.6)
    until(8)
    file.write_bytes(b"".join(lines))  # … and comes back longer
    until(32)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    (run,) = bnd("runs", "--json").json()
    assert (run["events"], run["ended"]) == (32, "complete")
    assert bnd("fsck").code == 0
    whole = bnd.root / "whole.db"
    bnd("-j", whole, "record", file).ok()
    same = "select source_line, kind, link, turn, active from events order by 1, 2, 3"
    assert bnd("sql", same).stdout == bnd("-j", whole, "sql", same).stdout


@pytest.mark.parametrize("place", [["-j", "a.db", "runs"], ["runs", "-j", "a.db"], ["runs", "--journal", "a.db"]])
def test_options_stand_before_or_after(bnd: Any, place: list[str]) -> None:
    bnd("-j", "a.db", "record", "--all", env=store(TUI)).ok()
    assert "Lab session" in bnd(*place).ok().out


def test_naming_a_run(bnd: Any) -> None:
    bnd("record", "--all", env=store(FIXTURES / "claude/2.1.218/forked")).ok()
    bnd("record", "--all", env=store(SUBAGENT)).ok()
    runs = bnd("runs", "--json", "--subagents").json()
    for row in runs:
        assert json.loads(bnd("show", row["run"][:7], "--json").ok().out.splitlines()[0])["seq"] == 1
    labelled = bnd("record", next(TUI.glob("projects/*/*.jsonl")), "--label", "my run").ok()
    assert labelled.code == 0
    assert bnd("show", "my run").ok()
    assert "delegate this" in bnd("show", "00000000-0000-4000-8000-000000000005").ok().out
    newest = bnd("show", "@").ok()
    assert "AFTERREWIND" in newest.out
    assert "all projects" in newest.err
    assert bnd("show", "@1").ok().out != newest.out
    assert bnd("show", "@99").code == 2
    prefixes = {row["run"][0] for row in runs}
    common = next(
        (p for p in prefixes if sum(r["run"].startswith(p) for r in bnd("runs", "--json", "--subagents").json()) > 1),
        None,
    )
    if common:
        ran = bnd("show", common)
        assert ran.code == 2
        assert "fits" in ran.err
        assert ran.err.count("\n") == 1


def test_show_subagents_inline(bnd: Any) -> None:
    bnd("record", "--all", env=store(SUBAGENT)).ok()
    rows = [json.loads(line) for line in bnd("show", "@", "--json").ok().out.splitlines()]
    assert [(r["agent"], r["kind"]) for r in rows] == [
        ("main", "user_msg"), ("main", "assistant_msg"), ("main", "usage"), ("main", "tool_call"),
        ("ac95a231570774487", "user_msg"), ("ac95a231570774487", "tool_call"), ("ac95a231570774487", "usage"),
        ("ac95a231570774487", "tool_result"), ("ac95a231570774487", "assistant_msg"), ("ac95a231570774487", "usage"),
        ("main", "tool_result"), ("main", "assistant_msg"), ("main", "usage"),
    ]  # fmt: skip
    assert list(rows[0]) == "seq ts kind agent content tool tool_id model usage is_error".split()
    text = bnd("show", "@").ok().out
    assert "        1  " in text


def test_show_at_is_the_causal_past(tui: Any) -> None:
    def seqs(at: str) -> list[int]:
        return [json.loads(line)["seq"] for line in tui("show", "@", "--at", at, "--json").ok().out.splitlines()]

    assert seqs("10") == [1, 2, 3, 4, 5, 6, 7, 8, 10]  # one of two parallel results: the other call isn't its cause
    assert seqs("12") == list(range(1, 13))  # what follows both has both
    assert seqs("-2") == [*range(1, 14), 30, 31]  # on the branch after the rewind: nothing of what was rewound
    assert seqs("21") == [*range(1, 22)]  # a step that was rewound away has its own past
    assert seqs("turn:1") == list(range(1, 14))
    assert tui("show", "@", "--at", "99").code == 2
    assert tui("show", "@", "--at", "cp:1").code == 2
    assert tui("show", "@", "--at", "soon").code == 2


def test_show_kinds_and_tools(tui: Any) -> None:
    rows = [
        json.loads(line) for line in tui("show", "@", "--kind", "tool_call", "--tool", "Bash", "--json").ok().out.splitlines()
    ]
    assert [r["tool"] for r in rows] == ["Bash"] * 3
    assert tui("show", "@", "--kind", "nonsense").code == 2


def test_raw_generations(bnd: Any) -> None:
    file = bnd.root / "t.jsonl"
    lines = next(TUI.glob("projects/*/*.jsonl")).read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:30]))
    bnd("record", file).ok()
    file.write_bytes(b"".join(lines[8:]))
    assert "rewritten" in bnd("record", file).ok().out
    assert bnd("show", "@", "--raw").ok().stdout == b"".join(lines[8:])
    assert bnd("show", "@", "--raw", "--generation", "0").ok().stdout == b"".join(lines[:30])
    assert bnd("show", "@", "--raw", "-G", "7").code == 2
    assert bnd("show", "@", "-G", "0").code == 2


def test_step_from_a_pipe(tui: Any) -> None:
    out = tui("step", "@", stdin="\nn\np\n5\n-1\n/QUEUED\n1\n/queued\no\nzz\nf\n99\nq\nn\n").ok().out
    seqs = [int(m) for m in re.findall(r"^ *(\d+)~?  \d\d:", out, re.MULTILINE)]
    assert seqs == [1, 2, 3, 2, 5, 32, 1, 21, 21]
    assert "stands in no later step" in out
    assert "is none of" in out
    assert "no step 99" in out


def test_search(tui: Any) -> None:
    hits = [json.loads(line) for line in tui("search", "SILVERWOLF", "--json").ok().out.splitlines()]
    assert [(h["seq"], h["kind"]) for h in hits] == [(22, "assistant_msg"), (14, "user_msg")]
    assert tui("search", '"remembered silver*').ok().out == ""
    assert len(tui("search", "silver* remembered", "--json").ok().out.splitlines()) == 1
    assert len(tui("search", '"Remembered SILVERWOLF"', "--json").ok().out.splitlines()) == 1
    assert tui("search", '"SILVERWOLF Remembered"', "--json").ok().out == ""
    assert len(tui("search", "phase", "-n", "2", "--json").ok().out.splitlines()) == 2
    assert tui("search", "...").code == 2
    assert tui("search", "x", "--run", "@").ok()
    tui.journal.chmod(0o644)
    unindexed = tui.root / "ro"
    unindexed.mkdir()
    copy = unindexed / "j.db"
    con = sqlite3.connect(tui.journal)
    con.execute("vacuum into ?", (str(copy),))
    con.close()
    con = sqlite3.connect(copy)
    con.executescript("drop table search; drop table search_state")
    con.close()
    code = (
        "import sys; sys.argv[1:1] = []\n"
        "from pathlib import Path\nfrom beyond import search\nfrom beyond.agents import content_of\n"
        "from beyond.query import connect\n"
        "with connect(Path(sys.argv[1]), content_of) as q:\n"
        "    print([h.seq for h in search.find(q, 'silverwolf', indexed=False)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout.strip() == "[22, 14]"


def test_search_finds_what_came_later(bnd: Any) -> None:
    file = bnd.root / "t.jsonl"
    lines = next(TUI.glob("projects/*/*.jsonl")).read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:20]))
    bnd("record", file).ok()
    assert bnd("search", "AFTERREWIND").ok().out == ""
    file.write_bytes(b"".join(lines))
    bnd("record", file).ok()
    assert bnd("search", "AFTERREWIND").ok().out.count(":30") == 1


def test_notes(tui: Any) -> None:
    tui("note", "@:14", "here it went wrong").ok()
    tui("note", "@", "ask again").ok()
    out = tui("show", "@").ok().out
    assert out.index("slow SILVERWOLF") < out.index("note: here it went wrong") < out.index("phase two")
    assert "note: ask again" in out
    assert [r["seq"] for r in tui("sql", "select seq from notes order by made_at").json()] == [14, None]
    assert tui("note", "@:99", "x").code == 2
    assert tui("note", "@", " ").code == 2


def test_tp_05_output_never_stops_at_a_character(bnd: Any) -> None:
    bnd("record", CASES / "TP-05.jsonl").ok()
    for words in (
        ["show", "@"],
        ["show", "@", "--json"],
        ["sql", "select * from events"],
        ["search", "prompt"],
        ["runs"],
    ):
        assert bnd(*words, env={"PYTHONIOENCODING": "ascii", "LANG": "C"}).ok()
        assert bnd(*words).ok()


def test_ws_08_terminal_escapes_are_shown_not_done(bnd: Any) -> None:
    bnd("record", CASES / "WS-08.jsonl").ok()
    for words in (["show", "@", "--full"], ["runs"], ["search", "a*"], ["sql", "select * from events", "-t"]):
        out = bnd(*words).ok().stdout
        assert b"\x1b]" not in out
        assert re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", out) is None
        text = out.decode()
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x80-\x9f]", text)
    assert "\u241b" in bnd("show", "@", "--full").ok().out
    assert all(line.count("\n") == 0 for line in bnd("runs").out.splitlines())


def test_errors_are_one_line(bnd: Any) -> None:
    for words in (
        ["show", "nothing"], ["show"], ["nosuch"], ["record", "no/such/file.jsonl"], ["record", "no-such-id"], ["sql"],
        ["sql", "select nonsense"], ["record", "--all", "x"], ["record", "--cli", "vi", "--all"], ["fsck"], ["forget", "abc"],
        ["-j", "/dev/null/x.db", "record", "--all"], ["--nonsense"], ["note", "x", "y"], ["runs", "-n", "0"],
    ):  # fmt: skip
        ran = bnd(*words)
        assert ran.code == 2, (words, ran)
        assert re.fullmatch(r"bnd: [^\n]+\n", ran.err), (words, ran.err)
        assert ": " in ran.err[5:], ran.err


def test_nothing_recorded_yet(bnd: Any) -> None:
    ran = bnd("runs").ok()
    assert (ran.out, "bnd record" in ran.err) == ("", True)
    assert bnd("runs", "--json").ok().json() == []
    ran = bnd("record")
    assert ran.code == 2
    assert "no conversation" in ran.err
    assert bnd("record", "--all").ok()


def test_record_here(bnd: Any) -> None:
    """Without a name: the newest conversation of this directory, with its subagents, of any CLI."""
    from beyond.ingest.claude import encode_path

    project = bnd.root / "w" / "app"
    (project / "sub").mkdir(parents=True)
    other = bnd.root / "w" / "app2"
    other.mkdir()
    for place, when in ((project, 100), (other, 200)):
        folder = bnd.home / ".claude/projects" / encode_path(str(place.resolve()))
        shutil.copytree(SUBAGENT / "projects/-home-dev-src-work-2-1-218-subagent-repo", folder)
        for file in folder.rglob("*.jsonl"):
            file.write_bytes(
                file.read_bytes().replace(b"/home/dev/src/work/2.1.218/subagent/repo", str(place.resolve()).encode())
            )
            os.utime(file, (when, when))
    bnd("record", cwd=project / "sub").ok()
    assert {r["project"] for r in bnd("runs", "--json").json()} == {str(project.resolve())}
    assert len(bnd("runs", "--json", "--subagents").json()) == 2
    assert [r["project"] for r in bnd("runs", "--json", "--project", str(project)).json()] == [str(project.resolve())]


def test_damage_is_named_and_exits_1(bnd: Any) -> None:
    ran = bnd("record", CASES / "TP-01.jsonl")
    assert ran.code == 1
    assert "byte 934, 4096 bytes" in ran.err
    assert "read with damage" in ran.err
    (row,) = bnd("sql", "select damage from sources", "--json-cols").json()
    assert [d["length"] for d in row["damage"]] == [4096, 512, 64, 8192]
    assert "line 3 (byte 934" in bnd("show", "@").out


def test_one_bad_file_stops_nothing(bnd: Any) -> None:
    home = bnd.root / "store"
    shutil.copytree(TUI, home)
    folder = next(home.glob("projects/*"))
    shutil.copy(CASES / "TP-07-utf16.jsonl", folder / "11111111-0000-4000-8000-000000000001.jsonl")
    shutil.copy(CASES / "TP-04-empty.jsonl", folder / "11111111-0000-4000-8000-000000000002.jsonl")
    (folder / "11111111-0000-4000-8000-000000000003.jsonl").write_bytes(os.urandom(3000))
    (folder / "11111111-0000-4000-8000-000000000004.jsonl").mkdir()
    ran = bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": home})
    assert ran.code == 1
    assert "UTF-16" in ran.err
    assert len(bnd("runs", "--json").ok().json()) == 1


def test_a_newer_journal_is_named(tui: Any) -> None:
    con = sqlite3.connect(tui.journal)
    con.execute("pragma user_version = 99")
    con.close()
    for words in (["runs"], ["record", "--all"], ["fsck"], ["sql", "select 1"]):
        ran = tui(*words)
        assert ran.code == 2
        assert "newer beyond" in ran.err


def test_reading_a_journal_in_a_folder_that_cannot_be_written(tui: Any) -> None:
    folder = tui.root / "ro"
    folder.mkdir()
    copy = folder / "j.db"
    shutil.copy(tui.journal, copy)
    copy.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert tui("-j", copy, "sql", "select count(*) n from events").json() == [{"n": 32}]
        assert tui("-j", copy, "show", "@").ok()
        assert sorted(p.name for p in folder.iterdir()) == ["j.db"] or os.geteuid() == 0
    finally:
        folder.chmod(0o755)


def test_a_locked_journal(tui: Any) -> None:
    """Readers go on beside a writer; a second writer waits."""
    writer = sqlite3.connect(tui.journal, isolation_level=None)
    writer.execute("begin immediate")
    assert tui("runs").ok()
    assert tui("sql", "select 1").ok()
    process = tui.start("note", "@", "waited")
    time.sleep(0.7)
    assert process.poll() is None
    writer.execute("rollback")
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_doctor(bnd: Any) -> None:
    data = bnd("doctor", "--json", env=store(SUBAGENT)).ok().json()
    claude = next(a for a in data["agents"] if a["cli"] == "claude")
    assert (claude["conversations"], claude["subagents"]) == (1, 1)
    assert data["journal"]["state"] == "not made yet"
    assert bnd("doctor", env=store(SUBAGENT)).ok().out


def test_demo_ends_in_a_fork_that_forgot(bnd: Any) -> None:
    out = bnd("demo").ok().out
    assert re.search(r"tool +calls +failed +avg_ms\n.*\n(Bash|Write) ", out)
    lines = out.splitlines()
    at = lines.index("# What the resumed agent sent to the model, and its files")
    assert lines[at + 1 : at + 4] == [
        "GOLDENHAWK in the request: yes",
        "SILVERWOLF in the request: no",
        "notes.txt of the fork: phase one; of the original: phase two",
    ]
    assert re.search(r"\w{12}  fork +\w{12} +13  surgical +16$", lines[-1])  # a table made by SQL
    assert not bnd.journal.exists()


def test_completion(tui: Any) -> None:
    run = tui("runs", "--json").json()[0]["run"]
    env = {"_BND_COMPLETE": "bash_complete", "COMP_WORDS": f"bnd show {run[:3]}", "COMP_CWORD": "2"}
    script = "import sys; sys.argv = ['bnd']\nfrom beyond.cli import group\ngroup(prog_name='bnd')\n"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**tui.environment(), **env}, capture_output=True, text=True,
        cwd=Path(__file__).parent.parent, check=False,
    )  # fmt: skip
    assert run in done.stdout


def test_help_names_every_command(bnd: Any) -> None:
    from beyond.cli import COMMANDS

    out = bnd("--help").ok().out
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", out, re.MULTILINE)
        page = bnd(name, "--help").ok().out
        assert "--json" in page
    assert bnd("--version").ok().out.startswith("bnd ")


def test_a_closed_pipe_is_quiet(tui: Any) -> None:
    process = subprocess.Popen(tui.argv("sql", "select * from events, events e2, events e3", "--nl"), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=tui.environment(), cwd=tui.root)  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=20) == 0


def test_the_views_know_the_length_of_previews() -> None:
    from beyond.event import PREVIEW
    from beyond.schema import load

    assert set(re.findall(r"\.size <= (\d+)", load("views.sql"))) == {str(PREVIEW)}


def test_tp_23_where_a_session_moved_to_is_shown(bnd: Any) -> None:
    bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": CASES / "TP-23.dir"}).ok()
    out = bnd("show", "@").ok().out
    assert "/w/proj  " in out
    assert "later in /w/proj/sub, /w/proj/.worktrees/feat, /tmp" in out
