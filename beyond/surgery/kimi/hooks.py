"""Kimi Code's hooks: ``[[hooks]]`` in ``config.toml`` of its store, run in step with each tool call. It reads them when it
starts. Each is given a JSON object with ``hook_event_name``, ``session_id`` and ``tool_call_id`` on stdin."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

#: The file, below the store.
HOOKS_FILE: Final = "config.toml"
#: Which hooks, and whether they come before the call or after it.
MOMENTS: Final = {"PreToolUse": "before", "PostToolUse": "after", "PostToolUseFailure": "after"}
_BEGIN, _END = "# bnd hooks: begin", "# bnd hooks: end"


def add_hooks(text: bytes | None, command: str) -> bytes:
    """The file with our hooks behind everything else. Raises ValueError where that would not be TOML."""
    before = (text or b"").decode()
    tomllib.loads(before)
    block = [_BEGIN]
    for event in MOMENTS:
        block += ["[[hooks]]", f'event = "{event}"', f"command = {json.dumps(command)}", "timeout = 60"]
    joint = "" if not before or before.endswith("\n") else "\n"
    after = f"{before}{joint}" + "\n".join((*block, _END, ""))
    tomllib.loads(after)
    return after.encode()


def remove_hooks(text: bytes, mark: str) -> bytes:
    """The file without the blocks of ours that hold `mark`; everything else as it is."""
    pattern = re.compile(rf"^{re.escape(_BEGIN)}\n.*?^{re.escape(_END)}\n", re.MULTILINE | re.DOTALL)
    return pattern.sub(lambda found: "" if mark in found[0] else found[0], text.decode()).encode()


def read_hook(given: dict[str, Any]) -> tuple[str, str, str] | None:
    """(before or after, id of the call, conversation) of what a hook was given."""
    moment = MOMENTS.get(str(given.get("hook_event_name")))
    call, conversation = given.get("tool_call_id") or given.get("tool_use_id"), given.get("session_id")
    if moment is None or not isinstance(call, str) or not isinstance(conversation, str):
        return None
    return moment, call, conversation
