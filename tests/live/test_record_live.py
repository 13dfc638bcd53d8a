"""Recording what the real agent CLIs of each installed version write, once and live."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.journal import Journal
from beyond.journal.verify import verify
from beyond.model import ModelRequest, Text, Thinking, ToolUse
from beyond.record import record
from beyond.record.derive import differing
from tests.live.clis import Agent, Installed

#: What a follower promises, in seconds.
PROMISE = 1.0


@dataclass
class Step:
    """An event of the journal with its content, read from its line."""

    seq: int
    kind: str
    turn: int | None
    tool: str | None
    tool_id: str | None
    content: str
    tokens: tuple[int, ...]
    result_seq: int | None
    counted: int | None


def steps(journal: Journal, run: int) -> list[Step]:
    """The events of a run in order."""
    (cli,) = journal.con.execute("select cli from run where id = ?", (run,)).fetchone()
    read = agents.content_of(cli)
    out = []
    for row in journal.con.execute(
        "select seq, kind, turn, tool, tool_id, source, line, part, input_tokens, output_tokens, cache_read_tokens, "
        "cache_write_tokens, result_seq, counted from event where run = ? order by seq",
        (run,),
    ).fetchall():
        seq, kind, turn, tool, tool_id, source, line, part, *counts, result_seq, counted = row
        event = read(journal.reader.line(source, line)).get(part)
        content = event.content if event is not None and event.content is not None else ""
        out.append(Step(seq, kind, turn, tool, tool_id, content, tuple(counts), result_seq, counted))
    return out


def runs(journal: Journal) -> dict[str, tuple[int, str, str | None, int | None, int | None]]:
    """By agent (main runs by their conversation): id, run, relation, parent, its event."""
    rows = journal.con.execute("select agent, conversation, id, run, relation, parent, parent_seq from run").fetchall()
    return {(conversation if agent == "main" else agent): tuple(rest) for agent, conversation, *rest in rows}


def fingerprint(journal: Journal) -> set[tuple[Any, ...]]:
    """What a journal holds that must not depend on when and in which pieces it was recorded."""
    out: set[tuple[Any, ...]] = set()
    for source, cli, conversation, agent in journal.con.execute(
        "select s.id, r.cli, r.conversation, r.agent from source s join run r on r.id = s.run"
    ).fetchall():
        events = journal.con.execute(
            "select e.line, e.part, e.kind, e.link, e.turn, e.active, e.tool, e.is_error, e.counted, e.input_tokens, "
            "e.output_tokens from event e where e.source = ? order by e.line, e.part",
            (source,),
        ).fetchall()
        raw = b"".join(journal.reader.raw(source))
        parent = journal.con.execute(
            "select r.relation, p.conversation, p.agent, r.parent_seq from run r left join run p on p.id = r.parent "
            "where r.cli = ? and r.conversation is ? and r.agent = ?",
            (cli, conversation, agent),
        ).fetchone()
        out.add((cli, conversation, agent, raw, tuple(events), parent))
    return out


def assert_sound(journal: Journal) -> None:
    """What `fsck` looks at."""
    assert [*verify(journal), *differing(journal)] == []


def assert_bytes(journal: Journal, agent: Agent) -> None:
    """Every file of the CLI's store is in the journal, byte for byte."""
    for found in agent.transcripts():
        row = journal.con.execute("select source from file where path = ?", (str(found.path),)).fetchone()
        assert row is not None, found.path
        assert b"".join(journal.reader.raw(row[0])) == found.path.read_bytes()


def assert_as_sent(found: list[Step], requests: list[ModelRequest]) -> None:
    """A run holds just what the model said in these requests: texts, thoughts, calls with their results, tokens."""
    sent = [block for request in requests if request.sent is not None for block in request.sent.blocks]

    def of(kind: str) -> list[Step]:
        return [step for step in found if step.kind == kind]

    assert [s.content for s in of("assistant_msg")] == [b.text for b in sent if isinstance(b, Text)]
    assert [s.content for s in of("thinking")] == [b.text for b in sent if isinstance(b, Thinking)]
    calls = {str(b.id): b for b in sent if isinstance(b, ToolUse)}
    assert [s.tool_id for s in of("tool_call")] == list(calls)
    by_seq = {step.seq: step for step in found}
    came_back = {result.id: result for request in requests for result in request.results}
    for step in of("tool_call"):
        call = calls[str(step.tool_id)]
        assert step.tool == call.name
        given = json.loads(step.content)
        assert {key: given[key] for key in call.input} == dict(call.input)
        assert step.result_seq is not None
        result = by_seq[step.result_seq]
        assert (result.kind, result.tool_id) == ("tool_result", step.tool_id)
        assert result.content.strip()
        assert result.content.strip() in came_back[str(call.id)].text
    assert len(of("tool_result")) == len(calls)
    counted = sorted(s.tokens for s in of("usage") if s.counted)
    used = [r.sent.usage for r in requests if r.sent is not None]
    wanted = sorted((u.input, u.output, u.cache_read, u.cache_write) for u in used)
    assert [(i, r, w) for i, _, r, w in counted] == [(i, r, w) for i, _, r, w in wanted]
    for (_, out, _, _), (_, said, _, _) in zip(counted, wanted, strict=True):
        # Claude 2.1.218 may write a subagent's line before the message's last usage arrives (seen on a loaded machine):
        # the file then holds the count that the message began with, and so does the journal.
        assert out in (said, 1)


def assert_turns(found: list[Step], *prompts: str) -> None:
    """The user's turns are these prompts, numbered from 1."""
    assert [(step.turn, step.content) for step in found if step.kind == "user_msg"] == [*enumerate(prompts, 1)]
    assert max(step.turn or 0 for step in found) == len(prompts)


def recorded(journal: Journal, agent: Agent) -> list[str]:
    """Records all that the CLI's store holds; the outcomes' states."""
    return [outcome.status for outcome in record(journal, agent.transcripts())]


# --- once, after each turn ------------------------------------------------------------------------------------------


def test_a_turn_with_tools_and_a_resumed_one(agent: Agent, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "x.db") as journal:
        agent.say("remember GOLDENHAWK")
        assert recorded(journal, agent) == ["new"]
        (conversation,) = agent.conversations()
        main = runs(journal)[conversation][0]
        assert_as_sent(steps(journal, main), agent.model.answered)
        assert_turns(steps(journal, main), "remember GOLDENHAWK")
        before = [(s.seq, s.kind, s.tool_id, s.content) for s in steps(journal, main)]

        agent.say("now remember SILVERWOLF", resume=conversation)
        assert recorded(journal, agent) == ["extended"]
        assert agent.conversations() == [conversation]
        found = steps(journal, main)
        assert_as_sent(found, agent.model.answered)
        assert_turns(found, "remember GOLDENHAWK", "now remember SILVERWOLF")
        assert [(s.seq, s.kind, s.tool_id, s.content) for s in found[: len(before)]] == before
        assert len(agent.model.answered) == 6

        assert recorded(journal, agent) == ["unchanged"]
        assert_bytes(journal, agent)
        assert_sound(journal)
        facts = journal.con.execute("select cli, cli_version, project, title from run").fetchall()
        assert [(cli, project) for cli, _, project, _ in facts] == [(agent.name, str(agent.repo))]
        if agent.name == "claude":
            assert facts[0][1] == agent.cli.version
    assert (agent.repo / "notes.txt").read_text() == "phase two\n"


def test_the_command_records_and_shows_the_bytes(agent: Agent, bnd: Any) -> None:
    env = {name: agent.env[name] for name in ("CLAUDE_CONFIG_DIR", "KIMI_CODE_HOME") if name in agent.env}
    agent.say("remember GOLDENHAWK")
    bnd("record", env=env, cwd=agent.repo).ok()
    agent.say("plain SILVERWOLF", resume=agent.conversations()[0])
    (line,) = bnd("record", "--json", env=env, cwd=agent.repo).ok().jsonl()
    assert (line["status"], line["damage"], line["warnings"]) == ("extended", [], [])
    (found,) = agent.transcripts()
    assert bnd("show", line["run"], "--raw").ok().stdout == found.path.read_bytes()
    events = bnd("show", line["run"], "--json").ok().out
    for said in ("GOLDENHAWK", "SILVERWOLF", "phase one"):
        assert said in events
    bnd("fsck").ok()


def test_a_subagent_is_linked_to_its_call(agent: Agent, tmp_path: Path) -> None:
    agent.say("delegate this")
    with Journal.open(tmp_path / "x.db") as journal:
        assert recorded(journal, agent) == ["new", "new"]
        (conversation,) = agent.conversations()
        known = runs(journal)
        main = known.pop(conversation)
        ((child, _, relation, parent, at),) = known.values()
        assert (relation, parent) == ("subagent", main[0])
        answered = agent.model.answered
        inside = [request for request in answered if "SUBTASK" in request.prompt]
        outside = [request for request in answered if request not in inside]
        assert (len(inside), len(outside)) == (2, 2)
        assert outside[0].sent is not None
        (call,) = outside[0].sent.calls
        (at_step,) = [step for step in steps(journal, main[0]) if step.seq == at]
        assert (at_step.kind, at_step.tool_id, at_step.tool) == ("tool_call", call.id, "Agent")
        assert_as_sent(steps(journal, main[0]), outside)
        assert_as_sent(steps(journal, child), inside)
        assert_turns(steps(journal, main[0]), "delegate this")
        assert_turns(steps(journal, child), "SUBTASK please")
        assert_bytes(journal, agent)
        assert_sound(journal)


def test_a_native_fork_counts_its_own_tokens_only(claude_agent: Agent, tmp_path: Path) -> None:
    agent = claude_agent
    agent.say("remember GOLDENHAWK")
    (first,) = agent.conversations()
    agent.say("plain SILVERWOLF", resume=first, fork=True)
    (second,) = set(agent.conversations()) - {first}
    for order in (1, -1):
        with Journal.open(tmp_path / f"{order}.db") as journal:
            record(journal, agent.transcripts()[::order])
            known = runs(journal)
            before, after = (steps(journal, known[name][0]) for name in (first, second))
            assert_as_sent(before, agent.model.answered[:3])
            own = [step for step in after if step.kind == "usage" and step.counted]
            assert [step.tokens for step in own] == [tokens(agent.model.answered[3])]
            assert_turns(after, "remember GOLDENHAWK", "plain SILVERWOLF")
            assert known[second][2:4] == ("fork", known[first][0])
            assert_bytes(journal, agent)
            assert_sound(journal)


def tokens(request: ModelRequest) -> tuple[int, ...]:
    """The counts that were sent for a request."""
    assert request.sent is not None
    assert request.sent.usage is not None
    usage = request.sent.usage
    return usage.input, usage.output, usage.cache_read, usage.cache_write


def test_killed_in_a_call_and_resumed(agent: Agent, tmp_path: Path) -> None:
    with agent.saying("please hang for 15") as process, Journal.open(tmp_path / "x.db") as journal:
        until = time.monotonic() + 30
        while time.monotonic() < until and not any(b"time.sleep(15)" in f.path.read_bytes() for f in agent.transcripts()):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert recorded(journal, agent) == ["new"]
        (conversation,) = agent.conversations()
        main = runs(journal)[conversation][0]
        (call,) = [step for step in steps(journal, main) if step.kind == "tool_call"]
        assert call.result_seq is None
        assert_bytes(journal, agent)

        said = agent.say("What codewords did I teach you?", resume=conversation)
        assert "Codewords I can see" in said.out
        assert recorded(journal, agent) in (["extended"], ["rewritten"])
        (again,) = [step for step in steps(journal, main) if step.kind == "tool_call"]
        assert (again.seq, again.content) == (call.seq, call.content)
        assert_bytes(journal, agent)
        assert_sound(journal)


# --- live -----------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """Compares the files of a store with a journal that is being written: how long each growth took to arrive."""

    agent: Agent
    journal: Path
    waits: list[float] = field(default_factory=list)
    _pending: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """One look at both sides."""
        now = time.monotonic()
        for found in self.agent.transcripts():
            path, size = str(found.path), found.stat[0]
            if size > self._seen.get(path, 0):
                self._pending.setdefault(path, []).append((size, now))
                self._seen[path] = size
        there = self._recorded()
        now = time.monotonic()
        for path, waiting in self._pending.items():
            arrived = [item for item in waiting if item[0] <= there.get(path, 0)]
            self.waits += [now - since for _, since in arrived]
            self._pending[path] = [item for item in waiting if item not in arrived]

    def _recorded(self) -> dict[str, int]:
        if not self.journal.exists():
            return {}
        with closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True, timeout=5)) as con:
            try:
                return dict(con.execute("select path, size from file"))
            except sqlite3.OperationalError:  # it is being made
                return {}

    def settle(self) -> None:
        """Looks until everything has arrived."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            self.look()
            if not any(self._pending.values()):
                return
            time.sleep(0.02)
        pytest.fail(f"never arrived: {self._pending}")


@contextmanager
def following(agent: Agent, journal: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`bnd record --follow` in the agent's repository; ended by Ctrl-C, which is a normal end."""
    env = {
        **agent.env,
        "BND_HOME": str(agent.root / "bnd"),
        "BND_JOURNAL": str(journal),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [sys.executable, "-m", "beyond", "record", "--follow"]
    process = subprocess.Popen(
        argv, cwd=agent.repo, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        until = time.monotonic() + 20
        while not journal.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        yield process
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err.decode()
        assert b"Traceback" not in err, err.decode()
        assert out.strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_followed_while_it_works(cli: Installed, start_agent: Callable[..., Agent], tmp_path: Path) -> None:
    agent = start_agent(cli, delay=0.35)
    live = tmp_path / "live.db"
    watch = Watch(agent, live)
    with following(agent, live) as follower:
        for prompt in ("remember GOLDENHAWK", "now remember SILVERWOLF", "delegate this"):
            resume = next(iter(agent.conversations()), None)
            with agent.saying(prompt, resume=resume) as process:
                while process.poll() is None:
                    watch.look()
                    time.sleep(0.02)
                assert process.returncode == 0
        watch.settle()
        assert follower.poll() is None
        with closing(sqlite3.connect(f"file:{live}?mode=ro", uri=True)) as con:
            assert {ended for (ended,) in con.execute("select ended from run")} == {"live"}
    assert len(watch.waits) >= 8
    assert max(watch.waits) <= PROMISE, sorted(watch.waits)[-5:]
    with Journal.open(live) as followed, Journal.open(tmp_path / "after.db") as after:
        record(after, agent.transcripts())
        assert fingerprint(followed) == fingerprint(after)
        assert_bytes(followed, agent)
        assert_sound(followed)
        assert followed.con.execute("select distinct ended from run").fetchall() == [("complete",)]
        assert recorded(followed, agent) == ["unchanged"] * len(agent.transcripts())
        (conversation,) = agent.conversations()
        found = steps(followed, runs(followed)[conversation][0])
        assert_turns(found, "remember GOLDENHAWK", "now remember SILVERWOLF", "delegate this")
        assert_as_sent(found, [r for r in agent.model.answered if "SUBTASK" not in r.prompt])
