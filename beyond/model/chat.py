"""Answers in the form of OpenAI's Chat Completions API, with the `reasoning_content` of the others that speak it."""

from __future__ import annotations

import json
from typing import Any

from beyond.model.blocks import Message, Text, Thinking, ToolUse, Usage, pieces

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
}
#: The API's type for a status, where the script names none.
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_exceeded", 500: "server_error"}


def error(status: int, message: str, error_type: str | None, code: str | None = None) -> bytes:
    """The body of an error (the Responses API words it in the same way)."""
    kind = error_type or TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return _dump({"error": {"message": message, "type": kind, "param": None, "code": code}})


def whole(message: Message) -> bytes:
    """The completion in one piece."""
    texts = [block.text for block in message.blocks if isinstance(block, Text)]
    answer: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None, "refusal": None}
    thoughts = [block.text for block in message.blocks if isinstance(block, Thinking)]
    if thoughts:
        answer["reasoning_content"] = "".join(thoughts)
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolUse)]
    if calls:
        answer["tool_calls"] = calls
    choice = {"index": 0, "message": answer, "logprobs": None, "finish_reason": _finish(message)}
    return _dump({**_envelope(message, "chat.completion"), "choices": [choice], "usage": usage_of(message.usage)})


def stream(message: Message) -> list[bytes]:
    """The completion as events."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    number = 0
    for block in message.blocks:
        if isinstance(block, Text):
            deltas += [{"content": part} for part in pieces(block.text, message.delta)]
        elif isinstance(block, Thinking):
            deltas += [{"reasoning_content": part} for part in pieces(block.text, message.delta)]
        else:
            call = _call(block)
            arguments = call["function"]["arguments"]
            head = {"index": number, **call, "function": {**call["function"], "arguments": ""}}
            deltas.append({"tool_calls": [head]})
            for part in pieces(arguments, message.delta):
                deltas.append({"tool_calls": [{"index": number, "function": {"arguments": part}}]})
            number += 1
    envelope = _envelope(message, "chat.completion.chunk")
    out = [_event({**envelope, "choices": [_choice(delta)]}) for delta in deltas]
    if message.stream_error is not None:
        return [*out, b"data: " + error(500, message.stream_error, None) + b"\n\n"]
    out.append(_event({**envelope, "choices": [_choice({}, _finish(message))]}))
    options = message.asked.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        out.append(_event({**envelope, "choices": [], "usage": usage_of(message.usage)}))
    return [*out, b"data: [DONE]\n\n"]


def models(names: list[str]) -> bytes:
    """The list of models."""
    return _dump({"object": "list", "data": [model(name) for name in names]})


def model(name: str) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": 1767225600, "owned_by": "scripted"}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Token counts as OpenAI counts: what came from the cache is part of the prompt."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _finish(message: Message) -> str:
    return _FINISH.get(message.stop, message.stop)


def _call(block: ToolUse) -> dict[str, Any]:
    arguments = json.dumps(dict(block.input), ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _envelope(message: Message, kind: str) -> dict[str, Any]:
    return {
        "id": message.id,
        "object": kind,
        "created": message.created,
        "model": message.model,
        "system_fingerprint": None,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + _dump(data) + b"\n\n"


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
