"""A handoff: the first prompt of a fresh conversation, composed from the kept steps alone.

For every conversation that can't be written natively, and for another agent CLI than the one that was recorded.
Same plan, same text. No raw line is read, so nothing can be in it that is not of the causal past.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from beyond.errors import Refused
from beyond.event import without_reminders
from beyond.surgery.base import ForkPlan, Launch, Step
from beyond.surgery.kimi.places import Moves
from beyond.text import one_line, visible

#: Characters of a handoff, unless told otherwise.
BUDGET: Final = 24_000
#: Least budget that is taken: the frame, and a word of each part.
LEAST: Final = 2_000
#: Bytes that one argument of a command may have on Linux (MAX_ARG_STRLEN is 131,072, with its end).
_ARGUMENT = 128_000
#: How the parts share what the frame leaves: prompts, summaries, files; the log has the rest.
_SHARES = (0.4, 0.15, 0.1)
#: An item that doesn't fit in full is cut to one of these.
_CUTS = (600, 200, 80)
#: Keys of a call's input that say best what it does, in this order.
_TELLING = ("command", "cmd", "pattern", "query", "url", "description", "prompt", "path", "file_path", "skill", "name")
_WRITES = re.compile(r"write|edit|patch|create|notebook|replace", re.IGNORECASE)
_SHELLS = frozenset(("Bash", "Shell", "bash", "shell", "exec_command", "run_shell_command"))
#: By CLI: the variable that names its store, and where that is without.
_STORES = {"claude": ("CLAUDE_CONFIG_DIR", ".claude"), "kimi": ("KIMI_CODE_HOME", ".kimi-code")}
#: Variables that an agent CLI sets for what it starts.
_NESTING = ("CLAUDECODE", "CLAUDE_CODE_CHILD_SESSION", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SESSION_ID", "KIMI_SESSION_ID")

_HEAD = """\
[Handoff: composed by `bnd fork` from the record of an earlier conversation, up to its step {step}]

You take over work that another agent session began. This text is all that is left of that session: it was composed \
from what happened up to that step and knows of nothing later. The working directory is {root}; its files are meant \
to be in the state of that step, so look at them before you rely on what is said here. Where items were shortened or \
left out, that is said.
"""
_TAIL = """\
Don't start over, and do nothing yet: say in one or two sentences where the work stands, then wait for the next \
instruction."""


@dataclass(slots=True)
class _Told:
    """What the steps tell, each text already cut to what can ever be shown."""

    prompts: list[str] = field(default_factory=list)
    summaries: list[str] = field(default_factory=list)
    log: list[tuple[int | None, str]] = field(default_factory=list)
    #: Paths written to, the newest last.
    files: dict[str, None] = field(default_factory=dict)
    #: Where in the log each call stands, by its id.
    calls: dict[str, int] = field(default_factory=dict)
    #: The newest prompt; whether anything was done for it, and whether the last that happened is an answer.
    asked: str | None = None
    begun: bool = False
    answered: bool = False


class _Places:
    """Texts as the fork shall read them: the old directory is the new one, and the old conversation has no name."""

    def __init__(self, plan: ForkPlan) -> None:
        old = (plan.old_root or "").rstrip("/")
        self._moves = Moves([(old, plan.new_root)] if old else [], None, None)
        self._own: re.Pattern[str] | None = None
        self._conversation = plan.conversation
        if len(plan.conversation) >= 8:  # its files hold the future
            self._own = re.compile(rf"(?<![^\s\"'`<>|;])[^\s\"'`<>|;]*?{re.escape(plan.conversation)}[^\s\"'`<>|;]*")

    def text(self, content: str | None) -> str:
        """A step's content for showing."""
        text = without_reminders(content or "")
        if self._own is not None and self._conversation in text:
            text = self._own.sub("[a file of the earlier session]", text)
            text = text.replace(self._conversation, "[the earlier session]")
        return visible(self._moves.apply(text)).strip()


def handoff(plan: ForkPlan, budget: int = BUDGET) -> str:
    """The handoff's text, of at most `budget` characters (at least `LEAST`)."""
    budget = max(budget, LEAST)
    places = _Places(plan)
    told = _read(plan.steps(), places, budget)
    head = _HEAD.format(step=plan.seq, root=visible(plan.new_root))
    still_open = _open(plan, told, places, budget)
    room = budget - len(head) - len(still_open) - len(_TAIL) - 200
    parts = []
    for title, items, share in (
        ("What was asked", told.prompts, _SHARES[0]),
        ("Summaries that the session made of its earlier part", told.summaries, _SHARES[1]),
        ("Files that were written or edited", [f"- {path}" for path in told.files], _SHARES[2]),
    ):
        part = _part(title, [(None, item) for item in items], int(room * share))
        parts.append(part)
    left = room - sum(map(len, parts))
    parts.insert(2, _part("What was done and said, oldest first", told.log, left))
    text = "\n".join((head, *(part for part in parts if part), still_open, _TAIL))
    return text if len(text) <= budget else text[: budget - 1] + "…"


def _read(steps: Iterable[Step], places: _Places, budget: int) -> _Told:
    told = _Told()
    for step in steps:
        if step.kind not in ("usage", "meta"):
            told.answered = step.kind == "assistant_msg"
            told.begun = step.kind != "user_msg"
        if step.kind == "user_msg":
            text = places.text(step.content)[:budget]
            if text:
                told.prompts.append(f"{len(told.prompts) + 1}. {text}")
                told.asked = text
        elif step.kind == "assistant_msg":
            text = places.text(step.content)[:budget]
            if text:
                told.log.append((step.turn, f"- Said: {text}"))
        elif step.kind == "tool_call":
            if step.tool_id:
                told.calls[step.tool_id] = len(told.log)
            told.log.append((step.turn, f"- {_call(step, places)}"))
            if step.path and _WRITES.search(step.tool or ""):
                path = places.text(step.path)
                told.files.pop(path, None)
                told.files[path] = None
        elif step.kind == "tool_result":
            _outcome(told, step, places)
        elif step.kind == "error":
            told.log.append((step.turn, f"- Error: {one_line(places.text(step.content)[:2000], 300)}"))
        elif step.mark == "compaction":
            text = places.text(step.content)[:budget]
            if text:
                told.summaries.append(text)
    return told


def _call(step: Step, places: _Places) -> str:
    """A call in short: its tool and what tells most of its input."""
    given: Any = None
    try:
        given = orjson.loads(step.content or "")
    except orjson.JSONDecodeError:
        given = step.content
    name = visible(step.tool or "a tool")
    if isinstance(given, dict):
        told = next((given[key] for key in _TELLING if isinstance(given.get(key), str) and given[key]), None)
        if step.path and step.tool not in _SHELLS:
            told = step.path
        given = told if told is not None else orjson.dumps(given).decode() if given else ""
    said = one_line(places.text(str(given))[:2000], 240) if given else ""
    return f"{name}: {said}" if said else name


def _outcome(told: _Told, step: Step, places: _Places) -> None:
    """Writes a result behind its call: that it failed and how, or of a command the beginning of what it said."""
    at = told.calls.pop(step.tool_id or "", None)
    if at is None:
        return
    turn, call = told.log[at]
    said = one_line(places.text((step.content or "")[:4000]), 200)
    if step.is_error:
        told.log[at] = turn, f"{call} -> FAILED: {said}" if said else f"{call} -> FAILED"
    elif said and step.tool in _SHELLS:
        told.log[at] = turn, f"{call} -> {one_line(said, 120)}"
    else:
        told.log[at] = turn, f"{call} -> done"


def _open(plan: ForkPlan, told: _Told, places: _Places, budget: int) -> str:
    """What had not come to an end at the cut."""
    items = []
    if told.asked is not None and not told.answered:
        state = "was being worked on, and has had no final answer yet" if told.begun else "has had no answer yet"
        items.append(f"- The last request {state}: {_cut(told.asked, budget // 8)}")
    calls = [f"- A call had no result yet, and it is not known what it did: {_call(step, places)}" for step in plan.open_calls]
    items += calls[:10]
    if len(calls) > 10:
        items.append(f"- ({len(calls) - 10} more such calls)")
    if not items:
        items.append("- Nothing: the last request was answered.")
    return "\n".join(("## What is left open", *items, ""))


# -- fitting -----------------------------------------------------------------------------------------


def _part(title: str, items: Sequence[tuple[int | None, str]], room: int) -> str:
    """A part of the handoff with as many of its items as fit: the newest in full, older ones shortened, the oldest
    left out and counted."""
    if not items:
        return ""
    room -= len(title) + 80
    sizes = [_smallest(text) for _, text in items]
    first, taken = len(items), 0
    while first > 0 and taken + sizes[first - 1] <= room:
        first -= 1
        taken += sizes[first]
    kept: dict[int, str] = {}
    for number in range(len(items) - 1, first - 1, -1):
        text = items[number][1]
        for limit in (len(text), *_CUTS):
            short = _cut(text, limit)
            more = len(short) + 12 - sizes[number]
            if more <= 0 or taken + more <= room:
                kept[number], taken = short, taken + max(more, 0)
                break
    lines = [f"## {title}"]
    if first:
        lines.append(f"({first} earlier left out)")
    turn: int | None = None
    for number in range(first, len(items)):
        now = items[number][0]
        if now is not None and now != turn:
            lines.append(f"Turn {now}:")
            turn = now
        lines.append(kept[number])
    return "\n".join((*lines, ""))


def _smallest(text: str) -> int:
    """The least room of an item, with the heading of a turn."""
    return min(len(text), _CUTS[-1] + 14) + 12


def _cut(text: str, limit: int) -> str:
    """`text`, shortened on one line where it is longer than `limit`."""
    return text if len(text) <= limit else f"{' '.join(text[: limit * 2].split())[:limit]}… (shortened)"


# -- starting ----------------------------------------------------------------------------------------


def launch(plan: ForkPlan, cli: str, text: str | None = None) -> Launch:
    """How a fresh conversation of `cli` is begun with a handoff (`text`: one that was composed already).

    Claude Code takes its first prompt as an argument and stays. Kimi Code takes one only with ``-p``, which answers and
    ends; ``kimi -c`` in the same directory goes on from there.
    """
    text = text if text is not None else handoff(plan)
    while len(text.encode("utf-8", "replace")) > _ARGUMENT:  # the command could not be started
        text = handoff(plan, len(text) // 2)
    if cli not in _STORES:
        raise Refused(f"it is not known how {cli} takes a first prompt: name claude or kimi with --into")
    variable, default = _STORES[cli]
    env = {} if plan.store == Path.home() / default else {variable: str(plan.store)}
    unset = _NESTING if env else (*_NESTING, variable)
    if cli == "claude":
        env["CLAUDE_CODE_DISABLE_AUTO_MEMORY"] = "1"  # worktrees share a memory folder, which knows the future
    argv = ("claude", text) if cli == "claude" else ("kimi", "-p", text)
    return Launch(argv, plan.new_root, env, unset)
