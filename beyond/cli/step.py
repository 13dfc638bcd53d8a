"""`bnd step RUN`: walk through it."""

from __future__ import annotations

import sys

import click

from beyond.cli.completion import RunType

_HELP = "Enter or n: next   p: back   number: go there   /text: search   o: open whole   f: fork here   q: quit"


@click.command()
@click.argument("run", type=RunType())
@click.pass_context
def command(ctx: click.Context, run: str) -> int:
    """Walk through a run step by step. From a pipe, the same words are read, one a line."""
    from beyond.agents import content_of
    from beyond.cli import COMMANDS, colour, options
    from beyond.cli.text import visible
    from beyond.naming import resolve
    from beyond.query import connect
    from beyond.timeline import Walk, head_lines, step_lines

    settings = options(ctx)
    with connect(settings.journal, content_of) as query:
        found = resolve(query.con, run, tell=lambda text: click.echo(f"bnd: {text}", err=True))
        walk = Walk(query, found)
        for line in head_lines(query, found):
            click.secho(visible(line), bold=True, color=colour())
        talking = sys.stdin.isatty()
        if talking and not settings.quiet:
            click.secho(_HELP, dim=True, color=colour())
        if not walk.count:
            click.echo("this run has no steps")
            return 0

        def show(full: bool = False) -> None:
            step, notes = walk.here()
            for line in step_lines(step, full=full, notes=notes, style=click.style):
                click.echo(line, color=colour())

        show()
        while True:
            if talking:
                click.echo(f"{walk.place + 1}/{walk.count}> ", nl=False)
            line = sys.stdin.readline()
            if not line:
                return 0
            word = line.strip()
            if word == "q":
                return 0
            if word in ("", "n", "p"):
                show() if walk.go(-1 if word == "p" else 1) else click.echo("no further step")
            elif word.lstrip("-").isdigit():
                show() if walk.go_to(int(word)) else click.echo(f"no step {word}: 1 to {walk.last}")
            elif word.startswith("/"):
                show() if walk.search(word[1:]) else click.echo(f"{visible(word[1:])!r} stands in no later step")
            elif word == "o":
                show(full=True)
            elif word == "f":
                seq = walk.here()[0].row["seq"]
                can = "fork" in COMMANDS
                click.echo(f"bnd fork {found.run} --at {seq}" if can else "this version of beyond can't fork yet")
            elif word in ("?", "h", "help"):
                click.echo(_HELP)
            else:
                click.echo(f"{visible(word)!r} is none of: {_HELP}")
