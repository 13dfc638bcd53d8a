"""`fsck`: re-derives every hash through the read path; checks references, cursors and guards."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from beyond.blob import Reader, get_varints, hash_head, tagged_hash
from beyond.errors import BeyondError, JournalDamaged
from beyond.journal import shape, translate
from beyond.schema import load

if TYPE_CHECKING:
    from beyond.journal import Journal

Progress = Callable[[str], None]
#: What code comes to that meets a value which no beyond wrote.
STUMBLES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, AssertionError, RecursionError, MemoryError)


def verify(journal: Journal, progress: Progress = lambda _: None) -> Iterator[str]:
    """Yields one line for everything that is wrong."""
    odd = False
    for stage, check in _STAGES:
        if stage:
            progress(stage)
        try:
            for line in check(journal.con):
                odd = odd or check is shape.odd
                yield line
        except sqlite3.Error as error:
            yield str(translate(error, journal.path))
        except BeyondError as error:
            yield str(error)
        except STUMBLES:
            if not odd:  # else this is what the odd values, which are named already, lead to
                raise


def blame(con: sqlite3.Connection, path: Path, error: BaseException | None) -> JournalDamaged | None:
    """The damage that made a command stumble over `error`, if there is any that is seen without reading every blob."""
    if not isinstance(error, (*STUMBLES, sqlite3.Error)):
        return None
    try:
        for check in (shape.odd, _schema, _references):
            for line in check(con):
                return JournalDamaged(f"{path} is damaged: {line}; `bnd fsck` lists all")
    except sqlite3.Error as further:
        found = translate(further, path)
        return found if isinstance(found, JournalDamaged) else None
    except STUMBLES:
        return JournalDamaged(f"{path} is damaged ({type(error).__name__}: {error}): restore a copy; `bnd fsck` says more")
    return None


def _pages(con: sqlite3.Connection) -> Iterator[str]:
    for (line,) in con.execute("pragma integrity_check(20)"):
        if line != "ok":
            yield f"SQLite: {line}"


def _schema(con: sqlite3.Connection) -> Iterator[str]:
    """Tables, indexes and guards as they were made: some tools drop triggers in silence."""
    other = sqlite3.connect(":memory:")
    other.executescript(load("journal.sql"))
    wanted = dict(other.execute("select name, sql from sqlite_master where sql is not null"))
    other.close()
    present = dict(con.execute("select name, sql from sqlite_master where sql is not null"))
    for name, sql in wanted.items():
        if name not in present:
            yield f"{name} is missing from the schema: restore a copy of the journal"
        elif " ".join(present[name].split()) != " ".join(sql.split()):
            yield f"{name} is not as it was made: restore a copy of the journal"


def _blobs(con: sqlite3.Connection) -> Iterator[str]:
    reader = Reader(con)
    for pack, offset, size, blob, tagged, head in con.execute(
        "select pack, offset, size, id, hash, head from blob order by pack, offset"
    ).fetchall():
        try:
            data = reader.cut(blob, pack, offset, size)
        except BeyondError as error:
            yield f"blob {blob}: {error}"
            continue
        if tagged_hash(data) != tagged:
            yield f"blob {blob} in pack {pack} does not have the hash that names it: restore a copy of the journal"
        elif hash_head(tagged) != head:
            yield f"blob {blob} would not be found by its hash: restore a copy of the journal"
    for (pack,) in con.execute("select id from pack where prefix is not null and prefix not in (select id from pack)"):
        yield f"pack {pack} leans on a pack that is missing: restore a copy of the journal"


def _segments(con: sqlite3.Connection) -> Iterator[str]:
    reader = Reader(con)
    blobs = {b for (b,) in con.execute("select id from blob")}
    for source, lines, size in con.execute("select id, lines, bytes from source").fetchall():
        line, offset = 1, 0
        for row in con.execute(
            "select line, lines, offset, size, hash, blob, lifted from segment where source = ? order by line",
            (source,),
        ).fetchall():
            first, count, at, length, tagged, blob, lifted = row
            if first != line or at != offset:
                yield f"source {source}: lines {line} to {first - 1} are missing: restore a copy of the journal"
            line, offset = first + count, at + length
            try:
                if {blob, *get_varints(lifted)[1::2]} - blobs:
                    yield f"source {source}: line {first} refers to a blob that is missing: restore a copy of the journal"
                    continue
            except (TypeError, ValueError):
                pass  # said by what comes now
            try:
                data, starts = reader._segment(source, first)
            except BeyondError as error:
                yield str(error)
                continue
            if tagged_hash(data) != tagged or len(starts) - 1 != count:
                yield f"source {source}: lines {first} to {line - 1} don't have their hash: restore a copy of the journal"
        if line - 1 != lines or offset != size:
            yield f"source {source}: its cursor says {lines} lines, {size} bytes; kept are {line - 1} and {offset}"
        try:
            reader.tail(source)
        except BeyondError as error:
            yield str(error)


_CHECKS = (
    ("run {} has {} events, but its last seq is {}",
     "select r.run, count(e.seq), r.events from run r left join event e on e.run = r.id group by r.id "
     "having count(e.seq) <> r.events or coalesce(max(e.seq), 0) <> r.events"),
    ("event {}:{} stands on a line that is not there",
     "select r.run, e.seq from event e join run r on r.id = e.run left join source s on s.id = e.source "
     "where e.source is not null and (s.id is null or e.line < 1 or e.line > s.lines + s.tail_line)"),
    ("event {}:{} follows an event that is not there",
     "select r.run, e.seq from event e join run r on r.id = e.run where e.parent_seq is not null "
     "and not exists (select 1 from event p where p.run = e.run and p.seq = e.parent_seq)"),
    ("call {}:{} has a result that is not there",
     "select r.run, e.seq from event e join run r on r.id = e.run where e.result_seq is not null "
     "and not exists (select 1 from event p where p.run = e.run and p.seq = e.result_seq)"),
    ("event {} of no run", "select seq from event where run not in (select id from run)"),
    ("run {} has an id that is no run's: 12 hex digits",
     "select quote(run) from run where length(run) <> 12 or run glob '*[^0-9a-f]*'"),
    ("run {} comes from a run that is not there",
     "select run from run where parent is not null and parent not in (select id from run)"),
    ("file {} holds a source that is not there", "select path from file where source not in (select id from source)"),
    ("source {} is of no run", "select id from source where run not in (select id from run)"),
    ("segment of source {}, which is not there",
     "select distinct source from segment where source not in (select id from source)"),
    ("a message's tokens count {} times (run {})",
     "select count(*), min(run) from event where kind = 'usage' and usage_key is not null and counted = 1 group by usage_key "
     "having count(*) > 1"),
    ("a deletion was left half done{}", "select '' from meta where key = 'deleting'"),
)  # fmt: skip


def _references(con: sqlite3.Connection) -> Iterator[str]:
    for form, sql in _CHECKS:
        for row in con.execute(sql).fetchmany(20):
            yield form.format(*row) + ": run `bnd fsck` on a copy, or restore one"
    parents = dict(con.execute("select id, parent from run where parent is not null"))
    sound: set[object] = set()
    for run in parents:
        way: dict[object, None] = {}
        at: object = run
        while at in parents and at not in sound and at not in way:
            way[at] = None
            at = parents[at]
        if at in way:
            yield f"run number {at} comes from itself: run `bnd fsck` on a copy, or restore one"
        sound |= way.keys()


_STAGES: tuple[tuple[str, Callable[[sqlite3.Connection], Iterator[str]]], ...] = (
    ("pages", _pages),
    ("", _schema),
    ("", shape.odd),
    ("blobs", _blobs),
    ("lines", _segments),
    ("events", _references),
)
