"""The files of a fork: a checkpoint's tree in a work tree of its own, or a plain statement that there are none."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from beyond.checkpoint import Repository
from beyond.checkpoint.git import clean_environment
from beyond.errors import BeyondError, UsageError
from beyond.journal import Journal, home, now_ms
from beyond.journal.forks import Checkpoint, add_checkpoint, checkpoint_at, moved_since
from beyond.naming import Run


@dataclass(frozen=True, slots=True)
class Choice:
    """Which checkpoint a fork's files come from, and what has to be said about it before going on."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fork runs. `made` is the work tree that was made for it, to be taken away again if the fork fails."""

    root: str
    made: Path | None
    notes: tuple[str, ...] = ()


def choose(con: sqlite3.Connection, run: Run, seq: int, env: bool | None) -> Choice:
    """The checkpoint at or before an event. `env`: True demands one (`UsageError` without), False wants none."""
    if env is False:
        return Choice(None, ())
    found, at = _newest(con, run.id, seq)
    if found is None:
        if env is True:
            raise UsageError(
                f"run {run.run} has no checkpoint at or before event {seq}: leave --env out to fork the conversation"
            )
        return Choice(None, (f"no checkpoint at or before event {seq}: the files are not restored",))
    if not os.path.isdir(found.repository):
        said = f"the repository of the checkpoint, {found.repository}, is not here"
        if env is True:
            raise UsageError(f"{said}: leave --env out to fork the conversation alone")
        return Choice(None, (f"{said}: the files are not restored",))
    notes = []
    if found.how == "after":
        notes.append(f"the checkpoint was taken after the fact (of event {found.seq}): the files are those of that moment")
    elif not found.aligned:
        notes.append(f"the checkpoint of event {found.seq} is not aligned: a later step may have changed files already")
    if found.seq != at and moved_since(con, found, at):
        notes.append(f"the newest checkpoint before event {seq} is that of event {found.seq}: tools ran in between")
    if found.skipped:
        shown = ", ".join(path for path, _ in found.skipped[:3])
        more = f" and {len(found.skipped) - 3} more" if len(found.skipped) > 3 else ""
        notes.append(f"not in the checkpoint: {shown}{more}")
    return Choice(found, tuple(notes))


#: Parents that are asked in turn; a longer line of forks is a damaged journal's.
_DEEP = 1000


def _newest(con: sqlite3.Connection, number: int, at: int) -> tuple[Checkpoint | None, int]:
    """The checkpoint at or before an event, and the event that it is asked for there: a fork has its parent's up to where
    it parted, a subagent those of its conversation up to its time."""
    for _ in range(_DEEP):
        found = checkpoint_at(con, number, at)
        relation, parent = con.execute("select relation, parent from run where id = ?", (number,)).fetchone()
        if found is not None or parent is None or relation not in ("fork", "subagent"):
            return found, at
        if relation == "fork":
            (same,) = con.execute(
                "select max(p.seq) from event f join event p on p.link = f.link and p.run = ? "
                "and p.seq <= (select coalesce(forked_at, parent_seq) from run where id = ?) where f.run = ? and f.seq <= ?",
                (parent, number, number, at),
            ).fetchone()
        else:
            (same,) = con.execute(
                "select max(seq) from event where run = ?1 and ts <= (select max(ts) from event where run = ?2 and seq <= ?3)",
                (parent, number, at),
            ).fetchone()
        if same is None:
            return None, at
        number, at = parent, same
    return None, at


def prepare(choice: Choice, project: str | None, fork_run: str, *, dest: Path | None, isolated: bool, env: bool | None) -> Place:
    """Makes the directory that the fork runs in: a work tree with the checkpoint's files, or, without one, the project
    itself where it is here, else an empty directory."""
    if choice.checkpoint is None:
        if dest is None and project and os.path.isdir(project):
            note = "it runs in the project's own directory, with the files as they are now"
            return Place(os.path.realpath(project), None, (note,) if env is not False else ())
        target = _free(dest or _default(project, fork_run))
        os.makedirs(target, exist_ok=True)
        return Place(os.path.realpath(target), target, ("it runs in an empty directory",))
    point = choice.checkpoint
    target = _free(dest or _default(project or point.repository, fork_run))
    made = Repository.open(Path(point.repository)).restore(point.tree_id, point.head_id, target, isolated=isolated)
    notes = []
    if not made.same:
        notes.append(f"the restored files differ from the checkpoint (tree {made.tree[:12]} in place of {point.tree_id[:12]})")
    if made.submodules:
        notes.append(f"left empty: {', '.join(made.submodules)}")
    if made.isolated and not isolated:
        notes.append("the repository had no commit then: the fork has a repository of its own")
    if not made.isolated:
        notes.append("`git log --all` in a linked work tree reaches later commits too; --isolated makes a repository that can't")
    root = os.path.realpath(made.path)
    below = _below(project, point.repository)
    if below and os.path.isdir(os.path.join(root, below)):
        root = os.path.join(root, below)
    return Place(root, made.path, tuple(notes))


def _below(project: str | None, repository: str) -> str:
    """The project's place below the top of its repository."""
    if not project:
        return ""
    project, repository = os.path.realpath(project), os.path.realpath(repository)
    return os.path.relpath(project, repository) if project.startswith(repository.rstrip(os.sep) + os.sep) else ""


def _default(project: str | None, fork_run: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename((project or "").rstrip(os.sep)))[:40].strip(".-") or "fork"
    return home() / "worktrees" / f"{name}-{fork_run}"


def _free(target: Path) -> Path:
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise UsageError(f"{target} is there already: give another --dest")
    try:
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{target.parent} can't be made ({error.strerror}): give another --dest") from None
    return target


def inherit(journal: Journal, fork_id: int, choice: Choice, place: Place) -> None:
    """The fork's own first checkpoint: the files that it begins with, kept by its parent's."""
    point = choice.checkpoint
    if point is None or place.made is None:
        return
    (seq,) = journal.con.execute("select coalesce(max(seq), 0) from event where run = ?", (fork_id,)).fetchone()
    top = os.path.realpath(place.made)
    add_checkpoint(
        journal, replace(point, run_id=fork_id, seq=seq, repository=top, how="fork", taken_at=now_ms(), files_changed=0, id=None)
    )


def undo(place: Place, choice: Choice) -> None:
    """Takes a made work tree away again, with its entry in the repository."""
    if place.made is None:
        return
    if choice.checkpoint is not None:  # by name: `worktree prune` would take others' along
        command = ["git", "worktree", "remove", "--force", str(place.made)]
        subprocess.run(command, cwd=choice.checkpoint.repository, env=clean_environment(), capture_output=True, check=False)
    shutil.rmtree(place.made, ignore_errors=True)


def overview(repository: str, tree: str, before: str | None) -> int | None:
    """How many files differ between two trees, or None where that can't be told."""
    try:
        return Repository.open(Path(repository)).changed_files(before, tree)
    except (BeyondError, OSError):
        return None
