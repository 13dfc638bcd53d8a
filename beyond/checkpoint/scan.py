"""What git says of the work tree: what differs from the kept index, what is untracked, what the user's index has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from beyond.checkpoint.git import Git, failed, names


@dataclass
class Tracked:
    """What the user's index says."""

    #: Every name with its mode and object; a conflict counts once.
    entries: dict[str, list[str]] = field(default_factory=dict)
    #: Not on disk on purpose.
    sparse: list[str] = field(default_factory=list)
    links: set[str] = field(default_factory=set)
    #: Neither conflicts nor flags: the index may be copied as it is.
    plain: bool = True


@dataclass
class Listing:
    """What two commands said of the work tree."""

    changed: list[str]
    others: list[str]
    nested: list[str]
    #: The user's index can't be read, or there is none.
    no_index: bool


def read_tracked(user: Git, head: str | None, no_index: bool) -> Tracked:
    """The user's index; where it can't be read, the files of HEAD count as tracked."""
    found = Tracked()
    if no_index:
        found.plain = False
        if head is not None:
            for row in user.run("ls-tree", "-r", "-z", "--full-tree", head).split(b"\0")[:-1]:
                meta, _, name = row.partition(b"\t")
                mode, _type, oid = meta.decode().split(" ")
                _track(found, os.fsdecode(name), mode, oid)
        return found
    for row in user.run("ls-files", "-z", "-s", "-v").split(b"\0")[:-1]:
        meta, _, name = row.partition(b"\t")
        tag, mode, oid, stage = meta.decode().split(" ")
        path = os.fsdecode(name)
        if stage != "0" or tag.islower():
            found.plain = False
        if tag in "Ss":
            found.plain = False
            found.sparse.append(path)
        _track(found, path, mode, oid)
    return found


def _track(found: Tracked, path: str, mode: str, oid: str) -> None:
    found.entries[path] = [mode, oid]
    if mode == "160000":
        found.links.add(path)


def listing(kept: Git, user: Git, void: Path, no_index: bool, same: Callable[[], Listing | None]) -> Listing:
    """Runs both commands beside each other: each takes about half of what `git status` does. Where `same` knows what the
    second would say, it is left out."""
    first = kept.start("diff-files", "-z", "--raw", "--no-renames", "--ignore-submodules=dirty")
    try:
        known = same()
        args = ("ls-files", "-z", "--others", "--exclude-standard")
        empty = user.also({"GIT_INDEX_FILE": void})
        second = None if known else (empty if no_index else user).start(*args)
        changed = [os.fsdecode(name) for name in first.output().split(b"\0")[1::2]]
    except BaseException:
        first.stop()
        raise
    if second is None:
        assert known is not None
        known.changed = changed
        return known
    code, out, err = second.all()
    if code and not no_index:
        no_index = True
        code, out, err = empty.start(*args).all()
    if code:
        raise failed(args, code, err)
    others = names(out)
    nested = [name for name in others if name.endswith("/")]
    if nested:
        others = [name for name in others if not name.endswith("/")]
    return Listing(changed, others, nested, no_index)


def dirty_link(toplevel: Path, link: str) -> bool:
    """Whether a submodule may hold changes of its own. Its filters and hooks don't run: only stat data is compared."""
    # A broken .git there must not lead git to the repository around it.
    git = Git(toplevel / link, {"GIT_CEILING_DIRECTORIES": toplevel})
    code, out, _ = git.ask("diff-files", "--raw", "--no-renames", "--ignore-submodules=dirty")
    if code or out:
        return True
    code, out, _ = git.ask("diff-index", "--cached", "--raw", "--no-renames", "HEAD")
    if code or out:
        return True
    code, out, _ = git.ask("ls-files", "-z", "--others", "--exclude-standard", "--directory", "--no-empty-directory")
    return bool(code or out)
