"""Agents to run, one test for each version that is installed; where there is none, the reason is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beyond.model import ScriptedModel
from tests.live.clis import Agent, Counted, Installed, installed


def _params(*names: str) -> list[Any]:
    params: list[Any] = []
    for name in names:
        reason = f"no {name} in the cache of `make live` (BND_LIVE_CACHE): run `make live-clis`"
        params += [pytest.param(one, id=str(one)) for one in installed(name)] or [
            pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason))
        ]
    return params


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is live."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Makes an agent with a model of its own; afterwards nothing that it sent may have been invalid."""
    models: list[ScriptedModel] = []

    def start(cli: Installed, *, delay: float = 0) -> Agent:
        model = ScriptedModel(Counted(delay=delay, cache_write=cli.cli == "claude"))
        models.append(model)
        return Agent(cli, tmp_path, model.__enter__())

    yield start
    for model in models:
        model.close()
        assert not model.errors
        assert [(request.target, request.problem) for request in model.invalid] == []


@pytest.fixture(params=_params("claude", "kimi"))
def cli(request: pytest.FixtureRequest) -> Installed:
    """Each version of each CLI."""
    found: Installed = request.param
    return found


@pytest.fixture(params=_params("claude"))
def claude(request: pytest.FixtureRequest) -> Installed:
    """Each version of Claude Code."""
    found: Installed = request.param
    return found


@pytest.fixture
def agent(cli: Installed, start_agent: Callable[..., Agent]) -> Agent:
    """An agent of each version of each CLI."""
    return start_agent(cli)


@pytest.fixture
def claude_agent(claude: Installed, start_agent: Callable[..., Agent]) -> Agent:
    """An agent of each version of Claude Code."""
    return start_agent(claude)
