"""The simulator finds each bug that is planted into the real code."""

import pytest

from hastore.sim.simulation import simulate
from tests.sim.planted import PLANTED

SEEDS_MAX = 200


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant, monkeypatch):
    """Within 200 seeds, and first by a rule that says what is wrong."""
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        result = simulate(seed)
        if not result.ok:
            assert result.violation.name in PLANTED[plant], f"seed {seed}: {result.violation}"
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds: {plant.__doc__}")
