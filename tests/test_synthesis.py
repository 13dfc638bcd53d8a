"""Handoffs: what a fresh conversation is told of the kept steps, and that it fits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beyond.errors import Refused
from beyond.event import KINDS
from beyond.journal import Journal
from beyond.surgery.base import ForkPlan, Step
from beyond.surgery.synthesis import BUDGET, LEAST, handoff, launch
from tests.conftest import CLAUDE_FOLDERS, KIMI_FOLDERS, folder_id
from tests.test_surgery_kimi import Parent

OLD, NEW = "/w/app", "/home/u/.bnd/worktrees/app-1"
CONVERSATION = "session_11111111-2222-4333-8444-555555555555"


def plan_of(steps: Sequence[Step], **more: Any) -> ForkPlan:
    plan = ForkPlan(
        cli="kimi", source_version=None, target_version=None, conversation=CONVERSATION, new_conversation="session_x",
        old_root=OLD, new_root=NEW, store=Path("/home/u/.kimi-code"), old_paths=(), run="0123456789ab", seq=len(steps),
        cut_ts=None, now_ms=0, title="t", steps=lambda: iter(steps), lines=lambda: iter(()),
    )  # fmt: skip
    return replace(plan, **more)


class Told:
    """Builds steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.turn = 0

    def add(self, kind: str, content: str | None, **more: Any) -> Told:
        self.turn += kind == "user_msg"
        self.steps.append(Step(len(self.steps) + 1, kind, content, turn=self.turn, **more))
        return self

    def call(self, tool: str, tool_id: str, at: str | None = None, **given: Any) -> Told:
        return self.add("tool_call", json.dumps(given), tool=tool, tool_id=tool_id, path=at)

    def result(self, tool: str, tool_id: str, output: str, failed: bool = False) -> Told:
        return self.add("tool_result", output, tool=tool, tool_id=tool_id, is_error=failed)


def story() -> Told:
    told = Told().add("user_msg", "Fix the parser in /w/app/src/parse.py").add("thinking", "hidden")
    told.add("assistant_msg", "The loop is off by one; I keep the API.")
    told.call("Edit", "c1", "/w/app/src/parse.py", path="/w/app/src/parse.py", old="a", new="b")
    told.result("Edit", "c1", "edited").call("Bash", "c2", command="pytest -q").result("Bash", "c2", "2 failed\nlong", True)
    return told.add("usage", None)


def test_what_it_tells() -> None:
    text = handoff(plan_of(story().add("assistant_msg", "Two tests fail still.").steps))
    assert text.startswith("[Handoff")
    for said in (
        f"1. Fix the parser in {NEW}/src/parse.py",
        "- Said: The loop is off by one; I keep the API.",
        f"- Edit: {NEW}/src/parse.py -> done",
        "- Bash: pytest -q -> FAILED: 2 failed long",
        f"- {NEW}/src/parse.py",
        "- Said: Two tests fail still.",
        "- Nothing: the last request was answered.",
        "up to its step 9",
    ):
        assert said in text, said
    assert OLD + "/" not in text
    assert "hidden" not in text
    assert len(text) < BUDGET


def test_what_is_left_open() -> None:
    told = story()
    assert "was being worked on, and has had no final answer yet: Fix the parser" in handoff(plan_of(told.steps))
    told.call("Bash", "c3", command="rm -r build")
    text = handoff(plan_of(told.steps, open_calls=(told.steps[-1],)))
    assert "it is not known what it did: Bash: rm -r build" in text
    told.result("Bash", "c3", "").add("assistant_msg", "Done.").add("user_msg", "Now the docs")
    assert "The last request has had no answer yet: Now the docs" in handoff(plan_of(told.steps))


def test_the_old_conversation_and_reminders_are_not_told() -> None:
    told = Told().add(
        "user_msg", f"see /home/u/.kimi-code/sessions/wd_x/{CONVERSATION}/agents/main/wire.jsonl, and {CONVERSATION}"
    )
    told.add("user_msg", "do it <system-reminder>\nsecret of the CLI\n</system-reminder> now\x1b[31m")
    text = handoff(plan_of(told.steps))
    assert CONVERSATION not in text
    assert "wire.jsonl" not in text
    assert "see [a file of the earlier session] and [" in text
    assert "secret" not in text
    assert "\x1b" not in text


def test_paths_of_others_stay() -> None:
    told = Told().add("user_msg", "/w/app2 /w/app.old /srv/w/app -I/w/app /w/app")
    assert f"1. /w/app2 /w/app.old /srv/w/app -I{NEW} {NEW}" in handoff(plan_of(told.steps))


def long_story(turns: int) -> Told:
    told = Told()
    for turn in range(turns):
        told.add("user_msg", f"PROMPT{turn} " + "please " * 60)
        for call in range(4):
            name = f"c{turn}-{call}"
            told.call("Write", name, f"/w/app/f{turn}-{call}.py", path=f"f{turn}").result("Write", name, "ok")
        told.add("assistant_msg", f"ANSWER{turn} " + "because " * 100)
    return told


@pytest.mark.parametrize("budget", [LEAST, 5_000, BUDGET, 100_000])
def test_it_fits_and_the_newest_is_fullest(budget: int) -> None:
    told = long_story(80)
    text = handoff(plan_of(told.steps), budget)
    assert len(text) <= budget
    assert len(text) > budget * 0.6
    for word in ("PROMPT79 ", "ANSWER79 "):
        assert word in text
    assert text.rstrip().endswith("wait for the next instruction.")
    if budget >= BUDGET:
        assert "79-3.py" in text
        assert "PROMPT79 " + "please " * 59 in text
        assert "earlier left out" in text or budget > BUDGET


def test_all_prompts_are_there_where_they_can_be() -> None:
    text = handoff(plan_of(long_story(30).steps))
    assert [n for n in range(30) if f"PROMPT{n} " not in text] == []
    assert "please… (shortened)" in text or "… (shortened)" in text


def test_a_summary_is_told() -> None:
    told = Told().add("meta", "All was well until noon.", mark="compaction").add("user_msg", "go on")
    assert "All was well until noon." in handoff(plan_of(told.steps))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda kind, content, tool, path, error: Step(1, kind, content, tool, "c1", error, None, None, path, None, 1),
            st.sampled_from(sorted(KINDS)),
            st.none() | st.text(max_size=3000) | st.just("{\"command\": \"x\"}") | st.text("\ud800 a\0\n", max_size=20),
            st.none() | st.sampled_from(["Bash", "Write", "Agent"]),
            st.none() | st.text(max_size=50),
            st.none() | st.booleans(),
        ),
        max_size=40,
    ),
    st.integers(0, 30_000),
)  # fmt: skip
def test_any_steps_make_a_text_that_can_be_an_argument(steps: list[Step], budget: int) -> None:
    plan = plan_of(steps)
    text = handoff(plan, budget)
    assert text == handoff(plan, budget)
    assert len(text) <= max(budget, LEAST)
    assert "\0" not in text
    text.encode()
    assert not text.startswith(("-", "/", "!"))


@pytest.mark.parametrize("folder", [*KIMI_FOLDERS, *CLAUDE_FOLDERS], ids=folder_id)
def test_of_every_fixture_nothing_later(folder: Path, tmp_path: Path) -> None:
    cli = folder.relative_to(Path(__file__).parent / "fixtures").parts[0]
    with Journal.open(tmp_path / "j.db") as journal:
        parent = Parent.of(journal, folder, cli)
        for seq in parent.events:
            plan = parent.plan(seq, store=tmp_path)
            said = " ".join(step.content or "" for step in plan.steps())
            text = handoff(plan)
            for word in ("GOLDENHAWK", "SILVERWOLF", "BRONZEFOX"):
                assert word not in text or word in said
            assert ("GOLDENHAWK" in text) == ("GOLDENHAWK" in said)


def test_launches() -> None:
    plan = plan_of(story().steps)
    text = handoff(plan)
    assert launch(plan, "claude").argv == ("claude", text)
    assert launch(plan, "claude").env["CLAUDE_CODE_DISABLE_AUTO_MEMORY"] == "1"
    assert launch(plan, "claude").env["CLAUDE_CONFIG_DIR"] == "/home/u/.kimi-code"
    assert launch(plan, "kimi").env == {"KIMI_CODE_HOME": "/home/u/.kimi-code"}
    assert launch(replace(plan, store=Path.home() / ".kimi-code"), "kimi").env == {}
    assert launch(plan, "kimi").argv == ("kimi", "-p", text)
    assert launch(plan, "kimi").cwd == NEW
    assert {"CLAUDECODE", "KIMI_SESSION_ID"} <= set(launch(plan, "kimi").unset)
    assert launch(plan, "claude", "given").argv == ("claude", "given")
    with pytest.raises(Refused, match="nobody"):
        launch(plan, "nobody")


def test_an_argument_is_never_too_long() -> None:
    told = Told().add("user_msg", "é\U0001f600" * 200_000)
    plan = plan_of(told.steps)
    for text in (None, handoff(plan, 120_000)):
        argv = launch(plan, "claude", text).argv
        done = subprocess.run([sys.executable, "-c", "import sys; print(len(sys.argv[1]))", argv[1]], capture_output=True)
        assert int(done.stdout) > 1000
