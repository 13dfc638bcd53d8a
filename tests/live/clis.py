"""The real agent CLIs in the cache of `make live`, run in a scratch home against the scripted model.

Nothing of the person's who runs the tests is passed on: the environment is made up here, name by name, and every way
to the network but the model's address is turned off or leads to a closed port of loopback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beyond import agents
from beyond.model import ModelRequest, Reply, ScriptedModel, Usage, codeword_script
from beyond.model.script import reply_of
from beyond.surgery.base import Launch
from tests.conftest import LIVE_CACHE

#: Seconds that one prompt may take.
PATIENCE = 45

#: For whatever doesn't heed the other switches: nobody listens there.
_NOWHERE = "http://127.0.0.1:9"
_QUIET = {
    "http_proxy": _NOWHERE,
    "https_proxy": _NOWHERE,
    "HTTP_PROXY": _NOWHERE,
    "HTTPS_PROXY": _NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DO_NOT_TRACK": "1",
}

_KIMI_CONFIG = """default_model = "scripted"
telemetry = false

[providers.lab]
type = "kimi"
base_url = "{url}/v1"
api_key = "sk-made-up"

[models.scripted]
provider = "lab"
model = "scripted-model"
max_context_size = 262144
"""


@dataclass(frozen=True)
class Installed:
    """One version of a CLI in the cache."""

    cli: str
    version: str
    program: Path

    def __str__(self) -> str:
        return f"{self.cli}-{self.version}"


def installed(*names: str) -> list[Installed]:
    """The versions of these CLIs that `make live-clis` has installed, oldest first."""
    found = []
    for name in names:
        for folder in LIVE_CACHE.glob(f"{name}-*"):
            program = folder / "node_modules/.bin" / name
            if (folder / ".complete").exists() and program.exists():
                found.append(Installed(name, folder.name.removeprefix(f"{name}-"), program))
    return sorted(found, key=lambda one: (one.cli, [int(part) for part in re.findall(r"\d+", one.version)]))


@dataclass(frozen=True)
class Said:
    """What a finished CLI left behind."""

    code: int
    out: str
    err: str


class Agent:
    """An installed CLI with a home, a repository and a model of its own, below `root`.

    `root` is the test's `tmp_path`, so that its home is the one that the test's own environment leads to.
    """

    def __init__(self, cli: Installed, root: Path, model: ScriptedModel) -> None:
        self.cli = cli
        self.name = cli.cli
        self.root = root
        self.model = model
        self.home = root / "home"
        self.repo = root / "repo"
        self.store = self.home / (".claude" if cli.cli == "claude" else ".kimi-code")
        for folder in (self.home, self.repo, self.store):
            folder.mkdir(parents=True, exist_ok=True)
        self.env = self._environment()
        self._repository()

    def _environment(self) -> dict[str, str]:
        node = LIVE_CACHE / "node/node_modules/.bin"
        env = {
            "HOME": str(self.home),
            "PATH": f"{node}:{os.environ.get('PATH', os.defpath)}",
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "NO_COLOR": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CEILING_DIRECTORIES": str(self.root),
            **_QUIET,
        }
        if self.name == "claude":
            return env | {
                "CLAUDE_CONFIG_DIR": str(self.store),
                "ANTHROPIC_BASE_URL": self.model.url,
                "ANTHROPIC_API_KEY": "sk-ant-made-up",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "IS_SANDBOX": "1",  # else it refuses to bypass permissions as root
            }
        (self.store / "config.toml").write_text(_KIMI_CONFIG.format(url=self.model.url))
        return env | {
            "KIMI_CODE_HOME": str(self.store),
            "KIMI_DISABLE_TELEMETRY": "1",
            "KIMI_CODE_NO_AUTO_UPDATE": "1",
        }

    def _repository(self) -> None:
        (self.repo / "README.md").write_text("A scratch repository.\n")
        identity = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
        for command in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-q", "-m", "start")):
            subprocess.run(["git", *command], cwd=self.repo, env=self.env, check=True, capture_output=True)

    def argv(self, prompt: str, *, resume: str | None = None, fork: bool = False) -> list[str]:
        """The command line of one prompt."""
        if self.name == "kimi":
            return [str(self.cli.program), "-p", prompt, *(["-S", resume] if resume else [])]
        more = ["--resume", resume] if resume else []
        if fork:
            more.append("--fork-session")
        return [str(self.cli.program), "-p", prompt, "--permission-mode", "bypassPermissions", *more]

    @contextmanager
    def saying(self, prompt: str, *, resume: str | None = None, fork: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """The CLI at work on a prompt; ended with everything that it started when the block is left."""
        process = subprocess.Popen(
            self.argv(prompt, resume=resume, fork=fork),
            cwd=self.repo,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # what it started may hold on to its pipes
                process.communicate(timeout=20)

    def say(self, prompt: str, *, resume: str | None = None, fork: bool = False) -> Said:
        """Runs the CLI with a prompt to its end; it has to end well."""
        with self.saying(prompt, resume=resume, fork=fork) as process:
            out, err = process.communicate(timeout=PATIENCE)
        said = Said(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
        assert said.code == 0, f"{self.cli}: exit {said.code}\n{said.out}{said.err}"
        return said

    def resume(self, launch: Launch) -> Said:
        """Runs the CLI to its end as a fork's launch says, in this agent's surroundings."""
        env = {name: value for name, value in self.env.items() if name not in launch.unset} | dict(launch.env)
        done = subprocess.run(
            [str(self.cli.program), *launch.argv[1:]],
            cwd=launch.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
        )
        said = Said(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
        assert said.code == 0, f"{self.cli}: exit {said.code}\n{said.out}{said.err}"
        return said

    def transcripts(self) -> list[Any]:
        """The files of the CLI's store as they are now, subagents' after the main ones."""
        assert agents.home(self.name) == self.store
        return sorted(agents.conversations(self.name), key=lambda found: found.agent != "main")

    def conversations(self) -> list[str]:
        """The ids of its conversations, oldest first."""
        mains = [found for found in self.transcripts() if found.agent == "main"]
        return [str(found.conversation) for found in sorted(mains, key=lambda found: _born(found.path))]


def _born(path: Path) -> str:
    """The earliest time in a transcript's first lines, as text that sorts."""
    times = []
    with path.open("rb") as file:
        for raw in file.readlines(1 << 16):
            record = json.loads(raw)
            when = record.get("timestamp") or record.get("created_at") or record.get("time")
            if when is not None:
                times.append(str(when))
    return min(times, default="")


class Counted:
    """The codeword script with token counts that no two answers share, so that a sum tells what was counted."""

    def __init__(self, *, delay: float = 0, cache_write: bool = True) -> None:
        self.delay = delay
        self.cache_write = cache_write

    def __call__(self, request: ModelRequest) -> Reply:
        reply = reply_of(codeword_script(request))
        n = 1 << request.number
        usage = Usage(1000 + n, 2000 + n, 3000 + n, 4000 + n if self.cache_write else 0)
        return Reply(reply.blocks, usage=usage, delay=self.delay)
