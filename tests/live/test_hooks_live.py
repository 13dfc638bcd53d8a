"""`record --follow --hooks`: the CLI's own hooks keep the files before and after each call, however fast the model is."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

from tests.live.clis import Agent


def test_hooks_make_checkpoints_exact(agent: Agent, bnd: Any) -> None:
    names = ("CLAUDE_CONFIG_DIR", "KIMI_CODE_HOME")
    env = {name: agent.env[name] for name in names if name in agent.env}
    settings = agent.store / ("settings.json" if agent.name == "claude" else "config.toml")
    before = settings.read_bytes() if settings.exists() else None
    process = bnd.start("record", "--follow", "--hooks", "--cli", agent.name, env=env, cwd=agent.repo)
    assert process.stderr is not None
    assert b"following" in process.stderr.readline()
    assert settings.read_bytes() != before
    try:
        agent.say("remember GOLDENHAWK")
        agent.say("now remember SILVERWOLF", resume=agent.conversations()[0])
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert (settings.read_bytes() if settings.exists() else None) == before
    rows = bnd("sql", "select c.*, e.kind, e.tool from checkpoints c join events e on e.run = c.run and e.seq = c.seq").json()
    calls = bnd("sql", "select seq, kind, tool from events where kind in ('tool_call', 'tool_result') order by seq").json()
    hooked = {row["seq"]: row for row in rows if row["how"] == "hook"}
    missing = [call for call in calls if call["seq"] not in hooked]
    if str(agent.cli) == "kimi-2.1.0":  # it runs no hook after parallel calls: those results are kept by following
        assert {(call["kind"], call["tool"]) for call in missing} <= {("tool_result", "Read"), ("tool_result", "Bash")}
        assert {call["seq"] for call in missing} <= {row["seq"] for row in rows if row["how"] == "follow"}
    else:
        assert missing == []

    def notes(seq: int) -> str:
        done = subprocess.run(
            ["git", "show", f"{hooked[seq]['tree_id']}:notes.txt"], cwd=agent.repo, env=agent.env, capture_output=True, text=True
        )
        return done.stdout

    written = [call["seq"] for call in calls if call["tool"] == "Write" and call["kind"] == "tool_call"]
    assert [notes(seq) for seq in written] == ["", "phase one\n"]
    results = bnd("sql", "select seq, result_seq from tool_calls where tool = 'Write' order by seq").json()
    assert [notes(row["result_seq"]) for row in results] == ["phase one\n", "phase two\n"]
    assert all(hooked[row["seq"]]["aligned"] and hooked[row["result_seq"]]["aligned"] for row in results)
    assert not list((bnd.home / ".bnd/hooks").glob("*"))


def test_hooks_of_a_killed_follower_are_swept(agent: Agent, bnd: Any) -> None:
    names = ("CLAUDE_CONFIG_DIR", "KIMI_CODE_HOME")
    env = {name: agent.env[name] for name in names if name in agent.env}
    settings = agent.store / ("settings.json" if agent.name == "claude" else "config.toml")
    before = settings.read_bytes() if settings.exists() else None
    process = bnd.start("record", "--follow", "--hooks", "--cli", agent.name, env=env, cwd=agent.repo)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert settings.read_bytes() != before
    agent.say("plain GOLDENHAWK")  # the hooks that are left do no harm
    process = bnd.start("record", "--follow", "--hooks", "--cli", agent.name, env=env, cwd=agent.repo)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    after = settings.read_bytes() if settings.exists() else None
    assert (after or b"").strip() == (before or b"").strip()
