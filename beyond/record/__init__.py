"""Recording from the agent CLIs' own transcripts: store → ingester → journal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.errors import BeyondError, NotFound
from beyond.event import printable
from beyond.journal import Journal, now_ms
from beyond.journal.append import Batch, PackBuilder, append
from beyond.journal.forget import is_forgotten, remember
from beyond.journal.relate import relate, unfollow
from beyond.record.prepare import MAX_PREPARED, WORTH_PREPARING, prepare_groups
from beyond.record.rows import UNREADABLE
from beyond.record.session import Empty, Report, Session
from beyond.store import SAFE_ID, Found, describe, identify

__all__ = ["Outcome", "Recorder", "find", "newest_here", "record"]

#: Plain bytes that are collected before they are written in one transaction.
_FLUSH = 8 * 1024 * 1024


@dataclass(slots=True)
class Outcome:
    """What recording one file came to. `status`: new, extended, unchanged, rewritten, empty, forgotten or failed."""

    path: Path
    cli: str
    agent: str = "main"
    run: str | None = None
    status: str = "unchanged"
    title: str | None = None
    new_events: int = 0
    new_lines: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    subagents: int = 0

    @property
    def bad(self) -> list[dict[str, Any]]:
        """Damage that lost something; notes about odd but whole lines left out."""
        return [d for d in self.damage if not d.get("note")]


class Recorder:
    """Records files into a journal, many in one transaction."""

    def __init__(self, journal: Journal, label: str | None = None) -> None:
        self.journal = journal
        self.label = label
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bnd-pack")
        self._builder = PackBuilder(journal, self._pool)
        self._waiting: list[tuple[Session, Batch, Outcome]] = []
        self._calls: dict[tuple[str, str | None, str], str] = {}
        self._touched: set[tuple[str, str | None]] = set()
        self._titles: dict[str, dict[str, str]] = {}
        self._files: dict[str, tuple[int, int, int, int | None]] | None = None

    def close(self) -> None:
        """Ends the helper thread."""
        self._pool.shutdown()

    def known(self, found: Found) -> bool:
        """Whether the file is just as it was when it was recorded last."""
        if self._files is None:
            rows = self.journal.con.execute("select path, size, mtime_ns, inode, gone_at from file")
            self._files = {row[0]: row[1:] for row in rows}
        return self._files.get(printable(str(found.path))) == (*found.stat, None)

    def add(self, found: Found, *, again: bool = False) -> Outcome:
        """Records a file as far as it goes. `again`: also one that was forgotten."""
        outcome = Outcome(found.path, found.cli, found.agent, subagents=found.subagents)
        if self.label is None and self.known(found):
            return outcome
        session = Session(self.journal, found, self.label)
        try:
            session.open()
            if session.created and is_forgotten(self.journal.con, found.cli, found.conversation, session.first_hash):
                if not again:
                    outcome.status = "forgotten"
                    return outcome
                remember(self.journal, found.cli, found.conversation, session.first_hash)
            self.follow(session, outcome)
        except Empty:
            outcome.status = "empty"
            outcome.damage = session.damage_so_far()
        except FileNotFoundError:
            outcome.status = "failed"
            outcome.warnings.append("it is gone")
        except UNREADABLE as error:
            outcome.status = "failed"
            outcome.warnings.append(f"it can't be read ({type(error).__name__}: {error}): please report this with the file")
        except (BeyondError, OSError) as error:
            outcome.status = "failed"
            outcome.warnings.append(error.strerror or str(error) if isinstance(error, OSError) else str(error))
            if isinstance(error, BeyondError) and error.exit_code == 2 and not self._is_file_trouble(error):
                raise
        return outcome

    @staticmethod
    def _is_file_trouble(error: BeyondError) -> bool:
        from beyond.errors import SourceError

        return isinstance(error, SourceError)

    def follow(self, session: Session, outcome: Outcome, *, always: bool = True) -> None:
        """Takes in what a session's file holds now."""
        for batch in session.batches(self._builder, always=always):
            self._waiting.append((session, batch, outcome))
            if session.more or self._builder.size >= _FLUSH or not always:
                self.flush()

    def flush(self) -> None:
        """Writes what is waiting."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        late = append(self.journal, self._builder.take(), [batch for _, batch, _ in waiting])
        missed = {id(batch) for batch in late}
        for session, batch, outcome in waiting:
            if id(batch) in missed:
                self._retry(session.found, outcome)
            else:
                first = session.new_lines == 0 and session.new_events == 0
                session.done(batch)
                self._written(session.report(), batch, outcome, first=first)

    def _written(self, report: Report, batch: Batch, outcome: Outcome, *, first: bool) -> None:
        outcome.run, outcome.title, outcome.warnings = report.run, report.title, report.warnings
        outcome.new_events, outcome.new_lines = report.new_events, report.new_lines
        outcome.damage = batch.damage
        if report.rewritten:
            outcome.status = "rewritten"
        elif first and report.created:
            outcome.status = "new"
        elif (report.new_lines or report.new_events) and outcome.status != "new":
            outcome.status = "extended"
        key = (batch.cli, batch.conversation)
        if report.new_events or report.created:
            self._touched.add(key)
        if report.tool_id:
            self._calls[(*key, batch.threads[0].agent)] = report.tool_id
        for agent, tool_id in report.subagents.items():
            self._calls.setdefault((*key, agent), tool_id)
        if report.summaries:
            self._titles.setdefault(str(Path(batch.path).parent), {}).update(report.summaries)

    def _retry(self, found: Found, outcome: Outcome) -> None:
        """Another process got there first: compare with what it wrote, or see that it forgot the conversation."""
        for _ in range(20):
            again = Session(self.journal, found.look(), self.label)
            again.open()
            if again.created and is_forgotten(self.journal.con, found.cli, found.conversation, again.first_hash):
                outcome.status = "forgotten"
                return
            ok = True
            for batch in again.batches(self._builder):
                if append(self.journal, self._builder.take(), [batch]):
                    ok = False
                    break
                first = again.new_lines == 0 and again.new_events == 0
                again.done(batch)
                self._written(again.report(), batch, outcome, first=first)
            if ok:
                return
        raise BeyondError(f"{found.path} is written faster than it can be recorded: try again")

    def add_all(self, founds: Sequence[Found], *, again: bool = False, progress: Callable[[Found], None]) -> list[Outcome]:
        """Records many files: new ones on several cores where that is worth it. One outcome each, in order."""
        with self.journal.bulk():
            return self._add_all(founds, again, progress)

    def _add_all(self, founds: Sequence[Found], again: bool, progress: Callable[[Found], None]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        for group, prepared in prepare_groups(self.journal, self._worth_preparing(founds)):
            batches = [one.batch for one in prepared.batches]
            late = {id(batch) for batch in append(self.journal, prepared.packed, batches)}
            for found, one in zip(group, prepared.batches, strict=False):
                outcome = Outcome(found.path, found.cli, found.agent, subagents=found.subagents)
                if id(one.batch) in late:
                    self._retry(found, outcome)
                else:
                    self._written(one.report, one.batch, outcome, first=True)
                outcomes[id(found)] = outcome
                progress(found)
        for found in founds:
            if id(found) not in outcomes:
                outcomes[id(found)] = self.add(found, again=again)
                progress(found)
        self.flush()
        return [outcomes[id(found)] for found in founds]

    def _worth_preparing(self, founds: Sequence[Found]) -> list[Found]:
        """Files that were never seen and are no trouble: many megabytes of them are read on several cores."""
        if self.label is not None or self.journal.con.execute("select 1 from forgotten").fetchone():
            return []
        self.known(founds[0]) if founds else None
        new = [f for f in founds if str(f.path) not in (self._files or {}) and 0 < f.stat[0] <= MAX_PREPARED]
        return new if sum(f.stat[0] for f in new) >= WORTH_PREPARING else []

    def finish(self) -> None:
        """Writes the rest, and what is known only from several files together: parents and titles."""
        self.flush()
        self._take_up_orphans()
        if self._touched or self._titles:
            relate(self.journal, self._touched, self._calls, self._owned_titles())
        self._touched, self._calls, self._titles = set(), {}, {}
        unfollow(self.journal, process_alive)

    def _take_up_orphans(self) -> None:
        """Subagents and copies whose originals were not found yet: a process that was killed leaves such behind."""
        rows = self.journal.con.execute(
            "select r.cli, r.conversation, r.agent, (select f.path from source s join file f on f.source = s.id "
            "where s.run = r.id limit 1), (select p.extra from run p where p.cli = r.cli and p.conversation = r.conversation "
            "and p.agent = 'main' and p.extra is not null limit 1) "
            "from run r where r.relation = 'subagent' and r.parent_seq is null"
        ).fetchall()
        for cli, conversation, agent, path, extra in rows:
            self._touched.add((cli, conversation))
            told = json.loads(extra).get("subagents", {}).get(agent) if extra else None
            if told:
                self._calls.setdefault((cli, conversation, agent), told)
            elif path is not None:
                tool_id = describe(Found(cli, Path(path), conversation, agent)).tool_id
                if tool_id:
                    self._calls.setdefault((cli, conversation, agent), tool_id)
        self._touched.update(
            self.journal.con.execute(
                "select distinct r.cli, r.conversation from event e join run r on r.id = e.run "
                "where e.kind = 'usage' and e.counted = 0 and r.relation is null"
            )
        )

    def _owned_titles(self) -> dict[int, str]:
        """Summary titles by the run that holds the message which they end with: often another file of the folder."""
        out: dict[int, str] = {}
        for folder, titles in self._titles.items():
            rows = self.journal.con.execute(
                "select r.id, r.cli, r.conversation, f.path from file f join source s on s.id = f.source "
                "join run r on r.id = s.run where r.agent = 'main' and f.path >= ? and f.path < ?",
                (folder + os.sep, folder + chr(ord(os.sep) + 1)),
            ).fetchall()
            for run_id, cli, conversation, path in rows:
                if os.path.dirname(path) != folder:
                    continue
                session = Session(self.journal, Found(cli, Path(path), conversation))
                session.rederive(run_id)
                for leaf, title in titles.items():
                    if leaf in session.ingester.threads["main"].keys:
                        out[run_id] = title
        return out

    def mark_gone(self, roots: Iterable[Path], seen: set[str]) -> list[str]:
        """Notes sources that are no longer in a store that was looked through. Nothing recorded is dropped."""
        prefixes = tuple(f"{root}{os.sep}" for root in roots if root.is_dir())
        if self._files is None:
            rows = self.journal.con.execute("select path, size, mtime_ns, inode, gone_at from file")
            self._files = {row[0]: row[1:] for row in rows}
        gone = [
            path
            for path, row in self._files.items()
            if row[3] is None
            and path not in seen
            and path.startswith(prefixes)
            and "\ufffd" not in path
            and not os.path.exists(path)
        ]
        if gone:
            with self.journal.write() as con:
                con.executemany("update file set gone_at = ? where path = ?", [(now_ms(), path) for path in gone])
        return gone


def process_alive(pid: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def record(
    journal: Journal,
    founds: Iterable[Found],
    *,
    label: str | None = None,
    again: bool = False,
    progress: Callable[[Found], None] | None = None,
) -> list[Outcome]:
    """Records files; one outcome each, in order."""
    recorder = Recorder(journal, label)
    try:
        outcomes = recorder.add_all(list(founds), again=again, progress=progress or (lambda _: None))
        recorder.finish()
        return outcomes
    finally:
        recorder.close()


def find(what: str | None, cli: str | None) -> list[Found]:
    """The transcripts that WHAT names: a file, a conversation's id, or nothing (the newest of this directory).

    A conversation comes with its subagents. Raises `NotFound`.
    """
    names = [cli] if cli else list(agents.AGENTS)
    if what is None:
        return newest_here(names)
    path = Path(what)
    if "\0" in what:
        raise NotFound("a name with a NUL byte is no file and no conversation's id: give one of the two, or --all")
    if os.sep in what or what.endswith(".jsonl") or os.path.lexists(what):
        found = identify(path)
        if cli and found.cli != cli:
            found.cli = cli
        return [found, *agents.subagents(found)]
    if not SAFE_ID.match(what):
        raise NotFound(f"{what!r} is no file and no conversation's id: give one of the two, or --all")
    hits = [f for name in names for f in agents.conversations(name) if f.conversation == what]
    if not hits:
        raise NotFound(f"no conversation {what} in the stores here: see `bnd doctor` for where they are looked for")
    return hits


def newest_here(names: Iterable[str], directory: Path | None = None) -> list[Found]:
    """The newest conversation whose project is the current directory (or holds it), with its subagents."""
    here = os.path.realpath(directory or Path.cwd())
    best: Found | None = None
    for name in names:
        for found in agents.conversations(name):
            if found.agent != "main" or (best is not None and found.stat[1] <= best.stat[1]):
                continue
            if agents.belongs_to(found, here):
                best = found
    if best is None:
        looked = ", ".join(str(agents.home(n)) for n in names)
        raise NotFound(f"no conversation of {here} in {looked}: start an agent here, or use `bnd record --all`")
    return [best, *agents.subagents(best)]
