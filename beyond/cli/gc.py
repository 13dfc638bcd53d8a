"""`bnd gc`: drops what nothing refers to and packs the rest better."""

from __future__ import annotations

import json

import click


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Make the journal smaller: drop what nothing refers to, pack everything again after verifying it."""
    from beyond.cli import options
    from beyond.errors import JournalDamaged
    from beyond.journal import Journal
    from beyond.journal.forget import gc
    from beyond.journal.verify import verify
    from beyond.record.checkpoints import drop_stale

    settings = options(ctx)
    with Journal.open(settings.journal, create=False) as journal:
        for problem in verify(journal):  # what a damaged file seems not to need may be all that is left of something
            raise JournalDamaged(f"{problem}; nothing was changed, `bnd fsck` lists all")
        refs = drop_stale(journal)
        done = gc(journal)
    if settings.json:
        click.echo(json.dumps({"before": done.before, "after": done.after, "packs": done.packs, "refs": refs}))
    elif not settings.quiet:
        verb = f"packed into {done.packs}" if done.packs else "packed already"
        click.echo(f"{verb}: {done.before:,} bytes before, {done.after:,} after")
        if refs:
            click.echo(f"{refs} refs of forgotten checkpoints deleted")
    return 0
