"""Text with real entropy, from the standard library that is installed."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from random import Random

_SKIPPED = {"__pycache__", "idlelib", "lib2to3", "site-packages", "dist-packages"}
_SKIPPED |= {"test", "tests"}
_LARGEST = 120_000
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_IDENTIFIER = re.compile(r"\b[a-z][a-z_]{4,}\b")
_KEYWORDS = frozenset(
    "False await break class continue except finally import lambda nonlocal raise"
    " return while yield assert async global print range super".split()
)
MAX_LINES = 1100


def sources() -> list[tuple[str, Path, int]]:
    """(relative name, path, size) of each usable source file, sorted."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[tuple[str, Path, int]] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py"):
                size = path.stat().st_size
                if 400 < size <= _LARGEST:
                    found.append((path.relative_to(root).as_posix(), path, size))
    return sorted(found)


def fingerprint() -> str:
    """Names the sources that the data is made of: other sources, other data."""
    key = [f"{name}:{size}" for name, _, size in sources()]
    key.append(".".join(map(str, sys.version_info[:3])))
    return hashlib.blake2b("\n".join(key).encode(), digest_size=6).hexdigest()


class Corpus:
    """The files' lines, and the words of their docstrings."""

    def __init__(self) -> None:
        self.files: list[tuple[str, list[str]]] = []
        self.words: list[str] = []
        for name, path, _ in sources():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            self.files.append((name, text.expandtabs(4).splitlines()[:MAX_LINES]))
            for doc in _DOCSTRING.findall(text):
                self.words.extend(word for word in doc.split() if len(word) < 30)
        if len(self.words) < 1000:
            raise RuntimeError("the standard library's sources are not installed")
        self.names = sorted({word for word in self.words if word.islower() and word.isalpha()} - _KEYWORDS)

    def prose(self, rng: Random, count: int) -> str:
        """About `count` words: short pieces of docstrings, in a new order."""
        words, size, draw = self.words, len(self.words), rng.random
        out: list[str] = []
        while len(out) < count:
            start = int(draw() * size)
            out += words[start : start + 1 + int(draw() * 2)]
        text = " ".join(out)
        return text[:1].upper() + text[1:]

    def markdown(self, rng: Random, count: int, files: Sequence[str] = ()) -> str:
        """Prose in paragraphs and lists, with file names and identifiers."""
        parts: list[str] = []
        while count > 0:
            size = min(count, rng.randint(12, 60))
            text = self.prose(rng, size)
            if files and rng.random() < 0.5:
                text = f"`{rng.choice(files)}:{rng.randint(1, 900)}` {text}"
            if rng.random() < 0.4:
                text = f"- **{self.name(rng)}**: {text}"
            parts.append(text)
            count -= size
        return "\n\n".join(parts)

    def name(self, rng: Random) -> str:
        """An identifier that was probably not seen before."""
        return "_".join(rng.choices(self.names, k=rng.randint(1, 3)))

    def code(self, rng: Random, count: int) -> list[str]:
        """`count` consecutive lines of some file, with some names changed."""
        out: list[str] = []
        while len(out) < count:
            _, lines = rng.choice(self.files)
            take = min(count - len(out), rng.randint(6, 40))
            start = rng.randrange(max(1, len(lines) - take))
            out += self.changed(rng, lines[start : start + take])
        return out

    def changed(self, rng: Random, lines: list[str]) -> list[str]:
        """The lines with about a third of their identifiers renamed."""
        renamed: dict[str, str] = {}

        def rename(match: re.Match[str]) -> str:
            old = match[0]
            if old in _KEYWORDS:
                return old
            if old not in renamed:
                renamed[old] = self.name(rng) if rng.random() < 0.5 else old
            return renamed[old]

        return [_IDENTIFIER.sub(rename, line) for line in lines]


class SourceFile:
    """A file of a project, which changes as conversations edit it."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.lines = lines
        self.version = 1

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def edit(self, rng: Random, corpus: Corpus) -> tuple[int, list[str], list[str]]:
        """Replaces some lines: (first index, old lines, new lines)."""
        start = rng.randrange(max(1, len(self.lines)))
        old = self.lines[start : start + rng.randint(1, 9)]
        new = corpus.changed(rng, old)
        if len(self.lines) < MAX_LINES:
            at = rng.randint(0, len(new))
            new[at:at] = corpus.code(rng, rng.randint(1, 16))
        elif len(new) > 1:
            new.pop()
        if new == old:
            new = [f"# {corpus.prose(rng, 6)}", *new]
        self.lines[start : start + len(old)] = new
        self.version += 1
        return start, old, new

    def replace(self, lines: list[str]) -> None:
        self.lines = lines
        self.version += 1


class Project:
    """A working directory: conversations share its files and their changes."""

    def __init__(self, name: str, files: list[SourceFile]) -> None:
        self.cwd = f"/home/dev/src/{name}"
        self.folder = re.sub(r"[^A-Za-z0-9]", "-", self.cwd)
        self.files = files

    def path(self, file: SourceFile) -> str:
        return f"{self.cwd}/{file.name}"

    def hot(self, rng: Random) -> list[SourceFile]:
        """What one conversation works on; smaller files are likelier."""
        size = min(len(self.files), rng.randint(8, 20))
        ranked = sorted(self.files, key=lambda f: len(f.lines) * rng.random())
        return ranked[:size]


def projects(corpus: Corpus, rng: Random, count: int) -> list[Project]:
    """`count` projects that share no file."""
    files = [SourceFile(name, list(lines)) for name, lines in corpus.files]
    rng.shuffle(files)
    made: list[Project] = []
    for number in range(count):
        first, second = rng.sample(corpus.names, 2)
        made.append(Project(f"{first}-{second}-{number}", files[number::count]))
    return made
