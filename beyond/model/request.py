"""A request to a model, and one view of its messages for all APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from beyond.model.blocks import Sent, ToolUse

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_CWD = re.compile(r"(?:[Ww]orking directory(?: is)?:?\s*`?|<cwd>)(/[^\s`\"<]+)")


@dataclass(frozen=True, slots=True)
class Result:
    """A tool's result as it came back."""

    id: str
    text: str
    is_error: bool = False


@dataclass(slots=True)
class Turn:
    """One message: what is said, called and answered in it. `role` is system, user or assistant."""

    role: str
    texts: list[str] = field(default_factory=list)
    calls: list[ToolUse] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


@dataclass
class ModelRequest:
    """A request as it was received, with its answer once there is one."""

    number: int
    #: The id that the answer's head and an error's body name it by.
    id: str
    method: str
    #: The request target with its query; `path` is the part before it.
    target: str
    #: Names and values in their order, as they came.
    headers: list[tuple[str, str]]
    body: bytes
    #: anthropic, chat, responses, count_tokens, models, hello or unknown.
    api: str
    #: The body as JSON; None where it is empty or no JSON.
    json: Any = None
    #: Why the API refuses it; None for a valid one.
    problem: str | None = None
    sent: Sent | None = None
    #: What a Responses request goes on from (its `previous_response_id`).
    before: list[Any] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The target without its query."""
        return urlsplit(self.target).path

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever the case of its name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def data(self) -> Mapping[str, Any]:
        """The JSON where it is an object, else an empty one."""
        return self.json if isinstance(self.json, dict) else {}

    @property
    def stream(self) -> bool:
        """Whether a stream is asked for."""
        return self.data.get("stream") is True

    @property
    def model(self) -> str:
        """The model that is asked for."""
        return str(self.data.get("model") or "")

    @cached_property
    def tools(self) -> dict[str, Mapping[str, Any]]:
        """The JSON schema of each tool's input, by name, in their order."""
        found: dict[str, Mapping[str, Any]] = {}
        for tool in _items(self.data.get("tools")):
            function = tool.get("function")
            spec: Mapping[str, Any] = function if isinstance(function, dict) else tool
            name = spec.get("name") or spec.get("type")
            schema = spec.get("input_schema") or spec.get("parameters")
            if isinstance(name, str):
                found[name] = schema if isinstance(schema, dict) else {}
        return found

    @cached_property
    def turns(self) -> list[Turn]:
        """The messages. What an API splits over several items of the assistant is one turn."""
        if self.api in ("anthropic", "count_tokens"):
            found = _anthropic(self.data)
        elif self.api == "chat":
            found = _chat(self.data)
        else:
            found = _responses(self.data, self.before)
        merged: list[Turn] = []
        for turn in found:
            if merged and turn.role == merged[-1].role == "assistant":
                merged[-1].texts += turn.texts
                merged[-1].calls += turn.calls
            else:
                merged.append(turn)
        return merged

    @cached_property
    def _prompt(self) -> tuple[int, str]:
        for index in range(len(self.turns) - 1, -1, -1):
            text = said(self.turns[index])
            if text:
                return index, text
        return -1, ""

    @property
    def prompt(self) -> str:
        """The last thing that the user said; reminders that a CLI puts into messages are left out."""
        return self._prompt[1]

    @property
    def prompts(self) -> list[str]:
        """Everything that the user said, oldest first."""
        return [text for text in map(said, self.turns) if text]

    @property
    def step(self) -> int:
        """How often the model has answered since the prompt: 0 for the first request after it."""
        return sum(turn.role == "assistant" for turn in self.turns[self._prompt[0] + 1 :])

    @property
    def results(self) -> list[Result]:
        """Every tool result in the request."""
        return [result for turn in self.turns for result in turn.results]

    @property
    def texts(self) -> Iterator[str]:
        """Every text of the messages, calls' inputs and results included; instructions are not."""
        for turn in self.turns:
            if turn.role == "system":
                continue
            yield from turn.texts
            for call in turn.calls:
                yield json.dumps(call.input, ensure_ascii=False)
            for result in turn.results:
                yield result.text

    @property
    def instructions(self) -> str:
        """The system prompt, and messages of that role."""
        return "\n".join(text for turn in self.turns if turn.role == "system" for text in turn.texts)

    @property
    def cwd(self) -> str | None:
        """The working directory that the agent is told of, if any."""
        for turn in self.turns:
            for text in turn.texts:
                found = _CWD.search(text)
                if found:
                    return found[1].rstrip(".,;")
        return None


def said(turn: Turn) -> str:
    """What of a turn is the user's own text."""
    if turn.role != "user":
        return ""
    return "\n".join(text for text in (_REMINDER.sub("", text).strip() for text in turn.texts) if text)


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def plain(content: Any) -> str:
    """The text of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "\n".join(item["text"] for item in _items(content) if isinstance(item.get("text"), str))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    return [item["text"] for item in _items(content) if isinstance(item.get("text"), str)]


def _anthropic(data: Mapping[str, Any]) -> Iterator[Turn]:
    if data.get("system"):
        yield Turn("system", _texts(data["system"]))
    for message in _items(data.get("messages")):
        turn = Turn(str(message.get("role")), _texts(message.get("content")))
        for block in _items(message.get("content")):
            if block.get("type") == "tool_use":
                given = block.get("input")
                turn.calls.append(ToolUse(str(block.get("name")), given if isinstance(given, dict) else {}, str(block.get("id"))))
            elif block.get("type") == "tool_result":
                result = plain(block.get("content"))
                turn.results.append(Result(str(block.get("tool_use_id")), result, block.get("is_error") is True))
        yield turn


def _chat(data: Mapping[str, Any]) -> Iterator[Turn]:
    for message in _items(data.get("messages")):
        role = str(message.get("role"))
        if role == "tool":
            result = Result(str(message.get("tool_call_id")), plain(message.get("content")))
            yield Turn("tool", results=[result])
            continue
        turn = Turn("system" if role == "developer" else role, _texts(message.get("content")))
        for call in _items(message.get("tool_calls")):
            function = call.get("function")
            if isinstance(function, dict):
                turn.calls.append(ToolUse(str(function.get("name")), _parsed(function), str(call.get("id"))))
        yield turn


def _responses(data: Mapping[str, Any], before: list[Any]) -> Iterator[Turn]:
    if isinstance(data.get("instructions"), str):
        yield Turn("system", [data["instructions"]])
    for item in response_items(data, before):
        kind = item.get("type", "message")
        if kind == "message":
            role = str(item.get("role"))
            yield Turn("system" if role == "developer" else role, _texts(item.get("content")))
        elif kind == "function_call":
            yield Turn("assistant", calls=[ToolUse(str(item.get("name")), _parsed(item), str(item.get("call_id")))])
        elif kind == "function_call_output":
            yield Turn("tool", results=[Result(str(item.get("call_id")), plain(item.get("output")))])


def response_items(data: Mapping[str, Any], before: list[Any]) -> list[dict[str, Any]]:
    """The items of a Responses request, with those that it goes on from."""
    given = data.get("input")
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": given}]
    return _items([*before, *_items(given)])


def _parsed(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(str(function.get("arguments") or "{}"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
