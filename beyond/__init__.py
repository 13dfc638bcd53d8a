"""beyond: a journal of AI coding agents' conversations that can be queried, rewound and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from beyond.journal import Journal

__all__ = ["__version__", "open_journal"]
__version__ = "0.1.0"


def open_journal(path: Path | str | None = None) -> Journal:
    """Opens a journal for writing (default: ``BND_JOURNAL``, else ``~/.bnd/journal.db``)."""
    from beyond.journal import Journal

    return Journal.open(path)
