"""What the simulator takes from a group's keys in etcd."""

from contextlib import contextmanager
from types import SimpleNamespace

import attrs
import trio

from hastore.cluster.group_records import Registration
from hastore.cluster.key_value_store import Put
from hastore.sim.group.etcd_director import EtcdDirector
from hastore.sim.group.group_simulation import GroupSimulation
from hastore.sim.seams import run_by_seed
from tests.cluster.knowledge import ONE, TWO, incarnation, leader, published, state


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


def test_the_end_of_a_member_below_the_floor_is_known_though_it_does_not_stand():
    """No member had kept all: node 1 is an older copy, node 2 has lost bytes, and wins."""

    def check(director):
        older, lossy = incarnation(1, 2), incarnation(2, 2)
        former = state(members=(ONE, TWO), confirm_offset=800)
        election = write(director, former, leader())
        assert director.state.epoch == 5
        says = published(older, end=700), published(lossy, election=election, end=900)
        with deposed(director) as found:
            write(director, attrs.evolve(former, epoch=6, master=TWO), leader(TWO, 6), *says)
            assert director.state.epoch == 6
        assert found == [(5, {1: (5, 700), 2: (5, 900)})]

    with_director(check)


def test_the_end_of_a_member_above_the_floor_is_not_known_unless_it_stands():
    """Its log may go on."""

    def check(director):
        former = state(members=(ONE, TWO), confirm_offset=800)
        election = write(director, former, leader())
        assert director.state.epoch == 5
        says = published(ONE, end=800), published(TWO, election=election, end=900)
        with deposed(director) as found:
            write(director, attrs.evolve(former, epoch=6, master=TWO), leader(TWO, 6), *says)
            assert director.state.epoch == 6
        assert found == [(5, {2: (5, 900)})]

    with_director(check)
