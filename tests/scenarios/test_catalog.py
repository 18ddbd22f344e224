"""Every scenario of the catalog, once in the simulator; most, once on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one, run_scenario
from hastore_scenarios.story.scenario import Scenario
from tests.scenarios.passing import NETWORK, catalog, check, quick_catalog


@quick_catalog
async def test_scenario_holds(scenario: Scenario, tmp_path: Path) -> None:
    """Its expectations hold, and the checker finds no violation."""
    check(await run_scenario(scenario, tmp_path / scenario.name))


@catalog
def test_scenario_holds_in_the_simulator(scenario: Scenario, tmp_path: Path) -> None:
    """The same story runs on the same code in virtual time, with a seed."""
    check(run_one(scenario, world=WorldKind.SIM, seed=1, directory=tmp_path / scenario.name))


@pytest.mark.parametrize("name", NETWORK[:2])
def test_scenario_holds_between_namespaces(name: str, tmp_path: Path) -> None:
    """The same story runs on processes, and the kernel drops packets between them."""
    (scenario,) = find(name)
    check(run_one(scenario, world=WorldKind.NETNS, directory=tmp_path / name))


@pytest.mark.parametrize(
    "name",
    [
        "promotion",
        "two-masters",
        pytest.param("flush-slave-timeout", marks=pytest.mark.soak),
        pytest.param("switchover-under-load", marks=pytest.mark.soak),
    ],
)
def test_a_seed_determines_the_history(name: str, tmp_path: Path) -> None:
    """The same seed writes the same bytes; another seed does not."""
    (scenario,) = find(name)
    histories = []
    for number, seed in enumerate((7, 7, 8)):
        place = tmp_path / str(number)
        result = run_one(scenario, world=WorldKind.SIM, seed=seed, directory=place, keep=True)
        check(result)
        assert (result.world, result.seed) == ("sim", seed)
        histories.append((place / "history.jsonl").read_bytes())
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]
