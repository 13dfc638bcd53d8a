"""Deleting: `forget` and `gc`. Nothing else deletes."""

from __future__ import annotations

import hashlib
import sqlite3

from beyond.journal import Journal


def conversation_hash(cli: str, conversation: str | None) -> bytes:
    """What stays of a forgotten conversation: enough to know it again, nothing to read."""
    return hashlib.sha256(f"{cli}\0{conversation or ''}".encode("utf-8", "replace")).digest()


def is_forgotten(con: sqlite3.Connection, cli: str, conversation: str | None) -> bool:
    """Whether the conversation was forgotten and not asked for since."""
    row = con.execute("select 1 from forgotten where hash = ?", (conversation_hash(cli, conversation),)).fetchone()
    return row is not None


def remember(journal: Journal, cli: str, conversation: str | None) -> None:
    """Lets a forgotten conversation be recorded again."""
    with journal.write() as con:
        con.execute("delete from forgotten where hash = ?", (conversation_hash(cli, conversation),))
