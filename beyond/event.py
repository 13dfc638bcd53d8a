"""The canonical event, its content, and the causal link.

Standard library only. A *link* identifies an event by everything that caused it:
``H(links of the causal parents, kind, tool, canonical content)``. Two runs agree up to a step
exactly when they hold the same link there, so "first divergence" is a join.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any, Final, Literal

Kind = Literal[
    "user_msg",
    "assistant_msg",
    "thinking",
    "tool_call",
    "tool_result",
    "usage",
    "meta",
    "error",
    "io",
]

KINDS: Final[tuple[Kind, ...]] = (
    "user_msg",
    "assistant_msg",
    "thinking",
    "tool_call",
    "tool_result",
    "usage",
    "meta",
    "error",
    "io",
)
#: Only these take part in causal links; the others hang off the branch without changing it.
LINKED: Final = frozenset({"user_msg", "assistant_msg", "thinking", "tool_call", "tool_result"})

#: Raised when the way links are made changes. Links are rebuildable; a journal says which it holds.
LINK_VERSION: Final = 1
#: Bytes of a link as stored. 128 bits: a collision by chance among 10**9 events is below 10**-20.
LINK_SIZE: Final = 16
#: `part` of the usage event of a line; the blocks of the line have the parts 0, 1, 2 ….
USAGE_PART: Final = -1
#: Characters of content that stand in plain sight in the event table.
PREVIEW: Final = 32

ROOT_TOKEN: Final = "\ue000root\ue000"
STORE_TOKEN: Final = "\ue000store\ue000"
CONVERSATION_TOKEN: Final = "\ue000conversation\ue000"

_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
#: What may stand around a path: `/w/app` is in none of `/w/app2`, `/w/app.old`, `/usr/w/app`; it is in `-I/w/app`, and
#: behind the codes that colour a terminal. The writers of forks replace a root by the same rule.
PATH_START: Final = r"(?:(?<![A-Za-z0-9_.\-~])|(?<=[\s\"'=]-[A-Za-z])|(?<=\A-[A-Za-z])|(?<=[\[0-9;][mK]))"
PATH_END: Final = r"(?![A-Za-z0-9_\-]|\.[A-Za-z0-9_\-])"


class Places:
    """What a conversation calls its own places; they become tokens before hashing.

    `root` is the project directory, `conversation` the id, `store` a regular expression for the
    folder of the conversation in the agent CLI's store, as it may stand in texts.
    """

    __slots__ = ("_conversation", "_root", "_root_re", "_store", "_store_hint")

    def __init__(self, root: str | None, conversation: str | None, store: str | None = None, store_hint: str = ""):
        self._root = root.rstrip("/") if root and len(root.rstrip("/")) > 1 else None
        self._root_re = re.compile(PATH_START + re.escape(self._root) + PATH_END) if self._root else None
        self._conversation = conversation if conversation and len(conversation) >= 8 else None
        self._store = re.compile(store) if store else None
        self._store_hint = store_hint

    def tokenize(self, text: str) -> str:
        """`text` with the places replaced by tokens, the longest place first."""
        if self._store is not None and self._store_hint in text:
            text = self._store.sub(STORE_TOKEN, text)
        if self._conversation is not None and self._conversation in text:
            text = text.replace(self._conversation, CONVERSATION_TOKEN)
        if self._root_re is not None and self._root is not None and self._root in text:
            text = self._root_re.sub(ROOT_TOKEN, text)
        return text


def printable(text: str) -> str:
    """`text` as it can be stored and shown: lone surrogates become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _plain_number(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    if isinstance(value, dict):
        return {k: _plain_number(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain_number(v) for v in value]
    return value


_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
_FLOAT = re.compile(r"[0-9][.eE]|NaN|Infinity")


def canonical_json(value: Any) -> str:
    """Strict JSON with sorted keys, no white space, and integral floats written as integers."""
    text = _encode(value)
    return _encode(_plain_number(value)) if _FLOAT.search(text) else text


def without_reminders(text: str) -> str:
    """`text` without what a CLI put into it between reminder tags, and the white space after each."""
    out, at = [], 0
    while True:
        start = text.find(_REMINDER, at)
        end = text.find(_REMINDER_END, start) if start >= 0 else -1
        if end < 0:
            out.append(text[at:])
            return "".join(out)
        out.append(text[at:start])
        at = end + len(_REMINDER_END)
        while at < len(text) and text[at].isspace():
            at += 1


#: What of an event goes into its link, by kind. Ids, times, usage and models stay outside.
#: - tool_call: the input as `canonical_json`: equal numbers are equal, of two equal keys the last counts.
#: - the texts: as they are, without the reminders that a CLI injects and takes away again at will.
#: Lone surrogates are hashed as they are (WTF-8), so that a fork that re-emits them stays equal.
def canonical(kind: str, content: str | None, places: Places, value: Any = None, text: str | None = None) -> bytes:
    """The bytes that stand for an event's content in its link. `value` is a tool call's parsed input, `text` its
    canonical JSON where the caller has it."""
    if text is not None:
        pass
    elif kind == "tool_call":
        text = canonical_json(value) if value is not None else content or ""
    else:
        text = content or ""
        if _REMINDER in text:
            text = without_reminders(text)
    return places.tokenize(text).encode("utf-8", "surrogatepass")


_prefixes: dict[tuple[str, str | None], bytes] = {}


def content_digest(kind: str, tool: str | None, content: bytes) -> bytes:
    """The part of a link that doesn't depend on the causal past."""
    prefix = _prefixes.get((kind, tool))
    if prefix is None:
        if len(_prefixes) > 1000:
            _prefixes.clear()
        prefix = _prefixes[kind, tool] = b"bnd.link.%d\0%s\0%s\0" % (
            LINK_VERSION,
            kind.encode(),
            (tool or "").encode("utf-8", "replace"),
        )
    return hashlib.sha256(prefix + content).digest()[:LINK_SIZE]


def make_link(parents: Iterable[bytes], digest: bytes) -> bytes:
    """The causal link of an event from its parents' links (in any order) and its `content_digest`."""
    return hashlib.sha256(b"".join(sorted(parents)) + digest).digest()[:LINK_SIZE]
