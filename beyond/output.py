"""Rows in the formats of `sqlite-utils query`."""

from __future__ import annotations

import base64
import csv
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from beyond.errors import UsageError
from beyond.query import Query
from beyond.text import json_text, one_line, visible

#: Columns of a cell in a table that nobody asked for with -t or --fmt.
CELL = 80


@dataclass(slots=True)
class Output:
    """How rows are to be written; the names are the options'."""

    table: bool = False
    fmt: str | None = None
    csv: bool = False
    tsv: bool = False
    headers: bool = True
    nl: bool = False
    arrays: bool = False
    json_cols: bool = False
    ascii: bool = False
    raw: bool = False
    raw_lines: bool = False
    #: Where nothing else is asked for: a table of one line a row, long cells cut.
    brief: bool = False
    #: The output goes to a terminal, which no control character of a transcript may reach.
    terminal: bool = False

    def check(self) -> None:
        """Raises `UsageError` for a table format that doesn't exist."""
        if self.fmt is not None:
            from tabulate import tabulate_formats

            if self.fmt not in tabulate_formats:
                raise UsageError(f"--fmt {self.fmt}: no such format: use one of {', '.join(tabulate_formats)}")

    def write(self, cursor: sqlite3.Cursor, rows: Iterable[tuple[Any, ...]], stream: TextIO) -> None:
        """Writes the rows of a query."""
        if cursor.description is None:
            raise UsageError("the query holds no statement: give one, e.g. select * from runs")
        if self.terminal and not (self.nl or self.arrays):
            rows = (tuple(visible(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
        names = [column[0] for column in cursor.description]
        if self.raw or self.raw_lines:
            self._write_raw(rows, stream)
        elif self.fmt or self.table or (self.brief and not (self.csv or self.tsv or self.nl or self.arrays)):
            self._write_table(names, rows, stream)
        elif self.csv or self.tsv:
            writer = csv.writer(stream, dialect="excel-tab" if self.tsv else "excel")
            if self.headers:
                writer.writerow(names)
            writer.writerows(rows)
        else:
            stream.writelines(line + "\n" for line in self._json(names, rows))

    def _write_raw(self, rows: Iterable[tuple[Any, ...]], stream: TextIO) -> None:
        for row in rows:
            data = row[0]
            if isinstance(data, bytes):
                stream.flush()
                stream.buffer.write(data + (b"" if self.raw else b"\n"))
                stream.buffer.flush()
            else:
                stream.write(str(data) + ("" if self.raw else "\n"))
            if self.raw:
                return

    def _write_table(self, names: list[str], rows: Iterable[tuple[Any, ...]], stream: TextIO) -> None:
        import tabulate

        cut = self.brief and not (self.fmt or self.table)
        shown = [[self._cell(cell, cut) for cell in row] for row in rows]
        # text that looks like a number (a run's id may) stays as it is
        texts = [i for i in range(len(names)) if any(isinstance(row[i], str) for row in shown)]
        tabulate.PRESERVE_WHITESPACE = True
        text = tabulate.tabulate(
            shown, headers=names if self.headers else (), tablefmt=self.fmt or "simple", disable_numparse=texts
        )
        stream.write(text + "\n")

    def _cell(self, cell: Any, cut: bool) -> Any:
        if isinstance(cell, bytes):
            cell = repr(cell)
        if not isinstance(cell, str):
            return cell
        return one_line(cell, CELL) if cut else visible(cell)

    def _json(self, names: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
        keys = _distinct(names)
        first, before = True, None
        for row in rows:
            data: Any = [_maybe_json(v) for v in row] if self.json_cols else list(row)
            if not self.arrays:
                data = dict(zip_longest(keys, data))
            text = json_text(data, default=_binary, ascii_only=self.ascii)
            if self.nl:
                yield text
            elif before is not None:
                yield before + ","
            if not self.nl:
                before = ("[" if first else " ") + text
            first = False
        if not self.nl:
            yield "[]" if before is None else before + "]"
        elif first:
            yield "[]"


def _distinct(names: list[str]) -> list[str]:
    """Names as keys: a repeated one gets _2, _3 …, whichever is free."""
    taken = set(names)
    seen: dict[str, None] = {}
    for name in names:
        key, number = name, 2
        while key in seen or (key in taken and key != name):
            key = f"{name}_{number}"
            number += 1
        seen[key] = None
    return list(seen)


def _maybe_json(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _binary(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$base64": True, "encoded": base64.b64encode(value).decode("latin-1")}
    raise TypeError


def add_functions(query: Query, codes: Iterable[str]) -> None:
    """Registers the functions that Python code (or a .py file) defines. It is the user's own code."""
    import inspect

    for code in codes:
        source = code
        if "\n" not in code and code.endswith(".py"):
            try:
                source = Path(code).read_text("utf-8")
            except OSError as error:
                raise UsageError(f"--functions {code}: {error.strerror}: give Python code or a file") from None
        names: dict[str, Any] = {}
        try:
            exec(source, names)  # noqa: S102
        except Exception as error:
            raise UsageError(f"--functions: {type(error).__name__}: {error}: correct the Python code") from None
        for name, value in names.items():
            if callable(value) and not name.startswith("_"):
                try:
                    count = len(inspect.signature(value).parameters)
                except (TypeError, ValueError):  # something imported that doesn't say what it takes
                    continue
                query.add_function(name, count, value)
