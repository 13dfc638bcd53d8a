"""Measuring: child processes, the best of several runs, tables of ratios."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

T = TypeVar("T")

_LAUNCHER = """
import os, sys, time
report, command = int(sys.argv[1]), sys.argv[2:]
os.set_inheritable(report, False)
began = time.perf_counter()
child = os.posix_spawnp(command[0], command, os.environ)
_, status, used = os.wait4(child, 0)
wall = time.perf_counter() - began
code = os.waitstatus_to_exitcode(status)
cpu = used.ru_utime + used.ru_stime
os.write(report, f"{wall} {cpu} {used.ru_maxrss} {code}".encode())
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one child process cost; `rss` is its peak memory in bytes."""

    wall: float
    cpu: float
    rss: int
    code: int
    stdout: bytes = b""


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    keep: bool = False,
) -> Cost:
    """Runs a command and waits; `env` is added to our own environment.

    Linux counts the memory of the process that starts a program into that
    program's own peak, so a small interpreter does it (a floor of about 10 MB).
    Of the command's own children the largest counts. Output is dropped unless
    `keep`; errors are shown where the command failed.
    """
    merged = {**os.environ, **(env or {})}
    merged.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not at every start
    reader, writer = os.pipe()
    with (
        open(reader, encoding="ascii") as report,
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writer), *command],
            env=merged,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keep else subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(writer,),
        ) as child,
    ):
        os.close(writer)
        output = child.communicate()[0] or b""
        values = report.read().split()
        if check and values[3:] != ["0"]:
            errors.seek(0)
            sys.stderr.write(errors.read().decode(errors="replace"))
    if child.returncode != 0 or len(values) != 4:
        raise OSError(f"could not start {os.fspath(command[0])}")
    wall, cpu, rss, code = (float(value) for value in values)
    if check and code != 0:
        raise subprocess.CalledProcessError(int(code), list(command), output)
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(wall, cpu, int(rss) * unit, int(code), output)


def python(*arguments: str, env: Mapping[str, str] | None = None) -> Cost:
    """Runs this interpreter."""
    return run([sys.executable, *arguments], env=env)


def best_of(n: int, fn: Callable[[], T], key: Callable[[T], float] | None = None) -> T:
    """The smallest of `n` results by `key` (default: wall time of a Cost)."""

    def wall(result: T) -> float:
        if isinstance(result, Cost):
            return result.wall
        if isinstance(result, int | float):
            return float(result)
        raise TypeError("best_of needs a key for such results")

    return min((fn() for _ in range(n)), key=key or wall)


def seconds(fn: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    fn()
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Row:
    """A measured value beside its target; `least`: larger values are better."""

    name: str
    value: float
    target: float
    stretch: float | None = None
    least: bool = False
    unit: str = "x"

    def meets(self, bound: float | None) -> bool:
        if bound is None:
            return False
        return self.value >= bound if self.least else self.value <= bound

    @property
    def verdict(self) -> str:
        if self.meets(self.stretch):
            return "pass (stretch)"
        return "pass" if self.meets(self.target) else "MISS"


def table(rows: Iterable[Row], out: TextIO | None = None) -> bool:
    """Prints the rows; whether all of them meet their targets."""
    listed = list(rows)
    cells = [("what", "value", "target", "stretch", "")]
    for row in listed:
        sign = ">=" if row.least else "<="
        stretch = "-" if row.stretch is None else f"{sign} {row.stretch:g}{row.unit}"
        target = f"{sign} {row.target:g}{row.unit}"
        cells.append((row.name, f"{row.value:.3g}{row.unit}", target, stretch, row.verdict))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, value, target, stretch, verdict in cells:
        line = f"{name:<{widths[0]}}  {value:>{widths[1]}}  {target:>{widths[2]}}"
        line += f"  {stretch:>{widths[3]}}  {verdict}"
        print(line.rstrip(), file=out or sys.stdout)
    return all(row.meets(row.target) for row in listed)
