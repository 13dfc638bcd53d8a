"""Forks of a real conversation of each installed Kimi Code, resumed: what the first request holds, and what it doesn't.

The conversation is made once for each version; each cut is a fork of its own, resumed in a directory of its own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.journal import Journal
from beyond.model import ModelRequest, Reply, ScriptedModel, Text, Thinking, Usage, delegate, run, write
from beyond.model.blocks import Block
from beyond.record import record
from beyond.surgery import kimi
from beyond.surgery.base import INTERRUPTED
from tests.live.clis import Agent, Installed, installed
from tests.test_surgery_kimi import Parent, everything, put

#: Enough for the CLI to compact the conversation before it goes on.
FULL = Usage(240_000, 20)
ASK = "What do you remember?"


def script(request: ModelRequest) -> Reply:
    """The conversation: each word of six capitals tells where a request has it from."""
    prompt, step = request.prompt, request.step
    usage = Usage(1000, 20)
    blocks: list[Block] = [Text("Done.")]
    if "about to run out of context" in prompt:  # a compaction; the prompt that waits for it stands before the request
        later = "SILVERWOLF" if b"SILVERWOLF" in request.body else "PEWTERCROW"
        blocks = [Text(f"SUMMARY {later} of the work so far. " * 20)]
    elif "SUMMARY" in prompt and ASK not in prompt:  # what follows a compaction
        blocks = [Text(f"Remembered {'SILVERWOLF' if b'SILVERWOLF' in request.body else 'ZINCMOTH'}.")]
    elif ASK in prompt:
        blocks = [Text("A few words.")]
    elif "SUBTASK" in prompt:
        blocks = run(request, "echo working") if step == 0 else [Text(f"Report: {prompt}. " * 20)]
    elif "first" in prompt:
        blocks = [Text("Remembered GOLDENHAWK.")]
        if step == 0:
            blocks = [Thinking("I keep GOLDENHAWK."), Text("I write."), *write(request, "notes.txt", "GOLDENHAWK\n")]
        if step == 1:  # the words are only in the outputs
            blocks = [*run(request, "printf 'BRONZE''FOX\\n'"), *run(request, "sleep 0.5; printf 'COPPER''OWL\\n'")]
    elif "second" in prompt:
        blocks = delegate(request, "SUBTASK IRONBEAR") if step == 0 else [Text("Delegated.")]
    elif "plain" in prompt:
        blocks = [Text(f"Remembered {prompt.split()[-1]}.")]
        usage = FULL if "TINWHALE" in prompt else usage
    elif "last" in prompt:
        blocks, usage = [Text("Remembered SILVERWOLF.")], FULL
        if step == 0:
            blocks, usage = write(request, "SILVERWOLF.txt", "SILVERWOLF\n"), Usage(1000, 20)
        if step == 1:
            blocks, usage = [*run(request, "cat SILVERWOLF.txt"), *delegate(request, "SUBTASK SILVERWOLF")], Usage(1000, 20)
    return Reply(blocks, usage=usage)


def undo(wire: Path) -> None:
    """Takes the last turn back, with the records that the CLI's own undo appends."""
    lines = wire.read_bytes().split(b"\n")[:-1]
    parsed = [json.loads(line) for line in lines]
    now = parsed[-1]["time"] + 1
    modern = parsed[0]["protocol_version"] == "1.5"
    owner = {"agentId": "main"} if modern else {}
    added: list[dict[str, Any]] = [{"type": "context.undo", **owner, "count": 1, "time": now}]
    if modern:
        prompts = [
            n
            for n, one in enumerate(parsed, 1)
            if one["type"] == "context.append_message" and one["message"].get("origin", {}).get("kind") == "user"
        ]
        edge = len(lines) + 1
        base = {"branch": "main", "line": prompts[-1] - 1}
        switched = {"type": "agent.switched", **owner, "branch": "b1", "reason": "undo", "base": base, "turns": 1}
        added.insert(0, {**switched, "legacyUndoLine": edge + 1, "time": now})
        added.append({"type": "context.undone", **owner, "turns": 1, "fromTurnId": 2, "time": now})
    with wire.open("ab") as file:
        for one in added:
            file.write(json.dumps(one, separators=(",", ":")).encode() + b"\n")


def transcripts(agent: Agent) -> list[Any]:
    """The wires in the agent's store."""
    return list(agents.store("kimi").conversations(agent.store))


@dataclass
class Lived:
    """A conversation that a version made, recorded."""

    agent: Agent
    parent: Parent
    model: ScriptedModel

    def seq(self, kind: str, text: str, nth: int = 0, mark: str | None = None) -> int:
        """The event of this kind whose content holds `text`."""
        last = max(self.parent.events)
        plan = self.parent.plan(*self.parent.events, store=self.agent.store)
        assert plan.seq == last
        found = [s.seq for s in plan.steps() if s.kind == kind and text in (s.content or "") and (mark is None or s.mark == mark)]
        return found[nth]

    def resumed(
        self, seq: int, parent: Parent | None = None, *, prompt: str = ASK, **more: Any
    ) -> tuple[ModelRequest, Path, Any]:
        """Forks and resumes; the first request, the fork's folder, what was written."""
        parent = parent or self.parent
        root = self.agent.root / "forks" / uuid.uuid4().hex[:8]
        root.mkdir(parents=True)
        plan = parent.plan(
            seq,
            store=self.agent.store,
            root=str(root),
            new_conversation=f"session_{uuid.uuid4()}",
            version=self.agent.cli.version,
            **more,
        )
        written = kimi.write(plan)
        folder = put(written, self.agent.store)
        before = len(self.model.requests)
        self.agent.resume(kimi.launch(plan, prompt))
        request = next(r for r in self.model.requests[before:] if r.data.get("messages"))
        return request, folder, written


@pytest.fixture(scope="module", params=installed("kimi") or [None], ids=str)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """A conversation with everything in it: parallel calls, a subagent, an undone turn, two compactions."""
    cli: Installed | None = request.param
    if cli is None:
        pytest.skip("no kimi in the cache of `make live` (BND_LIVE_CACHE): run `make live-clis`")
    root = tmp_path_factory.mktemp("kimi")
    with ScriptedModel(script) as model, Journal.open(root / "j.db") as journal:
        agent = Agent(cli, root, model)
        agent.say("the first word is GOLDENHAWK")
        (conversation,) = {str(one.conversation) for one in transcripts(agent)}
        agent.say("the second: have it done", resume=conversation)
        agent.say("plain LEADSWAN", resume=conversation)
        (wire,) = agent.store.glob(f"sessions/*/{conversation}/agents/main/wire.jsonl")
        undo(wire)
        for prompt in ("plain TINWHALE", "plain ZINCMOTH", "the last word is SILVERWOLF", "plain SILVERWOLF"):
            agent.say(prompt, resume=conversation)
        list(record(journal, transcripts(agent)))
        yield Lived(agent, Parent.known(journal, agent.store, conversation), model)
        assert not model.errors
        assert [(one.target, one.problem) for one in model.invalid] == []


#: Everything but the word of the future, in the order of the conversation.
WORDS = "GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR LEADSWAN TINWHALE PEWTERCROW ZINCMOTH SILVERWOLF".split()


def holds(request: ModelRequest) -> set[str]:
    """The words in a request, wherever they stand."""
    text = request.body.decode()
    return {word for word in WORDS if word in text}


def check(lived: Lived, seq: int, words: str, **more: Any) -> tuple[ModelRequest, Path, Any]:
    """Resumes a fork at `seq`: its first request holds just these words, and its files nothing of the future."""
    request, folder, written = lived.resumed(seq, **more)
    assert request.problem is None
    assert holds(request) == set(words.split())
    assert request.prompts[-1].endswith(ASK)
    said = everything(folder)
    assert b"SILVERWOLF" not in said
    assert str(lived.agent.repo).encode() not in request.body
    assert request.cwd == written.launch.cwd
    return request, folder, written


def test_after_a_prompt(lived: Lived) -> None:
    request, *_ = check(lived, lived.seq("user_msg", "GOLDENHAWK"), "GOLDENHAWK")
    assert "\n".join(request.prompts).split() == f"the first word is GOLDENHAWK {ASK}".split()


def test_after_an_answer(lived: Lived) -> None:
    check(lived, lived.seq("assistant_msg", "Remembered GOLDENHAWK"), "GOLDENHAWK BRONZEFOX COPPEROWL")


def test_after_a_thought(lived: Lived) -> None:
    check(lived, lived.seq("thinking", "GOLDENHAWK"), "GOLDENHAWK")


def test_after_a_call_without_its_result(lived: Lived) -> None:
    request, *_ = check(lived, lived.seq("tool_call", "notes.txt"), "GOLDENHAWK")
    assert [result.text for result in request.results if INTERRUPTED in result.text]


def test_after_a_result(lived: Lived) -> None:
    call = lived.seq("tool_call", "notes.txt")
    (result,) = lived.parent.journal.con.execute(
        "select result_seq from event where run = ? and seq = ?", (lived.parent.run.id, call)
    ).fetchone()
    request, *_ = check(lived, result, "GOLDENHAWK")
    assert not [one for one in request.results if INTERRUPTED in one.text]


def test_between_parallel_results(lived: Lived) -> None:
    request, *_ = check(lived, lived.seq("tool_result", "BRONZEFOX"), "GOLDENHAWK BRONZEFOX")
    assert [INTERRUPTED in result.text for result in request.results] == [False, False]  # the second call is no cause of it
    request, *_ = check(lived, lived.seq("tool_result", "COPPEROWL"), "GOLDENHAWK COPPEROWL")
    assert [INTERRUPTED in result.text for result in request.results] == [False, True, False]


def test_after_a_subagent(lived: Lived) -> None:
    _, folder, _ = check(lived, lived.seq("tool_result", "IRONBEAR"), "GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR")
    assert b"IRONBEAR" in (folder / "agents/agent-0/wire.jsonl").read_bytes()


def test_in_the_call_of_a_subagent(lived: Lived) -> None:
    _, folder, _ = check(lived, lived.seq("tool_call", "IRONBEAR"), "GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR")
    assert b"Report" not in everything(folder)


def test_on_an_undone_branch(lived: Lived) -> None:
    plan = lived.parent.plan(1, store=lived.agent.store)
    undone = [seq for seq, event in lived.parent.events.items() if not event[5] and event[3] == "assistant_msg"]
    assert plan.seq == 1
    check(lived, undone[-1], "GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR LEADSWAN")


def test_before_at_and_after_a_compaction(lived: Lived) -> None:
    before = lived.seq("assistant_msg", "Remembered TINWHALE")
    request, folder, _ = lived.resumed(before)  # it is full: the CLI compacts the fork before it answers
    assert holds(request) == set("GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR TINWHALE".split())
    assert b"SILVERWOLF" not in everything(folder)
    at = lived.seq("meta", "PEWTERCROW", mark="compaction")
    request, *_ = check(lived, at, "GOLDENHAWK TINWHALE ZINCMOTH PEWTERCROW")
    assert lived.parent.conversation.encode() not in request.body
    check(lived, lived.seq("assistant_msg", "Remembered ZINCMOTH"), "GOLDENHAWK TINWHALE ZINCMOTH PEWTERCROW")


def test_a_fork_of_a_fork(lived: Lived, tmp_path: Path) -> None:
    _, folder, written = lived.resumed(lived.seq("tool_result", "IRONBEAR"), prompt="the last word is SILVERWOLF")
    with Journal.open(tmp_path / "again.db") as journal:
        list(record(journal, [one for one in transcripts(lived.agent) if one.conversation == written.conversation]))
        again = Parent.known(journal, lived.agent.store, written.conversation)
        answers = [seq for seq, event in again.events.items() if event[3] == "tool_result"]
        request, inner, _ = lived.resumed(answers[3], again)
    assert holds(request) == set("GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR".split())
    assert b"SILVERWOLF" not in everything(inner)
    assert folder != inner


def test_a_newer_version_resumes_the_fork_of_an_older_transcript(lived: Lived) -> None:
    newest = installed("kimi")[-1]
    if newest == lived.agent.cli:
        pytest.skip("this is the newest version")
    own, lived.agent.cli = lived.agent.cli, newest
    try:
        check(lived, lived.seq("tool_result", "COPPEROWL"), "GOLDENHAWK COPPEROWL")
        check(lived, lived.seq("assistant_msg", "Remembered ZINCMOTH"), "GOLDENHAWK TINWHALE ZINCMOTH PEWTERCROW")
    finally:
        lived.agent.cli = own
