"""Forking a conversation at a step: a plan of its causal past, the files of that moment, a conversation that knows no more."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.blob import tagged_hash
from beyond.errors import BeyondError, NotFound, Refused, UsageError
from beyond.fork import files
from beyond.fork.gate import format_known, gate
from beyond.fork.install import install, take_away
from beyond.fork.plan import Planner, Target
from beyond.journal import Journal, now_ms
from beyond.journal.forks import Fork, add_fork
from beyond.naming import Run, ends_at
from beyond.record import record
from beyond.record.rows import run_id_of
from beyond.store import Found
from beyond.surgery import synthesis
from beyond.surgery.base import ForkPlan, Launch, Written

#: Bytes of a fork's transcript up to which it is recorded in the same breath; a larger one with the next `bnd record`.
RECORDED_AT_ONCE = 16 * 1024 * 1024
METHODS = ("auto", "surgical", "synthesis")


@dataclass(frozen=True, slots=True)
class Options:
    """How to fork. `env`: True demands files, False wants none, None takes them where there are any."""

    method: str = "auto"
    into: str | None = None
    env: bool | None = None
    isolated: bool = False
    label: str | None = None
    dest: Path | None = None
    #: The CLI's store to write to; None: this machine's.
    store: Path | None = None
    #: Taken for granted by a proof: the gate is what it decides on.
    gate_open: bool = False
    without: frozenset[str] = frozenset()
    #: Resume it with this prompt, not interactively.
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork that was made."""

    run: str
    cli: str
    parent: str
    seq: int
    method: str
    reason: str | None
    conversation: str | None
    worktree: str
    checkpoint: int | None
    aligned: bool | None
    paths: tuple[str, ...]
    notes: tuple[str, ...]
    launch: Launch

    @property
    def command(self) -> str:
        """The command that resumes the fork, for a shell."""
        return shell_command(self.launch)


def shell_command(launch: Launch) -> str:
    """A launch as one line for a POSIX shell like the one that we were started from: of the variables to be taken away,
    those that are set here."""
    words: list[str] = []
    unset = [name for name in launch.unset if name in os.environ]
    if unset or launch.env:
        words.append("env")
        words += [word for name in unset for word in ("-u", name)]
        words += [f"{name}={value}" for name, value in launch.env.items()]
    return f"cd {shlex.quote(launch.cwd)} && {shlex.join([*words, *launch.argv])}"


def as_json(launch: Launch) -> dict[str, Any]:
    """A launch as it is kept with the fork."""
    return {"argv": list(launch.argv), "cwd": launch.cwd, "env": dict(launch.env), "unset": list(launch.unset)}


def fork(journal: Journal, run: Run, at: str, options: Options, *, tell: Callable[[str], None] = lambda _: None) -> Forked:
    """Forks `run` at the step that `at` names (forms of ``--at``). `tell` hears what has to be said before going on.

    Raises `UsageError`, `NotFound`, `Refused` (surgery that was demanded is not open). Nothing half-made is left then.
    """
    con = journal.con
    ends = ends_at(con, run, at)
    seq = ends[-1]
    mode, project, title, label = con.execute("select mode, project, title, label from run where id = ?", (run.id,)).fetchone()
    if mode != "transcript":
        raise UsageError(f"run {run.run} is a {mode} recording: it can't be forked yet")
    if not con.execute("select 1 from event where run = ? and seq = ? and source is not null", (run.id, seq)).fetchone():
        raise NotFound(f"event {seq} of run {run.run} stands on no recorded line: fork at another")
    cli = options.into or run.cli
    agents.row(cli)
    name = options.label or f"{(label or title or run.run)[:80]} (fork at {seq})"
    new_id = agents.new_conversation(cli)
    store = options.store or agents.home(cli)
    target = Target(
        store=store, new_root="/", new_conversation=new_id, now_ms=now_ms(), title=name, version=_version(cli),
        without=options.without,
    )  # fmt: skip
    planner = Planner(con, journal.reader)
    with _uncollected():
        draft = planner.plan(run, ends, target)
    method, reason = _method(run, cli, draft, options)
    if reason is not None and method == "synthesis":
        tell(f"synthesis, not surgery: {reason}")
    if con.execute("select 1 from recorder where run = ?", (run.id,)).fetchone():
        tell("the conversation is still being written: the fork holds whole steps up to its point, and nothing later")
    choice = files.choose(con, run, seq, options.env)
    for note in choice.notes:
        tell(note)
    fork_run = secrets.token_hex(6)
    place = files.prepare(choice, project, fork_run, dest=options.dest, isolated=options.isolated, env=options.env)
    paths: list[Path] = []
    try:
        side = _side_files(run.cli, draft.old_paths)
        plan = replace(draft, new_root=place.root, side_file=side)
        if method == "surgical":
            with _uncollected():
                written = agents.writer(cli).write(plan)
                paths = install(store, written)
            made, number = _surgical(journal, run, ends, written, store, place.root, name, options, choice, reason)
            files.inherit(journal, number, choice, place)
            conversation: str | None = written.conversation
            launch, notes = written.launch, written.notes
            if options.prompt is not None:
                launch = agents.writer(cli).launch(plan, options.prompt)
        else:
            launch, conversation, notes = _synthesis(plan, cli, fork_run)
            fork_row = Fork(
                fork_run, cli, conversation, None, run.id, ends, method, reason, _id(choice), place.root, as_json(launch),
                (*choice.notes, *place.notes, *notes), name, options.label,
            )  # fmt: skip
            files.inherit(journal, add_fork(journal, fork_row), choice, place)
            made = fork_run
    except BaseException:
        take_away(paths)
        files.undo(place, choice)
        raise
    return Forked(
        made, cli, run.run, seq, method, reason, conversation, place.root,
        choice.checkpoint.seq if choice.checkpoint else None, choice.checkpoint.aligned if choice.checkpoint else None,
        tuple(str(path) for path in paths), (*choice.notes, *place.notes, *notes), launch,
    )  # fmt: skip


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Leaves out the search for circles among objects: parsed lines are freed by their counts, and looking at all that is
    kept of a large conversation costs a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _id(choice: files.Choice) -> int | None:
    return choice.checkpoint.id if choice.checkpoint is not None else None


def _version(cli: str) -> str | None:
    program = gate(cli).installed
    return program.version if program is not None else None


def _method(run: Run, cli: str, plan: ForkPlan, options: Options) -> tuple[str, str | None]:
    """Which method serves, and why it is not surgery."""
    if options.method == "synthesis":
        return "synthesis", None
    why = None
    if cli != run.cli:
        why = f"the conversation is {agents.row(run.cli).title}'s, not {agents.row(cli).title}'s"
    elif run.agent != "main":
        why = f"{run.run} is the inside of a subagent, whose transcript can't be resumed"
    else:
        state = gate(cli)
        if not state.open and not options.gate_open:
            why = state.reason
        else:
            why = format_known(cli, plan.source_version) if not options.gate_open else None
            why = why or agents.writer(cli).refuse(plan)
    if why is None:
        return "surgical", None
    if options.method == "surgical":
        raise Refused(f"surgery is not open: {why}; --method auto composes a handoff in its place")
    return "synthesis", why


def _side_files(cli: str, old_paths: tuple[str, ...]) -> Callable[[str], bytes | None]:
    """Reads files that lie beside the old transcript, as far as the transcript lies in this machine's store."""
    home = os.path.realpath(agents.home(cli))

    def read(name: str) -> bytes | None:
        for path in old_paths:
            folder = agents.store(cli).folder_of(Path(path))
            real = os.path.realpath(folder / name)
            if not real.startswith(home + os.sep) or not real.startswith(os.path.realpath(folder) + os.sep):
                continue
            try:
                with open(real, "rb") as file:
                    return file.read()
            except OSError:
                continue
        return None

    return read


def _surgical(
    journal: Journal, run: Run, ends: list[int], written: Written, store: Path, root: str, name: str, options: Options,
    choice: files.Choice, reason: str | None,
) -> tuple[str, int]:  # fmt: skip
    """Makes the fork's run and records its conversation into it. Returns the run's id and number."""
    main = store / written.main
    with main.open("rb") as file:
        first = tagged_hash(file.readline().rstrip(b"\r\n"))
    fork_run = run_id_of(run.cli, written.conversation, "main", first)
    number = add_fork(
        journal,
        Fork(
            fork_run, run.cli, written.conversation, first, run.id, ends, "surgical", reason, _id(choice), root,
            as_json(written.launch), (*choice.notes, *written.notes), name, options.label,
        ),
    )  # fmt: skip
    found = Found(run.cli, main, written.conversation).look()
    if found.stat[0] > RECORDED_AT_ONCE:  # its lines are the parent's: they can wait
        return fork_run, number
    for outcome in record(journal, [found, *agents.subagents(found)]):
        if outcome.status == "failed":
            raise BeyondError(f"the fork can't be read again ({'; '.join(outcome.warnings)}): nothing of it was left")
    return fork_run, number


def _synthesis(plan: ForkPlan, cli: str, fork_run: str) -> tuple[Launch, str | None, tuple[str, ...]]:
    """A fresh conversation's first prompt. It names the run, so that its transcript is recognised when it is recorded."""
    text = f"{synthesis.handoff(plan)}\n\n[bnd fork {fork_run}]"
    notes = ["a fresh conversation: it begins when the command is run, and is recorded from then on"]
    return synthesis.launch(plan, cli, text), None, tuple(notes)
