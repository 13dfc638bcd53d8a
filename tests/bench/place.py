"""Where the measurements run: the generated data, a scratch folder, and an environment that knows no real home."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .generate import big_transcript, transcripts
from .measure import Cost, Row, run

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured, and how often."""

    megabytes: float
    conversations: int
    big: float
    events: int
    ingests: int
    repeats: int
    peers: int


FULL = Sizes(megabytes=311, conversations=200, big=1024, events=1_000_000, ingests=3, repeats=10, peers=3)
QUICK = Sizes(megabytes=12, conversations=24, big=48, events=30_000, ingests=1, repeats=4, peers=1)


@dataclass(slots=True)
class Result:
    """The rows of one part, and what must be said beside them."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Progress: to stderr, so that stdout is the report."""
    print(f"... {text}", file=sys.stderr, flush=True)


def cache_folder() -> Path:
    """Where generated data stays between runs."""
    return Path(os.environ.get("BND_BENCH_CACHE") or Path(os.environ.get("TMPDIR") or "/tmp", "bnd-bench"))


def size_of(journal: Path) -> int:
    """Bytes of a journal with the files that SQLite keeps beside it."""
    return sum(path.stat().st_size for path in journal.parent.glob(journal.name + "*"))


class Place:
    """One run of the benchmark. Everything that it writes, but the cached data, is under `scratch`."""

    def __init__(self, scratch: Path, sizes: Sizes) -> None:
        self.scratch = scratch
        self.sizes = sizes
        self.cache = cache_folder()
        self.home = self.folder("home")
        self.empty = self.folder("empty-store")
        self._store: Path | None = None
        self._recorded: Path | None = None

    def folder(self, name: str) -> Path:
        made = self.scratch / name
        made.mkdir(exist_ok=True)
        return made

    def env(self, store: Path | None = None) -> dict[str, str]:
        """What every child process is given; `store` is the Claude Code store that it sees."""
        paths = {
            "HOME": self.home,
            "BND_HOME": self.home / ".bnd",
            "BND_JOURNAL": self.home / "unused.db",
            "CLAUDE_CONFIG_DIR": store or self.empty,
            "KIMI_CODE_HOME": self.empty / "kimi",
            "CODEX_HOME": self.empty / "codex",
        }
        paths |= {f"XDG_{name}_HOME": self.home / name.lower() for name in ("CACHE", "CONFIG", "DATA", "STATE")}
        return {"NO_COLOR": "1"} | {name: str(path) for name, path in paths.items()}

    def store(self) -> Path:
        """The many conversations: a folder to use as CLAUDE_CONFIG_DIR."""
        if self._store is None:
            say(f"data: {self.sizes.conversations} conversations, {self.sizes.megabytes:g} MB")
            self._store = transcripts(self.cache, self.sizes.megabytes, self.sizes.conversations)
        return self._store

    def files(self) -> list[Path]:
        """Their transcripts, in sorted order."""
        return sorted(self.store().rglob("*.jsonl"))

    def big(self) -> Path:
        """The one large transcript."""
        say(f"data: one transcript of {self.sizes.big:g} MB")
        return big_transcript(self.cache, self.sizes.big)

    def bnd(self, journal: Path, *arguments: str | Path, store: Path | None = None, keep: bool = False) -> Cost:
        """Runs `bnd` as a user has it: the installed script."""
        script = Path(sys.executable).with_name("bnd")
        command = [str(script)] if script.exists() else [sys.executable, "-m", "beyond"]
        words = [*command, "-j", str(journal), *map(str, arguments)]
        return run(words, env=self.env(store), cwd=self.home, keep=keep)

    def python(self, *arguments: str | Path, keep: bool = False) -> Cost:
        """Runs this interpreter, in the project's folder."""
        return run([sys.executable, *map(str, arguments)], env=self.env(), cwd=ROOT, keep=keep)

    def record_new(self, journal: Path) -> Cost:
        """`bnd record --all` of the many conversations into a journal that isn't there yet."""
        for path in journal.parent.glob(journal.name + "*"):
            path.unlink()
        cost = self.bnd(journal, "record", "--all", store=self.store())
        self._recorded = journal
        return cost

    def recorded(self) -> Path:
        """A journal of the many conversations; nothing may change it."""
        if self._recorded is None:
            say("recording them once")
            self.record_new(self.scratch / "recorded.db")
        assert self._recorded is not None
        return self._recorded

    def copy(self, name: str) -> Path:
        """A copy of `recorded` to change."""
        journal = self.recorded()
        for path in journal.parent.glob(journal.name + "*"):
            shutil.copyfile(path, self.scratch / (name + path.name.removeprefix(journal.name)))
        return self.scratch / name


Part = Callable[[Place], Result]


@contextmanager
def place(sizes: Sizes) -> Iterator[Place]:
    """A place whose scratch folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bnd-bench-") as scratch:
        yield Place(Path(scratch), sizes)
