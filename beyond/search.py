"""Full-text search over everything recorded.

The index is rebuildable and made when it is first asked for: FTS5, contentless, without positions (an eighth of the
text), keyed by run and seq. What it finds is checked on the real content: phrases, and the words themselves.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache

from beyond.errors import JournalDamaged, UsageError
from beyond.query import Query
from beyond.text import readable

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
#: The largest number of a run, and of an event, that has a place in the index.
_LAST = (1 << 31) - 1
#: Events, and characters, that one transaction puts into the index; events that are read at once.
_BATCH, _BATCH_TEXT, _PIECE = 5000, 8_000_000, 500
#: Writing systems without spaces between words: each character is a word in the index, and found as one.
_DENSE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
#: A character of a word, and a word, in folded text: as FTS5 cuts them.
_IN_WORD = rf"[^\W_{_DENSE}]"
_WORD = re.compile(rf"[{_DENSE}]|{_IN_WORD}+")
_DENSE_CHAR = re.compile(rf"[{_DENSE}]")
#: Accents that stand after their letter (decomposed text): FTS5 drops these from words, others end them.
_ACCENT = "\u0300-\u0304\u0306-\u030c\u030f\u0311\u031b\u0323-\u0328\u032d\u032e\u0330\u0331"
_ACCENTS = re.compile(f"[{_ACCENT}]")


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
    return "".join(char.lower() if char.isascii() else _folded(char) for char in text)


@lru_cache(4096)
def _folded(char: str) -> str:
    base = unicodedata.normalize("NFD", char)[:1].lower()
    return base if len(base) == 1 else char


@dataclass(frozen=True, slots=True)
class _Term:
    words: tuple[str, ...]
    prefix: bool
    #: For folded text without and with accents of their own.
    pattern: re.Pattern[str]
    accented: re.Pattern[str]


def parse(text: str) -> list[_Term]:
    """The terms of a search: words, "phrases in quotes", and prefixes*. All have to be there."""
    terms = []
    for match in re.finditer(r'"([^"]*)"?|(\S+)', text):
        phrase = match[1] if match[1] is not None else match[2]
        prefix = match[1] is None and phrase.endswith("*")
        words = tuple(_WORD.findall(_ACCENTS.sub("", fold(phrase))))
        if words:
            plain, accented = (re.compile(_pattern(words, prefix, accent)) for accent in ("", _ACCENT))
            terms.append(_Term(words, prefix, plain, accented))
    if not terms:
        raise UsageError(f"{text!r} holds no word to search for: give some letters or digits")
    return terms


def _pattern(words: tuple[str, ...], prefix: bool, accent: str) -> str:
    """What the words look like in folded text: whole words, one after another. `accent` may stand after each letter."""
    out = []
    inside, mark = (rf"(?:{_IN_WORD}|[{accent}])", f"[{accent}]*") if accent else (_IN_WORD, "")
    before = False  # whether the word before was a character of a dense writing system
    for number, word in enumerate(words):
        dense = _DENSE_CHAR.match(word) is not None
        if number:
            out.append(r"[\W_]*" if dense or before else r"[\W_]+")
        letters = re.escape(word) if not accent else "".join(re.escape(char) + mark for char in word)
        out.append(("" if dense else rf"(?<!{inside})") + letters)
        if not dense:
            last = number == len(words) - 1
            out.append(rf"{inside}*" if prefix and last else rf"(?!{inside})")
        before = dense
    return "".join(out)


def _match(terms: list[_Term]) -> str:
    parts = []
    for term in terms:
        parts += [f'"{word}"' for word in term.words]
        if term.prefix:
            parts[-1] += "*"
    return " AND ".join(parts)


def behind(con: sqlite3.Connection) -> int:
    """How many events are not in the index yet."""
    if not exists(con):
        (last,) = con.execute("select count(*) from event").fetchone()
        return int(last)
    if _spoilt(con):
        return 1
    rows = con.execute(
        "select r.events - coalesce(s.seq, 0) from run r left join search_state s on s.run = r.id "
        "where r.events > coalesce(s.seq, 0)"
    )
    return sum(left for (left,) in rows if isinstance(left, int))


def _spoilt(con: sqlite3.Connection) -> bool:
    """Whether the index says of a run that it holds more than there is, or what is no number: it is made again."""
    row = con.execute(
        "select 1 from search_state s join run r on r.id = s.run where typeof(s.seq) <> 'integer' or s.seq < 0 "
        "or s.seq > r.events limit 1"
    ).fetchone()
    return row is not None


def exists(con: sqlite3.Connection) -> bool:
    """Whether there is an index."""
    return con.execute("select 1 from sqlite_master where name = 'search_state'").fetchone() is not None


def update(
    con: sqlite3.Connection,
    write: Callable[[], AbstractContextManager[object]],
    content: Callable[[int, int, int], str],
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Brings the index up to date, run by run, each in a short transaction. `write` makes one."""
    if exists(con) and _spoilt(con):
        with write():
            reset(con)
    if not exists(con):
        with write():
            for statement in _TABLES.strip().split(";\n"):
                if statement.strip():
                    con.execute(statement)
    pending = con.execute(
        "select r.id, r.run, coalesce(s.seq, 0), r.events from run r left join search_state s on s.run = r.id "
        "where r.events > coalesce(s.seq, 0) order by r.id"
    ).fetchall()
    batch: list[_Batch] = []
    for run, name, done, last in pending:
        while done < last:
            # to the next events that there are: what a damaged file counts is no reason to go on for ever
            (upto,) = con.execute(
                "select max(seq) from (select seq from event where run = ? and seq > ? and seq <= ? order by seq limit ?)",
                (run, done, min(last, _LAST), _PIECE),
            ).fetchone()
            upto = last if upto is None or run > _LAST else upto
            rows = con.execute(
                "select seq, source, line, part from event where run = ? and seq > ? and seq <= ? and size > 0 "
                "order by source, line, part",
                (run, done, min(upto, _LAST) if run <= _LAST else 0),
            ).fetchall()
            texts = [(run << _SHIFT | seq, _text(content, source, line, part)) for seq, source, line, part in rows]
            batch.append(_Batch(run, name, done, upto, texts))
            done = upto
            if sum(b.upto - b.done for b in batch) >= _BATCH or sum(b.size for b in batch) >= _BATCH_TEXT:
                _put(con, write, batch, progress)
                batch = []
    _put(con, write, batch, progress)


class _Batch:
    """Texts of a run's events after `done` up to `upto`."""

    __slots__ = ("done", "name", "run", "size", "texts", "upto")

    def __init__(self, run: int, name: str, done: int, upto: int, texts: list[tuple[int, str]]) -> None:
        self.run, self.name, self.done, self.upto, self.texts = run, name, done, upto, texts
        self.size = sum(len(text) for _, text in texts)


def _put(
    con: sqlite3.Connection,
    write: Callable[[], AbstractContextManager[object]],
    batch: list[_Batch],
    progress: Callable[[int], None],
) -> None:
    """Writes texts into the index, unless another process did so, or the run was forgotten, in the meantime."""
    if not batch:
        return
    with write():
        for piece in batch:
            state = con.execute("select seq from search_state where run = ?", (piece.run,)).fetchone()
            there = con.execute("select 1 from run where id = ? and run = ?", (piece.run, piece.name)).fetchone()
            if (state[0] if state else 0) != piece.done or not there:
                continue
            con.executemany("insert into search (rowid, text) values (?, ?)", piece.texts)
            con.execute("delete from search_state where run = ?", (piece.run,))
            con.execute("insert into search_state (run, seq) values (?, ?)", (piece.run, piece.upto))
    for piece in batch:
        progress(piece.upto - piece.done)


def _text(content: Callable[[int, int, int], str], source: int, line: int, part: int) -> str:
    """The text of an event as it goes into the index; of what is damaged nothing does (`fsck` names it)."""
    try:
        text = content(source, line, part)
    except JournalDamaged:
        return ""
    return text if text.isascii() else _DENSE_CHAR.sub(r" \g<0> ", text)


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
    damaged: Callable[[JournalDamaged], None] = lambda _: None,
) -> Iterator[Hit]:
    """Steps that hold all terms of `text`, newest first. Without an index every content is looked through.
    `damaged` is told of contents that can't be read."""
    terms = parse(text)
    where, values = ["e.size > 0"], list[object]()
    if indexed:
        where.append("s.search match ?")
        values.append(_match(terms))
    if run is not None:
        where.append("e.run = ?")
        values.append(run)
    if kinds:
        where.append(f"e.kind in ({', '.join('?' * len(kinds))})")
        values += kinds
    if project is not None:
        below = project.rstrip("/") + "/"
        where.append("(r.project = ? or substr(r.project, 1, ?) = ?)")
        values += [project, len(below), below]
    source = "event e join run r on r.id = e.run"
    if indexed:
        source = (
            f"search s join event e on e.run = s.rowid >> {_SHIFT} and e.seq = s.rowid & {(1 << _SHIFT) - 1} "
            "join run r on r.id = e.run"
        )
    sql = (
        "select r.run, e.seq, bnd_time(e.ts), e.kind, e.tool, coalesce(r.label, r.title, ''), e.source, e.line, e.part "
        f"from {source} where {' and '.join(where)} order by e.ts desc, e.run desc, e.seq desc"
    )
    for name, seq, ts, kind, tool, title, place, line, part in query.rows(query.execute(sql, values)):
        try:
            content = query.content(place, line, part)
        except JournalDamaged as error:
            damaged(error)
            continue
        folded = fold(content)
        accented = not folded.isascii() and _ACCENTS.search(folded) is not None
        patterns = [term.accented if accented else term.pattern for term in terms]
        found = [pattern.search(folded) for pattern in patterns]
        if all(found):
            snippet, marks = _snippet(content, folded, patterns, min(m.start() for m in found if m))
            yield Hit(str(name), seq, ts, str(kind), readable(tool, text=True), readable(title, text=True), snippet, marks)


def _snippet(content: str, folded: str, patterns: list[re.Pattern[str]], first: int) -> tuple[str, tuple[tuple[int, int], ...]]:
    """About 160 characters around the first place, on one line, and where the terms are in them."""
    start = max(first - 50, 0)
    end = min(start + 160, len(content))
    line = re.sub(r"\s", " ", content[start:end])
    marks = []
    for pattern in patterns:
        marks += [(m.start() - start, m.end() - start) for m in pattern.finditer(folded, start, end)]
    head, tail = "…" if start else "", "…" if end < len(content) else ""
    marks = sorted((a + len(head), b + len(head)) for a, b in marks)
    return head + line + tail, tuple(marks)
