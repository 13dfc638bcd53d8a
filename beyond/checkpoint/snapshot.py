"""The work tree as a tree object, through the kept index."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beyond.checkpoint.facts import MB, Limits, Skipped, Snapshot
from beyond.checkpoint.git import Git, lines, ref_value, said_by_git
from beyond.checkpoint.index import entry_sizes
from beyond.checkpoint.scan import Listing, Tracked, dirty_link, listing, read_tracked
from beyond.checkpoint.shadow import Change, Shadow
from beyond.checkpoint.state import State, signature
from beyond.checkpoint.watch import Watch, kind
from beyond.errors import GitFailed

#: Names that mostly hold secrets; said once more in a checkpoint's notices, because git objects outlive the file.
_SECRET = re.compile(
    r"(?:\.env(?:\..*)?|.*\.(?:pem|key|p12|pfx|keystore)|id_(?:rsa|dsa|ecdsa|ed25519)|\.netrc|\.npmrc|\.pypirc)\Z"
)
#: Submodules looked into for changes at one checkpoint.
_LINKS = 16
#: Read-only files that are named one by one.
_NAMED = 20


@dataclass
class _Plan:
    """What has to happen to the kept index."""

    #: From disk; absent files go.
    update: list[str] = field(default_factory=list)
    #: Out of the index although on disk.
    drop: list[str] = field(default_factory=list)
    #: As the user's index has them: path → (mode, object).
    as_indexed: dict[str, list[str]] = field(default_factory=dict)
    hide: list[str] = field(default_factory=list)
    unhide: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.update or self.drop or self.as_indexed or self.hide or self.unhide)


class Snapshotter:
    """One checkpoint of a work tree. The caller holds the kept index's guard."""

    def __init__(self, shadow: Shadow, user: Git, user_index: Path, limits: Limits) -> None:
        self._shadow = shadow
        self._user = user
        self._user_index = user_index
        self._limits = limits
        self._top = os.fspath(shadow.toplevel)
        self._skipped: dict[str, str] = {}
        self._folders: dict[str, bool] = {"": True}

    def take(self, head: str | None) -> Snapshot:
        """The tree id, written to the repository with everything that it needs."""
        state = State.load(self._shadow.state, self._shadow.index)
        users: list[Any] | None = signature(self._user_index)
        no_index = users is None and head is not None
        tracked: Tracked | None = None
        fresh = not (state and state.tree)
        if state is None or not self._anchored(state):
            self._shadow.forget()
            state, fresh = State(), True
            tracked = self._seed(head)
        watch = Watch(self._top, self._user, os.fspath(self._shadow.objects.parent), state)
        known = state

        def same() -> Listing | None:
            if watch.same() and known.users == users and tracked is None:
                return Listing([], known.extra, known.nested, no_index)
            return None

        before = state.copy()
        found = listing(self._shadow.git(), self._user, self._shadow.root / "void", no_index, same)
        if found.no_index:
            users = [head]
            self._skipped[".git/index"] = "the repository's index can't be read: what HEAD has counts as tracked"
        if tracked is None and (state.users != users or not state.tree):
            tracked = read_tracked(self._user, head, found.no_index)
        plan = _Plan()
        if tracked is not None:
            self._compare(state, tracked, found, plan)
        else:
            self._differences(state, found, plan)
        self._links(state)
        plan.update = self._admitted(state, plan.update)
        if tracked is not None:
            self._stand_in(tracked, plan)
        for path in found.nested:
            self._skipped[path] = "a repository of its own inside this one: not covered"
        if plan or not state.tree:
            self._apply(state, plan)
        state.users = users
        state.left = [path for path in state.extra if path in self._skipped]
        state.nested = found.nested
        self._read_only(state, [*tracked.entries, *state.extra] if fresh and tracked is not None else plan.update)
        if tracked is not None:
            watch.changed = True
        watch.learn([*(tracked.entries if tracked is not None else plan.update), *state.extra], [*found.nested, *state.links])
        for path, what in watch.specials():
            self._skipped.setdefault(path, f"{what}: not covered")
        state.index = signature(self._shadow.index)
        if watch.changed or state != before:
            state.save(self._shadow.state)
        skipped = tuple(Skipped(path, why) for path, why in sorted(self._skipped.items()))
        sensitive = tuple(path for path in state.extra if _SECRET.match(os.path.basename(path)) and path not in self._skipped)
        return Snapshot(state.tree, head, state.files, skipped, sensitive)

    # --- what to trust -----------------------------------------------------------------------------------------------

    def _anchored(self, state: State) -> bool:
        """Whether the objects of the kept index are certainly there: an agent may run `git gc --prune=now`."""
        if not state.tree:
            return True
        if state.anchor is not None and state.anchor[2] == state.tree:
            name, commit, _ = state.anchor
            if ref_value(self._shadow.objects.parent, self._user, name) == commit:
                return True
        if any((self._shadow.objects / "pack").glob("*.promisor")):
            return True
        return self._shadow.git().ask("rev-list", "--objects", "--quiet", state.tree)[0] == 0

    def _seed(self, head: str | None) -> Tracked | None:
        """Starts the kept index as a copy of the user's, where that is sure to mean the same to us."""
        if not self._user_index.exists() or self._user.ask("ls-files", "-z", "--", "void")[0]:
            return None
        tracked = read_tracked(self._user, head, False)
        if tracked.plain and not tracked.links and not self._converted(tracked):
            shutil.copy2(self._user_index, self._shadow.index)
            # An index of the user's may rely on neighbours that we don't see (split index).
            if self._shadow.git().ask("ls-files", "-z", "--", "void")[0]:
                self._shadow.index.unlink()
        return tracked

    def _converted(self, tracked: Tracked) -> bool:
        """Whether a file may lie on disk with other bytes than its object has: the index calls it unchanged all the same.

        Line ends, `$Id$` and encodings change the size, which is compared for every file; a filter may keep it.
        """
        sizes = entry_sizes(self._user_index, len(self._shadow.null) // 2)
        if sizes is None:
            return True
        ids = "".join(f"{tracked.entries[path][1]}\n" for path in sizes if path in tracked.entries).encode()
        stored = self._user.run("cat-file", "--batch-check=%(objectsize)", "--buffer", stdin=ids).split(b"\n")[:-1]
        if stored != [b"%d" % size for path, size in sizes.items() if path in tracked.entries]:
            return True
        said = self._user.run("check-attr", "-z", "--stdin", "filter", stdin=lines(tracked.entries))
        return any(value not in (b"unspecified", b"unset") for value in said.split(b"\0")[2::3])

    # --- what to do --------------------------------------------------------------------------------------------------

    def _compare(self, state: State, tracked: Tracked, found: Listing, plan: _Plan) -> None:
        """The user's index changed, or is seen for the first time: every name is compared."""
        held: dict[str, list[str]] = {}
        if self._shadow.index.exists():
            for row in self._shadow.git().run("ls-files", "-z", "-s").split(b"\0")[:-1]:
                meta, _, name = row.partition(b"\t")
                held[os.fsdecode(name)] = meta.decode().split(" ")[:2]
        # Without a readable index git calls everything untracked, what HEAD has included.
        state.extra = [path for path in found.others if path not in tracked.entries]
        wanted = tracked.entries.keys() | state.extra
        absent = {path: tracked.entries[path] for path in tracked.sparse if not self._present(path)}
        update = {path for path in found.changed if path in wanted and path not in absent}
        update.update(path for path in state.absent if path not in absent and path in wanted)
        missing: list[str] = []
        for path in wanted - held.keys() - absent.keys():
            if path in tracked.links:
                plan.as_indexed[path] = tracked.entries[path]
                if self._populated(path):
                    update.add(path)
            elif self._file(path):
                update.add(path)
            else:
                missing.append(path)
        missing += [path for path in update if path in tracked.entries and not self._present(path)]
        for path, entry in absent.items():
            if held.get(path) != entry or path not in state.absent:
                plan.as_indexed[path] = entry
                plan.hide.append(path)
        plan.unhide = [path for path in state.absent if path not in absent and path in held and path in wanted]
        plan.drop = [path for path in held if path not in wanted]
        plan.update = sorted(update)
        state.links, state.absent, state.missing = sorted(tracked.links), absent, sorted(missing)
        state.shown = {path: tracked.entries[path] for path in tracked.sparse if path not in absent}

    def _differences(self, state: State, found: Listing, plan: _Plan) -> None:
        """The user's index is as it was: only what the two commands listed, and what was out of reach, can differ."""
        before, now = set(state.extra), set(found.others)
        plan.drop = [path for path in state.extra if path not in now]
        left = set(state.left)
        hidden = {path for path in state.shown if not self._present(path)}
        changed = [path for path in found.changed if path not in state.absent and path not in hidden]
        update = {path for path in changed if path in now or path not in before}
        update.update(path for path in found.others if path not in before or path in left)
        state.extra = found.others
        back = {path for path in state.missing if self._file(path)}
        gone = {path for path in changed if path not in before and not self._present(path)}
        state.missing = sorted(gone.union(state.missing) - back)
        shown = self._shown(state.absent)
        for path in shown:
            state.shown[path] = state.absent.pop(path)
        for path in hidden:
            plan.as_indexed[path] = state.absent[path] = state.shown.pop(path)
        plan.hide = sorted(hidden)
        plan.unhide = shown
        plan.update = sorted(update.union(back, shown))

    def _stand_in(self, tracked: Tracked, plan: _Plan) -> None:
        """A tracked file that can't be taken stays as the user's index has it, rather than look deleted."""
        held = self._shadow.index.exists()
        for path in self._skipped:
            if path in tracked.entries and path not in plan.as_indexed:
                if held and self._shadow.git().run("ls-files", "-z", "--", path):
                    continue
                plan.as_indexed[path] = tracked.entries[path]

    def _links(self, state: State) -> None:
        """A submodule is kept as the commit that it is at; what it holds beyond that is named."""
        populated = [link for link in state.links if self._populated(link)]
        for i, link in enumerate(populated):
            if i >= _LINKS:
                self._skipped[link] = "a submodule that wasn't looked into: only its commit is kept"
            elif dirty_link(self._shadow.toplevel, link):
                self._skipped[link] = "a submodule with changes of its own: only its commit is kept"

    def _shown(self, absent: dict[str, list[str]]) -> list[str]:
        """Which of the files that a sparse checkout left out are on disk now. Folders that are absent answer for all below."""
        return [path for path in absent if self._present(path)]

    def _lstat(self, path: str) -> os.stat_result:
        """Of the path itself: a folder on the way that is a link leads to something else, so the path isn't there."""
        if not self._real(os.path.dirname(path)):
            raise FileNotFoundError(path)
        return os.lstat(f"{self._top}/{path}")

    def _real(self, folder: str) -> bool:
        known = self._folders.get(folder)
        if known is None:
            known = False
            if self._real(os.path.dirname(folder)):
                try:
                    known = stat.S_ISDIR(os.lstat(f"{self._top}/{folder}").st_mode)
                except PermissionError:
                    known = True
                except OSError:
                    pass
            self._folders[folder] = known
        return known

    def _present(self, path: str) -> bool:
        try:
            self._lstat(path)
        except PermissionError:
            return True
        except OSError:
            return False
        return True

    def _file(self, path: str) -> bool:
        """Whether there is something that isn't a folder."""
        try:
            return not stat.S_ISDIR(self._lstat(path).st_mode)
        except PermissionError:
            return True
        except OSError:
            return False

    def _populated(self, link: str) -> bool:
        return self._real(link) and os.path.lexists(os.path.join(self._top, link, ".git"))

    def _admitted(self, state: State, paths: list[str]) -> list[str]:
        """What of `paths` can be stored: looked at before git does, which stops at the first that it can't read."""
        admitted: list[str] = []
        total = count = 0
        links = set(state.links)
        declined, state.declined = state.declined, {}
        for path in paths:
            full = os.path.join(self._top, path)
            try:
                now = self._lstat(path)
            except OSError as error:
                if isinstance(error, PermissionError):
                    self._skipped[path] = "it can't be read: not covered"
                else:
                    admitted.append(path)
                continue
            why = ""
            mark = [now.st_size, now.st_mtime_ns]
            if stat.S_ISLNK(now.st_mode) or path in links:
                pass
            elif not stat.S_ISREG(now.st_mode):
                if stat.S_ISDIR(now.st_mode):
                    admitted.append(path)
                else:
                    self._skipped[path] = f"{kind(now.st_mode)}: not covered"
                continue
            elif not os.access(full, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
                self._skipped[path] = "it can't be read: not covered"
                continue
            elif declined.get(path, [])[:2] == mark:
                why = str(declined[path][2])
            elif now.st_size > self._limits.max_file:
                why = f"{now.st_size // MB} MB, above the limit of {self._limits.max_file // MB} MB for a file"
            elif total + now.st_size > self._limits.max_new_total:
                why = f"more than {self._limits.max_new_total // MB} MB would be new in one checkpoint"
            elif count >= self._limits.max_files:
                why = f"more than {self._limits.max_files} files would be new in one checkpoint"
            if why:
                state.declined[path] = [*mark, why]
                self._skipped[path] = f"{why}: this content is not covered"
                continue
            total += now.st_size
            count += 1
            admitted.append(path)
        return admitted

    def _read_only(self, state: State, paths: Iterable[str]) -> None:
        """git keeps no write permission: files without it are named."""
        found = set(state.read_only)
        # git's stat data may know seconds only: a file that was made writable at once is looked at again.
        for path in (*paths, *state.read_only):
            try:
                mode = self._lstat(path).st_mode
            except OSError:
                mode = 0o200
            if mode & 0o200 or not stat.S_ISREG(mode):
                found.discard(path)
            else:
                found.add(path)
        state.read_only = sorted(found)
        if len(found) > _NAMED:
            self._skipped.setdefault(".", f"{len(found)} read-only files: they come back writable")
            return
        for path in found:
            self._skipped.setdefault(path, "read-only: it comes back writable")

    # --- doing it ----------------------------------------------------------------------------------------------------

    def _apply(self, state: State, plan: _Plan) -> None:
        change = self._shadow.change()
        try:
            entries = b"".join(b"0 %s\t%s\0" % (self._shadow.null.encode(), os.fsencode(path)) for path in plan.drop)
            entries += b"".join(
                f"{mode} {oid}\t".encode() + os.fsencode(path) + b"\0" for path, (mode, oid) in plan.as_indexed.items()
            )
            if plan.unhide:
                change.git.run("update-index", "-z", "--no-skip-worktree", "--stdin", stdin=lines(plan.unhide))
            if entries:
                change.git.run("update-index", "-z", "--index-info", stdin=entries)
            if plan.hide:
                change.git.run("update-index", "-z", "--skip-worktree", "--stdin", stdin=lines(plan.hide))
            self._store(change, plan.update)
            state.tree = change.git.run("write-tree", "--missing-ok").decode().strip()
            change.finish()
        finally:
            change.abandon()
        with open(self._shadow.index, "rb") as file:
            state.files = int.from_bytes(file.read(12)[8:], "big")

    def _store(self, change: Change, paths: list[str]) -> None:
        """Puts files into the index; what git can't take after all is halved until the one file is found and named."""
        if not paths:
            return
        args = (*change.bulk(len(paths)), "update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        code, _, err = change.git.ask(*args, stdin=lines(paths))
        if not code:
            # Said, and passed over: exit code 0.
            if "Ignoring path" in err:
                for path in paths:
                    if f"Ignoring path {path}\n" in err:
                        self._skipped[path] = "git refuses a file of that name: not covered"
            return
        if code < 0 or "No space left" in err or "File too large" in err or "unable to write" in err:
            raise GitFailed(f"a checkpoint can't be written ({said_by_git(err, code)}): nothing was changed; make room and go on")
        if len(paths) > 1:
            middle = len(paths) // 2
            self._store(change, paths[:middle])
            self._store(change, paths[middle:])
            return
        # A file that vanished or grew while it was read is taken at its next state.
        code, _, err = change.git.ask(*args, stdin=lines(paths))
        if code:
            self._skipped[paths[0]] = f"git can't store it ({said_by_git(err, code)}): not covered"
