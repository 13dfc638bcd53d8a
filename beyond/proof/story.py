"""What is played to the agent: a past to be kept, a future to be forgotten, each told by words of its own."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from beyond.model import ModelRequest, Reply, Text, Thinking, Usage, delegate, read, run, write
from beyond.model.script import Answer, reply_of

_COMPACT = re.compile(r"too brief|summar", re.IGNORECASE)
#: What a CLI says behind a compaction, where the prompt that waited stands before it.
_COMPACTED = re.compile(r"conversation so far has been compacted")
#: Long enough for a CLI that sends a short report back.
_REPORT = "The directory was looked at, one command was run and it ended well. " * 6
#: Input tokens after which a CLI without a command compacts.
_FULL = 240_000
PROBE = "PROBE: which words do you know?"

#: Every canary, with where it is planted. `since`: the canary whose first event brings it into the world, where no
#: event holds it itself.
CANARIES = {
    "prompt1": "a prompt",
    "thought1": "a thought",
    "text1": "a text before a call",
    "content1": "the content of a written file",
    "input1": "a command of a parallel call",
    "output1": "the output of a parallel call",
    "input2": "the command of the other parallel call",
    "output2": "the output of the other parallel call",
    "answer1": "an answer",
    "prompt2": "the prompt of the next turn",
    "file2": "the name of a new file",
    "content2": "the content of a new file",
    "commit2": "a commit message",
    "memory2": "a note in the memory that work trees share",
    "task2": "a subagent's task",
    "inside2": "the output of a subagent's command",
    "report2": "a subagent's report",
    "answer2": "the next turn's answer",
    "prompt3": "a third prompt",
    "content3": "new content of the first file",
    "output3": "an output that is too big for a transcript",
    "answer3": "the third answer",
    "summary": "a compaction's summary",
    "prompt4": "a prompt after the compaction",
    "output4": "an output after the compaction",
    "answer4": "the last answer",
}
SINCE = {"memory2": "remember2", "commit2": "commit2"}


@dataclass
class Story:
    """The script of a proof. `words` are the canaries of this one, by name; nobody else ever said them."""

    #: The prompt that compacts; without one the CLI does it by itself when a conversation is full.
    command: str | None = None
    memory: str | None = None
    #: Seconds before an answer.
    pause: float = 0.8
    #: True when all was played and forks are tried.
    over: bool = False
    words: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mark = secrets.token_hex(3)
        self.words = {name: f"{name}{mark}" for name in (*CANARIES, "remember2")}

    @property
    def prompts(self) -> list[str]:
        """The turns before the compaction."""
        w = self.words
        return [f"First task {w['prompt1']}", f"Second task {w['prompt2']}", f"Third task {w['prompt3']}"]

    @property
    def last(self) -> str:
        """The turn after it."""
        return f"Fourth task {self.words['prompt4']}"

    def _echo(self, word: str) -> str:
        """A command that prints a canary without holding it."""
        return f"printf '%s%s\\n' {word[:4]} {word[4:]}"

    def __call__(self, request: ModelRequest) -> Reply:
        answer = reply_of(self._answer(request))
        full = self.words["prompt3"] in request.prompt and request.step >= 2 and not self.command
        usage = Usage(_FULL, 20) if full else Usage(1000, 20)
        # A real model takes its time: a checkpoint is taken while it thinks.
        return Reply(answer.blocks, usage=usage, delay=self.pause if request.tools else 0)

    def _answer(self, request: ModelRequest) -> Answer:
        w, prompt, step = self.words, request.prompt, request.step
        said = "\n".join(request.prompts) if _COMPACTED.search(prompt) else prompt
        asked = _COMPACT.search(prompt) and not _COMPACTED.search(prompt)
        if self.over and not asked:
            return "Noted."
        turn = next((number for number in range(4, 0, -1) if w[f"prompt{number}"] in said), None)
        if turn is None and _COMPACT.search(prompt):
            # A fork that is nearly full is compacted anew when it is resumed: that summary is the fork's own.
            done = "what was done" if self.over else w["summary"]
            return f"<summary>SUMMARY of the work so far: {done}.</summary> {_REPORT}"
        if not request.tools:
            return "A title"
        if w["task2"] in prompt and "Second task" not in prompt:
            return run(request, self._echo(w["inside2"])) if step == 0 else f"{w['report2']} {_REPORT}"
        if turn is None:
            return "Done."
        return (self._first, self._second, self._third, self._fourth)[turn - 1](request, step)

    def _first(self, request: ModelRequest, step: int) -> Answer:
        w = self.words
        if step == 0:
            return [
                Thinking(f"I think {w['thought1']}."),
                Text(f"So {w['text1']}."),
                *write(request, "notes.txt", w["content1"] + "\n"),
            ]
        if step == 1:
            first = f"true {w['input1']} {request.cwd}; {self._echo(w['output1'])}"
            return [*run(request, first), *run(request, f"true {w['input2']}; sleep 1; {self._echo(w['output2'])}")]
        return f"Done with {w['answer1']}."

    def _second(self, request: ModelRequest, step: int) -> Answer:
        w = self.words
        if step == 0:
            return write(request, f"{w['file2']}.txt", w["content2"] + "\n")
        if step == 1:
            who = "-c user.name=Nobody -c user.email=nobody@example.com"
            return run(request, f"git add -A && git {who} commit -qm {w['commit2']} && git branch later-{w['commit2']}")
        if step == 2:
            if self.memory is None:
                return run(request, f"true {w['remember2']}")
            keep = f"true {w['remember2']}; mkdir -p {self.memory}; {self._echo(w['memory2'])} >> {self.memory}/MEMORY.md"
            return run(request, keep)
        if step == 3:
            return delegate(request, f"Look around {w['task2']}")
        return f"Done with {w['answer2']}."

    def _third(self, request: ModelRequest, step: int) -> Answer:
        if step == 0:
            return read(request, "notes.txt")
        if step == 1:
            big = self.words["output3"]  # more than a CLI keeps in its transcript: it spills
            return [
                *write(request, "notes.txt", self.words["content3"] + "\n"),
                *run(request, f"yes {big[:4]}''{big[4:]} | head -c 200000"),
            ]
        return f"Done with {self.words['answer3']}."

    def _fourth(self, request: ModelRequest, step: int) -> Answer:
        if step == 0:
            return run(request, self._echo(self.words["output4"]))
        return f"Done with {self.words['answer4']}."
