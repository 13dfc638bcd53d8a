"""What the real APIs refuse. Each check returns the refusal, or None."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from beyond.model.blocks import signed
from beyond.model.request import ModelRequest, response_items

_TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal: the message as the API words it."""

    message: str
    status: int = 400
    error_type: str = "invalid_request_error"
    code: str | None = None


class _Refused(Exception):
    def __init__(self, message: str, status: int = 400, error_type: str = "invalid_request_error", code: str | None = None):
        super().__init__(message)
        self.problem = Problem(message, status, error_type, code)


def check(request: ModelRequest) -> Problem | None:
    """Whether the API would refuse a request, and how."""
    try:
        if request.api in ("anthropic", "count_tokens"):
            _anthropic(request)
        elif request.api == "chat":
            _bearer(request)
            _chat(_object(request))
        elif request.api == "responses":
            _bearer(request)
            _responses(request)
    except _Refused as refused:
        return refused.problem
    return None


def _object(request: ModelRequest) -> Mapping[str, Any]:
    if not isinstance(request.json, dict):
        raise _Refused("The request body is not valid JSON: an object is expected")
    if not isinstance(request.json.get("model"), str) or not request.json["model"]:
        raise _Refused("model: Field required")
    return request.json


def _bearer(request: ModelRequest) -> None:
    if not (request.header("authorization") or "").startswith("Bearer "):
        raise _Refused("You didn't provide an API key.", 401, "invalid_request_error", "invalid_api_key")


def _unique(names: Iterable[Any], message: str) -> None:
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            raise _Refused(message)
        seen.add(name)


# --- Anthropic Messages ---------------------------------------------------------------------------------------------


def _anthropic(request: ModelRequest) -> None:
    if not request.header("x-api-key") and not request.header("authorization"):
        raise _Refused("x-api-key header is required", 401, "authentication_error")
    if not request.header("anthropic-version"):
        raise _Refused("anthropic-version: header is required")
    data = _object(request)
    limit = data.get("max_tokens")
    if request.api == "anthropic":
        if limit is None:
            raise _Refused("max_tokens: Field required")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise _Refused("max_tokens: Input should be greater than or equal to 1")
    thinking = data.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            raise _Refused("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if isinstance(limit, int) and budget >= limit:
            raise _Refused("`max_tokens` must be greater than `thinking.budget_tokens`")
    tools = [tool for tool in data.get("tools") or [] if isinstance(tool, dict)]
    _unique([tool.get("name") for tool in tools], "tools: Tool names must be unique.")
    marks = _count_marks([data.get("system"), tools, data.get("messages")])
    if marks > 4:
        raise _Refused(f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Refused("messages: at least one message is required")
    _anthropic_messages(messages)


def _count_marks(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_marks, value))
    if isinstance(value, dict):
        return (value.get("cache_control") is not None) + _count_marks(value.get("content"))
    return 0


def _anthropic_messages(messages: list[Any]) -> None:
    previous: str | None = None
    open_calls: list[str] = []
    ids: list[str] = []
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise _Refused(f"messages.{i}.role: Input should be 'user', 'assistant' or 'system'")
        # Claude Code 2.1.332 sends settings between messages as a system message without content (seen after /compact).
        settings = role == "system" and "output_config" in message
        blocks = _blocks(message.get("content"), i, last=settings or (i == len(messages) - 1 and role == "assistant"))
        if role == "system":
            continue
        if previous is None and role != "user":
            raise _Refused('messages: first message must use the "user" role')
        # Messages of one role after another count as one message.
        if role == "assistant":
            if previous == "user" and open_calls:
                raise _Refused(_unanswered(i - 1, open_calls))
            calls = _anthropic_calls(blocks, i)
            open_calls = open_calls + calls if previous == "assistant" else calls
            ids += calls
        else:
            open_calls = _answer(blocks, i, open_calls)
        previous = role
    if previous == "assistant":
        raise _Refused("This model does not support assistant message prefill. The conversation must end with a user message.")
    if open_calls:
        raise _Refused(_unanswered(len(messages) - 1, open_calls))
    _unique(ids, "messages: `tool_use` ids must be unique")


def _unanswered(i: int, calls: list[str]) -> str:
    return (
        f"messages.{i}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(calls)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _blocks(content: Any, i: int, *, last: bool) -> list[dict[str, Any]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise _Refused(f"messages.{i}.content: Input should be a valid list")
    if not content and not last:
        raise _Refused(f"messages.{i}: all messages must have non-empty content except for the optional final assistant message")
    for j, block in enumerate(content):
        if block.get("type") == "text":
            text = block.get("text")
            if not isinstance(text, str):
                raise _Refused(f"messages.{i}.content.{j}.text.text: Field required")
            if not text:
                raise _Refused("messages: text content blocks must be non-empty")
            if not text.strip():
                raise _Refused("messages: text content blocks must contain non-whitespace text")
    return content


def _anthropic_calls(blocks: list[dict[str, Any]], i: int) -> list[str]:
    calls = []
    for j, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_use":
            if not isinstance(block.get("id"), str) or not _TOOL_ID.fullmatch(block["id"]):
                raise _Refused(f"messages.{i}.content.{j}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
            if not isinstance(block.get("name"), str) or not _TOOL_NAME.fullmatch(block["name"]):
                raise _Refused(f"messages.{i}.content.{j}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
            if not isinstance(block.get("input"), dict):
                raise _Refused(f"messages.{i}.content.{j}.tool_use.input: Input should be a valid dictionary")
            calls.append(block["id"])
        elif kind == "tool_result":
            raise _Refused(f"messages.{i}: `tool_result` blocks can only be in `user` messages")
        elif kind == "thinking":
            if not isinstance(block.get("signature"), str) or not isinstance(block.get("thinking"), str):
                raise _Refused(f"messages.{i}.content.{j}.thinking.signature: Field required")
            if not signed(block["thinking"], block["signature"]):
                raise _Refused(f"messages.{i}.content.{j}: Invalid `signature` in `thinking` block")
    return calls


def _answer(blocks: list[dict[str, Any]], i: int, open_calls: list[str]) -> list[str]:
    """The calls that are still open after a user message."""
    left = list(open_calls)
    answered: set[str] = set()
    spoken = False
    for j, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_use":
            raise _Refused(f"messages.{i}: `tool_use` blocks can only be in `assistant` messages")
        if kind != "tool_result":
            spoken = True
            continue
        name = block.get("tool_use_id")
        if name in answered:
            raise _Refused(
                f"messages.{i}.content.{j}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {name}"
            )
        if name not in left:
            raise _Refused(
                f"messages.{i}.content.{j}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if spoken:  # results have to come before everything else in the message
            raise _Refused(_unanswered(i - 1, left))
        left.remove(name)
        answered.add(name)
    if spoken and left:
        raise _Refused(_unanswered(i - 1, left))
    return left


# --- OpenAI ---------------------------------------------------------------------------------------------------------


def _chat(data: Mapping[str, Any]) -> None:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Refused("Invalid 'messages': empty array. Expected an array with minimum length 1.")
    waiting: list[str] = []
    for i, message in enumerate(messages):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise _Refused(f"Invalid value: {role!r}. Supported values are: 'system', 'assistant', 'user', 'tool'.")
        if role == "tool":
            name = message.get("tool_call_id")
            if name not in waiting:
                raise _Refused("messages with role 'tool' must be a response to a preceding message with 'tool_calls'.")
            waiting.remove(name)
            continue
        if waiting:
            raise _Refused(_no_response(waiting))
        calls = message.get("tool_calls") or []
        if role == "assistant":
            waiting = [str(call.get("id")) for call in calls]
            _unique(waiting, f"Duplicate value for 'tool_call_id' in messages[{i}].")
            for call in calls:
                if not isinstance(call.get("function"), dict) or not isinstance(call["function"].get("arguments"), str):
                    raise _Refused(f"Missing required parameter: 'messages[{i}].tool_calls[0].function.arguments'.")
        if message.get("content") in (None, "", []) and not calls:
            raise _Refused(f"Invalid request: the message at position {i} with role '{role}' must not be empty")
    if waiting:
        raise _Refused(_no_response(waiting))


def _no_response(calls: list[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(calls)}"
    )


def _responses(request: ModelRequest) -> None:
    data = _object(request)
    items = response_items(data, request.before)
    if not items:
        raise _Refused("Missing required parameter: 'input'.", code="missing_required_parameter")
    calls: list[str] = []
    answered: set[str] = set()
    for i, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                raise _Refused(f"Invalid value: {item.get('role')!r}. Supported values are: 'assistant', 'system', 'user'.")
            if not item.get("content"):
                raise _Refused(f"Missing required parameter: 'input[{i}].content'.")
        elif kind == "function_call":
            calls.append(str(item.get("call_id")))
        elif kind == "function_call_output":
            name = str(item.get("call_id"))
            if name not in calls:
                raise _Refused(f"No tool call found for function call output with call_id {name}.")
            answered.add(name)
    _unique(calls, "Duplicate function call ids in 'input'.")
    for name in calls:
        if name not in answered:
            raise _Refused(f"No tool output found for function call {name}.")
