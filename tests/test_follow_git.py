"""`record --follow` in a git repository: a checkpoint at the start, at each prompt and after each tool call."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.test_record_odd import line, uuid, wait_for


class Pretended:
    """Writes a transcript as Claude Code does, and changes files between its lines."""

    def __init__(self, bnd: Any, project: Path) -> None:
        self.project = project
        self.number = 0
        folder = bnd.home / ".claude/projects" / "".join(c if c.isascii() and c.isalnum() else "-" for c in str(project))
        folder.mkdir(parents=True)
        self.path = folder / f"{uuid(0)}.jsonl"

    def write(self, content: Any, role: str = "user", **more: Any) -> None:
        self.number += 1
        record = line(self.number, content, parent=self.number - 1 or None, role=role, cwd=str(self.project), **more)
        if role == "assistant":
            record["message"]["id"] = f"m{self.number}"
        with self.path.open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def call(self, number: int) -> None:
        self.write([{"type": "tool_use", "id": f"t{number}", "name": "Write", "input": {}}], "assistant")

    def result(self, number: int) -> None:
        self.write([{"type": "tool_result", "tool_use_id": f"t{number}", "content": "done"}])


def git(project: Path, *args: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(project), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
    return subprocess.run(["git", *who, *args], cwd=project, env=env, check=True, capture_output=True, text=True).stdout


def state_of(project: Path) -> dict[str, str]:
    """Everything of a repository that is the user's: hashes of files, index, HEAD, refs outside refs/bnd, reflogs."""
    out = {}
    for path in sorted(project.rglob("*")):
        name = str(path.relative_to(project))
        if name.startswith((".git/objects", ".git/bnd", ".git/refs/bnd", ".git/worktrees")) or path.is_dir():
            continue
        out[name] = f"{path.stat().st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return out


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    (place / "notes.txt").write_text("phase zero\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "start")
    return place


@pytest.fixture
def following(bnd: Any, project: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = bnd.start("record", "--follow", cwd=project)
    assert process.stderr is not None
    assert b"checkpoints of" in process.stderr.readline()
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def points(bnd: Any) -> list[dict[str, Any]]:
    return bnd("sql", "select * from checkpoints order by number").json()  # type: ignore[no-any-return]


def test_each_moment_has_its_tree(bnd: Any, project: Path, following: subprocess.Popen[bytes]) -> None:
    before = state_of(project)
    agent = Pretended(bnd, project)
    agent.write("remember GOLDENHAWK")
    wait_for(lambda: len(points(bnd)) == 2)
    agent.call(1)
    time.sleep(0.3)
    (project / "notes.txt").write_text("phase one\n")
    agent.result(1)
    wait_for(lambda: len(points(bnd)) == 3)
    agent.write("remember SILVERWOLF")
    wait_for(lambda: len(points(bnd)) == 4)
    agent.call(2)
    (project / "notes.txt").write_text("phase two\n")
    (project / "new.txt").write_text("new\n")
    agent.result(2)
    wait_for(lambda: len(points(bnd)) == 5)
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=20)
    assert (following.returncode, err) == (0, b"")
    rows = points(bnd)
    assert [(r["seq"], r["aligned"], r["how"], r["files_changed"]) for r in rows] == [
        (0, 1, "follow", None), (1, 1, "follow", 0), (3, 1, "follow", 1), (4, 1, "follow", 0), (6, 1, "follow", 2),
    ]  # fmt: skip
    text = [git(project, "show", f"{r['commit_id']}:notes.txt") for r in rows]
    assert text == ["phase zero\n", "phase zero\n", "phase one\n", "phase one\n", "phase two\n"]
    # a row each time, a ref only where the tree changed
    run = rows[0]["run"]
    assert [r["ref"] for r in rows] == [
        f"refs/bnd/{run}/0", f"refs/bnd/{run}/0", f"refs/bnd/{run}/3", f"refs/bnd/{run}/3", f"refs/bnd/{run}/6",
    ]  # fmt: skip
    assert git(project, "for-each-ref", "--format=%(refname)", "refs/bnd").split() == [f"refs/bnd/{run}/{n}" for n in (0, 3, 6)]
    assert {r["head_id"] for r in rows} == {git(project, "rev-parse", "HEAD").strip()}
    after = state_of(project)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed == {"notes.txt", "new.txt"}
    assert bnd("fsck").code == 0
    assert [r["checkpoints"] for r in bnd("runs", "--json").json()] == [5]


def test_a_call_that_overtook_the_snapshot_is_said(bnd: Any, project: Path, following: subprocess.Popen[bytes]) -> None:
    agent = Pretended(bnd, project)
    agent.write("go")
    agent.call(1)
    agent.result(1)
    agent.call(2)
    wait_for(lambda: len(points(bnd)) >= 3)
    rows = {r["seq"]: r["aligned"] for r in points(bnd)}
    assert rows[3] == 0


def test_parallel_calls_are_not_aligned_before_the_last_result(
    bnd: Any, project: Path, following: subprocess.Popen[bytes]
) -> None:
    agent = Pretended(bnd, project)
    agent.write("go")
    wait_for(lambda: len(points(bnd)) == 2)
    both = [{"type": "tool_use", "id": f"t{n}", "name": "Write", "input": {}} for n in (1, 2)]
    agent.write(both, "assistant")
    agent.result(1)
    wait_for(lambda: len(points(bnd)) == 3)
    agent.result(2)
    wait_for(lambda: len(points(bnd)) == 4)
    assert [(r["seq"], r["aligned"]) for r in points(bnd)] == [(0, 1), (1, 1), (4, 0), (5, 1)]


def test_a_conversation_that_was_there_before(bnd: Any, project: Path) -> None:
    agent = Pretended(bnd, project)
    for n in range(5):
        agent.write(f"prompt {n}")
    process = bnd.start("record", "--follow", cwd=project)
    try:
        wait_for(lambda: len(points(bnd)) == 1)
        assert [(r["seq"], r["aligned"]) for r in points(bnd)] == [(5, 0)]
        agent.write("another")
        wait_for(lambda: len(points(bnd)) == 2)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert [(r["seq"], r["aligned"]) for r in points(bnd)] == [(5, 0), (6, 1)]


def test_no_git(bnd: Any, project: Path) -> None:
    agent = Pretended(bnd, project)
    agent.write("go")
    process = bnd.start("record", "--follow", "--no-git", cwd=project)
    try:
        wait_for(lambda: bnd("sql", "select count(*) as n from events").json() == [{"n": 1}])
        agent.write("more")
        wait_for(lambda: bnd("sql", "select count(*) as n from events").json() == [{"n": 2}])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert points(bnd) == []
    assert git(project, "for-each-ref", "refs/bnd") == ""


def test_one_snapshot_afterwards(bnd: Any, project: Path) -> None:
    agent = Pretended(bnd, project)
    agent.write("go")
    agent.call(1)
    (project / "notes.txt").write_text("later\n")
    before = state_of(project)
    bnd("record", "--git", cwd=project).ok()
    assert [(r["seq"], r["how"], r["aligned"]) for r in points(bnd)] == [(2, "after", 0)]
    assert state_of(project) == before
    nowhere = project.parent / "nowhere"
    nowhere.mkdir()
    done = bnd("record", "--git", agent.path, cwd=nowhere)
    assert done.code == 2
    assert b"work tree" in done.stderr
    assert len(points(bnd)) == 1


def test_forgotten_checkpoints_lose_their_refs_at_gc(bnd: Any, project: Path) -> None:
    agent = Pretended(bnd, project)
    agent.write("go")
    bnd("record", "--git", cwd=project).ok()
    git(project, "update-ref", "refs/bnd/aaaaaaaaaaaa/1", "HEAD")
    run = points(bnd)[0]["run"]
    bnd("forget", run).ok()
    assert f"refs/bnd/{run}/1" in git(project, "for-each-ref", "refs/bnd")
    bnd("gc").ok()
    assert git(project, "for-each-ref", "--format=%(refname)", "refs/bnd").split() == ["refs/bnd/aaaaaaaaaaaa/1"]
