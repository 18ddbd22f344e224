"""Seeds of groups whose nodes decide roles by a model of etcd find no violation, and replay."""

import pytest

from hastore.sim.group.etcd_faults import ETCD_KINDS
from hastore.sim.group.group_faults import GROUP_KINDS, REJOIN
from hastore.sim.group.group_simulation import GroupSimulation, simulate_group
from tests.sim.hashes import hashes_elsewhere
from tests.sim.pinned import PINNED_WITH_ETCD

SEEDS = 8  # `make soak` has 5,000
CHUNK = 4  # so that the seeds are spread over the workers


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_with_etcd_find_no_violation(first):
    """The rules of groups without it hold, and each master decides only while it has its key."""
    for seed in range(first, first + CHUNK):
        result = simulate_group(seed, with_etcd=True)
        assert result.ok, f"seed {seed}: {result.violation}"
        assert result.virtual_s > 20


def test_a_seed_with_etcd_is_the_same_run_in_another_process():
    """PYTHONHASHSEED makes no difference; without etcd the seed is another run."""
    seeds = (0, 9)  # two quick ones
    here = [simulate_group(seed, with_etcd=True).trace_hash for seed in seeds]
    assert hashes_elsewhere(seeds, groups=True, with_etcd=True) == here
    assert simulate_group(0).trace_hash != here[0]


def test_groups_with_etcd_have_its_faults_and_all_others_but_one():
    """`rejoin` waits for a proposal at the model of roles, which is not there."""
    kinds = set()
    for seed in range(200):
        kinds |= {each.kind for each in GroupSimulation(seed, with_etcd=True).plan.faults}
    assert kinds == {*GROUP_KINDS, *ETCD_KINDS} - {REJOIN}


@pytest.mark.parametrize("seed", PINNED_WITH_ETCD)
def test_a_seed_with_etcd_that_once_failed_passes(seed):
    """A failure says what the seed found before."""
    result = simulate_group(seed, with_etcd=True)
    assert result.ok, f"seed {seed} ({PINNED_WITH_ETCD[seed]}): {result.violation}"
