"""What a script answers with, and what became of it on the wire."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: A signature of ours starts with this; it holds a hash of the thinking that it signs.
_SIGNED = b"scripted:"


@dataclass(frozen=True, slots=True)
class Text:
    """A block of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A block of thinking. Anthropic: signed, checked when it comes back. OpenAI: `reasoning_content`, or a summary."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call. `id` is given when it is sent, unless the script names one."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None


Block = Text | Thinking | ToolUse


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as Anthropic counts: `input` leaves out what came from the cache or went there."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Reply:
    """One answer of the model, and how it goes over the wire."""

    blocks: Sequence[Block] = ()
    #: None: the server's own, else counted from the request's size.
    usage: Usage | None = None
    #: Anthropic's word for why it stopped (`end_turn tool_use max_tokens stop_sequence refusal`).
    #: None: as the blocks say.
    stop: str | None = None
    #: The model that says it answered; None: the one that was asked.
    model: str | None = None

    status: int = 200
    #: The reason phrase; None: the usual one.
    reason: str | None = None
    #: Sent besides the usual ones; a name that is given here takes the place of the usual one, and may repeat.
    headers: Sequence[tuple[str, str]] = ()
    #: The message of an error (status 400 and more), and its type in the API's words.
    error: str = "scripted error"
    error_type: str | None = None
    #: Sent instead of everything that would be made of the blocks.
    body: bytes | None = None
    #: An error inside a stream that began well: sent after the blocks, in place of the end.
    stream_error: str | None = None

    #: Characters of a delta in a stream.
    delta: int = 16
    gzip: bool = False
    #: How the body ends: `chunked`, `length` or `close`. None: streams chunked, everything else with its length.
    framing: Literal["chunked", "length", "close"] | None = None
    #: Sizes of the frames that the body's bytes are sent in, the rest as one more; a number: all of that size.
    #: None: a frame an event. A size cuts where it cuts, in the middle of a character too.
    frames: int | Sequence[int] | None = None
    #: Seconds before the first byte, and between two frames.
    delay: float = 0
    pace: float = 0
    #: Ends the connection after so many bytes of the body, without its end; with `reset`, by a reset.
    cut: int | None = None
    reset: bool = False


def failure(
    status: int,
    message: str = "scripted error",
    *,
    error_type: str | None = None,
    retry_after: float | None = None,
    reason: str | None = None,
    headers: Sequence[tuple[str, str]] = (),
) -> Reply:
    """An error of the API: 429, 529, ….

    >>> failure(429, retry_after=2).headers
    (('retry-after', '2'),)
    """
    retry = () if retry_after is None else (("retry-after", f"{retry_after:g}"),)
    return Reply(status=status, reason=reason, headers=(*retry, *headers), error=message, error_type=error_type)


@dataclass
class Sent:
    """What went back for one request. `blocks` have their ids; `frames` are the body's frames as they were cut."""

    status: int
    id: str | None = None
    blocks: tuple[Block, ...] = ()
    usage: Usage | None = None
    stop: str | None = None
    model: str | None = None
    frames: list[bytes] = field(default_factory=list)
    #: Every byte that was written for it.
    wire: bytearray = field(default_factory=bytearray)
    #: False while it is being sent, and for good where the client went away first.
    done: bool = False

    @property
    def calls(self) -> list[ToolUse]:
        """The tool calls among the blocks."""
        return [block for block in self.blocks if isinstance(block, ToolUse)]


@dataclass(frozen=True)
class Message:
    """An answer ready to be written down in one of the APIs' forms."""

    id: str
    model: str
    blocks: tuple[Block, ...]
    usage: Usage
    stop: str
    delta: int
    created: int
    stream_error: str | None
    #: The request's own JSON, for what of it the answer repeats.
    asked: Mapping[str, Any]


def pieces(text: str, size: int) -> list[str]:
    """`text` in parts of `size` characters; one empty part for an empty text."""
    return [text[i : i + size] for i in range(0, len(text), max(1, size))] or [""]


def sign(thinking: str) -> str:
    """The signature of a thinking block."""
    digest = hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).digest()
    return base64.b64encode(_SIGNED + digest).decode()


def signed(thinking: str, signature: str) -> bool:
    """False where the signature is one of ours and the text is not the one that was signed."""
    try:
        plain = base64.b64decode(signature, validate=True)
    except ValueError:
        return True
    return not plain.startswith(_SIGNED) or sign(thinking) == signature
