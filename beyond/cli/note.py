"""`bnd note RUN[:SEQ] TEXT`: a remark."""

from __future__ import annotations

import click

from beyond.cli.completion import RunType
from beyond.errors import UsageError


@click.command()
@click.argument("run", type=RunType(), metavar="RUN[:SEQ]")
@click.argument("text")
@click.pass_context
def command(ctx: click.Context, run: str, text: str) -> int:
    """Leave a remark on a run, or on one of its steps; the timeline shows it."""
    from beyond.cli import options, tell
    from beyond.cli.text import write_json
    from beyond.event import printable
    from beyond.journal import Journal
    from beyond.journal.append import add_note
    from beyond.naming import resolve_place

    settings = options(ctx)
    text = printable(text)
    if not text.strip():
        raise UsageError("the remark is empty: give some text")
    with Journal.open(settings.journal, create=False) as journal:
        found, seq = resolve_place(journal.con, run, tell=tell)
        add_note(journal, found.id, seq, text)
    place = found.run if seq is None else f"{found.run}:{seq}"
    if settings.json:
        write_json({"run": found.run, "seq": seq, "text": text})
    elif not settings.quiet:
        click.echo(f"noted on {place}")
    return 0
