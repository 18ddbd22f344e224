"""The catalog, repeated: processes race, packets are lost at any instant, seeds differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one, run_scenario
from hastore_scenarios.story.scenario import Scenario
from tests.scenarios.passing import NETWORK, catalog, check

RUNS = 20
SEEDS = 100


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@catalog
async def test_scenario_holds_each_time(scenario: Scenario, tmp_path: Path) -> None:
    """Twenty times in a row on processes."""
    for number in range(RUNS):
        check(await run_scenario(scenario, tmp_path / str(number)))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", NETWORK)
@pytest.mark.xdist_group("netns")
def test_scenario_holds_each_time_between_namespaces(name: str, tmp_path: Path) -> None:
    """Five times in a row on a network that loses packets."""
    (scenario,) = find(name)
    for number in range(5):
        check(run_one(scenario, world=WorldKind.NETNS, directory=tmp_path / str(number)))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@catalog
def test_scenario_holds_with_every_seed(scenario: Scenario, tmp_path: Path) -> None:
    """A hundred seeds in the simulator."""
    for seed in range(SEEDS):
        place = tmp_path / str(seed)
        check(run_one(scenario, world=WorldKind.SIM, seed=seed, directory=place))
