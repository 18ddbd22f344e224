"""Seeds that once found a defect pass."""

import pytest

from hastore.sim.simulation import simulate
from tests.sim.pinned import PINNED


@pytest.mark.parametrize("seed", PINNED)
def test_a_seed_that_once_failed_passes(seed):
    """A failure says what the seed found before."""
    result = simulate(seed)
    assert result.ok, f"seed {seed} ({PINNED[seed]}): {result.violation}"
