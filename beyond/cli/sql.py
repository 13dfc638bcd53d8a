"""`bnd sql QUERY`: read-only SQL over the views."""

from __future__ import annotations

import sys

import click

from beyond.errors import UsageError


@click.command()
@click.argument("query", required=False, metavar="QUERY")
@click.option("--schema", is_flag=True, help="Print the views and what their columns mean.")
@click.option("--attach", nargs=2, multiple=True, metavar="ALIAS FILE", help="Another SQLite database, read-only.")
@click.option("--nl", is_flag=True, help="Newline-delimited JSON.")
@click.option("--arrays", is_flag=True, help="Rows as arrays instead of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV.")
@click.option("--tsv", "as_tsv", is_flag=True, help="TSV.")
@click.option("--no-headers", is_flag=True, help="Leave out headers of CSV, TSV and tables.")
@click.option("-t", "--table", is_flag=True, help="A formatted table (the default on a terminal).")
@click.option("--fmt", metavar="FORMAT", help="A table in one of tabulate's formats: github, grid, html, rst, …")
@click.option("--json-cols", is_flag=True, help="Values that are JSON are printed as JSON, not as strings.")
@click.option("--ascii", "ascii_", is_flag=True, help="Escape non-ASCII characters in JSON output as \\uXXXX.")
@click.option("-r", "--raw", is_flag=True, help="Only the first column of the first row, as it is.")
@click.option("--raw-lines", is_flag=True, help="Only the first column of each row, as it is.")
@click.option("-p", "--param", "params", nargs=2, multiple=True, metavar="NAME VALUE", help="A :name parameter.")
@click.option("--functions", multiple=True, metavar="CODE", help="Python code, or a .py file, that defines SQL functions.")
@click.option("--load-extension", multiple=True, hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    query: str | None,
    schema: bool,
    attach: tuple[tuple[str, str], ...],
    nl: bool,
    arrays: bool,
    as_csv: bool,
    as_tsv: bool,
    no_headers: bool,
    table: bool,
    fmt: str | None,
    json_cols: bool,
    ascii_: bool,
    raw: bool,
    raw_lines: bool,
    params: tuple[tuple[str, str], ...],
    functions: tuple[str, ...],
    load_extension: tuple[str, ...],
) -> int:
    """Ask the journal in SQL. It can only be read.

    QUERY is SQL, or - for standard input. A table on a terminal, JSON in a pipe; options as in `sqlite-utils query`.

    \b
    bnd sql "select kind, count(*) n from events group by kind"
    bnd sql "select * from tool_calls where run = :r and is_error" -p r 1f2e3d4c5b6a
    """
    from beyond.agents import content_of
    from beyond.cli import options
    from beyond.cli.text import ascii_only, write_json, write_lines
    from beyond.output import Output, add_functions
    from beyond.query import connect, relations, zone
    from beyond.schema import describe

    settings = options(ctx)
    if schema:
        found = relations(settings.journal, content_of)
        if settings.json:
            write_json([{"name": r.name, "kind": r.kind, "comment": r.comment, "columns": dict(r.columns)} for r in found])
        else:
            write_lines(describe(found).splitlines(), pager=True)
        return 0
    if query is None:
        raise UsageError('no query: give one, e.g. bnd sql "select * from runs", or --schema')
    if load_extension:
        raise UsageError("--load-extension is refused: an extension could write; use --functions for Python code")
    if query == "-":
        query = sys.stdin.read()
    terminal = sys.stdout.isatty()
    out = Output(
        table=table, brief=terminal and not settings.json, terminal=terminal, fmt=fmt, csv=as_csv, tsv=as_tsv,
        headers=not no_headers, nl=nl, arrays=arrays, json_cols=json_cols, ascii=ascii_ or ascii_only(),
        raw=raw, raw_lines=raw_lines,
    )  # fmt: skip
    out.check()
    with connect(settings.journal, content_of) as journal:
        add_functions(journal, functions)
        for alias, path in attach:
            journal.attach(alias, path)
        cursor = journal.execute(query, dict(params))
        out.write(cursor, journal.rows(cursor), sys.stdout)
        if "usage_by_day_local" in query and not settings.quiet:
            click.echo(f"days are in {zone()}", err=True)
    return 0
