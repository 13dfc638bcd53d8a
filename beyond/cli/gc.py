"""`bnd gc`: drops what nothing refers to and packs the rest better."""

from __future__ import annotations

import json

import click


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Make the journal smaller: drop what nothing refers to, pack everything again after verifying it."""
    from beyond.cli import options
    from beyond.journal import Journal
    from beyond.journal.forget import gc

    settings = options(ctx)
    with Journal.open(settings.journal, create=False) as journal:
        done = gc(journal)
    if settings.json:
        click.echo(json.dumps({"before": done.before, "after": done.after, "packs": done.packs}))
    elif not settings.quiet:
        verb = f"packed into {done.packs}" if done.packs else "packed already"
        click.echo(f"{verb}: {done.before:,} bytes before, {done.after:,} after")
    return 0
