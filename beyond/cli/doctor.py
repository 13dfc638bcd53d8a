"""`bnd doctor`: what is here."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.option("--prove", metavar="CLI", help="Prove surgery on the installed claude or kimi: about two minutes.")
@click.pass_context
def command(ctx: click.Context, prove: str | None) -> int:
    """Show the agent CLIs and their stores on this machine, their gates, and the journal.

    A gate is open where a fork may be written natively: for a version in the shipped table, or one that was proven here.
    `--prove` runs the installed CLI in a scratch home against a scripted model on loopback, forks what it wrote at every
    kind of cut, resumes each fork and looks for anything of the future. Exits 1 when the proof fails; the gate is closed
    then, until another one passes.
    """
    if prove is not None:
        return _prove(ctx, prove)
    import platform
    import sqlite3

    from beyond import __version__, agents
    from beyond.cli import options
    from beyond.cli.text import visible
    from beyond.errors import BeyondError
    from beyond.fork.gate import gate
    from beyond.journal import check, default_path

    settings = options(ctx)
    rows: list[dict[str, Any]] = []
    for name, row in agents.AGENTS.items():
        home = agents.home(name)
        founds = list(agents.conversations(name))
        state = gate(name)
        version = state.installed.version if state.installed is not None else None
        rows.append(
            {
                "cli": name,
                "title": row.title,
                "installed": version,
                "format": None if version is None else "tested" if version in row.formats else "not tested",
                "tested": list(row.formats),
                "gate": "open" if state.open else "closed",
                "gate_reason": state.reason,
                "store": str(home),
                "there": home.is_dir(),
                "conversations": sum(f.agent == "main" for f in founds),
                "subagents": sum(f.agent != "main" for f in founds),
                "bytes": sum(f.stat[0] for f in founds),
            }
        )
    journal = settings.journal or default_path()
    there: dict[str, Any] = {"path": str(journal)}
    code = 0
    try:
        there["bytes"] = journal.stat().st_size if check(journal) else 0
        there["state"] = "ready" if there["bytes"] else "not made yet"
    except BeyondError as error:
        there["state"], code = str(error), 1
    versions = {"beyond": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if settings.json:
        click.echo(json.dumps({"versions": versions, "journal": there, "agents": rows}))
        return code
    click.echo("  ".join(f"{name} {version}" for name, version in versions.items()))
    click.echo(
        visible(f"journal  {there['path']}: {there['state']}" + (f", {there['bytes']:,} bytes" if there.get("bytes") else ""))
    )
    for row_ in rows:
        holds = f"{row_['conversations']} conversations, {row_['subagents']} subagents, {row_['bytes']:,} bytes"
        installed = f"{row_['installed']} ({row_['format']})" if row_["installed"] else "not on the PATH"
        click.echo(visible(f"{row_['cli']:<8} {row_['title']}: {installed}"))
        click.echo(visible(f"         {row_['store']}: {holds if row_['there'] else 'no store'}"))
        click.echo(visible(f"         surgery {row_['gate']}: {row_['gate_reason']}"))
    return code


def _prove(ctx: click.Context, cli: str) -> int:
    """Runs a proof, prints and keeps its certificate."""
    from beyond import agents
    from beyond.cli import options
    from beyond.errors import UsageError
    from beyond.fork.gate import installed, keep_proof
    from beyond.journal import Journal
    from beyond.journal.forks import add_proof

    settings = options(ctx)
    row = agents.row(cli)
    if row.surgery is None:
        raise UsageError(f"there is no writer for {row.title}: nothing to prove")
    program = installed(cli)
    if program is None:
        raise UsageError(f"{row.program} is not on the PATH: install {row.title} first")
    from beyond.proof import prove

    def say(what: str) -> None:
        if not settings.quiet and not settings.json:
            click.echo(f"  {what}", err=True)

    certificate = prove(program, say)
    with Journal.open(settings.journal) as journal:
        add_proof(journal, cli, program.version, certificate["passed"], certificate)
    kept = keep_proof(program, certificate)
    if settings.json:
        click.echo(json.dumps(certificate))
    else:
        _certificate(certificate, str(kept))
    return 0 if certificate["passed"] else 1


def _certificate(certificate: dict[str, Any], kept: str) -> None:
    from beyond.cli.text import visible

    verdict = "no leak" if certificate["passed"] else "FAILED"
    click.echo(visible(f"{certificate['cli']} {certificate['version']}: {verdict}"))
    click.echo(f"binary   sha256 {certificate['hash']}")
    click.echo(f"writer   version {certificate['writer']}, proven {certificate['time']}")
    click.echo(f"planted  {len(certificate['canaries'])} canaries: {', '.join(certificate['canaries'].values())}")
    for what in certificate["searched"]:
        click.echo(f"searched {what}")
    for cut in certificate["cuts"]:
        found = f"{cut['kept']} kept, {cut['gone']} gone" if not cut["faults"] else "; ".join(cut["faults"])
        click.echo(visible(f"{'ok' if not cut['faults'] else 'BAD':<8} {cut['cut']} (event {cut['event']}): {found}"))
    if certificate["failure"]:
        click.echo(visible(f"failure  {certificate['failure']}"))
    click.echo(visible(f"gate     {'open' if certificate['passed'] else 'closed'}: {kept}"))
