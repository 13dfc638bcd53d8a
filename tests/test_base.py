"""Times, counts and lines as the ingesters read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beyond.ingest.base import NotARecord, count, milliseconds, parse, wrong_encoding


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9000, 1, 1)))
def test_iso_times(when: datetime) -> None:
    when = when.replace(microsecond=when.microsecond // 1000 * 1000, tzinfo=UTC)
    text = when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"
    text = text.rjust(24, "0")
    expected = int((when - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000 + 0.5)
    assert abs((milliseconds(text) or 0) - expected) <= 1
    assert milliseconds(text) == milliseconds(text)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("2026-03-01T08:00:00Z", 1772352000000),
        ("2026-03-01T10:00:00+02:00", 1772352000000),
        ("2026-03-01T08:00:00", 1772352000000),
        ("2026-03-01T08:00:00.123456Z", 1772352000123),
        (1772352000, 1772352000000),
        (1772352000.5, 1772352000500),
        (1772352000123, 1772352000123),
        ("2026-03-01T08:00:99.000Z", None),
        ("2026-03-01T08:00:0x.000Z", None),
        ("soon", None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (-5, None),
        ([], None),
        (10**40, None),
    ],
)
def test_times_of_every_form(value: object, ms: int | None) -> None:
    milliseconds("2026-03-01T08:00:01.000Z")  # the minute is remembered
    assert milliseconds(value) == ms


@pytest.mark.parametrize(
    ("value", "tokens"),
    [(5, 5), (5.0, 5), (-1, 0), ("7", 0), (None, 0), (True, 0), (2**64, 0), (float("inf"), 0), ([], 0)],
)
def test_counts(value: object, tokens: int) -> None:
    assert count(value) == tokens


@pytest.mark.parametrize("raw", [b"", b"  ", b"null", b"[1]", b"7", b'"x"', b"{", b'{"a":NaN}', b"x", b"\0\0"])
def test_no_records(raw: bytes) -> None:
    with pytest.raises(NotARecord):
        parse(raw)


@pytest.mark.parametrize(
    "raw", [b'{"a":"b"}', b'\0\0{"a":"b"}\0', b'\xef\xbb\xbf{"a":"b"}\r', b' {"a":"b"} ', b'{"a":"\\u0062"}']
)
def test_records(raw: bytes) -> None:
    assert parse(raw) == {"a": "b"}


def test_what_is_no_unicode_is_read_all_the_same() -> None:
    assert parse(b'{"a":"\\ud83d"}') == {"a": "\ud83d"}
    assert parse(b'{"a":"\xff"}') == {"a": "\ufffd"}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("{}".encode("utf-16"), "UTF-16"),
        ('{"a'.encode("utf-16-le"), "UTF-16"),
        ("{}".encode("utf-32"), "UTF-32"),
        (b'{"', None),
    ],
)
def test_wrong_encodings(head: bytes, name: str | None) -> None:
    assert wrong_encoding(head) == name
