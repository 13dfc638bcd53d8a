"""Forks of real conversations of each installed Claude Code, resumed: what the first request holds, and what it doesn't.

The conversation is made once for each version; each cut is a fork of its own, resumed in a directory of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from beyond import agents
from beyond.journal import Journal
from beyond.model import ModelRequest, Reply, ScriptedModel, Text, Thinking, Usage, delegate, read, run, write
from beyond.model.blocks import Block
from beyond.model.check import check as refusal
from beyond.record import record
from beyond.surgery import claude
from beyond.surgery.base import INTERRUPTED, Written
from tests.conftest import FIXTURES
from tests.live.clis import Agent, Installed, installed
from tests.test_surgery_claude import Parent, everything, put

ASK = "What do you remember?"
#: Everything that the conversation teaches, in its order; the last one is the future's.
WORDS = "GOLDENHAWK BRONZEFOX COPPEROWL IRONBEAR LEADSWAN TINWHALE PEWTERCROW ZINCMOTH SILVERWOLF".split()


def script(request: ModelRequest) -> Reply:
    """The conversation: each word tells where a request has it from."""
    prompt, step = request.prompt, request.step
    blocks: list[Block] = [Text("Done.")]
    if "detailed summary" in prompt:
        later = "SILVERWOLF" if b"SILVERWOLF" in request.body else "PEWTERCROW"
        blocks = [Text(f"<summary>So far: {later}.</summary>")]
    elif ASK in prompt:
        blocks = [Text("A few words.")]
    elif "SUBTASK" in prompt:
        word = prompt.split()[-1]
        blocks = run(request, f"echo {word}") if step == 0 else [Text(f"Report: {word}.")]
    elif "the first" in prompt:
        blocks = [Text("Remembered GOLDENHAWK.")]
        if step == 0:
            blocks = [Thinking("I keep GOLDENHAWK."), Text("I write."), *write(request, "notes.txt", "GOLDENHAWK\n")]
        if step == 1:  # these words are only in the outputs; the second call ends first
            blocks = [*run(request, "sleep 0.4; printf 'BRONZE''FOX\\n'"), *run(request, "printf 'COPPER''OWL\\n'")]
    elif "the second" in prompt:
        blocks = delegate(request, "SUBTASK IRONBEAR") if step == 0 else [Text("Delegated.")]
    elif "outside" in prompt:
        path = prompt.split()[-1]
        blocks = write(request, path, "LEADSWAN\n") if step == 0 else [Text("Written.")]
        if step == 1:
            blocks = read(request, path)
    elif "plain" in prompt:
        blocks = [Text(f"Remembered {prompt.split()[-1]}.")]
    elif "the last" in prompt:
        blocks = [Text("Remembered SILVERWOLF.")]
        if step == 0:
            blocks = [Thinking("Now SILVERWOLF."), *write(request, "SILVERWOLF.txt", "SILVERWOLF\n")]
        if step == 1:
            blocks = [*write(request, "notes.txt", "SILVERWOLF\n"), *run(request, "cat SILVERWOLF.txt; seq 30000")]
        if step == 2:
            blocks = delegate(request, "SUBTASK SILVERWOLF")
    return Reply(blocks, usage=Usage(1000, 20))


@dataclass
class Lived:
    """A conversation that a version made, recorded."""

    agent: Agent
    parent: Parent
    model: ScriptedModel

    def seq(self, kind: str, text: str, nth: int = 0, parent: Parent | None = None) -> int:
        """The event of this kind whose content holds `text`."""
        parent = parent or self.parent
        steps = parent.plan(*parent.events, store=self.agent.store).steps()
        return [s.seq for s in steps if s.kind == kind and text in (s.content or "")][nth]

    def resumed(self, seq: int, parent: Parent | None = None, *, prompt: str = ASK, **more: Any) -> Resumed:
        """Forks in a new directory and resumes there."""
        parent = parent or self.parent
        root = self.agent.root / "forks" / uuid.uuid4().hex[:8]
        root.mkdir(parents=True)
        version = self.agent.cli.version
        plan = parent.plan(seq, store=self.agent.store, root=str(root), new=str(uuid.uuid4()), version=version, **more)
        written = claude.write(plan)
        place = put(written, self.agent.store)
        said = everything(place)
        before = len(self.model.requests)
        self.agent.resume(claude.launch(plan, prompt))
        request = next(r for r in self.model.requests[before:] if r.data.get("messages") and ASK in r.prompt)
        return Resumed(request, place, said, written, root)


@dataclass
class Resumed:
    """A fork that was resumed: the first request, the transcript, all its files' bytes before that."""

    request: ModelRequest
    place: Path
    said: bytes
    written: Written
    root: Path

    @property
    def words(self) -> set[str]:
        text = self.request.body.decode()
        return {word for word in WORDS if word in text}

    @property
    def texts(self) -> list[str]:
        return [result.text for result in self.request.results]


def problem_of(request: ModelRequest) -> str | None:
    """Why the API would refuse a request. 2.1.332 puts system messages without content between the others, which set the
    effort from there on, in its own conversations too: they count for nothing."""
    if not request.data.get("messages"):
        return None
    messages = [one for one in request.data["messages"] if (one["role"], one["content"]) != ("system", [])]
    problem = refusal(replace(request, json={**request.data, "messages": messages}))
    return None if problem is None else problem.message


@pytest.fixture(scope="module", params=installed("claude") or [None], ids=str)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """A conversation with everything in it: parallel calls, a subagent, a file outside, two compactions."""
    cli: Installed | None = request.param
    if cli is None:
        pytest.skip("no claude in the cache of `make live` (BND_LIVE_CACHE): run `make live-clis`")
    root = tmp_path_factory.mktemp("claude")
    patch = pytest.MonkeyPatch()
    with ScriptedModel(script, checked=False) as model, Journal.open(root / "j.db") as journal:
        agent = Agent(cli, root, model)
        patch.setenv("CLAUDE_CONFIG_DIR", str(agent.store))
        agent.say("the first word is GOLDENHAWK")
        (conversation,) = agent.conversations()
        for prompt in (
            "the second: have it done",
            f"write outside into {root / 'outside.txt'}",
            "plain TINWHALE",
            "/compact",
            "plain ZINCMOTH",
            "the last word is SILVERWOLF",
            "/compact",
            "plain SILVERWOLF",
        ):
            agent.say(prompt, resume=conversation)
        (root / "outside.txt").write_text("SILVERWOLF\n")
        list(record(journal, agent.transcripts()))
        yield Lived(agent, Parent.known(journal, agent.store, conversation), model)
        assert not model.errors
        assert [problem for one in model.requests if (problem := problem_of(one))] == []
    patch.undo()


def check(lived: Lived, seq: int, words: str, parent: Parent | None = None, **more: Any) -> Resumed:
    """Resumes a fork at `seq`: its first request holds just these words, and its files nothing of the future."""
    fork = lived.resumed(seq, parent, **more)
    assert problem_of(fork.request) is None
    assert fork.words == set(words.split())
    assert fork.request.prompts[-1].endswith(ASK)
    assert b"SILVERWOLF" not in fork.said
    assert str(lived.agent.repo).encode() not in fork.request.body
    assert fork.request.cwd == str(fork.root)
    return fork


PAST = "GOLDENHAWK BRONZEFOX COPPEROWL"


def test_after_a_prompt(lived: Lived) -> None:
    fork = check(lived, lived.seq("user_msg", "GOLDENHAWK"), "GOLDENHAWK")
    assert any("the first word is GOLDENHAWK" in text for text in fork.request.prompts)


def test_after_an_answer(lived: Lived) -> None:
    check(lived, lived.seq("assistant_msg", "Remembered GOLDENHAWK"), PAST)


def test_after_a_thought(lived: Lived) -> None:
    check(lived, lived.seq("thinking", "GOLDENHAWK"), "GOLDENHAWK")


def test_after_a_call_without_its_result(lived: Lived) -> None:
    fork = check(lived, lived.seq("tool_call", "notes.txt"), "GOLDENHAWK")
    assert [INTERRUPTED in text for text in fork.texts] == [True]


def test_after_a_result(lived: Lived) -> None:
    fork = check(lived, lived.parent.result_of(lived.seq("tool_call", "notes.txt")), "GOLDENHAWK")
    assert [INTERRUPTED in text for text in fork.texts] == [False]


def test_between_parallel_results(lived: Lived) -> None:
    fork = check(lived, lived.seq("tool_result", "COPPEROWL"), "GOLDENHAWK COPPEROWL")
    assert [INTERRUPTED in text for text in fork.texts] == [False, True, False]
    fork = check(lived, lived.seq("tool_result", "BRONZEFOX"), "GOLDENHAWK BRONZEFOX")
    assert [INTERRUPTED in text for text in fork.texts] == [False, False]


def test_after_parallel_calls(lived: Lived) -> None:
    """Several calls to close: both versions send a result for each."""
    fork = check(lived, lived.seq("tool_call", "COPPER"), "GOLDENHAWK")
    assert [INTERRUPTED in text for text in fork.texts] == [False, True, True]


def test_after_a_subagent(lived: Lived) -> None:
    fork = check(lived, lived.seq("tool_result", "IRONBEAR"), f"{PAST} IRONBEAR")
    (transcript,) = (fork.place.with_suffix("") / "subagents").glob("agent-*.jsonl")
    assert b"Report: IRONBEAR" in transcript.read_bytes()


def test_in_the_call_of_a_subagent(lived: Lived) -> None:
    fork = check(lived, lived.seq("tool_call", "IRONBEAR"), f"{PAST} IRONBEAR")
    assert b"Report" not in fork.said


def test_a_file_outside_of_the_project(lived: Lived) -> None:
    check(lived, lived.seq("assistant_msg", "Written."), f"{PAST} IRONBEAR LEADSWAN")


def test_before_at_and_after_a_compaction(lived: Lived) -> None:
    before = lived.seq("assistant_msg", "Remembered TINWHALE")
    check(lived, before, f"{PAST} IRONBEAR LEADSWAN TINWHALE")
    boundary = lived.seq("meta", "Conversation compacted")
    for at in (boundary, lived.seq("meta", "PEWTERCROW")):
        fork = check(lived, at, "TINWHALE PEWTERCROW")
        assert lived.parent.conversation.encode() not in fork.request.body
    # The CLI reads files again after a compaction, and what it read is in the transcript.
    check(lived, lived.seq("assistant_msg", "Remembered ZINCMOTH"), "GOLDENHAWK LEADSWAN TINWHALE PEWTERCROW ZINCMOTH")


def test_a_fork_of_a_fork(lived: Lived, tmp_path: Path) -> None:
    first = lived.resumed(lived.seq("tool_result", "IRONBEAR"))
    with Journal.open(tmp_path / "again.db") as journal:
        found = agents.store("claude").conversations(lived.agent.store)
        list(record(journal, [one for one in found if one.conversation == first.written.conversation]))
        again = Parent.known(journal, lived.agent.store, first.written.conversation)
        fork = check(lived, lived.seq("tool_result", "BRONZEFOX", parent=again), "GOLDENHAWK BRONZEFOX", again)
    assert str(first.root).encode() not in fork.request.body


@pytest.fixture
def typed(lived: Lived, tmp_path: Path) -> Iterator[Parent]:
    """An interactive conversation of the version, from the fixtures: with a queued prompt, and rewound."""
    folder = FIXTURES / "claude" / lived.agent.cli.version / "tui"
    if not folder.exists():
        pytest.skip(f"no interactive conversation of {lived.agent.cli.version} in the fixtures")
    with Journal.open(tmp_path / "typed.db") as journal:
        yield Parent.of(journal, folder)


def test_a_queued_prompt(lived: Lived, typed: Parent) -> None:
    queued = lived.seq("user_msg", "QUEUED prompt", parent=typed)
    fork = lived.resumed(queued, typed)
    assert any("QUEUED prompt" in text for text in fork.request.texts)
    assert fork.request.body.count(b"QUEUED prompt") == 1
    fork = lived.resumed(queued - 1, typed)
    assert b"QUEUED prompt" not in fork.request.body


def test_on_a_rewound_branch_and_on_the_other(lived: Lived, typed: Parent) -> None:
    fork = lived.resumed(lived.seq("assistant_msg", "Remembered SILVERWOLF", parent=typed), typed)
    assert b"QUEUED prompt" in fork.request.body
    assert b"AFTERREWIND" not in fork.request.body + fork.said
    fork = lived.resumed(lived.seq("assistant_msg", "After rewind", parent=typed), typed)
    assert b"AFTERREWIND" in fork.request.body
    assert b"GOLDENHAWK" in fork.request.body
    for word in (b"SILVERWOLF", b"QUEUED prompt", b"please hang"):
        assert word not in fork.request.body + fork.said
    assert isinstance(fork.request.results, list)
