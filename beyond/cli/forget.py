"""`bnd forget RUN`: really deletes."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("run")
@click.pass_context
def command(ctx: click.Context, run: str) -> int:
    """Delete RUN and its subagents from the journal for good.

    What only it used is in no pack, page, index or log any more. Forks keep their own lines. The agent CLI's own
    files are not touched; the conversation does not come back with `record --all`, only when asked for by its id.
    Exits 1 when another process that reads the journal keeps old bytes alive.
    """
    from beyond import search
    from beyond.cli import options
    from beyond.journal import Journal
    from beyond.journal.forget import forget
    from beyond.naming import resolve_id
    from beyond.record.derive import Survivors

    settings = options(ctx)
    with Journal.open(settings.journal, create=False) as journal:
        gone = forget(journal, resolve_id(journal.con, run), Survivors(journal), search.reset)
    if settings.json:
        click.echo(json.dumps({"runs": gone.runs, "events": gone.events, "bytes": gone.bytes}))
    elif not settings.quiet:
        click.echo(f"forgotten: {', '.join(gone.runs)} ({gone.events} events, {gone.bytes} bytes of lines)")
    return 0
