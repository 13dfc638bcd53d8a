"""What a checkpoint is told and what it says."""

from __future__ import annotations

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What one checkpoint may add. Files above stay out, are named, and stay out until they change."""

    max_file: int = 100 * MB
    max_new_total: int = 2048 * MB
    max_files: int = 100_000


@dataclass(frozen=True)
class Skipped:
    """A path that a checkpoint doesn't cover as it is on disk, and why. `os.fsencode(path)` gives the name's bytes."""

    path: str
    why: str


@dataclass(frozen=True)
class Snapshot:
    """The work tree at one moment: tree id, the commit of HEAD, files in it, what isn't covered.

    `sensitive` names untracked files that look like secrets and are in the tree.
    """

    tree: str
    head: str | None
    files: int
    skipped: tuple[Skipped, ...] = ()
    sensitive: tuple[str, ...] = ()
