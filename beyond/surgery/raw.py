"""Edits of a raw JSON line that leave every other byte alone: escapes, lone surrogates, big numbers, repeated keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_UNIT = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_TOKEN = re.compile(r'[{}\[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}\[\],:"]+', re.DOTALL)


#: (start, end, text that goes there), in characters of the text that is edited.
Edit = tuple[int, int, str]


def unescaped(raw: bytes, at: int, before: str) -> str:
    """`before`, the few characters before `at`, with an escape at its end as the character that it stands for."""
    slashes = 0
    while slashes < at - 1 and raw[at - 2 - slashes] == 0x5C:
        slashes += 1
    if slashes % 2 and before[-1:] in 'nrtbf"':
        return "\n"
    if slashes % 2 and before[-1:] == "\\":
        return "\\"
    escape = re.search(rb"\\u([0-9a-fA-F]{4})\Z", raw[max(0, at - 6) : at])
    return chr(int(escape[1], 16)) if escape else before


def spliced(text: str, edits: Sequence[Edit]) -> str:
    """`text` with edits made, which are in order and don't overlap."""
    out: list[str] = []
    at = 0
    for start, end, new in edits:
        out += (text[at:start], new)
        at = end
    return "".join((*out, text[at:]))


def edit_strings(raw: bytes, edits_of: Callable[[str], list[Edit]]) -> bytes:
    """`raw` with edits made in its JSON strings; what they don't touch keeps its spelling."""
    text = raw.decode("utf-8", "surrogateescape")
    edits: list[Edit] = []
    for match in _STRING.finditer(text):
        body, start = match[1], match.start(1)
        if "\\" not in body:
            edits += [(start + a, start + b, encoded(new)) for a, b, new in edits_of(body)]
            continue
        meant = edits_of(decoded(body))
        if meant:
            places = _places(body)
            edits += [(start + places[a], start + places[b], encoded(new)) for a, b, new in meant]
    return spliced(text, edits).encode("utf-8", "surrogateescape") if edits else raw


def decoded(body: str) -> str:
    """The text that the inside of a JSON string stands for."""
    text: str = json.loads(f'"{body}"', strict=False)
    return text


def encoded(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _places(body: str) -> list[int]:
    """Where each character of the decoded text stands in the inside of a JSON string, and where that ends."""
    places = [unit.start() for unit in _UNIT.finditer(body)]
    return [*places, len(body)]


# -- values in a line --------------------------------------------------------------------------------

Path = tuple[str | int, ...]


def spans(raw: bytes, wanted: Callable[[Path], bool]) -> dict[Path, tuple[int, int]]:
    """The byte spans of those values of a line whose paths are wanted; of equal keys the last one counts."""
    out: dict[Path, tuple[int, int]] = {}
    text = raw.decode("latin-1")  # one character a byte
    walk = _Walk(text, wanted, out)
    walk.value(())
    return out


class _Walk:
    """Goes through the tokens of a line."""

    def __init__(self, text: str, wanted: Callable[[Path], bool], out: dict[Path, tuple[int, int]]) -> None:
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(text)
        self._wanted, self._out = wanted, out
        self._next = next(self._tokens, None)

    def _take(self) -> re.Match[str]:
        token, self._next = self._next, next(self._tokens, None)
        if token is None:
            raise ValueError("not JSON, or cut off")
        return token

    def _peek(self) -> str:
        return self._next[0] if self._next is not None else ""

    def value(self, path: Path) -> int:
        """Goes over one value; where it ends."""
        first = self._take()
        end = first.end()
        if first[0] in "{[":
            number, close = 0, "}" if first[0] == "{" else "]"
            while self._peek() not in ("", close):
                step: str | int = number
                if close == "}":
                    step = decoded(self._take()[0][1:-1])
                    self._take()  # the colon
                self.value((*path, step))
                number += 1
                if self._peek() == ",":
                    self._take()
            end = self._take().end()
        if self._wanted(path):
            self._out[path] = first.start(), end
        return end


def replaced(raw: bytes, edits: Sequence[tuple[tuple[int, int], bytes]]) -> bytes:
    """`raw` with byte spans replaced."""
    out: list[bytes] = []
    at = 0
    for (start, end), new in sorted(edits):
        out += (raw[at:start], new)
        at = end
    return b"".join((*out, raw[at:]))


def only_items(raw: bytes, array: Path, keep: Callable[[int], bool]) -> bytes:
    """`raw` with an array reduced to some of its items, each as it is spelled."""
    found = spans(raw, lambda path: path == array or (len(path) == len(array) + 1 and path[:-1] == array))
    if array not in found:
        return raw
    items = [raw[slice(*found[path])] for path in sorted((p for p in found if p != array), key=lambda p: int(p[-1]))]
    kept = b",".join(item for number, item in enumerate(items) if keep(number))
    return replaced(raw, [(found[array], b"[" + kept + b"]")])


def whole(raw: bytes) -> tuple[bytes, Any]:
    """The record on a line as the CLI's strict reader takes it: without NUL bytes or a byte-order mark around it, and
    without what stands behind it. Raises `ValueError` where there is none."""
    try:
        return raw, orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    body = raw.strip(b"\0 \t\r\n").removeprefix(b"\xef\xbb\xbf")
    text = body.decode("utf-8", "surrogateescape")
    try:
        record, end = json.JSONDecoder(parse_constant=_not_json).raw_decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return text[:end].encode("utf-8", "surrogateescape"), record


def as_written(raw: bytes) -> bool:
    """Whether a line that the ingester could read is surely one whole record, without another look at it: it reads more
    than the CLI does, but only where NUL bytes, a byte-order mark or a second record stand around the first."""
    return raw.startswith(b'{"') and raw.endswith(b"}") and b"}{" not in raw and b"\0" not in raw


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dump(value: Any) -> bytes:
    """A record of ours."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
