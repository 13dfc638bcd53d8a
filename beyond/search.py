"""Full-text search over everything recorded.

The index is rebuildable and made when it is first asked for: FTS5, contentless, without positions (an eighth of the
text), keyed by run and seq. What it finds is checked on the real content: phrases, and the words themselves.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from beyond.errors import UsageError
from beyond.query import Query

_TABLES = """
create virtual table if not exists search using fts5 (
    text, content = '', detail = none, columnsize = 0, tokenize = "unicode61 remove_diacritics 2"
);
create table if not exists search_state (
    run integer primary key,        -- run (run.id)
    seq integer not null            -- events up to here are in the index
);
"""
_SHIFT = 32
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Hit:
    """A step that holds the text. `snippet` is one line; `marks` are the places of the words in it."""

    run: str
    seq: int
    ts: str | None
    kind: str
    tool: str | None
    title: str
    snippet: str
    marks: tuple[tuple[int, int], ...]


def fold(text: str) -> str:
    """`text` without case and accents, every character in its place."""
    if text.isascii():
        return text.lower()
    out = []
    for char in text:
        base = unicodedata.normalize("NFKD", char)[:1].lower()
        out.append(base if len(base) == 1 else char)
    return "".join(out)


@dataclass(frozen=True, slots=True)
class _Term:
    words: tuple[str, ...]
    prefix: bool
    pattern: re.Pattern[str]


def parse(text: str) -> list[_Term]:
    """The terms of a search: words, "phrases in quotes", and prefixes*. All have to be there."""
    terms = []
    for match in re.finditer(r'"([^"]*)"?|(\S+)', text):
        phrase = match[1] if match[1] is not None else match[2]
        prefix = match[1] is None and phrase.endswith("*")
        words = tuple(_WORD.findall(fold(phrase)))
        if words:
            pattern = r"\b" + r"\W+".join(map(re.escape, words)) + (r"\w*" if prefix else r"\b")
            terms.append(_Term(words, prefix, re.compile(pattern)))
    if not terms:
        raise UsageError(f"{text!r} holds no word to search for: give some letters or digits")
    return terms


def _match(terms: list[_Term]) -> str:
    parts = []
    for term in terms:
        for number, word in enumerate(term.words, 1):
            # FTS5 splits at the underscore, which \w keeps together
            pieces = [p for p in word.split("_") if p]
            parts += [f'"{p}"' for p in pieces[:-1]]
            if pieces:
                star = "*" if term.prefix and number == len(term.words) else ""
                parts.append(f'"{pieces[-1]}"{star}')
    return " AND ".join(parts)


def behind(con: sqlite3.Connection) -> int:
    """How many events are not in the index yet."""
    if not _exists(con):
        row = con.execute("select coalesce(sum(events), 0) from run").fetchone()
    else:
        row = con.execute(
            "select coalesce(sum(r.events - coalesce(s.seq, 0)), 0) from run r left join search_state s on s.run = r.id"
        ).fetchone()
    return int(row[0])


def _exists(con: sqlite3.Connection) -> bool:
    return con.execute("select 1 from sqlite_master where name = 'search_state'").fetchone() is not None


def update(
    con: sqlite3.Connection,
    write: Callable[[], object],
    content: Callable[[int, int, int], str],
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Brings the index up to date, run by run, each in a short transaction. `write` makes one."""
    if not _exists(con):
        with write():  # type: ignore[attr-defined]
            for statement in _TABLES.strip().split(";\n"):
                if statement.strip():
                    con.execute(statement)
    pending = con.execute(
        "select r.id, coalesce(s.seq, 0), r.events from run r left join search_state s on s.run = r.id "
        "where r.events > coalesce(s.seq, 0) order by r.id"
    ).fetchall()
    for run, done, last in pending:
        while done < last:
            upto = min(done + 5000, last)
            rows = con.execute(
                "select seq, source, line, part from event where run = ? and seq > ? and seq <= ? and size > 0 "
                "order by source, line, part",
                (run, done, upto),
            ).fetchall()
            texts = [(run << _SHIFT | seq, content(source, line, part)) for seq, source, line, part in rows]
            with write():  # type: ignore[attr-defined]
                state = con.execute("select seq from search_state where run = ?", (run,)).fetchone()
                if (state[0] if state else 0) != done:
                    break  # another process indexes this run
                con.executemany("insert into search (rowid, text) values (?, ?)", texts)
                if state:
                    con.execute("update search_state set seq = ? where run = ?", (upto, run))
                else:
                    con.execute("insert into search_state (run, seq) values (?, ?)", (run, upto))
            progress(upto - done)
            done = upto


def reset(con: sqlite3.Connection) -> None:
    """Drops the index with all that is in it; the next search makes it again."""
    con.execute("drop table if exists search")
    con.execute("drop table if exists search_state")


def find(
    query: Query,
    text: str,
    *,
    run: int | None = None,
    kinds: tuple[str, ...] = (),
    project: str | None = None,
    indexed: bool,
) -> Iterator[Hit]:
    """Steps that hold all terms of `text`, newest first. Without an index every content is looked through."""
    terms = parse(text)
    where, values = ["e.size > 0"], []
    if run is not None:
        where.append("e.run = ?")
        values.append(run)
    if kinds:
        where.append(f"e.kind in ({', '.join('?' * len(kinds))})")
        values += list(kinds)  # type: ignore[arg-type]
    if project is not None:
        where.append("(r.project = ? or substr(r.project, 1, ?) = ?)")
        values += [project, len(project) + 1, project.rstrip("/") + "/"]  # type: ignore[list-item]
    source = "event e join run r on r.id = e.run"
    if indexed:
        source = (
            f"search s join event e on e.run = s.rowid >> {_SHIFT} and e.seq = s.rowid & {(1 << _SHIFT) - 1} "
            "join run r on r.id = e.run"
        )
        where.insert(0, "s.search match ?")
        values.insert(0, _match(terms))  # type: ignore[arg-type]
    sql = (
        "select r.run, e.seq, bnd_time(e.ts), e.kind, e.tool, coalesce(r.label, r.title, ''), e.source, e.line, e.part "
        f"from {source} where {' and '.join(where)} order by e.ts desc, e.run desc, e.seq desc"
    )
    for name, seq, ts, kind, tool, title, place, line, part in query.rows(query.execute(sql, values)):
        content = query.content(place, line, part)
        folded = fold(content)
        found = [term.pattern.search(folded) for term in terms]
        if all(found):
            snippet, marks = _snippet(content, folded, terms, min(m.start() for m in found if m))
            yield Hit(name, seq, ts, kind, tool, title, snippet, marks)


def _snippet(content: str, folded: str, terms: list[_Term], first: int) -> tuple[str, tuple[tuple[int, int], ...]]:
    """About 160 characters around the first place, on one line, and where the terms are in them."""
    start = max(first - 50, 0)
    end = min(start + 160, len(content))
    line = re.sub(r"\s", " ", content[start:end])
    marks = []
    for term in terms:
        marks += [(m.start() - start, m.end() - start) for m in term.pattern.finditer(folded, start, end)]
    head, tail = "…" if start else "", "…" if end < len(content) else ""
    marks = sorted((a + len(head), b + len(head)) for a, b in marks)
    return head + line + tail, tuple(marks)
