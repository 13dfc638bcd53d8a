"""Checkpoints of 10,000 files, bringing them back, and a fork of a large conversation."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import orjson

from beyond import agents
from beyond.checkpoint import Repository
from beyond.fork import Options, fork
from beyond.journal import Journal
from beyond.naming import Run
from beyond.proof.lab import surroundings
from beyond.record import record
from beyond.store import identify

from .generate import big_transcript
from .measure import Row, seconds
from .place import Place, Result, say

_FILES = 10_000


def _git(repo: Path, *args: str) -> None:
    who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(repo.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *who, *args], cwd=repo, env=env, check=True, capture_output=True)


def _repository(folder: Path, files: int) -> Path:
    dice = random.Random(1)
    repo = folder / "repo"
    repo.mkdir()
    for number in range(files):
        place = repo / f"d{number % 97}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}.txt").write_bytes(dice.randbytes(200).hex().encode() * dice.randint(1, 12))
    _git(repo, "init", "-q")
    _git(repo, "add", ".")
    _git(repo, "commit", "-qm", "start")
    return repo


def checkpoints(place: Place) -> Result:
    """A checkpoint against `git status`, unchanged and with one change; a restore against `git worktree add`."""
    files = _FILES if place.sizes.repeats >= 10 else 500
    say(f"a repository of {files} files")
    repo = _repository(place.folder("checkpoints"), files)
    opened = Repository.open(repo)
    opened.snapshot()
    times: dict[str, list[float]] = {name: [] for name in ("status", "same", "status1", "one", "add", "restore")}
    say("checkpoints")
    for number in range(place.sizes.repeats):
        times["status"].append(seconds(lambda: _git(repo, "status", "--porcelain")))
        times["same"].append(seconds(opened.snapshot))
        (repo / "d1/f1.txt").write_text(f"change {number}\n")
        times["status1"].append(seconds(lambda: _git(repo, "status", "--porcelain")))
        times["one"].append(seconds(opened.snapshot))
    taken = opened.snapshot()
    head = opened.head()
    say("restoring")
    for number in range(3):
        plain, ours = place.scratch / f"plain{number}", place.scratch / f"ours{number}"
        times["add"].append(seconds(lambda plain=plain: _git(repo, "worktree", "add", "--detach", str(plain))))  # type: ignore[misc]
        times["restore"].append(seconds(lambda ours=ours: opened.restore(taken.tree, head, ours)))  # type: ignore[misc]
        _git(repo, "worktree", "remove", "--force", str(plain))
        _git(repo, "worktree", "remove", "--force", str(ours))
    best = {name: min(values) * 1000 for name, values in times.items()}
    return Result(
        [
            Row(f"checkpoint of {files:,} files, unchanged / git status", best["same"] / best["status"], 1.3, 1.0),
            Row("checkpoint, one change / git status", best["one"] / best["status1"], 2.1, 1.3),
            Row("restore / git worktree add", best["restore"] / best["add"], 1.5),
        ],
        ["checkpoints: wall, best of all, alternately: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in best.items())],
    )


def forks(place: Place) -> Result:
    """A native fork near the end of a conversation of 100 MB against reading its file with orjson."""
    megabytes = 100 if place.sizes.repeats >= 10 else 10
    say(f"data: one transcript of {megabytes} MB")
    path = big_transcript(place.cache, megabytes)
    store = place.folder("fork-store")
    with (
        surroundings({**place.env(store), "PATH": "/usr/local/bin:/usr/bin:/bin"}),
        Journal.open(place.scratch / "fork.db") as journal,
    ):
        (outcome,) = record(journal, [identify(path)])
        number, events = journal.con.execute("select id, events from run where run = ?", (outcome.run,)).fetchone()
        run = Run(number, str(outcome.run), "claude", "main")
        options = Options(
            "surgical", env=False, dest=place.folder("fork-dest") / "x", gate_open=True, store=agents.home("claude")
        )
        read: list[float] = []
        ours: list[float] = []
        say("forking")
        for turn in range(3):
            read.append(seconds(lambda: [orjson.loads(raw) for raw in path.open("rb")] and None))
            target = Options(
                "surgical", env=False, dest=options.dest.with_name(f"x{turn}") if options.dest else None, gate_open=True,
                store=options.store,
            )  # fmt: skip
            ours.append(seconds(lambda target=target: fork(journal, run, str(events - 5), target)))  # type: ignore[misc]
    return Result(
        [Row(f"native fork of {megabytes} MB / reading it with orjson", min(ours) / min(read), 2.0)],
        [f"forks: fork {min(ours):.2f} s (plan, conversation written and synced), orjson {min(read):.2f} s; best of 3, in turn"],
    )
