"""Text that is safe to show: what a transcript holds must not steer the terminal. Standard library only."""

from __future__ import annotations

import re
from typing import Any

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
#: Characters that take no room: they hide text, or say nothing.
_HIDDEN = "\u180e\u200b\u2060-\u2064\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029{_BIDI}{_HIDDEN}\\ud800-\\udfff]")
#: Of these, what JSON allows as it is inside a string.
_UNSAFE_IN_JSON = re.compile(f"[\\x7f-\\x9f\\u2028\\u2029{_BIDI}\\ud800-\\udfff\\ufeff]")


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"<U+{code:04X}>"


def visible(text: str) -> str:
    """`text` with control characters and direction marks made visible; line breaks and tabs stay."""
    return _UNSAFE.sub(_shown, text)


def readable(value: Any, text: bool = False) -> Any:
    """A value of a journal as it can be printed: bytes, which no column that is shown should hold, as text. With `text`
    everything but null."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value) if text and value is not None else value


def one_line(text: str, width: int | None = None) -> str:
    """`text` on one line, cut with an ellipsis at `width` columns."""
    line = " ".join(visible(text).split())
    return line if width is None else fit(line, width)


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_wide(char) for char in text)


def _wide(char: str) -> int:
    import unicodedata

    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """`text`, cut with an ellipsis where it takes more than `width` columns."""
    if columns(text) <= width:
        return text
    out, taken = [], 1
    for char in text:
        taken += _wide(char)
        if taken > width:
            break
        out.append(char)
    return "".join(out) + "…"


def json_text(value: Any, *, ascii_only: bool = False, default: Any = None) -> str:
    """`value` as JSON on one line. Control characters, direction marks and lone surrogates are escaped, so that it can
    be printed anywhere and reads back the same."""
    import json

    text = json.dumps(value, ensure_ascii=ascii_only, default=default)
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
