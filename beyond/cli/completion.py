"""Completing run ids and labels on the shell's command line (`_BND_COMPLETE`, see click)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click


class KindType(click.Choice[str] if TYPE_CHECKING else click.Choice):  # type: ignore[misc]
    """KIND: one of the kinds of events."""

    def __init__(self) -> None:
        from beyond.event import KINDS

        super().__init__(KINDS)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Short: the list of kinds is long."""
        return "KIND"


class RunType(click.types.StringParamType):
    """RUN: an id's prefix, ``@``, ``@N``, a label or a conversation's id."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from beyond.agents import content_of
        from beyond.errors import BeyondError
        from beyond.query import connect

        settings = ctx.find_root().obj
        try:
            with connect(getattr(settings, "journal", None), content_of) as query:
                rows = query.execute(
                    "select run, coalesce(label, title, ''), label from runs order by started_at desc"
                ).fetchall()
        except BeyondError:
            return []
        items = [CompletionItem(run, help=name[:60]) for run, name, _ in rows if run.startswith(incomplete)]
        items += [CompletionItem(label) for _, _, label in rows if label and label.startswith(incomplete)]
        return items
