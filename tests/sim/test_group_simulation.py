"""Seeds of replica groups find no violation, and replay in another process."""

import pytest

from hastore.sim.faults import KINDS
from hastore.sim.group.group_faults import GROUP_KINDS
from hastore.sim.group.group_simulation import GroupSimulation, simulate_group
from hastore.sim.group.topic_deletions import DELETE_TOPIC
from tests.sim.hashes import hashes_elsewhere
from tests.sim.pinned import PINNED_GROUPS

SEEDS = 12  # `make soak` has 2,000
CHUNK = 6  # so that the seeds are spread over the workers
WITH_DELETIONS = {False: 69, True: 135}  # by whether they have etcd: short runs


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


@pytest.mark.parametrize("with_etcd", [False, True], ids=["orders", "etcd"])
def test_deletions_change_nothing_of_the_seed_before_them(with_etcd):
    """Their plan and all their choices come from a generator of their own."""
    seed = WITH_DELETIONS[with_etcd]
    first = GroupSimulation(seed, with_etcd=with_etcd)
    assert first.deletions is not None
    second = GroupSimulation(seed, with_etcd=with_etcd)
    second.deletions = None
    assert second.plan == first.plan
    assert second.choices.getstate() == first.choices.getstate()
    numbers = [fault.number for fault in first.result().plan.faults]
    assert sorted(numbers) == list(range(len(numbers)))
    own = first.deletions.plan.faults
    assert min(fault.number for fault in own) == len(first.plan.faults)
    assert DELETE_TOPIC in {fault.kind for fault in own}


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
