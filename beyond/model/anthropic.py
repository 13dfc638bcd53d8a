"""Answers in the form of Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

from beyond.model.blocks import Block, Message, Text, Thinking, pieces, sign

#: The API's type for a status, where the script names none.
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error(status: int, message: str, error_type: str | None, request_id: str) -> bytes:
    """The body of an error."""
    kind = error_type or TYPES.get(status, "api_error")
    return _dump({"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id})


def whole(message: Message) -> bytes:
    """The message in one piece."""
    content = [_block(block) for block in message.blocks]
    return _dump(_envelope(message, content, message.stop, message.usage.output))


def stream(message: Message) -> list[bytes]:
    """The message as events; each is whole with its empty line."""
    start = _envelope(message, [], None, min(1, message.usage.output))
    out = [_event("message_start", {"message": start})]
    for index, block in enumerate(message.blocks):
        if isinstance(block, Text):
            head: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in pieces(block.text, message.delta)]
        elif isinstance(block, Thinking):
            head = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": part} for part in pieces(block.text, message.delta)]
            deltas.append({"type": "signature_delta", "signature": sign(block.text)})
        else:
            head = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
            parts = ["", *pieces(json.dumps(dict(block.input), ensure_ascii=False), message.delta)]
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
        out.append(_event("content_block_start", {"index": index, "content_block": head}))
        if index == 0:
            out.append(_event("ping", {}))
        out += [_event("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        out.append(_event("content_block_stop", {"index": index}))
    if message.stream_error is not None:
        out.append(_event("error", {"error": {"type": "overloaded_error", "message": message.stream_error}}))
        return out
    delta = {"stop_reason": message.stop, "stop_sequence": None}
    out.append(_event("message_delta", {"delta": delta, "usage": {"output_tokens": message.usage.output}}))
    out.append(_event("message_stop", {}))
    return out


def models(names: list[str]) -> bytes:
    """The list of models."""
    data = [model(name) for name in names]
    return _dump(
        {
            "data": data,
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }
    )


def model(name: str) -> dict[str, Any]:
    """One model."""
    return {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "thinking": block.text, "signature": sign(block.text)}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": dict(block.input)}


def _envelope(message: Message, content: list[Any], stop: str | None, output: int) -> dict[str, Any]:
    usage = message.usage
    return {
        "id": message.id,
        "type": "message",
        "role": "assistant",
        "model": message.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": output,
            "service_tier": "standard",
        },
    }


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _dump({"type": name, **data}))


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
