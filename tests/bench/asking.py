"""Times queries through the public views, in a process of its own: python -m tests.bench.asking JOURNAL TIMES."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from beyond.agents import content_of
from beyond.query import connect

TOOLS = "select tool, count(*) from tool_calls group by tool"
ERRORS = "select tool, count(*), avg(is_error) from tool_calls group by tool"
TOKENS = (
    "select model, sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens) "
    "from events where kind = 'usage' group by model"
)
QUERIES = {"tool counts": TOOLS, "error rate": ERRORS, "tokens by model": TOKENS}


def ask(journal: Path, times: int) -> dict[str, Any]:
    """Seconds of each query, best of `times`, each on a connection of its own, whose opening is timed apart."""
    opening: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in QUERIES}
    rows: dict[str, list[Any]] = {}
    for _ in range(times):
        for name, sql in QUERIES.items():
            began = time.perf_counter()
            with connect(journal, content_of) as query:
                opened = time.perf_counter()
                rows[name] = list(query.rows(query.execute(sql)))
                taken[name].append(time.perf_counter() - opened)
            opening.append(opened - began)
    return {"connect": min(opening), "seconds": {name: min(each) for name, each in taken.items()}, "rows": rows}


if __name__ == "__main__":
    json.dump(ask(Path(sys.argv[1]), int(sys.argv[2])), sys.stdout)
