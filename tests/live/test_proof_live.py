"""The proof on every version: a certificate without a leak, and a red check for each rule that is switched off."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beyond import agents, proof
from beyond.fork.gate import Installed as Program
from beyond.fork.gate import _look_at
from beyond.proof.lab import surroundings
from tests.conftest import LIVE_CACHE
from tests.live.clis import Installed, installed

#: For each CLI, by rule: the cut at which its absence has to be seen on at least one version, and a word of what is seen.
#: What is not here has no trace in the story that is played: tests/test_surgery_*.py turns each of those off, too.
MUTATIONS: dict[str, dict[str, tuple[str, str]]] = {
    "claude": {
        "ancestors-only": ("between two parallel results", "in conversation"),
        "side-results-cut": ("after both parallel results", "output1 in request"),
        "tree-types-only": ("between two parallel results", "in conversation"),
        "set-session": ("after an answer", "has the id"),
        "entrypoint": ("after an answer", "picker leaves out"),
        "rewrite-root": ("after an answer", "the old directory in request"),
        "rewrite-store": ("after its summary", "links of the past"),
        "copy-side-files-only-referenced": ("after an answer", "output3 in conversation"),
        "complete-calls": ("after a call without its result", "missing from the first request"),
        "move-off-boundary": ("at the compaction", "missing from the first request"),
        "no-memory": ("after an answer", "memory2 in request"),
    },
    "kimi": {
        "prefix-only": ("after an answer", "in conversation"),
        "neutralise": ("between two parallel results", "in request"),
        "new-id": ("after an answer", "has the id"),
        "index-line": ("after an answer", "the index doesn't name it"),
        "state-cwd": ("after an answer", "names another directory"),
        "system-prompt-cwd": ("after an answer", "the old directory in request"),
        "workspace-id": ("after an answer", "runtime binding workspace"),
        "side-files-referenced": ("after an answer", "in conversation"),
        "rewrite-wire-path": ("after an output behind the compaction", "links of the past"),
        "rewrite-root": ("after an answer", "the old directory in request"),
    },
}
#: By CLI: the rules whose absence was seen, over all versions.
seen: dict[str, set[str]] = {"claude": set(), "kimi": set()}


def program(one: Installed) -> Program:
    """An installed CLI as the gate looks at it, with the Node that it needs on the PATH."""
    os.environ["PATH"] = f"{LIVE_CACHE / 'node/node_modules/.bin'}:{os.environ['PATH']}"
    return _look_at(one.cli, str(one.program))


@pytest.fixture(
    scope="module",
    params=installed("claude", "kimi")
    or [pytest.param(None, marks=pytest.mark.skip(reason="no CLI in the cache of `make live`: run `make live-clis`"))],
    ids=str,
)
def bench(request: pytest.FixtureRequest) -> Iterator[proof.Bench]:
    """The story, played by one version and recorded."""
    before = dict(os.environ)
    try:
        with proof.bench(program(request.param)) as made:
            os.environ.clear()
            os.environ.update(before)
            yield made
            os.environ.clear()
            os.environ.update(made.lab.env)  # what the context manager expects to leave
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_no_leak_at_any_cut(bench: proof.Bench) -> None:
    """Must show 1 and 2."""
    with surroundings(bench.lab.env):
        made = proof.certificate(bench.program, proof.try_all(bench))
    assert made["faults"] == []
    assert made["passed"], made["failure"]
    names = {cut["cut"] for cut in made["cuts"]}
    assert len(names) == len(made["cuts"]) >= 18
    assert {"between two parallel results", "before the compaction", "at the compaction", "a fork of a fork"} <= names
    assert all(cut["gone"] for cut in made["cuts"] if cut["cut"] not in ("at the end", "a fork of a fork"))
    assert sum(cut["checks"] for cut in made["cuts"]) > 300


def test_a_rule_that_is_off_turns_a_check_red(bench: proof.Bench) -> None:
    """Must show 1. Not every version shows every rule: see below."""
    cli = bench.lab.cli
    cuts = {cut.name: cut for cut in bench.cuts}
    assert set(MUTATIONS[cli]) <= set(agents.writer(cli).RULES)
    unseen = {}
    with surroundings(bench.lab.env):
        for rule, (at, word) in MUTATIONS[cli].items():
            faults = bench.try_cut(cuts[at], frozenset({rule})).faults
            if any(word in fault for fault in faults):
                seen[cli].add(rule)
            else:
                unseen[rule] = faults
    print(f"{bench.program.cli} {bench.program.version}: not seen here: {unseen}")
    assert len(unseen) <= 4, unseen


@pytest.mark.parametrize("cli", ["claude", "kimi"])
def test_each_rule_is_needed_by_some_version(cli: str) -> None:
    if len(installed(cli)) < 2:
        pytest.skip(f"not all versions of {cli} are in the cache of `make live`: run `make live-clis`")
    assert set(MUTATIONS[cli]) - seen[cli] == set()


def test_the_command_proves_and_opens_the_gate(bnd: Any, tmp_path: Path) -> None:
    """`bnd doctor --prove`, as a user runs it, on a program whose version the shipped table doesn't know."""
    found = installed("claude")
    if not found:
        pytest.skip("no claude in the cache of `make live`: run `make live-clis`")
    folder = tmp_path / "bin"
    folder.mkdir()
    wrapper = folder / "claude"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "9.9.9 (Claude Code)" && exit\nexec {found[-1].program} "$@"\n')
    wrapper.chmod(0o755)
    bnd.env["PATH"] = f"{folder}:{bnd.env['PATH']}"
    from tests.test_fork import recorded

    run = recorded(bnd, "claude/2.1.332/tui")
    assert bnd("fork", run["run"], "--at", "5", "--method", "surgical").code == 3
    done = bnd("doctor", "--prove", "claude", timeout=500)
    assert done.code == 0, done.out + done.err
    assert "no leak" in done.out
    assert "ok       between two parallel results" in done.out
    assert bnd("fork", run["run"], "--at", "5", "--method", "surgical", "--json").ok().json()["method"] == "surgical"
    rows = bnd("doctor", "--json").json()["agents"]
    assert [row["gate"] for row in rows if row["cli"] == "claude"] == ["open"]
    # the certificate is in the journal too; there it opens nothing
    assert bnd("sql", "select name from sqlite_master where name = 'proof'").json()
    (kept,) = (bnd.home / ".bnd/proofs").iterdir()
    data = json.loads(kept.read_bytes())
    kept.unlink()
    assert bnd("fork", run["run"], "--at", "5", "--method", "surgical").code == 3
    # a failed proof closes the gate, and says what leaked
    data |= {"passed": False, "failure": "after an answer: prompt2 in request /v1/messages"}
    kept.write_text(json.dumps(data))
    done = bnd("fork", run["run"], "--at", "5", "--method", "surgical")
    assert (done.code, "prompt2 in request" in done.err) == (3, True)
