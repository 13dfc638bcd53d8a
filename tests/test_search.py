"""Full-text search: the index and the check on the real content agree, and neither stops anything."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from beyond import search
from beyond.agents import content_of
from beyond.errors import UsageError
from beyond.journal import Journal
from beyond.query import connect
from beyond.record import find, record
from tests.reading import CASES, FIXTURES
from tests.terminal import on_terminal

TEXTS = (
    "the quick brown Fox jumps",
    "Caf\u00e9 au lait, \u00c5ngstr\u00f6m and stra\u00dfe",
    "def usage_by_day_local(zone): return HTTPServer2",
    "\u8bf7\u8bb0\u4f4f\u8fd9\u4e2a\u4ee3\u53f7 GOLDENHAWK\uff0c\u8c22\u8c22",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    'line one\nline\ttwo "quoted words" path/to/file.py -rf *',
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30b9\u30c8abc123",
    "re\u0301sume\u0301s, a re\u0301sume\u0301 and nai\u0308vete\u0301",
)


def transcript(path: Path, texts: tuple[str, ...], conversation: str = "11111111-0000-4000-8000-000000000001") -> Path:
    lines = []
    for number, text in enumerate(texts, 1):
        lines.append(
            json.dumps(
                {"type": "user", "uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number > 1 else None,
                 "message": {"role": "user", "content": text}, "sessionId": conversation, "cwd": "/w/app",
                 "version": "2.1.218", "timestamp": f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}.000Z"}
            )
        )  # fmt: skip
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def index(path: Path) -> None:
    with connect(path, content_of) as query, Journal.open(path) as journal:
        search.update(journal.con, journal.write, query.content)


def seqs(path: Path, text: str, *, indexed: bool = True, **wanted: Any) -> list[int]:
    with connect(path, content_of) as query:
        return [hit.seq for hit in search.find(query, text, indexed=indexed, **wanted)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "x.db"
    with Journal.open(path) as opened:
        record(opened, find(str(transcript(tmp_path / "t.jsonl", TEXTS)), None))
    index(path)
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("quick", [1]), ("QUICK fox", [1]), ("quic", []), ("quic*", [1]), ('"brown fox"', [1]), ('"quick fox"', []),
        ("fox brown", [1]), ("cafe", [2]), ("CAF\u00c9 angstrom", [2]), ("strasse", []), ("stra\u00dfe", [2]), ("au*", [2]),
        ("usage", [3]), ("usage_by_day", [3]), ("usage_by", [3]), ("day_usage", []), ("by_day*", [3]), ("httpserver2", [3]),
        ("server2", []), ("\u4ee3\u53f7", [4]), ("\u8bb0\u4f4f\u8fd9\u4e2a", [4]), ("\u53f7\u4ee3", []), ("\u8c22", [4]),
        ("\u4ee3\u53f7 goldenhawk", [4]), ("\u4ee3\u53f7goldenhawk", [4]), ("\u043f\u0440\u0438\u0432\u0435\u0442", [5]),
        ("\u043c\u0438\u0440*", [5]), ('"line two"', [6]), ('"line one line two"', [6]), ("quoted", [6]), ("file.py", [6]),
        ("path/to", [6]), ("-rf", [6]), ("\u30c6\u30b9\u30c8", [7]), ("abc123", [7]), ("abc*", [7]), ("\u65e5\u672c abc123", [7]),
        ("r\u00e9sum\u00e9", [8]), ("re\u0301sume\u0301", [8]), ("RESUME", [8]), ("sume", []), ("resum", []), ("na\u00efv*", [8]),
        ('"a r\u00e9sum\u00e9 and"', [8]), ("cafe\u0301", [2]), ("the*", [1]),
        ("line", [6]), ('"unclosed', []), ("quick OR cafe", []), ("NEAR(quick", []), ("text:quick", []),
    ],
)  # fmt: skip
def test_what_is_found(journal: Path, text: str, found: list[int]) -> None:
    assert seqs(journal, text) == found
    assert seqs(journal, text, indexed=False) == found


@pytest.mark.parametrize("text", ["", "  ", "...", '""', "*", "\u3001", "_"])
def test_nothing_to_search_for(journal: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no word"):
        seqs(journal, text)


def test_newest_first_and_only_what_is_asked_for(bnd: Any) -> None:
    for number in (1, 2):
        conversation = f"{number * 11111111}-0000-4000-8000-000000000001"
        file = transcript(bnd.root / f"{number}.jsonl", ("word one", "word two"), conversation)
        file.write_text(file.read_text().replace("/w/app", f"/w/app{number}").replace("2026-01", f"202{number}-01"))
        bnd("record", file, "--label", f"r{number}").ok()

    def found(*words: str) -> list[tuple[str, int]]:
        return [(hit["ts"][:4], hit["seq"]) for hit in bnd("search", *words, "--json").ok().jsonl()]

    assert found("word") == [("2022", 2), ("2022", 1), ("2021", 2), ("2021", 1)]
    assert found("word", "-n", "2") == [("2022", 2), ("2022", 1)]
    assert found("word", "--run", "r1") == [("2021", 2), ("2021", 1)]
    assert found("word", "--project", "/w/app2") == [("2022", 2), ("2022", 1)]
    assert found("word", "--project", "/w") == found("word")
    assert found("word", "--project", "/w/ap") == []
    assert found("word", "--kind", "assistant_msg") == []
    assert found("two", "--kind", "user_msg", "--kind", "meta") == [("2022", 2), ("2021", 2)]
    assert bnd("search", "word", "--kind", "nothing").code == 2
    assert bnd("search", "word", "--run", "nothing").code == 2


def test_the_snippet_shows_where(bnd: Any) -> None:
    text = "before " * 60 + "the needle\x1b[31m in\na\thaystack" + " after" * 60
    bnd("record", transcript(bnd.root / "t.jsonl", (text,))).ok()
    out = bnd("search", "NEEDLE").ok().out
    head, snippet = out.splitlines()
    assert re.match(r"[0-9a-f]{12}:1  2026-01-01 00:00  user_msg", head)
    assert "needle" in snippet
    assert "\u241b[31m in a haystack" in snippet
    assert len(snippet) < 200
    env = {**bnd.environment(), "TERM": "xterm", "PAGER": "less"}
    _, coloured = on_terminal(bnd.argv("search", "needle"), env, columns=250)
    assert re.search(rb"\x1b\[[0-9;]*mneedle\x1b\[", coloured)
    _, plain = on_terminal(bnd.argv("search", "needle"), {**env, "NO_COLOR": "1"}, columns=250)
    assert re.search(rb"the needle\xe2\x90\x9b", plain)


def test_an_empty_journal_has_nothing(bnd: Any) -> None:
    empty = bnd.root / "empty.db"
    empty.touch()
    ran = bnd("-j", empty, "search", "word").ok()
    assert (ran.out, ran.err) == ("", "nothing found\n")
    assert empty.stat().st_size == 0
    assert bnd("search", "word").code == 2


def test_only_what_is_new_is_indexed(tmp_path: Path) -> None:
    path, file = tmp_path / "x.db", tmp_path / "t.jsonl"
    texts = tuple(f"number{i} common" for i in range(1200))
    for upto in (700, 1200):
        transcript(file, texts[:upto])
        with Journal.open(path) as opened:
            record(opened, find(str(file), None))
        with connect(path, content_of) as query:
            read: list[tuple[int, int, int]] = []

            def content(source: int, line: int, part: int, query: Any = query, read: Any = read) -> str:
                read.append((source, line, part))
                return str(query.content(source, line, part))

            with Journal.open(path) as opened:
                search.update(opened.con, opened.write, content)
                assert search.behind(opened.con) == 0
        assert len(read) == (700 if upto == 700 else 500)
    assert seqs(path, "number1199") == [1200]
    assert len(seqs(path, "common")) == 1200
    before = path.read_bytes()
    index(path)
    assert path.read_bytes() == before


def test_two_processes_index_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Journal.open(path) as opened:
        record(opened, find(str(transcript(tmp_path / "t.jsonl", tuple(f"word{i} all" for i in range(3000)))), None))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            index(path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = seqs(path, "all")
    assert len(found) == len(set(found)) == 3000


def test_what_is_forgotten_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    """The run is gone between reading its text and writing the index."""
    path = tmp_path / "x.db"
    with Journal.open(path) as opened:
        record(opened, find(str(transcript(tmp_path / "t.jsonl", ("secretword",))), None))
    with connect(path, content_of) as query, Journal.open(path) as opened:

        def content(source: int, line: int, part: int) -> str:
            text = query.content(source, line, part)
            other = sqlite3.connect(path)
            other.executescript(
                "insert into meta values ('deleting', 1); delete from run; delete from meta where key = 'deleting'"
            )
            other.close()
            return text

        search.update(opened.con, opened.write, content)
        assert opened.con.execute("select count(*) from search where search match 'secretword'").fetchone() == (0,)
        assert opened.con.execute("select count(*) from search_state").fetchone() == (0,)


def test_reset_leaves_no_word(journal: Path) -> None:
    assert b"goldenhawk" in journal.read_bytes()
    with Journal.open(journal) as opened:
        with opened.write() as con:
            search.reset(con)
        opened.con.execute("vacuum")
    assert b"goldenhawk" not in journal.read_bytes()
    with connect(journal, content_of) as query:
        assert not search.exists(query.con)
        assert search.behind(query.con) == len(TEXTS)
    index(journal)
    assert seqs(journal, "goldenhawk") == [4]


def test_a_journal_that_cannot_be_written_is_looked_through(bnd: Any) -> None:
    bnd("record", transcript(bnd.root / "t.jsonl", TEXTS)).ok()
    writer = sqlite3.connect(bnd.journal, isolation_level=None)
    writer.execute("begin immediate")
    ran = bnd("search", "goldenhawk", "--json", "-v").ok()
    assert [hit["seq"] for hit in ran.jsonl()] == [4]
    assert "no index" in ran.err
    writer.execute("rollback")
    writer.close()
    assert bnd("search", "goldenhawk", "-v").ok().err == ""
    con = sqlite3.connect(bnd.journal)
    assert con.execute("select count(*) from search_state").fetchone() == (1,)


def test_damage_is_named_and_the_rest_is_found(bnd: Any) -> None:
    """One pack can't be read: what lies elsewhere is found, and the exit code says that not all was seen."""
    bnd("record", transcript(bnd.root / "a.jsonl", ("common first",), "22222222-0000-4000-8000-000000000001")).ok()
    bnd("record", transcript(bnd.root / "b.jsonl", ("common second",), "33333333-0000-4000-8000-000000000001")).ok()
    bnd("search", "common").ok()
    con = sqlite3.connect(bnd.journal)
    con.executescript(
        "drop trigger pack_content; update pack set data = zeroblob(length(data)) where id = (select min(id) from pack)"
    )
    con.close()
    for _ in range(2):  # from the index, then without one
        ran = bnd("search", "common", "--json")
        assert ran.code == 1
        assert len(ran.jsonl()) == 1
        assert re.fullmatch(r"bnd: pack \d+ can't be read [^\n]+\n", ran.err)
        with Journal.open(bnd.journal) as opened, opened.write() as write:
            search.reset(write)
        if _ == 0:
            bnd("search", "second").ok()
            break


def test_tp_05_and_js_02_odd_characters_are_indexed_and_found(bnd: Any) -> None:
    for name in ("TP-05.jsonl", "JS-02.jsonl"):
        bnd("record", CASES / name)
    total = bnd("sql", "select count(*) n from events where length(content) > 0").json()[0]["n"]
    assert total > 4
    for word in ("prompt", "half", "next", "after"):
        ran = bnd("search", word, "--json").ok()
        plain = bnd("sql", f"select count(*) n from events where content regexp '(?i)\\b{word}\\b'").json()[0]["n"]
        assert len(ran.jsonl()) == plain


def test_search_agrees_with_reading_everything(bnd: Any) -> None:
    """Over all fixtures of a version: the index finds what a regular expression over the contents finds."""
    for home in sorted(FIXTURES.glob("claude/2.1.332/*/")):
        bnd("record", "--all", "--cli", "claude", "-q", env={"CLAUDE_CONFIG_DIR": home}).ok()
    for word in ("goldenhawk", "notes", "phase", "txt", "the"):
        found = {(h["run"], h["seq"]) for h in bnd("search", word, "--json", "-n", "10000").ok().jsonl()}
        query = f"select run, seq from events where content regexp '(?i)(?<![^\\W_]){word}(?![^\\W_])'"
        assert found == {(r["run"], r["seq"]) for r in bnd("sql", query).json()}
        assert found
