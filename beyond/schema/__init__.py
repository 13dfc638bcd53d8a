"""The journal's tables, views and queries, as SQL that a reader can open."""

from __future__ import annotations

from importlib import resources


def load(name: str) -> str:
    """The text of a file in this folder, e.g. ``journal.sql`` or ``queries/past.sql``."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")
