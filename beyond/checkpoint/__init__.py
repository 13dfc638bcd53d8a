"""Checkpoints: the files of a moment as a git tree, and the way back into a work tree of its own.

The user's index, HEAD, branches, reflogs and files are never written. Everything of ours is a folder `bnd` beside the
work tree's git folder, objects, and refs under `refs/bnd/`.
"""

from __future__ import annotations

from beyond.checkpoint.facts import Limits, Skipped, Snapshot
from beyond.checkpoint.repository import Changed, Kept, Repository
from beyond.checkpoint.restore import Restored

__all__ = ["Changed", "Kept", "Limits", "Repository", "Restored", "Skipped", "Snapshot"]
