"""The journal file: opening, migrating, guarding, damage."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from beyond import agents
from beyond.errors import JournalBusy, JournalDamaged, JournalError, NewerJournal, NotFound
from beyond.journal import APPLICATION_ID, FORMAT, Journal
from beyond.journal.verify import verify
from beyond.migrations.m0001_initial import statements
from beyond.record import record
from beyond.schema import load
from tests.reading import CASES, FIXTURES

TOOLS = FIXTURES / "claude/2.1.218/tools"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal with one conversation."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(TOOLS))
    path = tmp_path / "x.db"
    with Journal.open(path) as journal:
        record(journal, agents.conversations("claude"))
    return path


def test_a_new_journal_has_the_schema_that_is_documented(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with Journal.open(path) as journal:
        made = dict(journal.con.execute("select name, sql from sqlite_master where sql is not null"))
        assert journal.con.execute("pragma journal_mode").fetchone() == ("wal",)
    other = sqlite3.connect(":memory:")
    for statement in statements(load("journal.sql")):
        other.execute(statement)
    wanted = dict(other.execute("select name, sql from sqlite_master where sql is not null"))
    assert {name: sql for name, sql in made.items() if "_sqlite_migrations" not in name} == wanted
    con = sqlite3.connect(path)
    assert con.execute("pragma application_id").fetchone() == (APPLICATION_ID,)
    assert con.execute("pragma user_version").fetchone() == (FORMAT,)


def test_four_processes_open_one_new_file_at_once(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from beyond.journal import Journal
        sys.stdin.readline()
        with Journal.open(sys.argv[1]) as journal:
            assert journal.con.execute("select count(*) from run").fetchone() == (0,)
    """)
    for turn in range(3):
        path = tmp_path / f"{turn}.db"
        processes = [
            subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(4)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
        for process in processes:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err.decode()
        with Journal.open(path) as journal:
            assert list(verify(journal)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "delete from event",
        "delete from segment",
        "delete from pack",
        "delete from blob",
        "delete from run",
        "delete from source",
        "update event set seq = seq + 100",
        "update event set kind = 'meta'",
        "update segment set hash = x'00'",
        "update pack set data = x'00'",
        "update blob set hash = x'00'",
        "update run set run = 'ffffffffffff'",
        "insert or replace into segment select * from segment limit 1",
        "insert or replace into run select * from run limit 1",
    ],
)
def test_plain_sqlite_cannot_change_what_was_recorded(recorded: Path, statement: str) -> None:
    con = sqlite3.connect(recorded, isolation_level=None)
    with pytest.raises(sqlite3.IntegrityError):
        con.execute(statement)
    con.close()
    with Journal.open(recorded) as journal:
        assert list(verify(journal)) == []


def test_plain_sqlite_reads_the_tables(recorded: Path) -> None:
    con = sqlite3.connect(recorded)
    assert con.execute("pragma integrity_check").fetchone() == ("ok",)
    kinds = dict(con.execute("select kind, count(*) from event group by kind"))
    assert kinds == {"user_msg": 1, "thinking": 1, "assistant_msg": 2, "tool_call": 3, "tool_result": 3, "usage": 3}
    assert con.execute("select preview from event where kind = 'user_msg'").fetchone() == ("remember GOLDENHAWK",)


def test_a_newer_journal_is_refused_and_left_alone(recorded: Path) -> None:
    con = sqlite3.connect(recorded)
    con.execute(f"pragma user_version = {FORMAT + 1}")
    con.close()
    before = recorded.read_bytes()
    with pytest.raises(NewerJournal, match="newer beyond"):
        Journal.open(recorded)
    assert recorded.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "error"),
    [("JS-08-malformed.db", JournalError), ("JS-08-notadb.db", JournalError)],
)
def test_js_08_what_is_no_sound_journal_is_never_overwritten(tmp_path: Path, name: str, error: type[Exception]) -> None:
    path = tmp_path / "j.db"
    shutil.copy(CASES / name, path)
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        Journal.open(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_js_08_a_zero_byte_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    shutil.copy(CASES / "JS-08-zero.db", path)
    path.chmod(0o644)
    with Journal.open(path) as journal:
        assert journal.con.execute("select count(*) from event").fetchone() == (0,)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    con = sqlite3.connect(path)
    con.execute("create table t (x)")
    con.close()
    with pytest.raises(JournalError, match="another program"):
        Journal.open(path)


def test_a_cut_off_journal_is_named(recorded: Path) -> None:
    data = recorded.read_bytes()
    recorded.write_bytes(data[: len(data) // 2])
    with pytest.raises(JournalDamaged, match="cut off at byte"):
        Journal.open(recorded)
    assert recorded.read_bytes() == data[: len(data) // 2]


def test_a_missing_journal(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="bnd record"):
        Journal.open(tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()


def test_a_locked_journal_is_busy(recorded: Path) -> None:
    other = sqlite3.connect(recorded, isolation_level=None)
    other.execute("begin immediate")
    with Journal.open(recorded, timeout=0.1) as journal, pytest.raises(JournalBusy, match="another process"), journal.write():
        pass
    other.execute("rollback")


def test_a_full_disk_loses_nothing(recorded: Path) -> None:
    before = sqlite3.connect(recorded).execute("select count(*) from event").fetchone()
    with Journal.open(recorded) as journal:
        (pages,) = journal.con.execute("pragma page_count").fetchone()
        journal.con.execute(f"pragma max_page_count = {pages}")
        with pytest.raises(JournalError, match="full"), journal.write() as con:
            con.execute("insert into note (run, text, made_at) values (1, ?, 0)", ("x" * 5_000_000,))
    with Journal.open(recorded) as journal:
        assert list(verify(journal)) == []
        assert journal.con.execute("select count(*) from event").fetchone() == before


def test_js_01_without_shared_memory_a_journal_still_works(tmp_path: Path) -> None:
    """A file system that can't do write-ahead logging answers `delete`: played by a journal that stays in that mode."""
    path = tmp_path / "x.db"
    with Journal.open(path) as journal:
        assert journal.con.execute("pragma journal_mode = delete").fetchone() == ("delete",)
    with Journal.open(path) as journal, journal.write() as con:
        con.execute("insert into note (run, text, made_at) values (1, 'x', 0)")
    with Journal.open(path) as journal:
        assert journal.con.execute("select text from note").fetchone() == ("x",)


def test_js_03_copies_hold_what_is_in_the_log(recorded: Path, tmp_path: Path) -> None:
    """A journal that was closed can be copied as one file: nothing is left in the log."""
    copy = tmp_path / "copy.db"
    shutil.copy(recorded, copy)
    with Journal.open(copy) as journal:
        assert list(verify(journal)) == []
        assert journal.con.execute("select events from run").fetchone() == (13,)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("drop trigger event_stays", "event_stays is missing"),
        ("drop index event_tools", "event_tools is missing"),
        ("drop trigger pack_content; update pack set data = zeroblob(length(data))", "pack"),
        ("drop trigger event_identity; update event set seq = 99 where seq = 13", "last seq"),
        ("drop trigger segment_bytes; update segment set lines = lines - 1", "line"),
        ("update source set lines = lines + 1", "cursor"),
        ("update event set parent_seq = 77 where seq = 2", "not there"),
        ("update file set source = 9", "source"),
        ("drop trigger blob_content; update blob set hash = zeroblob(33)", "hash"),
    ],
)
def test_fsck_finds(recorded: Path, damage: str, what: str) -> None:
    con = sqlite3.connect(recorded)
    con.executescript(damage)
    con.commit()
    con.close()
    with Journal.open(recorded) as journal:
        found = "\n".join(verify(journal))
    assert what in found


def test_fsck_finds_links_that_do_not_follow(recorded: Path) -> None:
    from beyond.record.derive import differing

    con = sqlite3.connect(recorded)
    con.execute("update event set link = zeroblob(16) where seq = 5")
    con.commit()
    con.close()
    with Journal.open(recorded) as journal:
        assert list(verify(journal)) == []
        assert "1 events" in "\n".join(differing(journal))


def test_fsck_finds_an_event_that_was_replaced(recorded: Path) -> None:
    """`insert or replace` is not stopped on this table (a guard costs two thirds of the insert speed): it is found."""
    from beyond.record.derive import differing

    con = sqlite3.connect(recorded)
    con.execute("create temp table t as select * from event where seq = 5")
    con.execute("update t set kind = 'meta', link = null")
    con.execute("insert or replace into event select * from t")
    con.commit()
    con.close()
    with Journal.open(recorded) as journal:
        assert "1 events" in "\n".join(differing(journal))
