"""Checkpoints while a conversation is followed: which moments they are taken at, and for which step they stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beyond.checkpoint import Repository, Snapshot
from beyond.errors import BeyondError
from beyond.event import printable
from beyond.journal import Journal, now_ms
from beyond.journal.forks import Checkpoint, add_checkpoint, last_checkpoint
from beyond.record.hooks import Hooks

#: Milliseconds after which a hook's note of a call that was never recorded is dropped.
_PATIENCE = 600_000
#: Events at which the files of that moment are kept.
MOMENTS = ("user_msg", "tool_result")


def drop_stale(journal: Journal) -> int:
    """Deletes the refs that forgotten checkpoints left in repositories that are here. Returns how many went."""
    rows = journal.con.execute("select repository, ref from stale_ref order by 1, 2").fetchall()
    gone = 0
    done: list[tuple[str, str]] = []
    kept = {ref for (ref,) in journal.con.execute("select ref from checkpoint where ref is not null")}
    for place in {repository for repository, _ in rows}:
        try:
            repository = Repository.open(Path(place))
            # By name: another journal may have made others of the same run.
            gone += repository.delete_refs(ref for where, ref in rows if where == place and ref not in kept)
        except (BeyondError, OSError):
            continue  # it may be on a disk that isn't here now
        done += [(where, ref) for where, ref in rows if where == place]
    if done:
        with journal.write() as con:
            con.executemany("delete from stale_ref where repository = ? and ref = ?", done)
    return gone


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot and when it was taken (Unix milliseconds)."""

    snapshot: Snapshot
    at: int


class Checkpointer:
    """Takes checkpoints of one repository and writes their rows."""

    def __init__(
        self, journal: Journal, directory: Path, tell: Callable[[str], None], hooks: Callable[[Path], Hooks] | None = None
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._repository = Repository.open(directory)
        self._said: set[str] = set()
        self._hooks = hooks(self._repository.toplevel) if hooks is not None else None
        #: Conversations whose hooks were heard of.
        self._hooked: set[str] = set()
        #: The files as they were when following began.
        self.first = self.take()

    @property
    def toplevel(self) -> Path:
        """The top of the work tree that is kept."""
        return self._repository.toplevel

    def take(self) -> Taken | None:
        """The files as they are now. None, said once, where they can't be taken: recording goes on."""
        try:
            taken = Taken(self._repository.snapshot(), now_ms())
        except (BeyondError, OSError) as error:
            self._say(f"no checkpoint: {error}")
            return None
        for skipped in taken.snapshot.skipped:
            self._say(f"not in the checkpoints: {skipped.path} ({skipped.why})")
        return taken

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._tell(text)

    def keep(self, taken: Taken | None, run_id: int, seq: int, *, how: str, aligned: bool) -> None:
        """Writes the row of a checkpoint, and a ref where the tree is new."""
        if taken is None:
            return
        snapshot = taken.snapshot
        (run,) = self._journal.con.execute("select run from run where id = ?", (run_id,)).fetchone()
        before = last_checkpoint(self._journal.con, run_id)
        same_place = before is not None and before.repository == str(self.toplevel)
        try:
            kept = self._repository.keep(
                snapshot, run, seq, before.tree_id if before and same_place else None, taken.at,
                f"bnd checkpoint {run}@{seq}", previous_head=before.head_id if before else None,
            )  # fmt: skip
            changed = None
            if before is not None and same_place:
                changed = self._repository.changed_files(before.tree_id, snapshot.tree)
        except (BeyondError, OSError) as error:
            self._say(f"no checkpoint: {error}")
            return
        commit, ref = kept.commit, kept.ref
        if commit is None and before is not None:
            commit, ref = before.commit_id, before.ref
        add_checkpoint(
            self._journal,
            Checkpoint(
                run_id, seq, str(self.toplevel), snapshot.tree, snapshot.head, commit, ref, how, aligned, taken.at, changed,
                tuple((skipped.path, skipped.why) for skipped in snapshot.skipped),
            ),
        )  # fmt: skip

    def begin(self, run_id: int, *, new: bool) -> None:
        """A conversation was taken up: the files of the beginning belong to what stood there then."""
        last = last_checkpoint(self._journal.con, run_id)
        if new:
            self.keep(self.first, run_id, 0, how="follow", aligned=True)
        elif last is None or last.how == "after":
            self.keep(self.take(), run_id, self._last_seq(run_id), how="follow", aligned=False)

    def _last_seq(self, run_id: int) -> int:
        (seq,) = self._journal.con.execute("select coalesce(max(seq), 0) from event where run = ?", (run_id,)).fetchone()
        return int(seq)

    def close(self) -> None:
        """Takes the hooks out again; what they left last is taken in first."""
        if self._hooks is not None:
            self.take_notes()
            self._hooks.remove(self._tell)

    def take_notes(self) -> None:
        """Makes rows of what the hooks left, as far as the calls' events are recorded."""
        if self._hooks is None:
            return
        for note in self._hooks.notes():
            self._hooked.add(note.conversation)
            kind = "tool_call" if note.moment == "before" else "tool_result"
            row = self._journal.con.execute(
                "select r.id, e.seq, r.relation, r.parent from event e join run r on r.id = e.run "
                "where r.conversation = ? and e.tool_id = ? and e.kind = ? order by e.run, e.seq desc limit 1",
                (note.conversation, note.call, kind),
            ).fetchone()
            if row is None:
                if now_ms() - note.at > _PATIENCE:
                    note.path.unlink(missing_ok=True)
                continue
            run_id, seq, relation, parent = row
            taken = Taken(note.snapshot, note.at)
            if relation == "subagent":
                if parent is not None and note.moment == "after":
                    self.keep(taken, parent, self._last_seq(parent), how="hook", aligned=False)
            else:
                self.keep(taken, run_id, seq, how="hook", aligned=not self._others_at_work(run_id, seq))
            note.path.unlink(missing_ok=True)

    def _others_at_work(self, run_id: int, seq: int) -> bool:
        """Whether a parallel call that was made before `seq` had no result yet."""
        row = self._journal.con.execute(
            "select 1 from event where run = ?1 and kind = 'tool_call' and active = 1 and seq < ?2 and coalesce(result_seq, "
            "?2 + 1) > ?2 and turn = (select turn from event where run = ?1 and seq = ?2) limit 1",
            (run_id, seq),
        ).fetchone()
        return row is not None

    def _await_notes(self, run_id: int, seqs: list[int]) -> list[int]:
        """The moments that no hook has kept. A hook ends before its result is written, but for the last moment."""
        (conversation,) = self._journal.con.execute("select conversation from run where id = ?", (run_id,)).fetchone()
        limit = time.monotonic() + (1.0 if conversation in self._hooked else 0.0)
        while True:
            self.take_notes()
            rows = self._journal.con.execute("select seq from checkpoint where run = ? and how = 'hook'", (run_id,))
            kept = {seq for (seq,) in rows}
            results = {
                seq for (seq,) in self._journal.con.execute(
                    "select seq from event where run = ? and kind = 'tool_result' and seq >= ?", (run_id, seqs[0])
                )
            }  # fmt: skip
            left = [seq for seq in seqs if seq not in kept]
            if not results.intersection(left) or time.monotonic() >= limit:
                return left
            time.sleep(0.02)

    def follow(self, run_id: int, since: int, catch_up: Callable[[], object]) -> None:
        """Keeps the files for the events of a run after `since` that call for it.

        The snapshot is taken first and the transcript read again afterwards (`catch_up`): the last of those events is
        aligned where the conversation had not moved on to another call meanwhile. The others were overtaken.
        """
        seqs = self._moments(run_id, since)
        while seqs:
            newest = seqs[-1]
            if self._hooks is not None:
                seqs = self._await_notes(run_id, seqs)
                if not seqs:
                    catch_up()
                    seqs = self._moments(run_id, newest)
                    continue
            taken = self.take()
            catch_up()
            for seq in seqs[:-1]:
                self.keep(taken, run_id, seq, how="follow", aligned=False)
            last = seqs[-1]
            self.keep(taken, run_id, last, how="follow", aligned=not self._at_work(run_id, last))
            seqs = self._moments(run_id, newest)

    def beside(self, run_id: int) -> None:
        """A subagent finished a call: its files stand for the newest step of the conversation."""
        self.keep(self.take(), run_id, self._last_seq(run_id), how="follow", aligned=False)

    def _moments(self, run_id: int, since: int) -> list[int]:
        rows = self._journal.con.execute(
            "select seq from event where run = ? and seq > ? and kind in (?, ?) order by seq", (run_id, since, *MOMENTS)
        )
        return [seq for (seq,) in rows]

    def _at_work(self, run_id: int, seq: int) -> bool:
        """Whether a call was made after `seq`, or one before it had no result yet (parallel calls)."""
        row = self._journal.con.execute(
            "select 1 from event where run = ?1 and kind = 'tool_call' and active = 1 and (seq > ?2 or (coalesce(result_seq, "
            "?2 + 1) > ?2 and turn = (select turn from event where run = ?1 and seq = ?2))) limit 1",
            (run_id, seq),
        ).fetchone()
        return row is not None

    def after_the_fact(self, path: str) -> None:
        """One snapshot of now, said to be one, for the conversation that a file was recorded into."""
        row = self._journal.con.execute(
            "select s.run from file f join source s on s.id = f.source where f.path = ?", (printable(path),)
        ).fetchone()
        if row is not None:
            self.keep(self.first, row[0], self._last_seq(row[0]), how="after", aligned=False)
