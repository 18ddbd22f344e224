"""Seeds of groups whose nodes decide roles by a model of etcd find no violation, and replay."""

import re

import pytest

from hastore.cluster.decide import why_alarm
from hastore.cluster.role_actions import RoleActions
from hastore.sim.group.directory_faults import DIRECTORY_KINDS
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.sim.group.etcd_faults import ETCD_KINDS, ETCD_WEIGHTS
from hastore.sim.group.group_faults import GROUP_KINDS, REJOIN, WRONG_CLOCK
from hastore.sim.group.group_simulation import GroupSimulation, simulate_group
from hastore.sim.seams import run_by_seed
from tests.sim.hashes import hashes_elsewhere
from tests.sim.pinned import PINNED_WITH_ETCD
from tests.support.worlds.planted_with_etcd import continues_its_epoch_after_a_start

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
    assert kinds == {*GROUP_KINDS, *ETCD_KINDS, *DIRECTORY_KINDS, WRONG_CLOCK} - {REJOIN}


def test_every_seed_with_etcd_has_a_fault_of_its_nodes_own_past():
    """Older copies, lost storage, damage and wrong clocks are not left to chance."""
    for seed in range(200):
        kinds = {each.kind for each in GroupSimulation(seed, with_etcd=True).plan.faults}
        assert kinds & set(DIRECTORY_KINDS), f"seed {seed}"
        assert WRONG_CLOCK in kinds, f"seed {seed}"


@pytest.mark.parametrize("seed", PINNED_WITH_ETCD)
def test_a_seed_with_etcd_that_once_failed_passes(seed):
    """A failure says what the seed found before."""
    result = simulate_group(seed, with_etcd=True)
    assert result.ok, f"seed {seed} ({PINNED_WITH_ETCD[seed]}): {result.violation}"


# A run in which a planted bug begins an epoch twice (tests/sim/test_planted_with_etcd.py).
BEGINS_TWICE = 1


def test_a_run_ends_where_nothing_is_promised(monkeypatch):
    """An epoch begins again, and who had seen it was not up since etcd was restored."""
    continues_its_epoch_after_a_start(monkeypatch)
    monkeypatch.setattr(EtcdDirector, "is_unnoticed", True)
    result = simulate_group(BEGINS_TWICE, with_etcd=True, keeps_trace=True)
    assert result.ok
    found = [str(entry) for entry in result.entries if " oracle " in str(entry)]
    assert re.search(r"ends the run: epoch twice: node-\d begins epoch \d+ again", found[-1])


def test_an_epoch_that_begins_again_is_a_violation_once_a_restore_is_noticed(monkeypatch):
    """The same run, if somebody who had seen that epoch had been up."""
    continues_its_epoch_after_a_start(monkeypatch)
    monkeypatch.setattr(EtcdDirector, "is_unnoticed", False)
    result = simulate_group(BEGINS_TWICE, with_etcd=True)
    assert re.fullmatch(r"epoch twice: node-\d begins epoch \d+ again", str(result.violation))


def test_a_restore_counts_as_noticed_before_a_node_raises_the_alarm(monkeypatch):
    """Else an epoch that begins again in spite of an alarm would be excused."""
    noticed = []
    raise_alarm = RoleActions.raise_alarm

    async def record(actions):
        if why_alarm(actions._known()) is not None:
            noticed.append(not simulation.oracle.controller.is_unnoticed)
        return await raise_alarm(actions)

    monkeypatch.setattr(RoleActions, "raise_alarm", record)
    monkeypatch.setitem(ETCD_WEIGHTS, "etcd-restore", (3.0,))
    for seed in range(20):
        simulation = GroupSimulation(seed, with_etcd=True)
        run_by_seed(seed, simulation.run)
        if len(noticed) > 3:
            break
    assert noticed
    assert all(noticed)
