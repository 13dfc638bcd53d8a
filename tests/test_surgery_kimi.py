"""Forks of Kimi Code's conversations, from the journal into a scratch store, and read again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beyond import agents
from beyond.errors import Refused
from beyond.fork.plan import Planner, Target
from beyond.journal import Journal
from beyond.naming import Run, causal_past, resolve
from beyond.record import record
from beyond.surgery import kimi
from beyond.surgery.base import INTERRUPTED, ForkPlan, Line, SubPlan, Written
from beyond.surgery.kimi.places import Moves
from beyond.surgery.kimi.state import folder_of, workspace_of
from beyond.surgery.kimi.wire import STOPPED
from beyond.surgery.raw import spans
from tests.conftest import CASES, KIMI_FOLDERS, folder_id
from tests.reading import Reading, read
from tests.test_ingest_kimi import Wire

NEW_ID = "session_0f0e0d0c-0b0a-4908-8706-050403020100"
NEW_ROOT = "/home/u/.bnd/worktrees/notes-1"


# -- making forks ------------------------------------------------------------------------------------


@dataclass
class Parent:
    """A recorded conversation, with what its events say."""

    journal: Journal
    run: Run
    store: Path
    conversation: str
    #: seq: (generation, line, part, kind, link, active).
    events: dict[int, tuple[int, int, int, str, bytes | None, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, journal: Journal, folder: Path, cli: str = "kimi") -> Parent:
        found = list(agents.store(cli).conversations(folder))
        list(record(journal, found))
        conversation = str(found[0].conversation)
        return cls.known(journal, folder, conversation)

    @classmethod
    def known(cls, journal: Journal, folder: Path, conversation: str) -> Parent:
        parent = cls(journal, resolve(journal.con, conversation), folder, conversation)
        rows = journal.con.execute(
            "select e.seq, s.generation, e.line, e.part, e.kind, e.link, e.active from event e join source s "
            "on s.id = e.source where e.run = ? order by e.seq",
            (parent.run.id,),
        )
        parent.events = {seq: tuple(rest) for seq, *rest in rows}
        return parent

    def plan(self, *ends: int, store: Path, root: str = NEW_ROOT, **more: Any) -> ForkPlan:
        given = {"new_conversation": NEW_ID, "now_ms": 1796090000000, "title": "notes @ 1", "side_file": self.side_file, **more}
        return Planner(self.journal.con, self.journal.reader).plan(self.run, ends, Target(store, root, **given))

    def side_file(self, name: str) -> bytes | None:
        (path,) = self.store.glob(f"sessions/*/{self.conversation}")
        try:
            return (path / name).read_bytes()
        except OSError:
            return None

    def past(self, *ends: int) -> set[int]:
        return causal_past(self.journal.con, self.run, *ends)


def put(written: Written, store: Path) -> Path:
    """Places what was written, as the fork command does but for syncing. The folder of the conversation."""
    for part in written.parts:
        for name, chunks in part.files.items():
            path = store / part.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                for chunk in chunks():
                    file.write(chunk)
    for name, line in written.appends:
        with (store / name).open("ab") as file:
            file.write(line)
    return store / written.parts[0].path


def everything(folder: Path) -> bytes:
    """All bytes of all files of a folder, and their names."""
    out = []
    for path in sorted(folder.rglob("*")):
        out.append(str(path.relative_to(folder)).encode())
        if path.is_file():
            out.append(path.read_bytes())
    return b"\n".join(out)


def records(path: Path) -> list[dict[str, Any]]:
    """The records of a wire, as the CLI's strict reader takes them; every line is one."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.split(b"\n") if line]


@dataclass
class Forked:
    """A fork in a scratch store, read again."""

    parent: Parent
    seq: int
    written: Written
    folder: Path
    reading: Reading

    @property
    def wire(self) -> Path:
        return self.folder / "agents/main/wire.jsonl"

    def check_links(self) -> None:
        """Kept events stand where they stood, with the same links; all else is undone, or closes an open call."""
        rows = {key[1]: row for key, row in self.reading.rows.items()}
        at = {(event[0], event[1]): (rows[key[1]], event) for key, event in self.reading.events.items()}
        past = self.parent.past(self.seq)
        for seq in past:
            _, line, part, kind, link, _ = self.parent.events[seq]
            row, event = at.pop((line, part))
            assert (event[2], row.link, row.active) == (kind, link, True), (self.seq, seq, kind)
        undone = {(e[1], e[2]): e for seq, e in self.parent.events.items() if seq not in past}
        for place, (row, event) in at.items():
            if event[4] in (INTERRUPTED, STOPPED):
                continue
            assert place in undone and (not row.active or event[2] == "usage"), (self.seq, place, event)

    def check_structure(self) -> None:
        """A head, no call without a result in a step that ended, deliveries after prompts, lines that are records."""
        lines = records(self.wire)
        assert lines[0]["type"] == "metadata"
        open_calls: set[str] = set()
        for one in lines:
            event = one.get("event") if one["type"] == "context.append_loop_event" else None
            if event and event["type"] == "tool.call":
                open_calls.add(event["toolCallId"])
            elif event and event["type"] == "tool.result":
                open_calls.discard(event["toolCallId"])
            elif event and event["type"] == "step.begin":
                open_calls.clear()
        assert not open_calls


def fork(parent: Parent, seq: int, store: Path, **more: Any) -> Forked:
    """Forks at an event and reads the result."""
    plan = parent.plan(seq, store=store, **more)
    written = kimi.write(plan)
    folder = put(written, store)
    reading = read(folder / "agents/main/wire.jsonl")
    return Forked(parent, seq, written, folder, reading)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "parent.db") as opened:
        yield opened


def marked(source: Path, target: Path) -> Path:
    """A copy of a fixture's store in which every text of the conversation ends with a canary of its own: by its line,
    but by its words where a prompt and its delivery have to say the same."""
    for path in source.rglob("*"):
        place = target / path.relative_to(source)
        if path.is_dir():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if path.name == "wire.jsonl":
            lines = data.split(b"\n")[:-1]
            data = b"".join(_mark(json.loads(raw), n) + b"\n" for n, raw in enumerate(lines, 1))
        place.write_bytes(data)
    return target


_TEXTS = ("text", "content", "output", "command", "summary", "contextSummary", "prompt", "resultSummary")


def _mark(one: dict[str, Any], number: int) -> bytes:
    said = one["type"] in ("turn.prompt", "context.append_message")

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: f"{v} {canary(v, number)}" if k in _TEXTS and isinstance(v, str) else walk(v) for k, v in value.items()}
        return [walk(v) for v in value] if isinstance(value, list) else value

    def canary(text: str, number: int) -> str:
        return f"CANARY-{sum(text.encode())}x" if said else f"CANARY-L{number}x"

    return json.dumps(walk(one), ensure_ascii=False, separators=(",", ":")).encode()


# -- every fixture, every event ----------------------------------------------------------------------


@pytest.mark.parametrize("folder", KIMI_FOLDERS, ids=folder_id)
def test_every_event_of_every_fixture(folder: Path, tmp_path: Path, journal: Journal) -> None:
    parent = Parent.of(journal, marked(folder, tmp_path / "marked"))
    (wire,) = (tmp_path / "marked").glob(f"sessions/*/{parent.conversation}/agents/main/wire.jsonl")
    canaries = [set(re.findall(rb"CANARY-\w+", line)) for line in wire.read_bytes().split(b"\n")]
    canaries += [set()] * 4
    for seq in parent.events:
        forked = fork(parent, seq, tmp_path / f"s{seq}")
        forked.check_links()
        forked.check_structure()
        said = everything(forked.folder)
        past = {parent.events[s][1] for s in parent.past(seq)}
        undone = {e[1] for s, e in parent.events.items() if not forked_holds(parent, seq, s)}
        for number, names in enumerate(canaries, 1):
            if number in past:
                assert all(name in said for name in names), (seq, number)
            elif number > max(past) + 3 or number in undone:
                elsewhere = set().union(*(canaries[n - 1] for n in range(1, max(past) + 4) if n not in undone))
                assert not [name for name in names - elsewhere if name in said], (seq, number)
        assert parent.conversation.encode() not in said
        old = journal.con.execute("select project from run where id = ?", (parent.run.id,)).fetchone()[0]
        assert old.encode() not in said


def forked_holds(parent: Parent, seq: int, other: int) -> bool:
    """Whether a fork at `seq` may hold the event `other`: it is of the past, or of a branch undone before the cut."""
    if other in parent.past(seq):
        return True
    return not parent.events[other][5] and parent.events[other][1] < parent.events[seq][1]


def test_forks_of_forks_recorded_in_a_journal(tmp_path: Path, journal: Journal) -> None:
    for number, folder in enumerate(KIMI_FOLDERS):
        parent = Parent.of(journal, folder)
        middle = sorted(parent.events)[len(parent.events) // 2]
        first = fork(parent, middle, tmp_path / f"a{number}")
        with Journal.open(tmp_path / f"{number}.db") as other:
            again = Parent.of(other, tmp_path / f"a{number}")
            links = {(e[1], e[2]): e[4] for e in again.events.values()}
            for seq in parent.past(middle):
                _, line, part, _, link, _ = parent.events[seq]
                assert links[line, part] == link
            for seq in again.events:
                new_id = f"session_{seq:08x}-0000-4000-8000-000000000000"
                inner = fork(again, seq, tmp_path / f"b{number}-{seq}", new_conversation=new_id, root="/srv/other")
                inner.check_links()
                assert NEW_ROOT.encode() not in everything(inner.folder)
        assert first.written.conversation == NEW_ID


# -- made-up wires -----------------------------------------------------------------------------------

OLD_ID = "session_11111111-2222-4333-8444-555555555555"
OLD_ROOT = "/w/app"


def conversation(store: Path, lines: Iterable[bytes], name: str = OLD_ID, root: str = OLD_ROOT, agent: str = "main") -> Path:
    """Puts a wire into a store, as a conversation of `root`. Its folder."""
    folder = store / f"sessions/wd_app_0123456789ab/{name}"
    wire = folder / f"agents/{agent}/wire.jsonl"
    wire.parent.mkdir(parents=True, exist_ok=True)
    wire.write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / "state.json").write_text(json.dumps({"workDir": root}))
    return folder


@pytest.fixture
def made(tmp_path: Path, journal: Journal) -> Callable[..., Parent]:
    """Records a made-up wire."""

    def make(wire: Wire | list[bytes], **options: Any) -> Parent:
        conversation(tmp_path / "old", wire.lines if isinstance(wire, Wire) else wire, **options)
        return Parent.of(journal, tmp_path / "old")

    return make


def seq_of(parent: Parent, text: str, kind: str | None = None) -> int:
    """The event whose content holds `text`."""
    plan = parent.plan(*parent.events, store=Path("/s"))
    return next(s.seq for s in plan.steps() if text in (s.content or "") and kind in (None, s.kind))


def parallel(version: str = "1.4") -> Wire:
    """Two calls at once; while they are open the user steers; the second result comes last."""
    wire = Wire(version).prompt("go").begin("s1").say("s1", "both").call("s1", "c1", x="ONE").call("s1", "c2", x="TWO")
    wire.result("c1", "OUT-ONE").notice("turn.steer", "STEERED").message("STEERED").put({"type": "task.noted", "x": "NOTED"})
    return wire.result("c2", "OUT-TWO").end("s1", "tool_use").begin("s2").say("s2", "DONE").end("s2")


@pytest.mark.parametrize("version", ["1.4", "1.5"])
def test_what_goes_on_beside_the_cut_is_left_out(made: Callable[..., Parent], tmp_path: Path, version: str) -> None:
    parent = made(parallel(version))
    for cut, there, gone in (
        ("OUT-TWO", "ONE TWO OUT-TWO", "OUT-ONE STEERED NOTED DONE"),
        ("OUT-ONE", "ONE OUT-ONE", "OUT-TWO STEERED NOTED DONE"),
        ("STEERED", "OUT-ONE OUT-TWO STEERED", "DONE"),
        ("DONE", "OUT-ONE OUT-TWO STEERED NOTED", ""),
    ):
        forked = fork(parent, seq_of(parent, cut), tmp_path / cut)
        forked.check_links()
        forked.check_structure()
        said = everything(forked.folder)
        assert [word for word in there.split() if word.encode() not in said] == []
        assert [word for word in gone.split() if f'"{word}"'.encode() in said] == []
        old = records(parent.store / f"sessions/wd_app_0123456789ab/{OLD_ID}/agents/main/wire.jsonl")
        here = parent.events[seq_of(parent, cut)][1]
        for before, after in zip(old[:here], records(forked.wire)[:here], strict=True):
            assert after.get("time", after.get("created_at")) == before.get("time", before.get("created_at")), "no line moves"


@pytest.mark.parametrize("version", ["1.4", "1.5"])
def test_an_open_call_is_closed_in_the_format_of_the_protocol(made: Callable[..., Parent], tmp_path: Path, version: str) -> None:
    wire = Wire(version).prompt("go").begin("s1").call("s1", "c1", x="ONE").result("c1", "OUT").end("s1").turn("p", "a")
    parent = made(wire)
    forked = fork(parent, seq_of(parent, "ONE"), tmp_path / version)
    result, end = records(forked.wire)[-2:]
    assert result["event"] == {
        "type": "tool.result", "parentUuid": "c1", "toolCallId": "c1", "result": {"output": INTERRUPTED, "isError": True},
    }  # fmt: skip
    assert (end["event"]["type"], end["event"]["uuid"]) == ("step.end", "s1")
    assert {one.get("agentId") for one in (result, end)} == {"main" if version == "1.5" else None}
    assert any("closed as interrupted" in note for note in forked.written.notes)


def test_a_call_left_open_long_ago_is_not_closed_at_the_end(made: Callable[..., Parent], tmp_path: Path) -> None:
    wire = Wire().prompt("go").begin("s1").call("s1", "c1", x="ONE").turn("then", "well")
    parent = made(wire)
    forked = fork(parent, seq_of(parent, "well"), tmp_path / "n")
    assert INTERRUPTED.encode() not in forked.wire.read_bytes()
    assert INTERRUPTED.encode() in fork(parent, seq_of(parent, "then"), tmp_path / "m").wire.read_bytes()


def test_a_prompt_that_was_not_delivered_is(made: Callable[..., Parent], tmp_path: Path) -> None:
    wire = Wire("1.5").turn("one", "answer").notice("turn.prompt", "TWO \ud800")
    parent = made(wire)
    forked = fork(parent, seq_of(parent, "TWO"), tmp_path / "n")
    forked.check_links()
    message = records(forked.wire)[-1]["message"]
    assert message["content"] == [{"type": "text", "text": "TWO \ud800"}]
    assert message["origin"] == {"kind": "user"}
    assert b"\\ud800" in forked.wire.read_bytes().split(b"\n")[-2]


def test_of_a_prompt_only_the_kept_blocks(made: Callable[..., Parent], tmp_path: Path) -> None:
    blocks = [{"type": "text", "text": "first"}, {"type": "text", "text": "SECOND"}, {"type": "text", "text": "THIRD"}]
    wire = Wire().put({"type": "turn.prompt", "input": blocks, "origin": {"kind": "user"}})
    wire.put({"type": "context.append_message", "message": {"role": "user", "content": blocks, "origin": {"kind": "user"}}})
    parent = made(wire.begin("s1").say("s1", "ok").end("s1"))
    for text, there in (("first", 1), ("SECOND", 2), ("THIRD", 3)):
        forked = fork(parent, seq_of(parent, text), tmp_path / text)
        forked.check_links()
        prompt, message = records(forked.wire)[-2:]
        assert prompt["input"] == message["message"]["content"] == blocks[:there]


def test_messages_of_older_protocols(made: Callable[..., Parent], tmp_path: Path) -> None:
    calls = [{"type": "function", "id": name, "name": "Bash", "arguments": "{}"} for name in ("c1", "c2")]
    message = {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "toolCalls": calls}
    wire = Wire("1.1").prompt("go").put({"type": "context.append_message", "message": message})
    result = {"role": "tool", "content": [{"type": "text", "text": "OUT"}], "toolCallId": "c1"}
    wire.put({"type": "context.append_message", "message": result})
    parent = made(wire)
    for seq in parent.events:
        forked = fork(parent, seq, tmp_path / str(seq))
        forked.check_links()
        assert (b"OUT" in forked.wire.read_bytes()) == (seq == max(parent.events))
        kept = [one["message"] for one in records(forked.wire) if one["type"] == "context.append_message"]
        if seq > 1:
            assert len(kept[1]["toolCalls"]) == (0, 1, 2, 1)[seq - 2]  # the second call is no cause of the first's result
            assert [m["toolCallId"] for m in kept[2:]] == [c["id"] for c in kept[1]["toolCalls"]]


def test_a_compaction_that_had_begun_is_not_running(made: Callable[..., Parent], tmp_path: Path) -> None:
    wire = Wire("1.5").turn("one", "answer").put({"type": "full_compaction.begin", "source": "auto"})
    wire.usage("session", output=5).put({"type": "context.apply_compaction", "summary": "SUMMARY", "compactedCount": 2})
    wire.put({"type": "token_counting.rebased", "length": 1, "tokens": 3}).put({"type": "full_compaction.complete"})
    parent = made(wire.turn("two", "later"))
    inside = next(seq for seq, event in parent.events.items() if event[3] == "usage")
    kinds = [one["type"] for one in records(fork(parent, inside, tmp_path / "in").wire)]
    assert "full_compaction.begin" not in kinds
    kinds = [one["type"] for one in records(fork(parent, seq_of(parent, "SUMMARY"), tmp_path / "at").wire)]
    assert kinds[-3:] == ["context.apply_compaction", "token_counting.rebased", "full_compaction.complete"]
    short = [line for line in wire.lines if b"rebased" not in line and b"full_compaction.complete" not in line]
    parent = made(short[: short.index(next(line for line in short if b"SUMMARY" in line)) + 1], name=NEW_ID)
    other = "session_99999999-2222-4333-8444-555555555555"
    forked = fork(parent, seq_of(parent, "SUMMARY"), tmp_path / "end", new_conversation=other)
    assert records(forked.wire)[-1]["type"] == "full_compaction.complete"


def test_damage_does_not_end_the_reading(made: Callable[..., Parent], tmp_path: Path) -> None:
    lines = Wire().turn("one", "answer").turn("two", "last").lines
    odd = [*lines[:3], b"torn {", b"  ", *lines[3:5], b"\0\0" + lines[5], b"\xef\xbb\xbf" + lines[6] + b"\0", *lines[7:]]
    parent = made(odd)
    forked = fork(parent, seq_of(parent, "last"), tmp_path / "n")
    forked.check_links()
    assert records(forked.wire)[: len(lines) - 1] == [json.loads(line) for line in lines[:-1]]
    assert len(forked.wire.read_bytes().split(b"\n")) - 1 >= len(odd) - 1, "lines keep their numbers"


def test_a_rewritten_file(made: Callable[..., Parent], tmp_path: Path) -> None:
    wire = parallel()
    parent = made(wire)
    before = dict(parent.events)
    again = [line.replace(b'"1.4"', b'"1.5"') for line in wire.lines]
    again = [json.dumps(json.loads(line), separators=(",", ":")).encode() for line in again]
    more = Wire("1.5")
    more.time = wire.time
    more.lines.clear()
    more.turn("NEXT", "ANSWER")
    conversation(tmp_path / "old", [*again, *more.lines])
    list(record(parent.journal, list(agents.store("kimi").conversations(tmp_path / "old"))))
    parent = Parent.known(parent.journal, parent.store, OLD_ID)
    assert {seq: event[:4] for seq, event in parent.events.items() if seq in before} == {s: e[:4] for s, e in before.items()}
    forked = fork(parent, seq_of(parent, "NEXT"), tmp_path / "n")
    said = forked.wire.read_bytes()
    assert said.startswith(b'{"type":"metadata","protocol_version":"1.5"')
    for word in (b"OUT-ONE", b"STEERED", b"DONE", b"NEXT"):
        assert word in said
    assert b"ANSWER" not in said
    old = fork(parent, seq_of(parent, "OUT-TWO"), tmp_path / "o")
    old.check_links()
    conversation(tmp_path / "old", [again[0], *again[4:], *more.lines, *Wire("1.5").turn("THIRD", "x").lines[1:]])
    list(record(parent.journal, list(agents.store("kimi").conversations(tmp_path / "old"))))
    parent = Parent.known(parent.journal, parent.store, OLD_ID)
    with pytest.raises(Refused, match="no longer in it"):
        fork(parent, seq_of(parent, "THIRD"), tmp_path / "lost")


# -- the cases ---------------------------------------------------------------------------------------


def test_sf_12_index_folder_and_homedir(tmp_path: Path, journal: Journal) -> None:
    source = CASES / "SF-12.dir/kimi-home"
    parent = Parent.of(journal, source)
    index = (source / "session_index.jsonl").read_bytes()
    store = tmp_path / "store"
    store.mkdir()
    (store / "session_index.jsonl").write_bytes(index)
    ((cut, _),) = [(seq, e) for seq, e in parent.events.items() if e[3] == "assistant_msg"][:1]
    forked = fork(parent, cut, store, root="/w/proj")
    forked.check_links()
    now = (store / "session_index.jsonl").read_bytes()
    assert now.startswith(index)
    assert json.loads(now[len(index) :]) == {"sessionId": NEW_ID, "sessionDir": str(forked.folder), "workDir": "/w/proj"}
    assert forked.folder.parent == store / "sessions/wd_proj_3d2c9e2d2a4d" or forked.folder.parent.name.startswith("wd_proj_")
    state = json.loads((forked.folder / "state.json").read_bytes())
    assert state["agents"]["main"]["homedir"] == str(forked.folder / "agents/main")
    assert state["workDir"] == "/w/proj"
    assert state["lastPrompt"] == "p1"
    said = everything(forked.folder)
    assert b'"a1"' in said
    assert b"p2" not in said
    assert b"a2" not in said


def test_sf_01_every_cut_between_a_call_and_its_result(made: Callable[..., Parent], tmp_path: Path) -> None:
    wire = Wire().prompt("p").begin("s1").say("s1", "t").call("s1", "c1").call("s1", "c2").result("c2", "two")
    parent = made(wire.result("c1", "one").end("s1").begin("s2").say("s2", "end").end("s2"))
    for seq in parent.events:
        forked = fork(parent, seq, tmp_path / str(seq))
        forked.check_links()
        forked.check_structure()
    with pytest.raises(IndexError):
        parent.past(99)
        sorted(parent.events)[99]


def test_sf_07_a_conversation_that_is_being_written(tmp_path: Path, journal: Journal) -> None:
    wire = Wire().turn("one", "a").prompt("two").begin("s2").call("s2", "live", x="LIVE")
    folder = conversation(tmp_path / "old", wire.lines)
    path = folder / "agents/main/wire.jsonl"
    with path.open("ab") as file:
        file.write(b'{"type":"context.append_loop_event","event":{"type":"tool.resu')
    before = path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino
    parent = Parent.of(journal, tmp_path / "old")
    first = fork(parent, max(parent.events), tmp_path / "x")
    first.check_links()
    first.check_structure()
    assert b"tool.resu\n" not in first.wire.read_bytes()
    other = "session_99999999-2222-4333-8444-555555555555"
    second = fork(parent, max(parent.events), tmp_path / "x", new_conversation=other)
    assert second.wire.read_bytes() == first.wire.read_bytes()
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_sf_09_only_what_is_named_is_copied(made: Callable[..., Parent], tmp_path: Path) -> None:
    place = f"/home/u/.kimi-code/sessions/wd_app_0123456789ab/{OLD_ID}/agents/main"
    wire = (
        Wire("1.5").prompt("go").begin("s1").call("s1", "c1").result("c1", f"saved\noutput_path: {place}/tasks/t-1/output.log\n")
    )
    wire.call("s1", "c2").result("c2", f"output_path: {place}/tool-results/Bash-c2.txt").end("s1")
    entries = {"a.txt": {"key": "file-history/abc@v2", "version": 2}}
    wire.put({"type": "file_history.checkpoint", "entries": entries}).turn("next", "NEXT")
    entries = {"a.txt": {"key": "file-history/abc@v3", "version": 3}}
    wire.put({"type": "file_history.checkpoint", "entries": entries})
    ended = wire.time
    folder = conversation(tmp_path / "old", wire.turn("x", "LAST").lines)
    for name, data in (
        ("tasks/t-1/output.log", "LOG"), ("tasks/t-1.json", json.dumps({"endedAt": ended, "cwd": "/w/app/x"})),
        ("tool-results/Bash-c2.txt", "WHOLE"), ("file-history/abc@v2", "V2"), ("file-history/abc@v3", "V3"),
    ):  # fmt: skip
        (folder / "agents/main" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "agents/main" / name).write_text(data)
    parent = made(wire)
    early = fork(parent, seq_of(parent, "NEXT"), tmp_path / "a")
    names = {str(p.relative_to(early.folder)) for p in early.folder.rglob("*") if p.is_file()}
    main = "agents/main"
    assert names == {"state.json", f"{main}/wire.jsonl", f"{main}/tool-results/Bash-c2.txt", f"{main}/file-history/abc@v2"}
    assert any("went on after the cut" in note for note in early.written.notes)
    late = fork(parent, seq_of(parent, "LAST"), tmp_path / "b")
    assert (late.folder / "agents/main/tasks/t-1/output.log").read_text() == "LOG"
    assert (late.folder / "agents/main/file-history/abc@v3").read_text() == "V3"
    assert json.loads((late.folder / "agents/main/tasks/t-1.json").read_text())["cwd"] == f"{NEW_ROOT}/x"
    assert f"output_path: {late.folder}/agents/main/tasks/t-1/output.log" in (records(late.wire)[5]["event"]["result"]["output"])


# -- places ------------------------------------------------------------------------------------------


def test_paths_and_ids_move_and_nothing_else_changes(made: Callable[..., Parent], tmp_path: Path) -> None:
    texts = {
        "/w/app": NEW_ROOT, "/w/app/x": f"{NEW_ROOT}/x", "a\n/w/app.": f"a\n{NEW_ROOT}.", '"/w/app"': f'"{NEW_ROOT}"',
        "/w/app2": "/w/app2", "/w/app.old": "/w/app.old", "/w/app-x": "/w/app-x", "/srv/w/app": "/srv/w/app",
        "-I/w/app/inc": f"-I{NEW_ROOT}/inc", "file:///w/app": f"file://{NEW_ROOT}", "é/w/app": f"é{NEW_ROOT}",
        "\x1b[1m/w/app\x1b": f"\x1b[1m{NEW_ROOT}\x1b", "\ud800/w/app": f"\ud800{NEW_ROOT}", "c:\\/w/app": f"c:\\{NEW_ROOT}",
        OLD_ID: NEW_ID,
    }  # fmt: skip
    for ascii_only in (True, False):
        for old, new in texts.items():
            value = {"a": old, "n": 10**30, "f": 1.50, "k": [old, "tail"]}
            try:
                raw = json.dumps(value, ensure_ascii=ascii_only).encode()
            except UnicodeEncodeError:
                continue
            moves = Moves([(OLD_ROOT, NEW_ROOT)], (OLD_ID, NEW_ID), f"/s/{NEW_ID}")
            moved = moves.line(raw)
            assert json.loads(moved) == {**value, "a": new, "k": [new, "tail"]}, (old, ascii_only)
            assert b'"f": 1.5, ' in moved
            slashes = raw.replace(b"/", b"\\/")
            assert json.loads(moves.line(slashes)) == json.loads(moved)
    wire = Wire().prompt("go").begin("s1")
    for number, text in enumerate(texts):
        wire.say("s1", f"{number}: {text}")
    raw = b'{"type":"x.y","a":1.50,"a":2,"n":123456789012345678901234567890,"e":"\\u0041\\/","r":"/w/app"}'
    wire.lines.append(raw)
    parent = made(wire.end("s1").turn("p", "END"))
    forked = fork(parent, seq_of(parent, "END"), tmp_path / "n")
    new = forked.wire.read_bytes().split(b"\n")
    assert raw.replace(b"/w/app", NEW_ROOT.encode()) in new
    old = [line for line in wire.lines if b"/w/app" not in line and OLD_ID.encode() not in line]
    assert [line for line in old[:-1] if line not in new] == []
    past = parent.past(seq_of(parent, "END"))
    assert len(past) > len(texts)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from('/wap \n"\\é\ud800😀.-2'), max_size=30), st.booleans())
def test_moves_edit_the_decoded_text(text: str, ascii_only: bool) -> None:
    moves = Moves([("/w/a", "/n/ö")], ("/pp", "QQ"), None)
    value = {"k": text, "/w/a": [text]}
    try:
        raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    moved = json.loads(moves.line(raw))
    assert moved == {"k": moves.apply(text), "/n/ö": [moves.apply(text)]}


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x, max_size=3) | st.dictionaries(
    st.text(max_size=3), x, max_size=3), max_leaves=10))  # fmt: skip
def test_spans_find_every_value(value: Any) -> None:
    raw = json.dumps({"root": value}).encode()
    for path, (start, end) in spans(raw, lambda path: True).items():
        found: Any = {"root": value}
        for step in path:
            found = found[step]
        assert json.loads(raw[start:end]) == found


# -- what is refused, and how it is started ----------------------------------------------------------


def test_what_is_refused(made: Callable[..., Parent], tmp_path: Path) -> None:
    parent = made(Wire().turn("one", "a"))
    plan = parent.plan(2, store=tmp_path)
    assert kimi.refuse(plan) is None
    odd = Line(0, 1, b'{"type":"metadata","protocol_version":"2.0","created_at":1}')
    for changed, said in (
        ({"cli": "claude"}, "no wire of Kimi Code"),
        ({"old_paths": ("/k/sessions/wd_x/session_y/agents/agent-0/wire.jsonl",)}, "inside of a subagent"),
        ({"lines": lambda: iter(())}, "no transcript"),
        ({"lines": lambda: iter([odd])}, "protocol 2.0"),
        ({"lines": lambda: iter([odd._replace(raw=b"{")])}, "metadata record"),
    ):
        assert said in (kimi.refuse(replace(plan, **changed)) or ""), said
        with pytest.raises(Refused, match="synthesis"):
            kimi.write(replace(plan, **changed))
    bare = [line._replace(kept=frozenset()) for line in plan.lines()]
    for changed in (
        {"lines": lambda: iter(bare)},
        {"new_conversation": "0f0e0d0c-0b0a-4908-8706-050403020100"},
        {"new_conversation": "session_../../x"},
        {"new_conversation": plan.conversation},
        {"new_root": "relative"},
        {"new_root": "/w/\udcff"},
    ):
        with pytest.raises(Refused):
            kimi.write(replace(plan, **changed))
    gone = iter([list(plan.lines()), list(plan.lines())[:-2], []])
    written = kimi.write(replace(plan, lines=lambda: iter(next(gone))))
    del written
    calls: list[int] = []

    def shrinking() -> Iterator[Line]:
        calls.append(1)
        return iter(list(plan.lines()) if len(calls) <= 2 else list(plan.lines())[:2])

    written = kimi.write(replace(plan, lines=shrinking))
    with pytest.raises(Refused, match="could not be read again"):
        put(written, tmp_path / "short")


def test_launch(made: Callable[..., Parent], tmp_path: Path) -> None:
    plan = made(Wire().turn("one", "a")).plan(2, store=Path.home() / ".kimi-code")
    assert kimi.launch(plan).argv == ("kimi", "-S", NEW_ID)
    assert kimi.launch(plan).env == {}
    assert kimi.launch(plan, "go on").argv == ("kimi", "-p", "go on", "-S", NEW_ID)
    assert kimi.launch(plan).cwd == NEW_ROOT
    assert {"KIMI_SESSION_ID", "CLAUDECODE"} <= set(kimi.launch(plan).unset)
    assert kimi.launch(replace(plan, store=tmp_path)).env == {"KIMI_CODE_HOME": str(tmp_path)}


@pytest.mark.parametrize(("version", "form"), [("0.28.0", 1), ("0.29.0", 1), ("2.1.0", 2), (None, 1)])
def test_state_is_of_the_version_that_resumes(
    made: Callable[..., Parent], tmp_path: Path, version: str | None, form: int
) -> None:
    parent = made(Wire().turn("one\ntwo", "a"))
    forked = fork(parent, 2, tmp_path / "n", version=version, title="a\ntitle")
    state = json.loads((forked.folder / "state.json").read_bytes())
    assert (state["title"], state["isCustomTitle"]) == ("a title", True)
    if form == 1:
        assert (state["workDir"], state["createdAt"], state["lastPrompt"]) == (NEW_ROOT, "2026-12-01T01:53:20.000Z", "one two")
    else:
        assert (state["id"], state["version"], state["cwd"], state["createdAt"]) == (NEW_ID, 2, NEW_ROOT, 1796090000000)


def test_folders_are_named_as_the_cli_names_them() -> None:
    for path in KIMI_FOLDERS:
        for line in (path / "session_index.jsonl").read_text().splitlines():
            entry = json.loads(line)
            assert entry["sessionDir"].endswith(folder_of(entry["workDir"], entry["sessionId"]))
    assert workspace_of("/x/--Ä b--").startswith("wd_b_")
    assert workspace_of("/").startswith("wd_workspace_")


# -- each rule is needed -----------------------------------------------------------------------------


def rule_story() -> Wire:
    """A conversation in which each rule has something to do."""
    place = f"/home/u/.kimi-code/sessions/wd_app_0123456789ab/{OLD_ID}/agents/main"
    wire = Wire("1.5").put({"type": "runtime.set_binding", "workspaceId": "wd_app_0123456789ab", "agentId": "main"})
    prompt = "The current working directory is `/w/app`."
    wire.put({"type": "profile.bind", "agentId": "main", "systemPrompt": prompt, "environmentDisclosure": {"cwd": "/w/app"}})
    wire.turn("one in /w/app/x", f"see {place}/wire.jsonl").put({"type": "full_compaction.begin", "source": "auto"})
    wire.usage("session", output=7)
    wire.put({"type": "context.apply_compaction", "summary": "SUM", "compactedCount": 1})
    wire.prompt("go").begin("s1").call("s1", "c1", x="ONE").call("s1", "c2", x="TWO").result("c1", "OUT-ONE")
    wire.result("c2", "OUT-TWO").end("s1").begin("s2").say("s2", "DONE").end("s2")
    entries = {"a": {"key": "file-history/abc@v9"}}
    wire.put({"type": "file_history.checkpoint", "entries": entries})
    blocks = [{"type": "text", "text": "BLOCK-1"}, {"type": "text", "text": "BLOCK-2"}]
    return wire.put({"type": "turn.prompt", "input": blocks, "origin": {"kind": "user"}})


@pytest.mark.parametrize("rule", sorted(kimi.RULES))
def test_without_a_rule_a_check_turns_red(rule: str, made: Callable[..., Parent], tmp_path: Path) -> None:
    folder = conversation(tmp_path / "old", rule_story().lines)
    (folder / "agents/main/file-history").mkdir()
    (folder / "agents/main/file-history/abc@v9").write_text("FUTURE FILE")
    sub = Wire("1.5").turn("SUBTASK", "inside").lines
    conversation(tmp_path / "old", [*sub, *Wire("1.5").turn("AGAIN", "SUB-LATER").lines[1:]], agent="agent-0")
    parent = made(rule_story())
    cuts = {"close-compaction": "SUM", "deliver-prompt": "BLOCK-1", "trim": "BLOCK-1"}
    cut = seq_of(parent, cuts.get(rule, "OUT-TWO"))
    if rule == "close-compaction":
        cut -= 1

    def problems(without: frozenset[str]) -> set[str]:
        store = tmp_path / ("with" if not without else "without")
        store.mkdir()
        plan = parent.plan(cut, store=store, without=without)
        lines = list(plan.lines())
        inner = [Line(0, n, raw, frozenset({0}) if b"SUBTASK" in raw and b"turn.prompt" in raw else frozenset())
                 for n, raw in enumerate((tmp_path / f"old/sessions/wd_app_0123456789ab/{OLD_ID}/agents/agent-0/wire.jsonl")
                                         .read_bytes().split(b"\n")[:-1], 1)]  # fmt: skip
        path = f"/k/sessions/wd_app_0123456789ab/{OLD_ID}/agents/agent-0/wire.jsonl"
        plan = replace(plan, lines=lambda: iter(lines), subagents=(SubPlan("agent-0", "c1", path, lambda: iter(inner), False),))
        written = kimi.write(plan)
        place = put(written, store)
        said, wire = everything(place), records(place / "agents/main/wire.jsonl")
        state = json.loads((place / "state.json").read_bytes())
        kinds = [one["type"] for one in wire]
        results = [one["event"]["toolCallId"] for one in wire if (one.get("event") or {}).get("type") == "tool.result"]
        found = {
            "prefix-only": b"DONE" in said and b"BLOCK-1" in said,
            "neutralise": b"OUT-ONE" in said,
            "trim": b"BLOCK-2" in said,
            "complete-calls": len(results) != len([one for one in wire if (one.get("event") or {}).get("type") == "tool.call"]),
            "deliver-prompt": kinds[-1] == "turn.prompt",
            "close-compaction": "full_compaction.begin" in kinds[-3:],
            "new-id": written.conversation == OLD_ID,
            "index-line": not (store / "session_index.jsonl").exists(),
            "state-cwd": state.get("cwd") != NEW_ROOT,
            "system-prompt-cwd": b"`/w/app`" in said,
            "workspace-id": wire[1]["workspaceId"] != workspace_of(NEW_ROOT),
            "side-files-referenced": b"FUTURE FILE" in said,
            "subagents-cut": b"SUB-LATER" in said,
            "rewrite-wire-path": OLD_ID.encode() in said,
            "rewrite-root": b"one in /w/app" in said,
        }
        return {name for name, red in found.items() if red}

    assert rule not in problems(frozenset())
    if rule == "complete-calls":
        cut = seq_of(parent, "TWO", "tool_call")
        (tmp_path / "without").mkdir(exist_ok=True)
        (tmp_path / "without").rmdir()
    assert rule in problems(frozenset({rule}))
