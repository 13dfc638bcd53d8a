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
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
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
        if seconds > 0:
            self._stopping.wait(seconds)

    def _take(self, received: http1.Received) -> ModelRequest:
        request = ModelRequest(
            0, received.method, received.target, received.headers, received.body, _route(received.method, received.target)
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
            reply = compiled(self.script)(request) if not callable(self.script) else self._scripted(request)
        except Exception as error:  # whatever a test's script raises: the test reads it in `errors`
            self.errors.append(error)
            return self._failed(request, Reply(status=500, error=f"the script failed: {error!r}"))
        if reply.status >= 400 and reply.body is None:
            return self._failed(request, reply)
        if reply.body is not None:
            request.sent = Sent(reply.status)
            return reply, [reply.body]
        return reply, self._message(request, reply)
