"""`bnd hook`: what the agent CLIs run for `record --follow --hooks`. Not for people."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(hidden=True)
@click.argument("spool", type=click.Path(path_type=Path))
def command(spool: Path) -> int:
    """Take a checkpoint for the follower whose spool folder this is. Silent, and always 0: no agent may fail by it."""
    from beyond.record.hooks import take

    take(spool, sys.stdin.buffer.read(1 << 24))
    return 0
