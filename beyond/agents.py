"""THE TABLE: one row an agent CLI. Modules are named as text, so that nothing is loaded before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from beyond.errors import UsageError

if TYPE_CHECKING:
    from beyond.ingest.base import Event, Ingester
    from beyond.ingest.found import Found
    from beyond.surgery.base import Writer


class Store(Protocol):
    """What a module that knows an agent CLI's store offers."""

    def home(self) -> Path:
        """Where the store is on this machine."""

    def conversations(self, root: Path | None = None) -> Iterator[Found]:
        """Every transcript in it: main files first, each followed by its subagents'."""

    def belongs(self, found: Found, directory: str) -> bool:
        """Whether a conversation began in `directory` (a real path) or in one above it."""

    def describe(self, found: Found) -> Found:
        """Adds what files beside a transcript say about it."""

    def subagents(self, found: Found) -> list[Found]:
        """The subagents' transcripts that belong to a main one."""

    def folder_of(self, path: Path) -> Path:
        """The folder with the files that lie beside a main transcript."""

    def recognise(self, path: Path, head: bytes) -> Found | None:
        """The transcript that a file is, if it is one of this CLI's."""


@dataclass(frozen=True, slots=True)
class AgentCli:
    """What beyond knows about an agent CLI."""

    name: str
    title: str
    #: The program that a user starts.
    program: str
    #: ``module:class`` of its ingester.
    ingester: str
    #: ``module:function`` that reads the events of one line.
    content: str
    #: Module that knows its store (see `Store`).
    store: str
    #: Versions whose transcripts the tests hold, oldest first.
    formats: tuple[str, ...]
    #: Module that writes its conversations (see `beyond.surgery.base.Writer`), and versions that the live tests pass.
    surgery: str | None = None
    #: The form of a conversation's id.
    conversation: str = "{uuid}"
    verified: tuple[str, ...] = ()


AGENTS: dict[str, AgentCli] = {
    row.name: row
    for row in (
        AgentCli(
            name="claude",
            title="Claude Code",
            program="claude",
            ingester="beyond.ingest.claude:ClaudeIngester",
            content="beyond.ingest.claude:content_of",
            store="beyond.ingest.claude.store",
            formats=("2.1.218", "2.1.276", "2.1.332"),
            surgery="beyond.surgery.claude",
            verified=("2.1.218", "2.1.332"),
        ),
        AgentCli(
            name="kimi",
            title="Kimi Code",
            program="kimi",
            ingester="beyond.ingest.kimi:KimiIngester",
            content="beyond.ingest.kimi:content_of",
            store="beyond.ingest.kimi.store",
            formats=("0.28.0", "0.28.1", "0.29.0", "2.1.0"),
            surgery="beyond.surgery.kimi",
            conversation="session_{uuid}",
            verified=("0.28.0", "0.28.1", "0.29.0", "2.1.0"),  # 0.28.1: its engine's source equals 0.28.0's
        ),
    )
}


def _load(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


def row(cli: str) -> AgentCli:
    """The row of an agent CLI. Raises `UsageError` with the names that there are."""
    try:
        return AGENTS[cli]
    except KeyError:
        raise UsageError(f"unknown agent CLI {cli!r}: beyond records {', '.join(AGENTS)}") from None


def make_ingester(cli: str, conversation: str | None, root: str | None, agent: str) -> Ingester:
    """A new ingester for one transcript file."""
    made: Ingester = _load(row(cli).ingester)(conversation, root, agent)
    return made


def content_of(cli: str) -> Callable[[bytes], dict[int, Event]]:
    """The function that reads the events of one line of `cli`'s transcripts, by part."""
    function: Callable[[bytes], dict[int, Event]] = _load(row(cli).content)
    return function


def writer(cli: str) -> Writer:
    """The module that writes conversations of `cli`. Raises `UsageError` where there is none."""
    name = row(cli).surgery
    if name is None:
        raise UsageError(f"there is no writer for {row(cli).title}: use --method synthesis")
    module: Any = import_module(name)
    return module  # type: ignore[no-any-return]


def new_conversation(cli: str) -> str:
    """A new id as `cli` gives them to conversations."""
    from uuid import uuid4

    return row(cli).conversation.format(uuid=uuid4())


def store(cli: str) -> Store:
    """The module that knows the store of `cli`."""
    module: Any = import_module(row(cli).store)
    return module  # type: ignore[no-any-return]


def conversations(cli: str) -> Iterator[Found]:
    """The conversations in the store of `cli` on this machine."""
    return store(cli).conversations()


def home(cli: str) -> Path:
    """Where `cli` keeps its store on this machine."""
    return store(cli).home()


def belongs_to(found: Found, directory: str) -> bool:
    """Whether a conversation began in `directory` (a real path) or in one above it."""
    return store(found.cli).belongs(found, directory)


def subagents(found: Found) -> list[Found]:
    """The subagents' transcripts that belong to a main one."""
    return store(found.cli).subagents(found) if found.agent == "main" else []
