"""Reading the journal: a connection that can't write, the views, the functions, and naming a run."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from beyond.blob import Reader
from beyond.errors import BeyondError, JournalDamaged, NotFound, UsageError
from beyond.event import USAGE_PART, printable
from beyond.journal import check, default_path, identify, reading, translate, uri
from beyond.schema import Relation, load, tables, views

#: What reads a line's events, by agent CLI: given by the caller, so that this layer knows no ingester.
ContentOf = Callable[[str], Callable[[bytes], dict[int, Any]]]

_READ_PRAGMAS = frozenset(
    "table_info table_xinfo table_list index_list index_info index_xinfo database_list foreign_key_list "
    "function_list collation_list compile_options module_list pragma_list".split()
)
_VALUE_PRAGMAS = frozenset(
    "user_version application_id page_count page_size freelist_count encoding integrity_check quick_check "
    "journal_mode schema_version data_version".split()
)
#: What may come of values in the journal that no beyond wrote.
_ODD = ("decode", "overflow", "too big", "malformed json", "mismatch", "a value that is no text")
#: Errors that are the file's, not the query's.
_BROKEN = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL,
)  # fmt: skip


def timestamp(ms: int | None) -> str | None:
    """Unix milliseconds as UTC ISO 8601 with milliseconds."""
    if not isinstance(ms, int):
        return None
    try:
        return f"{datetime.fromtimestamp(ms // 1000, UTC).isoformat()[:19]}.{ms % 1000:03d}Z"
    except (OverflowError, ValueError, OSError):
        return None


def zone() -> str:
    """The time zone of `usage_by_day_local`."""
    return os.environ.get("TZ") or "/".join(dict.fromkeys(time.tzname))


def _regexp(pattern: str | None, value: Any) -> int | None:
    if pattern is None or value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    try:
        return int(re.search(str(pattern), str(value)) is not None)
    except re.error as error:
        raise UsageError(f"regexp: {error}: correct the pattern {str(pattern)!r}") from None


def _integers(*values: object) -> bool:
    return all(isinstance(value, int) for value in values)


class _Content:
    """Content of events, with the lines parsed last kept for their other parts."""

    def __init__(self, con: sqlite3.Connection, reader: Reader, content_of: ContentOf) -> None:
        self._con = con
        self._reader = reader
        self._content_of = content_of
        self._readers: dict[int, Callable[[bytes], dict[int, Any]]] = {}
        self._lines: OrderedDict[tuple[int, int], dict[int, Any]] = OrderedDict()

    def _parts(self, source: int, line: int) -> dict[int, Any]:
        parts = self._lines.get((source, line))
        if parts is None:
            read = self._readers.get(source)
            if read is None:
                row = self._con.execute(
                    "select r.cli from source s join run r on r.id = s.run where s.id = ?", (source,)
                ).fetchone()
                if row is None:
                    return {}
                try:
                    read = self._readers[source] = self._content_of(row[0])
                except UsageError:
                    raise JournalDamaged(
                        f"source {source} is of an agent CLI {row[0]!r:.40} that this beyond does not know: upgrade it, or "
                        "restore a copy of the journal"
                    ) from None
            raw = self._reader.line(source, line)
            try:
                parts = read(raw)
            except ValueError:  # the line is no record (any more): its event has no content, the others have theirs
                parts = {}
            self._lines[source, line] = parts
            if len(self._lines) > 64:
                self._lines.popitem(last=False)
        return parts

    def content(self, source: int | None, line: int | None, part: int) -> str | None:
        """The content of an event, or None where it has none."""
        if source is None or line is None:
            return None
        if not _integers(source, line):
            raise JournalDamaged(f"an event stands on line {line!r:.40} of source {source!r:.40}: restore a copy of the journal")
        event = self._parts(source, line).get(part)
        return printable(event.content) if event is not None and event.content is not None else None

    def usage(self, source: int | None, line: int | None) -> str | None:
        """The usage object of a line, as JSON."""
        if source is None or line is None or not _integers(source, line):
            return None
        event = self._parts(source, line).get(USAGE_PART)
        return printable(json.dumps(event.usage, ensure_ascii=False)) if event is not None else None


def note_unraisable(unraisable: Any) -> bool:
    """To be asked by `sys.unraisablehook` of a program of ours: whether this came from a function of a `Query`, which now
    knows why SQLite says no more than that it failed. Takes `sqlite3.enable_callback_tracebacks`."""
    query = getattr(unraisable.object, "bnd_query", None)
    if query is None:
        return False
    query._unraised = unraisable.exc_value
    return True


class Query:
    """A journal that is open for reading only, with the views. Use as a context manager."""

    def __init__(self, path: Path, con: sqlite3.Connection, content_of: ContentOf) -> None:
        self.path = path
        self.con = con
        self.reader = Reader(con)
        self._content = _Content(con, self.reader, content_of)
        self._deadline: float | None = None
        self._failure: BaseException | None = None
        self._unraised: BaseException | None = None

    def _define(self) -> None:
        self.con.create_function("bnd_time", 1, self._known(timestamp), deterministic=True)
        self.con.create_function("bnd_zone", 0, zone)
        self.add_function("bnd_content", 3, self._content.content, ours=True)
        self.add_function("bnd_usage", 2, self._content.usage, ours=True)
        self.add_function("regexp", 2, _regexp)

    def _known(self, function: Callable[..., Any]) -> Any:
        """`function`, so that `note_unraisable` knows whose it is."""
        marked: Any = partial(function)
        marked.bnd_query = self
        return marked

    def guard(self) -> None:
        """From here on the connection only reads, hears Ctrl-C and keeps time limits."""
        self.con.execute("pragma query_only = on")
        self.con.set_progress_handler(self._known(self._tick), 200_000)
        self.con.set_authorizer(self._known(_authorize))

    def add_function(self, name: str, count: int, function: Callable[..., Any], *, ours: bool = False) -> None:
        """Makes a function known to SQL. What it raises ends the query with that as the reason, Ctrl-C too."""

        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except BeyondError as error:  # SQLite would only say "user-defined function raised exception"
                self._failure = error
                raise
            except sqlite3.Error as error:  # of a query inside the function: Ctrl-C and time limits end up here too
                self._failure = self.explain(error)
                raise
            except Exception as error:
                said = f"SQL: {name}() raised {type(error).__name__}: {error}: correct the function"
                self._failure = error if ours else UsageError(said)
                raise
            except BaseException as error:
                self._failure = error
                raise

        self.con.create_function(name, count, self._known(call))

    def content(self, source: int, line: int, part: int) -> str:
        """The content of an event, read from its line."""
        return self._content.content(source, line, part) or ""

    def attach(self, alias: str, path: str) -> None:
        """Attaches another SQLite file, read-only."""
        if not Path(path).is_file():
            raise UsageError(f"--attach {alias} {path}: no such file: give an existing SQLite database")
        self.con.set_authorizer(None)
        try:
            self.con.execute("attach database ? as " + _identifier(alias), (uri(Path(path), "mode=ro"),))
        except sqlite3.Error as error:
            raise UsageError(f"--attach {alias} {path}: {error}: give an existing SQLite database") from None
        finally:
            self.con.set_authorizer(self._known(_authorize))

    def limit(self, seconds: float | None) -> None:
        """Ends a query that takes longer."""
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def _tick(self) -> int:
        """Called while SQLite works, so that Ctrl-C is seen and time limits hold."""
        return int(self._deadline is not None and time.monotonic() > self._deadline)

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """Runs a query. Raises `UsageError` for one that is wrong or would write, KeyboardInterrupt for Ctrl-C."""
        try:
            return self._execute(sql, parameters)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self.explain(error) from None

    def _execute(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        try:
            return self.con.execute(sql, parameters)
        except UnicodeEncodeError:  # of an argument that is no UTF-8: the journal holds only what is
            if printable(sql) != sql:
                raise UsageError("SQL: the query holds bytes that are no UTF-8: give it in UTF-8") from None
        except ValueError as error:
            raise UsageError(f"SQL: {error}: leave that out") from None
        items = parameters.items() if isinstance(parameters, dict) else enumerate(parameters)
        clean = {key: printable(value) if isinstance(value, str) else value for key, value in items}
        return self.con.execute(sql, clean if isinstance(parameters, dict) else list(clean.values()))

    def rows(self, cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, with errors as `execute` has them."""
        try:
            for row in cursor:  # noqa: UP028 - `yield from` would close the cursor after its connection
                yield row
        except sqlite3.Error as error:
            raise self.explain(error) from None

    def explain(self, error: Exception) -> BaseException:
        """What an error of SQLite means for the user's query."""
        failure, self._failure = self._failure, None
        unraised, self._unraised = self._unraised, None
        if failure is not None:
            return failure
        if isinstance(unraised, KeyboardInterrupt):
            return unraised
        text = str(error).rstrip(".")
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT or "user-defined function raised" in text:
            # (a function keeps the reason, unless it is Ctrl-C that comes just before it does anything, or a value that
            # Python can't take or SQLite can't: then only `note_unraisable` knows)
            if self._deadline is not None and time.monotonic() > self._deadline:
                return UsageError("the query takes too long: add a limit or a condition")
            if not isinstance(unraised, Exception):
                return KeyboardInterrupt()
            text = f"a function got or gave a value that is no text ({type(unraised).__name__})"
        if any(sign in text.lower() for sign in _ODD) and (damage := self._blame(error)) is not None:
            return damage
        if "decode" in text:
            text = "the result holds text that is no UTF-8: select hex(…) or cast(… as blob) of it"
            return UsageError(f"SQL: {text}")
        if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or "not authorized" in text or "prohibited" in text:
            return UsageError(f"refused ({text}): `bnd sql` only reads; other databases come in with --attach")
        if code in _BROKEN and isinstance(error, sqlite3.Error):
            return translate(error, self.path)
        if "binding" in text:
            return UsageError(f"SQL: {text}: give each :name with -p NAME VALUE")
        return UsageError(f"SQL: {text}: see `bnd sql --schema` for views and columns")

    def close(self) -> None:
        """Closes the journal."""
        self.con.close()

    def __enter__(self) -> Query:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None and (damage := self._blame(error)) is not None:
                raise damage from error
        finally:
            self.close()

    def _blame(self, error: BaseException) -> JournalDamaged | None:
        from beyond.journal.verify import blame

        return blame(self.con, self.path, error)


def _identifier(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.lower() in ("main", "temp"):
        raise UsageError(f"{name!r} can't be a database's alias: use letters, digits and _")
    return name


def _authorize(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_UPDATE and one == "sqlite_master":
        # What SQLite asks when it sets up a virtual table (json_each, pragma_…). Writing to that table takes
        # `pragma writable_schema`, which is refused below, and a connection that isn't read-only.
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if two in ("load_extension", "writefile", "edit") else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and one is not None:
        name = one.lower()
        if name in _READ_PRAGMAS or (name in _VALUE_PRAGMAS and two is None):
            return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def connect(path: Path | None, content_of: ContentOf) -> Query:
    """Opens a journal for reading. Raises `NotFound` where there is none, `JournalError` where it can't be read."""
    if getattr(sys.unraisablehook, "asks_queries", False):
        sqlite3.enable_callback_tracebacks(True)
    path = path if path is not None else default_path()
    if not check(path):
        if not path.exists():
            raise NotFound(f"{path}: there is no journal yet: make one with `bnd record`")
        return _prepare(path, sqlite3.connect(":memory:", isolation_level=None), content_of, empty=True)
    con = reading(path)
    try:
        return _prepare(path, con, content_of)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        con.close()
        raise translate(error, path) from None
    except BaseException:
        con.close()
        raise


def _prepare(path: Path, con: sqlite3.Connection, content_of: ContentOf, *, empty: bool = False) -> Query:
    con.execute("pragma trusted_schema = off")
    con.execute("pragma cache_size = -65536")
    if not empty and identify(con, path) == 0:  # SQLite's own empty file: somebody is about to make a journal of it
        con.close()
        return _prepare(path, sqlite3.connect(":memory:", isolation_level=None), content_of, empty=True)
    if empty:
        con.executescript(load("journal.sql"))
    query = Query(path, con, content_of)
    query._define()
    con.executescript(load("views.sql"))
    if con.execute("select 1 from sqlite_master where name = 'search'").fetchone():
        con.execute("select rowid from search limit 0")  # a virtual table is set up on first use: not under a guard
    query.guard()
    return query


def relations(path: Path | None, content_of: ContentOf) -> list[Relation]:
    """The views, then the tables as they stand in the journal (or in a new one) with the comments that it keeps."""
    try:
        with connect(path, content_of) as query:
            rows = query.execute("select sql from sqlite_master where type = 'table' order by rowid").fetchall()
    except NotFound:
        rows = []
    made = tables(row[0] for row in rows)
    return [*views(), *(made or tables())]
