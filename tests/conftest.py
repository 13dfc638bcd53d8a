"""What every test shares: the fixture folders, the real command in a clean environment, and a guard around HOME."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parent / "fixtures"
CASES = FIXTURES / "cases"

#: Folders shaped like ~/.claude, ~/.kimi-code and ~/.codex, as the real programs of each version wrote them.
CLAUDE_FOLDERS = sorted(path.parent for path in FIXTURES.glob("claude/*/*/projects"))
KIMI_FOLDERS = sorted(FIXTURES.glob("kimi/*/*/kimi-code"))
CODEX_FOLDERS = sorted(FIXTURES.glob("codex/*/*/codex"))

#: Where `make live` puts the real agent CLIs; asked for before HOME is moved away.
LIVE_CACHE = Path(
    os.environ.get("BND_LIVE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "beyond-live"
)

#: Variables that lead to somebody's real data, or change what our programs do.
_OURS = ("BND_", "CLAUDE", "KIMI_", "CODEX_", "ANTHROPIC_", "OPENAI_", "MOONSHOT_", "GIT_", "XDG_")
#: What a command under test may inherit.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


def folder_id(folder: Path) -> str:
    """claude/2.1.218/tools, kimi/0.28.0/twoturn: how a fixture folder is called in a test's name."""
    return "/".join(folder.relative_to(FIXTURES).parts[:3])


# --- the guard ------------------------------------------------------------------------------------------------------

_outer = pytest.MonkeyPatch()
_scratch: Path | None = None


def pytest_configure(config: pytest.Config) -> None:
    """HOME is moved away for the whole session: fixtures of wide scope run before those of a test."""
    global _scratch  # noqa: PLW0603
    _scratch = Path(tempfile.mkdtemp(prefix="bnd-tests-"))
    for name in list(os.environ):
        if name.startswith(_OURS):
            _outer.delenv(name)
    _outer.setenv("HOME", str(_scratch))
    _outer.setenv("BND_LIVE_CACHE", str(LIVE_CACHE))  # the workers of `pytest -n` find it too


def pytest_unconfigure(config: pytest.Config) -> None:
    _outer.undo()
    if _scratch is not None:
        shutil.rmtree(_scratch, ignore_errors=True)


def homes(root: Path) -> dict[str, str]:
    """Every variable that says where something of a user's lies, all under `root`."""
    home = root / "home"
    return {
        "HOME": str(home),
        "BND_HOME": str(home / ".bnd"),
        "BND_JOURNAL": str(root / "journal.db"),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "KIMI_CODE_HOME": str(home / ".kimi-code"),
        "CODEX_HOME": str(home / ".codex"),
    }


@pytest.fixture(autouse=True)
def _no_real_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    for name, value in homes(tmp_path).items():
        monkeypatch.setenv(name, value)


# --- the fixture folders --------------------------------------------------------------------------------------------


@pytest.fixture(params=CLAUDE_FOLDERS, ids=folder_id)
def claude_fixtures(request: pytest.FixtureRequest) -> Path:
    """One test for each folder; usable as CLAUDE_CONFIG_DIR. Never write there: copy it first."""
    folder: Path = request.param
    return folder


@pytest.fixture(params=KIMI_FOLDERS, ids=folder_id)
def kimi_fixtures(request: pytest.FixtureRequest) -> Path:
    """One test for each folder; usable as KIMI_CODE_HOME. Never write there: copy it first."""
    folder: Path = request.param
    return folder


@pytest.fixture(params=CODEX_FOLDERS, ids=folder_id)
def codex_fixtures(request: pytest.FixtureRequest) -> Path:
    """One test for each folder; usable as CODEX_HOME. Never write there: copy it first."""
    folder: Path = request.param
    return folder


def case(name: str) -> Path:
    """The made input of a case: case("TP-03.part1.jsonl"). A name without its ending is enough where it's unique."""
    exact = CASES / name
    if exact.exists():
        return exact
    found = sorted(CASES.glob(f"{name}.*"))
    if len(found) != 1:
        raise LookupError(f"case {name}: {[path.name for path in found] or 'no such input'}")
    return found[0]


@pytest.fixture(name="case", scope="session")
def _case() -> Any:
    return case


@pytest.fixture(scope="session")
def live_cache() -> Path:
    """Where the real agent CLIs are, if `make live` has put them there: NAME-VERSION/node_modules/.bin/NAME."""
    return LIVE_CACHE


# --- the command ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a finished command left behind."""

    argv: list[str]
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def err(self) -> str:
        return self.stderr.decode("utf-8", "surrogateescape")

    def json(self) -> Any:
        """The one JSON document on stdout (an error if anything else is there)."""
        return json.loads(self.stdout)

    def jsonl(self) -> list[Any]:
        """One JSON document a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def ok(self) -> Ran:
        """Itself, if it ended with 0."""
        assert self.code == 0, f"{self.argv}: exit {self.code}\n{self.out}{self.err}"
        return self


@dataclass
class Bnd:
    """Calls the installed command: bnd("runs", "--json", env={…}, stdin=…). None as a value removes a variable."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return Path(self.env["HOME"])

    @property
    def journal(self) -> Path:
        return Path(self.env["BND_JOURNAL"])

    def environment(self, env: Mapping[str, str | Path | None] | None = None) -> dict[str, str]:
        merged: dict[str, str | Path | None] = {**self.env, **(env or {})}
        return {name: str(value) for name, value in merged.items() if value is not None}

    def argv(self, *args: str | Path) -> list[str]:
        return [sys.executable, "-m", "beyond", *map(str, args)]

    def __call__(
        self,
        *args: str | Path,
        env: Mapping[str, str | Path | None] | None = None,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        timeout: float = 120,
    ) -> Ran:
        argv = self.argv(*args)
        done = subprocess.run(
            argv,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=self.environment(env),
            cwd=cwd or self.root,
            timeout=timeout,
        )
        return Ran(argv, done.returncode, done.stdout, done.stderr)

    def start(
        self, *args: str | Path, env: Mapping[str, str | Path | None] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """A command that goes on running (`record --follow`); the test ends it."""
        return subprocess.Popen(
            self.argv(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(env),
            cwd=cwd or self.root,
        )


@pytest.fixture
def bnd(tmp_path: Path, _no_real_home: None) -> Iterator[Bnd]:
    """The command, in a process of its own, with nothing of the person's who runs the tests."""
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env |= homes(tmp_path)
    env |= {
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
    }
    env.setdefault("PATH", os.defpath)
    yield Bnd(tmp_path, env)
