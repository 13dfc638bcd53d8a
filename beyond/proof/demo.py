"""The fork that the demo ends with: taught two codewords, forked after the first, asked for what it knows."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from beyond import agents
from beyond.errors import BeyondError
from beyond.fork.gate import Installed, gate
from beyond.model import ModelRequest, Reply, ScriptedModel, codeword_script
from beyond.model.script import reply_of
from beyond.proof.lab import LabFailed, make, surroundings
from beyond.store import Found

#: Seconds that the scripted model thinks: meanwhile the files are kept.
_THINKS = 0.8
QUESTION = "What codewords did I teach you?"


def _slowly(request: ModelRequest) -> Reply:
    reply = reply_of(codeword_script(request))
    return Reply(reply.blocks, delay=_THINKS if request.tools else 0)


def program(scratch: Path) -> tuple[Installed, bool]:
    """The agent CLI to show it with: an installed one whose gate is open, else the one that is bundled. And whether it
    is a real one."""
    for name in agents.AGENTS:
        state = gate(name)
        if state.open and state.installed is not None:
            return state.installed, True
    folder = scratch / "agent"
    folder.mkdir()
    source = folder / "agent.py"
    source.write_bytes((resources.files("beyond") / "data" / "agent.py").read_bytes())
    wrapper = folder / "claude"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(source))} "$@"\n')
    wrapper.chmod(0o755)
    return Installed("claude", wrapper, "2.1.332", ""), False


def play(scratch: Path, say: Callable[[str], None], run: Callable[[list[str], dict[str, str], Path], int]) -> bool:
    """Plays it below `scratch`. `say` is told what is done, `run` runs a `bnd` command in an environment and a directory.
    Returns whether the request of the resumed agent held the past and nothing of the future."""
    chosen, real = program(scratch)
    with ScriptedModel(_slowly) as model:
        lab = make(chosen, scratch / "fork", model.url)
        env = {**lab.env, "PAGER": "cat"}
        who = f"{agents.row(chosen.cli).title} {chosen.version}" if real else "the bundled agent"
        say(f"Follow {who} in a git repository while it is taught two codewords")
        follower = subprocess.Popen(
            [sys.executable, "-m", "beyond", "record", "--follow"], cwd=lab.repo, env=env, stderr=subprocess.PIPE, text=True
        )
        try:
            assert follower.stderr is not None
            follower.stderr.readline()
            lab.say("remember GOLDENHAWK")
            (found, *_) = [f for f in _conversations(lab.env, chosen.cli) if f.agent == "main"]
            lab.say("now remember SILVERWOLF", found.conversation)
            time.sleep(1)
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=30)
        _expect(lab.repo / "notes.txt", "phase two\n")
        for title, words in (
            (
                "A checkpoint of the files at each step",
                ["sql", "-t", "select number, seq, aligned, files_changed, how from checkpoints"],
            ),
            (
                "Fork it at the end of the first turn, and ask the fork",
                ["fork", "@", "--at", "turn:1", "--label", "demo", "--prompt", QUESTION, "--exec"],
            ),
        ):
            say(title)
            before = len(model.requests)
            if run(words, env, lab.repo):
                return False
        sent = [request.body for request in model.requests[before:] if QUESTION.encode() in request.body]
        kept = any(b"GOLDENHAWK" in body for body in sent)
        gone = not any(b"SILVERWOLF" in request.body for request in model.requests[before:])
        (worktree,) = (Path(lab.env["BND_HOME"]) / "worktrees").iterdir()
        notes = (worktree / "notes.txt").read_text()
        say("What the resumed agent sent to the model, and its files")
        print(f"GOLDENHAWK in the request: {'yes' if kept else 'NO'}")
        print(f"SILVERWOLF in the request: {'no' if gone else 'YES'}")
        print(
            f"notes.txt of the fork: {notes.strip()}; of the original: {(lab.repo / 'notes.txt').read_text().strip()}", flush=True
        )
        for title, words in (
            ("Record what the fork went on with", ["record", "--all"]),
            (
                "The fork is a run of its own",
                ["sql", "-t", "select run, relation, parent_run, forked_at, method, events from runs order by events desc"],
            ),
        ):
            say(title)
            if run(words, env, lab.repo):
                return False
        return bool(sent) and kept and gone and notes == "phase one\n"


def _conversations(env: Mapping[str, str], cli: str) -> list[Found]:
    with surroundings(env):
        return list(agents.conversations(cli))


def _expect(path: Path, text: str) -> None:
    try:
        if path.read_text() == text:
            return
    except OSError as error:
        raise LabFailed(f"the agent wrote no {os.path.basename(path)} ({error.strerror}): run the demo again") from None
    raise BeyondError(f"{path.name} is not as the agent was told to write it: run the demo again")
