"""What every ingester must keep, over every row of the table and every fixture."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beyond import agents
from beyond.event import LINKED
from beyond.store import describe, identify
from tests.reading import FIXTURES, Reading, name_of, read, transcripts

GOLDEN = Path(__file__).parent / "golden"
FILES = transcripts()


def test_there_are_fixtures_for_every_row() -> None:
    assert {path.relative_to(FIXTURES).parts[0] for path in FILES} == set(agents.AGENTS)


def golden(reading: Reading) -> list[list[Any]]:
    """The events of a reading in seq order, as the golden files hold them."""
    out = []
    for (thread, seq), row in sorted(reading.rows.items()):
        line, part, kind, tool, content, mark = reading.events[thread, seq]
        out.append([
            thread, seq, line, part, kind, tool, None if content is None else content[:60], mark, row.turn, row.active,
            row.parent_seq, row.result_seq, row.is_error, list(row.tokens) if row.tokens else None,
            row.link.hex() if row.link else None,
        ])  # fmt: skip
    return out


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_golden_events(path: Path) -> None:
    """Looked at once by eye against the transcript; `python -m tests.test_contract` writes them anew."""
    expected = json.loads((GOLDEN / f"{name_of(path)}.json").read_text("utf-8"))
    assert golden(read(path)) == expected


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_pieces_make_no_difference(path: Path) -> None:
    whole = read(path).outcome()
    count = path.read_bytes().count(b"\n")
    assert read(path, cuts=range(1, count + 1)).outcome() == whole
    dice = random.Random(name_of(path))
    for _ in range(8):
        cuts = [n for n in range(1, count + 1) if dice.random() < 0.2]
        assert read(path, cuts=cuts).outcome() == whole


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_links_do_not_depend_on_where_it_all_lies(path: Path) -> None:
    """Another HOME, another project directory, another conversation id: the same links."""
    found = describe(identify(path))
    reading = Reading(found)
    lines = path.read_bytes().split(b"\n")[:-1]
    reading.feed(lines)
    reading.flush()
    facts = reading.ingester.facts
    assert facts.project and found.conversation
    data = path.read_bytes()
    from beyond.ingest.claude import encode_path

    moved = "/srv/elsewhere/with a name/x.y"
    data = data.replace(encode_path(facts.project).encode(), encode_path(moved).encode())
    data = data.replace(facts.project.encode(), moved.encode())
    root = str(Path(facts.project).parent)
    data = data.replace(root.encode() + b"/home", b"/users/somebody")
    other = "11111111-2222-4333-8444-555555555555"
    data = data.replace(found.conversation.encode(), other.encode())
    twin = describe(identify(path))
    twin.conversation = other
    twin.project = None
    again = read(path, data, found=twin)
    links = {key: value[4] for key, value in reading.outcome().items()}
    assert {key: value[4] for key, value in again.outcome().items()} == links
    assert any(links.values())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_linked_kinds_have_links_and_causes_come_first(path: Path) -> None:
    reading = read(path)
    for (thread, seq), row in reading.rows.items():
        kind = reading.events[thread, seq][2]
        assert (row.link is not None) == (kind in LINKED)
        assert row.parent_seq is None or row.parent_seq < seq
        assert row.result_seq is None or row.result_seq > seq


@pytest.mark.parametrize("cli", sorted(agents.AGENTS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.binary(max_size=400) | st.lists(st.binary(max_size=60), max_size=8).map(b"\n".join))
def test_arbitrary_bytes_give_events_or_damage(cli: str, data: bytes) -> None:
    reading = Reading(_found(cli))
    lines = list(data.split(b"\n"))
    reading.feed(lines)
    reading.flush()
    spoken_for = {d.line for d in reading.ingester.damage} | {e[0] for e in reading.events.values()}
    for number, raw in enumerate(lines, 1):
        if raw.strip(b" \t\r\n"):
            assert number in spoken_for or raw.strip(b"\0 \t\r").startswith((b"{", b"\xef\xbb\xbf"))


@pytest.mark.parametrize("path", FILES[::3], ids=name_of)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_fixtures_are_read_as_far_as_they_are_sound(path: Path, data: st.DataObject) -> None:
    """Bytes of a real transcript overwritten at random: never an exception, and sound lines keep their events."""
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=30))
        raw[at : at + len(noise)] = noise[: len(raw) - at]
    pieces = read(path, bytes(raw), cuts=range(0, 1000, 7)).outcome()
    assert read(path, bytes(raw)).outcome() == pieces


@pytest.mark.parametrize("cli", sorted(agents.AGENTS))
@settings(max_examples=150, deadline=None)
@given(
    record=st.dictionaries(
        st.sampled_from(
            "type uuid parentUuid message timestamp sessionId cwd subtype attachment content operation event time "
            "isSidechain agentId toolUseResult logicalParentUuid requestId count summary origin input usage".split()
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
            | st.sampled_from(
                ["user", "assistant", "system", "attachment", "queue-operation", "context.append_loop_event", "tool.call",
                 "context.append_message", "usage.record", "context.undo", "tool.result", "compact_boundary", "text"]
            ),
            lambda child: st.lists(child, max_size=3)
            | st.dictionaries(
                st.sampled_from("type text content id name input role usage event uuid toolCallId result args part".split()),
                child, max_size=4,
            ),
            max_leaves=12,
        ),
        max_size=9,
    )
)  # fmt: skip
def test_records_of_any_shape(cli: str, record: dict[str, Any]) -> None:
    reading = Reading(_found(cli))
    raw = json.dumps(record).encode()
    reading.feed([raw, raw])
    reading.flush()
    content = agents.content_of(cli)
    for line, part, kind, _, text, _ in reading.events.values():
        assert line in (1, 2)
        if kind != "usage":
            assert content(raw)[part].content == text


def _found(cli: str) -> Any:
    path = next(p for p in FILES if p.relative_to(FIXTURES).parts[0] == cli)
    return describe(identify(path))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for file in FILES:
        rows = golden(read(file))
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
        (GOLDEN / f"{name_of(file)}.json").write_text(text, "utf-8")
