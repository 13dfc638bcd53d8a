"""Recording what goes wrong in practice: glued lines, doubles, orphans, forgotten conversations, odd names."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beyond import agents, search
from beyond.errors import BeyondError
from beyond.journal import Journal
from beyond.journal.append import append
from beyond.journal.forget import forget
from beyond.record import Recorder, find, record
from beyond.record.derive import Survivors
from beyond.record.session import Session
from beyond.store import identify
from tests.reading import FIXTURES
from tests.test_record import content, note, sound


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def line(number: int, text: Any = None, *, parent: int | None = None, role: str = "user", **more: Any) -> dict[str, Any]:
    """A line of a Claude Code transcript."""
    return {
        "type": role,
        "uuid": uuid(number),
        "parentUuid": None if parent is None else uuid(parent),
        "sessionId": uuid(0),
        "timestamp": f"2026-12-01T01:00:{number % 60:02d}.000Z",
        "cwd": "/w/app",
        "version": "2.1.332",
        "message": {"role": role, "content": text},
        **more,
    }


def answer(number: int, text: str, parent: int, *, message: str, output: int, **more: Any) -> dict[str, Any]:
    out = line(number, None, parent=parent, role="assistant", **more)
    usage = {"input_tokens": 10, "output_tokens": output}
    out["message"] = {
        "role": "assistant", "id": message, "model": "m", "content": [{"type": "text", "text": text}], "usage": usage,
    }  # fmt: skip
    return out


def write(path: Path, *records: dict[str, Any], end: bytes = b"\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(json.dumps(r).encode() for r in records) + end)
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "odd.db") as opened:
        yield opened


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of Claude Code; its folder for /w/app."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    folder = tmp_path / "claude/projects/-w-app"
    folder.mkdir(parents=True)
    return folder


def rows(journal: Journal, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    return journal.con.execute(sql, values).fetchall()


# -- lines ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cli", ["claude", "kimi"])
def test_a_record_glued_to_an_unfinished_line(cli: str, tmp_path: Path) -> None:
    if cli == "claude":
        real = next((FIXTURES / "claude/2.1.332/tui/projects").glob("*/*.jsonl"))
        path = tmp_path / "p" / real.name
    else:
        real = next((FIXTURES / "kimi/2.1.0/twoturn/kimi-code/sessions").glob("*/*/agents/main/wire.jsonl"))
        path = tmp_path / "sessions" / real.parts[-5] / real.parts[-4] / "agents/main/wire.jsonl"
    path.parent.mkdir(parents=True)
    lines = real.read_bytes().splitlines()
    wanted = b'"role":"user"' if cli == "claude" else b'"turn.prompt"'
    at = max(i for i, raw in enumerate(lines[:-1]) if wanted in raw and b'"cwd":""' not in raw)
    glued = b"\n".join([*lines[:at], lines[at] + lines[at + 1], *lines[at + 2 :]]) + b"\n"
    with Journal.open(tmp_path / "pieces.db") as journal:
        path.write_bytes(b"\n".join(lines[: at + 1]))
        record(journal, [note(path)])
        path.write_bytes(glued)
        (outcome,) = record(journal, [note(path)])
        assert [(d["line"], d["length"]) for d in outcome.bad] == [(at + 1, len(lines[at + 1]))]
        pieces = content(journal)
        assert sound(journal)
    with Journal.open(tmp_path / "whole.db") as journal:
        (outcome,) = record(journal, [note(path)])
        assert [(d["line"], d["length"]) for d in outcome.bad] == [(at + 1, len(lines[at + 1]))]
        assert content(journal) == pieces
        assert sound(journal)


def test_a_glued_line_is_noticed_while_following(journal: Journal, store: Path) -> None:
    path = write(store / f"{uuid(0)}.jsonl", line(1, "one"), line(2, "two", parent=1), end=b"")
    session = Session(journal, identify(path))
    session.open()
    recorder = Recorder(journal)
    for batch in session.batches(recorder._builder):
        append(journal, recorder._builder.take(), [batch])
        session.done(batch)
    assert not session.overtaken()
    with path.open("ab") as file:
        file.write(b"\n")
    assert not session.overtaken()
    path.write_bytes(path.read_bytes()[:-1] + json.dumps(line(3, "three", parent=2)).encode() + b"\n")
    assert session.overtaken()
    recorder.close()


def test_a_file_that_is_rewritten_twice_keeps_its_causes(journal: Journal, store: Path) -> None:
    path = store / f"{uuid(0)}.jsonl"
    steps = [line(n, f"step {n}", parent=n - 1 if n > 1 else None) for n in range(1, 9)]
    write(path, *steps[:4])
    record(journal, [note(path)])
    write(path, *steps[2:6])
    record(journal, [note(path)])
    write(path, *steps[5:])
    record(journal, [note(path)])
    assert rows(journal, "select preview, parent_seq from event order by seq") == [
        (f"step {n}", n - 1 or None) for n in range(1, 9)
    ]
    assert rows(journal, "select count(*) from source") == [(3,)]
    assert sound(journal)


# -- several processes ------------------------------------------------------------------------------


def large_store(tmp_path: Path) -> Path:
    """26 MB in 40 conversations, some with a subagent: enough for worker processes."""
    dice = random.Random(5)
    words = ["".join(dice.choices("abcdefghij", k=7)) for _ in range(2000)]
    home = tmp_path / "large"
    for number in range(40):
        conversation = f"33333333-0000-4000-8000-{number:012d}"
        path = home / f"projects/-w-p{number % 4}/{conversation}.jsonl"
        records = []
        for n in range(1, 131):
            text = " ".join(dice.choices(words, k=600))
            records.append(line(n, text, parent=n - 1 if n > 1 else None, sessionId=conversation, cwd=f"/w/p{number % 4}"))
        if number % 5 == 0:
            call = line(131, None, parent=130, role="assistant", sessionId=conversation, cwd=f"/w/p{number % 4}")
            use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Task", "input": {"prompt": "x"}}
            call["message"] = {"role": "assistant", "id": f"msg_{number}", "content": [use]}
            records.append(call)
            agent = path.with_suffix("") / f"subagents/agent-a{number}.jsonl"
            write(agent, *(line(500 + n, f"sub {n} {number}", sessionId=conversation, isSidechain=True) for n in range(3)))
            agent.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": f"toolu_{number}"}))
        write(path, *records)
    return home


def committed(path: Path) -> bool:
    """Whether a journal that is being written holds events by now."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as con:
            return bool(con.execute("select exists (select 1 from event)").fetchone()[0])
    except sqlite3.Error:
        return False


def test_two_large_recorders_make_no_doubles_and_a_kill_no_orphans(bnd: Any, tmp_path: Path) -> None:
    home = large_store(tmp_path)
    env = {"CLAUDE_CONFIG_DIR": str(home)}
    both = [bnd.start("record", "--all", "-q", env=env) for _ in range(2)]
    assert [(p.wait(120), p.stderr.read()) for p in both] == [(0, b""), (0, b"")]
    with Journal.open(bnd.journal) as journal:
        assert rows(journal, "select agent = 'main', count(*), count(distinct conversation) from run group by 1 order by 1") == [
            (0, 8, 8), (1, 40, 40),
        ]  # fmt: skip
        whole = content(journal)
        parents = sorted(rows(journal, "select r.agent, p.conversation, r.parent_seq from run r join run p on p.id = r.parent"))
        assert len(parents) == 8
        assert {seq for _, _, seq in parents} == {131}
        assert sound(journal)
    dice = random.Random(3)
    middle = 0
    for turn in range(6):
        path = tmp_path / f"killed{turn}.db"
        process = bnd.start("record", "--all", "-q", "-j", path, env=env)
        limit = time.monotonic() + 30
        while not path.exists() and time.monotonic() < limit:
            time.sleep(0.01)
        if turn % 2:  # as soon as something is there
            while not committed(path) and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.002)
        else:
            time.sleep(dice.random() * 1.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with Journal.open(path) as journal:
            (events,) = rows(journal, "select count(*) from event")
            middle += 0 < events[0] < 40 * 130
            assert sound(journal)
        bnd("record", "--all", "-q", "-j", path, env=env).ok()
        with Journal.open(path) as journal:
            assert content(journal) == whole
            now = sorted(rows(journal, "select r.agent, p.conversation, r.parent_seq from run r join run p on p.id = r.parent"))
            assert now == parents
    print(f"{middle} of 6 were killed in the middle")
    assert middle >= 1


@pytest.mark.parametrize("beside", [True, False])
def test_orphans_of_a_killed_recorder_are_taken_up(beside: bool, journal: Journal, store: Path) -> None:
    """The parent is told by the file beside the subagent's, or only by the result line of the parent's transcript."""
    main = store / f"{uuid(0)}.jsonl"
    call = line(2, None, parent=1, role="assistant")
    call["message"] = {"role": "assistant", "id": "m1", "content": [{"type": "tool_use", "id": "t1", "name": "Odd", "input": {}}]}
    result = line(3, [{"type": "tool_result", "tool_use_id": "t1", "content": "done"}], parent=2)
    if not beside:
        result["toolUseResult"] = {"agentId": "abc"}
    write(main, line(1, "go"), call, result)
    agent = write(main.with_suffix("") / "subagents/agent-abc.jsonl", line(11, "sub", isSidechain=True))
    if beside:
        agent.with_suffix(".meta.json").write_text('{"toolUseId": "t1"}')
    recorder = Recorder(journal)
    for found in agents.conversations("claude"):
        recorder.add(found)
    recorder.flush()  # and no more: it was killed here
    recorder.close()
    assert rows(journal, "select parent_seq from run where relation = 'subagent'") == [(None,)]
    record(journal, agents.conversations("claude"))
    assert rows(journal, "select parent_seq from run where relation = 'subagent'") == [(2,)]


# -- forgetting -------------------------------------------------------------------------------------


def forget_run(journal: Journal, run: str) -> None:
    (number,) = journal.con.execute("select id from run where run = ?", (run,)).fetchone()
    forget(journal, number, Survivors(journal), search.reset)


def test_tokens_that_are_passed_on_are_the_messages_own(journal: Journal, tmp_path: Path) -> None:
    """A message of several lines counts with its last usage, for the copy too."""
    lines = [line(1, "go"), answer(2, "a", 1, message="m1", output=1), answer(3, "b", 2, message="m1", output=77)]
    first = write(tmp_path / "a" / f"{uuid(100)}.jsonl", *lines)
    second = write(tmp_path / "b" / f"{uuid(200)}.jsonl", *lines, line(4, "on", parent=3))
    one, two = record(journal, [identify(first), identify(second)])
    assert rows(journal, "select sum(output_tokens), count(*) from event where kind = 'usage'") == [(77, 2)]
    owner = rows(journal, "select r.run from event e join run r on r.id = e.run where e.counted = 1")[0][0]
    assert {one.run, two.run} >= {owner}
    forget_run(journal, owner)
    assert rows(journal, "select sum(output_tokens), count(*) from event where kind = 'usage'") == [(77, 1)]
    assert sound(journal)


def test_a_title_goes_with_the_file_that_gave_it(journal: Journal, store: Path) -> None:
    write(store / f"{uuid(100)}.jsonl", line(1, "the first prompt"), line(2, "and more", parent=1))
    give = {"type": "summary", "summary": "GIVEN TITLE", "leafUuid": uuid(2)}
    write(store / f"{uuid(200)}.jsonl", give, line(51, "another conversation"))
    outcomes = record(journal, agents.conversations("claude"))
    title = "select title from run where conversation = ?"
    assert rows(journal, title, uuid(100)) == [("GIVEN TITLE",)]
    forget_run(journal, outcomes[1].run or "")
    assert rows(journal, title, uuid(100)) == [("the first prompt",)]
    assert b"GIVEN TITLE" not in journal.path.read_bytes()


def test_a_forgotten_twin_does_not_come_back(journal: Journal, tmp_path: Path) -> None:
    """Two files of one conversation that part from each other; one of them is forgotten."""
    first = write(tmp_path / "a" / f"{uuid(0)}.jsonl", line(1, "go"), line(2, "left", parent=1))
    second = write(tmp_path / "b" / f"{uuid(0)}.jsonl", line(1, "go"), line(3, "right", parent=1), line(4, "x", parent=3))
    one, two = record(journal, [identify(first), identify(second)])
    assert one.run != two.run
    forget_run(journal, two.run or "")
    again = record(journal, [note(first), note(second)])
    assert [o.status for o in again][1] == "forgotten"
    assert rows(journal, "select run from run") == [(one.run,)]


def test_a_follower_leaves_the_forgotten_alone(bnd: Any, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    folder = bnd.home / ".claude/projects" / str(project).replace("/", "-").replace("_", "-").replace(".", "-")
    path = write(folder / f"{uuid(0)}.jsonl", line(1, "FORGET_ME one", cwd=str(project)))
    bnd("record", path).ok()
    run = bnd("sql", "select run from runs").json()[0]["run"]
    process = bnd.start("record", "--follow", cwd=project)
    try:
        wait_for(lambda: bnd("sql", "select ended from runs").json() == [{"ended": "live"}])
        bnd("forget", run).ok()
        for number in range(2, 5):
            with path.open("ab") as file:
                file.write(json.dumps(line(number, f"FORGET_ME {number}", parent=number - 1, cwd=str(project))).encode() + b"\n")
            time.sleep(0.7)
        assert bnd("sql", "select count(*) as n from runs").json() == [{"n": 0}]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert bnd("sql", "select count(*) as n from runs").json() == [{"n": 0}]
    # a new follower leaves it alone too; asked for by its file, it comes back
    process = bnd.start("record", "--follow", cwd=project)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert bnd("sql", "select count(*) as n from runs").json() == [{"n": 0}]
    bnd("record", path).ok()
    assert bnd("sql", "select events from runs").json() == [{"events": 4}]


def wait_for(done: Any, seconds: float = 15) -> None:
    limit = time.monotonic() + seconds
    while True:
        with contextlib.suppress(json.JSONDecodeError):  # there is no journal yet
            if done():
                return
        assert time.monotonic() < limit
        time.sleep(0.1)


# -- following --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_edit_far_before_the_end_is_noticed(end: int, bnd: Any, tmp_path: Path) -> None:
    """Of the same length, in the same moment as a new line. A clean end finds it, or, after a kill, the next record."""
    project = tmp_path / "project"
    project.mkdir()
    folder = bnd.home / ".claude/projects" / str(project).replace("/", "-").replace("_", "-").replace(".", "-")
    steps = [line(n, f"step {n}", parent=n - 1 if n > 1 else None, cwd=str(project)) for n in range(1, 30)]
    path = write(folder / f"{uuid(0)}.jsonl", *steps)
    process = bnd.start("record", "--follow", cwd=project)
    count = "select count(*) as n from events"
    try:
        wait_for(lambda: bnd("sql", count).json() == [{"n": 29}])
        more = json.dumps(line(30, "step 30", parent=29, cwd=str(project))).encode() + b"\n"
        data = path.read_bytes().replace(b'"step 3"', b'"STEP 3"') + more
        with path.open("r+b") as file:
            file.write(data)
        wait_for(lambda: bnd("sql", count).json()[0]["n"] >= 30)
    finally:
        process.send_signal(end)
        process.communicate(timeout=20)
    if end == signal.SIGKILL:
        bnd("record", "--all").ok()
    sources = bnd("sql", "select generation from sources order by generation").json()
    assert sources == [{"generation": 0}, {"generation": 1}]
    raw = bnd("show", "@", "--raw", cwd=project).ok().stdout
    assert raw == data
    before = bnd.journal.read_bytes()
    out = bnd("record", "--all", "--json").ok().jsonl()
    assert [o["status"] for o in out] == ["unchanged"]
    assert bnd.journal.read_bytes() == before


def test_an_edit_of_the_same_length_is_followed(bnd: Any, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    folder = bnd.home / ".claude/projects" / str(project).replace("/", "-").replace("_", "-").replace(".", "-")
    path = write(folder / f"{uuid(0)}.jsonl", *(line(n, f"step {n}", cwd=str(project)) for n in range(1, 30)))
    process = bnd.start("record", "--follow", cwd=project)
    try:
        wait_for(lambda: bnd("sql", "select count(*) as n from events").json() == [{"n": 29}])
        path.write_bytes(path.read_bytes().replace(b'"step 3"', b'"STEP 3"'))
        wait_for(lambda: len(bnd("sql", "select 1 as x from sources").json()) == 2)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_older_subagents_are_taken_with_their_conversation_only(
    journal: Journal, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.1 a subagent's file lay beside the conversation's and named it only inside."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    folders = []
    for place, conversation in ((here, uuid(100)), (there, uuid(200))):
        name = "".join(c if c.isalnum() else "-" for c in str(place))
        folder = store.parent / name
        mine = {"sessionId": conversation, "cwd": str(place)}
        write(folder / f"{conversation}.jsonl", line(1, "main", **mine))
        write(folder / f"agent-{place.name}.jsonl", line(2, f"sub of {place.name}", isSidechain=True, agentId=place.name, **mine))
        folders.append(folder)
    monkeypatch.chdir(here)
    assert sorted(f.agent for f in find(None, None)) == ["here", "main"]
    from beyond.record.follow import Follower

    follower = Follower(journal, ["claude"], directory=here, named=None, label=None, tell=lambda _: None)
    assert sorted(f.agent for f in follower._candidates()) == ["here", "main"]
    assert sorted(f.agent for f in follower._candidates()) == ["here", "main"]
    follower._recorder.close()


# -- odd names --------------------------------------------------------------------------------------

ODD = ["\\ud800", "\\u0000", "\\udfffx"]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("key", ["cwd", "sessionId", "version", "gitBranch", "agentId", "uuid", "requestId"])
def test_odd_characters_stop_nothing(key: str, odd: str, bnd: Any, tmp_path: Path) -> None:
    folder = bnd.home / ".claude/projects/-w"
    good = write(folder / f"{uuid(100)}.jsonl", line(1, "good", sessionId=uuid(100)))
    raw = [json.dumps(line(n, f"step {n}", isSidechain=key == "agentId")) for n in range(1, 4)]
    for n, text in enumerate(raw):
        record = json.loads(text)
        record[key] = "ODD"
        raw[n] = json.dumps(record).replace("ODD", f"/w/a{odd}b")
    name = "odd" if key == "sessionId" else uuid(50)
    (folder / f"{name}.jsonl").write_text("\n".join(raw) + "\n")
    write(folder / f"{uuid(900)}.jsonl", line(1, "good too", sessionId=uuid(900)))
    done = bnd("record", "--all")
    assert (done.code, b"internal" in done.stderr) == (0, False), done.err
    assert good.exists()
    runs = bnd("runs", "--json", "--subagents").ok().json()
    assert len(runs) >= 3
    assert bnd("show", "@", cwd=tmp_path).code in (0, 2)
    assert b"Traceback" not in bnd("fsck").ok().stderr
    for run in runs:
        bnd("show", run["run"]).ok()


def test_one_file_that_nobody_thought_of_ends_only_itself(journal: Journal, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (100, 200, 300):
        write(store / f"{uuid(number)}.jsonl", line(1, f"BAD {number}" if number == 200 else "fine", sessionId=uuid(number)))
    from beyond.ingest.claude import reader

    real = reader.events_of

    def fails(record: dict[str, Any], raw: bytes = b"") -> Any:
        if b"BAD 200" in raw:
            raise LookupError("never seen")
        return real(record, raw)

    monkeypatch.setattr(reader, "events_of", fails)
    outcomes = record(journal, agents.conversations("claude"))
    assert [o.status for o in outcomes] == ["new", "failed", "new"]
    assert "LookupError" in outcomes[1].warnings[0]


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "ünï", "a'b c"])
def test_a_directory_of_any_name_is_found(name: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from beyond.ingest.claude.store import encode_path

    place = tmp_path / name
    place.mkdir()
    write(store.parent / encode_path(str(place)) / f"{uuid(0)}.jsonl", line(1, "go", cwd=str(place)))
    monkeypatch.chdir(place)
    assert [f.conversation for f in find(None, None)] == [uuid(0)]
    odd = store.parent / encode_path(str(place)) / f"{uuid(7)}.jsonl"
    odd.write_bytes(b'{"cwd":"\xff\\x"}\n{"cwd": 5}\n{"cwd":"' + b"\\" * 9 + b"\n")
    os.utime(odd, (2e9, 2e9))
    assert [f.conversation for f in find(None, None)] == [uuid(0)]


def test_a_transcript_in_a_folder_that_is_no_text(bnd: Any, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/odd\xff"
    os.mkdir(folder)
    path = write(tmp_path / f"{uuid(0)}.jsonl", line(1, "go"))
    shutil.move(path, os.fsdecode(folder))
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"beyond", b"record", folder + b"/" + path.name.encode()],
        env=bnd.environment(), capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert bnd("sql", "select events from runs").json() == [{"events": 1}]


def test_find_names_what_it_cant(tmp_path: Path) -> None:
    with pytest.raises(BeyondError):
        find("\0", None)
