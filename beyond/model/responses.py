"""Answers in the form of OpenAI's Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from beyond.model.blocks import Block, Message, Text, Thinking, pieces

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "previous_response_id",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)


def whole(message: Message) -> bytes:
    """The response in one piece."""
    status = _status(message)
    return _dump(_response(message, status, items(message), usage=True))


def items(message: Message) -> list[dict[str, Any]]:
    """The output items of the answer, as a later request may repeat them."""
    return [_item(message, index, block) for index, block in enumerate(message.blocks)]


def stream(message: Message) -> list[bytes]:
    """The response as events."""
    return [
        b"event: %s\ndata: %s\n\n" % (name.encode(), _dump({"type": name, "sequence_number": number, **data}))
        for number, (name, data) in enumerate(_events(message))
    ]


def _events(message: Message) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("response.created", "response.in_progress"):
        yield name, {"response": _response(message, "in_progress", [], usage=False)}
    for index, block in enumerate(message.blocks):
        item = _item(message, index, block)
        at = {"item_id": item["id"], "output_index": index}
        empty = {**item, "status": "in_progress"}
        if isinstance(block, Text):
            part = item["content"][0]
            inside = {**at, "content_index": 0}
            yield "response.output_item.added", {"output_index": index, "item": {**empty, "content": []}}
            yield "response.content_part.added", {**inside, "part": {**part, "text": ""}}
            for delta in pieces(block.text, message.delta):
                yield "response.output_text.delta", {**inside, "delta": delta, "logprobs": []}
            yield "response.output_text.done", {**inside, "text": block.text, "logprobs": []}
            yield "response.content_part.done", {**inside, "part": part}
        elif isinstance(block, Thinking):
            part = item["summary"][0]
            inside = {**at, "summary_index": 0}
            yield "response.output_item.added", {"output_index": index, "item": {**empty, "summary": []}}
            yield "response.reasoning_summary_part.added", {**inside, "part": {**part, "text": ""}}
            for delta in pieces(block.text, message.delta):
                yield "response.reasoning_summary_text.delta", {**inside, "delta": delta}
            yield "response.reasoning_summary_text.done", {**inside, "text": block.text}
            yield "response.reasoning_summary_part.done", {**inside, "part": part}
        else:
            yield "response.output_item.added", {"output_index": index, "item": {**empty, "arguments": ""}}
            for delta in pieces(item["arguments"], message.delta):
                yield "response.function_call_arguments.delta", {**at, "delta": delta}
            yield "response.function_call_arguments.done", {**at, "name": block.name, "arguments": item["arguments"]}
        yield "response.output_item.done", {"output_index": index, "item": item}
    if message.stream_error is not None:
        failed = _response(message, "failed", items(message), usage=False)
        failed["error"] = {"code": "server_error", "message": message.stream_error}
        yield "response.failed", {"response": failed}
        return
    status = _status(message)
    yield f"response.{status}", {"response": _response(message, status, items(message), usage=True)}


def _status(message: Message) -> str:
    return "incomplete" if message.stop in ("max_tokens", "refusal") else "completed"


def _item(message: Message, index: int, block: Block) -> dict[str, Any]:
    name = f"{message.id.removeprefix('resp_')}{index:02d}"
    if isinstance(block, Text):
        part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        return {"type": "message", "id": f"msg_{name}", "status": "completed", "role": "assistant", "content": [part]}
    if isinstance(block, Thinking):
        return {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": block.text}]}
    arguments = json.dumps(dict(block.input), ensure_ascii=False)
    head = {"type": "function_call", "id": f"fc_{name}", "status": "completed"}
    return {**head, "call_id": block.id, "name": block.name, "arguments": arguments}


def _response(message: Message, status: str, output: list[dict[str, Any]], *, usage: bool) -> dict[str, Any]:
    asked = message.asked
    reason = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}.get(message.stop)
    counts = message.usage
    total = counts.input + counts.cache_read + counts.cache_write
    return {
        "id": message.id,
        "object": "response",
        "created_at": message.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "model": message.model,
        "output": output,
        "parallel_tool_calls": True,
        **{name: asked.get(name) for name in _ECHOED},
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": asked.get("tools") or [],
        "usage": {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": counts.cache_read},
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total + counts.output,
        }
        if usage
        else None,
    }


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
