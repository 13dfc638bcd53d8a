"""The old places in texts, and what stands for them in a fork."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from beyond.event import PATH_END, PATH_START
from beyond.surgery.raw import Edit, edit_strings, encoded, spliced, unescaped

#: No part of a path that stands in a text.
_BREAK = "[^\\s\"'`<>|;]"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.\-/+@ ]+")
_RUN = re.compile(r"[A-Za-z0-9_.\-]+")

#: Characters after which a path begins, as they stand in a line.
_CLEAR = (b'"', b" ", b"/", b":", b"(", b"=", b"'", b"`")


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
                self._fast = re.compile(re.escape(old.encode()) + PATH_END.encode())
                self._new = encoded(new).encode("utf-8", "surrogatepass")
            else:
                self._needles.append(self._place)
        if roots:
            parts.append(f"(?P<root>{PATH_START}(?:{'|'.join(re.escape(old) for old in self._roots)}){PATH_END})")
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
        if re.search(PATH_START + r"\Z", unescaped(raw, at, before)):
            return self._new
        return match[0]
