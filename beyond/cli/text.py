"""Writing to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from beyond.text import one_line, visible

__all__ = ["one_line", "prepare_streams", "visible", "write_lines"]


def prepare_streams() -> None:
    """Lets no character stop the output: what the encoding lacks is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def write_lines(lines: Iterable[str], *, pager: bool) -> None:
    """Prints lines, through the pager where there is a terminal."""
    import click

    from beyond.cli import colour

    if pager and sys.stdout.isatty():
        click.echo_via_pager((line + "\n" for line in lines), color=colour())
        return
    for line in lines:
        click.echo(line, color=colour())
