"""Where a conversation lies, and how its places are called in texts: the old ones become those of the fork."""

from __future__ import annotations

import re
from collections.abc import Sequence

from beyond.event import PATH_END, PATH_START
from beyond.surgery.base import ForkPlan
from beyond.surgery.raw import Edit, edit_strings, encoded, spliced, unescaped

#: A character of a path that stands in a text, as the reader of transcripts sees it.
_BREAK = r"[^\s\"'`<>|;]"
#: A printable ASCII character that is spelled as an escape: no writer of JSON does that unasked.
_SPELLED = re.compile(rb"\\u00[2-7]")
_PLAIN = re.compile(r"[A-Za-z0-9_.\-/+@ ]+")
_RUN = re.compile(r"[A-Za-z0-9_.\-]+")
#: Shorter ids are no ids: the reader of transcripts doesn't take them for places either.
_ID_LENGTH = 8


def folder_name(path: str) -> str:
    """The folder below `projects/` in which Claude Code keeps the conversations of a directory."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" * (1 + (ord(c) > 0xFFFF)) for c in path)
    if len(name) <= 200:
        return name
    value = 0
    for unit in memoryview(path.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (value * 31 + unit) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >> 31 else value)
    digits = ""
    while value:
        value, rest = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return f"{name[:200]}-{digits or '0'}"


def spelled(raw: bytes) -> bool:
    """Whether a line may spell a printable ASCII character, of a key or a place, as an escape."""
    return b"\\u00" in raw and _SPELLED.search(raw) is not None


def stores_of(plan: ForkPlan) -> list[tuple[str, str]]:
    """The stores in which the old transcript was seen, and its folder in each."""
    found = []
    for path in plan.old_paths:
        store, projects, rest = path.rpartition("/projects/")
        if projects and store:
            found.append((store, rest.split("/")[0]))
    return list(dict.fromkeys(found))


class Moves:
    """The old places in texts and what stands for them: the folder in the store, the conversation's id, the project
    directory; the spans that `beyond.event.Places` makes tokens of, so that the fork's links are its parent's."""

    def __init__(self, plan: ForkPlan) -> None:
        without = plan.without
        old = (plan.old_root or "").rstrip("/")
        self.root = old if len(old) > 1 and old != plan.new_root and "rewrite-root" not in without else ""
        self.id = ""
        if len(plan.conversation) >= _ID_LENGTH and "set-session" not in without:
            self.id = plan.conversation
        self._new_root, self._new_id = plan.new_root, plan.new_conversation
        self._hint, self._new_hint = "", f"/projects/{folder_name(plan.new_root)}"
        self._stores = sorted({store for store, _ in stores_of(plan)}, key=len, reverse=True)
        self._store = str(plan.store).rstrip("/")
        patterns = []
        self._needles: list[bytes] = []
        if plan.old_root and "rewrite-store" not in without:
            self._hint = f"/projects/{folder_name(plan.old_root)}"
            others = [f"/projects/{folder}" for _, folder in stores_of(plan) if f"/projects/{folder}" != self._hint]
            hints = "|".join(map(re.escape, dict.fromkeys((self._hint, *others))))
            patterns.append(rf"(?P<store>(?<!{_BREAK}){_BREAK}*(?P<hint>{hints})(?![A-Za-z0-9\-]))")
            self._needles = [hint.encode("utf-8", "surrogatepass") for hint in (self._hint, *others)]
        simple = []
        if self.id:
            simple.append(f"(?P<id>{re.escape(self.id)})")
        if self.root:
            simple.append(f"(?P<root>{PATH_START}{re.escape(self.root)}{PATH_END})")
        self._pattern = re.compile("|".join((*patterns, *simple))) if patterns or simple else None
        named = [needle.decode("utf-8", "surrogatepass") for needle in self._needles]
        #: A text without any of these has no old place in it.
        self._marks = tuple(mark for mark in (self.id, self.root, *named) if mark)
        #: The same without the search for paths into the store, which costs more.
        self._simple = re.compile("|".join(simple)) if simple else None
        self._prepare()

    def _prepare(self) -> None:
        """What the fast way needs: it edits a raw line that spells the places as they are."""
        self._id = self.id.encode("utf-8", "surrogatepass")
        self._fast_id = encoded(self._new_id).encode("utf-8", "surrogatepass")
        self._plain = not self.root or _PLAIN.fullmatch(self.root) is not None
        self._root = re.compile(re.escape(self.root.encode("utf-8", "surrogatepass")) + PATH_END.encode())
        self._fast_root = encoded(self._new_root).encode("utf-8", "surrogatepass")
        runs = sorted(_RUN.findall(self.root), key=len)
        #: A piece of the root that every spelling of it holds.
        self._piece = (runs[-1] if runs else "").encode()
        self._left = re.compile(rb"[A-Za-z0-9_.\-~]")

    def of(self, text: str) -> list[Edit]:
        """The edits of a text."""
        for mark in self._marks:
            if mark in text:
                break
        else:  # most texts
            return []
        pattern = self._pattern if "/projects/" in text else self._simple
        if pattern is None:
            return []
        return [(m.start(), m.end(), self._for(m)) for m in pattern.finditer(text)]

    def _for(self, match: re.Match[str]) -> str:
        if match.lastgroup == "root":
            return self._new_root
        if match.lastgroup == "id":
            return self._new_id
        before = match["store"][: -len(match["hint"])]
        before = self.apply_simple(before)
        if not (self._store.endswith(before) and before):
            for store in self._stores:
                if before.endswith(store):
                    return before[: -len(store)] + self._store + self._new_hint
        return before + self._new_hint

    def apply_simple(self, text: str) -> str:
        """A path's beginning with the project directory in it moved."""
        if self._simple is None or any(text.endswith(store) for store in self._stores):
            return text
        return spliced(text, [(m.start(), m.end(), self._for(m)) for m in self._simple.finditer(text)])

    def apply(self, text: str) -> str:
        """A text with its edits made."""
        return spliced(text, self.of(text))

    def touches(self, text: str) -> bool:
        """Whether a text has a place in it."""
        return bool(self.of(text))

    def file(self, data: bytes) -> bytes:
        """A file of text with its edits made."""
        return self.apply(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def line(self, raw: bytes, fixed: Sequence[tuple[int, int]] = ()) -> bytes:
        """A line of JSON with the edits made in each of its strings but for the spans in `fixed` (whole values)."""
        if fixed:
            out: list[bytes] = []
            at = 0
            for start, end in fixed:
                out += (edit_strings(raw[at:start], self.of), raw[start:end])
                at = end
            return b"".join((*out, edit_strings(raw[at:], self.of)))
        if (not self._plain and self._piece in raw) or any(needle in raw for needle in self._needles):
            return edit_strings(raw, self.of)
        if b"\\" in raw and (b"\\/" in raw or spelled(raw) or self._torn(raw)):
            return edit_strings(raw, self.of)
        if self._id:
            raw = raw.replace(self._id, self._fast_id)
        return self._root.sub(self._fast, raw) if self.root else raw

    def _torn(self, raw: bytes) -> bool:
        """Whether the id stands where its first characters may belong to an escape."""
        at = raw.find(self._id) if self._id else -1
        while at != -1:
            if b"\\" in raw[max(0, at - 5) : at]:
                return True
            at = raw.find(self._id, at + len(self._id))
        return False

    def _fast(self, match: re.Match[bytes]) -> bytes:
        """What stands for the root where the line spells it without escapes: unless it is the end of another path."""
        at, raw = match.start(), match.string
        if raw[at - 1] == 0x22 and raw[at - 2] != 0x5C:  # a string that begins with it
            return self._fast_root
        before = raw[max(0, at - 4) : at].decode("utf-8", "replace")
        if re.search(PATH_START + r"\Z", unescaped(raw, at, before)):
            return self._fast_root
        return match[0]
