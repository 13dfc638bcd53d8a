"""What is known only from several files together: subagents' parents, native forks, titles from elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

from beyond.journal import Journal

Key = tuple[str, str | None]
_AGENT_TOOLS = ("Task", "Agent", "AgentSwarm")


def relate(
    journal: Journal,
    conversations: Iterable[Key],
    calls: dict[tuple[str, str | None, str], str],
    titles: dict[int, str],
) -> None:
    """Links the runs of `conversations`. `calls`: the tool call that started each subagent, where a file said so.
    Writes only what changes."""
    con = journal.con
    changes: list[tuple[str, tuple[object, ...]]] = []
    keys = set(conversations)
    for key in sorted(keys, key=str):
        changes += _parents(con, key, calls)
        changes += _open_calls(con, key)
    for key in sorted(keys | _copies(con, keys), key=str):
        changes += _native_fork(con, key)
    for run, title in titles.items():
        row = con.execute("select title, coalesce(title_rank, -1) from run where id = ?", (run,)).fetchone()
        if row and row[1] <= 1 and row[0] != title:
            changes.append(("update run set title = ?, title_rank = 1 where id = ?", (title, run)))
    if changes:
        with journal.write() as write:
            for sql, values in changes:
                write.execute(sql, values)


def compared(journal: Journal, path: str, stat: tuple[int, int, int]) -> None:
    """Notes that a file, as it is now, was compared with what is recorded of it."""
    with journal.write() as con:
        con.execute("update file set size = ?, mtime_ns = ?, inode = ? where path = ?", (*stat, path))


def _runs(con: sqlite3.Connection, key: Key) -> list[tuple[int, str, int | None, int | None, str | None]]:
    return con.execute(
        "select id, agent, parent, parent_seq, relation from run where cli = ? and conversation is ? order by id", key
    ).fetchall()


def _copies(con: sqlite3.Connection, keys: Iterable[Key]) -> set[Key]:
    """Conversations that repeat API messages of these: recorded earlier, they find their original only now."""
    found: set[Key] = set()
    for key in keys:
        found.update(
            con.execute(
                "select distinct c.cli, c.conversation from run r join event e on e.run = r.id "
                "and e.kind = 'usage' and e.counted = 1 "
                "join event o on o.kind = 'usage' and o.usage_key = e.usage_key and o.counted = 0 join run c on c.id = o.run "
                "where r.cli = ? and r.conversation is ?",
                key,
            )
        )
    return found


def _parents(
    con: sqlite3.Connection, key: Key, calls: dict[tuple[str, str | None, str], str]
) -> list[tuple[str, tuple[object, ...]]]:
    runs = _runs(con, key)
    mains = [r for r in runs if r[4] != "subagent"]
    changes: list[tuple[str, tuple[object, ...]]] = []
    for run, agent, parent, parent_seq, relation in runs:
        if relation != "subagent":
            continue
        place = _call_of(con, runs, run, calls.get((*key, agent))) or _guess(con, mains, run)
        if place is None and parent is None and mains:
            place = (mains[0][0], None)
        if place is not None and place != (parent, parent_seq) and not (parent_seq is not None and place[1] is None):
            changes.append(("update run set parent = ?, parent_seq = ? where id = ?", (*place, run)))
    return changes


def _call_of(
    con: sqlite3.Connection,
    runs: list[tuple[int, str, int | None, int | None, str | None]],
    run: int,
    tool_id: str | None,
) -> tuple[int, int | None] | None:
    if tool_id is None:
        return None
    for other, *_ in runs:
        if other == run:
            continue
        row = con.execute(
            "select seq from event where run = ? and kind = 'tool_call' and tool_id = ? order by seq limit 1",
            (other, tool_id),
        ).fetchone()
        if row:
            return other, row[0]
    return None


def _guess(
    con: sqlite3.Connection, mains: list[tuple[int, str, int | None, int | None, str | None]], run: int
) -> tuple[int, int | None] | None:
    """For a subagent that stands in the conversation's own file: the last call of an agent tool before it."""
    place = con.execute("select source, min(line) from event where run = ? group by source", (run,)).fetchone()
    if place is None:
        return None
    marks = ", ".join("?" * len(_AGENT_TOOLS))
    for main, *_ in mains:
        row = con.execute(
            f"select seq from event where run = ? and kind = 'tool_call' and source = ? and line < ? and tool in ({marks}) "
            "order by line desc, part desc limit 1",
            (main, *place, *_AGENT_TOOLS),
        ).fetchone()
        if row:
            return main, row[0]
    return None


def _native_fork(con: sqlite3.Connection, key: Key) -> list[tuple[str, tuple[object, ...]]]:
    """A conversation that repeats API messages of an older run was forked or resumed from it by the CLI itself."""
    changes: list[tuple[str, tuple[object, ...]]] = []
    for run, _, _, _, relation in _runs(con, key):
        if relation is not None:
            continue
        row = con.execute(
            "select o.run, count(*) n from event e join event o on o.kind = 'usage' and o.usage_key = e.usage_key "
            "and o.run <> e.run "
            "and o.counted = 1 join run r on r.id = o.run where e.run = ? and e.kind = 'usage' "
            "and e.counted = 0 and r.agent = 'main' "
            "group by o.run order by n desc limit 1",
            (run,),
        ).fetchone()
        if row is None:
            continue
        # Equal links alone are no copy: the same words may have been said again. Copied lines keep their times.
        mine = set(con.execute("select link, ts from event where run = ? and link is not null", (run,)))
        shared = [
            seq
            for seq, *copied in con.execute("select seq, link, ts from event where run = ? and link is not null", (row[0],))
            if tuple(copied) in mine
        ]
        if shared:
            changes.append(
                (
                    "update run set relation = 'fork', parent = ?, parent_seq = ?, forked_at = ?, method = 'native' where id = ?",
                    (row[0], max(shared), max(shared), run),
                )
            )
    return changes


def _open_calls(con: sqlite3.Connection, key: Key) -> list[tuple[str, tuple[object, ...]]]:
    changes: list[tuple[str, tuple[object, ...]]] = []
    for run, *_ in _runs(con, key):
        (open_calls,) = con.execute(
            "select count(*) from event where run = ? and kind = 'tool_call' and active = 1 and result_seq is null",
            (run,),
        ).fetchone()
        (ended,) = con.execute("select ended from run where id = ?", (run,)).fetchone()
        wanted = "incomplete" if open_calls else "complete"
        followed = con.execute("select 1 from recorder where run = ?", (run,)).fetchone()
        if not followed and ended != wanted:
            changes.append(("update run set ended = ? where id = ?", (wanted, run)))
    return changes


def follow(journal: Journal, runs: Iterable[int], pid: int, now: int) -> None:
    """Notes that a process follows these runs: they are live."""
    with journal.write() as con:
        for run in runs:
            con.execute("delete from recorder where run = ?", (run,))
            con.execute("insert into recorder (run, pid, since) values (?, ?, ?)", (run, pid, now))
            con.execute("update run set ended = 'live' where id = ?", (run,))


def unfollow(journal: Journal, alive: Callable[[int], bool]) -> None:
    """Ends the following of every run whose process is not `alive` any more. Writes only where there is one."""
    rows = [(run, pid) for run, pid in journal.con.execute("select run, pid from recorder") if not alive(pid)]
    if not rows:
        return
    marks = ", ".join("?" * len(rows))
    runs = [run for run, _ in rows]
    with journal.write() as con:
        con.execute(f"delete from recorder where run in ({marks})", runs)
        con.execute(f"update run set ended = 'complete' where id in ({marks})", runs)
    keys = set(journal.con.execute(f"select cli, conversation from run where id in ({marks})", runs))
    relate(journal, keys, {}, {})
