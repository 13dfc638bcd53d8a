"""`bnd step RUN`: walk through it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from beyond.cli.completion import RunType

#: Of a number that may be a step.
_DIGITS = 20
_HELP = "Enter or n: next   p: back   number: go there   /text: search   o: open whole   f: fork here   q: quit"


@click.command()
@click.argument("run", type=RunType())
@click.pass_context
def command(ctx: click.Context, run: str) -> int:
    """Walk through a run step by step. From a pipe, the same words are read, one a line.

    Enter or n: next; p: back; a number: go there (-1 is the last step); /text: search; o: the whole content; f: fork
    here; q: quit. With --json every step is printed as `show --json` prints it, everything else on stderr.
    """
    from beyond.agents import content_of
    from beyond.cli import options, tell
    from beyond.cli.text import ascii_only, one_line, visible
    from beyond.naming import resolve
    from beyond.query import connect
    from beyond.timeline import Walk, head_lines, step_json, step_lines

    settings = options(ctx)
    with connect(settings.journal, content_of) as query:
        found = resolve(query.con, run, tell=tell)
        walk = Walk(query, found)
        talking = sys.stdin.isatty()

        def say(text: str) -> None:
            click.echo(text, err=settings.json)

        def show(full: bool = False) -> None:
            step, notes = walk.here()
            if settings.json:
                click.echo(step_json(step, ascii_only=ascii_only()))
                return
            for line in step_lines(step, full=full, notes=notes, style=click.style):
                click.echo(line)

        if not settings.json and not settings.quiet:
            for line in head_lines(query, found):
                click.secho(visible(line), bold=True)
        if talking and not settings.quiet:
            say(click.style(_HELP, dim=True))
        if not walk.count:
            say("this run has no steps")
            return 0
        show()
        while True:
            if talking:
                click.echo(f"{walk.place + 1}/{walk.count}> ", nl=False, err=settings.json)
            line = sys.stdin.readline()
            word = line.strip()
            if not line or word == "q":
                return 0
            if word in ("", "n", "p"):
                show() if walk.go(-1 if word == "p" else 1) else say("no further step")
            elif word.removeprefix("-").isdecimal():
                known = len(word) <= _DIGITS and walk.go_to(int(word))
                show() if known else say(f"no step {one_line(word, 20)}: 1 to {walk.last}")
            elif word.startswith("/"):
                show() if walk.search(word[1:]) else say(f"{visible(word[1:])!r} stands in no later step")
            elif word == "o":
                show(full=True)
            elif word == "f":
                seq = walk.here()[0].row["seq"]
                _fork(found.run, seq, settings, say)
            elif word in ("?", "h", "help"):
                say(_HELP)
            else:
                say(f"{visible(word)!r} is none of: {_HELP}")


def _fork(run: str, seq: int, settings: Any, say: Callable[[str], None]) -> None:
    """Forks here, and says how to go on; what can't be forked is said and the walk goes on."""
    from beyond.cli.text import visible
    from beyond.errors import BeyondError
    from beyond.fork import Options, fork
    from beyond.journal import Journal
    from beyond.naming import resolve

    try:
        with Journal.open(settings.journal, create=False) as journal:
            made = fork(journal, resolve(journal.con, run), str(seq), Options(), tell=say)
    except BeyondError as error:
        say(f"not forked: {error}")
        return
    say(visible(f"{made.run}  {made.method} fork of {made.parent}@{made.seq}: {made.command}"))
