"""The journal's tables and views as SQL that a reader can open, and what the comments in it say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources

_VIEW = re.compile(r"create temp view (\w+) as -- (.*)")
_VIEW_COLUMN = re.compile(r"    .* as (\w+),? -- (.*)")
_TABLE = re.compile(r"create table (\w+) \(", re.IGNORECASE)  # SQLite keeps the words in capitals
_TABLE_COLUMN = re.compile(r"    (?!primary|unique|check|foreign)(\w+)(?:.*-- (.*))?")


def load(name: str) -> str:
    """The text of a file in this folder, e.g. ``journal.sql``."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Relation:
    """A view or a table, what its comment says, and its columns with what theirs say."""

    name: str
    kind: str
    comment: str
    columns: tuple[tuple[str, str], ...]


def views() -> list[Relation]:
    """The views that `bnd sql` offers."""
    return list(_relations(load("views.sql").splitlines(), "view", _VIEW, _VIEW_COLUMN))


def tables(statements: Iterable[str] | None = None) -> list[Relation]:
    """The tables that CREATE statements make; without them, those of a new journal."""
    text = load("journal.sql") if statements is None else "\n".join(statements)
    return list(_relations(text.splitlines(), "table", _TABLE, _TABLE_COLUMN))


def _relations(lines: Iterable[str], kind: str, head: re.Pattern[str], column: re.Pattern[str]) -> Iterator[Relation]:
    name, comment = "", ""
    columns: list[tuple[str, str]] = []
    for line in lines:
        if found := head.match(line):
            if name:
                yield Relation(name, kind, comment, tuple(columns))
            name, comment = found[1], found[2] if found.re.groups > 1 else ""
            columns = []
        elif name and (found := column.match(line)):
            columns.append((found[1], (found[2] or "").strip()))
    if name:
        yield Relation(name, kind, comment, tuple(columns))


def describe(relations: Iterable[Relation]) -> str:
    """Relations and their columns with their comments, for reading."""
    out = []
    for relation in relations:
        title = relation.name if relation.kind == "view" else f"table {relation.name}"
        out.append(f"{title}: {relation.comment}" if relation.comment else title)
        out += [f"  {name:<20} {comment}".rstrip() for name, comment in relation.columns]
        out.append("")
    return "\n".join(out)
