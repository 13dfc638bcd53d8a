"""What all commands share: options, errors, exit codes, colour, the pager, completion, start-up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.reading import CASES, FIXTURES
from tests.terminal import on_terminal

TUI = FIXTURES / "claude/2.1.218/tui"
COLOUR = re.compile(rb"\x1b\[[0-9;]*[1-9]m")


@pytest.fixture
def tui(bnd: Any) -> Any:
    bnd("record", next(TUI.glob("projects/*/*.jsonl")), "--label", "the lab").ok()
    return bnd


def test_without_a_command_there_is_help(bnd: Any) -> None:
    ran = bnd()
    assert ran.code == 2
    assert len(ran.out.splitlines()) > 20
    assert "bash_source" in ran.out
    for words in (["-h"], ["--help"], ["runs", "-h"], ["sql", "--help"]):
        assert bnd(*words).ok().out.startswith("Usage: bnd ")


def test_help_loads_no_command(bnd: Any) -> None:
    """Neither the database nor any parser is loaded for help; the commands' words stand in the frame."""
    code = (
        "import sys; sys.argv = ['bnd', '--help']\nfrom beyond.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in sys.modules if m in ('sqlite3', 'json', 'orjson', 'sqlite_utils', 'tabulate', 'git', 'zstandard') "
        "or m.startswith(('beyond.cli.', 'beyond.journal')) and m != 'beyond.cli.text'], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=bnd.environment(), cwd=Path(__file__).parents[1]
    )
    assert done.stderr.strip() == "[]"


def test_the_words_of_help_are_the_commands_own(bnd: Any) -> None:
    from beyond.cli import COMMANDS, group

    for name in COMMANDS:
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert command.help
        names = {param.name for param in command.params}
        assert {"journal", "json", "quiet", "verbose"} <= names


def test_a_journal_that_is_missing(bnd: Any) -> None:
    """The default one is just not there yet; one that was named is a mistake."""
    ran = bnd("runs").ok()
    assert "bnd record" in ran.err
    assert bnd("runs", "-q").ok().err == ""
    assert bnd("-j", "typo.db", "runs").code == 2
    (bnd.root / "zero.db").touch()
    ran = bnd("-j", "zero.db", "runs").ok()
    assert "nothing recorded yet" in ran.err
    assert bnd("-j", "zero.db", "runs", "--json").ok().json() == []
    for words in (["show", "@"], ["step", "@"], ["note", "@", "x"], ["search", "x"], ["sql", "select 1"]):
        ran = bnd(*words)
        assert (ran.code, ran.out) == (2, "")
        assert "there is no journal yet" in ran.err
    assert not bnd.journal.exists()


def test_an_unexpected_failure_is_one_line(tui: Any) -> None:
    code = (
        "import sys\nimport beyond.timeline\n"
        "def broken(*_, **__): raise RuntimeError('two\\nlines')\n"
        "beyond.timeline.list_runs = broken\n"
        "from beyond.cli import main\nmain()\n"
    )
    for words in ([], ["-v"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "runs", *words], capture_output=True, text=True, env=tui.environment(),
            cwd=Path(__file__).parents[1],
        )  # fmt: skip
        assert done.returncode == 2
        assert ("Traceback" in done.stderr) == bool(words)
        assert done.stderr.splitlines()[-1].startswith("bnd: internal error (RuntimeError: two lines)")
        assert words or done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["runs"], ["show", "@", "-q"], ["search", "goldenhawk"]], ids=lambda w: w[0])
def test_the_pager_and_colour(tui: Any, words: list[str]) -> None:
    env = {**tui.environment(), "TERM": "xterm", "PAGER": "less"}
    _, out = on_terminal(tui.argv(*words), env, rows=300, columns=250)
    if words[0] != "runs":
        assert COLOUR.search(out)
    for quiet in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        _, out = on_terminal(tui.argv(*words), {**env, **quiet}, rows=300, columns=250)
        assert not COLOUR.search(out)
    assert b"\x1b" not in tui(*words).ok().stdout
    # PAGER is asked for what doesn't fit, and gets all of it
    spy = tui.root / "spy"
    spy.write_text(f"#!/bin/sh\nexec cat > {tui.root}/paged\n")
    spy.chmod(0o755)
    code, out = on_terminal(tui.argv(*words), {**env, "PAGER": str(spy)}, rows=3)
    assert (code, out) == (0, b"")
    paged = (tui.root / "paged").read_text()
    if words[0] == "show":
        assert paged.strip() == tui(*words).out.strip()
    assert paged.strip()


def test_closed_pipes_are_quiet(tui: Any) -> None:
    for words in ("show @ --full -q", "show @ --json -q", "runs", "search the*", "sql --schema", "--help"):
        command = f"{sys.executable} -m beyond {words} | head -c 10"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, env=tui.environment(), cwd=tui.root)
        assert (done.returncode, done.stderr) == (0, b""), words


def complete(bnd: Any, words: str, **env: str) -> list[str]:
    done = subprocess.run(
        bnd.argv(), capture_output=True, text=True, cwd=bnd.root,
        env={**bnd.environment(), "_BND_COMPLETE": "bash_complete", "COMP_WORDS": words,
             "COMP_CWORD": str(len(words.split(" ")) - 1), **env},
    )  # fmt: skip
    assert done.stderr == ""
    return [line.split(",", 1)[1] for line in done.stdout.splitlines() if line]


def test_completion(tui: Any) -> None:
    run = tui("runs", "--json").json()[0]["run"]
    for command in ("show", "step", "note", "search --run"):
        assert complete(tui, f"bnd {command} {run[:2]}") == [run]
        assert complete(tui, f"bnd {command} the") == ["the lab"]
    assert complete(tui, f"bnd -j {tui.journal} show {run[:2]}", BND_JOURNAL="/nowhere") == [run]
    assert complete(tui, "bnd show --kind tool") == ["tool_call", "tool_result"]
    assert complete(tui, "bnd s") == ["show", "step", "sql", "search"]
    assert complete(tui, "bnd show x", BND_JOURNAL="/nowhere") == []
    assert complete(tui, "bnd show x", BND_JOURNAL=str(CASES / "JS-08-notadb.db")) == []


def test_json_everywhere(tui: Any) -> None:
    (run,) = tui("runs", "--json").json()
    assert run["label"] == "the lab"
    assert tui("--json", "note", "the lab:3", "look").json() == {"run": run["run"], "seq": 3, "text": "look"}
    ran = tui("step", "@", "--json", "-q", stdin="2\n/AFTERREWIND\nnonsense\nq\n").ok()
    keys = ["seq", "ts", "kind", "agent", "content", "tool", "tool_id", "model", "usage", "is_error"]
    assert [list(row) for row in ran.jsonl()] == [keys] * 3
    assert [row["seq"] for row in ran.jsonl()] == [1, 2, 30]
    assert "is none of" in ran.err
    assert [list(row) for row in tui("show", "@", "--json").jsonl()] == [keys] * 32
