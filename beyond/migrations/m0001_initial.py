"""Format 1: the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beyond.schema import load

if TYPE_CHECKING:
    from sqlite_utils import Database


def apply(db: Database) -> None:
    """Makes the tables of an empty journal."""
    for statement in statements(load("journal.sql")):
        db.conn.execute(statement)


def statements(script: str) -> list[str]:
    """The single statements of a script: `executescript` would commit the transaction that we are in."""
    import sqlite3

    out, part = [], ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            out.append(part.strip())
            part = ""
    return out
