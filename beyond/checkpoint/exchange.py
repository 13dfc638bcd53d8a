"""Checkpoints' objects as one pack: what an exported journal carries, and what an import puts back."""

from __future__ import annotations

from collections.abc import Iterable

from beyond.checkpoint.git import Git, object_id
from beyond.errors import CheckpointMissing


def pack(git: Git, trees: Iterable[str], heads: Iterable[str]) -> bytes:
    """A pack of everything that the trees hold, and of the commits `heads` with their files but without their history."""
    commits = sorted({object_id(head) for head in heads})
    roots = sorted({object_id(tree) for tree in trees}) + [f"{commit}^{{tree}}" for commit in commits]
    said = git.run("cat-file", "--batch-check", stdin="".join(f"{name}\n" for name in [*roots, *commits]).encode())
    if b" missing\n" in said:
        gone = next(line for line in said.splitlines() if line.endswith(b" missing"))
        raise CheckpointMissing(
            f"{gone.decode()[:12]} is not in the repository: it was pruned; export without files (--no-files)"
        )
    asked = "".join(f"{root}\n" for root in roots).encode()
    listed = git.run("rev-list", "--objects", "--no-object-names", "--stdin", stdin=asked)
    return git.run("pack-objects", "-q", "--stdout", stdin=listed + "".join(f"{commit}\n" for commit in commits).encode())


def unpack(git: Git, data: bytes) -> None:
    """Puts a pack's objects into a repository, every one checked. They are unreferenced until a ref holds them."""
    git.run("index-pack", "--stdin", "--fsck-objects", stdin=data)
