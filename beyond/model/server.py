"""The server: loopback only, one thread a connection, every byte that came and went is kept for the test."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from beyond.model import anthropic, chat, http1, responses
from beyond.model.blocks import Message, Reply, Sent, ToolUse, Usage
from beyond.model.check import Problem, check
from beyond.model.request import ModelRequest, response_items
from beyond.model.script import Script, codeword_script, compiled

_PREFIXES = {"anthropic": ("msg_", "toolu_"), "chat": ("chatcmpl-", "call_"), "responses": ("resp_", "call_")}
_RENDER: dict[str, tuple[Callable[[Message], bytes], Callable[[Message], list[bytes]]]] = {
    "anthropic": (anthropic.whole, anthropic.stream),
    "chat": (chat.whole, chat.stream),
    "responses": (responses.whole, responses.stream),
}


class ScriptedModel:
    """A model server on a free port of 127.0.0.1 that answers as a script says. Use as a context manager.

    It speaks Anthropic Messages (with count_tokens), OpenAI Chat Completions and OpenAI Responses, streamed or not,
    below any path prefix, and refuses what these APIs refuse.
    """

    def __init__(
        self,
        script: Script = codeword_script,
        *,
        usage: Usage | None = None,
        models: Sequence[str] = ("scripted-model",),
        seed: str | None = None,
        checked: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`usage`: for replies that name none. `seed`: makes the ids the same each time. `checked`: refuse what is
        invalid. `tls`: serve https."""
        self.script = script
        self.usage = usage
        self.models = list(models)
        #: Every request in order of arrival.
        self.requests: list[ModelRequest] = []
        #: What the script raised.
        self.errors: list[BaseException] = []
        self._checked = checked
        self._tls = tls
        self._seed = seed if seed is not None else secrets.token_hex(8)
        self._ids = 0
        self._kept: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._listener: socket.socket | None = None
        self._port = 0

    @property
    def script(self) -> Script:
        """What it answers by; may be changed at any time."""
        return self._script

    @script.setter
    def script(self, script: Script) -> None:
        self._script = script
        self._compiled = compiled(script)

    # -- the life of it ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where it listens: scheme, address and port."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def invalid(self) -> list[ModelRequest]:
        """The requests that the API refuses; `problem` says why."""
        return [request for request in self.requests if request.problem is not None]

    @property
    def answered(self) -> list[ModelRequest]:
        """The requests for a message that got one."""
        return [request for request in self.requests if request.sent is not None and request.sent.id is not None]

    def __enter__(self) -> ScriptedModel:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and every connection that is still open."""
        if self._stopping.is_set() or self._listener is None:
            return
        self._stopping.set()
        with contextlib.suppress(OSError):  # wakes the thread that waits for connections
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        self._listener.close()
        with self._lock:
            sockets, threads = list(self._sockets), list(self._threads)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)

    def _start(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name="scripted-model", daemon=True)
        with self._lock:  # until it has begun, so that `close` never meets a thread that hasn't
            self._threads.add(thread)
            thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            if self._stopping.is_set():
                sock.close()
                return
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            with self._lock:
                self._sockets.add(sock)
            with sock.makefile("rb") as file:
                while not self._stopping.is_set() and self._one(sock, file):
                    pass
        except OSError:
            pass  # the other side went away
        finally:
            with self._lock:
                self._sockets.discard(sock)
                self._threads.discard(threading.current_thread())
            sock.close()

    # -- one request ---------------------------------------------------------------------------------------------------

    def _one(self, sock: socket.socket, file: Any) -> bool:
        try:
            received = http1.receive(file, lambda: sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n"))
        except http1.BadRequest as bad:
            body = str(bad).encode()
            http1.send(sock, http1.Response(400, [("content-type", "text/plain")], [body], "close"), self._wait)
            return False
        if received is None:
            return False
        request = self._take(received)
        reply, parts = self._answer(request)
        assert request.sent is not None
        response = _response(request, received, reply, parts)
        request.sent.frames = response.frames
        request.sent.wire = response.written
        again = http1.send(sock, response, self._wait)
        request.sent.done = response.cut is None
        return again and received.version == "HTTP/1.1" and received.header("connection") != "close"

    def _wait(self, seconds: float) -> None:
        if seconds > 0 and self._stopping.wait(seconds):
            raise ConnectionAbortedError  # what was to come later doesn't come early because of the end

    def _take(self, received: http1.Received) -> ModelRequest:
        request = ModelRequest(
            0,
            self._new("req_"),
            received.method,
            received.target,
            received.headers,
            received.body,
            _route(received.method, received.target),
        )
        body = received.body
        with contextlib.suppress(zlib.error, ValueError):
            if received.header("content-encoding") == "gzip":
                body = zlib.decompress(body, 31)
            request.json = json.loads(body) if body else None
        with self._lock:
            request.number = len(self.requests)
            before = request.data.get("previous_response_id")
            if isinstance(before, str):
                request.before = self._kept.get(before, [])
            self.requests.append(request)
        return request

    def _answer(self, request: ModelRequest) -> tuple[Reply, list[bytes]]:
        """The reply, and its body in pieces."""
        problem = self._refusal(request)
        if problem is not None:
            request.problem = problem.message
            refused = Reply(status=problem.status, error=problem.message, error_type=problem.error_type)
            return self._failed(request, refused, problem.code)
        if request.api == "hello":
            return self._plain(request, b"")
        if request.api == "models":
            name = request.path.rstrip("/").rpartition("/")[2]
            api = anthropic if _speaks_anthropic(request) else chat
            return self._plain(request, api.models(self.models) if name == "models" else json.dumps(api.model(name)).encode())
        if request.api == "count_tokens":
            return self._plain(request, json.dumps({"input_tokens": len(request.body) // 4}).encode())
        if request.api == "unknown":
            what = f"Invalid URL ({request.method} {request.path})" if not _speaks_anthropic(request) else "Not found"
            return self._failed(request, Reply(status=404, error=what))
        try:
            reply = self._compiled(request)
        except Exception as error:  # whatever a test's script raises: the test reads it in `errors`
            self.errors.append(error)
            return self._failed(request, Reply(status=500, error=f"the script failed: {error!r}"))
        if reply.status >= 400 and reply.body is None:
            return self._failed(request, reply)
        if reply.body is not None:
            request.sent = Sent(reply.status)
            return reply, [reply.body]
        return reply, self._message(request, reply)

    def _refusal(self, request: ModelRequest) -> Problem | None:
        if not self._checked:
            return None
        before = request.data.get("previous_response_id")
        if request.api == "responses" and isinstance(before, str) and before not in self._kept:
            return Problem(f"Previous response with id '{before}' not found.", code="previous_response_not_found")
        return check(request)

    def _plain(self, request: ModelRequest, body: bytes) -> tuple[Reply, list[bytes]]:
        request.sent = Sent(200)
        return Reply(body=body), [body]

    def _failed(self, request: ModelRequest, reply: Reply, code: str | None = None) -> tuple[Reply, list[bytes]]:
        request.sent = Sent(reply.status)
        if _speaks_anthropic(request):
            return reply, [anthropic.error(reply.status, reply.error, reply.error_type, request.id)]
        return reply, [chat.error(reply.status, reply.error, reply.error_type, code)]

    def _message(self, request: ModelRequest, reply: Reply) -> list[bytes]:
        own, called = _PREFIXES[request.api]
        blocks = tuple(
            replace(block, id=self._new(called)) if isinstance(block, ToolUse) and block.id is None else block
            for block in reply.blocks
        )
        stop = reply.stop or ("tool_use" if any(isinstance(block, ToolUse) for block in blocks) else "end_turn")
        usage = reply.usage or self.usage or Usage(max(1, len(request.body) // 4), 20)
        message = Message(
            self._new(own), reply.model or request.model, blocks, usage, stop, reply.delta, int(time.time()),
            reply.stream_error, request.data,
        )  # fmt: skip
        request.sent = Sent(reply.status, message.id, blocks, usage, stop, message.model)
        if request.api == "responses":
            with self._lock:
                self._kept[message.id] = [*response_items(request.data, request.before), *responses.items(message)]
        whole, stream = _RENDER[request.api]
        return stream(message) if request.stream else [whole(message)]

    def _new(self, prefix: str) -> str:
        with self._lock:
            self._ids += 1
            number = self._ids
        return prefix + hashlib.sha256(f"{self._seed}:{number}".encode()).hexdigest()[:24]


def _route(method: str, target: str) -> str:
    """Which API a path belongs to, below any prefix."""
    path = target.partition("?")[0].rstrip("/")
    if method in ("GET", "HEAD"):
        if path.endswith("/api/hello"):
            return "hello"
        head, _, last = path.rpartition("/")
        return "models" if last == "models" or head.endswith("/models") else "unknown"
    if method == "POST":
        if path.endswith("/messages/count_tokens"):
            return "count_tokens"
        if path.endswith("/chat/completions"):
            return "chat"
        if path.endswith("/messages"):
            return "anthropic"
        if path.endswith("/responses"):
            return "responses"
    return "unknown"


def _speaks_anthropic(request: ModelRequest) -> bool:
    if request.api in ("anthropic", "count_tokens"):
        return True
    if request.api in ("chat", "responses"):
        return False
    return request.header("anthropic-version") is not None or request.header("x-api-key") is not None


def _response(request: ModelRequest, received: http1.Received, reply: Reply, parts: list[bytes]) -> http1.Response:
    streamed = request.stream and reply.status < 400 and request.api not in ("count_tokens", "unknown")
    headers = [
        ("date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
        ("content-type", "text/event-stream; charset=utf-8" if streamed else "application/json"),
        ("request-id" if _speaks_anthropic(request) else "x-request-id", request.id),
    ]
    if streamed:
        headers.append(("cache-control", "no-cache"))
    if reply.gzip:
        parts = http1.compress(parts)
        headers.append(("content-encoding", "gzip"))
    given = {name.lower() for name, _ in reply.headers}
    headers = [*(item for item in headers if item[0] not in given), *reply.headers]
    framing = reply.framing or ("chunked" if streamed else "length")
    if framing == "chunked" and received.version != "HTTP/1.1":
        framing = "close"
    return http1.Response(
        reply.status, headers, http1.cut_up(parts, reply.frames), framing, reply.reason, reply.delay, reply.pace,
        reply.cut, reply.reset, bodiless=received.method == "HEAD" or reply.status in (204, 304),
    )  # fmt: skip
