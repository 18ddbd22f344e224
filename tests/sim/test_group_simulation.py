"""Seeds of replica groups find no violation, and replay in another process."""

import pytest

from hastore.sim.faults import KINDS
from hastore.sim.group.group_faults import GROUP_KINDS
from hastore.sim.group.group_simulation import simulate_group
from tests.sim.hashes import hashes_elsewhere
from tests.sim.pinned import PINNED_GROUPS

SEEDS = 12  # `make soak` has 2,000
CHUNK = 6  # so that the seeds are spread over the workers


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_of_groups_find_no_violation(first):
    """Promises are checked at each answer, promotion, cut and step; then all logs become equal."""
    for seed in range(first, first + CHUNK):
        result = simulate_group(seed)
        replay = f"hastore sim replay --groups {seed}"
        assert result.ok, f"seed {seed}: {result.violation}\nreplay: {replay}"
        assert result.virtual_s > 20


def test_a_seed_of_a_group_is_the_same_run_in_another_process():
    """PYTHONHASHSEED makes no difference."""
    seeds = (2, 5)  # two quick ones
    here = [simulate_group(seed).trace_hash for seed in seeds]
    assert hashes_elsewhere(seeds, groups=True) == here


def test_groups_have_the_faults_of_classic_clusters_and_promotions():
    """But no flipped bits: a person decides about a damaged member."""
    groups = {"promote", "half-reset", "rejoin", "foreign", "lost-files"}
    assert set(GROUP_KINDS) == {*KINDS, *groups} - {"flip"}


@pytest.mark.parametrize("seed", PINNED_GROUPS)
def test_a_seed_of_a_group_that_once_failed_passes(seed):
    """A failure says what the seed found before."""
    result = simulate_group(seed)
    assert result.ok, f"seed {seed} ({PINNED_GROUPS[seed]}): {result.violation}"


def test_the_trace_has_elections_masters_and_cuts():
    """So that a failure can be read."""
    text = ""
    for seed in range(12):
        text += "\n".join(simulate_group(seed, keeps_trace=True).lines)
        if all(part in text for part in ("election of epoch 2", "master of epoch 2", " cut from ")):
            return
    pytest.fail("no election, no second master or no cut in 12 seeds")
