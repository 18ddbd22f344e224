"""Thousands of seeds pass, and are the same runs in another process."""

import pytest

from hastore.sim.group.etcd_outage import Outage
from hastore.sim.group.group_simulation import simulate_group
from hastore.sim.simulation import simulate
from tests.sim.hashes import hashes_elsewhere

SEEDS = 2_000
SEEDS_WITH_ETCD = 5_000
CHUNK = 100


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_two_thousand_seeds_hold_and_replay(first):
    """There is no violation, and the trace hashes do not depend on PYTHONHASHSEED."""
    seeds = range(first, first + CHUNK)
    results = [simulate(seed) for seed in seeds]
    assert [(each.seed, str(each.violation)) for each in results if not each.ok] == []
    assert hashes_elsewhere(seeds) == [each.trace_hash for each in results]


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_two_thousand_seeds_of_groups_hold_and_replay(first):
    """Likewise replica groups, with promotions at any instant."""
    seeds = range(first, first + CHUNK)
    results = [simulate_group(seed) for seed in seeds]
    assert [(each.seed, str(each.violation)) for each in results if not each.ok] == []
    assert hashes_elsewhere(seeds, groups=True) == [each.trace_hash for each in results]


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(0, SEEDS_WITH_ETCD, CHUNK))
def test_five_thousand_seeds_with_etcd_hold_and_replay(first):
    """Likewise groups whose nodes decide roles by a coordinator that fails."""
    seeds = range(first, first + CHUNK)
    results = [simulate_group(seed, with_etcd=True) for seed in seeds]
    assert [(each.seed, str(each.violation)) for each in results if not each.ok] == []
    hashes = [each.trace_hash for each in results]
    assert hashes_elsewhere(seeds, groups=True, with_etcd=True) == hashes


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("failsafe", [True, False], ids=["failsafe", "no failsafe"])
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_two_thousand_seeds_with_etcd_down_hold(first, failsafe):
    """Etcd is down for 60 s: puts go on, or stop before the lease is over; nothing is lost."""
    outage = Outage(seconds=60.0, failsafe=failsafe)
    seeds = range(first, first + CHUNK)
    results = [simulate_group(seed, with_etcd=True, outage=outage) for seed in seeds]
    assert [(each.seed, str(each.violation)) for each in results if not each.ok] == []


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("with_etcd", [None, False, True], ids=["classic", "group", "etcd"])
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_two_thousand_seeds_with_producers_in_process_hold(first, with_etcd):
    """Producers are tasks of the master's process, and read its links."""
    seeds = range(first, first + CHUNK)
    if with_etcd is None:
        results = [simulate(seed, in_process=True) for seed in seeds]
    else:
        results = [simulate_group(seed, with_etcd=with_etcd, in_process=True) for seed in seeds]
    assert [(each.seed, str(each.violation)) for each in results if not each.ok] == []
