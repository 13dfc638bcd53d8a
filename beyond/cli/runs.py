"""`bnd runs`: what is recorded."""

from __future__ import annotations

import shutil
import sys

import click


@click.command()
@click.option("--project", metavar="DIR", help="Only runs that began in this directory or below ('.' for here).")
@click.option("--cli", "cli_name", metavar="NAME", help="Only runs of this agent CLI.")
@click.option("-n", "count", type=click.IntRange(min=1), help="Only the newest N.")
@click.option("--subagents", is_flag=True, help="Subagents' runs too.")
@click.pass_context
def command(ctx: click.Context, project: str | None, cli_name: str | None, count: int | None, subagents: bool) -> int:
    """List what is recorded, newest first."""
    from beyond.agents import content_of
    from beyond.cli import options
    from beyond.cli.text import write_json, write_lines
    from beyond.errors import NotFound
    from beyond.query import connect
    from beyond.timeline import any_runs, list_runs, run_table

    settings = options(ctx)
    try:
        with connect(settings.journal, content_of) as query:
            rows = list_runs(query, project=project, cli=cli_name, count=count, subagents=subagents)
            anything = bool(rows) or any_runs(query)
    except NotFound:
        if settings.journal is not None:  # named on the command line: a slip of the finger should be heard of
            raise
        rows, anything = [], False
    if settings.json:
        write_json(rows)
    elif not rows and not settings.quiet:
        click.echo(
            "no run fits: `bnd runs` without options lists all" if anything
            else "nothing recorded yet: `bnd record` in a project, or `bnd record --all`",
            err=True,
        )  # fmt: skip
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        write_lines(run_table(rows, width), pager=True)
    return 0
