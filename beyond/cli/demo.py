"""`bnd demo`: the main job on a bundled conversation, and a fork, in a scratch home."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import click

#: What the demo runs, in order: what a user would type.
STEPS = (
    ("Record what Claude Code kept on disk", ["record", "--all"]),
    ("See what there is", ["runs"]),
    ("Read a conversation; what was rewound away is marked", ["show", "00000000-0000-4000-8000-000000000008"]),
    ("Find a word in all of them", ["search", "SILVERWOLF", "-n", "3"]),
    ("Is every byte still there?", ["fsck"]),
    (
        "Ask your own question",
        [
            "sql", "-t",
            "select tool, count(*) as calls, sum(is_error) as failed, round(avg(duration_ms)) as avg_ms "
            "from tool_calls group by tool order by calls desc, tool",
        ],
    ),
)  # fmt: skip


@click.command()
@click.pass_context
def command(ctx: click.Context) -> int:
    """Run the main job on a bundled sample conversation, then fork one. Touches nothing outside a scratch folder."""
    from beyond.cli import colour

    with tempfile.TemporaryDirectory(prefix="bnd-demo-") as scratch:
        home = Path(scratch)
        with resources.as_file(resources.files("beyond") / "data" / "sample") as sample:
            shutil.copytree(sample, home / "claude")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("BND_", "CLAUDE", "KIMI", "CODEX"))}
        env |= {
            "HOME": scratch,
            "BND_JOURNAL": str(home / "demo.db"),
            "CLAUDE_CONFIG_DIR": str(home / "claude"),
            "KIMI_CODE_HOME": str(home / "kimi"),
            "PAGER": "cat",
        }
        for title, words in STEPS:
            click.secho(f"\n# {title}", bold=True, color=colour())
            click.echo("$ bnd " + " ".join(shlex.quote(word) for word in words))
            done = subprocess.run([sys.executable, "-m", "beyond", *words], env=env, cwd=scratch)
            if done.returncode:
                return done.returncode
        return 0 if _fork(home) else 1


def _fork(home: Path) -> bool:
    """The last part: a fork, with an agent CLI that is installed or the bundled one."""
    from beyond.cli import colour
    from beyond.proof.demo import play

    def run(words: list[str], env: dict[str, str], cwd: Path) -> int:
        click.echo("$ bnd " + " ".join(shlex.quote(word) for word in words))
        return subprocess.run([sys.executable, "-m", "beyond", *words], env=env, cwd=cwd).returncode

    return play(home, lambda title: click.secho(f"\n# {title}", bold=True, color=colour()), run)
