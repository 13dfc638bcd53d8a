"""Edits of a raw JSON line that leave every other byte alone: escapes, lone surrogates, big numbers, repeated keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import orjson

#: What may stand around a path: `/w/app` is in none of `/w/app2`, `/w/app.old`, `/usr/w/app`; it is in `-I/w/app`, and
#: behind the codes that colour a terminal.
_LEFT = r"(?:(?<![A-Za-z0-9_.\-~])|(?<=[\s\"'=]-[A-Za-z])|(?<=\A-[A-Za-z])|(?<=[\[0-9;][mK]))"
_RIGHT = r"(?![A-Za-z0-9_\-]|\.[A-Za-z0-9_\-])"
#: No part of a path that stands in a text.
_BREAK = "[^\\s\"'`<>|;]"
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_UNIT = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL)
_TOKEN = re.compile(r'[{}\[\],:]|"[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}\[\],:"]+', re.DOTALL)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.\-/+@ ]+")
_RUN = re.compile(r"[A-Za-z0-9_.\-]+")

#: Characters after which a path begins, as they stand in a line.
_CLEAR = (b'"', b" ", b"/", b":", b"(", b"=", b"'", b"`")

#: (start, end, text that goes there), in characters of the text that is edited.
Edit = tuple[int, int, str]


class Moves:
    """Where the old places stand in a text, and what stands for them in the fork: the conversation's folder in the
    store, its id, and the project directory. The same spans as those that `beyond.event.Places` makes tokens of."""

    def __init__(
        self,
        roots: Sequence[tuple[str, str]],
        conversation: tuple[str, str] | None,
        folder: str | None,
    ) -> None:
        """Pairs of old and new. `folder`: the new folder of the conversation (None: paths into the store stay)."""
        roots = sorted({pair for pair in roots if pair[0] != pair[1]}, key=lambda pair: -len(pair[0]))
        self._roots, self._conversation, self._folder = dict(roots), conversation, folder
        parts: list[str] = []
        #: What a line holds in which an old place stands: the id, the root where it is spelled plainly, others.
        self._name: bytes | None = None
        self._place = b""
        self._needles: list[bytes] = []
        if conversation is not None:
            name = re.escape(conversation[0])
            if folder is not None:
                parts.append(rf"(?P<store>(?<!{_BREAK}){_BREAK}*/sessions/wd_[a-z0-9._-]+_[0-9a-f]{{12}}/{name})")
            parts.append(f"(?P<id>{name})")
            self._name = conversation[0].encode("utf-8", "surrogatepass")
        self._hint = f"/{conversation[0]}" if conversation is not None and folder is not None else None
        self._fast: re.Pattern[bytes] | None = None
        self._new = b""
        for old, new in roots:
            runs = sorted(_RUN.findall(old), key=len)
            self._place = (runs[-1] if runs else old).encode("utf-8", "surrogatepass")
            if len(roots) == 1 and _PLAIN_PATH.fullmatch(old):
                self._fast = re.compile(re.escape(old.encode()) + _RIGHT.encode())
                self._new = encoded(new).encode("utf-8", "surrogatepass")
            else:
                self._needles.append(self._place)
        if roots:
            parts.append(f"(?P<root>{_LEFT}(?:{'|'.join(re.escape(old) for old in self._roots)}){_RIGHT})")
        self._pattern = re.compile("|".join(parts)) if parts else None
        #: The same without the search for paths into the store, which costs more.
        self._short = re.compile("|".join(p for p in parts if not p.startswith("(?P<store>"))) if parts else None

    def of(self, text: str) -> list[Edit]:
        """The edits of a text."""
        pattern = self._pattern if self._hint is not None and self._hint in text else self._short
        if pattern is None:
            return []
        return [(m.start(), m.end(), self._for(m)) for m in pattern.finditer(text)]

    def _for(self, match: re.Match[str]) -> str:
        if match.lastgroup == "store":
            assert self._folder is not None
            return self._folder
        if match.lastgroup == "root":
            return self._roots[match[0]]
        assert self._conversation is not None
        return self._conversation[1]

    def apply(self, text: str) -> str:
        """A text with its edits made."""
        return spliced(text, self.of(text))

    def line(self, raw: bytes) -> bytes:
        """A line of JSON with the edits made in each of its strings."""
        if self._name is not None and self._name in raw:
            return edit_strings(raw, self.of)
        if self._fast is not None and self._place in raw:
            if b"\\u00" in raw or b"\\/" in raw:
                return edit_strings(raw, self.of)
            return self._fast.sub(partial(self._plain, raw), raw)
        for needle in self._needles:
            if needle in raw:
                return edit_strings(raw, self.of)
        return raw

    def _plain(self, raw: bytes, match: re.Match[bytes]) -> bytes:
        """What stands for the root where the line spells it without escapes: unless it is the end of another path."""
        at = match.start()
        if raw[at - 1 : at] in _CLEAR and raw[at - 2 : at - 1] != b"\\":
            return self._new
        before = raw[max(0, at - 4) : at].decode("utf-8", "replace")
        if re.search(_LEFT + r"\Z", unescaped(raw, at, before)):
            return self._new
        return match[0]


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
