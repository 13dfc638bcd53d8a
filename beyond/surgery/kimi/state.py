"""What stands beside a wire: the folder's name, `state.json`, the index line; and how the CLI is started."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Final

from beyond.surgery.base import ForkPlan, Launch
from beyond.surgery.raw import dump

#: The ids that the CLI makes; other names it takes for files of another kind, or doesn't list.
SESSION_ID: Final = re.compile(r"session_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Set by an agent CLI for what it starts: a CLI started from inside of one must not take them for its own.
_NESTING = (
    "KIMI_SESSION_ID",
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
)
#: Characters of the newest prompt in the state, and of a title, as in the CLI.
_PROMPT, _TITLE = 4000, 200


def workspace_of(root: str) -> str:
    """The CLI's name for a directory: also that of the folder which holds its conversations."""
    path = os.path.normpath(root)
    slug = re.sub(r"[^a-z0-9._-]+", "-", PurePath(path).name.lower()).strip("-")[:40].strip("-")
    if slug in ("", ".", ".."):
        slug = "workspace"
    return f"wd_{slug}_{hashlib.sha256(path.encode()).hexdigest()[:12]}"


def folder_of(root: str, conversation: str) -> str:
    """A conversation's folder below the store."""
    return f"sessions/{workspace_of(root)}/{conversation}"


def agent_of(path: str) -> str | None:
    """The agent whose wire lies at `path`, as far as the path says it."""
    parts = PurePath(path).parts
    return parts[-2] if len(parts) >= 3 and parts[-1] == "wire.jsonl" and parts[-3] == "agents" else None


def modern(version: str) -> bool:
    """Whether a version writes protocol 1.5."""
    match = re.match(r"\d+", version)
    return match is not None and int(match[0]) >= 1


def state_of(plan: ForkPlan, protocol: str, conversation: str, place: str, subagents: Sequence[str], prompt: str | None) -> bytes:
    """`state.json` in the form of the version that will resume; made anew, for the old one knows the future."""
    new = modern(plan.target_version) if plan.target_version is not None else protocol >= "1.5"
    root = plan.new_root if "state-cwd" not in plan.without else plan.old_root or plan.new_root
    title = " ".join(plan.title.split())[:_TITLE] or "fork"
    agents: dict[str, Any] = {}
    for name in ("main", *subagents):
        entry: dict[str, Any] = {"homedir": f"{place}/agents/{name}", "type": "main" if name == "main" else "sub"}
        if name != "main":
            entry["parentAgentId"] = "main"
        elif not new:
            entry["parentAgentId"] = None
        if new and name != "main":
            entry["labels"] = {"parentAgentId": "main"}
        agents[name] = entry
    if new:
        return dump(
            {
                "id": conversation, "version": 2, "cwd": root, "archived": False, "agents": agents, "custom": {},
                "createdAt": plan.now_ms, "updatedAt": plan.now_ms, "title": title, "titleKind": "custom",
                "isCustomTitle": True,
            }
        )  # fmt: skip
    when = datetime.fromtimestamp(plan.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    state: dict[str, Any] = {
        "createdAt": when, "updatedAt": when, "title": title, "isCustomTitle": True, "agents": agents, "custom": {},
        "workDir": root,
    }  # fmt: skip
    if prompt is not None:
        state["lastPrompt"] = " ".join(prompt.split())[:_PROMPT]
    return json.dumps(state, indent=2, ensure_ascii=True).encode()


def index_line(conversation: str, place: str, root: str) -> bytes:
    """The line by which 0.28 and 0.29 find a conversation."""
    return dump({"sessionId": conversation, "sessionDir": place, "workDir": root}) + b"\n"


def launch_of(plan: ForkPlan, conversation: str | None, prompt: str | None = None) -> Launch:
    """The command that resumes a conversation, or begins one where there is none."""
    argv = ["kimi"]
    if prompt is not None:
        argv += ["-p", prompt]
    if conversation is not None:
        argv += ["-S", conversation]
    default = Path.home() / ".kimi-code"
    env = {} if plan.store == default else {"KIMI_CODE_HOME": str(plan.store)}
    return Launch(tuple(argv), plan.new_root, env, _NESTING if env else (*_NESTING, "KIMI_CODE_HOME"))
