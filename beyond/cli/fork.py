"""`bnd fork RUN --at N`: the files and the memory of a step, and nothing of what came after."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from beyond.cli.completion import RunType


@click.command()
@click.argument("run", type=RunType())
@click.option("--at", required=True, metavar="STEP", help="N, -N (from the end), turn:N or cp:N (checkpoint).")
@click.option(
    "--method",
    type=click.Choice(["auto", "surgical", "synthesis"]),
    default="auto",
    show_default=True,
    help="A native conversation cut at the step, or a fresh one with a handoff.",
)
@click.option("--into", metavar="CLI", help="Go on in another agent CLI.")
@click.option("--env/--no-env", default=None, help="Demand the files of the step, or leave files alone.")
@click.option("--isolated", is_flag=True, help="A repository of its own, in which not even `git log --all` knows later commits.")
@click.option("--label", metavar="TEXT", help="A name of your own for the fork.")
@click.option("--dest", type=click.Path(path_type=Path), metavar="DIR", help="Where its files go. [default: ~/.bnd/worktrees/…]")
@click.option("--prompt", metavar="TEXT", help="Resume it with this prompt, not interactively.")
@click.option("--exec", "execute", is_flag=True, help="Resume it at once.")
@click.pass_context
def command(
    ctx: click.Context, run: str, at: str, method: str, into: str | None, env: bool | None, isolated: bool, label: str | None,
    dest: Path | None, prompt: str | None, execute: bool,
) -> int:  # fmt: skip
    """Fork RUN at a step: its files in a new work tree, its conversation cut there, and the command that resumes it.

    The original conversation, your index, HEAD, branches and files are not touched. Exits 3 when `--method surgical` is
    asked for and surgery is not open for the installed version (see `bnd doctor`).
    """
    from beyond.cli import options, tell
    from beyond.fork import Options, fork
    from beyond.journal import Journal
    from beyond.naming import resolve

    settings = options(ctx)
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        tell(text)

    with Journal.open(settings.journal, create=False) as journal:
        named = resolve(journal.con, run, tell=tell)
        wanted = Options(method, into, env, isolated, label, dest.absolute() if dest else None, prompt=prompt)
        made = fork(journal, named, at, wanted, tell=say)
    if settings.json:
        click.echo(json.dumps(_document(made)))
    else:
        _print(made, [note for note in made.notes if note not in told], quiet=settings.quiet)
    if execute:
        sys.stdout.flush()
        environment = {name: value for name, value in os.environ.items() if name not in made.launch.unset}
        os.chdir(made.launch.cwd)
        # The terminal, signals and exit status are the CLI's from here on.
        os.execvpe(made.launch.argv[0], list(made.launch.argv), {**environment, **made.launch.env})  # noqa: S606
    return 0


def _document(made: Any) -> dict[str, Any]:
    return {
        "run": made.run,
        "cli": made.cli,
        "parent_run": made.parent,
        "forked_at": made.seq,
        "method": made.method,
        "reason": made.reason,
        "conversation": made.conversation,
        "worktree": made.worktree,
        "checkpoint": made.checkpoint,
        "aligned": made.aligned,
        "paths": list(made.paths),
        "notes": list(made.notes),
        "command": made.command,
        "argv": list(made.launch.argv),
        "env": dict(made.launch.env),
        "unset": list(made.launch.unset),
    }


def _print(made: Any, notes: list[str], *, quiet: bool) -> None:
    from beyond.cli.text import visible

    if not quiet:
        where = "no checkpoint" if made.checkpoint is None else f"checkpoint of event {made.checkpoint}"
        click.echo(visible(f"{made.run}  {made.method} fork of {made.parent}@{made.seq} ({where})"))
        click.echo(visible(f"files  {made.worktree}"))
        for note in notes:
            click.echo(visible(f"note   {note}"))
        click.echo("resume it with:")
    click.echo(visible(made.command))
