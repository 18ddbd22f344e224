"""What the simulator takes from a group's keys in etcd."""

from contextlib import contextmanager
from random import Random
from types import SimpleNamespace

import attrs
import pytest
import trio

from hastore.cluster.group_records import EpochRecord, GroupConfig, Registration
from hastore.cluster.key_value_store import Put
from hastore.errors import OperationRefusedError
from hastore.sim.group import etcd_director
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.sim.group.full_disks import FullDisks
from hastore.sim.group.group_cluster import GroupCluster
from hastore.sim.group.group_simulation import GroupSimulation
from hastore.sim.seams import run_by_seed
from hastore.sim.violation import ViolationError
from hastore.store.node_identity import Unverified
from tests.cluster.knowledge import ONE, THREE, TWO, leader, published, state


def with_director(check):
    """Call ``check`` with the director of a group, whose etcd is empty, within a run."""

    async def main():
        async with trio.open_nursery() as nursery:
            simulation = GroupSimulation(1, with_etcd=True)
            director = simulation._make_controller(nursery)
            assert isinstance(director, EtcdDirector)
            director.roles = {node_id: SimpleNamespace(view=None) for node_id in (1, 2)}
            await trio.lowlevel.checkpoint()
            check(director)

    run_by_seed(1, main)


def write(director, agreed, holder, *members):
    """Write the state, the leader key, and what nodes say of themselves, each in its newest start.

    Return the state's revision.
    """
    keys = director.keys
    puts = [Put(keys.state, agreed.encode())]
    if holder is not None:
        puts.append(Put(keys.leader, holder.encode()))
    for each in members:
        node = each.node
        claim = Registration(uuid=node.uuid, start=node.start)
        puts.append(Put(keys.registration(node.node_id), claim.encode()))
        puts.append(Put(keys.member(node.node_id), each.encode()))
        director._boots[node.node_id, node.uuid, node.start] = node.start
    for node in agreed.members:
        director._boots[node.node_id, node.uuid, node.start] = node.start
    director.model.state.commit([], puts)
    return director.model.state.revision


@contextmanager
def deposed(director):
    """Return what the director reports of the ends of terms: the logs' ends that were known."""
    found = []
    director.on_deposed = lambda epoch, _state, ranks: found.append((epoch, dict(ranks)))
    yield found


@pytest.mark.parametrize("end", [700, 800])
def test_the_end_of_a_log_is_known_only_if_it_was_published_for_the_election(end):
    """What a node said before, as it followed, may be old, also an end below the floor of 800."""

    def check(director):
        former = state(members=(ONE, TWO), confirm_offset=800)
        election = write(director, former, leader())
        assert director.state.epoch == 5
        says = published(ONE, end=end), published(TWO, election=election, end=900)
        with deposed(director) as found:
            write(director, attrs.evolve(former, epoch=6, master=TWO), leader(TWO, 6), *says)
            assert director.state.epoch == 6
        assert found == [(5, {2: (5, 900)})]

    with_director(check)


@pytest.mark.parametrize(
    ("promised_by", "lease_left_s", "is_found"),
    [
        pytest.param({2}, 4.0, True, id="it has promised"),
        pytest.param(set(), 4.0, False, id="it has joined since, and etcd ended the lease early"),
        pytest.param(set(), 2.0, True, id="it has joined while its master led by promises"),
    ],
)
def test_a_node_that_promised_nothing_may_be_elected_only_if_etcd_ended_the_lease(
    monkeypatch, promised_by, lease_left_s, is_found
):
    """Node 1 may decide by promises for another 3 s, as node 2 is elected."""

    def check(director):
        host = director.cluster.node(1)
        agent = SimpleNamespace(node_id=1, sim_node=host)
        master = SimpleNamespace(has_stepped_down=False)
        monkeypatch.setattr(GroupCluster, "masters", lambda _cluster: [(agent, master)])
        monkeypatch.setattr(etcd_director, "epoch_of", lambda _master: 5)
        now = host.wall_clock.boot_s()
        director.roles[1] = SimpleNamespace(
            view=None, promised_deadline=now + 3.0, promised_by=frozenset(promised_by)
        )
        director._leases, director._deadlines = {5: {7}}, {7: now + lease_left_s}
        write(director, state(members=(ONE, TWO)), leader())
        assert director.state.epoch == 5
        record = EpochRecord(epoch=6, master_id=2, former_id=1, end=0, why="election", at_ms=0)
        director.model.state.commit([], [Put(director.keys.history(6), record.encode())])
        write(director, state(6, TWO, members=(ONE, TWO)), leader(TWO, 6))
        assert director.state.epoch == 6
        if is_found:
            with pytest.raises(ViolationError, match="node-2 was elected, and node-1 may decide"):
                director.check_step()
        else:
            director.check_step()

    with_director(check)


LEFT_OUT = "node-2 was elected without node-3, a member that stood"


@pytest.mark.parametrize(
    ("says", "why", "members_min", "is_found"),
    [
        pytest.param({}, "election", 2, True, id="an election"),
        pytest.param({}, "failover with loss", 2, False, id="a person names one member alone"),
        pytest.param({"can_store": False}, "election", 2, False, id="it cannot store"),
        pytest.param({"can_store": False}, "election", 3, True, id="puts would be refused"),
        pytest.param({"can_store": False, "kept_since": 4}, "election", 2, True, id="unproven"),
        pytest.param(
            {"can_store": False, "unverified": Unverified(begin=0, end=9, why="repaired")},
            "election",
            2,
            True,
            id="unverified",
        ),
    ],
)
def test_an_election_keeps_the_members_that_stand(says, why, members_min, is_found):
    """Nodes 2 and 3 stand, and node 2 begins the next epoch with node 1, but not with node 3."""

    def check(director):
        config = director.cluster.config
        director.cluster.config = attrs.evolve(config, min_in_sync_replicas=members_min)
        election = director.model.state.revision + 1
        stand = published(TWO, election=election), published(THREE, election=election, **says)
        assert write(director, state(), None, *stand) == election
        director.model.applied_at[election] = trio.current_time() - 2
        director.roles[2] = SimpleNamespace(view=SimpleNamespace(revision=election))
        assert director.state.epoch == 5
        record = EpochRecord(epoch=6, master_id=2, former_id=1, end=0, why=why, at_ms=0)
        director.model.state.commit([], [Put(director.keys.history(6), record.encode())])
        write(director, state(6, TWO, members=(ONE, TWO)), leader(TWO, 6))
        assert director.state.epoch == 6
        if is_found:
            with pytest.raises(ViolationError, match=LEFT_OUT):
                director.check_step()
        else:
            director.check_step()

    with_director(check)


@pytest.mark.parametrize("is_slow", [True, False])
def test_an_election_that_was_asked_for_long_ago_may_leave_out_who_has_stood_since(is_slow):
    """Its request was under way for longer than the other node needed (seed 3472)."""

    def check(director):
        election = director.model.state.revision + 1
        write(director, state(), None, published(THREE, election=election))
        director.model.applied_at[election] = trio.current_time() - 2
        director.roles[2] = SimpleNamespace(view=SimpleNamespace(revision=election))
        assert director.state.epoch == 5
        record = EpochRecord(epoch=6, master_id=2, former_id=1, end=0, why="election", at_ms=0)
        director.model.state.commit([], [Put(director.keys.history(6), record.encode())])
        elected = write(director, state(6, TWO, members=(ONE, TWO)), leader(TWO, 6))
        director.model.applied_at[elected] = trio.current_time()
        director.client_of("node-2").slow_at = trio.current_time() - (0 if is_slow else 1)
        assert director.state.epoch == 6
        if is_slow:
            director.check_step()
        else:
            with pytest.raises(ViolationError, match=LEFT_OUT):
                director.check_step()

    with_director(check)


REPAIRED = Unverified(begin=0, end=9, why="repaired")


@pytest.mark.parametrize("is_all_lost", [False, True])
def test_a_newest_log_that_is_not_verified_excuses_no_loss_by_itself(is_all_lost):
    """One of the verified nodes may have kept everything: what the best of them lacks counts."""
    lost = []

    def check(director):
        director.on_loss = lost.append
        nodes = published(ONE, end=900), published(TWO, end=1_000, unverified=REPAIRED)
        write(director, state(members=(ONE, TWO)), None, *nodes)
        director._write_config(director.view, GroupConfig(alarm="it went back"))
        change = director._begin_with_newest(director.view, [1, 2], is_all_lost=is_all_lost)
        director.model.state.commit(change.comparisons, change.writes)
        named = director.view.state.ids
        assert named == {1}

    with_director(check)
    assert lost == [1] * is_all_lost


def test_init_may_be_refused_because_of_an_unverified_log_only():
    """Another refusal is not one that an operator answers by naming another log."""

    def check(director):
        write(director, state(members=(ONE, TWO)), leader(), published(ONE), published(TWO))
        with pytest.raises(OperationRefusedError):
            director._begin_with_newest(director.view, [1, 2], is_all_lost=False)

    with_director(check)


def test_a_successor_is_expected_by_what_the_simulator_knows_of_the_members():
    """Not by what they say: a product that proves nobody would skip the check."""

    def check(director):
        lost = set()
        director.has_lost = lost.__contains__
        disks = FullDisks(director.cluster, director, None, Random(1))
        unproven = published(TWO, kept_since=TWO.start + 1)
        write(director, state(members=(ONE, TWO)), leader(), published(ONE), unproven)
        assert disks._has_successor([1])
        lost.add(2)
        assert not disks._has_successor([1])

    with_director(check)


def test_etcds_of_both_kinds_are_simulated():
    """Since 3.4.20 and 3.5.7 one that is full takes transactions that only delete."""
    found = set()
    for seed in range(8):
        simulation = GroupSimulation(seed, with_etcd=True)

        async def main(simulation=simulation):
            async with trio.open_nursery() as nursery:
                director = simulation._make_controller(nursery)
                await trio.lowlevel.checkpoint()
                found.add(director.model.state.deletes_while_full)

        run_by_seed(seed, main)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("says", "voids_after", "is_excused"),
    [
        pytest.param({"disowned_in": 9}, None, False, id="no fault explains it"),
        pytest.param({"disowned_in": 9}, 4, True, id="a fault explains it"),
        pytest.param({"disowned_in": 9}, 2, False, id="the state names a start since then"),
        pytest.param({}, 4, False, id="it is recognised"),
    ],
)
def test_only_a_fault_explains_that_a_member_is_not_recognised(says, voids_after, is_excused):
    """Node 2 is named in its process 3, and is in a later start now."""

    def check(director):
        if voids_after is not None:
            director.cluster.node(2).boots = voids_after
            director.lost_id(2)
        write(
            director,
            state(members=(ONE, TWO)),
            None,
            published(ONE),
            attrs.evolve(published(TWO), **says),
        )
        director._boots[TWO.node_id, TWO.uuid, TWO.start] = 3
        found = director._is_disowned(2, director.state.members[2])
        assert found is is_excused

    with_director(check)
