"""What the columns of a journal may hold. SQLite keeps any value in any column, so a damaged or a hostile file may hold
anything anywhere; `odd` names what no beyond would have written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from beyond.codec import MAX_PACK
from beyond.event import KINDS
from beyond.schema import load

#: Lines about one table: a file that was shuffled is not worth more.
_LINES = 20
#: The largest number of a step, or of a run: the search index keeps the two in one.
LAST = (1 << 32) - 1
_SIZE = 1 << 53
#: The least and the largest number of a column. `ingest.base` clips token counts to the half of this.
_RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "pack": {"size": (0, MAX_PACK), "prefix": (1, _SIZE)},
    "blob": {"offset": (0, MAX_PACK), "size": (0, MAX_PACK)},
    "run": {"events": (0, LAST), "parent_seq": (1, LAST), "forked_at": (1, LAST)},
    "source": {"generation": (0, LAST), "lines": (0, _SIZE), "bytes": (0, _SIZE), "tail_line": (0, 1)},
    "segment": {"line": (1, _SIZE), "lines": (1, _SIZE), "offset": (0, _SIZE), "size": (1, _SIZE)},
    "event": {
        "seq": (1, LAST), "line": (1, _SIZE), "part": (-1, LAST), "size": (0, _SIZE), "is_error": (0, 1), "turn": (0, LAST),
        "active": (0, 1), "parent_seq": (1, LAST), "result_seq": (1, LAST), "counted": (0, 1),
        "input_tokens": (0, 4 * 10**12), "output_tokens": (0, 4 * 10**12), "cache_read_tokens": (0, 4 * 10**12),
        "cache_write_tokens": (0, 4 * 10**12),
    },
    "note": {"seq": (1, LAST)},
}  # fmt: skip
_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "pack": {"codec": ("zstd", "raw")},
    "run": {
        "mode": ("transcript", "proxy", "sdk"), "relation": ("fork", "continuation", "subagent"),
        "ended": ("complete", "incomplete", "live"),
    },
    "event": {"kind": KINDS},
}  # fmt: skip
#: Tables whose keys say nothing to a reader.
_UNKEYED = ("forgotten",)


#: (name, declared type, whether null is none of its values, whether it belongs to the key) of a column.
_Column = tuple[str, str, bool, bool]


@cache
def _columns() -> dict[str, list[_Column]]:
    """The columns of each table, as they are documented."""
    con = sqlite3.connect(":memory:")
    con.executescript(load("journal.sql"))
    tables = [name for (name,) in con.execute("select name from sqlite_master where type = 'table'")]
    out = {}
    for table in tables:
        rows = con.execute('select name, type, "notnull" or pk, pk > 0 from pragma_table_info(?)', (table,)).fetchall()
        out[table] = [(name, kind.lower(), bool(never), bool(key)) for name, kind, never, key in rows]
    con.close()
    return out


def odd(con: sqlite3.Connection) -> Iterator[str]:
    """Yields a line for each value that is none of its column's, at most a few a table."""
    for table, columns in _columns().items():
        there = {name for (name,) in con.execute("select name from pragma_table_info(?)", (table,))}
        yield from _values(con, table, [column for column in columns if column[0] in there])
    yield from _documents(con, "source", "id", "damage", list)
    yield from _documents(con, "run", "id", "extra", dict)


def _place(table: str, keys: Iterable[object]) -> str:
    shown = ":".join(key.decode("utf-8", "replace")[:60] if isinstance(key, bytes) else str(key) for key in keys)
    return f"{table} {shown}".rstrip()


def _values(con: sqlite3.Connection, table: str, columns: list[_Column]) -> Iterator[str]:
    keys = [name for name, _, _, key in columns if key and table not in _UNKEYED]
    ranges, words = _RANGES.get(table, {}), _WORDS.get(table, {})
    wrong = []
    for name, kind, never, _ in columns:
        types = [kind] if kind else ["integer", "text"]  # the values of `meta` have no declared type
        fits = f"typeof({name}) in ({', '.join(repr(one) for one in types)})"
        if name in ranges:
            least, most = ranges[name]
            fits += f" and {name} between {least} and {most}"
        elif name in words:
            fits += f" and {name} in ({', '.join(repr(one) for one in words[name])})"
        if not never:
            fits = f"{name} is null or {fits}"
        wrong.append((name, f"not ({fits})"))
    # text is fetched as bytes: what is no UTF-8 would end the query
    picked = ", ".join([*(f"cast({key} as blob)" for key in keys), *(f"{test}, typeof({name})" for name, test in wrong)])
    where = " or ".join(f"({test})" for _, test in wrong)
    rows = con.execute(f"select {picked} from {table} where {where} limit {_LINES}").fetchall()
    for row in rows:
        place = _place(table, row[: len(keys)])
        for (name, _), bad, kind in zip(wrong, row[len(keys) :: 2], row[len(keys) + 1 :: 2], strict=True):
            if bad:
                what = f"is {kind}" if kind != "null" else "is missing"
                expected = next(declared for column, declared, _, _ in columns if column == name) or "something else"
                what = f"holds a value that it can't have ({kind})" if kind == expected else f"{what}, not {expected}"
                yield f"{place}: its {name} {what}: restore a copy of the journal"
    yield from _no_text(con, table, keys, [name for name, kind, _, _ in columns if kind == "text"])


def _no_text(con: sqlite3.Connection, table: str, keys: list[str], names: list[str]) -> Iterator[str]:
    """Text that is no UTF-8: Python can't take it."""
    if not names:
        return
    found = []
    picked = ", ".join([*(f"cast({key} as blob)" for key in keys), *(f"cast({name} as blob)" for name in names)])
    for row in con.execute(f"select {picked} from {table}"):
        try:
            b"\n".join(cell for cell in row[len(keys) :] if cell is not None).decode()
        except UnicodeDecodeError:
            found.append(row)
            if len(found) >= _LINES:
                break
    for row in found:
        place = _place(table, row[: len(keys)])
        for name, cell in zip(names, row[len(keys) :], strict=True):
            try:
                (cell or b"").decode()
            except UnicodeDecodeError:
                yield f"{place}: its {name} is no UTF-8: restore a copy of the journal"


def _documents(
    con: sqlite3.Connection, table: str, key: str, column: str, wanted: type[list[Any]] | type[dict[str, Any]]
) -> Iterator[str]:
    """JSON of another form than is written there."""
    rows = con.execute(f"select {key}, cast({column} as blob) from {table} where typeof({column}) = 'text'").fetchall()
    found = 0
    for number, text in rows:
        try:
            value = json.loads(text)
            fits = isinstance(value, wanted) and all(isinstance(item, dict) for item in (value if wanted is list else ()))
        except (ValueError, RecursionError):
            fits = False
        if not fits and found < _LINES:
            found += 1
            yield f"{_place(table, (number,))}: its {column} is not the JSON that is written there: restore a copy of the journal"
