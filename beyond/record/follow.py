"""Recording while it happens: new conversations and new lines, within a second."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.errors import BeyondError, JournalBusy, NotARepository, UsageError
from beyond.journal import Journal, now_ms, relate
from beyond.journal.forget import is_forgotten, remember
from beyond.naming import inside
from beyond.record import Outcome, Recorder, find, process_alive
from beyond.record.checkpoints import Checkpointer
from beyond.record.hooks import install
from beyond.record.rows import UNREADABLE
from beyond.record.session import Empty, Session
from beyond.store import Found

#: Seconds between two looks at the followed files, and between two looks for new ones.
POLL, SCAN = 0.2, 0.6
#: Between two looks where checkpoints are taken: the sooner, the less has changed since the step.
QUICK_POLL, QUICK_SCAN = 0.05, 0.25


class Follower:
    """Follows the conversations of one directory (or all, or the ones named), until stopped."""

    def __init__(
        self,
        journal: Journal,
        names: list[str],
        *,
        directory: Path | None,
        named: list[Found] | None,
        label: str | None,
        tell: Callable[[Outcome], None],
        checkpoints: Checkpointer | None = None,
    ) -> None:
        self._recorder = Recorder(journal, label)
        self._journal = journal
        self._names = names
        self._directory = directory
        self._named = named
        self._label = label
        self._tell = tell
        self._checkpoints = checkpoints
        self._open: dict[str, Session] = {}
        self._ignored: dict[str, tuple[int, int, int]] = {}
        self._here: dict[str, bool] = {}
        self._complained: set[str] = set()
        #: Files of forgotten conversations with the hash of their first line; files that were recorded once.
        self._forgotten: dict[str, bytes] = {}
        self._asked: set[str] = set()
        #: Conversations that were there before: the files of the beginning are not those of their first steps.
        self._before = {str(found.path) for found in self._candidates()} if checkpoints is not None else set()
        self.stop = threading.Event()

    def run(self) -> None:
        """Follows until `stop` is set."""
        try:
            scanned = 0.0
            while not self.stop.is_set():
                now = time.monotonic()
                if now - scanned >= (SCAN if self._checkpoints is None else QUICK_SCAN) or scanned == 0.0:
                    for found in self._candidates():
                        self._take_up(found)
                    scanned = now
                for path, session in list(self._open.items()):
                    self._look(path, session)
                if self._checkpoints is not None:
                    self._checkpoints.take_notes()
                self._recorder.finish()
                self.stop.wait(POLL if self._checkpoints is None else QUICK_POLL)
        finally:
            for path, session in list(self._open.items()):
                self._look(path, session)
                self._compare(path)
            self._recorder.finish()
            if self._checkpoints is not None:
                self._checkpoints.close()
            relate.unfollow(self._journal, lambda pid: pid != os.getpid() and process_alive(pid))
            self._recorder.close()

    def _candidates(self) -> Iterator[Found]:
        if self._named is not None:
            yield from self._named
            main = self._named[0]
            with contextlib.suppress(BeyondError, OSError):
                yield from find(str(main.path), main.cli)[1:]
            return
        for name in self._names:
            for found in agents.conversations(name):
                if self._directory is None or self._belongs(found):
                    yield found

    def _belongs(self, found: Found) -> bool:
        """Whether a file is of this directory; asked once for each, as long as the answer can't change."""
        # An older subagent's file doesn't name its conversation: it is asked itself.
        key = f"{found.cli}\0{found.conversation or found.path}"
        if found.agent != "main" and found.conversation is not None:
            return self._here.get(key, False)
        if not self._here.get(key):
            try:
                self._here[key] = agents.belongs_to(found, str(self._directory))
            except OSError:
                return False
        return self._here[key]

    def _take_up(self, found: Found) -> None:
        path = str(found.path)
        if path in self._open or self._ignored.get(path) == found.stat or self._is_forgotten(path, found):
            return
        self._start(found)

    def _is_forgotten(self, path: str, found: Found) -> bool:
        """Whether a file was found to be of a forgotten conversation, and nobody asked for it since."""
        first_hash = self._forgotten.get(path)
        return first_hash is not None and is_forgotten(self._journal.con, found.cli, found.conversation, first_hash)

    def _start(self, found: Found) -> None:
        path = str(found.path)
        session = Session(self._journal, found, self._label)
        outcome = Outcome(found.path, found.cli, found.agent)
        try:
            found.look()
            session.open()
            if session.created and is_forgotten(self._journal.con, found.cli, found.conversation, session.first_hash):
                if self._named is None or path in self._asked:
                    self._forgotten[path] = session.first_hash
                    return
                remember(self._journal, found.cli, found.conversation, session.first_hash)
            self._asked.add(path)
            self._recorder.follow(session, outcome)
            self._recorder.finish()
            if outcome.status == "forgotten":
                self._forgotten[path] = session.first_hash
                return
            session.compared = False
        except Empty:
            self._ignored[path] = found.stat
            return
        except (BeyondError, OSError, *UNREADABLE) as error:
            if isinstance(error, JournalBusy):
                return
            self._ignored[path] = found.stat
            if path not in self._complained:
                self._complained.add(path)
                outcome.status, outcome.warnings = "failed", [str(error)]
                self._tell(outcome)
            return
        self._open[path] = session
        self._set_live(session)
        self._tell(outcome)
        self._checkpoint(session, 0, begin=True)

    def _look(self, path: str, session: Session) -> None:
        before = session.found.stat
        try:
            session.found.look()
        except OSError:
            return  # gone: what is recorded stays; it may come back
        if session.found.stat == before:
            return
        try:
            edited = session.found.stat[0] == before[0]  # nothing was added, and yet it was written
            if session.found.stat[2] != before[2] or session.overtaken() or (edited and session.differs()):
                del self._open[path]
                self._start(session.found)
                return
            last = self._last_seq(session)
            outcome = self._take_in(session)
            if outcome.status == "forgotten":
                del self._open[path]
                self._forgotten[path] = session.first_hash
                return
            if outcome.status == "extended":
                self._checkpoint(session, last)
        except JournalBusy:
            session.found.stat = before
        except OSError:
            del self._open[path]

    def _compare(self, path: str) -> None:
        """At the end: an edit far before the seam was not seen while the file grew."""
        session = self._open.get(path)
        if session is None:
            return
        with contextlib.suppress(BeyondError, OSError):
            if session.differs():
                del self._open[path]
                self._start(session.found)
            elif not session.compared:
                relate.compared(self._journal, path, session.found.stat)

    def _take_in(self, session: Session) -> Outcome:
        """Records what is new in a followed file, and says so."""
        outcome = Outcome(session.found.path, session.found.cli, session.found.agent)
        lines, events = session.new_lines, session.new_events
        self._recorder.follow(session, outcome, always=False)
        if outcome.status != "forgotten" and (session.new_events > events or session.new_lines > lines):
            outcome.new_events = session.new_events - events
            outcome.new_lines = session.new_lines - lines
            outcome.status = "extended"
            self._tell(outcome)
        return outcome

    def _last_seq(self, session: Session) -> int:
        return session.threads["main"].next_seq

    def _checkpoint(self, session: Session, since: int, *, begin: bool = False) -> None:
        """Keeps the files where something new in a conversation calls for it."""
        points, thread = self._checkpoints, session.threads["main"]
        if points is None or thread.run_id is None or self._last_seq(session) == since:
            return
        row = self._journal.con.execute("select project, relation, parent from run where id = ?", (thread.run_id,)).fetchone()
        if row is None or (row[0] and not inside(os.path.realpath(row[0]), str(points.toplevel))):
            return
        if row[1] == "subagent":
            done = self._journal.con.execute(
                "select 1 from event where run = ? and seq > ? and kind = 'tool_result'", (thread.run_id, since)
            ).fetchone()
            if done and row[2] is not None and not begin:
                points.beside(row[2])
            return
        new = session.created and str(session.found.path) not in self._before
        if begin:
            points.begin(thread.run_id, new=new)
        if new or not begin:
            points.follow(thread.run_id, since, lambda: self._catch_up(session))

    def _catch_up(self, session: Session) -> None:
        """Takes in what was written while a checkpoint was taken."""
        with contextlib.suppress(OSError, JournalBusy):
            session.found.look()
            if not session.overtaken():
                self._take_in(session)

    def _set_live(self, session: Session) -> None:
        ids = [t.run_id for t in session.threads.values() if t.run_id is not None]
        if ids:
            relate.follow(self._journal, ids, os.getpid(), now_ms())


def follow(
    settings: Any,
    names: list[str],
    *,
    what: str | None,
    everything: bool,
    label: str | None,
    report: Callable[..., int],
    git: bool = True,
    hooks: bool = False,
) -> int:
    """Follows until Ctrl-C or SIGTERM, which are a normal end. Returns the exit code."""
    named = find(what, names[0] if len(names) == 1 else None) if what else None
    directory = None if everything or named else Path.cwd().resolve()

    def tell(outcome: Outcome) -> None:
        report([outcome], as_json=settings.json, quiet=settings.quiet, verbose=settings.verbose)
        sys.stdout.flush()

    with Journal.open(settings.journal) as journal:
        points = _checkpoints(journal, names if hooks else []) if git and not everything else None
        if hooks and points is None:
            raise UsageError("--hooks takes checkpoints of one git repository: run it in one, without --all and --no-git")
        follower = Follower(journal, names, directory=directory, named=named, label=label, tell=tell, checkpoints=points)

        def stop(*_: object) -> None:
            follower.stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        if not settings.quiet and not settings.json:
            place = "every store here" if everything else what or str(directory)
            kept = f", checkpoints of {points.toplevel}" if points is not None else ""
            print(f"following {place}{kept}: Ctrl-C ends it", file=sys.stderr, flush=True)
        follower.run()
    return 0


def _checkpoints(journal: Journal, hooked: list[str]) -> Checkpointer | None:
    """A checkpointer of the repository that this is; None outside of one. `hooked`: the CLIs whose hooks are installed."""
    put = (lambda toplevel: install(hooked, toplevel)) if hooked else None
    try:
        return Checkpointer(journal, Path.cwd(), lambda text: print(f"bnd: {text}", file=sys.stderr, flush=True), put)
    except UsageError:
        raise
    except NotARepository:
        return None
    except BeyondError as error:  # a repository that can't be kept: said, and the conversation is recorded all the same
        print(f"bnd: no checkpoints: {error}", file=sys.stderr, flush=True)
        return None
