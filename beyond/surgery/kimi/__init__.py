"""Writes a fork as a conversation of Kimi Code.

The wire is a log with references to its own lines (protocol 1.5: where an undo went back to, which lines a compaction
stands for), so lines are never inserted or deleted: a fork keeps a prefix, edits lines in place, and appends what
closes it. The prefix holds exactly the causal past but for two things. Branches that were undone before the cut stay;
the CLI leaves them out of its requests. And while calls are open, what goes on beside the cut is written between:
such lines are replaced in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from beyond.errors import Refused
from beyond.surgery.base import ForkPlan, Launch, Line, Part, SubPlan, Written
from beyond.surgery.kimi.hooks import HOOKS_FILE, add_hooks, read_hook, remove_hooks
from beyond.surgery.kimi.lab import COMPACT, ask, listed, memory, scratch
from beyond.surgery.kimi.places import Moves
from beyond.surgery.kimi.side import SideFiles
from beyond.surgery.kimi.state import (
    SESSION_ID,
    agent_of,
    folder_of,
    index_line,
    launch_of,
    state_of,
    workspace_of,
)
from beyond.surgery.kimi.survey import Survey, compare_generations, dict_of, survey
from beyond.surgery.kimi.wire import Setting, compose
from beyond.surgery.raw import whole

#: Raised with each change of what is written.
VERSION: Final = 1
#: Rules that a mutation test can switch off, and what each prevents.
RULES: Final = {
    "prefix-only": "lines after the cut would be in the conversation",
    "neutralise": "what went on beside the cut while calls were open would be in it",
    "trim": "blocks of a line after the cut would be in it",
    "complete-calls": "calls without a result; each version of the CLI makes up another",
    "deliver-prompt": "a prompt that had not reached the context would be forgotten",
    "close-compaction": "a compaction begun before the cut would count as running",
    "new-id": "the fork would take the place of the conversation that it comes from",
    "index-line": "0.28 and 0.29 would not find the conversation",
    "state-cwd": "the CLI would refuse to resume in the new directory, or list the fork elsewhere",
    "system-prompt-cwd": "the model would be told the old directory",
    "workspace-id": "2.1.0 would fail to resume",
    "side-files-referenced": "files beside the conversation would hold what came after the cut",
    "subagents-cut": "a subagent's own conversation would hold what came after the cut",
    "rewrite-wire-path": "summaries and outputs would name files of the old conversation, which holds the future",
    "rewrite-root": "paths would lead into the old directory, whose files are of the future",
}
#: Protocols that were tried with the real CLIs, or that these migrate by themselves.
_PROTOCOLS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")

__all__ = [
    "COMPACT",
    "HOOKS_FILE",
    "RULES",
    "VERSION",
    "add_hooks",
    "ask",
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
    if plan.cli != "kimi":
        return f"a conversation of {plan.cli} is no wire of Kimi Code"
    for path in plan.old_paths:
        if agent_of(path) not in (None, "main"):
            return "a cut inside of a subagent's conversation has no native form in Kimi Code"
    first = next(iter(plan.lines()), None)
    if first is None:
        return "no transcript of this run is in the journal"
    protocol = _protocol(first.raw)
    if protocol is None:
        return "the transcript doesn't start with the metadata record of a Kimi Code wire"
    if protocol not in _PROTOCOLS:
        return f"the transcript's protocol {protocol:.20} is not a known one"
    return None


def _protocol(raw: bytes) -> str | None:
    """The protocol that a wire's first line names."""
    try:
        record = dict_of(whole(raw)[1])
    except ValueError:
        return None
    version = record.get("protocol_version")
    return version if record.get("type") == "metadata" and isinstance(version, str) else None


def write(plan: ForkPlan) -> Written:
    """Composes the conversation. Raises `Refused` where the result would not be whole."""
    reason = refuse(plan)
    if reason is not None:
        raise Refused(f"{reason}: use --method synthesis")
    _check_ids(plan)
    found = _surveyed(plan.lines)
    if found is None:
        raise Refused("no line of the transcript holds the steps up to the cut: use --method synthesis")
    protocol = _protocol(found.first)
    if protocol is None:  # a missing or odd head: 0.28 would end with an error, 2.1.0 begin anew
        raise Refused("the rewritten transcript has no metadata record: use --method synthesis")
    writing = _Writing(plan, protocol)
    subs = [(sub, sub_found) for sub in plan.subagents if (sub_found := _surveyed(sub.lines)) is not None]
    return writing.written(found, subs)


def _check_ids(plan: ForkPlan) -> None:
    if not SESSION_ID.fullmatch(plan.new_conversation):
        raise Refused(f"{plan.new_conversation!r} is no id of Kimi Code: it has to be session_ and a UUID in lower case")
    if plan.new_conversation == plan.conversation:
        raise Refused("the fork has the id of the conversation that it comes from: give it one of its own")
    for path in (plan.new_root, str(plan.store)):
        if not path.startswith("/"):
            raise Refused(f"{path!r} is not an absolute path: name the directory in full")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise Refused(f"{path!r} is no text that Kimi Code could store: use a directory with a UTF-8 name") from None


def _surveyed(lines: Callable[[], Iterator[Line]]) -> Survey | None:
    found = survey(lines())
    if found is not None and found.rewritten:
        compare_generations(found, lines())
        if found.lost:
            raise Refused(
                f"Kimi Code has rewritten this transcript, and {found.lost} lines of the past are no longer in it: "
                "use --method synthesis"
            )
    return found


class _Writing:
    """One fork being composed."""

    def __init__(self, plan: ForkPlan, protocol: str) -> None:
        self.plan = plan
        self.protocol = protocol
        self.id = plan.new_conversation if self._on("new-id") else plan.conversation
        self.workspace = workspace_of(plan.new_root)
        self.folder = folder_of(plan.new_root, self.id)
        self.place = str(plan.store / self.folder)
        self.setting = Setting(self._moves(()), self._moves, self.workspace, protocol, plan.cut_ts, plan.without)

    def _on(self, rule: str) -> bool:
        return rule not in self.plan.without

    def _moves(self, places: Iterable[str]) -> Moves:
        plan = self.plan
        roots = [(place, plan.new_root) for place in places]
        if plan.old_root and plan.old_root.rstrip("/") and (roots or self._on("rewrite-root")):
            roots.append((plan.old_root.rstrip("/"), plan.new_root))
        if len(plan.conversation) < 8 or not self._on("rewrite-wire-path"):
            return Moves(roots, None, None)
        return Moves(roots, (plan.conversation, self.id), self.place)

    def written(self, found: Survey, subs: list[tuple[SubPlan, Survey]]) -> Written:
        """The whole of it."""
        plan = self.plan
        notes: list[str] = []
        files: dict[str, Callable[[], Iterable[bytes]]] = {}
        side = SideFiles(plan, self.setting)
        todo: list[tuple[str, Survey, Callable[[], Iterator[Line]]]] = [("main", found, plan.lines)]
        for sub, sub_found in subs:
            name = agent_of(sub.path) or sub.agent
            if not sub.whole:
                notes.append(f"subagent {name} is cut at the step's time")
            todo.append((name, sub_found, sub.lines))
        for name, what, lines in todo:
            setting = self._for(what, name)
            files[f"agents/{name}/wire.jsonl"] = partial(_stream, setting, what, lines, name)
            side.add(name, what)
        files.update(side.files())
        notes += side.notes
        state = state_of(plan, self.protocol, self.id, self.place, [name for name, _, _ in todo[1:]], found.asked)
        files["state.json"] = lambda: [state]
        if found.calls:
            several = "s" * (len(found.calls) != 1)
            notes.append(f"{len(found.calls)} call{several} without a result at the cut closed as interrupted")
        index = ("session_index.jsonl", index_line(self.id, self.place, plan.new_root))
        return Written(
            conversation=self.id,
            parts=(Part(self.folder, files),),
            appends=(index,) if self._on("index-line") else (),
            main=f"{self.folder}/agents/main/wire.jsonl",
            launch=launch_of(plan, self.id),
            notes=tuple(notes),
        )

    def _for(self, found: Survey, name: str) -> Setting:
        """The setting for one wire: its protocol, and whether it is cut."""
        protocol = _protocol(found.first) or self.protocol
        without = self.plan.without
        if name != "main":
            without = without - {"prefix-only"} if self._on("subagents-cut") else without | {"prefix-only"}
        return Setting(self.setting.moves, self._moves, self.workspace, protocol, self.plan.cut_ts, without)


def _stream(setting: Setting, found: Survey, lines: Callable[[], Iterator[Line]], agent: str) -> Iterator[bytes]:
    """The wire in pieces of about a quarter of a megabyte."""
    pieces: list[bytes] = []
    size = 0
    for piece in compose(setting, found, lines(), agent):
        pieces.append(piece)
        size += len(piece)
        if size > 1 << 18:
            yield b"".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def launch(plan: ForkPlan, prompt: str | None = None) -> Launch:
    """How the fork is resumed."""
    return launch_of(plan, plan.new_conversation if "new-id" not in plan.without else plan.conversation, prompt)
