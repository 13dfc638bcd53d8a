"""A scratch home in which an installed agent CLI runs against a model on loopback, with nothing of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from beyond import agents
from beyond.errors import BeyondError
from beyond.fork.gate import Installed
from beyond.surgery.base import Launch

#: Seconds that one prompt may take.
PATIENCE = 60
#: For whatever doesn't heed the other switches: nobody listens there.
_NOWHERE = "http://127.0.0.1:9"
#: What a program needs to run, taken from the user's surroundings.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "TMPDIR")


class LabFailed(BeyondError):
    """the installed CLI did not do what a proof needs: what it said"""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Lab:
    """Folders of a proof, all below one scratch folder, and the environment that leads there."""

    cli: str
    program: Path
    root: Path
    env: Mapping[str, str]

    @property
    def home(self) -> Path:
        """The scratch HOME."""
        return self.root / "home"

    @property
    def repo(self) -> Path:
        """The project that the agent works in."""
        return self.root / "repo"

    def say(self, prompt: str, resume: str | None = None) -> str:
        """Runs the CLI with a prompt in the project. Returns its output. Raises `LabFailed`."""
        argv = agents.writer(self.cli).ask(prompt, resume)
        return self.run(Launch((str(self.program), *argv[1:]), str(self.repo)))

    def run(self, launch: Launch) -> str:
        """Runs the CLI as a launch says, to its end."""
        env = {name: value for name, value in self.env.items() if name not in launch.unset}
        process = subprocess.Popen(
            [str(self.program), *launch.argv[1:]], cwd=launch.cwd, env={**env, **launch.env}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise LabFailed(f"{self.program.name} did not end within {PATIENCE} seconds: try again on an idle machine") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=20)
        if process.returncode != 0:
            words = " ".join((err or out).decode("utf-8", "replace").split())[:300]
            raise LabFailed(f"{self.program.name} ended with {process.returncode} ({words}): it can't be proven so")
        return out.decode("utf-8", "replace")


def make(program: Installed, root: Path, url: str) -> Lab:
    """Makes the folders and files of a lab below `root` (an empty folder)."""
    home, repo = root / "home", root / "repo"
    for folder in (home, repo):
        folder.mkdir(parents=True)
    # The program by its own name: the launch of a fork names it so.
    (root / "bin").mkdir()
    path = f"{program.path.parent}:{os.environ.get('PATH', os.defpath)}"
    env = {name: os.environ[name] for name in _PASSED if name in os.environ} | {
        "HOME": str(home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8", "TZ": "UTC", "NO_COLOR": "1",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CEILING_DIRECTORIES": str(root), "BND_HOME": str(root / "bnd"),
        "BND_JOURNAL": str(root / "journal.db"), "http_proxy": _NOWHERE, "https_proxy": _NOWHERE, "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "DO_NOT_TRACK": "1",
    }  # fmt: skip
    scratch = agents.writer(program.cli).scratch(home, url)
    for name, text in scratch.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    lab = Lab(program.cli, program.path, root, {**env, **scratch.env})
    (repo / "README.md").write_text("A scratch repository.\n")
    who = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
    for command in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-q", "-m", "start")):
        subprocess.run(["git", *command], cwd=repo, env=lab.env, check=True, capture_output=True)
    return lab


@contextmanager
def surroundings(env: Mapping[str, str]) -> Iterator[None]:
    """This process in the lab's environment, so that nothing of the user's is read or written meanwhile."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
