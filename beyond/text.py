"""Text that is safe to show: what a transcript holds must not steer the terminal. Standard library only."""

from __future__ import annotations

import re

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u2028\\u2029{_BIDI}\\ud800-\\udfff\\ufeff]")


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


def one_line(text: str, width: int | None = None) -> str:
    """`text` on one line, cut with an ellipsis at `width` characters."""
    line = " ".join(visible(text).split())
    return line[: max(width - 1, 0)] + "…" if width is not None and len(line) > width else line
