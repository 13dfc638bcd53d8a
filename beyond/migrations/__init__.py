"""The journal's format, one step a file. A step is frozen once released and needs nothing but itself.

`FORMAT` is stored as ``pragma user_version``; a journal with a higher one was made by a newer beyond.
"""

from __future__ import annotations

import sqlite3

#: The format that this version reads and writes: the number of the last step below.
FORMAT = 1
#: ``pragma application_id`` of a journal: "bnd" and a version of the identification itself.
APPLICATION_ID = 0x626E6401


def migrate(con: sqlite3.Connection) -> None:
    """Brings a journal to `FORMAT`. The caller holds the write lock (BEGIN IMMEDIATE): of four processes that
    open one new file at once, each finds it either untouched or done."""
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

    from beyond.migrations import m0001_initial

    steps = Migrations("beyond")
    for step in (m0001_initial.apply,):
        steps(name=step.__module__.rsplit(".", 1)[-1])(step)
    steps.apply(Database(con))
    con.execute(f"pragma application_id = {APPLICATION_ID}")
    con.execute(f"pragma user_version = {FORMAT}")
