"""How Claude Code runs in a scratch home, headless, and what it needs to offer a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from beyond.surgery.base import Scratch
from beyond.surgery.claude.places import folder_name

#: The command that compacts a conversation.
COMPACT: Final = "/compact"


def scratch(home: Path, url: str) -> Scratch:
    """A set-up whose only API is at `url`."""
    env = {
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "sk-ant-made-up",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # else it refuses to bypass permissions as root
    }
    return Scratch(env)


def ask(prompt: str, resume: str | None = None) -> tuple[str, ...]:
    """One prompt, in a new conversation or an old one."""
    return ("claude", "-p", prompt, "--permission-mode", "bypassPermissions", *(("--resume", resume) if resume else ()))


def memory(store: Path, directory: str) -> str | None:
    """The folder of notes that all work trees of a repository share."""
    return str(store / "projects" / folder_name(directory) / "memory")


def listed(store: Path, conversation: str, directory: str) -> str | None:
    """The picker offers conversations of the directory's folder whose lines say that they were begun at a terminal."""
    path = store / "projects" / folder_name(directory) / f"{conversation}.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        return f"its file can't be read ({error})"
    tree = [line for line in lines if line.get("uuid")]
    if not tree:
        return "it holds no step"
    for line in tree:
        if line.get("entrypoint") != "cli":
            return f"a line's entrypoint is {line.get('entrypoint')!r}, which the picker leaves out"
        if line.get("sessionId") != conversation:
            return "a line names another conversation"
        if line.get("cwd") != directory:
            return "a line names another directory"
    if not any(line.get("type") == "custom-title" for line in lines):
        return "it has no title of its own"
    return None
