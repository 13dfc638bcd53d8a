"""Deleting: `forget` and `gc`. Nothing else deletes."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from beyond import codec
from beyond.blob import MAX_CHAIN, PACK_SIZE, Reader, get_varints
from beyond.errors import Blocked, JournalDamaged, Refused
from beyond.journal import Journal, now_ms, translate


class Survivors(Protocol):
    """Derives again what the runs that stay say by themselves."""

    def usage(self, run_id: int) -> dict[int, tuple[int, int, int, int]]:
        """The tokens of a run's usage events by seq."""

    def title(self, run_id: int) -> tuple[str | None, int]:
        """A run's own title and its rank."""


#: Plain bytes of a pack that `gc` makes. Larger packs compress better and take longer to read a line from.
PACKED_SIZE = 4 * 1024 * 1024


def _key(*parts: str | bytes | None) -> bytes:
    h = hashlib.sha256()
    for part in parts:
        h.update(part if isinstance(part, bytes) else (part or "").encode("utf-8", "replace"))
        h.update(b"\0")
    return h.digest()


def is_forgotten(con: sqlite3.Connection, cli: str, conversation: str | None, first_hash: bytes) -> bool:
    """Whether the conversation (or this file of it) was forgotten and not asked for since."""
    row = con.execute(
        "select 1 from forgotten where hash in (?, ?)",
        (_key(cli, conversation), _key(cli, conversation, first_hash)),
    ).fetchone()
    return row is not None


def remember(journal: Journal, cli: str, conversation: str | None, first_hash: bytes) -> None:
    """Lets a forgotten conversation be recorded again."""
    with journal.write() as con:
        con.execute(
            "delete from forgotten where hash in (?, ?)",
            (_key(cli, conversation), _key(cli, conversation, first_hash)),
        )


@contextmanager
def _deleting(journal: Journal) -> Iterator[sqlite3.Connection]:
    """A transaction in which the guards let deletions pass."""
    journal.con.execute("pragma secure_delete = on")
    with journal.write() as con:
        con.execute("insert or replace into meta (key, value) values ('deleting', 1)")
        yield con
        con.execute("delete from meta where key = 'deleting'")
        con.execute("insert or replace into meta (key, value) values ('epoch', ?)", (now_ms(),))
    journal.reader = Reader(journal.con)


@dataclass(slots=True)
class Forgotten:
    """What `forget` removed: run ids, and how many events and bytes of lines."""

    runs: list[str]
    events: int
    bytes: int


def forget(journal: Journal, run_id: int, survivors: Survivors, reset_search: Callable[[sqlite3.Connection], None]) -> Forgotten:
    """Deletes a run with its subagents. Forks keep their own lines. Raises `Blocked` where a reader keeps the old
    pages alive, `Refused` for a subagent whose lines stand in its parent's file."""
    with _deleting(journal) as con:
        doomed = _family(con, run_id)
        _refuse_shared(con, doomed)
        marks = ", ".join("?" * len(doomed))
        runs = [r for (r,) in con.execute(f"select run from run where id in ({marks})", doomed)]
        (events,) = con.execute(f"select count(*) from event where run in ({marks})", doomed).fetchone()
        (size,) = con.execute(f"select coalesce(sum(bytes), 0) from source where run in ({marks})", doomed).fetchone()
        _tombstones(con, doomed)
        _pass_on_usage(con, doomed, survivors)
        _take_back_titles(con, doomed, survivors)
        sources = f"(select id from source where run in ({marks}))"
        for statement in (
            f"delete from segment where source in {sources}",
            f"delete from file where source in {sources}",
            f"delete from event where run in ({marks})",
            f"delete from note where run in ({marks})",
            f"delete from recorder where run in ({marks})",
            "insert or ignore into stale_ref (repository, ref) select distinct repository, ref from checkpoint "
            f"where run in ({marks}) and ref is not null and repository is not null",
            f"delete from checkpoint where run in ({marks})",
            f"delete from fork where run in ({marks})",
            f"delete from source where run in ({marks})",
            f"update run set parent = null, parent_seq = null where parent in ({marks})",
            f"delete from run where id in ({marks})",
        ):
            con.execute(statement, doomed)
        reset_search(con)
        _drop_unused(journal, con)
    shrink(journal)
    return Forgotten(runs, events, size)


def _family(con: sqlite3.Connection, run_id: int) -> list[int]:
    rows = con.execute(
        "with recursive family (id) as (values (?) union select r.id from run r join family f on r.parent = f.id "
        "where r.relation = 'subagent') select id from family",
        (run_id,),
    )
    return [row[0] for row in rows]


def _refuse_shared(con: sqlite3.Connection, doomed: list[int]) -> None:
    marks = ", ".join("?" * len(doomed))
    row = con.execute(
        f"select r.run from event e join source s on s.id = e.source join run r on r.id = s.run "
        f"where e.run in ({marks}) and s.run not in ({marks}) limit 1",
        (*doomed, *doomed),
    ).fetchone()
    if row:
        raise Refused(f"this subagent stands in the file of run {row[0]}: forget that run")


def _tombstones(con: sqlite3.Connection, doomed: list[int]) -> None:
    marks = ", ".join("?" * len(doomed))
    rows = con.execute(
        f"select cli, conversation, first_hash from run where id in ({marks})",
        doomed,
    ).fetchall()
    for cli, conversation, first_hash in rows:
        others = con.execute(
            f"select 1 from run where cli = ? and conversation is ? and agent = 'main' and id not in ({marks})",
            (cli, conversation, *doomed),
        ).fetchone()
        key = _key(cli, conversation, first_hash or b"") if others else _key(cli, conversation)
        con.execute(
            "insert into forgotten (hash, forgotten_at) select ?, ? where not exists (select 1 from forgotten where hash = ?)",
            (key, now_ms(), key),
        )


def _take_back_titles(con: sqlite3.Connection, doomed: list[int], survivors: Survivors) -> None:
    """A title that a forgotten file's summary line gave another run goes with it."""
    marks = ", ".join("?" * len(doomed))
    given: set[str] = set()
    for (extra,) in con.execute(f"select extra from run where id in ({marks}) and extra is not null", doomed):
        with suppress(ValueError, AttributeError):
            given.update(json.loads(extra).get("summaries", {}).values())
    for title in sorted(given):
        rows = con.execute(
            f"select id from run where title = ? and title_rank = 1 and id not in ({marks})", (title, *doomed)
        ).fetchall()
        for (run_id,) in rows:
            con.execute("update run set title = ?, title_rank = ? where id = ?", (*survivors.title(run_id), run_id))


def _pass_on_usage(con: sqlite3.Connection, doomed: list[int], survivors: Survivors) -> None:
    """Tokens that counted for a forgotten run count for the oldest copy that is left."""
    marks = ", ".join("?" * len(doomed))
    rows = con.execute(
        f"select c.run, c.seq, c.usage_key from event e join event c "
        f"on c.kind = 'usage' and c.usage_key = e.usage_key and c.counted = 0 "
        f"and c.run not in ({marks}) join run r on r.id = c.run "
        f"where e.run in ({marks}) and e.kind = 'usage' and e.counted = 1 order by coalesce(r.first_ts, 1 << 62), r.run",
        (*doomed, *doomed),
    ).fetchall()
    done: set[int] = set()
    counts: dict[int, dict[int, tuple[int, int, int, int]]] = {}
    for run, seq, key in rows:
        if key in done:
            continue
        done.add(key)
        if run not in counts:  # a message's usage is the greatest of all its lines, not what its first one says
            counts[run] = survivors.usage(run)
        tokens = counts[run].get(seq)
        if tokens is not None:
            con.execute(
                "update event set counted = 1, input_tokens = ?, output_tokens = ?, cache_read_tokens = ?, "
                "cache_write_tokens = ? where run = ? and seq = ?",
                (*tokens, run, seq),
            )


def used_blobs(con: sqlite3.Connection) -> set[int]:
    """Every blob that something refers to."""
    used: set[int] = set()
    for blob, lifted in con.execute("select blob, lifted from segment"):
        used.add(blob)
        used.update(get_varints(lifted)[1::2])
    return used


def _drop_unused(journal: Journal, con: sqlite3.Connection) -> None:
    """Drops blobs that nothing refers to, and writes the packs anew that held one (or lean on one that did)."""
    used = used_blobs(con)
    unused = [b for (b,) in con.execute("select id from blob") if b not in used]
    dirty: set[int] = set()
    for at in range(0, len(unused), 500):
        some = unused[at : at + 500]
        marks = ", ".join("?" * len(some))
        dirty.update(p for (p,) in con.execute(f"select distinct pack from blob where id in ({marks})", some))
    dirty.update(p for (p,) in con.execute("select id from pack where id not in (select pack from blob)"))
    while True:
        more = {p for p, prefix in con.execute("select id, prefix from pack where prefix is not null") if prefix in dirty}
        if more <= dirty:
            break
        dirty |= more
    if not dirty:
        return
    marks = ", ".join("?" * len(dirty))
    keep = [
        b for (b,) in con.execute(f"select id from blob where pack in ({marks}) order by pack, offset", tuple(dirty)) if b in used
    ]
    _pack_again(con, keep, codec.LIVE_LEVEL, PACK_SIZE, chain=False)
    con.executemany("delete from blob where id = ?", ((b,) for b in unused))
    con.executemany("delete from pack where id = ?", ((p,) for p in dirty))


def _pack_again(con: sqlite3.Connection, blobs: Iterable[int], level: int, size: int, *, chain: bool) -> None:
    """Writes blobs into new packs and points to them there. Each pack is read back and compared before it counts."""
    reader = Reader(con)
    plain: list[tuple[int, bytes]] = []
    total = 0
    before: tuple[int, bytes, int] | None = None

    def seal() -> None:
        nonlocal plain, total, before
        if not plain:
            return
        data = b"".join(part for _, part in plain)
        prefix = before if chain and before is not None and before[2] < MAX_CHAIN else None
        frame = codec.compress(data, level, prefix[1] if prefix else None, window_log=24 if chain else 0)
        if codec.decompress(frame, len(data), prefix[1] if prefix else None) != data:
            raise JournalDamaged("a pack did not read back as it was written: nothing was changed, run `bnd fsck`")
        cursor = con.execute(
            "insert into pack (codec, prefix, size, data) values (?, ?, ?, ?)",
            (codec.NAME, prefix[0] if prefix else None, len(data), frame),
        )
        pack = cursor.lastrowid
        assert pack is not None
        places, offset = [], 0
        for blob, part in plain:
            places.append((pack, offset, blob))
            offset += len(part)
        con.executemany("update blob set pack = ?, offset = ? where id = ?", places)
        before = (pack, data, (prefix[2] + 1) if prefix else 1)
        plain, total = [], 0

    for blob in blobs:
        part = reader.blob(blob)
        plain.append((blob, part))
        total += len(part)
        if total >= size:
            seal()
    seal()


def _project_order(con: sqlite3.Connection) -> Iterator[int]:
    """Blobs in the order of projects, runs and lines, so that like stands beside like."""
    seen: set[int] = set()
    rows = con.execute(
        "select g.blob, g.lifted from segment g join source s on s.id = g.source join run r on r.id = s.run "
        "order by r.project, r.cli, coalesce(r.started_at, 0), r.id, s.generation, g.line"
    ).fetchall()
    for blob, lifted in rows:
        for one in (*get_varints(lifted)[1::2], blob):
            if one not in seen:
                seen.add(one)
                yield one


@dataclass(slots=True)
class Collected:
    """What `gc` did: bytes of the file before and after."""

    before: int
    after: int
    packs: int


def gc(journal: Journal) -> Collected:
    """Drops what nothing refers to and packs everything again, better. A journal that is packed already stays as it is."""
    before = journal.path.stat().st_size
    con = journal.con
    (newest,) = con.execute("select coalesce(max(id), 0) from pack").fetchone()
    if newest == (journal.meta("packed") or 0) and newest:
        shrink(journal, force=False)
        return Collected(before, journal.path.stat().st_size, 0)
    with _deleting(journal) as con:
        used = used_blobs(con)
        con.executemany(
            "delete from blob where id = ?",
            [(b,) for (b,) in con.execute("select id from blob").fetchall() if b not in used],
        )
        old = [p for (p,) in con.execute("select id from pack")]
        _pack_again(con, _project_order(con), codec.PACKED_LEVEL, PACKED_SIZE, chain=True)
        con.executemany("delete from pack where id = ?", ((p,) for p in old))
        (newest,) = con.execute("select coalesce(max(id), 0) from pack").fetchone()
        con.execute("insert or replace into meta (key, value) values ('packed', ?)", (newest,))
        (packs,) = con.execute("select count(*) from pack").fetchone()
    con.execute("analyze")
    shrink(journal)
    return Collected(before, journal.path.stat().st_size, packs)


def shrink(journal: Journal, *, force: bool = True) -> None:
    """Leaves no old page in the file or its log. Raises `Blocked` where a reader holds on to them."""
    con = journal.con
    try:
        (free,) = con.execute("pragma freelist_count").fetchone()
        if force or free:
            con.execute("pragma busy_timeout = 2000")
            con.execute("vacuum")
        busy = con.execute("pragma wal_checkpoint(truncate)").fetchone()[0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            busy = 1
        else:
            raise translate(error, journal.path) from None
    finally:
        con.execute("pragma busy_timeout = 60000")
    if busy:
        raise Blocked(
            f"{journal.path} is being read by another process, so the old bytes are still in its log: "
            "end that process and run `bnd gc`"
        )
