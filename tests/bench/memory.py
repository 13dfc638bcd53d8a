"""The memory of a whole tree of processes, sampled while it runs (Linux; 0 elsewhere)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PAUSE = 0.1


def _parents() -> dict[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return found


def _measured() -> list[int]:
    """What `measure.run` measures: the descendants of our children, which are its launchers."""
    parents = _parents()
    level = {pid for pid, parent in parents.items() if parent == os.getpid()}
    found: list[int] = []
    while level := {pid for pid, parent in parents.items() if parent in level}:
        found += level
    return found


def _share(pid: int) -> int:
    """Bytes of memory of a process; a page that several map is split between them."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class Watch:
    """Keeps the largest sum that was seen while the `with` block runs."""

    def __init__(self) -> None:
        self.peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while Path("/proc/self/smaps_rollup").exists() and not self._end.wait(_PAUSE):
            self.peak = max(self.peak, sum(map(_share, _measured())))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
