"""`bnd show RUN`: the timeline."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from beyond.cli.completion import KindType, RunType
from beyond.errors import NotFound, Refused, UsageError


@click.command()
@click.argument("run", type=RunType())
@click.option("--at", metavar="N", help="Only the causal past of a step: N, -N (from the end) or turn:N.")
@click.option("--kind", "kinds", multiple=True, type=KindType(), help="Only steps of this kind; may be repeated.")
@click.option("--tool", "tools", multiple=True, metavar="NAME", help="Only calls and results of this tool; may be repeated.")
@click.option("--raw", is_flag=True, help="The source file's own bytes instead.")
@click.option(
    "--generation",
    "-G",
    type=click.IntRange(min=0),
    metavar="G",
    help="With --raw: an earlier state of a rewritten file.",
)
@click.option("--full", is_flag=True, help="Long contents whole.")
@click.option("--force", is_flag=True, help="With --raw: also to a terminal.")
@click.pass_context
def command(
    ctx: click.Context,
    run: str,
    at: str | None,
    kinds: tuple[str, ...],
    tools: tuple[str, ...],
    raw: bool,
    generation: int | None,
    full: bool,
    force: bool,
) -> int:
    """Print a run's timeline, subagents inline.

    RUN is an id's unique prefix, @ (newest run of this project), @1 (the one before it), a label or a
    conversation's id. Steps on branches that were rewound away are marked ~.
    """
    from beyond.agents import content_of
    from beyond.cli import options, tell
    from beyond.cli.text import ascii_only, visible, write_lines
    from beyond.naming import resolve
    from beyond.query import connect
    from beyond.timeline import head_lines, notes_of, step_json, step_lines, steps

    settings = options(ctx)
    if generation is not None and not raw:
        raise UsageError("--generation goes with --raw: add it, or leave it out")
    if raw and (at or kinds or tools or full or settings.json):
        raise UsageError("--raw prints a file as it is: leave --at, --kind, --tool, --full and --json out")
    with connect(settings.journal, content_of) as query:
        found = resolve(query.con, run, tell=tell)
        if raw:
            return _raw(query, found, generation, force)
        walk = steps(query, found, at=at, kinds=kinds, tools=tools, usage=settings.json)
        if settings.json:
            plain = ascii_only()
            for step in walk:
                sys.stdout.write(step_json(step, ascii_only=plain) + "\n")
            return 0

        def lines() -> Iterator[str]:
            for line in head_lines(query, found):
                yield click.style(visible(line), bold=True)
            remarks: dict[str, dict[int | None, list[str]]] = {}
            for note in remarks.setdefault(found.run, notes_of(query, found.run)).get(None, []):
                yield click.style("note: " + " ".join(visible(note).split()), fg="yellow")
            for step in walk:
                if step.run not in remarks:
                    remarks[step.run] = notes_of(query, step.run)
                about = remarks[step.run].get(step.row["seq"], [])
                yield from step_lines(step, full=full, notes=about, style=click.style)

        write_lines(lines(), pager=True)
    return 0


def _raw(query: Any, run: Any, generation: int | None, force: bool) -> int:
    rows = query.execute("select generation, id from source where run = ? order by generation", (run.id,)).fetchall()
    if not rows:
        raise NotFound(f"run {run.run} has no file of its own: it stands in its parent's, `bnd show` prints it there")
    known = dict(rows)
    chosen = rows[-1][0] if generation is None else generation
    if chosen not in known:
        raise NotFound(f"run {run.run} has generations 0 to {rows[-1][0]}: --generation {generation} is not one of them")
    if sys.stdout.isatty() and not force:
        raise Refused("raw bytes of a transcript can steer your terminal: pipe them, or add --force")
    for piece in query.reader.raw(known[chosen]):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()
    return 0
