"""The scripted model: three APIs in two forms, every way over the wire, and what it refuses."""

from __future__ import annotations

import doctest
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beyond.model import (
    InOrder,
    ModelRequest,
    Reply,
    Rule,
    ScriptedModel,
    Steps,
    Text,
    Thinking,
    ToolUse,
    Usage,
    blocks,
    codeword_script,
    failure,
    http1,
)

ANTHROPIC = {"x-api-key": "made-up", "anthropic-version": "2023-06-01", "content-type": "application/json"}
OPENAI = {"authorization": "Bearer made-up", "content-type": "application/json"}
ALL = Reply(
    [Thinking("Hm, größer."), Text("Schöne Grüße 🦅"), ToolUse("Bash", {"command": "echo ü"})],
    usage=Usage(11, 22, 33, 44),
    delta=3,
)


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(lambda _: ALL) as running:
        yield running


def ask(model: ScriptedModel, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """One request on a connection of its own: status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", int(model.url.rpartition(":")[2]), timeout=10)
    try:
        if body is None:
            connection.request("GET", path, headers=headers or {})
        else:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, headers or (ANTHROPIC if "messages" in path else OPENAI))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def messages(*turns: Any, **more: Any) -> dict[str, Any]:
    """A request of the Messages or Chat API: user and assistant in turn; an object stands for itself."""
    said = [
        turn if isinstance(turn, dict) else {"role": "assistant" if i % 2 else "user", "content": turn}
        for i, turn in enumerate(turns)
    ]
    return {"model": "m", "max_tokens": 100, "messages": said, **more}


def events(body: bytes) -> list[Any]:
    """The data of the events of a stream; [DONE] as text."""
    out: list[Any] = []
    for part in body.decode().split("\n\n"):
        data = [line.removeprefix("data: ") for line in part.splitlines() if line.startswith("data: ")]
        if data:
            out.append(data[0] if data[0] == "[DONE]" else json.loads(data[0]))
    return out


def raw(model: ScriptedModel, body: Any, path: str = "/v1/messages") -> bytes:
    """Everything that comes back for one request, until the server closes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: 1\r\nauthorization: Bearer k\r\n"
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=10) as sock:
        sock.sendall(head.encode() + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        out = bytearray()
        while part := sock.recv(65536):
            out += part
        return bytes(out)


def chunks(body: bytes) -> tuple[list[bytes], bool]:
    """The chunks of a body, and whether it ended as it should."""
    out: list[bytes] = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return out, rest == b"\r\n"
        out.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return out, False


# --- the three APIs -------------------------------------------------------------------------------------------------


def test_anthropic_whole_and_streamed_say_the_same(model: ScriptedModel) -> None:
    status, body = ask(model, "/v1/messages?beta=true", messages("hi"))
    whole = json.loads(body)
    assert (status, whole["stop_reason"], whole["model"]) == (200, "tool_use", "m")
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    counts = {"input_tokens": 11, "output_tokens": 22, "cache_read_input_tokens": 33, "cache_creation_input_tokens": 44}
    assert counts.items() <= whole["usage"].items()
    _, body = ask(model, "/v1/messages", messages("hi", stream=True))
    out: list[dict[str, Any]] = []
    for event in events(body):
        if event["type"] == "content_block_start":
            out.append(dict(event["content_block"]))
            assert event["index"] == len(out) - 1
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    out[-1][key] = out[-1].get(key, "") + delta[key]
            if "partial_json" in delta:
                out[-1]["json"] = out[-1].get("json", "") + delta["partial_json"]
    assert json.loads(out[2].pop("json")) == whole["content"][2]["input"]
    assert out[:2] == whole["content"][:2]
    first, last = events(body)[0], events(body)[-2:]
    assert counts.items() - {("output_tokens", 22)} <= first["message"]["usage"].items()
    assert (last[0]["delta"]["stop_reason"], last[0]["usage"]["output_tokens"]) == ("tool_use", 22)
    assert last[1] == {"type": "message_stop"}


def test_chat_whole_and_streamed_say_the_same(model: ScriptedModel) -> None:
    _, body = ask(model, "/v1/chat/completions", messages("hi"))
    whole = json.loads(body)
    answer = whole["choices"][0]["message"]
    assert (answer["content"], answer["reasoning_content"]) == ("Schöne Grüße 🦅", "Hm, größer.")
    assert json.loads(answer["tool_calls"][0]["function"]["arguments"]) == {"command": "echo ü"}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["total_tokens"]) == (88, 110)
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 33
    _, body = ask(model, "/v1/chat/completions", messages("hi", stream=True, stream_options={"include_usage": True}))
    found = events(body)
    deltas = [choice["delta"] for event in found[:-1] for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == answer["content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == answer["reasoning_content"]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["function"]["name"] == "Bash"
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert json.loads(arguments) == {"command": "echo ü"}
    assert (found[-1], found[-2]["usage"], found[-2]["choices"]) == ("[DONE]", whole["usage"], [])


def test_responses_whole_and_streamed_say_the_same(model: ScriptedModel) -> None:
    _, body = ask(model, "/v1/responses", {"model": "m", "input": "hi"})
    whole = json.loads(body)
    assert (whole["status"], [item["type"] for item in whole["output"]]) == (
        "completed",
        ["reasoning", "message", "function_call"],
    )
    assert (whole["usage"]["input_tokens"], whole["usage"]["input_tokens_details"]["cached_tokens"]) == (88, 33)
    _, body = ask(model, "/v1/responses", {"model": "m", "input": "hi", "stream": True})
    found = events(body)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["output"] == done
    assert "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta") == "Schöne Grüße 🦅"
    assert json.loads(done[2]["arguments"]) == {"command": "echo ü"}
    # a later one may go on from an earlier one by its id
    output = {"type": "function_call_output", "call_id": done[2]["call_id"], "output": "ü"}
    more = {"model": "m", "previous_response_id": found[-1]["response"]["id"], "input": [output]}
    assert ask(model, "/v1/responses", more)[0] == 200
    assert [turn.role for turn in model.requests[-1].turns] == ["user", "assistant", "tool"]
    status, body = ask(model, "/v1/responses", {**more, "previous_response_id": "resp_x"})
    assert (status, json.loads(body)["error"]["code"]) == (400, "previous_response_not_found")


def test_other_paths(model: ScriptedModel) -> None:
    assert ask(model, "/prefix/api/hello") == (200, b"")
    assert ask(model, "/v1/models", headers=OPENAI)[0] == 200
    assert json.loads(ask(model, "/v1/models", headers=OPENAI)[1])["object"] == "list"
    assert json.loads(ask(model, "/v1/models", headers=ANTHROPIC)[1])["has_more"] is False
    assert json.loads(ask(model, "/v1/models/x", headers=OPENAI)[1])["id"] == "x"
    assert json.loads(ask(model, "/v1/messages/count_tokens", {**messages("hi")})[1])["input_tokens"] > 0
    assert ask(model, "/some/prefix/v1/messages", messages("hi"))[0] == 200
    status, body = ask(model, "/v1/nothing", headers=ANTHROPIC)
    assert (status, json.loads(body)["error"]["type"]) == (404, "not_found_error")
    status, body = ask(model, "/v1/nothing", headers=OPENAI)
    assert (status, "Invalid URL" in json.loads(body)["error"]["message"]) == (404, True)
    head = raw(model, messages("hi")).partition(b"\r\n")[0]
    assert head == b"HTTP/1.1 200 OK"


def test_every_request_is_kept_as_it_came(model: ScriptedModel) -> None:
    body = b'{"model":"m", "max_tokens":1,"messages":[{"role":"user","content":"\\u00fc"}]}'
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nX-Api-Key: k\r\nAnthropic-Version: 1\r\n"
            b"X-Two: a\r\nx-two:  b \r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        )
        assert sock.recv(100).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"10\r\n" + body[:16] + b"\r\n%x;ext=1\r\n" % (len(body) - 16) + body[16:] + b"\r\n0\r\n\r\n")
        assert sock.recv(20).startswith(b"HTTP/1.1 200 OK")
    (request,) = model.requests
    assert (request.method, request.target, request.body) == ("POST", "/v1/messages", body)
    assert request.headers[:5] == [
        ("Host", "h"),
        ("X-Api-Key", "k"),
        ("Anthropic-Version", "1"),
        ("X-Two", "a"),
        ("x-two", "b"),
    ]
    assert (request.prompt, request.header("x-TWO"), request.problem) == ("ü", "a", None)


# --- over the wire --------------------------------------------------------------------------------------------------


def test_one_connection_serves_many_requests(model: ScriptedModel) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(model.url.rpartition(":")[2]), timeout=10)
    connection.request("HEAD", "/api/hello")
    assert connection.getresponse().read() == b""
    sock = connection.sock
    for stream in (True, False, True):
        connection.request("POST", "/v1/messages", json.dumps(messages("hi", stream=stream)), ANTHROPIC)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
        assert connection.sock is sock
    connection.close()


@pytest.mark.parametrize("sizes", [1, 7, [3, 1, 200], [10**6]])
def test_frames_are_cut_where_they_are_told_to(sizes: Any) -> None:
    with ScriptedModel(lambda _: Reply([Text("Grüße 🦅" * 5)], frames=sizes)) as model:
        head, _, body = raw(model, messages("hi", stream=True)).partition(b"\r\n\r\n")
        found, ended = chunks(body)
        sent = model.requests[0].sent
        assert sent is not None
        assert (found, ended) == (sent.frames, True)
        assert head + b"\r\n\r\n" + body == bytes(sent.wire)
        whole = b"".join(found)
        wanted = [sizes] * (len(whole) // sizes) if isinstance(sizes, int) else sizes[:-1]
        assert [len(frame) for frame in found[: len(wanted)]] == wanted
        text = "".join(e["delta"].get("text", "") for e in events(whole) if e["type"] == "content_block_delta")
        assert text == "Grüße 🦅" * 5


@pytest.mark.parametrize("stream", [True, False])
def test_gzip(stream: bool) -> None:
    with ScriptedModel(lambda _: Reply([Text("Grüße")], gzip=True, framing="close")) as model:
        head, _, body = raw(model, messages("hi", stream=stream)).partition(b"\r\n\r\n")
        assert b"content-encoding: gzip" in head
        assert b"content-length" not in head
        plain = zlib.decompress(body, 31)
        assert "Grü".encode() in plain
        if stream:  # every frame can be read as soon as it is there
            sent = model.requests[0].sent
            assert sent is not None
            assert zlib.decompressobj(31).decompress(sent.frames[0]).startswith(b"event: message_start")


def test_errors_and_retries_by_arrival() -> None:
    odd = failure(529, "too much", reason="Very Odd", headers=[("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    with ScriptedModel(InOrder(failure(429, retry_after=2), odd, "fine")) as model:
        first, second, third, fourth = (raw(model, messages("hi")) for _ in range(4))
        assert first.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"\r\nretry-after: 2\r\n" in first
        assert json.loads(first.partition(b"\r\n\r\n")[2])["error"]["type"] == "rate_limit_error"
        assert second.startswith(b"HTTP/1.1 529 Very Odd\r\n")
        assert second.count(b"Set-Cookie: ") == 2
        error = json.loads(second.partition(b"\r\n\r\n")[2])
        assert error["error"] == {"type": "overloaded_error", "message": "too much"}
        assert b"request-id: %s\r\n" % error["request_id"].encode() in second
        assert b"fine" in third
        assert b"fine" in fourth
        assert [request.sent.status for request in model.requests if request.sent] == [429, 529, 200, 200]
        assert len(model.answered) == 2


@pytest.mark.parametrize("cut", [0, 1, 100])
@pytest.mark.parametrize("stream", [True, False])
def test_cut_off(cut: int, stream: bool) -> None:
    with ScriptedModel(lambda _: Reply([Text("x" * 500)], cut=cut, frames=40)) as model:
        head, _, body = raw(model, messages("hi", stream=stream)).partition(b"\r\n\r\n")
        sent = model.requests[0].sent
        assert sent is not None
        assert not sent.done
        if stream:
            found, ended = chunks(body)
            assert (b"".join(found), ended) == (b"".join(sent.frames)[:cut], False)
        else:
            assert body == b"".join(sent.frames)[:cut]
            assert b"content-length: %d" % len(b"".join(sent.frames)) in head


def test_reset() -> None:
    with ScriptedModel(lambda _: Reply([Text("x" * 500)], cut=50, reset=True)) as model, pytest.raises(ConnectionError):
        raw(model, messages("hi", stream=True))


def test_an_error_inside_a_stream() -> None:
    with ScriptedModel(lambda _: Reply([Text("begun")], stream_error="Overloaded")) as model:
        assert events(ask(model, "/v1/messages", messages("hi", stream=True))[1])[-1]["type"] == "error"
        assert "error" in events(ask(model, "/v1/chat/completions", messages("hi", stream=True))[1])[-1]
        last = events(ask(model, "/v1/responses", {"model": "m", "input": "hi", "stream": True})[1])[-1]
        assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "Overloaded")


def cut_short(model: ScriptedModel) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(model, "/v1/messages", messages("hi"))


def test_slow_replies_run_side_by_side_and_closing_does_not_wait() -> None:
    with ScriptedModel(lambda _: Reply([Text("late")], delay=0.4)) as model:
        began = time.monotonic()
        threads = [threading.Thread(target=ask, args=(model, "/v1/messages", messages("hi"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 0.4 <= time.monotonic() - began < 2
        assert [request.number for request in model.requests] == list(range(8))
    model = ScriptedModel(lambda _: Reply([Text("never")], delay=60))
    with model:
        waiting = threading.Thread(target=cut_short, args=(model,))
        waiting.start()
        while not model.requests:
            time.sleep(0.01)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    waiting.join(5)


def test_a_body_of_ones_own_and_pace() -> None:
    reply = Reply(body=b"data: x\n\n", headers=[("Content-Type", "text/odd")], frames=4, pace=0.1, framing="chunked")
    with ScriptedModel(lambda _: reply) as model:
        began = time.monotonic()
        head, _, body = raw(model, messages("hi")).partition(b"\r\n\r\n")
        assert time.monotonic() - began >= 0.2
        assert chunks(body) == ([b"data", b": x\n", b"\n"], True)
        assert head.lower().count(b"content-type") == 1


@pytest.mark.parametrize("bad", [b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\r\n\r\n"])
def test_what_is_no_http_is_refused(model: ScriptedModel, bad: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(model.url.rpartition(":")[2])), timeout=10) as sock:
        sock.sendall(bad)
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
    assert model.requests == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    with ScriptedModel(lambda _: "fine", tls=context) as model:
        assert model.url.startswith("https://127.0.0.1:")
        connection = http.client.HTTPSConnection(model.url.removeprefix("https://"), timeout=10, context=trust)
        connection.request("POST", "/v1/messages", json.dumps(messages("hi")), ANTHROPIC)
        assert b"fine" in connection.getresponse().read()
        connection.close()


# --- what it refuses ------------------------------------------------------------------------------------------------

CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}]}
RESULT: dict[str, Any] = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": blocks.sign("Hm")}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (messages("hi"), None),
        (messages("hi", CALL, RESULT), None),
        (messages("hi", CALL, {"role": "system", "content": "note"}, RESULT), None),
        (messages("hi", CALL, {**RESULT, "content": [*RESULT["content"], {"type": "text", "text": "and"}]}), None),
        (messages("hi", {"role": "user", "content": "again"}), None),
        (messages("hi", {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a"}]}, "b"), None),
        (messages("hi", CALL, "go on"), "without `tool_result` blocks immediately after: t1"),
        (messages("hi", CALL), "must end with a user message"),
        (messages("hi", RESULT), "unexpected `tool_use_id`"),
        (messages("hi", CALL, RESULT, "b", RESULT), "unexpected `tool_use_id`"),
        (messages("hi", CALL, {**RESULT, "content": RESULT["content"] * 2}), "must have a single result"),
        (messages("hi", CALL, {**RESULT, "content": [{"type": "text", "text": "x"}, *RESULT["content"]]}), "without"),
        (messages("hi", CALL, RESULT, CALL, RESULT), "ids must be unique"),
        (messages({"role": "assistant", "content": "hi"}), 'first message must use the "user" role'),
        (messages("hi", "answer"), "must end with a user message"),
        (messages({"role": "robot", "content": "hi"}), "role: Input should be"),
        (messages(""), "non-empty content"),
        (messages([{"type": "text", "text": ""}]), "text content blocks must be non-empty"),
        (messages([{"type": "text", "text": " \n"}]), "must contain non-whitespace text"),
        (messages("hi", {"role": "assistant", "content": [{**THOUGHT, "thinking": "H"}]}, "b"), "Invalid `signature`"),
        (messages("hi", max_tokens=0), "max_tokens"),
        (messages(), "at least one message"),
        ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, "max_tokens: Field required"),
        ({"max_tokens": 1, "messages": []}, "model: Field required"),
        (messages("hi", tools=[{"name": "a"}, {"name": "a"}]), "Tool names must be unique"),
        (messages("hi", thinking={"type": "enabled", "budget_tokens": 2000}), "greater than `thinking.budget_tokens`"),
        (b"{", "not valid JSON"),
        (b"[]", "not valid JSON"),
    ],
)
def test_anthropic_refuses_what_the_api_refuses(model: ScriptedModel, body: Any, why: str | None) -> None:
    status, answer = ask(model, "/v1/messages", body)
    assert status == (200 if why is None else 400)
    assert [request.problem is None for request in model.requests] == [why is None]
    assert len(model.invalid) == (why is not None)
    if why is not None:
        error = json.loads(answer)
        assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
        assert why in error["error"]["message"]


CHAT_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "Bash", "arguments": "{}"}}],
}
CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (messages("hi", CHAT_CALL, CHAT_RESULT), None),
        (messages("hi", CHAT_CALL), "must be followed by tool messages"),
        (messages("hi", CHAT_CALL, "go on"), "must be followed by tool messages"),
        (messages("hi", CHAT_RESULT), "must be a response to a preceding message"),
        (messages("hi", {"role": "assistant", "content": ""}, "x"), "must not be empty"),
        (messages({"role": "robot", "content": "x"}), "Invalid value: 'robot'"),
        (messages(), "empty array"),
    ],
)
def test_chat_refuses_what_the_api_refuses(model: ScriptedModel, body: Any, why: str | None) -> None:
    status, answer = ask(model, "/v1/chat/completions", body)
    assert status == (200 if why is None else 400)
    assert why is None or why in json.loads(answer)["error"]["message"]


ITEM_CALL = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{}"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([{"role": "user", "content": "hi"}, ITEM_CALL, ITEM_RESULT], None),
        ([{"role": "user", "content": "hi"}, ITEM_CALL], "No tool output found for function call c1"),
        ([ITEM_RESULT], "No tool call found for function call output"),
        ([], "Missing required parameter: 'input'"),
    ],
)
def test_responses_refuses_what_the_api_refuses(model: ScriptedModel, items: Any, why: str | None) -> None:
    status, answer = ask(model, "/v1/responses", {"model": "m", "input": items})
    assert status == (200 if why is None else 400)
    assert why is None or why in json.loads(answer)["error"]["message"]


def test_keys_and_versions_are_asked_for(model: ScriptedModel) -> None:
    assert ask(model, "/v1/messages", messages("hi"), {"anthropic-version": "1"})[0] == 401
    assert ask(model, "/v1/messages", messages("hi"), {"x-api-key": "k"})[0] == 400
    assert ask(model, "/v1/chat/completions", messages("hi"), {"x-api-key": "k"})[0] == 401
    with ScriptedModel(lambda _: ALL, checked=False) as lax:
        assert ask(lax, "/v1/messages", messages("hi", CALL, "go on"), {"x": "y"})[0] == 200
        assert lax.invalid == []


# --- scripts --------------------------------------------------------------------------------------------------------


def test_rules_by_the_last_prompt() -> None:
    rules: dict[str, Rule] = {
        "list": [Text("Looking."), ToolUse("Bash", {"command": "ls"})],
        "twice": Steps(ToolUse("Bash", {"command": "a"}), ToolUse("Bash", {"command": "b"}), "both"),
        "^who": lambda request: f"you asked: {request.prompt}",
    }
    with ScriptedModel(rules) as model:
        history: list[Any] = []
        for prompt, calls, end in (("list it", 1, "Done."), ("twice", 2, "both"), ("who?", 0, "you asked: who?")):
            reminder = {"type": "text", "text": "<system-reminder>twice list</system-reminder>"}
            history.append({"role": "user", "content": [{"type": "text", "text": prompt}, reminder]})
            for _ in range(calls):
                content = json.loads(ask(model, "/v1/messages", messages(*history))[1])["content"]
                result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "ok"}
                history += [{"role": "assistant", "content": content}, {"role": "user", "content": [result, reminder]}]
            content = json.loads(ask(model, "/v1/messages", messages(*history))[1])["content"]
            assert content == [{"type": "text", "text": end}]
            history.append({"role": "assistant", "content": content})
        assert model.invalid == []
        assert [request.step for request in model.requests] == [0, 1, 0, 1, 2, 0]
        assert model.requests[-1].prompts == ["list it", "twice", "who?"]
        ids = [call.id for request in model.requests if request.sent for call in request.sent.calls]
        assert len(set(ids)) == 3
        model.script = [("who", "changed")]
        assert b"changed" in ask(model, "/v1/messages", messages("who?"))[1]


def test_a_script_that_fails_is_told() -> None:
    with ScriptedModel(lambda request: {"no": "yes"}[request.prompt]) as model:
        status, body = ask(model, "/v1/messages", messages("hi"))
        assert (status, b"the script failed" in body) == (500, True)
        assert [type(error) for error in model.errors] == [KeyError]


def test_ids_are_new_unless_seeded() -> None:
    def ids(seed: str | None) -> list[str]:
        with ScriptedModel(lambda _: ALL, seed=seed) as model:
            return [json.loads(ask(model, "/v1/messages", messages("hi"))[1])["id"] for _ in range(2)]

    assert ids("x") == ids("x")
    assert len({*ids(None), *ids(None)}) == 4


def tool(name: str, *properties: str, **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in properties}, **more}
    return {"name": name, "input_schema": schema}


CLAUDE = [
    tool("Write", "file_path", "content"),
    tool("Read", "file_path"),
    tool("Bash", "command", "description", required=["command", "description"]),
    tool("Agent", "description", "prompt", "subagent_type", required=["subagent_type"]),
]
KIMI = [tool("Write", "path", "content"), tool("Read", "path"), tool("Bash", "command"), tool("Agent", "prompt")]
CODEX = [tool("exec_command", "cmd")]


def codeword(*said: str, tools: list[Any] | None = None, system: str = "You work in\nworking directory: /w/app") -> Any:
    """What the codeword script answers to a conversation of plain texts."""
    data = messages(*said, tools=tools or [], system=system)
    request = ModelRequest(0, "req", "POST", "/v1/messages", [], json.dumps(data).encode(), "anthropic", data)
    answer = codeword_script(request)
    return answer if isinstance(answer, str) else [b for b in answer if isinstance(b, ToolUse)]  # type: ignore[union-attr]


def test_the_codeword_script_uses_the_tools_that_there_are() -> None:
    claude, kimi, codex = (codeword("remember GOLDENHAWK", tools=tools)[0] for tools in (CLAUDE, KIMI, CODEX))
    assert (claude.name, dict(claude.input)) == ("Write", {"file_path": "/w/app/notes.txt", "content": "phase one\n"})
    assert (kimi.name, dict(kimi.input)) == ("Write", {"path": "notes.txt", "content": "phase one\n"})
    assert (codex.name, dict(codex.input)) == ("exec_command", {"cmd": "printf '%s' 'phase one\n' > notes.txt"})
    assert codeword("remember GOLDENHAWK") == "Remembered GOLDENHAWK."
    assert codeword("plain SILVERWOLF", tools=KIMI) == "Remembered SILVERWOLF."
    (second,) = codeword("remember GOLDENHAWK", "Remembered GOLDENHAWK.", "now remember SILVERWOLF", tools=KIMI)
    assert second.input["content"] == "phase two\n"
    (agent,) = codeword("delegate this", tools=CLAUDE)
    assert agent.input["subagent_type"] == "scripted"
    (hang,) = codeword("please hang for 3", tools=CLAUDE)
    assert ("sleep(3)" in hang.input["command"], hang.input["description"]) == (True, "scripted")


def test_the_codeword_script_lists_what_it_was_taught() -> None:
    said = (
        "remember GOLDENHAWK",
        "Remembered GOLDENHAWK.",
        "plain SILVERWOLF",
        "yes",
        "What codewords did I teach you?",
    )
    assert codeword(*said) == "Codewords I can see: GOLDENHAWK, SILVERWOLF"
    assert codeword(*said, system="IMPORTANT: the SILVERWOLF of the instructions") == "Codewords I can see: GOLDENHAWK"
    assert codeword("What codewords did I teach you?") == "Codewords I can see: none"
    assert "Codewords: GOLDENHAWK SILVERWOLF" in codeword(*said[:4], "Write a detailed summary of the above")


# --- the package ----------------------------------------------------------------------------------------------------


def test_it_needs_the_standard_library_only() -> None:
    code = (
        "import sys, beyond.model\n"
        "others = {n.split('.')[0] for n in sys.modules} - set(sys.stdlib_module_names) - {'beyond', '__main__'}\n"
        "print(sorted(n for n in others if not n.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_examples_in_its_pages() -> None:
    import beyond.model

    for module in (beyond.model, blocks, http1):
        assert doctest.testmod(module).failed == 0
