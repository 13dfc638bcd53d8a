"""`bnd fsck`: is everything that was recorded still there, byte for byte?"""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Check the journal: every hash, link, reference, cursor and guard. Exits 1 when something is wrong."""
    from beyond.cli import options
    from beyond.cli.text import one_line
    from beyond.journal import Journal
    from beyond.journal.verify import verify
    from beyond.record.derive import differing

    settings = options(ctx)
    show = sys.stderr.isatty() and not settings.quiet and not settings.json

    def progress(stage: str) -> None:
        if show:
            click.echo(f"checking {stage}", err=True)

    problems: list[str] = []
    with Journal.inspect(settings.journal) as journal:
        for problem in verify(journal, progress):
            problems.append(problem)
        if not problems:
            progress("links")
            problems.extend(differing(journal))
        counts = (
            {name: journal.con.execute(f"select count(*) from {name}").fetchone()[0] for name in ("run", "event", "blob", "pack")}
            if not problems
            else {}
        )
    if settings.json:
        click.echo(json.dumps({"ok": not problems, "problems": problems, **counts}))
    else:
        for problem in problems:
            click.echo(f"bnd: {one_line(problem)}", err=True)
        if not problems and not settings.quiet:
            click.echo("ok: " + ", ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in counts.items()))
    return 1 if problems else 0
