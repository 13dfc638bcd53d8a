"""Reading many new files on several cores.

A worker process reads a group of files, derives their events and compresses their packs, with a connection that only
reads. Everything is written by the one writer, which checks again what the worker assumed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from beyond.blob import Reader
from beyond.errors import BeyondError
from beyond.ingest.found import Found
from beyond.journal import Journal
from beyond.journal.append import Batch, PackBuilder, Packed
from beyond.record.rows import UNREADABLE
from beyond.record.session import CHUNK, Empty, Report, Session

#: A larger file is read in pieces by the writer itself.
MAX_PREPARED = CHUNK
#: Bytes of new files below which starting workers costs more than it saves.
WORTH_PREPARING = 24 * 1024 * 1024
#: Bytes of files that a worker takes at a time: their packs are shared.
_GROUP = 12 * 1024 * 1024


@dataclass(slots=True)
class Prepared:
    """A file's batch and what else was learned from it."""

    batch: Batch
    report: Report


@dataclass(slots=True)
class PreparedGroup:
    """The files of a group that could be prepared: the first ones, up to one that is any trouble."""

    batches: list[Prepared]
    packed: Packed


class _ReadOnly:
    """What preparing needs of a journal."""

    def __init__(self, path: Path) -> None:
        self.con = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None, timeout=60)
        self.reader = Reader(self.con)

    def meta(self, key: str) -> str | int | None:
        row = self.con.execute("select value from meta where key = ?", (key,)).fetchone()
        return row[0] if row else None


class _Here:
    """Runs calls at once: a worker has no second core to itself."""

    def submit(self, fn: Any, /, *args: Any) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(fn(*args))
        return future


_journal: _ReadOnly | None = None


def _start(path: str, parent: int) -> None:
    """Sets a worker up: Ctrl-C is the parent's to see, and a parent that was killed takes its workers along."""
    global _journal  # noqa: PLW0603
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    gc.disable()  # parsed lines are freed by their counts; looking for circles among them costs a tenth of the time
    gc.freeze()
    _journal = _ReadOnly(Path(path))


def _prepare(founds: list[Found]) -> PreparedGroup:
    assert _journal is not None
    builder = PackBuilder(_journal, _Here())
    done: list[Prepared] = []
    session = None
    for found in founds:
        session = Session(_journal, found)
        try:
            session.open()
            if not session.created:
                break
            batch = next(session.batches(builder))
            if session.more:
                break
        except (BeyondError, Empty, OSError, *UNREADABLE):
            break
        session.done(batch)
        done.append(Prepared(batch, session.report()))
    packed = builder.take()
    del session
    gc.collect()  # a session and its ingester are such a circle
    return PreparedGroup(done, packed)


def _groups(founds: Sequence[Found]) -> Iterator[list[Found]]:
    """Files that follow each other, up to a size. A conversation's files may part: they are runs of their own."""
    group: list[Found] = []
    size = 0
    for found in founds:
        group.append(found)
        size += found.stat[0]
        if size >= _GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def prepare_groups(journal: Journal, founds: Sequence[Found]) -> Iterator[tuple[list[Found], PreparedGroup]]:
    """Prepares files on several cores; yields each group with what came of it, in order. A file that a group left out
    is the caller's to record."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    if not founds or workers < 2 or threading.active_count() > 1:
        return
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(workers, context, _start, (str(journal.path), os.getpid())) as pool:
        waiting: deque[tuple[list[Found], Future[PreparedGroup]]] = deque()
        try:
            for group in _groups(founds):
                waiting.append((group, pool.submit(_prepare, group)))
                if len(waiting) > workers + 1:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
