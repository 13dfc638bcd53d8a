"""`bnd search TEXT`: full-text."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import Any

import click

from beyond.cli.completion import KindType, RunType
from beyond.errors import JournalDamaged, JournalError


@click.command()
@click.argument("text")
@click.option("--run", type=RunType(), metavar="RUN", help="Only in this run.")
@click.option("--kind", "kinds", multiple=True, type=KindType(), help="Only steps of this kind; may be repeated.")
@click.option("--project", metavar="DIR", help="Only runs that began in this directory or below.")
@click.option("-n", "count", type=click.IntRange(min=1), default=20, show_default=True, help="At most N hits.")
@click.pass_context
def command(ctx: click.Context, text: str, run: str | None, kinds: tuple[str, ...], project: str | None, count: int) -> int:
    """Find text in everything recorded, newest first.

    All words have to be there, in any order and case; "a phrase in quotes" stands as it is, prefix* finds beginnings.
    Exits 0 also when nothing is found.
    """
    from beyond import search
    from beyond.agents import content_of
    from beyond.cli import options, tell
    from beyond.cli.text import write_json, write_lines
    from beyond.naming import resolve
    from beyond.query import connect

    settings = options(ctx)
    search.parse(text)
    indexed = _update(settings)
    with connect(settings.journal, content_of) as query:
        number = resolve(query.con, run, tell=tell).id if run else None
        place = os.path.realpath(project) if project else None
        damage: list[JournalDamaged] = []
        found = search.find(query, text, run=number, kinds=kinds, project=place, indexed=indexed, damaged=damage.append)
        hits = list(islice(found, min(count, sys.maxsize)))
    if settings.json:
        for hit in hits:
            write_json({"run": hit.run, "seq": hit.seq, "ts": hit.ts, "kind": hit.kind, "tool": hit.tool,
                        "snippet": hit.snippet})  # fmt: skip
        return _complain(damage)
    write_lines((line for hit in hits for line in _lines(hit)), pager=True)
    if not hits and not settings.quiet:
        click.echo("nothing found", err=True)
    return _complain(damage)


def _complain(damage: list[JournalDamaged]) -> int:
    """Names the first damage that the search met. Returns the exit code."""
    for error in damage[:1]:
        click.echo(f"bnd: {error}", err=True)
    return 1 if damage else 0


def _lines(hit: Any) -> list[str]:
    from beyond.cli.text import one_line, visible

    head = f"{hit.run}:{hit.seq}  {(hit.ts or '-')[:16].replace('T', ' ')}  {hit.kind}"
    if hit.tool:
        head += f" {hit.tool}"
    if hit.title:
        head += f"  {one_line(hit.title, 60)}"
    out, at = [], 0
    for start, end in hit.marks:
        if start >= at:
            out += [
                visible(hit.snippet[at:start]),
                click.style(visible(hit.snippet[start:end]), bold=True, fg="yellow"),
            ]
            at = end
    out.append(visible(hit.snippet[at:]))
    return [visible(head), "    " + "".join(out)]


def _update(settings: Any) -> bool:
    """Brings the index up to date where the journal can be written. Returns whether it can be used."""
    from beyond import search
    from beyond.agents import content_of
    from beyond.journal import Journal
    from beyond.query import connect

    with connect(settings.journal, content_of) as query:
        missing = search.behind(query.con)
        if not missing:
            return search.exists(query.con)
        try:
            with Journal.open(settings.journal, create=False, timeout=5) as journal:
                if sys.stderr.isatty() and not settings.quiet and missing > 5000:
                    with click.progressbar(length=missing, label="indexing", file=sys.stderr) as bar:
                        search.update(journal.con, journal.write, query.content, bar.update)
                else:
                    search.update(journal.con, journal.write, query.content)
        except JournalError as error:
            if settings.verbose:
                click.echo(f"bnd: no index ({error}): looking through everything", err=True)
            return False
    return True
