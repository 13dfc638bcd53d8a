"""THE TABLE: one row an agent CLI. Modules are named as text, so that nothing is loaded before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beyond.errors import UsageError

if TYPE_CHECKING:
    from beyond.ingest.base import Event, Ingester
    from beyond.store import Found


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
    #: ``module:function`` that finds its conversations, and the one that says where its store is.
    conversations: str
    home: str
    #: ``module:function`` that tells whether a conversation began in a directory.
    belongs: str
    #: Versions whose transcripts the tests hold.
    formats: tuple[str, ...]


AGENTS: dict[str, AgentCli] = {
    row.name: row
    for row in (
        AgentCli(
            name="claude",
            title="Claude Code",
            program="claude",
            ingester="beyond.ingest.claude:ClaudeIngester",
            content="beyond.ingest.claude:content_of",
            conversations="beyond.store:claude_conversations",
            home="beyond.store:claude_home",
            belongs="beyond.store:claude_belongs",
            formats=("2.1.218", "2.1.276", "2.1.332"),
        ),
        AgentCli(
            name="kimi",
            title="Kimi Code",
            program="kimi",
            ingester="beyond.ingest.kimi:KimiIngester",
            content="beyond.ingest.kimi:content_of",
            conversations="beyond.store:kimi_conversations",
            home="beyond.store:kimi_home",
            belongs="beyond.store:kimi_belongs",
            formats=("0.28.0", "0.28.1", "0.29.0", "2.1.0"),
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


def conversations(cli: str) -> Iterator[Found]:
    """The conversations in the store of `cli` on this machine."""
    found: Iterator[Found] = _load(row(cli).conversations)()
    return found


def home(cli: str) -> Path:
    """Where `cli` keeps its store on this machine."""
    place: Path = _load(row(cli).home)()
    return place


def belongs_to(found: Found, directory: str) -> bool:
    """Whether a conversation began in `directory` (a real path) or in one above it."""
    check: Callable[[Found, str], bool] = _load(row(found.cli).belongs)
    return check(found, directory)
