"""The command line: one file a command, loaded when it is used."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from beyond import __version__
from beyond.errors import BeyondError

#: Commands in the order of `bnd --help`; the words spare loading them for it.
COMMANDS = {
    "record": "Record conversations from the agent CLIs' own transcripts.",
    "runs": "List what is recorded.",
    "show": "Print a run's timeline, or its source's own bytes.",
    "step": "Walk through a run, step by step.",
    "sql": "Ask the journal in SQL, read-only.",
    "search": "Find text in everything recorded.",
    "fork": "Bring back the files and the memory of a step.",
    "note": "Leave a remark on a run or a step.",
    "doctor": "Show the agent CLIs and stores here.",
    "fsck": "Check every hash, link and reference.",
    "forget": "Delete a run for good.",
    "gc": "Make the journal smaller.",
    "demo": "Run the main job on a bundled conversation.",
}

#: Commands that programs call, not people.
HIDDEN = frozenset({"hook"})


@dataclass(slots=True)
class Settings:
    """The options that stand before or after any command."""

    journal: Path | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False


def options(ctx: click.Context) -> Settings:
    """The global options of this invocation."""
    settings = ctx.find_root().obj
    assert isinstance(settings, Settings)
    return settings


def tell(text: str) -> None:
    """Says something beside the output, on stderr, unless quiet."""
    if not options(click.get_current_context()).quiet:
        click.echo(f"bnd: {text}", err=True)


def colour() -> bool | None:
    """Whether to write colour: never with NO_COLOR, else where the output is a terminal that knows it."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _set(name: str) -> Any:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            settings = ctx.find_root().ensure_object(Settings)
            setattr(settings, name, value)

    return callback


def _global_options() -> list[click.Option]:
    def option(*words: str, name: str, **rest: Any) -> click.Option:
        return click.Option([*words], expose_value=False, is_eager=True, callback=_set(name), **rest)

    return [
        option("-j", "--journal", name="journal", type=click.Path(path_type=Path), metavar="FILE",
               help="The journal to use. [default: $BND_JOURNAL, else ~/.bnd/journal.db]"),
        option("--json", name="json", is_flag=True, help="Print JSON (one document, or one a line) and nothing else."),
        option("-q", "--quiet", name="quiet", is_flag=True, help="Print less."),
        option("-v", "--verbose", name="verbose", is_flag=True, help="Print more; the traceback of an internal error."),
    ]  # fmt: skip


class _Group(click.Group):
    """Commands are loaded by name; each takes the global options too."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in HIDDEN:
            return None
        command: click.Command = import_module(f"beyond.cli.{cmd_name}").command
        command.name = cmd_name
        taken = {word for param in command.params for word in param.opts}
        for extra in _global_options():
            extra.opts = [word for word in extra.opts if word not in taken]
            if extra.opts and not any(p.name == extra.name and isinstance(p, click.Option) for p in command.params):
                command.params.append(extra)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in COMMANDS and name not in HIDDEN and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean `bnd {near[0]}`?" if near else "`bnd --help` lists the commands"
            raise click.UsageError(f"no such command {name!r}: {hint}")
        return super().resolve_command(ctx, args)


_EPILOG = """RUN, wherever it stands: an id or a unique beginning of one, @ (newest run of this project), @1 (the one before
it), a label, or a conversation's id. Completion of commands, runs and labels: eval "$(_BND_COMPLETE=bash_source bnd)" in
~/.bashrc, or zsh_source, fish_source."""


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}, params=_global_options(), epilog=_EPILOG)
@click.version_option(__version__, prog_name="bnd", message="%(prog)s %(version)s")
@click.pass_context
def group(ctx: click.Context) -> None:
    """A journal of AI coding agents' conversations: record, query, rewind and replay."""
    ctx.ensure_object(Settings)


def _complain(message: str) -> None:
    from beyond.cli.text import visible

    click.echo("bnd: " + " ".join(visible(message).split()), err=True)


def main() -> None:
    """Runs `bnd`. Every failure is one line on stderr and an exit code."""
    from beyond.cli.text import prepare_streams

    prepare_streams()
    sys.unraisablehook = _unraisable
    sys.exit(_run())


def _unraisable(unraisable: Any) -> None:
    """SQLite keeps to itself why a function of ours failed: this hears of it."""
    query = sys.modules.get("beyond.query")
    if query is None or not query.note_unraisable(unraisable):
        sys.__unraisablehook__(unraisable)


_unraisable.asks_queries = True  # type: ignore[attr-defined]


def _run() -> int:
    settings = Settings()
    try:
        code = group.main(prog_name="bnd", standalone_mode=False, obj=settings, color=colour())
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BeyondError as error:
        _complain(str(error))
        return error.exit_code
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of click 8.2; earlier ones print the help themselves
            click.echo(error.format_message())
            return 2
        where = f"bnd {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else "bnd"
        message = error.format_message().rstrip(".")
        _complain(message if ": " in message and "`" in message else f"{message}: see `{where} --help`")
        return 2
    except click.ClickException as error:
        _complain(error.format_message())
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        return 130
    except (BrokenPipeError, SystemExit):  # click ends with SystemExit when a pipe is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _internal(error, settings)


def _internal(error: Exception, settings: Settings) -> int:
    if type(error).__module__ == "sqlite3":
        from beyond.journal import default_path, translate

        known = translate(error, settings.journal or default_path())  # type: ignore[arg-type]
        _complain(str(known))
        return known.exit_code
    if isinstance(error, OSError) and error.strerror:
        _complain(f"{error.filename or 'the system'}: {error.strerror}: nothing was lost; correct that and try again")
        return 2
    if settings.verbose:
        import traceback

        traceback.print_exc()
    _complain(f"internal error ({type(error).__name__}: {error}): please report it; -v shows where it happened")
    return 2
