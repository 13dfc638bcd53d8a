"""Files beside a wire: only those that kept lines name, and of these only what was whole at the cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import orjson

from beyond.surgery.base import ForkPlan
from beyond.surgery.kimi.survey import Survey, dict_of
from beyond.surgery.kimi.wire import Setting


class SideFiles:
    """Collects what the wires of a fork name."""

    def __init__(self, plan: ForkPlan, setting: Setting) -> None:
        self._plan = plan
        self._setting = setting
        self._names: set[str] = set()
        self.notes: list[str] = []

    def add(self, agent: str, found: Survey) -> None:
        """The files that the kept lines of an agent's wire name."""
        everything = not self._setting.on("side-files-referenced")
        for number, names in found.mentions.items():
            if everything or (number <= found.end and number not in found.concurrent):
                self._names.update(f"agents/{other or agent}/{name}" for other, name in names)

    def files(self) -> dict[str, Callable[[], Iterable[bytes]]]:
        """The files' contents by their paths in the conversation's folder."""
        out: dict[str, Callable[[], Iterable[bytes]]] = {}
        missing = 0
        for name in sorted(self._names):
            if name.endswith("/output.log"):
                missing += self._task(name, out)
            else:
                data = self._plan.side_file(name)
                missing += data is None
                if data is not None:
                    out[name] = partial(_one, data)
        if out:
            self.notes.append(f"{len(out)} file{'s' * (len(out) != 1)} beside the conversation copied")
        if missing:
            self.notes.append(f"{missing} file{'s' * (missing != 1)} that the conversation names no longer there, not copied")
        return out

    def _task(self, name: str, out: dict[str, Callable[[], Iterable[bytes]]]) -> int:
        """A task's output, where it had ended by the cut: else it holds what came later, and no time to cut it by."""
        described = name.removesuffix("/output.log") + ".json"
        about, data = self._plan.side_file(described), self._plan.side_file(name)
        if about is None or data is None:
            return 1
        try:
            ended = dict_of(orjson.loads(about)).get("endedAt")
        except orjson.JSONDecodeError:
            ended = None
        cut = self._plan.cut_ts
        on = self._setting.on("side-files-referenced")
        if on and (cut is None or not isinstance(ended, int | float) or ended > cut):
            self.notes.append(f"{name} left: its task went on after the cut")
            return 0
        out[name], out[described] = partial(_one, data), partial(_one, self._setting.moves.line(about))
        return 0


def _one(data: bytes) -> list[bytes]:
    return [data]
