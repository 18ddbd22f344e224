"""The simulator of replica groups finds each bug that is planted into it."""

import pytest

from hastore.sim.group.group_simulation import simulate_group
from tests.support.worlds.planted_in_groups import PLANTED_IN_GROUPS

SEEDS_MAX = 200
# Seeds that find a bug which the seeds before them miss.  Any change that draws from a seed's
# generators may make them useless: then other seeds find it, later.
FOUND_BY = {
    "counts_connections": 76,
    "elects_a_node_that_lost_its_cache": 19,
    "forgets_a_proposal_after_a_read": 34,
    "ignores_the_minimum_of_waiting_puts": 163,
}


@pytest.mark.parametrize("plant", PLANTED_IN_GROUPS, ids=lambda plant: plant.__name__)
def test_a_bug_planted_into_a_group_is_found(plant, monkeypatch):
    """The first violation within 200 seeds is of a rule that fits the bug."""
    plant(monkeypatch)
    for seed in sorted(range(SEEDS_MAX), key=lambda seed: seed != FOUND_BY.get(plant.__name__)):
        result = simulate_group(seed)
        if not result.ok:
            rules = PLANTED_IN_GROUPS[plant]
            assert result.violation.name in rules, f"seed {seed}: {result.violation}"
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds: {plant.__doc__}")
