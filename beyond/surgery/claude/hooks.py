"""Claude Code's hooks: commands in ``settings.json`` of its store, run in step with each tool call. It reads them when it
starts. Each is given a JSON object with ``hook_event_name``, ``session_id`` and ``tool_use_id`` on stdin."""

from __future__ import annotations

import json
from typing import Any, Final

#: The file, below the store.
HOOKS_FILE: Final = "settings.json"
#: Which hooks, and whether they come before the call or after it.
MOMENTS: Final = {"PreToolUse": "before", "PostToolUse": "after", "PostToolUseFailure": "after"}


def add_hooks(text: bytes | None, command: str) -> bytes:
    """The file with our hooks. Raises ValueError where it is no JSON object: then it is left alone."""
    settings = json.loads(text) if text and text.strip() else {}
    if not isinstance(settings, dict) or not isinstance(settings.setdefault("hooks", {}), dict):
        raise ValueError("it is not as Claude Code keeps it")
    for event in MOMENTS:
        settings["hooks"].setdefault(event, []).append(
            {"matcher": "*", "hooks": [{"type": "command", "command": command, "timeout": 60}]}
        )
    return json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n"


def remove_hooks(text: bytes, mark: str) -> bytes:
    """The file without the hooks whose command holds `mark`; everything else as it is."""
    settings = json.loads(text)
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return text
    for event in list(hooks):
        if not isinstance(hooks[event], list):
            continue
        kept = []
        for entry in hooks[event]:
            if isinstance(entry, dict) and isinstance(entry.get("hooks"), list):
                mine = [hook for hook in entry["hooks"] if mark in str(_command(hook))]
                if mine and len(mine) == len(entry["hooks"]):
                    continue
                entry["hooks"] = [hook for hook in entry["hooks"] if hook not in mine]
            kept.append(entry)
        hooks[event] = kept
        if not kept:
            del hooks[event]
    if not hooks:
        del settings["hooks"]
    return json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n" if settings else b""


def _command(hook: Any) -> Any:
    return hook.get("command", "") if isinstance(hook, dict) else ""


def read_hook(given: dict[str, Any]) -> tuple[str, str, str] | None:
    """(before or after, id of the call, conversation) of what a hook was given."""
    moment = MOMENTS.get(str(given.get("hook_event_name")))
    call, conversation = given.get("tool_use_id"), given.get("session_id")
    if moment is None or not isinstance(call, str) or not isinstance(conversation, str):
        return None
    return moment, call, conversation
