"""Writing to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from beyond.text import one_line, visible

__all__ = ["ascii_only", "one_line", "prepare_streams", "visible", "write_json", "write_lines"]


def prepare_streams() -> None:
    """Lets no character stop the output: what the encoding lacks is written as an escape. Nor the input: bytes that are
    no text come in as arguments do."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)


def ascii_only() -> bool:
    """Whether standard output can't take every character: then JSON is written with escapes, which read back the same."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf8sig", "utf16", "utf32")


def write_json(value: Any) -> None:
    """Prints a value as JSON, on one line."""
    from beyond.text import json_text

    sys.stdout.write(json_text(value, ascii_only=ascii_only()) + "\n")


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines with line breaks between them; click's pager adds the last one."""
    for number, line in enumerate(lines):
        yield "\n" + line if number else line


def write_lines(lines: Iterable[str], *, pager: bool) -> None:
    """Prints lines, through the pager where there is a terminal."""
    import click

    from beyond.cli import colour

    if pager and sys.stdout.isatty():
        os.environ.setdefault("LESS", "-FRX")  # as git does: colours pass, and what fits the screen is just printed
        click.echo_via_pager(_joined(lines), color=colour())
        return
    for line in lines:
        click.echo(line, color=colour())
