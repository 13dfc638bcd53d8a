"""A coding agent in one file, for demos where no agent CLI is installed.

It speaks Anthropic Messages to ANTHROPIC_BASE_URL, has three tools, and keeps its conversations as Claude Code 2.1 does:
a tree of JSON lines under CLAUDE_CONFIG_DIR. `claude -p PROMPT [--resume ID]`. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VERSION = "2.1.332"
TOOLS = [
    {
        "name": name,
        "description": what,
        "input_schema": {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys},
    }
    for name, what, keys in (
        ("Write", "Write a file.", ["file_path", "content"]),
        ("Read", "Read a file.", ["file_path"]),
        ("Bash", "Run a command.", ["command"]),
    )
]


class Conversation:
    """A transcript, read from its newest line back to its root, and appended to."""

    def __init__(self, cwd: str, resume: str | None) -> None:
        self.cwd, self.id = cwd, resume or str(uuid.uuid4())
        home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        folder = home / "projects" / re.sub(r"[^A-Za-z0-9]", "-", cwd)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{self.id}.jsonl"
        self.leaf: str | None = None
        self.messages: list[dict[str, Any]] = []
        if resume:
            if not self.path.exists():
                sys.exit(f"No conversation found with session ID: {resume}")
            self._load([json.loads(line) for line in self.path.read_text().splitlines()])

    def _load(self, lines: list[dict[str, Any]]) -> None:
        tree = {line["uuid"]: line for line in lines if line.get("uuid")}
        self.leaf = next((line["uuid"] for line in reversed(lines) if line.get("uuid")), None)
        branch, at = [], self.leaf
        while at in tree:
            branch.append(tree[at])
            at = tree[at].get("parentUuid")
        results = [line for line in tree.values() if self._answers(line)]
        for line in reversed(branch):
            if line["type"] in ("user", "assistant") and not self._answers(line):
                self._say(line["type"], line["message"]["content"], line["message"].get("id"))
                calls = {block["id"] for block in self._blocks(line) if block.get("type") == "tool_use"}
                for result in results:  # those of parallel calls stand on branches of their own
                    if any(block.get("tool_use_id") in calls for block in self._blocks(result)):
                        self._say("user", result["message"]["content"], "results")

    @staticmethod
    def _blocks(line: dict[str, Any]) -> list[dict[str, Any]]:
        content = line.get("message", {}).get("content")
        return content if isinstance(content, list) else []

    def _answers(self, line: dict[str, Any]) -> bool:
        return any(block.get("type") == "tool_result" for block in self._blocks(line))

    def _say(self, role: str, content: Any, key: str | None) -> None:
        """Adds to the messages. Lines of one API message are one message; results come after all its calls."""
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        last = self.messages[-1] if self.messages else None
        if role == "assistant" and len(self.messages) > 1 and self.messages[-2].get("key") == key is not None:
            self.messages[-2]["content"] += blocks
        elif last is not None and last["role"] == role and last["key"] == key is not None:
            last["content"] += blocks
        else:
            self.messages.append({"role": role, "content": list(blocks), "key": key})

    def write(self, role: str, content: Any, message: dict[str, Any] | None = None, parent: str | None = None) -> str:
        """Appends a line and says it."""
        line = {
            "parentUuid": parent or self.leaf, "isSidechain": False, "type": role, "uuid": str(uuid.uuid4()),
            "message": {**(message or {}), "role": role, "content": content},
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"), "cwd": self.cwd,
            "sessionId": self.id, "version": VERSION, "userType": "external", "entrypoint": "cli", "gitBranch": "",
        }  # fmt: skip
        with open(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a") as file:
            file.write(json.dumps(line) + "\n")
        leaf = self.leaf = str(line["uuid"])
        key = (message or {}).get("id") or ("results" if isinstance(content, list) else None)
        self._say(role, content, key)
        return leaf


def ask(conversation: Conversation) -> dict[str, Any]:
    """One request to the model."""
    body = {
        "model": "scripted-model", "max_tokens": 4096, "tools": TOOLS, "system": f"Working directory: {conversation.cwd}",
        "messages": [{"role": m["role"], "content": m["content"]} for m in conversation.messages],
    }  # fmt: skip
    heads = {"x-api-key": "made-up", "anthropic-version": "2023-06-01", "content-type": "application/json"}
    server = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
    connection = http.client.HTTPConnection(server.hostname or "127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/messages", json.dumps(body).encode(), heads)
    answer = connection.getresponse()
    data: dict[str, Any] = json.loads(answer.read())
    connection.close()
    if answer.status != 200:
        sys.exit(f"API error {answer.status}: {data}")
    return data


def use(tool: str, given: dict[str, Any], cwd: str) -> str:
    """Runs a tool."""
    if tool == "Bash":
        done = subprocess.run(["sh", "-c", given["command"]], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        return str(done.stdout) + str(done.stderr)
    path = Path(cwd) / given["file_path"]
    if tool == "Read":
        return str(path.read_text())
    path.write_text(given["content"])
    return f"File written: {path}"


def main(words: list[str]) -> None:
    if "--version" in words:
        print(f"{VERSION} (the demo's own agent, which keeps its conversations as Claude Code does)")
        return
    resume = words[words.index("--resume") + 1] if "--resume" in words else None
    conversation = Conversation(os.path.realpath(Path.cwd()), resume)
    conversation.write("user", words[words.index("-p") + 1])
    while True:
        answer = ask(conversation)
        message = {key: answer[key] for key in ("id", "model", "usage", "stop_reason")}
        calls = []
        for block in answer["content"]:
            at = conversation.write("assistant", [block], message)
            if block["type"] == "tool_use":
                calls.append((block, at))
        if not calls:
            print("".join(block.get("text", "") for block in answer["content"]))
            return
        for block, at in calls:
            result = {"type": "tool_result", "tool_use_id": block["id"]}
            try:
                result["content"] = use(block["name"], block["input"], conversation.cwd)
            except (OSError, KeyError, subprocess.TimeoutExpired) as error:
                result |= {"content": str(error), "is_error": True}
            conversation.write("user", [result], parent=at)


if __name__ == "__main__":
    main(sys.argv[1:])
