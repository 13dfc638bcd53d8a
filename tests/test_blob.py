"""Byte-exactness of what is cut, lifted, packed and put together again."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from beyond import codec
from beyond.blob import LIFT, get_varints, join, lift, lift_lines, make_segment, put_varints
from beyond.event import Places, canonical, canonical_json, make_link

_pieces = st.sampled_from([b':"', b'"', b"\\", b'\\"', b"\n", b"x" * LIFT, b"y" * (LIFT - 1), b'":"', b"{", b",", b"\xff", b"\0"])


@settings(max_examples=400, deadline=None)
@given(st.lists(_pieces | st.binary(max_size=20), max_size=40).map(b"".join))
def test_lifting_is_undone_exactly(data: bytes) -> None:
    rest, lifted = lift(data)
    assert join(rest, lifted) == data
    assert all(len(string) >= LIFT for _, string in lifted)


@given(st.text(min_size=LIFT, max_size=LIFT + 50), st.text(max_size=9))
def test_long_strings_of_json_are_lifted_whole(long: str, short: str) -> None:
    assume(not long.endswith(":"))  # the cut at `:"` takes its closing quote: such a string stays where it is
    line = json.dumps({"a": short, "content": long, "b": {"c": long}}, separators=(",", ":")).encode()
    rest, lifted = lift(line)
    body = json.dumps(long).encode()[1:-1]
    assert [string for _, string in lifted] == [body, body]
    assert body not in rest


@given(st.lists(st.integers(min_value=0, max_value=1 << 70)))
def test_varints(numbers: list[int]) -> None:
    assert get_varints(put_varints(numbers)) == numbers


def test_a_cut_varint_is_an_error() -> None:
    with pytest.raises(ValueError, match="cut off"):
        get_varints(put_varints([300])[:-1])


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.binary(min_size=1, max_size=3000) | st.none(), st.sampled_from([1, 3, 12]))
def test_codec_round_trip(data: bytes, prefix: bytes | None, level: int) -> None:
    frame = codec.compress(data, level, prefix)
    assert codec.decompress(frame, len(data), prefix) == data
    with pytest.raises(codec.CodecError):
        codec.decompress(frame, len(data) + 1, prefix)


def test_a_frame_that_grows_without_end_is_refused() -> None:
    with pytest.raises(codec.CodecError):
        codec.decompress(codec.compress(b"\0" * 10_000_000), 1000)
    with pytest.raises(codec.CodecError):
        codec.decompress(b"", codec.MAX_PACK + 1)


def test_segments_know_their_lines() -> None:
    data = b'{"a":1}\n{"b":"' + b"z" * 5000 + b'"}\n'
    segment = make_segment(1, 0, data, [8, len(data) - 8])
    assert get_varints(segment.lengths) == [8, len(data) - 8]
    assert join(segment.rest, segment.lifted) == data
    assert len(segment.rest) < 50


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}', True),
        ('{"a":1.0}', '{"a":1}', True),
        ('{"a":1.10}', '{"a":1.1}', True),
        ('{"a":1}', '{"a":"1"}', False),
        ('{"a":[1,2]}', '{"a":[2,1]}', False),
        ('{"a":0,"a":1}', '{"a":1}', True),
        ('{"a":12345678901234567890}', '{"a":12345678901234567891}', False),
    ],
)
def test_canonical_input(one: str, two: str, same: bool) -> None:
    assert (canonical_json(json.loads(one)) == canonical_json(json.loads(two))) is same


def test_places_respect_path_boundaries() -> None:
    places = Places("/w/app", "0123456789abcdef")
    assert places.tokenize("/w/app2 /w/app-x /w/app.old /w/appendix") == "/w/app2 /w/app-x /w/app.old /w/appendix"
    moved = Places("/other", "fedcba9876543210")
    text = "in /w/app, /w/app/x and '/w/app'. 0123456789abcdef"
    assert places.tokenize(text) == moved.tokenize(
        text.replace("/w/app", "/other").replace("0123456789abcdef", "fedcba9876543210")
    )


def test_reminders_are_outside() -> None:
    places = Places(None, None)
    assert canonical("tool_result", "x\n<system-reminder>a\nb</system-reminder>", places) == b"x\n"


def test_lone_surrogates_hash() -> None:
    assert canonical("user_msg", "\ud83d", Places(None, None)) == b"\xed\xa0\xbd"


def test_parents_are_a_set() -> None:
    a, b, digest = b"a" * 16, b"b" * 16, b"d" * 16
    assert make_link([a, b], digest) == make_link([b, a], digest) != make_link([a], digest)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(_pieces | st.binary(max_size=20), max_size=8).map(b"".join), max_size=8))
def test_lifting_line_by_line_is_undone_exactly(lines: list[bytes]) -> None:
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    lengths = [len(line.replace(b"\n", b"")) + 1 for line in lines]
    rest, lifted = lift_lines(data, lengths)
    assert join(rest, lifted) == data
