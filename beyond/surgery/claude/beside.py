"""What lies beside a transcript: outputs that it refers to, and the transcripts of its subagents."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath
from typing import Any

import orjson

from beyond.surgery.base import ForkPlan, SubPlan
from beyond.surgery.claude.choose import Choice, choose
from beyond.surgery.claude.compose import Composer
from beyond.surgery.claude.places import Moves
from beyond.surgery.claude.survey import Asked, Survey, survey
from beyond.surgery.raw import dump

Files = dict[str, Callable[[], Iterable[bytes]]]


class Beside:
    """Collects the files of a conversation's own folder."""

    def __init__(self, plan: ForkPlan, moves: Moves, asked: Asked) -> None:
        self._plan, self._moves, self._asked = plan, moves, asked
        self._names: set[str] = set()
        self.files: Files = {}
        self.notes: list[str] = []

    def outputs(self, found: Survey, choice: Choice) -> None:
        """The outputs that kept lines refer to."""
        everything = "copy-side-files-only-referenced" in self._plan.without
        for index in range(len(found.nodes)) if everything else choice.parent:
            self._names.update(found.nodes[index].files)

    def subagent(self, sub: SubPlan) -> None:
        """A subagent's transcript, cut where the plan cuts it, and what is said about it beside."""
        found = survey(sub.lines(), self._asked, main=False)
        choice = choose(found, None, self._plan.without)
        if not choice.parent:
            return
        name = _place(sub, self._plan.conversation)
        self.outputs(found, choice)
        self.files[name] = partial(Composer(self._plan, self._moves, found, choice).stream, sub.lines)
        about = name.removesuffix(".jsonl") + ".meta.json"
        data = self._about(sub, self._plan.side_file(about))
        self.files[about] = partial(_one, self._moves.line(data))
        if not sub.whole:
            self.notes.append(f"subagent {sub.agent} is cut at the step's time")

    def _about(self, sub: SubPlan, data: bytes | None) -> bytes:
        about: Any = None
        if data is not None:
            try:
                about = orjson.loads(data)
            except orjson.JSONDecodeError:
                about = None
        if not isinstance(about, dict):
            return dump({"agentType": "general-purpose", **({"toolUseId": sub.tool_id} if sub.tool_id else {})})
        if sub.whole or "finished" not in about:
            return data or b"{}"
        return dump({key: value for key, value in about.items() if key != "finished"})

    def collect(self) -> Files:
        """All files, by their paths in the conversation's folder."""
        missing = 0
        copied = 0
        for name in sorted(self._names):
            data = self._plan.side_file(f"tool-results/{name}")
            if data is None:
                missing += 1
                continue
            copied += 1
            self.files[f"tool-results/{name}"] = partial(_one, self._moves.file(data))
        if copied:
            self.notes.append(f"{copied} output{'s' * (copied != 1)} beside the conversation copied")
        if missing:
            self.notes.append(f"{missing} output{'s' * (missing != 1)} that the conversation names no longer there, not copied")
        return self.files


def _place(sub: SubPlan, conversation: str) -> str:
    """Where a subagent's transcript belongs in the conversation's folder."""
    parts = PurePath(sub.path).parts
    if "subagents" in parts[:-1]:
        at = len(parts) - 1 - parts[::-1].index("subagents")
        return "/".join(parts[at:])
    return f"subagents/agent-{sub.agent}.jsonl"


def _one(data: bytes) -> list[bytes]:
    return [data]


__all__ = ["Beside", "Files"]
