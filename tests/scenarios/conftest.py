"""Fixtures of stories that a test writes itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.worlds.sim.world import SimWorld
from tests.scenarios.passing import RunStory, scenario_of


@pytest.fixture
def run_story(tmp_path: Path) -> RunStory:
    """Return a function that runs a story with seed 1 and returns the result."""

    def run(story: Callable[[SimWorld], Awaitable[None]]) -> ScenarioResult:
        place = tmp_path / "w"
        return run_one(scenario_of(story), world=WorldKind.SIM, seed=1, directory=place, keep=True)

    return run
