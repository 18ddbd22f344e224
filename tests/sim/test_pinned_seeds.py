"""What a seed has found once stays mended."""

import pytest

from hastore.sim.simulation import simulate
from tests.sim.pinned import PINNED


@pytest.mark.parametrize("seed", PINNED)
def test_a_seed_that_has_failed_holds(seed):
    """Each with the name of what it found."""
    result = simulate(seed)
    assert result.ok, f"seed {seed} ({PINNED[seed]}): {result.violation}"
