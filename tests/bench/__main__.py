"""The project's measurements: `make bench`. Ratios of one run; a missed target is reported, the exit code stays 0.

python -m tests.bench [--quick] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import time
import traceback

from .aggregates import aggregates, peers
from .forking import checkpoints, forks
from .measure import Row, table
from .place import FULL, QUICK, Part, place
from .recording import ingest, memory, size, startup, unchanged

PARTS: dict[str, Part] = {
    "ingest": ingest,
    "size": size,
    "unchanged": unchanged,
    "aggregates": aggregates,
    "peers": peers,
    "startup": startup,
    "memory": memory,
    "checkpoints": checkpoints,
    "forks": forks,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small set: shows that it works, measures little")
    parser.add_argument("--only", action="append", choices=PARTS, metavar="NAME", help=f"one of: {' '.join(PARTS)}")
    return parser.parse_args()


def _machine() -> str:
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return f"{platform.system()} {platform.machine()}, {cores} cores, load {load}, {versions}"


def main() -> None:
    given = _arguments()
    sizes = QUICK if given.quick else FULL
    rows: list[Row] = []
    notes: list[str] = []
    broken: list[str] = []
    began = time.monotonic()
    print(_machine(), flush=True)
    with place(sizes) as here:
        for name in given.only or PARTS:
            try:
                result = PARTS[name](here)
            except KeyboardInterrupt:
                broken.append(f"{name}: stopped by Ctrl-C, and what comes after it was not measured")
                break
            except Exception as error:
                traceback.print_exc()
                broken.append(f"{name}: {type(error).__name__}: {error}")
                continue
            rows += result.rows
            notes += result.notes
    print()
    table(rows)
    for text in broken:
        print(f"NOT MEASURED  {text}")
    print()
    for text in notes:
        print(text if text.startswith(" ") else f"- {text}")
    missed = sum(row.verdict == "MISS" for row in rows)
    print(f"\n{len(rows) - missed} of {len(rows)} targets met, {missed} missed, {len(broken)} not measured; ", end="")
    print(f"{time.monotonic() - began:.0f} s, load {_machine().split('load ')[1].split(',')[0]} at the end")
    if given.quick:
        print("--quick: a small set; these are not the numbers that the targets are about")


if __name__ == "__main__":
    main()
    sys.exit(0)
