"""What every writer shares: the plan of a fork, the files that come out of it, and how the fork is started.

A *writer* is a module with the functions of `Writer`. It is given a frozen plan of what is kept (a step's causal past)
and returns files as bytes; somebody else puts them in place. So a writer can be tested, and proven, without a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

#: What stands for the result of a call that had none yet at the cut.
INTERRUPTED = "[This call had no result at the point where the conversation was forked.]"


class Line(NamedTuple):
    """A raw line of the source, without its newline. `generation` and `number` (1 …) are its identity.

    `kept` are the parts whose events are kept, `dropped` those whose events are not. A line without events has
    neither: the writer decides by the format's own rules.
    """

    generation: int
    number: int
    raw: bytes
    kept: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """A kept event with its content, for writers that compose from events alone. `ts` is Unix milliseconds."""

    seq: int
    kind: str
    content: str | None
    tool: str | None = None
    tool_id: str | None = None
    is_error: bool | None = None
    ts: int | None = None
    mark: str | None = None
    path: str | None = None
    #: The line that it stands on: (generation, number, part); None where it has none.
    place: tuple[int, int, int] | None = None
    #: Number of the user's turn.
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class SubPlan:
    """A kept subagent with a transcript file of its own, cut by time. `tool_id` is the call that started it."""

    agent: str
    tool_id: str | None
    #: Path of its file when it was recorded; its last parts say where it belongs beside the conversation.
    path: str
    lines: Callable[[], Iterator[Line]]
    #: False where something of it came after the cut.
    whole: bool


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """Everything that a writer needs. Nothing in it came after the cut but the raw lines that carry `dropped` parts
    or no events, which are there so that the writer can follow a format's own references."""

    cli: str
    #: Version of the CLI that wrote the transcript last before the cut, and of the one that will resume it (None: unknown).
    source_version: str | None
    target_version: str | None
    #: The old conversation's id and the new one's.
    conversation: str
    new_conversation: str
    #: Project directory of the old conversation, and the directory in which the fork will run (a real path).
    old_root: str | None
    new_root: str
    #: The CLI's store on this machine, and the paths at which the old transcript was seen (they may be gone).
    store: Path
    old_paths: tuple[str, ...]
    run: str
    seq: int
    #: Times in Unix milliseconds: of the cut (None where no record has one), and of the fork.
    cut_ts: int | None
    now_ms: int
    #: How the CLI's list shall call the fork.
    title: str
    #: The kept events, in order. Called again for another pass; contents are read lazily.
    steps: Callable[[], Iterator[Step]]
    #: Every line of the transcript in the order (generation, number), up to the last that is worth looking at.
    lines: Callable[[], Iterator[Line]]
    #: Kept tool calls whose results are not kept.
    open_calls: tuple[Step, ...] = ()
    subagents: tuple[SubPlan, ...] = ()
    #: Bytes of a file that lay beside the old transcript, by its path below the conversation's own folder; None if gone.
    side_file: Callable[[str], bytes | None] = lambda _: None
    #: Rules of the writer that are switched off (names of its `RULES`): only the mutation test of the proof does that.
    without: frozenset[str] = frozenset()
    #: The line that `seq` stands on: (generation, number, part); None where that is not known.
    cut: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Files that appear at one moment, by one rename that never overwrites.

    `path` is the final place below the CLI's store. A single file has the one name ``""`` in `files`; else it is a
    folder with these files (paths below it). File modes are 0600, folders 0700.
    """

    path: str
    files: Mapping[str, Callable[[], Iterable[bytes]]]


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the CLI so that it resumes the fork. Run it in `cwd`; `env` is added, `unset` is taken away."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A composed conversation. Parts are put in place in order: only the last one makes it visible to the CLI."""

    conversation: str
    parts: tuple[Part, ...]
    #: Lines to append to shared files of the store (path below it, one line with its newline), after the parts.
    appends: tuple[tuple[str, bytes], ...]
    #: The main transcript, below the store.
    main: str
    launch: Launch
    #: What a person should know: a cut that moved, calls that were closed, files that were copied, linked or left.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """What makes a CLI work in a scratch home against a model on loopback: variables, and files below the home."""

    env: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


class Writer(Protocol):
    """What a module of `beyond.surgery` offers."""

    #: Raised with each change of what is written: a proof holds for one version of the writer.
    VERSION: ClassVar[int]
    #: The prompt by which a user compacts a conversation without a terminal, or None where there is none.
    COMPACT: ClassVar[str | None]
    #: The rules that can be switched off for a mutation test, with what each prevents.
    RULES: ClassVar[Mapping[str, str]]

    def refuse(self, plan: ForkPlan) -> str | None:
        """Why this plan can't be written natively (then the fork is composed from events), or None."""

    def write(self, plan: ForkPlan) -> Written:
        """Composes the conversation. Raises `beyond.errors.Refused` where the result would not be whole."""

    def launch(self, plan: ForkPlan, prompt: str | None = None) -> Launch:
        """How the fork is resumed interactively, or with `prompt` where one is given (not interactive)."""

    def scratch(self, home: Path, url: str) -> Scratch:
        """A set-up in the empty folder `home` with a made-up key, whose model is at `url` and nowhere else."""

    def ask(self, prompt: str, resume: str | None = None) -> tuple[str, ...]:
        """The command line of one prompt that asks no permission, in a new conversation or an old one."""

    def memory(self, store: Path, directory: str) -> str | None:
        """The folder of notes that work trees of `directory` share, where the CLI has one."""

    #: The settings file that holds hooks, below the store.
    HOOKS_FILE: ClassVar[str]

    def add_hooks(self, text: bytes | None, command: str) -> bytes:
        """The settings file with hooks that run `command` before and after each tool call. Raises ValueError."""

    def remove_hooks(self, text: bytes, mark: str) -> bytes:
        """The settings file without the hooks whose command holds `mark`. Raises ValueError."""

    def read_hook(self, given: dict[str, Any]) -> tuple[str, str, str] | None:
        """(before or after, id of the call, conversation) of what a hook was given, or None."""

    def listed(self, store: Path, conversation: str, directory: str) -> str | None:
        """Why the CLI would not offer a conversation for resuming in `directory`, or None."""
