"""The journal file, and the only way to write to it.

Writers take the lock first (``BEGIN IMMEDIATE``): a deferred transaction that reads, then writes beside another
writer fails at once in spite of the busy timeout. What was committed survives ``kill -9``.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from beyond.blob import Reader
from beyond.errors import JournalBusy, JournalDamaged, JournalError, NewerJournal, NotFound
from beyond.migrations import APPLICATION_ID, FORMAT, migrate

__all__ = ["APPLICATION_ID", "FORMAT", "Journal", "check", "default_path", "home", "reading", "translate", "uri"]

#: How long a writer waits for another one, in seconds.
BUSY_TIMEOUT = 60.0
_MAGIC = b"SQLite format 3\0"


def home() -> Path:
    """The folder of everything that is beyond's own: ``BND_HOME``, else ``~/.bnd``."""
    return Path(os.environ.get("BND_HOME") or Path.home() / ".bnd")


def default_path() -> Path:
    """The journal that is used where none is named: ``BND_JOURNAL``, else ``journal.db`` in `home`."""
    named = os.environ.get("BND_JOURNAL")
    return Path(named) if named else home() / "journal.db"


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def translate(error: sqlite3.Error | UnicodeDecodeError, path: Path | str) -> JournalError:
    """What an error of SQLite (or one whose text, quoting a damaged file, is no UTF-8) means for the user of the journal
    at `path`."""
    text = "malformed schema" if isinstance(error, UnicodeDecodeError) else str(error)
    low = text.lower()
    if "locked" in low or "busy" in low:
        return JournalBusy(f"{path} is being written by another process: try again when it is done")
    if "full" in low:
        return JournalError(f"the disk of {path} is full: free some space and run the command again; nothing was lost")
    if "readonly" in low or "read-only" in low:
        return JournalError(f"{path} can't be written: check its permissions, or choose another journal with -j")
    if "could not decode" in low:  # SQLite quotes the bytes: they say nothing
        return JournalDamaged(f"{path} is damaged: a text in it is no UTF-8: run `bnd fsck`, which names it, or restore a copy")
    if "malformed" in low or "not a database" in low or "corrupt" in low:
        return JournalDamaged(
            f"{path} is damaged ({text}): restore a copy, or save what is readable with `sqlite3 {path} .recover`; "
            "it was not changed"
        )
    if "disk i/o" in low or "unable to open" in low:
        return JournalError(f"{path} can't be opened ({text}): check the folder and its permissions")
    return JournalError(f"{path}: {text}")


def check(path: Path) -> bool:
    """Looks at a journal file without SQLite. True: it is there; False: it is missing or empty (a new one).

    Raises `JournalError` for what is no SQLite file or is cut off.
    """
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise JournalError(f"{path} is not a file: choose a journal file with -j")
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return False
    except PermissionError:
        raise JournalError(f"{path} can't be read: check its permissions, or choose another journal with -j") from None
    except NotADirectoryError:
        raise JournalError(f"{path} lies in something that is no folder: choose another journal with -j") from None
    if size == 0:
        return False
    if not head.startswith(_MAGIC):
        raise JournalError(f"{path} is not a journal (no SQLite file): choose another one with -j; it was not changed")
    page_size = int.from_bytes(head[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(head[28:32], "big")
    current = head[24:28] == head[92:96]
    wal = path.with_name(path.name + "-wal")
    waiting = wal.exists() and wal.stat().st_size > 0
    if current and not waiting and pages * page_size > size:
        raise JournalDamaged(
            f"{path} is cut off at byte {size} of {pages * page_size}: restore a copy, or save what is readable with "
            f"`sqlite3 {path} .recover`; it was not changed"
        )
    return True


def uri(path: Path, options: str) -> str:
    """A file as SQLite takes it with options; its name may be any bytes."""
    return f"file:{quote(os.fsencode(path.absolute()))}?{options}"


def reading(path: Path) -> sqlite3.Connection:
    """A connection to the journal at `path` that only reads; also where its folder can't be written, as long as nothing
    waits in its log there."""
    try:
        return _opened(path, "mode=ro")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if os.access(path.parent, os.W_OK) and os.access(path, os.W_OK):
            raise translate(error, path) from None
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size:
        raise JournalError(f"{path} can't be read here without losing what stands in its log: copy it with {log.name} elsewhere")
    try:
        return _opened(path, "mode=ro&immutable=1")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise translate(error, path) from None


def _opened(path: Path, options: str) -> sqlite3.Connection:
    con = sqlite3.connect(uri(path, options), uri=True, isolation_level=None, timeout=30)
    try:
        con.execute("select count(*) from sqlite_master").fetchone()
    except BaseException:
        con.close()
        raise
    return con


def identify(con: sqlite3.Connection, path: Path) -> int:
    """The format of an open journal, 0 for an empty file. Raises for another program's or a newer beyond's file."""
    (application,) = con.execute("pragma application_id").fetchone()
    (version,) = con.execute("pragma user_version").fetchone()
    if application != APPLICATION_ID:
        (tables,) = con.execute("select count(*) from sqlite_master").fetchone()
        if tables:
            raise JournalError(f"{path} is another program's database: choose a journal with -j; it was not changed")
        return 0
    if version > FORMAT:
        raise NewerJournal(
            f"{path} was made by a newer beyond (format {version}, this one knows {FORMAT}): "
            "upgrade with `pip install -U beyond-ai`; it was not changed"
        )
    return int(version)


class Journal:
    """A journal that is open for writing. Use as a context manager."""

    def __init__(self, path: Path, con: sqlite3.Connection) -> None:
        self.path = path
        self.con = con
        self.reader = Reader(con)
        self.warnings: list[str] = []
        self._wrote = False

    @classmethod
    def open(cls, path: Path | str | None = None, *, create: bool = True, timeout: float = BUSY_TIMEOUT) -> Journal:
        """Opens the journal at `path` (default: `default_path`), makes it where `create`, and migrates an older one."""
        path = Path(path) if path is not None else default_path()
        there = check(path)
        if not there and not create:
            raise NotFound(f"{path}: there is no journal yet: make one with `bnd record`")
        if not there:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JournalError(f"{path.parent} can't be made ({error.strerror}): choose another journal") from None
        try:
            con = sqlite3.connect(path, isolation_level=None, timeout=timeout, check_same_thread=False)
        except sqlite3.Error as error:
            raise translate(error, path) from None
        try:
            journal = cls(path, con)
            journal._prepare(timeout)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            con.close()
            raise translate(error, path) from None
        except BaseException:
            con.close()
            raise
        return journal

    @classmethod
    def inspect(cls, path: Path | str | None = None) -> Journal:
        """`open` for what need not write: where the journal can't be written, it is read as it is."""
        path = Path(path) if path is not None else default_path()
        try:
            return cls.open(path, create=False)
        except JournalError as error:
            if type(error) is not JournalError or (os.access(path.parent, os.W_OK) and os.access(path, os.W_OK)):
                raise
        con = reading(path)
        try:
            if identify(con, path) == 0:
                raise NotFound(f"{path}: there is no journal yet: make one with `bnd record`")
        except BaseException:
            con.close()
            raise
        return cls(path, con)

    def _prepare(self, timeout: float) -> None:
        con = self.con
        version = identify(con, self.path)
        con.execute("pragma trusted_schema = off")
        con.execute("pragma recursive_triggers = on")
        con.execute("pragma synchronous = full")
        con.execute("pragma journal_size_limit = 1048576")
        con.execute("pragma cache_size = -32768")
        if version == FORMAT:
            return
        if version == 0:
            con.execute("pragma page_size = 8192")
            self._enter_wal(timeout)
        with self.write():
            if identify(con, self.path) != FORMAT:
                migrate(con)

    def _enter_wal(self, timeout: float) -> None:
        """Write-ahead logging, where the file system can do it (it needs shared memory: not on network mounts)."""
        until = time.monotonic() + timeout
        while True:
            try:
                (mode,) = self.con.execute("pragma journal_mode = wal").fetchone()
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.02)
        if mode != "wal":
            self.warnings.append(f"{self.path}: this file system can't share memory, so readers wait for writers")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is kept, or nothing."""
        con = self.con
        try:
            con.execute("begin immediate")
        except sqlite3.Error as error:
            raise translate(error, self.path) from None
        self._wrote = True
        try:
            yield con
            con.execute("commit")
        except sqlite3.Error as error:
            if con.in_transaction:
                con.execute("rollback")
            raise translate(error, self.path) from error
        except BaseException:
            if con.in_transaction:
                con.execute("rollback")
            raise

    @contextmanager
    def bulk(self) -> Iterator[None]:
        """For many transactions in a row: they are synced to the disk together, at the end. A process that is killed
        loses nothing that was committed; a power cut may lose the last of them, never a part of one."""
        self.con.execute("pragma synchronous = normal")
        self.con.execute("pragma wal_autocheckpoint = 8000")
        try:
            yield
        finally:
            self.con.execute("pragma synchronous = full")
            self.con.execute("pragma wal_autocheckpoint = 1000")
            if self._wrote:
                self.con.execute("pragma wal_checkpoint(passive)")

    def meta(self, key: str) -> str | int | None:
        """A property of the file."""
        row = self.con.execute("select value from meta where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Closes the file; what was written is moved from the log into it if no reader is in the way."""
        try:
            if self._wrote:
                self.con.execute("pragma busy_timeout = 100")
                self.con.execute("pragma wal_checkpoint(truncate)")
        except sqlite3.Error:
            pass
        self.con.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None:
                from beyond.journal.verify import blame

                if (damage := blame(self.con, self.path, error)) is not None:
                    raise damage from error
        finally:
            self.close()
