"""Proving, on the very program that is installed here, that a fork has the past and nothing of the future.

The installed CLI plays a story against a scripted model on loopback, in a scratch home. The story is recorded and
followed as usual, forked at every kind of cut, each fork is resumed by the CLI, and what it then sends, the new
conversation's files and the work tree are searched for words that only the future knew.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.checkpoint import Repository
from beyond.errors import BeyondError
from beyond.fork import Forked, Options, fork
from beyond.fork.gate import Installed
from beyond.journal import Journal
from beyond.model import ModelRequest, ScriptedModel
from beyond.naming import Run, causal_past, ends_at, resolve
from beyond.proof import checks
from beyond.proof.lab import Lab, LabFailed, make, surroundings
from beyond.proof.story import CANARIES, PROBE, Story
from beyond.record import record
from beyond.record.checkpoints import Checkpointer
from beyond.record.follow import Follower

#: Kinds of cut that a proof must have reached.
ENOUGH = 16


@dataclass(frozen=True, slots=True)
class Cut:
    """A kind of cut, and the event that it was made at."""

    name: str
    at: str
    seq: int


@dataclass(slots=True)
class Tried:
    """What a fork at a cut came to. `faults` is empty where all is well."""

    cut: Cut
    checks: int = 0
    faults: list[str] = field(default_factory=list)
    kept: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


class Bench:
    """A story that was played and recorded, ready to be forked at its cuts again and again."""

    def __init__(self, program: Installed, lab: Lab, model: ScriptedModel, story: Story, journal: Journal) -> None:
        self.program, self.lab, self.model, self.story, self.journal = program, lab, model, story, journal
        self.run: Run
        self.world: checks.World
        self.conversation = ""
        self.cuts: list[Cut] = []

    def play(self, say: Callable[[str], None]) -> None:
        """Plays the story under a follower with checkpoints, then reads what was recorded."""
        lab, story = self.lab, self.story
        with _following(lab):
            conversation: str | None = None
            for number, prompt in enumerate(story.prompts, 1):
                say(f"turn {number}")
                lab.say(prompt, conversation)
                conversation = conversation or self._conversation()
            if story.command is not None:
                say("compaction")
                lab.say(story.command, conversation)
            say("the last turn")
            lab.say(story.last, conversation)
        story.over = True
        record(self.journal, agents.conversations(lab.cli))
        assert conversation is not None
        self.conversation = conversation
        self.run = resolve(self.journal.con, conversation)
        self.world = checks.look(self.journal.con, self.journal.reader, self.run, story.words)
        self.cuts = list(_cuts(self.journal, self.run, self.world))

    def _conversation(self) -> str:
        mains = [found for found in agents.conversations(self.lab.cli) if found.agent == "main"]
        if len(mains) != 1 or mains[0].conversation is None:
            raise LabFailed(f"{len(mains)} conversations were written in place of one: the store is not as expected")
        return mains[0].conversation

    def try_cut(
        self, cut: Cut, without: frozenset[str] = frozenset(), *, isolated: bool = False, run: Run | None = None
    ) -> Tried:
        """Forks at a cut, resumes the fork, and looks at everything."""
        run = run or self.run
        world = self.world if run is self.run else checks.look(self.journal.con, self.journal.reader, run, self.story.words)
        tried = Tried(cut)
        ends = ends_at(self.journal.con, run, cut.at)
        if ends[-1] in world.summaries:  # a boundary is nothing without its summary: the cut is moved there
            ends += [seq for seq in world.summaries if seq == ends[-1] + 1]
        want = checks.wanted(self.journal.con, run, ends, world, self.story.words)
        tried.kept, tried.gone = want.kept, want.gone
        try:
            made = fork(
                self.journal, run, cut.at,
                Options("surgical", isolated=isolated, env=True, gate_open=True, without=without, prompt=PROBE),
            )  # fmt: skip
        except BeyondError as error:
            tried.faults.append(f"the fork failed: {error}")
            return tried
        self._before(made, tried, isolated)
        seen = len(self.model.requests)
        try:
            self.lab.run(made.launch)
        except LabFailed as error:
            tried.faults.append(str(error))
        self._after(made, tried, self.model.requests[seen:])
        return tried

    def _before(self, made: Forked, tried: Tried, isolated: bool) -> None:
        """The files of the fork, before anything runs in it."""
        words, gone, store = self.story.words, tried.gone, agents.home(self.lab.cli)
        for path in made.paths:
            tried.faults += checks.in_files(Path(path), words, gone, "conversation")
            tried.faults += [f"{path} is open to others" for _ in [0] if Path(path).stat().st_mode & 0o077]
        worktree = Path(made.worktree)
        tried.faults += checks.in_files(worktree, words, gone, "work tree")
        tried.faults += checks.in_git(worktree, self.lab.env, words, gone, everything=isolated)
        tried.faults += [f"{name} in the command" for name in gone if words[name] in made.command]
        assert made.conversation is not None
        if made.conversation == self.conversation:
            tried.faults.append("the fork has the id of the conversation that it comes from")
        why = agents.writer(self.lab.cli).listed(store, made.conversation, made.worktree)
        if why is not None:
            tried.faults.append(f"not listed: {why}")
        point = self.journal.con.execute(
            "select c.tree_id from fork f join run r on r.id = f.run join checkpoint c on c.id = f.files_from where r.run = ?",
            (made.run,),
        ).fetchone()
        if point is None or Repository.open(worktree).snapshot().tree != point[0]:
            tried.faults.append("the work tree's tree is not the checkpoint's")
        old = [path for path in worktree.rglob("*") if path.is_file() and path.name != ".git"]
        if any(path.stat().st_mtime > datetime.now(UTC).timestamp() - 3600 for path in old if ".git" not in path.parts):
            tried.faults.append("a restored file has a new time")
        tried.faults += self._links(made, tried)
        tried.checks += 7 + len(made.paths)

    def _links(self, made: Forked, tried: Tried) -> list[str]:
        """Read again, the fork has its parent's links up to the cut."""
        con = self.journal.con
        parent, ends = con.execute(
            "select r.parent, f.ends from run r join fork f on f.run = r.id where r.run = ?", (made.run,)
        ).fetchone()
        mine = {link for (link,) in con.execute(
            "select link from event e join run r on r.id = e.run where r.run = ? and link is not null", (made.run,)
        )}  # fmt: skip
        named = Run(parent, "", self.lab.cli, "main")
        past = causal_past(con, named, *json.loads(ends))
        theirs = {
            link for seq, link in con.execute("select seq, link from event where run = ? and link is not null", (parent,))
            if seq in past
        }  # fmt: skip
        missing = len(theirs - mine)
        return [f"{missing} of {len(theirs)} links of the past are not the fork's"] if missing else []

    def _after(self, made: Forked, tried: Tried, requests: Sequence[ModelRequest]) -> None:
        """What the resumed CLI sent, and what it left in the conversation's files."""
        words = self.story.words
        # A conversation that is nearly full is compacted first: then that request tells what was remembered.
        mine = [r for r in requests if PROBE.encode() in r.body and r.api in ("anthropic", "chat") and r.sent is not None]
        mine = [request for request in mine if request.tools] or mine
        if not mine:
            tried.faults.append("the resumed conversation sent no request")
            return
        first = mine[0]
        tried.faults += [f"the first request is invalid: {first.problem}"] if first.problem is not None else []
        body = first.body.decode("utf-8", "replace")
        tried.faults += [f"{name} is missing from the first request" for name in tried.kept if words[name] not in body]
        tried.faults += checks.in_requests(requests, words, tried.gone)
        tried.faults += checks.names_origin(mine, str(self.lab.repo), self.conversation)
        for path in made.paths:
            tried.faults += checks.in_files(Path(path), words, tried.gone, "conversation afterwards:")
        tried.checks += 5 + len(tried.kept)


def _cuts(journal: Journal, run: Run, world: checks.World) -> Iterator[Cut]:
    """Every kind of cut that the recorded story offers."""
    con = journal.con

    def first(name: str, kind: str) -> int | None:
        return next((seq for seq, what in world.holders.get(name, ()) if what == kind), None)

    def cut(name: str, seq: int | None) -> Iterator[Cut]:
        if seq is not None:
            yield Cut(name, str(seq), seq)

    def after(seq: int | None, kind: str) -> int | None:
        if seq is None:
            return None
        row = con.execute("select min(seq) from event where run = ? and seq > ? and kind = ?", (run.id, seq, kind)).fetchone()
        return row[0] if row else None

    write = first("content1", "tool_call")
    outputs = sorted(seq for seq in (first("output1", "tool_result"), first("output2", "tool_result")) if seq is not None)
    yield from cut("after the first prompt", first("prompt1", "user_msg"))
    yield from cut("after a call without its result", write)
    yield from cut("after a result", after(write, "tool_result"))
    yield from cut("between two parallel calls", first("input1", "tool_call"))
    yield from cut("between two parallel results", outputs[0] if len(outputs) == 2 else None)
    yield from cut("after both parallel results", outputs[-1] if outputs else None)
    yield from cut("after an answer", first("answer1", "assistant_msg"))
    yield from cut("after a later prompt", first("prompt2", "user_msg"))
    yield from cut("after a file was added", after(first("file2", "tool_call"), "tool_result"))
    yield from cut("after a commit", after(first("commit2", "tool_call"), "tool_result"))
    yield from cut("after a subagent was started", first("task2", "tool_call"))
    yield from cut("after a subagent's result", first("report2", "tool_result"))
    yield from cut("before the compaction", first("answer3", "assistant_msg"))
    for number, seq in enumerate(world.summaries, 1):
        yield from cut("at the compaction" if number == 1 else "after its summary", seq)
    yield from cut("after a prompt behind the compaction", first("prompt4", "user_msg"))
    yield from cut("after an output behind the compaction", first("output4", "tool_result"))
    yield from cut("at the end", first("answer4", "assistant_msg"))


@contextmanager
def _following(lab: Lab) -> Iterator[None]:
    """A follower with checkpoints, as `bnd record --follow` runs it."""
    ready = threading.Event()
    held: dict[str, Any] = {}

    def work() -> None:
        try:
            with Journal.open(Path(lab.env["BND_JOURNAL"])) as journal:
                points = Checkpointer(journal, lab.repo, lambda _: None)
                follower = held["follower"] = Follower(
                    journal, [lab.cli], directory=lab.repo.resolve(), named=None, label=None, tell=lambda _: None,
                    checkpoints=points,
                )  # fmt: skip
                ready.set()
                follower.run()
        except BaseException as error:
            held["error"] = error
            ready.set()

    thread = threading.Thread(target=work, name="bnd-proof-follow")
    thread.start()
    ready.wait(60)
    try:
        yield
    finally:
        if "follower" in held:
            held["follower"].stop.set()
        thread.join(60)
    if "error" in held:
        raise held["error"]


@contextmanager
def bench(program: Installed, say: Callable[[str], None] = lambda _: None) -> Iterator[Bench]:
    """Plays the story once and hands out what can be forked. Everything lies in a scratch folder that goes away."""
    root = Path(tempfile.mkdtemp(prefix="bnd-proof-")).resolve()
    try:
        story = Story(agents.writer(program.cli).COMPACT)
        with ScriptedModel(story) as model:
            lab = make(program, root, model.url)
            with surroundings(lab.env):
                story.memory = agents.writer(program.cli).memory(agents.home(program.cli), str(lab.repo))
                with Journal.open(Path(lab.env["BND_JOURNAL"])) as journal:
                    made = Bench(program, lab, model, story, journal)
                    made.play(say)
                    yield made
    finally:
        shutil.rmtree(root, ignore_errors=True)


def prove(program: Installed, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The certificate of a program: passed or not, and everything that was planted, cut, searched and found."""
    tried: list[Tried] = []
    failure: str | None = None
    try:
        with bench(program, say) as made:
            tried = try_all(made, say)
    except (BeyondError, OSError) as error:
        failure = str(error)
    return certificate(program, tried, failure)


def try_all(made: Bench, say: Callable[[str], None] = lambda _: None) -> list[Tried]:
    """Forks a played story at every kind of cut, once into a repository of its own, and forks a fork."""
    tried = []
    for cut in made.cuts:
        say(cut.name)
        tried.append(made.try_cut(cut))
    middle = next((cut for cut in made.cuts if cut.name == "after an answer"), made.cuts[-1])
    say("isolated")
    tried.append(replace(made.try_cut(middle, isolated=True), cut=replace(middle, name=f"{middle.name}, isolated")))
    return [*tried, *_second_fork(made, middle, say)]


def certificate(program: Installed, tried: Sequence[Tried], failure: str | None = None) -> dict[str, Any]:
    """What came of a proof, for people and for the gate."""
    faults = [f"{one.cut.name}: {fault}" for one in tried for fault in one.faults]
    if failure is None and faults:
        failure = faults[0]
    if failure is None and len(tried) < ENOUGH:
        failure = f"only {len(tried)} kinds of cut were reached"
    return {
        "cli": program.cli,
        "version": program.version,
        "hash": program.hash,
        "writer": agents.writer(program.cli).VERSION,
        "time": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "passed": failure is None,
        "failure": failure,
        "faults": faults,
        "canaries": CANARIES,
        "searched": [
            "every request of the resumed CLI, heads included, also for the old directory",
            "the new conversation's files, before and after resuming",
            "names and contents of the work tree",
            "git status, log, stash and reflog there (every ref where it is isolated)",
            "the command that resumes it",
        ],
        "cuts": [
            {
                "cut": one.cut.name,
                "event": one.cut.seq,
                "kept": len(one.kept),
                "gone": len(one.gone),
                "checks": one.checks,
                "faults": one.faults,
            }
            for one in tried
        ],
    }


def _second_fork(made: Bench, cut: Cut, say: Callable[[str], None]) -> Iterator[Tried]:
    """A fork of a fork: of one that went on with the probe."""
    say("a fork of a fork")
    row = made.journal.con.execute(
        "select r.id, r.run from run r join fork f on f.run = r.id where r.forked_at = ? order by r.id limit 1", (cut.seq,)
    ).fetchone()
    record(made.journal, agents.conversations(made.lab.cli))
    if row is None:
        return
    run = Run(row[0], row[1], made.lab.cli, "main")
    (seq,) = made.journal.con.execute("select max(seq) from event where run = ? and kind = 'assistant_msg'", (run.id,)).fetchone()
    yield made.try_cut(Cut("a fork of a fork", str(seq), seq), run=run)
