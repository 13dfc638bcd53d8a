"""Recording files: idempotent, append-only, through rewrites, crashes and other writers."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.journal import Journal
from beyond.journal.verify import verify
from beyond.record import Outcome, find, record
from beyond.record.derive import differing
from beyond.store import Found, identify
from tests.reading import CASES, FIXTURES

HOMES = sorted(FIXTURES.glob("claude/*/*/")) + sorted(FIXTURES.glob("kimi/*/*/kimi-code"))
VARIABLE = {"claude": "CLAUDE_CONFIG_DIR", "kimi": "KIMI_CODE_HOME"}


def cli_of(home: Path) -> str:
    return home.relative_to(FIXTURES).parts[0]


def founds_in(home: Path) -> list[Found]:
    cli = cli_of(home)
    os.environ[VARIABLE[cli]] = str(home)
    try:
        return list(agents.conversations(cli))
    finally:
        del os.environ[VARIABLE[cli]]


def content(journal: Journal) -> set[tuple[Any, ...]]:
    """What has to be the same in whatever order and pieces things were recorded: lines, identities, links, kinds."""
    out: set[tuple[Any, ...]] = set()
    con = journal.con
    for source, generation, cli, conversation, agent in con.execute(
        "select s.id, s.generation, r.cli, r.conversation, r.agent from source s join run r on r.id = s.run"
    ).fetchall():
        raw = b"".join(journal.reader.raw(source))
        rows = con.execute(
            "select r2.agent, e.line, e.part, e.kind, e.link, e.turn, e.active, e.tool, e.is_error from event e "
            "join run r2 on r2.id = e.run where e.source = ? order by e.line, e.part",
            (source,),
        ).fetchall()
        out.add((cli, conversation, agent, generation, raw, tuple(rows)))
    return out


def sound(journal: Journal) -> bool:
    return [*verify(journal), *differing(journal)] == []


@pytest.mark.parametrize("home", HOMES, ids=lambda h: "-".join(h.relative_to(FIXTURES).parts[:3]))
def test_a_store_into_a_journal_of_its_own(home: Path, tmp_path: Path) -> None:
    founds = founds_in(home)
    with Journal.open(tmp_path / "x.db") as journal:
        outcomes = record(journal, founds)
        assert {o.status for o in outcomes} == {"new"}
        assert len({o.run for o in outcomes}) == len(founds)
        for found in founds:
            (source,) = journal.con.execute("select source from file where path = ?", (str(found.path),)).fetchone()
            assert b"".join(journal.reader.raw(source)) == found.path.read_bytes()
        subagents = journal.con.execute("select parent, parent_seq from run where relation = 'subagent'").fetchall()
        assert len(subagents) == sum(f.agent != "main" for f in founds)
        assert all(parent is not None and seq is not None for parent, seq in subagents)
        assert sound(journal)


#: The two versions' native forks have one first line and one id, so which of them is the second run with that key
#: depends on the order: compared without the run id.
RUNS = """select r.cli, r.conversation, r.agent, coalesce(r.relation, ''), r.parent is null, coalesce(r.parent_seq, 0),
    count(*), coalesce(sum(e.input_tokens), 0), coalesce(sum(e.output_tokens), 0)
    from run r join event e on e.run = r.id group by r.id"""


@pytest.mark.parametrize("seed", range(4))
def test_all_stores_into_one_journal_in_any_order(tmp_path: Path, seed: int) -> None:
    homes = list(HOMES)
    random.Random(seed).shuffle(homes)
    with Journal.open(tmp_path / "x.db") as journal:
        for home in homes:
            record(journal, founds_in(home))
        mine = content(journal)
        summary = sorted(journal.con.execute(RUNS))
        assert sound(journal)
    with Journal.open(tmp_path / "y.db") as journal:
        for home in HOMES:
            record(journal, founds_in(home))
        assert content(journal) == mine
        assert sorted(journal.con.execute(RUNS)) == summary
        # tools, resumed and the first file of forked are one run; the native fork is another
        (lines,) = journal.con.execute(
            "select count(*) from run where conversation = '00000000-0000-4000-8000-000000000002'"
        ).fetchone()
        assert lines == 2  # one a version


def test_a_second_time_leaves_the_journals_bytes_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    founds = founds_in(FIXTURES / "claude/2.1.332/tui")
    with Journal.open(path) as journal:
        record(journal, founds)
    before = path.read_bytes()
    with Journal.open(path) as journal:
        assert [o.status for o in record(journal, founds)] == ["unchanged"]
    assert path.read_bytes() == before


@pytest.fixture
def growing(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """A path for a transcript that grows, and the lines of a real one."""
    real = next((FIXTURES / "claude/2.1.218/tui/projects").glob("*/*.jsonl"))
    folder = tmp_path / "store/projects/-p"
    folder.mkdir(parents=True)
    return folder / real.name, real.read_bytes().splitlines(keepends=True)


def note(path: Path, again: int = itertools.count(1).__next__()) -> Found:
    """The file as it is now; its time moves on even where the clock is coarse."""
    os.utime(path, ns=(time.time_ns(), time.time_ns() + again))
    return identify(path)


def test_line_by_line_is_as_whole(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    with Journal.open(tmp_path / "a.db") as journal:
        seen = 0
        for count in range(1, len(lines) + 1):
            path.write_bytes(b"".join(lines[:count]))
            (outcome,) = record(journal, [note(path)])
            (events,) = journal.con.execute("select coalesce(sum(events), 0) from run").fetchone()
            assert events - seen == outcome.new_events
            seen = events
        piecewise = content(journal)
        assert sound(journal)
    with Journal.open(tmp_path / "b.db") as journal:
        record(journal, [note(path)])
        assert content(journal) == piecewise


def test_one_line_more_adds_exactly_its_events(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    path.write_bytes(b"".join(lines[:-1]))
    added = {
        "type": "user", "uuid": "99999999-0000-4000-8000-000000000001", "parentUuid": None, "sessionId": path.stem,
        "timestamp": "2026-12-01T01:00:00.000Z", "cwd": "/x", "message": {"role": "user", "content": "one more"},
    }  # fmt: skip
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [note(path)])
        before = journal.con.execute("select max(seq), count(*) from event").fetchone()
        with path.open("ab") as file:
            file.write(json.dumps(added).encode() + b"\n")
        (outcome,) = record(journal, [note(path)])
        assert (outcome.status, outcome.new_events, outcome.new_lines) == ("extended", 1, 1)
        rows = journal.con.execute("select seq, kind, preview from event where seq > ?", (before[0],)).fetchall()
        assert rows == [(before[0] + 1, "user_msg", "one more")]


def test_a_prefix_elsewhere_is_the_same_run(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    path.write_bytes(b"".join(lines))
    other = tmp_path / "copy" / path.name
    other.parent.mkdir()
    other.write_bytes(b"".join(lines[:20]))
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [note(path), note(other)])
        assert journal.con.execute("select count(*) from run").fetchone() == (1,)
        assert journal.con.execute("select count(*) from file").fetchone() == (2,)
        # the copy goes on in another way: then it is another run
        other.write_bytes(b"".join(lines[:20]) + lines[36])
        third = tmp_path / "third" / path.name
        third.parent.mkdir()
        shutil.copy(other, third)
        record(journal, [note(third)])
        assert journal.con.execute("select count(*) from run").fetchone() == (2,)
        assert sound(journal)


def test_rewritten_earlier_lines_make_a_generation(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    path.write_bytes(b"".join(lines[:30]))
    with Journal.open(tmp_path / "x.db") as journal:
        (first,) = record(journal, [note(path)])
        before = journal.con.execute("select run, seq, source, line, part, kind from event order by seq").fetchall()
        path.write_bytes(b"".join(lines[10:]))  # earlier lines removed, later ones added
        (second,) = record(journal, [note(path)])
        assert (second.run, second.status) == (first.run, "rewritten")
        after = journal.con.execute("select run, seq, source, line, part, kind from event order by seq").fetchall()
        assert after[: len(before)] == before
        assert second.new_events == len(after) - len(before) == 9
        sources = journal.con.execute("select id from source order by generation").fetchall()
        assert [b"".join(journal.reader.raw(s)) for (s,) in sources] == [b"".join(lines[:30]), b"".join(lines[10:])]
        (third,) = record(journal, [note(path)])
        assert (third.status, third.new_events) == ("unchanged", 0)
        assert sound(journal)


def test_a_file_that_shrinks_loses_nothing(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    path.write_bytes(b"".join(lines))
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [note(path)])
        kept = content(journal)
        path.write_bytes(b"".join(lines[:12]) + lines[12][:20])
        (outcome,) = record(journal, [note(path)])
        assert outcome.new_events == 0
        assert content(journal) == kept
        path.write_bytes(b"".join(lines))
        record(journal, [note(path)])
        assert content(journal) == kept
        assert sound(journal)


def test_a_last_line_without_its_newline(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    data = b"".join(lines[:18])
    with Journal.open(tmp_path / "x.db") as journal:
        path.write_bytes(data + lines[18].rstrip(b"\n"))
        record(journal, [note(path)])
        path.write_bytes(data + lines[18].rstrip(b"\n"))
        (source,) = journal.con.execute("select id from source").fetchone()
        assert b"".join(journal.reader.raw(source)) == path.read_bytes()
        before = journal.con.execute("select count(*) from event").fetchone()
        path.write_bytes(data + lines[18] + lines[19][:30])
        record(journal, [note(path)])
        assert journal.con.execute("select count(*) from event").fetchone() == before
        assert b"".join(journal.reader.raw(source)) == path.read_bytes()
        path.write_bytes(b"".join(lines))
        record(journal, [note(path)])
        whole = content(journal)
        assert sound(journal)
    with Journal.open(tmp_path / "y.db") as journal:
        record(journal, [note(path)])
        assert content(journal) == whole


def test_tp_03_a_live_line_cut_in_a_character(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    shutil.copy(CASES / "TP-03.part1.jsonl", path)
    with Journal.open(tmp_path / "x.db") as journal:
        (outcome,) = record(journal, [note(path)])
        assert (outcome.new_lines, outcome.bad) == (2, [])
        path.write_bytes((CASES / "TP-03.part1.jsonl").read_bytes() + (CASES / "TP-03.part2.bin").read_bytes())
        (outcome,) = record(journal, [note(path)])
        assert (outcome.new_lines, outcome.bad) == (1, [])
        (source,) = journal.con.execute("select id from source").fetchone()
        assert b"".join(journal.reader.raw(source)) == path.read_bytes()


def test_js_07_a_vanished_source_stays_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "store"
    shutil.copytree(CASES / "TP-20.dir", home)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home))
    from beyond.record import Recorder

    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, agents.conversations("claude"))
        before = content(journal)
        main = "aaaaaaaa-0000-4000-8000-000000000020"
        shutil.rmtree(home / "projects/-w-proj" / main)
        (home / f"projects/-w-proj/{main}.jsonl").unlink()
        recorder = Recorder(journal)
        founds = list(agents.conversations("claude"))
        for found in founds:
            recorder.add(found)
        recorder.finish()
        gone = recorder.mark_gone([agents.home("claude")], {str(f.path) for f in founds})
        recorder.close()
        assert len(gone) == 3
        assert content(journal) == before
        assert journal.con.execute("select count(*) from file where gone_at is not null").fetchone() == (3,)


_RECORD_ALL = """
import sys
from beyond import agents
from beyond.journal import Journal
from beyond.record import record
with Journal.open(sys.argv[1]) as journal:
    print("open", flush=True)
    record(journal, agents.conversations("claude"))
"""


def store_of_many(tmp_path: Path, count: int = 60) -> Path:
    """A store with many conversations made from the fixtures, each with ids of its own."""
    home = tmp_path / "many"
    files = sorted(FIXTURES.glob("claude/*/*/projects/*/*.jsonl"))
    for number in range(count):
        file = files[number % len(files)]
        folder = home / "projects" / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        other = f"22222222-0000-4000-8000-{number:012d}"
        (folder / f"{other}.jsonl").write_bytes(
            file.read_bytes().replace(file.stem.encode(), other.encode()).replace(b'"msg_', b'"msg_%d_' % number)
        )
    return home


def run_python(home: Path, *args: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "CLAUDE_CONFIG_DIR": str(home), "PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.Popen([sys.executable, "-c", *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After kill -9 the journal is sound, and the next record ends as an undisturbed one."""
    home = store_of_many(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home))
    with Journal.open(tmp_path / "whole.db") as journal:
        record(journal, agents.conversations("claude"))
        whole = content(journal)
    dice = random.Random(7)
    killed = 0
    for turn in range(20):
        path = tmp_path / f"k{turn}.db"
        process = run_python(home, _RECORD_ALL, str(path))
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.random() * 0.35)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
        with Journal.open(path) as journal:
            assert list(verify(journal)) == []
            record(journal, agents.conversations("claude"))
            assert content(journal) == whole
            assert list(verify(journal)) == []
    assert killed >= 5


def test_two_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = store_of_many(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home))
    with Journal.open(tmp_path / "whole.db") as journal:
        record(journal, agents.conversations("claude"))
        whole = content(journal)
    for turn in range(3):
        path = tmp_path / f"two{turn}.db"
        both = [run_python(home, _RECORD_ALL, str(path)) for _ in range(2)]
        for process in both:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err.decode()
        with Journal.open(path) as journal:
            assert content(journal) == whole
            assert sound(journal)


def test_a_label_names_the_run(growing: tuple[Path, list[bytes]], tmp_path: Path) -> None:
    path, lines = growing
    path.write_bytes(b"".join(lines))
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, [note(path)], label="the bad one")
        assert journal.con.execute("select label from run").fetchone() == ("the bad one",)


def test_find_a_conversation_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(FIXTURES / "claude/2.1.218/subagent"))
    founds = find("00000000-0000-4000-8000-000000000005", "claude")
    assert [f.agent for f in founds] == ["main", "ac95a231570774487"]


@pytest.mark.parametrize("bad", ["../x", "/etc/passwd\0", "-x", "a/../../b", "%2e%2e", "x" * 300])
def test_ws_06_an_id_is_never_a_path(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from beyond.errors import BeyondError

    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(FIXTURES / "claude/2.1.218/subagent"))
    with pytest.raises(BeyondError):
        find(bad, "claude")


def outcome_of(path: Path, journal: Journal) -> Outcome:
    (outcome,) = record(journal, [identify(path)])
    return outcome


def test_sqlite_sees_the_events(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "x.db") as journal:
        record(journal, founds_in(FIXTURES / "claude/2.1.218/tools"))
    con = sqlite3.connect(tmp_path / "x.db")
    assert con.execute("select count(*) from event").fetchone() == (13,)
