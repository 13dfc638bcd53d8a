"""Journals, arguments and files that mean no good: a clear line and the right exit code, in time, whatever they hold."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from beyond import agents, cli, search
from beyond.agents import content_of
from beyond.blob import get_varints
from beyond.errors import JournalDamaged, JournalError
from beyond.journal import Journal
from beyond.journal.append import add_note
from beyond.journal.verify import verify
from beyond.query import connect, timestamp
from beyond.record import record
from tests.reading import FIXTURES
from tests.terminal import on_terminal

SUBAGENT = FIXTURES / "claude/2.1.218/subagent"
BAD = "\udcff"  # the byte ff, as an argument brings it in

# --- odd values in any column --------------------------------------------------------------------------------------

ODD = (
    None, "text", "", "9" * 5000, "[" * 3000, "[1]", "[{}]", "{", '{"a": 1}', "a\0b", "\x1b[31m", b"", b"\xff\0\1", b"\xff" * 30,
    b"\x80" * 9 + b"\x7f", 0, 1, 2, 3, -1, 10**9, 1 << 62, -(1 << 62), 1e300, -1.5, float("inf"), "no UTF-8",
)  # fmt: skip
WALK = "n\nn\np\n5\n-1\n/the\no\nf\nq\n"


class Late(BaseException):
    """A command that doesn't end."""


def _late(*_: object) -> None:
    raise Late


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small real journal with everything that a journal may hold, the index and remarks too."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(SUBAGENT))
    path = tmp_path / "clean.db"
    with Journal.open(path) as journal:
        record(journal, agents.conversations("claude"))
        add_note(journal, 1, None, "a remark")
        add_note(journal, 1, 2, "another one")
    with connect(path, content_of) as query, Journal.open(path) as journal:
        search.update(journal.con, journal.write, query.content)
    return path


def run_of(path: Path) -> str:
    with closing(sqlite3.connect(path)) as con:
        return str(con.execute("select run from run where agent = 'main'").fetchone()[0])


class Here:
    """Runs `bnd` in this process: a new one for each of some thousand commands would take minutes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, journal: Path) -> None:
        self._patch = monkeypatch
        request.addfinalizer(lambda: sqlite3.enable_callback_tracebacks(False))  # what our hook asked for
        self.journal = journal
        self._count = 0
        monkeypatch.setenv("BND_JOURNAL", str(journal))
        monkeypatch.setattr(sys, "unraisablehook", cli._unraisable)

    def put(self, data: bytes) -> Path:
        """Goes on with a journal of these bytes, under a name that no connection still holds."""
        for ending in ("", "-wal", "-shm"):
            self.journal.with_name(self.journal.name + ending).unlink(missing_ok=True)
        self._count += 1
        self.journal = self.journal.with_name(f"x{self._count}.db")
        self.journal.write_bytes(data)
        self._patch.setenv("BND_JOURNAL", str(self.journal))
        return self.journal

    def __call__(self, *words: str, stdin: str = "") -> tuple[int, str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True) for _ in "12")
        with self._patch.context() as patch:
            for name, value in (("argv", ["bnd", *words]), ("stdin", io.StringIO(stdin)), ("stdout", out), ("stderr", err)):
                patch.setattr(sys, name, value)
            before = signal.signal(signal.SIGALRM, _late)
            signal.setitimer(signal.ITIMER_REAL, 10)
            try:
                code = cli._run()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        return code, err.buffer.getvalue().decode()


def fresh(path: Path, data: bytes) -> None:
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.write_bytes(data)


def edited(path: Path, rng: random.Random) -> str | None:
    """Puts an odd value into a column of one row or of all, guards or no guards. What it did, or None where SQLite
    doesn't take it."""
    with closing(sqlite3.connect(path)) as con:
        guards = con.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
        for name, _ in guards:
            con.execute(f"drop trigger {name}")
        tables = [name for (name,) in con.execute("select name from sqlite_master where type = 'table'")]
        table = rng.choice([name for name in tables if not name.startswith(("sqlite_", "_", "search_")) and name != "search"])
        columns = con.execute(f"pragma table_info({table})").fetchall()
        column = rng.choice([row[1] for row in columns])
        value = rng.choice(ODD)
        key = ", ".join(row[1] for row in columns if row[5]) or "rowid"
        where = f"where ({key}) = (select {key} from {table} order by random() limit 1)" if rng.random() < 0.6 else ""
        slot = "cast(x'ff41' as text)" if value == "no UTF-8" else "?"
        try:
            changed = con.execute(f"update {table} set {column} = {slot} {where}", (value,) if slot == "?" else ()).rowcount
        except sqlite3.IntegrityError:
            changed = 0
        if not changed:
            return None
        for _, sql in guards:
            con.execute(sql)
        con.commit()
        con.execute("pragma wal_checkpoint(truncate)")
    return f"{table}.{column} = {value!r:.40} {'(one row)' if where else '(all)'}"


def commands(run: str) -> Iterator[tuple[str, ...]]:
    for view in ("runs", "events", "tool_calls", "sources", "usage_by_day_local", "notes"):
        yield "sql", f"select * from {view}"
    yield from (
        ("runs",), ("runs", "--json"), ("show", run), ("show", run, "--json"), ("show", run, "--raw"), ("show", "@"),
        ("show", run, "--at", "-2"), ("step", run), ("sql", "--schema"), ("doctor",), ("fsck",), ("fsck", "--json"),
        ("search", "the"), ("search", "deleg*", "--run", run), ("note", f"{run}:2", "z"), ("note", "@", "z"),
        ("record", "--all"), ("gc",), ("forget", run),
    )  # fmt: skip


WRITING = ("search", "note", "record", "gc", "forget")


def try_all(bnd: Here, what: str, run: str) -> None:
    dirty = bnd.journal.read_bytes()
    for words in commands(run):
        if words[0] in WRITING:
            bnd.put(dirty)
        code, err = bnd(*words, stdin=WALK)
        assert code in (0, 1, 2, 3), (what, words, err)
        assert "internal error" not in err, (what, words, err)
        assert "Traceback" not in err, (what, words, err)


@pytest.mark.parametrize("seed", range(2))
def test_odd_values_anywhere(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, seed: int
) -> None:
    data, run = clean.read_bytes(), run_of(clean)
    bnd = Here(monkeypatch, request, tmp_path / "x.db")
    rng, tried = random.Random(seed), 0
    while tried < 7:
        what = edited(bnd.put(data), rng)
        if what is not None:
            tried += 1
            try_all(bnd, what, run)


@pytest.mark.parametrize("seed", range(2))
def test_flipped_bytes_anywhere(
    clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, seed: int
) -> None:
    data, run = clean.read_bytes(), run_of(clean)
    bnd = Here(monkeypatch, request, tmp_path / "x.db")
    rng = random.Random(seed)
    for _ in range(5):
        other = bytearray(data)
        places = [rng.randrange(len(other)) for _ in range(rng.choice((1, 3, 30)))]
        for place in places:
            other[place] = rng.randrange(256)
        bnd.put(bytes(other))
        try_all(bnd, f"bytes {places}", run)


#: What is put where, the command, and what it then says with exit 1. (`fsck` has a line for each of them.)
NAMED = [
    ("update segment set lifted = 1", "show {} --raw", "can't be put together"),
    ("update segment set lengths = 'x'", "show {} --raw", "can't be put together"),
    ("update segment set lengths = x'8080808080808080808080808080808080808080808001'", "show {} --raw", "can't be put together"),
    ("update segment set lifted = x'00017f01'", "show {} --raw", "put together"),
    ("update segment set size = 1 << 62", "show {} --raw", "put together"),
    ("update pack set size = -1", "show {}", "not believable"),
    ("update pack set size = 'x'", "show {}", "no size"),
    ("update pack set size = 1 << 62", "show {}", "not believable"),
    ("update pack set data = 5", "show {}", "no bytes"),
    ("update pack set prefix = id", "show {}", "doesn't end"),
    ("update pack set prefix = 'x'", "show {}", "missing"),
    ("update pack set codec = 'x'", "show {}", "unknown codec"),
    ("update blob set offset = -1", "show {}", "beyond its pack"),
    ("update blob set offset = 'x'", "show {}", "beyond its pack"),
    ("update blob set size = 1e300", "show {}", "beyond its pack"),
    ("update blob set pack = x'00'", "show {}", "missing"),
    ("update source set damage = 'x'", "show {}", "source 1: its damage is not the JSON"),
    ("update source set damage = '[1]'", "show {}", "source 1: its damage is not the JSON"),
    ("update source set tail = 'x'", "show {} --raw", "no bytes"),
    ("update source set tail = x'00'", "show {} --raw", "can't be read"),
    ("update run set extra = '{{'", "show {}", "run 1: its extra is not the JSON"),
    ("update run set extra = x'00'", "show {}", "run 1: its extra is blob, not text"),
    ("update event set preview = x'00', size = 1", "show {} --json", "its preview is blob, not text"),
    ("update event set kind = x'00'", "show {}", "its kind"),
    ("update event set line = 'x'", "show {}", "stands on line"),
    ("update event set result_seq = x'00'", "show {}", "its result_seq is blob, not integer"),
    ("update note set text = x'00'", "show {}", "note 1: its text is blob, not text"),
    ("update run set title = cast(x'ff' as text)", "runs", "run 1: its title is no UTF-8"),
    ("update event set output_tokens = 1 << 62", "runs", "output_tokens"),
    ("update run set parent = id, relation = 'subagent'", "fsck", "comes from itself"),
    ("update run set events = 'x'", "fsck", "its events is text, not integer"),
    ("update blob set head = 0", "fsck", "would not be found"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "words", "said"), NAMED, ids=[row[0][7:60] for row in NAMED])
def test_damage_is_named(
    clean: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, sql: str, words: str, said: str
) -> None:
    run = run_of(clean)
    spoil(clean, sql.replace("{{", "{"))
    bnd = Here(monkeypatch, request, clean)
    code, err = bnd(*(word.format(run) for word in words.split()))
    assert code == 1, err
    assert said in err
    if words != "fsck":
        assert re.fullmatch(r"(bnd: no run of this[^\n]+\n)?bnd: [^\n]+\n", err)
    code, err = bnd("fsck")
    assert code == 1
    assert all(line.startswith("bnd: ") for line in err.splitlines())


def spoil(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as con:
        guards = con.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
        for name, _ in guards:
            con.execute(f"drop trigger {name}")
        con.executescript(sql)
        for _, guard in guards:
            con.execute(guard)
        con.commit()


@pytest.mark.parametrize("events", ["1 << 62", "-5", "'x'", "1e300"])
def test_a_search_ends_whatever_a_run_counts(
    clean: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, events: str
) -> None:
    with Journal.open(clean) as journal, journal.write() as con:
        search.reset(con)
    spoil(clean, f"update run set events = {events}")
    bnd = Here(monkeypatch, request, clean)
    for _ in range(2):
        code, err = bnd("search", "deleg*")
        assert code in (0, 1)
        assert "internal" not in err


def test_an_index_that_says_too_much_is_made_again(clean: Path) -> None:
    spoil(clean, "update search_state set seq = 1 << 62")
    with connect(clean, content_of) as query, Journal.open(clean) as journal:
        assert search.behind(query.con)
        search.update(journal.con, journal.write, query.content)
        assert not search.behind(journal.con)
    with connect(clean, content_of) as query:
        assert len(list(search.find(query, "delegate", indexed=True))) == len(list(search.find(query, "delegate", indexed=False)))


def test_one_odd_title_hides_no_other_run(clean: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    spoil(clean, "update run set title = x'41ff', project = x'2f', label = 7")
    bnd = Here(monkeypatch, request, clean)
    assert bnd("runs") == (0, "")
    assert bnd("runs", "--json") == (0, "")


def test_gc_drops_nothing_of_a_damaged_journal(clean: Path) -> None:
    """A segment that lost its recipe doesn't need its strings: they are all that is left of it."""
    from click.testing import CliRunner

    spoil(clean, "update segment set lifted = x'', hash = zeroblob(33)")
    with closing(sqlite3.connect(clean)) as con:
        before = con.execute("select count(*) from blob").fetchone()
    done = CliRunner().invoke(cli.group, ["-j", str(clean), "gc"], obj=cli.Settings())
    assert isinstance(done.exception, JournalDamaged)
    with closing(sqlite3.connect(clean)) as con:
        assert con.execute("select count(*) from blob").fetchone() == before


def test_numbers_that_do_not_end() -> None:
    with pytest.raises(ValueError, match="too large"):
        get_varints(b"\xff" * 10_000_000)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-62135596800000, "0001-01-01T00:00:00.000Z"), (253402300799999, "9999-12-31T23:59:59.999Z"), (253402300800000, None),
        (1 << 62, None), (-1, "1969-12-31T23:59:59.999Z"),
    ],
)  # fmt: skip
def test_times_at_the_ends_of_the_calendar(
    clean: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, ms: int, text: str | None
) -> None:
    assert timestamp(ms) == text
    spoil(clean, f"update event set ts = {ms}; update run set ended_at = {ms}, started_at = {ms}")
    bnd = Here(monkeypatch, request, clean)
    for zone in ("UTC", "Pacific/Kiritimati", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        assert bnd("show", run_of(clean)) == (0, "")
        assert bnd("runs") == (0, "")


# --- arguments and input that are no text --------------------------------------------------------------------------


@pytest.fixture
def recorded(bnd: Any, clean: Path) -> Any:
    shutil.copy(clean, bnd.journal)
    return bnd


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", BAD], 2), (["step", BAD], 2), (["forget", BAD], 2), (["show", "{}", "--at", BAD], 2),
        (["show", "{}", "--tool", BAD], 0), (["show", "{}", "--kind", BAD], 2), (["sql", f"select {BAD}"], 2),
        (["sql", f"select '{BAD}'"], 2),
        (["sql", "select :a as b", "-p", "a", BAD], 0), (["sql", "select 1", "-p", BAD, BAD], 0), (["search", BAD], 2),
        (["search", f"the {BAD}"], 0), (["search", "the", "--project", BAD], 0), (["search", "the", "--run", BAD], 2),
        (["runs", "--project", BAD], 0), (["runs", "--cli", BAD], 0), (["record", BAD], 2), (["record", f"./{BAD}.jsonl"], 2),
        (["record", "--all", "--label", f"l {BAD}"], 0), (["record", "--all", "--cli", BAD], 2), (["note", "{}", f"n {BAD}"], 0),
        (["note", f"{{}}:{BAD}", "n"], 2), ([BAD], 2), (["sql", "select 1", "--functions", BAD], 2),
        (["sql", "select 1", "--attach", BAD, BAD], 2), (["sql", "select 1", "--fmt", BAD], 2),
        (["-j", f"{BAD}/x.db", "runs"], 2),
        (["runs", "-n", "9" * 30], 0), (["search", "the", "-n", "9" * 30], 0), (["show", "{}", "--raw", "-G", "9" * 30], 2),
    ],
)  # fmt: skip
def test_arguments_that_are_no_utf8(recorded: Any, words: list[str], code: int) -> None:
    run = run_of(recorded.journal)
    for more in ([], ["--json"]):
        ran = recorded(*(word.replace("{}", run) for word in words), *more)
        assert "internal error" not in ran.err
        if more and words[:2] == ["show", "{}"] and "--raw" in words:
            continue
        assert ran.code == code, ran.err
        ran.stdout.decode()
        ran.stderr.decode()
        if code:
            assert re.fullmatch(r"bnd: [^\n]+: [^\n]+\n", ran.err)


def test_texts_that_are_no_utf8_are_kept_as_text(recorded: Any) -> None:
    run = run_of(recorded.journal)
    recorded("note", run, f"a {BAD} b").ok()
    assert recorded("--json", "note", run, f"c {BAD}").json()["text"].startswith("c \ufffd")
    assert "note: a \ufffd" in recorded("show", run).ok().out
    store = recorded.root / "store"
    shutil.copytree(FIXTURES / "claude/2.1.218/tools", store)
    recorded("record", "--all", "--label", f"l{BAD}", env={"CLAUDE_CONFIG_DIR": store}).ok()
    assert any((row["label"] or "").startswith("l\ufffd") for row in recorded("runs", "--json").json())


def test_a_journal_whose_name_is_no_utf8(recorded: Any) -> None:
    path = recorded.root / f"x {BAD} % ?.db"
    shutil.copy(recorded.journal, path)
    run = run_of(recorded.journal)
    for words in (["runs"], ["show", run], ["search", "the"], ["sql", "select 1"], ["fsck"], ["note", run, "n"], ["gc"],
                  ["doctor"], ["record", "--all"], ["forget", run]):  # fmt: skip
        assert recorded("-j", path, *words).code == 0, words
    assert recorded("sql", "select count(*) n from y.run", "--attach", "y", path).json() == [{"n": 0}]


@pytest.mark.parametrize("stdin", [b"select '\xff'", b"select 1\0", b"\xed\xa0\x80", b"\xef\xbb\xbfselect \xff"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:strict"])
def test_queries_from_stdin_that_are_no_text(recorded: Any, stdin: bytes, encoding: str) -> None:
    ran = recorded("sql", "-", stdin=stdin, env={"PYTHONIOENCODING": encoding})
    assert ran.code == 2
    assert re.fullmatch(r"bnd: SQL: [^\n]+: [^\n]+\n", ran.err)


@pytest.mark.parametrize(
    "query",
    [
        "select cast(x'ff' as text) as t", "select regexp('a', cast(x'ff' as text))", "select bnd_time(cast(x'ff' as text))",
        "select f()", "select g()", "select h()", "select bnd_content('a', x'00', null)",
    ],
)  # fmt: skip
def test_values_that_no_function_takes(recorded: Any, query: str) -> None:
    """SQLite says only that a function failed, as for Ctrl-C: that is no reason to end with 130."""
    code = "def f(): return '\\ud800'\ndef g(): return [1]\ndef h(): return 1 << 70"
    ran = recorded("sql", query, "--functions", code)
    assert ran.code in (1, 2), ran.err
    assert re.fullmatch(r"bnd: [^\n]+: [^\n]+\n", ran.err)
    assert "internal" not in ran.err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8:strict"])
def test_steps_that_are_no_words(recorded: Any, encoding: str) -> None:
    words = [
        b"\xc2\xb2",
        b"--5",
        b"9" * 5000,
        b"-" + b"9" * 5000,
        b"a\0b",
        b"\xff",
        b"/\xff",
        b"/\0",
        b"\xed\xa0\x80",
        b"+5",
        b"1e9",
    ]
    for word in words:
        ran = recorded("step", run_of(recorded.journal), "-q", stdin=word + b"\nq\n", env={"PYTHONIOENCODING": encoding})
        assert (ran.code, ran.err) == (0, ""), word
        said = ran.out.split("delegate this\n", 1)[1].splitlines()
        assert len(said) == 1, word
        assert len(said[0]) < 200 or b"9" not in word


# --- files that are none, and places that can't be written ----------------------------------------------------------


def test_pipes_and_devices_keep_nobody_waiting(bnd: Any) -> None:
    pipe = bnd.root / "p.jsonl"
    os.mkfifo(pipe)
    for words in (["record", pipe], ["record", "/dev/zero"], ["record", "/dev/null"], ["record", "--follow", pipe]):
        ran = bnd(*words, timeout=20)
        assert ran.code == 2
        assert "no regular file" in ran.err
    assert bnd("-j", pipe, "runs", timeout=20).code == 2
    store = bnd.root / "store/projects/-x"
    store.mkdir(parents=True)
    os.mkfifo(store / "00000000-0000-4000-8000-000000000001.jsonl")
    assert bnd("record", "--all", env={"CLAUDE_CONFIG_DIR": bnd.root / "store"}, timeout=20).code in (0, 1)


UNPRIVILEGED = textwrap.dedent("""
    import contextlib, io, os, shutil, sys
    from beyond import cli
    folder, warm = sys.argv.pop(1), sys.argv.pop(1)
    os.environ["BND_JOURNAL"] = warm
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli._run()  # the interpreter's own files may be out of reach later
    os.environ["BND_JOURNAL"] = folder + "/x.db"
    os.chdir(folder)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    cli.main()
""")


def unprivileged(root: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    warm = root / "warm.db"
    fresh(warm, (folder / "x.db").read_bytes())
    return subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(folder), str(warm), *words], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def locked(clean: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder that can't be written, with a journal in it that can't either."""
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(clean, folder / "x.db")
    (folder / "x.db").chmod(0o444)
    places = [(above, above.stat().st_mode) for above in (tmp_path, *tmp_path.parents)]
    modes = [(above, mode) for above, mode in places if not mode & 0o001]
    for above, mode in modes:
        above.chmod(mode | 0o055)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    for above, mode in modes:
        above.chmod(mode)


def test_reading_where_nothing_can_be_written(locked: Path, tmp_path: Path) -> None:
    run = run_of(tmp_path / "clean.db")
    for words in (["runs"], ["show", run], ["show", run, "--raw"], ["sql", "select 1"], ["search", "deleg*"], ["step", run],
                  ["fsck"], ["fsck", "--json"]):  # fmt: skip
        done = unprivileged(tmp_path, locked, *words)
        assert done.returncode == 0, (words, done.stderr)
    for words in (["note", run, "x"], ["gc"], ["forget", run]):
        done = unprivileged(tmp_path, locked, *words)
        assert done.returncode == 2, (words, done.stderr)
        assert "can't be written" in done.stderr
    assert sorted(path.name for path in locked.iterdir()) == ["x.db"]


def test_damage_is_found_where_nothing_can_be_written(locked: Path, tmp_path: Path) -> None:
    locked.chmod(0o755)
    (locked / "x.db").chmod(0o644)
    spoil(locked / "x.db", "update source set lines = lines + 1")
    fresh(locked / "x.db", (locked / "x.db").read_bytes())
    (locked / "x.db").chmod(0o444)
    locked.chmod(0o555)
    done = unprivileged(tmp_path, locked, "fsck")
    assert done.returncode == 1
    assert "cursor" in done.stderr


def test_a_log_that_can_not_be_read_is_not_passed_over(locked: Path, tmp_path: Path) -> None:
    """Without its log a journal looks whole, but is older."""
    locked.chmod(0o755)
    (locked / "x.db-wal").write_bytes(b"\0" * 5000)
    locked.chmod(0o555)
    done = unprivileged(tmp_path, locked, "runs")
    assert done.returncode == 2
    assert "log" in done.stderr


def test_inspect_opens_what_there_is(clean: Path, tmp_path: Path) -> None:
    with Journal.inspect(clean) as journal:
        assert list(verify(journal)) == []
    (tmp_path / "other.db").write_bytes(b"nothing of the kind")
    with pytest.raises(JournalError, match="not a journal"):
        Journal.inspect(tmp_path / "other.db")


# --- output ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--csv"], "a,b\n1,x\n2,y\n"), (["--tsv"], "a\tb\n1\tx\n2\ty\n"), (["--nl"], '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n'),
        (["-r"], "1"), (["--raw-lines"], "1\n2\n"), (["--csv", "-r"], "1"), (["--csv", "--nl"], "a,b\n1,x\n2,y\n"),
        (["--nl", "-r"], "1"), (["-t", "--csv"], "  a  b\n---  ---\n  1  x\n  2  y\n"),
        (["--csv", "--tsv"], "a\tb\n1\tx\n2\ty\n"),
        (["--arrays"], '[[1, "x"],\n [2, "y"]]\n'),
    ],
)  # fmt: skip
def test_a_terminal_gets_what_was_asked_for(recorded: Any, options: list[str], wanted: str) -> None:
    query = "select 1 as a, 'x' as b union all select 2, 'y'"
    code, out = on_terminal(recorded.argv("sql", query, *options), recorded.environment())
    assert (code, out.decode().replace("\r", "")) == (0, wanted)
    assert recorded("sql", query, *options).ok().out.replace("\r", "") == wanted


def test_accents_after_their_letters_are_highlighted(recorded: Any) -> None:
    patterns = search.parse("r\u00e9sum\u00e9")
    content = "a re\u0301sume\u0301, re\u0301sume\u0301s"
    folded = search.fold(content)
    assert [m[0] for m in patterns[0].accented.finditer(folded)] == ["re\u0301sume\u0301"]
    assert search.parse("re\u0301sume\u0301")[0].words == ("resume",)
