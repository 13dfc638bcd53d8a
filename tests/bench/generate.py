"""Benchmark data: generated transcripts, the same for the same parameters.

    python -m tests.bench.generate FOLDER [--megabytes 311] [--big]

The content comes from the standard library's sources, so that another version
of Python makes other data; the name of the cached folder says which.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .corpus import Corpus, Project, fingerprint, projects
from .lines import NEW, OLD, Writer, uuid4
from .session import Session, Turn

GENERATOR = 1  # part of the cache's key: raise it with every change of the data
MEGABYTE = 1_000_000
PROJECTS = 20
FORKED = 0.125
STARTED = 1_767_225_600_000  # 2026-01-01, in milliseconds


@dataclass(slots=True)
class Written:
    """A conversation that later ones can be forked from."""

    path: Path
    session: str
    version: str
    interactive: bool
    turns: list[Turn]


class Generator:
    """Makes one folder shaped like ~/.claude."""

    def __init__(self, root: Path, seed: int, count: int) -> None:
        self.root = root
        self.seed = seed
        self.corpus = Corpus()
        self.rng = Random(f"beyond {seed}")
        self.projects = projects(self.corpus, self.rng, count)
        self.written: dict[str, list[Written]] = {p.folder: [] for p in self.projects}

    def conversation(
        self,
        number: int,
        size: int,
        *,
        agents: int = 0,
        source: Written | None = None,
        project: Project | None = None,
    ) -> int:
        """Writes one; returns the bytes of its files."""
        rng = Random(f"beyond {self.seed} {number}")
        project = project or rng.choice(self.projects)
        session = uuid4(rng)
        version = NEW if rng.random() < 0.2 else OLD
        interactive = rng.random() < 0.55
        if source is not None:
            version, interactive = source.version, source.interactive
        folder = self.root / "projects" / project.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{session}.jsonl"
        now = STARTED + number * 26_000_000 + rng.randrange(9_000_000)
        with open(path, "wb", buffering=1 << 20) as out:
            writer = Writer(
                out,
                rng,
                session=session,
                version=version,
                cwd=project.cwd,
                interactive=interactive,
                now=now,
            )
            beside = folder / session
            conversation = Session(writer, self.corpus, project, beside, agents)
            if source is not None:
                turn = _cut(source.turns, size)
                conversation.fork(turn, _prefix(source, turn, session))
                writer.now = max(turn.now, now)
            conversation.run(size)
        path.chmod(0o600)
        os.utime(path, (writer.now / 1000, writer.now / 1000))
        made = Written(path, session, version, interactive, conversation.turns)
        self.written[project.folder].append(made)
        return writer.size + conversation.beside

    def all(self, size: int, count: int) -> None:
        """`count` conversations, `size` bytes together."""
        rng = self.rng
        weights = [min(6.0, max(0.12, rng.lognormvariate(0, 0.9))) for _ in range(count)]
        forks = set(rng.sample(range(count // 10, count), int(count * FORKED)))
        left, rest = size, sum(weights)
        for number, weight in enumerate(weights):
            share = int(left * weight / rest)
            rest -= weight
            agents = 0 if number % 20 != 7 else 1 + rng.randrange(2)
            project = rng.choice(self.projects)
            sources = [w for w in self.written[project.folder] if w.turns]
            source = rng.choice(sources) if number in forks and sources else None
            left -= self.conversation(number, share, agents=agents, source=source, project=project)


def _cut(turns: list[Turn], size: int) -> Turn:
    """The last turn whose copy leaves room for turns of the fork's own."""
    fitting = [turn for turn in turns if turn.offset <= 0.7 * size]
    return fitting[-1] if fitting else turns[0]


def _prefix(source: Written, turn: Turn, session: str) -> Iterator[bytes]:
    """The tree's lines up to the turn's end: same uuids, the new session's id."""
    names = ('"sessionId":"', '"session_id":"')
    pairs = [(f"{n}{source.session}".encode(), f"{n}{session}".encode()) for n in names]
    offset = 0
    with open(source.path, "rb") as lines:
        for line in lines:
            offset += len(line)
            if offset > turn.offset:
                return
            if line.startswith(b'{"parentUuid"'):
                copied = line
                for old, new in pairs:
                    copied = copied.replace(old, new)
                yield copied


def _cached(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name, made whole or not at all."""
    cache.mkdir(parents=True, exist_ok=True)
    final = cache / name
    if final.is_dir():
        return final
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        make(work)
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _name(kind: str, megabytes: float, seed: int) -> str:
    return f"{kind}-{megabytes:g}mb-seed{seed}-v{GENERATOR}-{fingerprint()}"


def transcripts(cache_dir: Path, megabytes: float = 311, conversations: int = 200, seed: int = 1) -> Path:
    """A folder to use as CLAUDE_CONFIG_DIR, made unless it is there already."""

    def make(root: Path) -> None:
        count = max(1, min(PROJECTS, conversations // 4))
        generator = Generator(root, seed, count)
        generator.all(int(megabytes * MEGABYTE), conversations)

    name = _name(f"claude-{conversations}", megabytes, seed)
    return _cached(Path(cache_dir), name, make)


def big_transcript(cache_dir: Path, megabytes: float = 1024, seed: int = 2) -> Path:
    """One conversation of that size: the path of its .jsonl file.

    `path.parents[2]` is the folder to use as CLAUDE_CONFIG_DIR.
    """

    def make(root: Path) -> None:
        generator = Generator(root, seed, PROJECTS)
        generator.conversation(0, int(megabytes * MEGABYTE))

    root = _cached(Path(cache_dir), _name("claude-big", megabytes, seed), make)
    return next(root.glob("projects/*/*.jsonl"))


@dataclass(slots=True)
class Truth:
    """What a plain reading of the lines counts, for comparison with a journal."""

    files: int = 0
    lines: int = 0
    size: int = 0
    types: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    tokens: dict[str, Counter[str]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Adds a file; a message's usage counts once in it, from its last line."""
        self.files += 1
        spent: dict[str, tuple[str, dict[str, object]]] = {}
        with open(path, "rb") as lines:
            for data in lines:
                self.size += len(data)
                self.lines += 1
                line = json.loads(data)
                self.types[line["type"]] += 1
                if line["type"] not in ("user", "assistant"):
                    continue
                message = line["message"]
                if "usage" in message:
                    spent[message["id"]] = (message["model"], message["usage"])
                if isinstance(message["content"], list):
                    for block in message["content"]:
                        if block["type"] == "tool_use":
                            self.tools[block["name"]] += 1
                        self.errors += block.get("is_error") is True
        for model, usage in spent.values():
            total = self.tokens.setdefault(model, Counter())
            for name, value in usage.items():
                if isinstance(value, int):
                    total[name] += value


def truth(path: Path) -> Truth:
    """Counts one transcript, or all of them under a folder."""
    found = Truth()
    for file in [path] if path.is_file() else sorted(path.rglob("*.jsonl")):
        found.read(file)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--big", action="store_true", help="one large conversation")
    given = parser.parse_args()
    if given.big:
        seed = 2 if given.seed is None else given.seed
        print(big_transcript(given.folder, given.megabytes or 1024, seed))
    else:
        seed = 1 if given.seed is None else given.seed
        size = given.megabytes or 311
        print(transcripts(given.folder, size, given.conversations, seed))


if __name__ == "__main__":
    main()
