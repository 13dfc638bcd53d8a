"""Hard cases from public bug reports: reading transcripts (TP), counting tokens (TA), odd values (JS)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.errors import SourceError
from beyond.journal import Journal
from beyond.journal.verify import verify
from beyond.record import Outcome, record
from beyond.record.derive import differing
from beyond.store import identify
from tests.reading import CASES


class Recorded:
    """A journal with one case in it."""

    def __init__(self, journal: Journal, outcomes: list[Outcome]) -> None:
        self.journal, self.outcomes = journal, outcomes

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.journal.con.execute(sql, values).fetchall()

    def texts(self, *kinds: str, active: bool | None = None) -> list[str]:
        """Contents of events of these kinds, by seq, through the read path."""
        marks = ",".join("?" * len(kinds))
        sql = f"select e.source, e.line, e.part, r.cli from event e join run r on r.id = e.run where e.kind in ({marks})"
        if active is not None:
            sql += f" and e.active = {int(active)}"
        out = []
        for source, line, part, cli in self.rows(sql + " order by e.run, e.seq", *kinds):
            out.append(str(agents.content_of(cli)(self.journal.reader.line(source, line))[part].content))
        return out

    def tokens(self) -> tuple[int, ...]:
        """Input, output, cache read, cache write."""
        return self.rows(
            "select sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens) from event"
        )[0]

    @property
    def damage(self) -> list[dict[str, Any]]:
        return [d for o in self.outcomes for d in o.bad]

    @property
    def notes(self) -> list[dict[str, Any]]:
        return [d for o in self.outcomes for d in o.damage if d.get("note")]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Records a case's file or folder into a journal of its own; checks that the bytes come back."""
    opened: list[Journal] = []

    def open_case(name: str) -> Recorded:
        path = CASES / name
        before = {p: p.read_bytes() for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()}
        journal = Journal.open(tmp_path / f"{name}.db")
        opened.append(journal)
        if path.is_dir():
            kimi = path / "kimi-home"
            monkeypatch.setenv("KIMI_CODE_HOME" if kimi.exists() else "CLAUDE_CONFIG_DIR", str(kimi if kimi.exists() else path))
            founds = list(agents.conversations("kimi" if kimi.exists() else "claude"))
        else:
            founds = [identify(path)]
        outcomes = record(journal, founds)
        assert [*verify(journal), *differing(journal)] == []
        for place, source in journal.con.execute("select path, source from file").fetchall():
            assert b"".join(journal.reader.raw(source)) == Path(place).read_bytes()
        assert {p: p.read_bytes() for p in before} == before
        return Recorded(journal, outcomes)

    yield open_case
    for journal in opened:
        journal.close()


def test_tp_01_nul_blocks(case: Any) -> None:
    it = case("TP-01.jsonl")
    assert it.texts("user_msg", "assistant_msg") == [
        "prompt 1",
        "answer 1",
        "prompt 2",
        "answer 2",
        "prompt 3",
        "answer 3",
    ]
    found = [(d["line"], d["length"]) for d in it.damage]
    assert found == [(3, 4096), (4, 512), (6, 64), (8, 8192)]
    data = (CASES / "TP-01.jsonl").read_bytes()
    for d in it.damage:
        assert data[d["offset"] : d["offset"] + d["length"]].strip(b"\0") == b""


def test_tp_04_lines_that_are_no_record(case: Any) -> None:
    it = case("TP-04.jsonl")
    assert len(it.texts("user_msg", "assistant_msg")) == 4
    lines = (CASES / "TP-04.jsonl").read_bytes().split(b"\n")
    good = {n for (n,) in it.rows("select line from event")}
    wrong = [n for n, raw in enumerate(lines, 1) if raw.strip() and n not in good]
    assert [d["line"] for d in it.damage] == wrong
    assert len(wrong) >= 7


@pytest.mark.parametrize("name", ["TP-04-empty.jsonl", "TP-04-onlyblank.jsonl"])
def test_tp_04_an_empty_file_is_no_error(case: Any, name: str) -> None:
    it = case(name)
    assert [(o.status, o.bad) for o in it.outcomes] == [("empty", [])]
    assert it.rows("select count(*) from run") == [(0,)]


def test_tp_05_surrogates_and_foreign_bytes(case: Any) -> None:
    it = case("TP-05.jsonl")
    texts = it.texts("user_msg", "assistant_msg", "tool_result", "tool_call")
    assert len(texts) >= 4
    for (preview,) in it.rows("select preview from event where preview is not null"):
        preview.encode("utf-8")
    assert it.damage == []


def test_tp_06_line_separators_inside_strings(case: Any) -> None:
    it = case("TP-06.jsonl")
    assert it.rows("select count(distinct line) from event") == [(4,)]
    assert any("\u2028" in t for t in it.texts("user_msg", "assistant_msg", "tool_call", "tool_result"))


def test_tp_07_bom_and_crlf(case: Any) -> None:
    it = case("TP-07.jsonl")
    assert it.rows("select count(distinct line) from event") == [(4,)]
    assert not any("\r" in t for t in it.texts("user_msg", "assistant_msg"))


def test_tp_07_utf_16_is_named(case: Any) -> None:
    with pytest.raises(SourceError, match="UTF-16"):
        identify(CASES / "TP-07-utf16.jsonl")


def test_tp_08_long_lines(tmp_path: Path) -> None:
    """Peak memory stays below three times the longest line and a fixed part."""
    big = tmp_path / "big.jsonl"
    subprocess.run([sys.executable, CASES / "TP-08.gen.py", big, "20", "2"], check=True, stdout=subprocess.DEVNULL)
    code = (
        "import resource, sys; from beyond.journal import Journal; from beyond.record import record; "
        "from beyond.store import identify; from pathlib import Path\n"
        "with Journal.open(sys.argv[1]) as j:\n"
        "    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    (o,) = record(j, [identify(Path(sys.argv[2]))])\n"
        "    print(o.new_events, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.db", big], check=True, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": ""},
    )  # fmt: skip
    events, grown = map(int, done.stdout.split())
    longest = max(map(len, big.read_bytes().split(b"\n"))) / 1e6
    assert events == 20
    assert grown < 8 * longest + 40


def test_tp_09_every_shape(case: Any) -> None:
    it = case("TP-09.jsonl")
    assert it.rows("select count(distinct line) from event") == [(12,)]
    assert '{"type":"unknown_block","x":1}' in it.texts("user_msg")
    assert it.damage == []


def test_tp_10_metadata_first_and_unknown_rows(case: Any) -> None:
    it = case("TP-10.jsonl")
    assert it.rows("select title, project, conversation from run") == [
        ("My title", "/w/proj", "aaaaaaaa-0000-4000-8000-000000000001")
    ]
    (answer,) = it.rows("select parent_seq, active from event where kind = 'assistant_msg'")
    (prompt,) = it.rows("select seq from event where kind = 'user_msg'")
    assert answer == (prompt[0], 1)
    metas = it.texts("meta")
    assert len(metas) == 2
    assert "12345678901234567890" in metas[1]


def test_tp_11_a_stub_with_subagents(case: Any) -> None:
    it = case("TP-11.dir")
    main, sub = it.outcomes
    assert (main.status, main.new_events, main.subagents) == ("new", 0, 1)
    assert sub.new_events == 6
    assert it.rows("select count(*) from run where relation = 'subagent' and parent is not null") == [(1,)]


def test_tp_12_titles_of_other_sessions(case: Any) -> None:
    it = case("TP-12.dir")
    assert dict(it.rows("select substr(conversation, -3), title from run")) == {
        "121": "prompt 1",
        "122": "Title that belongs to session 122",
    }


def test_tp_13_missing_parents(case: Any) -> None:
    it = case("TP-13.jsonl")
    assert len(it.texts("user_msg", "assistant_msg", active=True)) == 4
    assert [(d["line"], d["what"]) for d in it.notes] == [(1, "its parent is missing"), (3, "its parent is missing")]
    assert it.damage == []


def test_tp_14_progress_and_sidechains(case: Any) -> None:
    it = case("TP-14.jsonl")
    (main,) = it.rows("select id from run where agent = 'main'")[0]
    active = it.rows("select line from event where run = ? and active = 1 and link is not null order by seq", main)
    assert [n for (n,) in active] == [1, 2, 7, 8]
    (parent, seq, events) = it.rows("select parent, parent_seq, events from run where agent = 'a1'")[0]
    assert parent == main
    assert it.rows("select kind, tool from event where run = ? and seq = ?", main, seq) == [("tool_call", "Task")]
    assert events == 5
    assert it.rows("select count(*) from event where run = ? and active = 0", main) == [(0,)]


def test_tp_15_parallel_calls(case: Any) -> None:
    it = case("TP-15.jsonl")
    assert it.texts("tool_result", active=True) == ["AAA", "BBB"]
    calls = it.rows("select tool_id, result_seq is not null from event where kind = 'tool_call'")
    assert [answered for _, answered in calls] == [1, 1]


def test_tp_16_repeated_uuids(case: Any) -> None:
    it = case("TP-16.jsonl")
    assert it.rows("select line, active from event where link is not null order by seq") == [
        (2, 1),
        (3, 1),
        (6, 1),
        (7, 1),
    ]
    assert it.tokens()[:2] == (20, 10)


def test_tp_17_boundaries(case: Any) -> None:
    it = case("TP-17.jsonl")
    assert it.texts("user_msg", active=True) == ["prompt 1", "prompt 2", "after one", "after two", "after three"]
    assert it.rows("select count(*), min(active) from event where mark = 'compaction'") == [(6, 1)]
    assert it.rows("select turn from event where kind = 'user_msg' order by seq") == [(1,), (2,), (3,), (4,), (5,)]


def test_tp_18_two_live_branches(case: Any) -> None:
    it = case("TP-18.jsonl")
    assert it.texts("user_msg", active=True) == ["prompt 1", "right 1", "right 2"]
    assert it.texts("user_msg", active=False) == ["left 1", "left 2"]


def test_tp_19_cycles(case: Any) -> None:
    it = case("TP-19.jsonl")
    assert it.rows("select line, active from event where link is not null order by line") == [
        (1, 1), (2, 1), (3, 0), (4, 0), (5, 0), (6, 1), (7, 1),
    ]  # fmt: skip
    assert {d["what"] for d in it.notes} == {"its parents form a circle"}


def test_tp_19_a_deep_chain(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    rows = []
    for n in range(20_000):
        kind = "user" if n % 2 == 0 else "assistant"
        rows.append(
            {"parentUuid": f"u{n - 1}" if n else None, "uuid": f"u{n}", "type": kind, "sessionId": "deep", "cwd": "/w",
             "message": {"role": kind, "content": f"m{n}"}}
        )  # fmt: skip
    rows.reverse()  # children before their parents: the worst order
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [identify(path)])
        assert journal.con.execute("select count(*), sum(active), max(turn) from event").fetchone() == (
            20_000,
            20_000,
            10_000,
        )
        assert journal.con.execute(
            "select count(*) from event where parent_seq is not null and parent_seq <> seq - 1"
        ).fetchone() == (0,)


def test_tp_20_subagents_at_several_depths_and_ta_07(case: Any) -> None:
    it = case("TP-20.dir")
    assert it.rows("select agent from run where relation is null") == [("main",)]
    assert sorted(a for (a,) in it.rows("select agent from run where relation = 'subagent'")) == [
        "aaa1111",
        "bbb2222",
        "ccc3333",
    ]
    assert it.rows("select count(*) from run where relation = 'subagent' and parent is null") == [(0,)]
    assert it.tokens()[:2] == (730, 715)


def test_tp_21_projects_that_share_a_folder(case: Any) -> None:
    it = case("TP-21.dir")
    assert sorted(p for (p,) in it.rows("select project from run")) == ["/w/a-b", "/w/a.b", "/w/a/b", "/w/a_b"]


def test_tp_23_the_home_of_a_session_that_moves(case: Any) -> None:
    it = case("TP-23.dir")
    assert it.rows("select project from run") == [("/w/proj",)]


def test_tp_24_times(case: Any) -> None:
    it = case("TP-24.jsonl")
    times = [t for (t,) in it.rows("select ts from event where link is not null order by seq")]
    assert times == [1772352000000, 1772352000000, 1772351999999, 1772352000000, 1772352000123, None]
    assert it.rows("select parent_seq from event where seq = 4")


@pytest.mark.parametrize("unit", ["seconds", "ms"])
def test_tp_24_kimi_units(case: Any, unit: str) -> None:
    it = case(f"TP-24-kimi-{unit}.jsonl")
    assert it.rows("select ts from event where kind = 'user_msg'") == [(1772352060000,)]


def test_tp_25_queued_prompts(case: Any) -> None:
    it = case("TP-25.jsonl")
    assert it.texts("user_msg", active=True) == [
        "start", "queued and later delivered", "queued, removed, never delivered as a user row",
    ]  # fmt: skip
    assert it.rows("select mark from event where kind = 'user_msg' order by seq") == [(None,), (None,), ("steering",)]


def test_tp_29_kimi_undo_clear_compaction(case: Any) -> None:
    it = case("TP-29.jsonl")
    assert "p2 undone" in it.texts("user_msg", active=False)
    assert it.texts("user_msg", active=True) == ["p1", "p3", "p4", "p5"]
    assert it.tokens()[:2] == (150, 35)
    assert it.texts("meta")[0] == "SUMMARY"


def test_tp_30_kimi_stores_out_of_step(case: Any) -> None:
    it = case("TP-30.dir")
    assert [o.status for o in it.outcomes] == ["new"]
    assert any("9.0" in w for w in it.outcomes[0].warnings)
    assert it.texts("user_msg")


def test_tp_32_json_that_hurts(case: Any) -> None:
    it = case("TP-32.jsonl")
    assert it.texts("user_msg", "assistant_msg") == ["prompt 1", "answer 1", "prompt 2", "answer 2"]
    events = {n for (n,) in it.rows("select line from event")}
    bad = {d["line"] for d in it.damage}
    assert events | bad == set(range(1, 11))


def test_ta_01_the_fullest_row_of_a_message(case: Any) -> None:
    assert case("TA-01.jsonl").tokens() == (18, 210, 2100, 120)


def test_ta_02_request_ids_missing(case: Any) -> None:
    assert case("TA-02.jsonl").tokens()[:2] == (15, 26)


def test_ta_05_cache_writes_by_life_time(case: Any) -> None:
    assert case("TA-05.jsonl").tokens()[3] == 2100


def test_ta_06_odd_usage(case: Any) -> None:
    """Numeric strings are not accepted as counts, so output is 117."""
    it = case("TA-06.jsonl")
    assert it.tokens()[:2] == (1107, 117)
    assert it.texts("error") == ["API Error: 529"]
    assert it.rows("select count(*) from event where input_tokens < 0 or output_tokens < 0") == [(0,)]


def test_ta_12_kimi_reports_a_turn_twice(case: Any) -> None:
    assert case("TA-12.jsonl").tokens() == (17, 8, 100, 20)


def test_js_02_a_lone_surrogate_stops_nothing(case: Any) -> None:
    it = case("JS-02.jsonl")
    lines = (CASES / "JS-02.jsonl").read_bytes().strip().split(b"\n")
    assert it.rows("select count(*) from source where lines = ?", len(lines)) in ([(1,)], [(0,)])
    assert it.damage == []


def test_js_05_numbers_and_nul(case: Any) -> None:
    it = case("JS-05.jsonl")
    assert it.texts("user_msg") == ["nul \0 inside text"]
    assert it.rows("select preview from event where kind = 'user_msg'") == [("nul \0 inside text",)]
    total = it.tokens()
    assert all(t is None or 0 <= t < 2**63 for t in total)


def test_js_05_big_numbers_in_a_tools_input(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    number = "9" * 40
    path.write_text(
        '{"type":"assistant","uuid":"a","parentUuid":null,"sessionId":"s","message":{"role":"assistant","content":'
        '[{"type":"tool_use","id":"t","name":"X","input":{"n":' + number + "}}]}}\n"
    )
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [identify(path)])
        (source,) = journal.con.execute("select id from source").fetchone()
        text = agents.content_of("claude")(journal.reader.line(source, 1))[0].content
        assert text == '{"n":' + number + "}"


def test_js_06_parallel_appends(tmp_path: Path) -> None:
    """Many writers at once: every record once, no number twice."""
    log = tmp_path / "t.jsonl"
    log.write_text("")
    script = tmp_path / "append.py"
    script.write_text(
        "import json, os, sys, fcntl\n"
        "record = json.load(sys.stdin); n = record['id']\n"
        "line = json.dumps({'type': 'user', 'uuid': f'u{n}', 'parentUuid': None, 'sessionId': 's', 'cwd': '/w', "
        "'message': {'role': 'user', 'content': record['pad']}}) + '\\n'\n"
        "path = sys.argv[1] + f'/{n}.jsonl'\n"
        "open(path, 'w').write(line)\n"
        "from pathlib import Path\n"
        "from beyond.journal import Journal\nfrom beyond.record import record as rec\nfrom beyond.store import identify\n"
        "with Journal.open(sys.argv[2]) as j:\n    rec(j, [identify(Path(path))])\n"
    )
    folder = tmp_path / "many"
    folder.mkdir()
    db = tmp_path / "x.db"
    command = f"PYTHONPATH={Path(__file__).parent.parent} {sys.executable} {script} {folder} {db}"
    done = subprocess.run([sys.executable, CASES / "JS-06.py", command, "3"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["appends", "24", "failed", "0"]
    with Journal.open(db) as journal:
        assert journal.con.execute("select count(*), sum(events) from run").fetchone() == (24, 24)
        assert list(verify(journal)) == []


def test_a_source_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    shutil.copy(CASES / "TP-01.jsonl", path)
    path.chmod(0o444)
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [identify(path)])
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
