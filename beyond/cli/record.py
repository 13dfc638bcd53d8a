"""`bnd record`: from the agent CLIs' own transcripts into the journal."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from beyond.errors import UsageError


def _line(outcome: Any) -> str:
    from beyond.cli.text import visible

    place = outcome.cli if outcome.agent == "main" else f"{outcome.cli} subagent {outcome.agent}"
    parts = [outcome.run or "-" * 12, outcome.status, place]
    if outcome.status == "unchanged":
        parts.append(str(outcome.path))
    elif outcome.run:
        parts.append(f"+{outcome.new_events} events")
        if outcome.title:
            parts.append(outcome.title)
    if not outcome.new_events and outcome.subagents and outcome.status == "new":
        parts.append(f"(no main transcript, {outcome.subagents} subagent file{'s' * (outcome.subagents != 1)})")
    line: str = visible("  ".join(parts))
    return line


def _document(outcome: Any) -> dict[str, Any]:
    return {
        "run": outcome.run,
        "cli": outcome.cli,
        "agent": outcome.agent,
        "status": outcome.status,
        "path": str(outcome.path),
        "title": outcome.title,
        "new_events": outcome.new_events,
        "new_lines": outcome.new_lines,
        "damage": outcome.damage,
        "warnings": outcome.warnings,
    }


def report(outcomes: list[Any], *, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Prints one line a run; damage and warnings go to stderr. Returns the exit code."""
    from beyond.cli.text import visible

    code = 0
    for outcome in outcomes:
        if as_json:
            click.echo(json.dumps(_document(outcome)))
        elif not quiet and (outcome.status not in ("unchanged", "empty", "failed") or verbose):
            click.echo(_line(outcome))
        for item in outcome.bad:
            code = 1
            where = f"byte {item['offset']}, {item['length']} bytes"
            click.echo(
                f"bnd: {visible(str(outcome.path))}: line {item['line']} ({where}): {item['what']}: read with damage",
                err=True,
            )
        for warning in outcome.warnings:
            if outcome.status == "failed":
                code = 1
            click.echo(f"bnd: {visible(str(outcome.path))}: {visible(warning)}", err=True)
    if not outcomes and not as_json and not quiet:
        click.echo("nothing to record: no conversation in the stores here (see `bnd doctor`)", err=True)
    elif not as_json and not quiet and not verbose:
        same = sum(o.status == "unchanged" for o in outcomes)
        if same:
            click.echo(f"{same} unchanged", err=True)
    return code


@click.command()
@click.argument("what", required=False)
@click.option("--all", "everything", is_flag=True, help="Every conversation in the stores of this machine.")
@click.option("--cli", "cli_name", metavar="NAME", help="Only this agent CLI: claude or kimi.")
@click.option("--label", metavar="TEXT", help="A name of your own for the run.")
@click.option("--follow", "-f", is_flag=True, help="Go on recording what is written here until Ctrl-C.")
@click.option("--git/--no-git", default=None, help="Checkpoints of the files: on with --follow; alone, one snapshot of now.")
@click.option("--hooks", is_flag=True, help="With --follow: exact checkpoints, by the CLI's own hooks while it lasts.")
@click.pass_context
def command(
    ctx: click.Context,
    what: str | None,
    everything: bool,
    cli_name: str | None,
    label: str | None,
    follow: bool,
    git: bool | None,
    hooks: bool,
) -> int:
    """Record conversations from the agent CLIs' own transcripts.

    WHAT is a transcript file or a conversation's id; without it, the newest conversation of this directory.
    Recording again appends what is new. Exits 1 when something could not be read; it is named, the rest is kept.
    """
    from beyond import agents
    from beyond.cli import options
    from beyond.event import printable
    from beyond.journal import Journal
    from beyond.record import Recorder, find

    settings = options(ctx)
    label = printable(label) if label is not None else None
    if what and everything:
        raise UsageError("--all takes no conversation: leave one of the two out")
    if cli_name:
        agents.row(cli_name)
    names = [cli_name] if cli_name else list(agents.AGENTS)
    if follow:
        from beyond.record.follow import follow as run_follow

        return run_follow(
            settings, names, what=what, everything=everything, label=label, report=report, git=git is not False, hooks=hooks
        )
    if hooks:
        raise UsageError("--hooks goes with --follow: add it")
    if git and everything:
        raise UsageError("--git keeps the files of one conversation: leave --all out")
    founds = [f for name in names for f in agents.conversations(name)] if everything else find(what, cli_name)
    with Journal.open(settings.journal) as journal:
        for warning in journal.warnings:
            click.echo(f"bnd: {warning}", err=True)
        recorder = Recorder(journal, label)
        try:
            outcomes = _record(recorder, founds, again=what is not None, quiet=settings.quiet or settings.json)
            recorder.finish()
            if everything:
                recorder.mark_gone([agents.home(n) for n in names], {str(f.path) for f in founds})
        finally:
            recorder.close()
        if git:
            _snapshot(journal, outcomes)
    return report(outcomes, as_json=settings.json, quiet=settings.quiet, verbose=settings.verbose)


def _snapshot(journal: Any, outcomes: list[Any]) -> None:
    """One checkpoint of the files as they are now, labelled as taken after the fact."""
    from pathlib import Path

    from beyond.record.checkpoints import Checkpointer

    points = Checkpointer(journal, Path.cwd(), lambda text: click.echo(f"bnd: {text}", err=True))
    points.after_the_fact(str(outcomes[0].path))


def _record(recorder: Any, founds: list[Any], *, again: bool, quiet: bool) -> list[Any]:
    if quiet or not sys.stderr.isatty():
        return recorder.add_all(founds, again=again, progress=lambda _: None)  # type: ignore[no-any-return]
    with click.progressbar(length=sum(f.stat[0] for f in founds), label="recording", file=sys.stderr) as bar:
        return recorder.add_all(founds, again=again, progress=lambda found: bar.update(found.stat[0]))  # type: ignore[no-any-return]
