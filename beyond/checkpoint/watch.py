"""Which folders changed since the last checkpoint, and what lies in them that git passes over without a word.

A folder's ctime moves with every name made, removed or renamed in it. While no folder, no ignore rule and no index of
the user's changed, the list of untracked files can't have changed either, so the more expensive half of looking is
left out. (git's own untracked cache does the same, but only inside the user's index.)
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from typing import Any

from beyond.checkpoint.git import Git
from beyond.checkpoint.git import ignored as ignored_by_git
from beyond.checkpoint.state import State, signature

#: A folder whose time is this close to now may change again within the same tick of its clock.
_TICK = 100_000_000
#: More folders than this are not remembered.
_MOST = 200_000


class Watch:
    """Looks at the folders of a work tree; what it learns goes into the state."""

    def __init__(self, toplevel: str, user: Git, common_dir: str, state: State) -> None:
        self._top = toplevel
        self._user = user
        self._common = common_dir
        self._state = state
        self._scan: list[str] = []
        self.changed = False

    def same(self) -> bool:
        """Whether the untracked files are certainly those of last time."""
        if not self._state.complete or self._state.rules != self._rules_now():
            self._forget_rules()
        prefix = self._top + "/"
        now = time.time_ns()
        gone: set[str] = set()
        # A folder comes after the one that it lies in: what lies behind a link isn't ours.
        for folder, known in list(self._state.folders.items()):
            try:
                found = None if gone and os.path.dirname(folder) in gone else os.lstat(prefix + folder)
            except OSError:
                found = None
            if found is None or not stat.S_ISDIR(found.st_mode):
                del self._state.folders[folder]
                gone.add(folder)
                self.changed = True
            elif known[0] != found.st_ctime_ns or known[1] != found.st_ino:
                known[0] = 0 if now - found.st_ctime_ns < _TICK else found.st_ctime_ns
                known[1] = found.st_ino
                self._scan.append(folder)
                self.changed = True
        return not self.changed and bool(self._state.folders)

    def _forget_rules(self) -> None:
        self._state.folders = {}
        self._state.ignored = []
        self._state.rules = {}
        self.changed = True

    def learn(self, files: Iterable[str], nested: Iterable[str]) -> None:
        """After git listed the files: folders that are new, and what the changed ones hold."""
        state = self._state
        if not self.changed and state.folders:
            return
        fresh = {""} - state.folders.keys()
        for path in files:
            folder = os.path.dirname(path)
            while folder and folder not in state.folders and folder not in fresh:
                fresh.add(folder)
                folder = os.path.dirname(folder)
        inside = {name.rstrip("/") for name in nested}
        ignored = set(state.ignored)
        level = [*self._scan, *sorted(fresh)]
        while level:
            unsure: list[tuple[str, str, str]] = []
            below: set[str] = set()
            for folder in level:
                self._read(folder, ignored, unsure, below, folder in inside)
            level = []
            maybe = sorted(below - state.folders.keys() - ignored)
            asked = [f"{name}/" for name in maybe] + [path for _, path, _ in unsure]
            hidden = ignored_by_git(self._user, asked) if asked else set()
            for folder, path, what in unsure:
                if path not in hidden and folder in state.folders:
                    state.folders[folder].append([path, what])
            for name in maybe:
                if f"{name}/" in hidden:
                    ignored.add(name)
                else:
                    level.append(name)
        state.ignored = sorted(ignored)
        state.rules = self._rules()
        state.complete = len(state.folders) < _MOST
        if not state.complete:
            state.folders = {}

    def specials(self) -> list[tuple[str, str]]:
        """Every FIFO, socket, device and unreadable folder, with what it is."""
        return [(item[0], item[1]) for known in self._state.folders.values() for item in known[3:]]

    def _read(self, folder: str, ignored: set[str], unsure: list[tuple[str, str, str]], below: set[str], nested: bool) -> None:
        path = f"{self._top}/{folder}"
        known: list[Any] = self._state.folders.get(folder) or [0, 0]
        try:
            if folder and os.path.dirname(folder) not in self._state.folders:
                return
            if not known[1]:
                found = os.lstat(path)
                if not stat.S_ISDIR(found.st_mode):
                    return
                recent = time.time_ns() - found.st_ctime_ns < _TICK
                known = [0 if recent else found.st_ctime_ns, found.st_ino]
            self._state.folders[folder] = known = [*known[:2], 0]
            if nested:
                return
            with os.scandir(path) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != ".git" and name not in self._state.folders and name not in ignored:
                            below.add(name)
                    elif entry.name == ".gitignore":
                        known[2] = 1
                    elif not entry.is_symlink() and not entry.is_file(follow_symlinks=False):
                        unsure.append((folder, name, kind(entry.stat(follow_symlinks=False).st_mode)))
        except PermissionError:
            known.append([f"{folder}/", "a folder that can't be read"])
        except OSError:
            self._state.folders.pop(folder, None)

    def _rules(self) -> dict[str, Any]:
        """Every file that says what is ignored, with its signature."""
        inside = [f"{folder}/.gitignore" if folder else ".gitignore" for folder, known in self._state.folders.items() if known[2]]
        outside = [path for path in self._state.rules if path.startswith("/")] or self._rules_outside()
        now = time.time_ns()
        rules: dict[str, Any] = {}
        for path in (*inside, *outside):
            found = signature(os.path.join(self._top, path)) if path not in self._state.rules else self._state.rules[path]
            # Written while we looked, perhaps: nothing will equal this.
            rules[path] = [0] if found and len(found) > 1 and now - found[1] < _TICK else found
        return rules

    def _rules_outside(self) -> list[str]:
        environ = os.environ
        home = environ.get("HOME") or "/"
        config = os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "git")
        files = [f"{self._common}/info/exclude", f"{self._common}/config", f"{self._user.env['GIT_DIR']}/config.worktree"]
        files += [f"{home}/.gitconfig", f"{config}/config", f"{config}/ignore", "/etc/gitconfig"]
        _, out, _ = self._user.ask("config", "-z", "--list", "--show-origin", "--name-only")
        files += [os.fsdecode(part[5:]) for part in out.split(b"\0")[::2] if part.startswith(b"file:")]
        code, out, _ = self._user.ask("config", "-z", "--type=path", "core.excludesFile")
        if code == 0:
            files.append(os.fsdecode(out[:-1]))
        return [os.path.join(self._top, path) for path in files]

    def _rules_now(self) -> dict[str, Any]:
        return {path: signature(os.path.join(self._top, path)) for path in self._state.rules}


def kind(mode: int) -> str:
    """What a file is that can't be stored."""
    if stat.S_ISFIFO(mode):
        return "a FIFO: its content is not of this moment"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISDIR(mode):
        return "a folder where a file was"
    return "a device"
