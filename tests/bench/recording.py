"""Recording: its speed, the journal's size, an unchanged store, and memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from statistics import median

import zstandard

from .measure import Cost, Row
from .memory import Watch
from .place import Place, Result, say, size_of

_LOADS = """
import json, sys
from pathlib import Path
from statistics import median
for path in sorted(Path(sys.argv[1]).rglob("*.jsonl")):
    with open(path, "rb") as file:
        for line in file:
            json.loads(line)
"""
_MB = 1_000_000


def ingest(place: Place) -> Result:
    """Recording all into a new journal against a bare json.loads loop, alternately."""
    store, files = place.store(), place.files()
    journal = place.scratch / "recorded.db"
    record: list[Cost] = []
    loads: list[Cost] = []
    peak = 0
    for number in range(place.sizes.ingests):
        say(f"ingest, round {number + 1} of {place.sizes.ingests}")
        loads.append(place.python("-I", "-c", _LOADS, store))
        # Every look at the processes' memory costs a little: the last round only, where there are several.
        if number == place.sizes.ingests - 1:
            with Watch() as watch:
                record.append(place.record_new(journal))
            peak = watch.peak
        else:
            record.append(place.record_new(journal))
    ours, bare = fastest(record), fastest(loads)
    size = sum(path.stat().st_size for path in files)
    notes = [
        f"ingest: {size / _MB:.0f} MB in {len(files)} files; wall of whole processes, both with their start-up: record "
        f"{_each(record)} s, json.loads loop {_each(loads)} s; best {size / ours.wall / _MB:.1f} and "
        f"{size / bare.wall / _MB:.1f} MB/s",
        f"ingest: record may use several cores, the loop one; by user+sys CPU of record's first process and its "
        f"workers the ratio is {bare.cpu / ours.cpu:.2f}x ({ours.cpu:.2f} s against {bare.cpu:.2f} s)",
    ]
    if peak:
        notes.append(f"ingest: peak memory of record with its workers {peak / _MB:.0f} MB (shared pages once, sampled)")
    return Result([Row("ingest: speed / json.loads loop", bare.wall / ours.wall, 0.4, 0.7, least=True)], notes)


def fastest(costs: list[Cost]) -> Cost:
    """The one with the least wall time."""
    return min(costs, key=lambda cost: cost.wall)


def _each(costs: list[Cost]) -> str:
    return ", ".join(f"{cost.wall:.2f}" for cost in costs)


def compressed(files: list[Path]) -> int:
    """Bytes of `cat FILES | zstd -3`."""
    out = 0
    stream = zstandard.ZstdCompressor(level=3).compressobj()
    for path in files:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                out += len(stream.compress(chunk))
    return out + len(stream.flush())


def size(place: Place) -> Result:
    """The journal as recorded, and after gc, against zstd -3 of the transcripts."""
    files = place.files()
    say("zstd -3")
    base = compressed(files)
    live = size_of(place.recorded())
    packed = place.copy("packed.db")
    say("bnd gc")
    cost = place.bnd(packed, "gc")
    after = size_of(packed)
    name = "journal size / zstd -3"
    return Result(
        [Row(f"{name}, live", live / base, 1.4, 1.2), Row(f"{name}, after gc", after / base, 1.0, 0.9)],
        [
            f"size: journal {live:,} bytes, after gc {after:,}; zstd -3 of the {len(files)} transcripts in sorted order, "
            f"one stream: {base:,} (only .jsonl: what the journal holds); gc took {cost.wall:.1f} s"
        ],
    )


def unchanged(place: Place) -> Result:
    """`record --all` of a store that is recorded already, beyond what it costs on an empty store."""
    store, journal = place.store(), place.copy("unchanged.db")
    blank = place.scratch / "blank.db"
    place.bnd(journal, "record", "--all", store=store)
    place.bnd(blank, "record", "--all")
    before = _digest(journal)
    ours: list[Cost] = []
    empty: list[Cost] = []
    bare: list[Cost] = []
    say("unchanged record --all")
    for _ in range(2 * place.sizes.repeats):
        ours.append(place.bnd(journal, "record", "--all", store=store))
        empty.append(place.bnd(blank, "record", "--all"))
        bare.append(place.python("-c", "import click"))
    walls = [fastest(costs).wall * 1000 for costs in (ours, empty, bare)]
    cpus = [min(cost.cpu for cost in costs) * 1000 for costs in (ours, empty, bare)]
    between = median(one.wall - two.wall for one, two in zip(ours, empty, strict=True)) * 1000
    same = "the journal's bytes are as before" if _digest(journal) == before else "THE JOURNAL CHANGED"
    return Result(
        [Row("unchanged record --all, beyond start-up", walls[0] - walls[1], 20, 5, unit=" ms")],
        [
            f"unchanged: start-up is `bnd record --all` on an empty store with an empty journal; best of {len(ours)} by "
            f"wall, alternately: {walls[0]:.1f} - {walls[1]:.1f} ms (median of the differences {between:.1f} ms); by CPU "
            f"{cpus[0]:.1f} - {cpus[1]:.1f} ms; {same}",
            f"unchanged: beyond `python -c 'import click'` instead ({walls[2]:.1f} ms wall, {cpus[2]:.1f} ms CPU) it is "
            f"{walls[0] - walls[2]:.1f} ms wall, {cpus[0] - cpus[2]:.1f} ms CPU",
        ],
    )


def _digest(journal: Path) -> bytes:
    with open(journal, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def memory(place: Place) -> Result:
    """Peak memory of `bnd record FILE` on one large transcript."""
    path = place.big()
    say("recording it")
    with Watch() as watch:
        cost = place.bnd(place.scratch / "big.db", "record", path, store=path.parents[2])
    for left in place.scratch.glob("big.db*"):
        left.unlink()
    megabytes = path.stat().st_size / _MB
    peak = max(cost.rss, watch.peak)
    sampled = f"{watch.peak / _MB:.0f} MB" if watch.peak else "not sampled here"
    return Result(
        [Row(f"peak RSS of record, {megabytes:.0f} MB transcript", peak / _MB, 300, unit=" MB")],
        [
            f"memory: the larger of the process's peak RSS ({cost.rss / _MB:.0f} MB) and the sampled sum over all its "
            f"processes, shared pages once ({sampled}); {cost.wall:.1f} s, {megabytes / cost.wall:.1f} MB/s"
        ],
    )


def startup(place: Place) -> Result:
    """`bnd --help` and `bnd runs` over a Python that imports click."""
    journal = place.recorded()
    blank = place.scratch / "blank.db"
    place.bnd(blank, "record", "--all")
    commands: dict[str, Callable[[], Cost]] = {
        "click": lambda: place.python("-c", "import click"),
        "help": lambda: place.bnd(journal, "--help"),
        "runs": lambda: place.bnd(journal, "runs"),
        "none": lambda: place.bnd(blank, "runs"),
    }
    say("start-up")
    taken: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(place.sizes.repeats + 1):  # the first may write .pyc files
        for name, command in commands.items():
            taken[name].append(command())
    cpu = {name: min(c.cpu for c in costs[1:]) for name, costs in taken.items()}
    wall = {name: min(c.wall for c in costs[1:]) for name, costs in taken.items()}
    rows = [Row(f"bnd {what} / python -c 'import click'", cpu[key] / cpu["click"], 2.5, 1.5) for key, what in _STARTS.items()]
    return Result(
        rows,
        [
            f"startup: user+sys CPU, best of {place.sizes.repeats}, alternately: click {cpu['click'] * 1000:.1f} ms, --help "
            f"{cpu['help'] * 1000:.1f}, runs {cpu['runs'] * 1000:.1f} (all conversations of the set), runs of an empty "
            f"journal {cpu['none'] * 1000:.1f} ({cpu['none'] / cpu['click']:.2f}x); by wall --help "
            f"{wall['help'] / wall['click']:.2f}x, runs {wall['runs'] / wall['click']:.2f}x"
        ],
    )


_STARTS = {"help": "--help", "runs": "runs"}
