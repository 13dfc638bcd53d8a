"""`bnd fork`: from the journal to a conversation and its files, whole or not at all. The program on the PATH only says a
version here; what the real ones make of a fork is in tests/live."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from beyond.ingest.claude.store import encode_path
from tests.reading import FIXTURES
from tests.test_follow_git import Pretended, git, project, state_of  # noqa: F401
from tests.test_record_odd import wait_for

VERSION = {"claude": "2.1.332 (Claude Code)", "kimi": "2.1.0"}


@pytest.fixture(autouse=True)
def _programs(bnd: Any, tmp_path: Path) -> None:
    for name, version in VERSION.items():
        pretend(bnd, tmp_path, name, version)


def pretend(bnd: Any, tmp_path: Path, name: str, version: str) -> None:
    """A program on the PATH that says a version and, resumed, what it was started with."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n'
        'echo "cwd=$(pwd)"; for word in "$@"; do echo "arg=$word"; done; env | grep -E "^CLAUDE|^KIMI" | sort\n'
    )
    program.chmod(0o755)
    if not bnd.env["PATH"].startswith(str(folder)):
        bnd.env["PATH"] = f"{folder}:{bnd.env['PATH']}"


def hashes(folder: Path) -> dict[str, str]:
    out = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            out[str(path.relative_to(folder))] = f"{stat.st_mtime_ns} {stat.st_ino} {digest}"
    return out


def recorded(bnd: Any, fixture: str) -> dict[str, Any]:
    """Copies a fixture's store to the scratch home and records it; its main run."""
    cli = fixture.split("/", maxsplit=1)[0]
    source = FIXTURES / fixture / ("kimi-code" if cli == "kimi" else "")
    store = bnd.home / (".kimi-code" if cli == "kimi" else ".claude")
    shutil.copytree(source, store, dirs_exist_ok=True)
    bnd("record", "--all").ok()
    runs = [run for run in bnd("runs", "--json").json() if run["relation"] != "subagent"]
    return max(runs, key=lambda run: run["events"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "fixture", ["claude/2.1.332/tui", "claude/2.1.218/subagent", "kimi/2.1.0/twoturn", "kimi/0.28.0/subagent"]
)
def test_a_native_fork(fixture: str, bnd: Any) -> None:
    run = recorded(bnd, fixture)
    store = bnd.home / (".kimi-code" if run["cli"] == "kimi" else ".claude")
    before = hashes(store)
    at = run["events"] // 2
    made = bnd("fork", run["run"], "--at", str(at), "--json", "--label", "my fork").ok().json()
    after = hashes(store)
    changed = {name for name in before if before[name] != after.get(name)}
    assert changed <= {"session_index.jsonl"}
    for path in made["paths"]:
        files = [Path(path)] if Path(path).is_file() else [p for p in Path(path).rglob("*") if p.is_file()]
        assert files
        assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o600"}
    assert not list(store.glob(".bnd-*"))
    assert (made["method"], made["reason"], made["parent_run"], made["forked_at"]) == ("surgical", None, run["run"], at)
    row = next(r for r in bnd("runs", "--json").json() if r["run"] == made["run"])
    assert (row["relation"], row["parent_run"], row["parent_seq"], row["forked_at"], row["method"]) == (
        "fork", run["run"], at, at, "surgical",
    )  # fmt: skip
    assert (row["label"], row["conversation"], row["project"]) == ("my fork", made["conversation"], made["worktree"])
    assert row["events"] > 0
    # the past's links, and no tokens twice
    both = bnd(
        "sql", "select run, seq, lower(hex(link)) as link, input_tokens from events where run in (?1, ?2) order by seq"
        .replace("?1", f"'{run['run']}'").replace("?2", f"'{made['run']}'"),
    ).json()  # fmt: skip
    mine = {e["link"] for e in both if e["run"] == made["run"] and e["link"]}
    assert {e["link"] for e in both if e["run"] == run["run"] and e["link"] and e["seq"] <= at} & mine
    assert not any(e["input_tokens"] for e in both if e["run"] == made["run"])
    # recorded with everything else, it is the same run
    bnd("record", "--all").ok()
    assert sum(r["run"] == made["run"] for r in bnd("runs", "--json").json()) == 1
    bnd("fsck").ok()
    # a second one is independent
    again = bnd("fork", run["run"], "--at", str(at), "--json").ok().json()
    assert again["run"] != made["run"]
    assert again["conversation"] != made["conversation"]
    # a fork of the fork
    third = bnd("fork", made["run"], "--at", "-1", "--json").ok().json()
    assert third["method"] == "surgical"
    assert bnd("forget", made["run"]).code == 0
    bnd("fsck").ok()


def test_the_command_resumes_it(bnd: Any) -> None:
    run = recorded(bnd, "claude/2.1.332/simple")
    bnd.env |= {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_ID": "outer", "CLAUDE_CODE_CHILD_SESSION": "1"}
    made = bnd("fork", run["run"], "--at", "-1", "--json").ok().json()
    said = subprocess.run(["sh", "-c", made["command"]], env=bnd.environment(), capture_output=True, text=True, check=True).stdout
    assert f"cwd={made['worktree']}" in said
    assert f"arg={made['conversation']}" in said
    assert "CLAUDECODE=" not in said
    assert "CLAUDE_CODE_SESSION_ID=" not in said
    assert "CLAUDE_CODE_DISABLE_AUTO_MEMORY=1" in said
    done = bnd("fork", run["run"], "--at", "-1", "--exec", "-q")
    assert (done.code, "arg=--resume" in done.out) == (0, True)
    plain = bnd("fork", run["run"], "--at", "-1", "-q").ok().out
    assert plain.startswith("cd ")
    assert len(plain.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--at", "9999"), 2, "has events 1 to"),
        (("--at", "0"), 2, "has events 1 to"),
        (("--at", "turn:99"), 2, "turns"),
        (("--at", "cp:1"), 2, "no checkpoints"),
        (("--at", "i:1"), 2, "no interchanges"),
        (("--at", "²"), 2, "is no step"),
        (("--at", "2", "--env"), 2, "no checkpoint at or before"),
        (("--at", "2", "--into", "codexx"), 2, "unknown agent CLI"),
        ((), 2, "--at"),
    ],
)
def test_bad_input_leaves_nothing(args: tuple[str, ...], code: int, words: str, bnd: Any) -> None:
    run = recorded(bnd, "claude/2.1.332/simple")
    before = hashes(bnd.home)
    done = bnd("fork", run["run"], *args)
    assert (done.code, len(done.err.strip().splitlines()), words in done.err) == (code, 1, True), done.err
    after = hashes(bnd.home)
    assert {k: v for k, v in after.items() if "journal" not in k} == {k: v for k, v in before.items() if "journal" not in k}
    assert len(bnd("runs", "--json").json()) == 1


def test_an_unknown_version_falls_back(bnd: Any, tmp_path: Path) -> None:
    """Must show 5, but for the proof, which needs the real program."""
    run = recorded(bnd, "claude/2.1.332/tui")
    pretend(bnd, tmp_path, "claude", "9.9.9 (Claude Code)")
    done = bnd("fork", run["run"], "--at", "5", "--method", "surgical")
    assert (done.code, "9.9.9 is not verified" in done.err, "--prove claude" in done.err) == (3, True, True), done.err
    done = bnd("fork", run["run"], "--at", "5", "--json").ok()
    made = done.json()
    assert "synthesis, not surgery: Claude Code 9.9.9 is not verified" in done.err
    assert (made["method"], made["conversation"], made["paths"]) == ("synthesis", None, [])
    assert "9.9.9" in made["reason"]
    assert f"[bnd fork {made['run']}]" in made["argv"][-1]
    row = next(r for r in bnd("runs", "--json").json() if r["run"] == made["run"])
    assert (row["method"], row["parent_run"], row["forked_at"], row["events"]) == ("synthesis", run["run"], 5, 0)
    # when the fresh conversation is begun, it becomes that run's
    from tests.test_record_odd import line, uuid, write

    folder = bnd.home / ".claude/projects" / encode_path(made["worktree"])
    write(folder / f"{uuid(77)}.jsonl", line(1, made["argv"][-1], sessionId=uuid(77), cwd=made["worktree"]))
    bnd("record", "--all").ok()
    runs = bnd("runs", "--json").json()
    (row,) = [r for r in runs if r["conversation"] == uuid(77)]
    assert (row["run"], row["relation"], row["parent_run"], row["events"]) == (made["run"], "fork", run["run"], 1)
    write(folder / f"{uuid(78)}.jsonl", line(2, made["argv"][-1], sessionId=uuid(78), cwd=made["worktree"]))
    bnd("record", "--all").ok()
    (row,) = [r for r in bnd("runs", "--json").json() if r["conversation"] == uuid(78)]
    assert row["run"] != made["run"]
    bnd("fsck").ok()


def test_no_program_and_a_subagents_inside(bnd: Any) -> None:
    run = recorded(bnd, "claude/2.1.332/subagent")
    (sub,) = [r for r in bnd("runs", "--json", "--subagents").json() if r["relation"] == "subagent"]
    done = bnd("fork", sub["run"], "--at", "2", "--json").ok()
    assert done.json()["method"] == "synthesis"
    assert "inside of a subagent" in done.err
    assert bnd("fork", sub["run"], "--at", "2", "--method", "surgical").code == 3
    bnd.env["PATH"] = "/usr/bin:/bin"
    done = bnd("fork", run["run"], "--at", "3", "--json").ok()
    assert (done.json()["method"], "not on the PATH" in done.err) == ("synthesis", True)


def test_sf_07_a_conversation_that_is_being_written(bnd: Any, project: Path) -> None:  # noqa: F811
    agent = Pretended(bnd, project)
    agent.write("go")
    agent.call(1)
    process = bnd.start("record", "--follow", cwd=project)
    try:
        wait_for(lambda: bnd("sql", "select count(*) as n from events").json() == [{"n": 2}])
        with agent.path.open("ab") as file:
            file.write(b'{"type":"user","message":{"role":"us')
        done = bnd("fork", "@", "--at", "2", "--json", cwd=project).ok()
        assert "still being written" in done.err
        made = done.json()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    lines = Path(made["paths"][-1]).read_bytes().splitlines()
    records = [json.loads(raw) for raw in lines]
    results = [r for r in records if "tool_result" in json.dumps(r)]
    assert len(results) == 1
    assert results[0]["message"]["content"][0]["is_error"] is True


def test_files_come_back(bnd: Any, project: Path) -> None:  # noqa: F811
    """Must show 4: the user's side stays as it was, through following and forking."""
    process = bnd.start("record", "--follow", cwd=project)
    assert process.stderr is not None
    process.stderr.readline()
    agent = Pretended(bnd, project)
    points = lambda: bnd("sql", "select * from checkpoints order by number").json()  # noqa: E731
    agent.write("remember GOLDENHAWK")
    wait_for(lambda: len(points()) == 2)
    agent.call(1)
    (project / "notes.txt").write_text("phase one\n")
    agent.result(1)
    wait_for(lambda: len(points()) == 3)
    agent.write("remember SILVERWOLF")
    agent.call(2)
    (project / "notes.txt").write_text("phase two\n")
    (project / "SILVERWOLF.txt").write_text("later\n")
    agent.result(2)
    wait_for(lambda: points()[-1]["seq"] == 6)
    git(project, "add", ".")
    git(project, "commit", "-qm", "SILVERWOLF commit")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    before, store = state_of(project), hashes(bnd.home / ".claude")
    made = bnd("fork", "@", "--at", "3", "--json", cwd=project).ok().json()
    assert state_of(project) == before
    assert {k: v for k, v in hashes(bnd.home / ".claude").items() if k in store} == store
    tree = Path(made["worktree"])
    assert (made["checkpoint"], made["aligned"]) == (3, True)
    assert (tree / "notes.txt").read_text() == "phase one\n"
    assert not (tree / "SILVERWOLF.txt").exists()
    assert "SILVERWOLF" not in git(tree, "log")
    assert b"SILVERWOLF" not in Path(made["paths"][-1]).read_bytes()
    assert (tree / "notes.txt").stat().st_mtime < time.time() - 3600
    alone = bnd("fork", "@", "--at", "3", "--isolated", "--json", cwd=project).ok().json()
    assert "SILVERWOLF" not in git(Path(alone["worktree"]), "log", "--all")
    assert git(Path(alone["worktree"]), "for-each-ref") == ""
    assert state_of(project) == before
    dest = project.parent / "there"
    dest.mkdir()
    (dest / "mine.txt").write_text("mine\n")
    done = bnd("fork", "@", "--at", "3", "--dest", dest, cwd=project)
    assert (done.code, "is there already" in done.err) == (2, True)
    assert (dest / "mine.txt").read_text() == "mine\n"
    # the fork has its own first checkpoint, so a fork of the fork has files too
    again = bnd("fork", made["run"], "--at", "-1", "--json").ok().json()
    assert (Path(again["worktree"]) / "notes.txt").read_text() == "phase one\n"
    early = bnd("fork", made["run"], "--at", "1", "--json").ok().json()
    assert (Path(early["worktree"]) / "notes.txt").read_text() == "phase zero\n"
    none = bnd("fork", "@", "--at", "3", "--no-env", "--json", cwd=project).ok().json()
    assert none["worktree"] == str(project.resolve())
    # the tree of the checkpoint was pruned: said, and nothing half-made
    for ref in git(project, "for-each-ref", "--format=%(refname)", "refs/bnd").split():
        git(project, "update-ref", "-d", ref)
    for worktree in git(project, "worktree", "list", "--porcelain").split("\n\n")[1:]:
        if not worktree.strip():
            continue
        git(project, "worktree", "remove", "--force", worktree.split("\n")[0].removeprefix("worktree "))
    shutil.rmtree(project / ".git/bnd")
    git(project, "reflog", "expire", "--expire=now", "--all")
    git(project, "gc", "-q", "--prune=now")
    done = bnd("fork", "@", "--at", "3", cwd=project)
    assert done.code == 2, done.err
    assert len(done.err.strip().splitlines()) == 1
    assert "it was pruned" in done.err


def test_a_journal_from_elsewhere_forks_without_the_store(bnd: Any, tmp_path: Path) -> None:
    """Must show 6."""
    run = recorded(bnd, "claude/2.1.332/compacted")
    other = tmp_path / "other"
    other.mkdir()
    shutil.rmtree(bnd.home / ".claude")
    env = {"HOME": str(other), "BND_HOME": str(other / ".bnd"), "CLAUDE_CONFIG_DIR": None, "KIMI_CODE_HOME": None}
    made = bnd("fork", run["run"], "--at", str(run["events"]), "--json", env=env).ok().json()
    assert made["method"] == "surgical"
    assert str(other / ".claude/projects") in made["paths"][-1]
    assert Path(made["paths"][-1]).stat().st_size > 0


def test_a_full_disk_leaves_nothing(bnd: Any) -> None:
    run = recorded(bnd, "claude/2.1.332/tui")
    before = hashes(bnd.home / ".claude")

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = bnd.journal.stat().st_size
        del size
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    env = bnd.environment({"BND_JOURNAL": str(bnd.journal)})
    done = subprocess.run(bnd.argv("fork", run["run"], "--at", "-1"), env=env, capture_output=True, preexec_fn=small, check=False)
    assert done.returncode in (1, 2), done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert hashes(bnd.home / ".claude") == before
    assert not list((bnd.home / ".bnd/worktrees").glob("*")) if (bnd.home / ".bnd/worktrees").exists() else True


def test_killed_at_any_moment(bnd: Any) -> None:
    """Must show 8: no new conversation, or a whole one."""
    run = recorded(bnd, "claude/2.1.332/tui")
    whole = Path(bnd("fork", run["run"], "--at", "-1", "--json").ok().json()["paths"][-1])
    count = len(whole.read_bytes().splitlines())
    dice = random.Random(11)
    killed = born = 0
    seen = {whole}
    for _ in range(25):
        process = bnd.start("fork", run["run"], "--at", "-1")
        time.sleep(0.1 + dice.random() * 0.45)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
        for path in set((bnd.home / ".claude/projects").rglob("*.jsonl")) - seen:
            seen.add(path)
            lines = path.read_bytes().splitlines(keepends=True)
            if path.parent.name == whole.parent.name:
                born += 1
                assert len(lines) == count
                assert lines[-1].endswith(b"\n")
                assert [json.loads(raw) for raw in lines]
    assert killed >= 5
    bnd("fork", run["run"], "--at", "-1").ok()
    assert not list((bnd.home / ".claude").glob(".bnd-*"))  # what the killed ones left is swept by the next
    bnd("record", "--all").ok()
    bnd("fsck").ok()


@pytest.mark.parametrize("where", ["bare", "none", "empty"])
def test_follow_and_fork_where_there_is_no_work_tree(where: str, bnd: Any, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    if where == "bare":
        git(place, "init", "-q", "--bare")
    elif where == "empty":
        git(place, "init", "-q")
    agent = Pretended(bnd, place)
    process = bnd.start("record", "--follow", cwd=place)
    try:
        time.sleep(1)
        agent.write("go")
        (place / "a.txt").write_text("a\n")
        wait_for(lambda: bnd("sql", "select count(*) as n from events").json() == [{"n": 1}])
        if where == "empty":  # no commit yet
            wait_for(lambda: bnd("sql", "select count(*) as n from checkpoints").json() == [{"n": 2}])
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    made = bnd("fork", "@", "--at", "1", "--json", cwd=place).ok().json()
    assert made["method"] == "surgical"
    if where == "empty":
        assert made["checkpoint"] == 1
        assert made["worktree"] != str(place)
    else:
        assert any("not restored" in note for note in made["notes"])
        assert made["worktree"] == os.path.realpath(place)
