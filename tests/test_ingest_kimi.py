"""The ingester of Kimi Code's wires: real wires of three versions, the cases' inputs, and made-up lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beyond.event import USAGE_PART
from beyond.ingest.base import Event
from beyond.ingest.kimi import KimiIngester, content_of
from beyond.ingest.kimi.records import events_of
from beyond.ingest.tree import Row

FIXTURES = Path(__file__).parent / "fixtures" / "kimi"
WIRES = sorted(FIXTURES.glob("*/*/kimi-code/sessions/*/*/agents/*/wire.jsonl"))
VERSIONS = ("0.28.0", "0.29.0", "2.1.0")
Identity = tuple[int, int, int]


class Reading:
    """A wire as read in some pieces: events and newest rows by identity."""

    def __init__(self, **options: Any) -> None:
        self.ingester = KimiIngester(**options)
        self.rows: dict[Identity, Row] = {}
        self.events: dict[Identity, Event] = {}
        self._seqs: dict[int, Identity] = {}
        self._contents: dict[Identity, str | None] = {}

    def feed(self, lines: Iterable[bytes], source: int = 0, pieces: str = "whole", seed: int = 0) -> Reading:
        chance, offset = random.Random(seed), 0
        for number, line in enumerate(lines, 1):
            self.ingester.feed(source, number, offset, line)
            offset += len(line) + 1
            if pieces == "lines" or (pieces == "random" and chance.random() < 0.3):
                self.flush()
        self.flush()
        return self

    def flush(self) -> None:
        def assign(_thread: str, event: Event) -> int:
            identity = (event.source, event.line, event.part)
            assert identity not in self.events, "an identity was given twice"
            self.events[identity] = event
            self._seqs[len(self.events)] = identity
            return len(self.events)

        delta = self.ingester.flush(assign)["main"]
        for row in (*delta.fresh, *delta.changed):
            self.rows[self._seqs[row.seq]] = row

    def derived(self) -> dict[Identity, tuple[Any, ...]]:
        """Everything that must not depend on the pieces: seqs are given as identities."""
        return {
            key: (
                self.events[key].kind,
                row.link,
                row.turn,
                row.active,
                row.tokens,
                row.is_error,
                self._seqs.get(row.parent_seq or 0),
                self._seqs.get(row.result_seq or 0),
                self.events[key].usage_key,
                self.events[key].model,
                self.events[key].mark,
            )
            for key, row in self.rows.items()
        }

    def of(self, kind: str, active: bool | None = None) -> list[Event]:
        keys = sorted(k for k, e in self.events.items() if e.kind == kind)
        return [self.events[k] for k in keys if active is None or self.rows[k].active is active]

    def texts(self, kind: str, active: bool | None = None) -> list[str | None]:
        return [event.content for event in self.of(kind, active)]

    def totals(self) -> tuple[int, ...]:
        counts = [row.tokens for row in self.rows.values() if row.tokens is not None]
        return tuple(sum(column) for column in zip(*counts, strict=True))

    def link(self, content: str) -> bytes | None:
        (key,) = [k for k, e in self.events.items() if e.content == content and e.kind != "usage"]
        return self.rows[key].link

    def row(self, content: str) -> Row:
        (key,) = [k for k, e in self.events.items() if e.content == content]
        return self.rows[key]


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


def read(lines: Iterable[bytes], **options: Any) -> Reading:
    return Reading(**options).feed(lines)


def in_all_pieces(lines: list[bytes]) -> Reading:
    """Reads `lines` whole, line by line and in random pieces, and asserts that it comes to the same."""
    whole = Reading().feed(lines)
    for pieces, seed in (("lines", 0), ("random", 1), ("random", 2), ("random", 3)):
        assert Reading().feed(lines, pieces=pieces, seed=seed).derived() == whole.derived(), pieces
    return whole


def fixture(version: str, name: str, agent: str = "main") -> list[bytes]:
    (path,) = FIXTURES.glob(f"{version}/{name}/kimi-code/sessions/*/*/agents/{agent}/wire.jsonl")
    return lines_of(path)


# -- made-up lines ----------------------------------------------------------------------------------


class Wire:
    """Writes wire lines with times that go up."""

    def __init__(self, version: str = "1.4") -> None:
        self.lines: list[bytes] = []
        self.time = 1796083695000
        self.put({"type": "metadata", "protocol_version": version, "created_at": self.time})

    def put(self, record: dict[str, Any]) -> Wire:
        self.time += 10
        if record["type"] != "metadata":
            record = {**record, "time": self.time}
        self.lines.append(json.dumps(record).encode())
        return self

    def loop(self, **event: Any) -> Wire:
        return self.put({"type": "context.append_loop_event", "event": event})

    def message(self, text: str, kind: str = "user", **origin: Any) -> Wire:
        message = {"role": "user", "content": [{"type": "text", "text": text}], "origin": {"kind": kind, **origin}}
        return self.put({"type": "context.append_message", "message": message})

    def notice(self, name: str, text: str, kind: str = "user", **origin: Any) -> Wire:
        return self.put({"type": name, "input": [{"type": "text", "text": text}], "origin": {"kind": kind, **origin}})

    def prompt(self, text: str, kind: str = "user", **origin: Any) -> Wire:
        return self.notice("turn.prompt", text, kind, **origin).message(text, kind, **origin)

    def begin(self, step: str) -> Wire:
        return self.loop(type="step.begin", uuid=step)

    def say(self, step: str, text: str) -> Wire:
        part = {"type": "text", "text": text}
        return self.loop(type="content.part", uuid=f"{step}-{text}", stepUuid=step, part=part)

    def call(self, step: str, tool_id: str, **args: Any) -> Wire:
        return self.loop(
            type="tool.call", uuid=tool_id, stepUuid=step, toolCallId=tool_id, name="Bash", args=args or {"id": tool_id}
        )

    def result(self, tool_id: str, output: Any, **more: Any) -> Wire:
        return self.loop(type="tool.result", parentUuid=tool_id, toolCallId=tool_id, result={"output": output, **more})

    def end(self, step: str, reason: str = "end_turn", **usage: int) -> Wire:
        more = {"usage": usage} if usage else {}
        return self.loop(type="step.end", uuid=step, finishReason=reason, **more)

    def usage(self, scope: str = "turn", **usage: int) -> Wire:
        return self.put({"type": "usage.record", "model": "m", "usage": usage, "usageScope": scope})

    def turn(self, prompt: str, answer: str) -> Wire:
        return self.prompt(prompt).begin(f"s-{answer}").say(f"s-{answer}", answer).end(f"s-{answer}")


# -- the real wires ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", WIRES, ids=lambda p: "/".join((*p.parts[-9:-7], p.parts[-2])))
def test_a_wire_reads_the_same_in_any_pieces(path: Path) -> None:
    reading = in_all_pieces(lines_of(path))
    assert not reading.ingester.damage
    assert not reading.of("meta") or path.parts[-8] == "compaction"
    assert all(e.ts is not None for e in reading.events.values())
    assert {k for k, e in reading.events.items() if e.kind == "usage"} == {k for k in reading.events if k[2] == USAGE_PART}
    for row in reading.rows.values():  # causes come before effects
        assert row.parent_seq is None or row.parent_seq < row.seq


@pytest.mark.parametrize("facts", sorted(FIXTURES.glob("*/*/expected.json")), ids=lambda p: "/".join(p.parts[-3:-1]))
def test_a_wire_has_what_was_counted_by_hand(facts: Path) -> None:
    expected = json.loads(facts.read_text())
    reading = read(lines_of(facts.parent / expected["wire"]))
    assert [e.line for e in reading.of("user_msg")] == expected["turn_prompt_lines"]
    assert [e.line for e in reading.of("tool_call")] == expected["tool_call_lines"]
    assert [e.line for e in reading.of("tool_result")] == expected["tool_result_lines"]
    assert [e.line for e in reading.of("meta")] == expected["compaction_lines"]
    assert {e.mark for e in reading.of("meta")} <= {"compaction"}
    open_calls = [e.tool_id for k, e in reading.events.items() if e.kind == "tool_call" and not reading.rows[k].result_seq]
    assert open_calls == expected["open_calls"]
    assert list(reading.ingester.facts.subagents) == expected["subagents"]
    assert reading.ingester.facts.project == expected["work_dir"]
    assert not reading.ingester.stale
    assert not reading.ingester.facts.warnings
    assert reading.ingester.facts.model == "fake-model"
    extra = len(reading.of("usage")) - len(expected["step_end_lines"]) - len(expected["compaction_lines"])
    assert extra == (1 if expected["open_calls"] and expected["version"] == "2.1.0" else 0)  # reported, not yet ended


#: Read off the seven step.end lines of each `twoturn` wire.
INPUTS = {
    "0.28.0": (22889, 22962, 23050, 23116, 23304, 23377, 23513),
    "0.29.0": (22883, 22956, 23044, 23109, 23298, 23371, 23507),
    "2.1.0": (21321, 21394, 21497, 21568, 21746, 21819, 21975),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_usage_counts_each_request_once(version: str) -> None:
    reading = read(fixture(version, "twoturn"))
    assert [e.tokens[0] for e in reading.of("usage") if e.tokens] == list(INPUTS[version])
    assert reading.totals() == (sum(INPUTS[version]), 7 * 12, 0, 0)
    # three steps and two compactions, 240000 in and 12 out each
    assert read(fixture(version, "compaction")).totals() == (5 * 240000, 5 * 12, 0, 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_undone_turns_are_inactive(version: str) -> None:
    reading = read(fixture(version, "undo3"))
    ask = "Please remember the codeword"
    assert reading.texts("user_msg", active=True) == [f"{ask} GOLDENHAWK and write notes.txt", f"{ask} BRONZEFOX"]
    assert reading.texts("user_msg", active=False) == [f"{ask} SILVERWOLF and update notes.txt"]
    assert not any("SILVERWOLF" in (t or "") for t in reading.texts("assistant_msg", active=True))
    assert reading.texts("tool_result", active=False) and len(reading.of("tool_result", active=True)) == 4
    first, new = reading.row("I will remember GOLDENHAWK."), reading.row(f"{ask} BRONZEFOX")
    assert new.parent_seq == first.seq and new.turn == 2
    assert len(reading.of("usage")) == 9  # an undo refunds nothing


@pytest.mark.parametrize("version", VERSIONS)
def test_subagents(version: str) -> None:
    main = read(fixture(version, "subagent"))
    assert main.ingester.facts.subagents == {"agent-0": "call_5_0"}
    agent = read(fixture(version, "subagent", "agent-0"), agent="agent-0")
    assert agent.texts("user_msg")[0] == "SUBTASK read notes.txt and report"
    assert agent.rows[0, agent.of("user_msg")[0].line, 0].turn == 1
    assert agent.ingester.facts.project == main.ingester.facts.project


@pytest.mark.parametrize("path", WIRES, ids=lambda p: "/".join((*p.parts[-9:-7], p.parts[-2])))
def test_links_depend_on_neither_home_nor_project(path: Path) -> None:
    raw = path.read_bytes()
    case = Path(*path.parts[: path.parts.index("kimi-code")])
    expected = json.loads((case / "expected.json").read_text())
    folder, conversation = path.parts[-5], path.parts[-4]
    moved = (
        raw.replace(expected["work_dir"].encode(), b"/elsewhere/the.project")
        .replace(expected["original_home"].encode(), b"/root")
        .replace(folder.encode(), b"wd_the.project_0123456789ab")
        .replace(conversation.encode(), b"session_00000000-0000-4000-8000-000000000000")
    )
    assert moved != raw
    links = {k: r.link for k, r in read(raw.split(b"\n")[:-1], conversation=conversation).rows.items()}
    other = read(moved.split(b"\n")[:-1], conversation="session_00000000-0000-4000-8000-000000000000")
    assert other.ingester.facts.project == "/elsewhere/the.project"
    assert {k: r.link for k, r in other.rows.items()} == links
    # any other text does change them
    text = b"GOLDENHAWK" if b"GOLDENHAWK" in raw else b"BIGOUT" if b"BIGOUT" in raw else b"SUBTASK"
    changed = read(raw.replace(text, b"OTHER").split(b"\n")[:-1], conversation=conversation)
    assert {k: r.link for k, r in changed.rows.items()} != links


def test_a_saved_output_is_named_by_the_store_whatever_the_home() -> None:
    lines = fixture("2.1.0", "bigout")
    (result,) = read(lines).of("tool_result")
    assert result.content is not None and "/.kimi-code/sessions/wd_repo_" in result.content
    assert "1" in result.content and result.tool_id == "call_1_0"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_prefix_has_the_links_of_the_whole(version: str) -> None:
    lines = fixture(version, "undo3")
    whole = {k: r.link for k, r in read(lines).rows.items()}
    for cut in range(len(lines)):
        rows = read(lines[:cut]).rows
        assert {k: r.link for k, r in rows.items()} == {k: whole[k] for k in rows}


@pytest.mark.parametrize("path", WIRES, ids=lambda p: "/".join((*p.parts[-9:-7], p.parts[-2])))
@pytest.mark.parametrize("only_changed", [False, True])
def test_a_rewritten_file_adds_only_what_is_new(path: Path, only_changed: bool) -> None:
    """2.1.0 rewrites a wire of 1.4 in place: with ids of agents, notes moved, messages with ids."""
    lines = lines_of(path)
    before = read(lines)
    known = before.derived()
    rewritten = []
    for number, line in enumerate(lines):
        record = json.loads(line)
        if record["type"] == "metadata":
            record["protocol_version"] = "1.5"
        record["agentId"] = "main"
        if record["type"] == "context.append_message":
            record["message"].setdefault("id", f"msg_{number}")
        rewritten.append(json.dumps(record).encode() if not only_changed or number % 3 == 0 else b"")
    before.feed(rewritten, source=1, pieces="random")
    assert before.derived() == known
    wire = Wire()
    wire.time = 1999999999000
    more = wire.prompt("one more").begin("new").say("new", "answer").lines[1:]
    before.feed([*[b""] * len(lines), *more], source=1)
    assert len(before.events) == len(known) + 2
    assert before.row("answer").active and before.row("one more").parent_seq is not None


# -- the cases --------------------------------------------------------------------------------------


def record(kind: str, time: int, **more: Any) -> bytes:
    return json.dumps({"type": kind, **more, "time": time}).encode()


def step(time: int, number: int, answer: str, numbers: tuple[int, int, int, int]) -> list[bytes]:
    usage = dict(zip(("inputOther", "output", "inputCacheRead", "inputCacheCreation"), numbers, strict=True))
    common = {"turnId": f"t{number}", "step": 0}
    part = {"type": "text", "text": answer}
    events = (
        {"type": "step.begin", "uuid": f"s{number}", **common},
        {"type": "content.part", "uuid": f"c{number}", "stepUuid": f"s{number}", "part": part, **common},
        {"type": "step.end", "uuid": f"s{number}", "finishReason": "end_turn", "usage": usage, **common},
    )
    lines = [record("context.append_loop_event", time + i, event=event) for i, event in enumerate(events)]
    return [*lines, record("usage.record", time + 3, model="kimi-k2", usage=usage, usageScope="turn")]


def asked(time: int, text: str) -> list[bytes]:
    content, origin = [{"type": "text", "text": text}], {"kind": "user"}
    message = {"role": "user", "content": content, "toolCalls": [], "origin": origin}
    return [
        record("turn.prompt", time, input=content, origin=origin),
        record("context.append_message", time + 1, message=message),
    ]


HEAD = b'{"type":"metadata","protocol_version":"1.1","created_at":1772352000000}'
T = 1772352000000


def undo_clear_compaction() -> list[bytes]:
    """TP-29: p1, p2 (undone), p3, compaction, p4, clear, p5."""
    lines = [HEAD]
    lines += asked(T + 1000, "p1") + step(T + 2000, 1, "a1", (10, 5, 0, 0))
    lines += asked(T + 3000, "p2 undone") + step(T + 4000, 2, "a2", (20, 6, 0, 0))
    lines += [record("context.undo", T + 5000, count=1)]
    lines += asked(T + 6000, "p3") + step(T + 7000, 3, "a3", (30, 7, 0, 0))
    lines += [record("context.apply_compaction", T + 8000, summary="SUMMARY", compactedCount=4)]
    lines += asked(T + 9000, "p4") + step(T + 10000, 4, "a4", (40, 8, 0, 0))
    lines += [record("context.clear", T + 11000)]
    return lines + asked(T + 12000, "p5") + step(T + 13000, 5, "a5", (50, 9, 0, 0))


def context(reading: Reading) -> list[str | None]:
    """What the model was told last: the active steps since the newest mark, a summary included."""
    told: list[str | None] = []
    for key in sorted(reading.rows):
        event = reading.events[key]
        if not reading.rows[key].active or event.kind == "usage":
            continue
        if event.mark in ("clear", "compaction"):
            told = []
        if event.mark != "clear":
            told.append(event.content)
    return told


def test_tp29_undo_clear_compaction() -> None:
    lines = undo_clear_compaction()
    reading = in_all_pieces(lines)
    assert reading.texts("user_msg", active=True) == ["p1", "p3", "p4", "p5"]
    assert reading.texts("user_msg", active=False) == ["p2 undone"]
    assert context(reading) == ["p5", "a5"]
    clear = next(i for i, line in enumerate(lines) if b"context.clear" in line)
    assert context(read(lines[:clear])) == ["SUMMARY", "p4", "a4"]
    assert reading.totals() == (150, 35, 0, 0)
    assert [reading.row(f"p{n}").turn for n in (1, 3, 4, 5)] == [1, 2, 3, 4]


@pytest.mark.parametrize("first", ["step.end", "usage.record"])
def test_ta12_one_turn_is_reported_twice(first: str) -> None:
    one, two = step(T + 2000, 1, "a", (10, 5, 100, 20)), step(T + 4000, 2, "b", (7, 3, 0, 0))
    if first == "usage.record":
        one, two = ([x[0], x[3], x[1], x[2]] for x in (one, two))
    reading = in_all_pieces([HEAD, *asked(T + 1000, "p"), *one, *asked(T + 3000, "p2"), *two])
    assert reading.totals() == (17, 8, 100, 20)
    assert [e.line for e in reading.of("usage")] == ([6, 12] if first == "step.end" else [5, 11])


def test_usage_that_only_one_of_the_two_has_counts() -> None:
    wire = Wire().prompt("p").begin("s1").end("s1", inputOther=5, output=1).usage(inputOther=5, output=1)
    wire.usage(inputOther=5, output=1)  # a second request of the same size in the same step
    wire.usage("session", inputOther=5, output=1)  # a compaction's
    wire.begin("s2").usage(inputOther=5, output=1).begin("s3").end("s3", inputOther=5, output=1)
    assert in_all_pieces(wire.lines).totals() == (25, 5, 0, 0)


def test_a_copy_of_a_wire_has_the_same_usage_keys() -> None:
    lines = fixture("0.28.0", "twoturn")
    keys = [e.usage_key for e in read(lines, conversation="session_a").of("usage")]
    assert keys == [e.usage_key for e in read(lines, conversation="session_b").of("usage")]
    assert len(set(keys)) == len(keys) == 7
    others = [e.usage_key for e in read(fixture("0.29.0", "twoturn")).of("usage")]
    assert not set(keys) & set(others)
    nameless = [b'{"type":"usage.record","usage":{"output":1}}'] * 2
    first, second = (read(nameless, conversation=c) for c in ("session_a", "session_b"))
    assert not {e.usage_key for e in first.of("usage")} & {e.usage_key for e in second.of("usage")}
    assert first.totals() == (0, 2, 0, 0)


@pytest.mark.parametrize("unit", [1, 1000])
def test_tp24_times_are_seconds_or_milliseconds(unit: int) -> None:
    head = {"type": "metadata", "protocol_version": "1.1", "created_at": 1772352000 * unit}
    prompt = {"type": "turn.prompt", "input": [{"type": "text", "text": "s"}], "origin": {"kind": "user"}}
    lines = [json.dumps(head).encode(), json.dumps({**prompt, "time": 1772352060 * unit}).encode()]
    reading = in_all_pieces([*lines, json.dumps({**prompt, "time": "soon"}).encode()])
    assert [e.ts for e in reading.of("user_msg")] == [1772352060000, None]  # 2026-03-01T08:01:00Z, and none
    assert reading.ingester.facts.first_ts == reading.ingester.facts.started_at == 1772352000000


def test_tp30_an_unknown_protocol_is_read_with_a_warning() -> None:
    lines = [HEAD.replace(b"1.1", b"9.0"), record("profile.bind", T + 1, profileName="agent")]
    lines += [record("future.record", T + 2, x=1), *asked(T + 3, "hi"), *step(T + 5, 1, "yo", (3, 4, 0, 0))]
    reading = in_all_pieces(lines)
    (warning,) = reading.ingester.facts.warnings
    assert "9.0" in warning
    assert [(e.kind, e.content) for _, e in sorted(reading.events.items()) if e.kind != "usage"] == [
        ("meta", '{"type":"future.record","x":1,"time":1772352000002}'),
        ("user_msg", "hi"),
        ("assistant_msg", "yo"),
    ]
    assert reading.totals() == (3, 4, 0, 0)


CASES = FIXTURES.parent / "cases"


def test_the_inputs_of_the_cases_themselves() -> None:
    def case(name: str) -> Reading:
        return in_all_pieces((CASES / name).read_bytes().rstrip(b"\n").split(b"\n"))

    assert case("TA-12.jsonl").totals() == (17, 8, 100, 20)
    assert context(case("TP-29.jsonl")) == ["p5", "a5"] and case("TP-29.jsonl").totals() == (150, 35, 0, 0)
    for name in ("TP-24-kimi-ms.jsonl", "TP-24-kimi-seconds.jsonl"):
        assert [e.ts for e in case(name).of("user_msg")] == [1772352060000]
    (wire,) = CASES.glob("TP-30.dir/kimi-home/sessions/*/*/agents/main/wire.jsonl")
    assert case(str(wire)).ingester.facts.warnings


# -- prompts ----------------------------------------------------------------------------------------


def test_a_prompt_is_one_event_however_often_it_is_written() -> None:
    reading = in_all_pieces(Wire().prompt("same").prompt("same").lines)
    assert [e.line for e in reading.of("user_msg")] == [2, 4]
    assert [reading.rows[0, n, 0].turn for n in (2, 4)] == [1, 2]
    alone = in_all_pieces(Wire().message("only delivered").notice("turn.prompt", "only asked").lines)
    assert alone.texts("user_msg") == ["only delivered", "only asked"]
    blocks = [{"type": "text", "text": "see"}, {"type": "image_url", "imageUrl": {"url": "blobref:1"}}]
    prompt = {"type": "turn.prompt", "input": blocks, "origin": {"kind": "user"}, "promptId": "msg_1"}
    message = {"role": "user", "content": [{"type": "text", "text": "seen"}], "id": "msg_1", "origin": {"kind": "user"}}
    wire = Wire("1.5").put(prompt).put({"type": "context.append_message", "message": message})
    assert in_all_pieces(wire.lines).texts("user_msg") == ["see", '{"type":"image_url","imageUrl":{"url":"blobref:1"}}']


@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        ({"kind": "user"}, "user_msg"),
        ({"kind": "system_trigger", "name": "subagent"}, "user_msg"),
        ({"kind": "skill_activation", "trigger": "user-slash"}, "user_msg"),
        ({"kind": "skill_activation", "trigger": "model-tool"}, "meta"),
        ({"kind": "system_trigger", "name": "goal_continuation"}, "meta"),
        ({"kind": "cron_job"}, "meta"),
        ({"kind": "injection", "variant": "permission_mode"}, None),
        ("odd", "user_msg"),
    ],
)
def test_what_a_message_is_follows_from_where_it_came_from(origin: Any, kind: str | None) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "x"}], "origin": origin}
    lines = [
        *Wire().put({"type": "turn.prompt", "input": message["content"], "origin": origin}).lines,
        record("context.append_message", T, message=message),
    ]
    reading = in_all_pieces(lines)
    assert [e.kind for e in reading.events.values()] == ([] if kind is None else [kind])
    assert [r.turn for r in reading.rows.values()] == ([] if kind is None else [int(kind == "user_msg")])


def test_a_message_that_steers_is_a_step_after_the_results() -> None:
    wire = Wire().prompt("go").begin("s1").call("s1", "c1").call("s1", "c2").notice("turn.steer", "also this")
    wire.result("c1", "r1").message("also this").result("c2", "r2").end("s1", "tool_use").begin("s2").say("s2", "done")
    reading = in_all_pieces(wire.lines)
    steer, done = reading.row("also this"), reading.row("done")
    assert done.parent_seq == steer.seq and done.turn == steer.turn == 2
    assert reading.row("r2").turn == 1
    assert [e.mark for e in reading.of("user_msg")] == [None, "steering"]
    assert all(row.active for row in reading.rows.values())
    later = Wire().prompt("go").begin("s1").call("s1", "c1").call("s1", "c2").result("c1", "r1").result("c2", "r2")
    later.end("s1", "tool_use").message("also this").begin("s2").say("s2", "done")
    assert reading.link("done") == read(later.lines).link("done")
    undone = in_all_pieces([*wire.lines, *Wire().put({"type": "context.undo", "count": 1}).lines[1:]])
    assert undone.texts("user_msg", active=True) == ["go"]
    assert undone.texts("tool_result", active=True) == ["r1", "r2"]
    assert not undone.row("done").active


def test_a_message_that_waits_for_a_result_that_never_comes() -> None:
    wire = Wire().prompt("go").begin("s1").call("s1", "c1").message("now").message("and now")
    waiting = in_all_pieces(wire.lines)
    assert waiting.row("and now").active and waiting.row("and now").parent_seq == waiting.row("now").seq
    on = in_all_pieces(wire.turn("next", "answer").lines)
    assert on.texts("user_msg", active=True) == ["go", "now", "and now", "next"]
    assert on.row("next").parent_seq == on.row("and now").seq


# -- undo -------------------------------------------------------------------------------------------


def undo(turns: Any = 1) -> dict[str, Any]:
    return {"type": "context.undo", "count": turns}


def test_undo_of_several_turns_and_beyond() -> None:
    three = Wire().turn("p1", "a1").turn("p2", "a2").turn("p3", "a3").lines
    for turns, left in ((1, ["p1", "p2"]), (2, ["p1"]), (3, []), (9, [])):
        wire = Wire()
        wire.lines = [*three]
        assert in_all_pieces(wire.put(undo(turns)).lines).texts("user_msg", active=True) == left
        assert in_all_pieces(wire.turn("q", "b").lines).texts("user_msg", active=True) == [*left, "q"]
    for odd in (0, -1, True, "1", None, 1.5):
        wire = Wire()
        wire.lines = [*three]
        assert in_all_pieces(wire.put(undo(odd)).lines).texts("user_msg", active=True) == ["p1", "p2", "p3"]


def test_undo_does_not_reach_behind_a_compaction_or_a_clear() -> None:
    for boundary in ({"type": "context.apply_compaction", "summary": "S"}, {"type": "context.clear"}):
        wire = Wire().turn("p1", "a1").put(boundary).turn("p2", "a2").put(undo(2)).turn("p3", "a3")
        assert in_all_pieces(wire.lines).texts("user_msg", active=True) == ["p1", "p3"]


def test_an_undo_written_three_times_is_one() -> None:
    wire = Wire("1.5").turn("p1", "a1").turn("p2", "a2").turn("p3", "a3")
    switch = {"type": "agent.switched", "branch": "b1", "base": {"branch": "main", "line": 9}, "turns": 1}
    wire.put(switch)
    assert read(wire.lines).texts("user_msg", active=True) == ["p1", "p2"]  # the process died here
    wire.put(undo()).put({"type": "context.undone", "turns": 1})
    assert in_all_pieces(wire.lines).texts("user_msg", active=True) == ["p1", "p2"]
    wire.put(switch).put(undo()).put({"type": "context.undone", "turns": 1})
    assert in_all_pieces(wire.lines).texts("user_msg", active=True) == ["p1"]


def test_undo_does_not_count_a_prompt_that_never_came_into_the_context() -> None:
    wire = Wire().turn("p1", "a1").turn("p2", "a2").notice("turn.prompt", "blocked").put(undo())
    assert in_all_pieces(wire.lines).texts("user_msg", active=True) == ["p1"]


# -- steps ------------------------------------------------------------------------------------------


def parallel(*order: str) -> Reading:
    wire = Wire().prompt("go").begin("s1")
    for tool_id in order:
        if tool_id.startswith("r"):
            wire.result(f"c{tool_id[1]}", tool_id)
        else:
            wire.call("s1", tool_id)
    wire.end("s1", "tool_use", inputOther=1)
    return in_all_pieces(wire.begin("s2").say("s2", "done").lines)


def test_a_step_hangs_on_all_results_before_it() -> None:
    straight = parallel("c1", "c2", "r1", "r2")
    for order in (("c1", "c2", "r2", "r1"), ("c1", "r1", "c2", "r2")):
        other = parallel(*order)
        assert other.link("done") == straight.link("done"), order
        assert all(row.active for row in other.rows.values()), order
    assert parallel("c1", "c2", "r1").link("done") != straight.link("done")
    group = [straight.events[k].group for k in sorted(straight.events) if straight.events[k].kind == "tool_call"]
    assert group == ["s1", "s1"]


def test_contents() -> None:
    wire = Wire().prompt("go").begin("s1")
    wire.put({"type": "llm.request", "kind": "loop", "model": "real-name", "modelAlias": "alias"})
    for part in ({"type": "think", "think": "hm"}, {"type": "thinking", "thinking": "hmm"}, {"type": "image", "x": 1}):
        wire.loop(type="content.part", uuid=f"u{part['type']}", stepUuid="s1", part=part)
    wire.call("s1", "c1", file_path="a.py", n=1.0).call("s1", "c2", path="b.py")
    wire.result("c1", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], note="<system>no</system>")
    wire.result("c2", [{"type": "text", "text": "one"}, {"type": "image"}], isError=True)
    reading = in_all_pieces(wire.lines)
    assert reading.texts("thinking") == ["hm", "hmm"]
    assert reading.texts("assistant_msg") == ['{"type":"image","x":1}']
    assert [(e.tool, e.path, e.content, e.value) for e in reading.of("tool_call")] == [
        ("Bash", "a.py", '{"file_path":"a.py","n":1.0}', {"file_path": "a.py", "n": 1.0}),
        ("Bash", "b.py", '{"path":"b.py"}', {"path": "b.py"}),
    ]
    assert [(e.content, e.is_error) for e in reading.of("tool_result")] == [
        ("one\ntwo", False),
        ('[{"type":"text","text":"one"},{"type":"image"}]', True),
    ]
    assert {e.model for kind in ("thinking", "assistant_msg", "tool_call") for e in reading.of(kind)} == {"real-name"}
    for raw in wire.lines:
        number = wire.lines.index(raw) + 1
        for part_number, event in content_of(raw).items():
            if (0, number, part_number) in reading.events:
                assert reading.events[0, number, part_number].content == event.content


def test_messages_of_other_roles() -> None:
    calls = [
        {"type": "function", "id": "c1", "name": "Read", "arguments": '{"path":"x"}'},
        {"type": "function", "id": "c2", "function": {"name": "Bash", "arguments": "not json"}},
    ]
    content = [{"type": "think", "think": "hm"}, {"type": "text", "text": "hello"}]
    wire = Wire()
    for message in (
        {"role": "assistant", "content": content, "toolCalls": calls},
        {"role": "tool", "content": [{"type": "text", "text": "out"}], "toolCallId": "c1", "isError": True},
        {"role": "system", "content": "be good"},
    ):
        wire.put({"type": "context.append_message", "message": message})
    reading = in_all_pieces(wire.lines)
    assert [(k[2], e.kind) for k, e in sorted(reading.events.items())] == [
        (0, "thinking"), (1, "assistant_msg"), (2, "tool_call"), (3, "tool_call"), (0, "tool_result"), (0, "meta"),
    ]  # fmt: skip
    assert [e.value for e in reading.of("tool_call")] == [{"path": "x"}, "not json"]
    assert reading.row('{"path":"x"}').is_error is True


def test_failures_are_errors_once() -> None:
    wire = Wire("1.5").prompt("go").begin("s1").end("s1", "error")
    wire.put({"type": "turn.step.interrupted", "turnId": 0, "step": 1, "reason": "error", "message": "429 no"})
    ended = {"type": "turn.ended", "turnId": 0, "reason": "failed", "error": {"code": "x", "message": "429"}}
    wire.put(ended).put({"type": "prompt.completed", "reason": "failed"})
    assert in_all_pieces(wire.lines).texts("error") == ["429 no"]
    assert in_all_pieces(wire.prompt("again").begin("s2").put(ended).lines).texts("error") == ["429 no", "429"]
    wire.put({"type": "turn.step.interrupted", "reason": "user_cancelled"})
    assert [json.loads(e.content or "")["reason"] for e in in_all_pieces(wire.lines).of("meta")] == ["user_cancelled"]


def test_whole_numbers_of_any_size_are_kept() -> None:
    wire = Wire().prompt("go").begin("s1").call("s1", "c1", n=2**70, x=1e300).call("s1", "c2", n=2**70 + 1, x=1e300)
    reading = in_all_pieces(wire.lines)
    first, second = reading.of("tool_call")
    assert first.value == {"n": 2**70, "x": 1e300} and str(2**70) in (first.content or "")
    assert second.value["n"] == 2**70 + 1
    assert content_of(wire.lines[4])[0].content == first.content
    read([wire.lines[4].replace(str(2**70).encode(), b"1" * 5000)])


def test_swarms_name_their_subagents() -> None:
    wire = Wire().prompt("go").begin("s1")
    for tool_id, name in (("c1", "AgentSwarm"), ("c2", "Read"), ("c3", "Agent")):
        wire.loop(type="tool.call", uuid=tool_id, stepUuid="s1", toolCallId=tool_id, name=name, args={})
    wire.result("c1", '<agent_swarm_result>\n<subagent mode="resume" agent_id="agent-1" item="a">x</subagent>')
    wire.result("c2", "agent_id: agent-9\n").result("c3", "task_id: t\nagent_id: agent-2\n\nagent_id: agent-8")
    assert read(wire.lines).ingester.facts.subagents == {"agent-1": "c1", "agent-2": "c3"}


# -- facts and damage -------------------------------------------------------------------------------


def test_facts() -> None:
    wire = Wire().put({"type": "config.update", "cwd": "/w/one", "modelAlias": "k"}).prompt("  first\nprompt ")
    wire.put({"type": "config.update", "cwd": "/w/two"}).prompt("second")
    facts = read(wire.lines, conversation="session_x").ingester.facts
    assert (facts.conversation, facts.project, facts.directories) == ("session_x", "/w/one", ["/w/two"])
    assert (facts.title, facts.title_rank, facts.model, facts.cli_version) == ("first prompt", 0, "k", None)
    assert (facts.started_at, facts.ended_at) == (1796083695000, wire.time)


def test_a_project_that_is_learned_late_makes_the_reading_stale() -> None:
    wire = Wire().prompt("look at /w/one/x").begin("s1")
    display = {"kind": "command", "command": "ls", "cwd": "/w/one"}
    wire.loop(type="tool.call", stepUuid="s1", toolCallId="c1", name="Bash", args={}, display=display)
    late = read(wire.lines)
    assert late.ingester.stale and late.ingester.facts.project == "/w/one"
    again = read(wire.lines, root="/w/one")
    assert not again.ingester.stale
    assert again.link("look at /w/one/x") != late.link("look at /w/one/x")


def test_damage() -> None:
    good = Wire().prompt("p").lines
    deep = b'{"type":"context.append_loop_event","event":{"type":"tool.call","args":' + b"[" * 600 + b"]" * 600 + b"}}"
    huge = b'{"type":"turn.prompt","x":"\\ud800","time":1' + b"0" * 400 + b"}"
    repeated = b"\0\0" + good[2]
    bad = [b"{", b"null", b"[]", b"\0\0", b'{"type":1}', b'{"a":NaN}', deep, huge, repeated, b"", b"  ", *good[1:]]
    reading = in_all_pieces([*good, *bad])
    assert reading.texts("user_msg") == ["p"]
    # the number of 400 digits is a time that can't be: the record stands without one
    assert [d.line - len(good) for d in reading.ingester.damage] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert reading.ingester.damage[-1].length == 2
    for damage in reading.ingester.damage:
        assert "{" not in damage.what


WORDS = st.sampled_from(
    "type time metadata turn.prompt turn.steer turn.ended context.append_message context.append_loop_event "
    "context.undo "
    "agent.switched context.clear context.apply_compaction usage.record llm.request config.update profile.bind "
    "subagent.spawned message role user assistant tool content origin kind injection event step.begin step.end "
    "content.part tool.call tool.result uuid stepUuid toolCallId parentUuid args result output part text think usage "
    "inputOther output turns count summary input id promptId toolCalls s1 s2 c1 c2 name Agent error failed "
    "reason".split()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**13) | st.floats(allow_nan=False) | WORDS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=12,
)
PROMPTS = st.builds(
    lambda kind, text, time: {
        "type": kind,
        "input": [{"type": "text", "text": text}],
        "message": {"role": "user", "content": [{"type": "text", "text": text}], "origin": {"kind": "user"}},
        "time": time,
    },
    st.sampled_from(["turn.prompt", "turn.steer", "context.append_message"]),
    st.sampled_from("ab"),
    st.none() | st.integers(T, T + 3),
)
STEPS = st.builds(
    lambda kind, step_id, call, time: {
        "type": "context.append_loop_event",
        "event": {
            "type": kind,
            "uuid": step_id if kind.startswith("step") else f"{kind}{time}",
            "stepUuid": step_id,
            "toolCallId": f"{call}-{step_id}",
            "name": "Agent",
            "part": {"type": "text", "text": "x"},
            "result": {"output": "y"},
            "usage": {"output": 1},
        },
        "time": time,
    },
    st.sampled_from(["step.begin", "step.end", "content.part", "tool.call", "tool.result"]),
    st.sampled_from(["s1", "s2"]),
    st.sampled_from(["c1", "c2"]),
    st.none() | st.integers(T, T + 5),
)
OTHERS = st.builds(
    lambda kind, turns, time: {"type": kind, "count": turns, "turns": turns, "usage": {"output": 1}, "time": time},
    st.sampled_from(["context.undo", "agent.switched", "context.clear", "context.apply_compaction", "usage.record"]),
    st.integers(0, 3),
    st.none() | st.integers(T, T + 3),
)
LINES = st.one_of(
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")),
    st.dictionaries(WORDS, VALUES, max_size=8).map(lambda record: json.dumps(record).encode()),
    PROMPTS.map(lambda record: json.dumps(record).encode()),
    STEPS.map(lambda record: json.dumps(record).encode()),
    OTHERS.map(lambda record: json.dumps(record).encode()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=25), st.integers(0, 9))
def test_any_lines_are_read_the_same_in_any_pieces(lines: list[bytes], seed: int) -> None:
    whole = Reading().feed(lines)
    assert Reading().feed(lines, pieces="lines").derived() == whole.derived()
    assert Reading().feed(lines, pieces="random", seed=seed).derived() == whole.derived()
    whole.feed(lines, source=1, pieces="random", seed=seed)
    assert not [k for k in whole.events if k[0] == 1], "a second pass adds nothing"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 10**9))
def test_any_bytes_are_events_or_damage(raw: bytes, at: int) -> None:
    wire = b"\n".join(fixture("0.28.0", "compaction")[:16])
    at %= len(wire)
    for data in (raw, wire[:at] + raw + wire[at + len(raw) :]):
        read(data.split(b"\n"))


def test_events_of_does_not_know_what_came_before() -> None:
    usage = {"type": "usage.record", "usage": {"inputOther": 1, "output": True, "inputCacheRead": -1, "extra": 5}}
    (event,) = events_of(usage)
    assert (event.part, event.tokens, event.model) == (USAGE_PART, (1, 0, 0, 0), None)
    assert events_of({"type": "llm.request"}) == []
