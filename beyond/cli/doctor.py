"""`bnd doctor`: what is here."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import click


def _version(program: str) -> str | None:
    """What the installed program says its version is. Runs it without network use: `--version` only."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "?"
    words = (done.stdout or done.stderr).split()
    return next((w for w in words if w[:1].isdigit()), "?")


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Show the agent CLIs and their stores on this machine, and the journal."""
    import platform
    import sqlite3

    from beyond import __version__, agents
    from beyond.cli import options
    from beyond.cli.text import visible
    from beyond.errors import BeyondError
    from beyond.journal import check, default_path

    settings = options(ctx)
    rows: list[dict[str, Any]] = []
    for name, row in agents.AGENTS.items():
        home = agents.home(name)
        founds = list(agents.conversations(name))
        version = _version(row.program)
        rows.append(
            {
                "cli": name,
                "title": row.title,
                "installed": version,
                "format": None if version is None else "tested" if version in row.formats else "not tested",
                "tested": list(row.formats),
                "store": str(home),
                "there": home.is_dir(),
                "conversations": sum(f.agent == "main" for f in founds),
                "subagents": sum(f.agent != "main" for f in founds),
                "bytes": sum(f.stat[0] for f in founds),
            }
        )
    journal = settings.journal or default_path()
    state: dict[str, Any] = {"path": str(journal)}
    code = 0
    try:
        state["bytes"] = journal.stat().st_size if check(journal) else 0
        state["state"] = "ready" if state["bytes"] else "not made yet"
    except BeyondError as error:
        state["state"], code = str(error), 1
    versions = {"beyond": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if settings.json:
        click.echo(json.dumps({"versions": versions, "journal": state, "agents": rows}))
        return code
    click.echo("  ".join(f"{name} {version}" for name, version in versions.items()))
    click.echo(
        visible(f"journal  {state['path']}: {state['state']}" + (f", {state['bytes']:,} bytes" if state.get("bytes") else ""))
    )
    for row_ in rows:
        there = f"{row_['conversations']} conversations, {row_['subagents']} subagents, {row_['bytes']:,} bytes"
        installed = f"{row_['installed']} ({row_['format']})" if row_["installed"] else "not on the PATH"
        click.echo(visible(f"{row_['cli']:<8} {row_['title']}: {installed}"))
        click.echo(visible(f"         {row_['store']}: {there if row_['there'] else 'no store'}"))
    return code
