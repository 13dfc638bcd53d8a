"""Writes a fork as a conversation of Claude Code.

A transcript is a tree of lines; a fork keeps the lines of a step's causal past and hangs them together again. The raw
lines are read twice: once parsed, for the tree, and once as bytes, which stay as they are but for the fields that say
where the conversation lies and the old places in texts.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

from beyond.errors import Refused
from beyond.surgery.base import ForkPlan, Launch, Part, Written
from beyond.surgery.claude.beside import Beside
from beyond.surgery.claude.choose import choose
from beyond.surgery.claude.compose import Composer
from beyond.surgery.claude.hooks import HOOKS_FILE, add_hooks, read_hook, remove_hooks
from beyond.surgery.claude.lab import COMPACT, ask, listed, memory, scratch
from beyond.surgery.claude.places import Moves, folder_name
from beyond.surgery.claude.survey import Asked, survey
from beyond.text import one_line

#: Raised with each change of what is written.
VERSION: Final = 1
#: Rules that a mutation test can switch off, and what each prevents.
RULES: Final = {
    "ancestors-only": "lines after the cut, and on other branches, would be in the conversation",
    "side-results-cut": "results that came after the cut would be in it",
    "tree-types-only": "bookkeeping lines would be in it: whole later requests, prompts and titles",
    "drop-snapshots": "the CLI would take the old directory, date and git status for the present ones",
    "set-session": "the fork would go on under the id of the conversation that it comes from",
    "entrypoint": "the CLI's list would not show the fork",
    "rewrite-root": "paths would lead into the old directory, whose files are of the future; the CLI sends them",
    "rewrite-store": "a summary would name the old transcript, which holds the future",
    "copy-side-files-only-referenced": "outputs of later calls would lie beside the conversation",
    "complete-calls": "calls without a result: each version of the CLI makes up another",
    "move-off-boundary": "2.1.332 would send an invalid request after a compaction without its summary",
    "trim-parts": "blocks of a line after the cut would be in it",
    "thinking-untouched": "the API would refuse thinking that was edited: it is signed",
    "no-memory": "the memory folder, shared by all worktrees, would tell of the future",
}
#: Set by an agent CLI for what it starts: a CLI started from inside of one must not take them for its own.
_NESTING: Final = (
    "CLAUDECODE",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_SSE_PORT",
    "KIMI_SESSION_ID",
)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

__all__ = [
    "COMPACT",
    "HOOKS_FILE",
    "RULES",
    "VERSION",
    "add_hooks",
    "ask",
    "folder_name",
    "launch",
    "listed",
    "memory",
    "read_hook",
    "refuse",
    "remove_hooks",
    "scratch",
    "write",
]


def refuse(plan: ForkPlan) -> str | None:
    """Why this plan can't be written natively, or None."""
    if plan.cli != "claude":
        return f"a conversation of {plan.cli} is no transcript of Claude Code"
    for path in plan.old_paths:
        if "/subagents/" in path or path.rpartition("/")[2].startswith("agent-"):
            return "a cut inside of a subagent's conversation has no native form in Claude Code"
    return None


def write(plan: ForkPlan) -> Written:
    """Composes the conversation. Raises `Refused` where the result would not be whole."""
    reason = refuse(plan)
    if reason is not None:
        raise Refused(f"{reason}: use --method synthesis")
    _check(plan)
    moves = Moves(plan)
    asked = _asked(plan, moves)
    found = survey(plan.lines(), asked)
    if found.nameless:
        raise Refused(f"{found.nameless} lines up to the cut have no uuid: use --method synthesis")
    place = plan.cut
    choice = choose(found, (place[0], place[1]) if place is not None else None, plan.without)
    if not choice.parent:
        raise Refused("no line of the transcript holds the steps up to the cut: use --method synthesis")
    main = Composer(plan, moves, found, choice)
    beside = Beside(plan, moves, asked)
    beside.outputs(found, choice)
    for sub in plan.subagents:
        beside.subagent(sub)
    folder = f"projects/{folder_name(plan.new_root)}"
    files = beside.collect()
    title = one_line(plan.title, 200) or "fork"
    transcript = Part(f"{folder}/{main.session}.jsonl", {"": partial(main.stream, plan.lines, title)})
    return Written(
        conversation=main.session,
        parts=(Part(f"{folder}/{main.session}", files), transcript) if files else (transcript,),
        appends=(),
        main=transcript.path,
        launch=launch(plan),
        notes=(*choice.notes, *beside.notes),
    )


def _check(plan: ForkPlan) -> None:
    if not _UUID.fullmatch(plan.new_conversation):
        raise Refused(f"{plan.new_conversation!r} is no id of Claude Code: it has to be a UUID in lower case")
    if plan.new_conversation == plan.conversation:
        raise Refused("the fork has the id of the conversation that it comes from: give it one of its own")
    for path in (plan.new_root, str(plan.store)):
        if not path.startswith("/"):
            raise Refused(f"{path!r} is not an absolute path: name the directory in full")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Refused(f"{path!r} is no text that Claude Code could store: use a directory with a UTF-8 name") from None


def _asked(plan: ForkPlan, moves: Moves) -> Asked:
    root = (plan.old_root or "").rstrip("/")
    return Asked(
        conversation=plan.conversation,
        touches=moves.touches,
        inside=lambda path: bool(root) and (path.rstrip("/") == root or path.startswith(root + "/")),
    )


def launch(plan: ForkPlan, prompt: str | None = None) -> Launch:
    """How the fork is resumed interactively, or with `prompt` where one is given."""
    conversation = plan.new_conversation if "set-session" not in plan.without else plan.conversation
    argv = ["claude", *(["-p", prompt] if prompt is not None else []), "--resume", conversation]
    env: dict[str, Any] = {} if "no-memory" in plan.without else {"CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1"}
    unset: tuple[str, ...] = _NESTING
    if plan.store == Path.home() / ".claude":
        unset = (*unset, "CLAUDE_CONFIG_DIR")
    else:
        env["CLAUDE_CONFIG_DIR"] = str(plan.store)
    return Launch(tuple(argv), plan.new_root, env, unset)
