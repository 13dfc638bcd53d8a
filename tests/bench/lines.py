"""Single transcript lines, shaped like those of Claude Code 2.1.218 and 2.1.332."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from random import Random
from typing import Any, BinaryIO

OLD, NEW = "2.1.218", "2.1.332"
MODELS = {OLD: ("claude-opus-4-8", "high"), NEW: ("claude-opus-5-5", "medium")}
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
Json = dict[str, Any]
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def uuid4(rng: Random) -> str:
    h = f"{rng.getrandbits(128):032x}"
    return f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}"


def token(rng: Random, prefix: str, count: int) -> str:
    return prefix + "".join(rng.choices(_ALPHABET, k=count))


def signature(rng: Random) -> str:
    return base64.b64encode(rng.randbytes(rng.randint(200, 900))).decode()


def instant(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


def usage(version: str, fresh: int, created: int, read: int, out: int) -> Json:
    new = version == NEW
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "output_tokens": out,
        **({"output_tokens_details": {"thinking_tokens": 0}} if new else {}),
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "cache_creation": {
            "ephemeral_1h_input_tokens": 0,
            "ephemeral_5m_input_tokens": created,
        },
        "inference_geo": "",
        "iterations": [],
        "speed": "standard",
        **({"fallback_credit": None} if new else {}),
    }


class Writer:
    """Writes the lines of one file and keeps the chain of its tree."""

    def __init__(
        self,
        out: BinaryIO,
        rng: Random,
        *,
        session: str,
        version: str,
        cwd: str,
        interactive: bool,
        now: int,
        agent: str | None = None,
    ) -> None:
        self.out = out
        self.rng = rng
        self.session = session
        self.version = version
        self.new = version == NEW
        self.model, self.effort = MODELS[version]
        self.cwd = cwd
        self.interactive = interactive
        self.now = now
        self.agent = agent
        self.parent: str | None = None
        self.slug: str | None = None
        self.prompt_id = ""
        self.size = 0

    def raw(self, data: bytes) -> None:
        self.out.write(data)
        self.size += len(data)

    def put(self, line: Json) -> None:
        self.raw(encode(line).encode() + b"\n")

    def tick(self, most: int = 4000) -> str:
        self.now += 1 + int(self.rng.random() * most)
        return instant(self.now)

    def side(self, kind: str, **fields: Any) -> None:
        """A line outside the tree, whose last field is the session's id."""
        self.put({"type": kind, **fields, "sessionId": self.session})

    def queue(self, operation: str, content: str | None = None) -> None:
        line: Json = {"type": "queue-operation", "operation": operation}
        line |= {"timestamp": self.tick(5), "sessionId": self.session}
        self.put(line if content is None else {**line, "content": content})

    def _head(self, parent: str | None, prompt: bool) -> Json:
        head: Json = {"parentUuid": parent, "isSidechain": self.agent is not None}
        if prompt:
            head["promptId"] = self.prompt_id
        if self.agent is not None:
            head["agentId"] = self.agent
        return head

    def _tail(self, with_id: bool) -> Json:
        tail: Json = {"session_id": self.session} if with_id else {}
        tail["userType"] = "external"
        tail["entrypoint"] = "cli" if self.interactive else "sdk-cli"
        tail["cwd"] = self.cwd
        tail["sessionId"] = self.session
        tail["version"] = self.version
        tail["gitBranch"] = "main"
        if self.slug is not None:
            tail["slug"] = self.slug
        return tail

    def _tree(
        self,
        head: Json,
        body: Mapping[str, Any],
        with_id: bool = False,
        identity: str | None = None,
    ) -> str:
        """`body` comes before uuid and time, what it has as "+" after them."""
        identity = identity or uuid4(self.rng)
        line = {**head, **body, "uuid": identity, "timestamp": self.tick()}
        if "+" in line:
            line.update(line.pop("+"))
        line.update(self._tail(with_id and self.interactive))
        self.put(line)
        self.parent = identity
        return identity

    def user(
        self,
        content: Any,
        before: Json | None = None,
        identity: str | None = None,
        **extra: Any,
    ) -> str:
        """A prompt, or another user line that is not a tool's result."""
        body: Json = {"type": "user", "message": {"role": "user", "content": content}}
        body |= {**(before or {}), "+": extra}
        return self._tree(self._head(self.parent, True), body, identity=identity)

    def prompt(self, text: str, index: int) -> str:
        if self.agent is not None:
            return self.user(text, {"rowSource": "recorded"} if self.new else None)
        extra: Json = {"permissionMode": "bypassPermissions"}
        if self.interactive:
            extra |= {"origin": {"kind": "human"}, "promptSource": "typed"}
        else:
            extra["promptSource"] = "sdk"
            if self.new:
                extra |= {"sentAtMs": self.now, "rowSource": "local"}
        if self.new:
            extra["turnOrigin"] = "human" if self.interactive else "sdk"
            extra["turnPosition"] = {"promptIndex": index, "turnIndex": 1}
        return self.user(text, **extra)

    def attachment(self, value: Json, rendered: str | None = None, late: bool = False, **more: Any) -> str:
        extra: Json = {}
        if self.new and rendered is not None:
            reminder = f"<system-reminder>\n{rendered}\n</system-reminder>"
            extra = {"rendered": [{"content": reminder}], "renderedRole": "system"}
            extra.update(more)
        body = {"attachment": value, "type": "attachment", "+": extra}
        return self._tree(self._head(self.parent, False), body, late)

    def system(self, subtype: str, **fields: Any) -> str:
        """`turn_duration`: the time comes before the uuid here."""
        line = {**self._head(self.parent, False), "type": "system", "subtype": subtype}
        identity = uuid4(self.rng)
        line |= {**fields, "timestamp": self.tick(20), "uuid": identity}
        line |= {"isMeta": False, **self._tail(False)}
        self.put(line)
        self.parent = identity
        return identity

    def boundary(self, metadata: Json) -> str:
        identity = uuid4(self.rng)
        line: Json = {"parentUuid": None, "logicalParentUuid": self.parent}
        line |= {"isSidechain": False, "type": "system", "subtype": "compact_boundary"}
        line |= {"content": "Conversation compacted", "isMeta": False}
        line |= {"timestamp": self.tick(), "uuid": identity, "level": "info"}
        line |= {"compactMetadata": metadata, **self._tail(False)}
        self.put(line)
        self.parent = identity
        return identity

    def assistant(
        self, block: Json, index: int, message: str, request: str, stop: str,
        spent: Json, reference: str,
    ) -> str:  # fmt: skip
        """One block of a message; id, request and usage repeat on each line."""
        body: Json = {
            "message": {
                "id": message,
                "type": "message",
                "role": "assistant",
                "model": self.model,
                "content": [block],
                "stop_reason": stop,
                "stop_sequence": None,
                "usage": spent,
                "stop_details": None,
            }
        }
        extra: Json = {"effort": self.effort}
        if self.new:
            if block["type"] == "thinking":
                shown = "updates" if self.interactive else "omitted"
                spent_ms = self.rng.randint(1, 9000)
                body |= {"thinkingDurationMs": spent_ms, "thinkingDisplay": shown}
            elif block["type"] == "tool_use":
                body["toolInputStreamMs"] = self.rng.randint(1, 3000)
            body["apiBlockIndex"] = index
            extra |= {"perTurnEffort": self.effort, "madeBy": "model"}
        body["requestId"] = request
        if self.new:
            body |= {"requestRef": reference, "requestedModel": self.model}
            body["promptCacheRequested"] = "5m"
        if self.agent is not None:
            body["attributionAgent"] = "general-purpose"
        body |= {"type": "assistant", "+": extra}
        return self._tree(self._head(self.parent, False), body, True)

    def api_error(self, text: str, status: int) -> str:
        new = self.new
        spent = usage(self.version, 0, 0, 0, 0)
        spent = {
            **({"output_tokens_details": None} if new else {}),
            "input_tokens": 0,
            "output_tokens": 0,
            **{k: v for k, v in spent.items() if k[:6] == "cache_" and k[-1] == "s"},
            "server_tool_use": spent["server_tool_use"],
            "service_tier": None,
            "cache_creation": spent["cache_creation"],
            **dict.fromkeys(("inference_geo", "iterations", "speed")),
            **({"fallback_credit": None} if new else {}),
        }
        line = {**self._head(self.parent, False), "type": "assistant"}
        identity = uuid4(self.rng)
        line |= {"uuid": identity, "timestamp": self.tick()}
        line["message"] = {
            **({"diagnostics": None} if new else {}),
            "id": uuid4(self.rng),
            "container": None,
            "model": "<synthetic>",
            "role": "assistant",
            "stop_details": None,
            "stop_reason": "stop_sequence",
            "stop_sequence": "",
            "type": "message",
            "usage": spent,
            "content": [{"type": "text", "text": text}],
            "context_management": None,
        }
        line |= {"requestId": token(self.rng, "req_011C", 20), "error": "unknown"}
        line |= {"isApiErrorMessage": True, "apiErrorStatus": status}
        if new:
            line |= {"apiErrorType": "api_error", "perTurnEffort": self.effort}
            line |= {"failedResponseHadNoToolCall": True, "madeBy": "model"}
        line |= self._tail(False)
        self.put(line)
        self.parent = identity
        return identity

    def result(self, call: str, tool_id: str, tool: str, content: Any, detail: Any, error: bool) -> str:
        """A tool's result: a user line whose parent is its own call's line."""
        shown: Json = {"tool_use_id": tool_id, "type": "tool_result", "content": content}
        if error:
            shown = {"type": "tool_result", "content": content, "is_error": True}
            shown["tool_use_id"] = tool_id
        elif tool == "Bash":
            shown["is_error"] = False
        extra: Json = {} if self.agent is not None else {"toolUseResult": detail}
        if self.new and tool == "Bash":
            extra["sandboxed"] = False
        extra["sourceToolAssistantUUID"] = call
        if self.new and not str(content).startswith("<tool_use_error>"):
            decision = {"decision": "accept", "source": "config", "reasonType": "mode"}
            extra["permissionDecision"] = decision
        body = {"type": "user", "message": {"role": "user", "content": [shown]}}
        return self._tree(self._head(call, True), {**body, "+": extra}, True)
