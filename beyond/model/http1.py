"""HTTP/1.1 on a socket, as much as a model server needs: requests in, responses out, and every way to end one."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import BinaryIO

#: More than this of a head or a body is refused.
MAX_HEAD, MAX_BODY = 1 << 20, 1 << 30


class BadRequest(Exception):
    """What came is no HTTP request; the message says why."""


@dataclass(slots=True)
class Received:
    """A request as it came; names and values without the white space around them."""

    method: str
    target: str
    version: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str:
        """The first value of a header in lower case, or nothing."""
        return next((value.lower() for key, value in self.headers if key.lower() == name), "")


@dataclass(slots=True)
class Response:
    """A response before it is written: the body in pieces, encoded, cut into its frames."""

    status: int
    headers: list[tuple[str, str]]
    frames: list[bytes]
    framing: str
    reason: str | None = None
    delay: float = 0
    pace: float = 0
    cut: int | None = None
    reset: bool = False
    bodiless: bool = False
    written: bytearray = field(default_factory=bytearray)


def receive(file: BinaryIO, go_on: Callable[[], None]) -> Received | None:
    """The next request of a connection, None where it ended. `go_on` answers ``Expect: 100-continue``."""
    line = file.readline(MAX_HEAD)
    while line in (b"\r\n", b"\n"):
        line = file.readline(MAX_HEAD)
    if not line:
        return None
    parts = line.decode("latin-1").rstrip("\r\n").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest("the request line is not of HTTP/1")
    headers = _headers(file)
    received = Received(parts[0], parts[1], parts[2], headers, b"")
    if received.header("expect") == "100-continue":
        go_on()
    if "chunked" in received.header("transfer-encoding"):
        received.body = _chunks(file)
    else:
        length = received.header("content-length") or "0"
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise BadRequest("Content-Length is no number that is believed")
        received.body = _exactly(file, int(length))
    return received


def _headers(file: BinaryIO) -> list[tuple[str, str]]:
    headers: list[tuple[str, str]] = []
    size = 0
    while True:
        line = file.readline(MAX_HEAD)
        size += len(line)
        if line in (b"\r\n", b"\n"):
            return headers
        if not line.endswith(b"\n") or size > MAX_HEAD:
            raise BadRequest("the head is cut off or too long")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadRequest("a header without a colon")
        headers.append((name, value.strip()))


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise BadRequest("the body is cut off")
    return data


def _chunks(file: BinaryIO) -> bytes:
    body = bytearray()
    while True:
        line = file.readline(MAX_HEAD).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise BadRequest("a chunk without its size") from None
        if size < 0 or len(body) + size > MAX_BODY:
            raise BadRequest("a chunk too large")
        if size == 0:
            _headers(file)
            return bytes(body)
        body += _exactly(file, size)
        _exactly(file, 2)


def compress(parts: Iterable[bytes]) -> list[bytes]:
    """`parts` gzipped as one stream, so that each can be read as soon as it is there."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    out = [packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH) for part in parts]
    return [*out, packer.flush()]


def cut_up(parts: Sequence[bytes], sizes: int | Sequence[int] | None) -> list[bytes]:
    """The bytes of `parts` in frames of the given sizes; the rest is one more.

    >>> cut_up([b"abc", b"defgh"], [1, 4])
    [b'a', b'bcde', b'fgh']
    >>> cut_up([b"abc", b"de"], 2)
    [b'ab', b'cd', b'e']
    """
    if sizes is None:
        return [part for part in parts if part]
    data = b"".join(parts)
    if isinstance(sizes, int):
        return [data[at : at + sizes] for at in range(0, len(data), sizes)]
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return [frame for frame in (*out, data[at:]) if frame]


def send(sock: socket.socket, response: Response, wait: Callable[[float], None]) -> bool:
    """Writes a response; True where the connection can be used again."""
    wait(response.delay)
    reason = response.reason if response.reason is not None else _reason(response.status)
    headers = list(response.headers)
    framing = response.framing
    if response.bodiless:
        framing = "none"
    elif framing == "chunked":
        headers.append(("transfer-encoding", "chunked"))
    elif framing == "length":
        headers.append(("content-length", str(sum(map(len, response.frames)))))
    else:
        headers.append(("connection", "close"))
    head = f"HTTP/1.1 {response.status} {reason}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers)
    _write(sock, response, head.encode("latin-1") + b"\r\n")
    left = response.cut
    if not response.bodiless:
        for number, frame in enumerate(response.frames):
            if number:
                wait(response.pace)
            part = frame if left is None else frame[:left]
            # A frame that is cut keeps the size that it should have had.
            _write(sock, response, (b"%x\r\n" % len(frame) if framing == "chunked" else b"") + part)
            if left is not None:
                left -= len(part)
                if left <= 0:
                    _end(sock, response.reset)
                    return False
            if framing == "chunked":
                _write(sock, response, b"\r\n")
        if framing == "chunked":
            _write(sock, response, b"0\r\n\r\n")
    return framing != "close"


def _write(sock: socket.socket, response: Response, data: bytes) -> None:
    sock.sendall(data)
    response.written += data


def _end(sock: socket.socket, reset: bool) -> None:
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Overloaded" if status == 529 else ""
