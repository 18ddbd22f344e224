"""A master's set is what the group's state says, whatever becomes of single writes."""

import attrs
import pytest
import trio

from hastore.cluster import operations
from hastore.sim.coordinator.model_client import LinkFaults
from hastore.status import FlushDiskType
from hastore.status import PutMessageStatus as Status
from tests.cluster.simulated import simulated
from tests.support.nodes.group_nodes import set_of
from tests.support.nodes.simulated_group import TTL_S, Fate

HEX = "0123456789abcdef"


async def lose_a_member(group, node_id):
    """Kill a member, whose link is closed then; return who it is."""
    lost = node_id % 3 + 1
    group.node(lost).kill()
    await trio.sleep(0)
    return lost


@pytest.mark.parametrize("fates", [[Fate.ANSWER_LOST], [Fate.LOST], [Fate.LATE], [Fate.LATE] * 2])
@simulated()
async def test_a_proposal_without_an_answer_stays_pending_until_it_is_decided(group, fates):
    """It is sent again with the same comparison: made once, by whichever attempt comes first."""
    node_id, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    before = group.view
    group.stores[node_id].next("commit", "state", *fates)
    lost = await lose_a_member(group, node_id)
    members = set_of(master)
    await group.until(lambda: members.proposal is not None)
    proposal = members.proposal
    while group.view.state_revision == before.state_revision:
        assert members.proposal is proposal, "nothing has decided it"
        assert members.accepted == {1, 2, 3}
        await trio.sleep(0.01)
    await group.until(lambda: members.proposal is None)
    assert members.accepted == group.view.state.ids == {1, 2, 3} - {lost}
    assert group.view.state.proposal == proposal.number
    revision = group.view.state_revision
    await trio.sleep(2 * TTL_S)
    assert group.view.state_revision == revision, "the other attempts were void"
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_member_that_a_person_removes_leaves_the_set(group):
    """The master takes what the state says now, and its puts wait for that node no more."""
    node_id, master = await group.master()
    removed = node_id % 3 + 1
    group.node(removed).kill()
    state = group.view.state
    members = tuple(each for each in state.members if each.node_id != removed)
    group.commit(group.keys.state, attrs.evolve(state, members=members, proposal=None).encode())
    await group.until(lambda: set_of(master).accepted == {1, 2, 3} - {removed})
    assert await group.put(master) is Status.PUT_OK


@simulated(least=None)
async def test_a_group_of_three_that_lost_two_acknowledges_nothing_with_one_copy(group):
    """The default: until a node is back, or an operator says that the others are gone."""
    node_id, master = await group.master()
    others = sorted({1, 2, 3} - {node_id})
    for other in others:
        group.node(other).kill()
    members = set_of(master)
    await group.until(lambda: not members.acks.get(others[0]).connection_id)
    await trio.sleep(3 * TTL_S)
    assert len(members.accepted) >= 2
    assert await group.put(master) is Status.SLAVE_NOT_AVAILABLE
    group.start(others[0])
    await group.until(lambda: members.accepted - members.missing() == {node_id, others[0]})
    assert await group.put(master) is Status.PUT_OK


@simulated(least=None)
async def test_a_removed_node_lowers_the_default(group):
    """Of two nodes one may be down: the group has said so by its number."""
    node_id, master = await group.master()
    others = sorted({1, 2, 3} - {node_id})
    for other in others:
        group.node(other).kill()
    members = set_of(master)
    await group.until(lambda: not (group.view.members.keys() - {node_id}))
    for removed in others[:1]:
        change = operations.remove(group.keys, group.view, removed)
        (write,) = [each for each in change.writes if each.key == group.keys.state]
        group.commit(write.key, write.value)
    await group.until(lambda: members.rules.min_in_sync_replicas == 1)
    await group.until(lambda: members.accepted == {node_id})
    assert await group.put(master) is Status.PUT_OK


@simulated(least=None, nodes=2)
async def test_of_two_nodes_one_is_enough(group):
    """Half of a pair has to go on."""
    node_id, master = await group.master()
    group.node(3 - node_id).kill()
    await group.until(lambda: set_of(master).accepted == {node_id})
    assert await group.put(master) is Status.PUT_OK


@simulated(nodes=2)
async def test_no_node_joins_while_its_master_decides_by_promises_of_others(group):
    """It has promised nothing, and might be elected at the lease's end, before the deadline.

    The renewals are lost, and everything else is answered.
    """
    node_id, master = await group.master()
    other = 3 - node_id
    group.node(other).kill()
    await group.until(lambda: set_of(master).accepted == {node_id})
    lease, store = group.roles[node_id].lease, group.stores[node_id]
    store.next("renew", "", *[Fate.LOST] * 100)
    await group.until(lambda: lease.rests_on_promises)
    group.start(other)
    await group.until(lambda: other in group.view.members)
    await group.until(lambda: other in group.view.state.ids)
    rests_on_promises = lease.rests_on_promises
    assert not rests_on_promises, "the key was taken again, with another lease"
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_member_that_comes_back_joins_in_its_new_start(group):
    """Once it has all that is confirmed."""
    node_id, master = await group.master()
    lost = await lose_a_member(group, node_id)
    await group.until(lambda: lost not in group.starts)
    assert await group.put(master) is Status.PUT_OK
    group.start(lost)
    await group.until(lambda: lost in group.starts)
    assert group.starts[lost] == 2
    assert await group.put(master) is Status.PUT_OK


@simulated(flush=FlushDiskType.ASYNC_FLUSH)
async def test_a_master_that_was_not_proven_is_named_in_its_start_once_it_serves(group):
    """Before, by its victory alone, it would be the only one that may win the next election."""
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    for each in (1, 2, 3):
        group.node(each).cut_power()
    await group.until(lambda: group.view.leader is None and not group.view.members)
    group.start(1, 2, 3)
    await group.until(lambda: group.view.state.epoch == 2)
    assert set(group.starts.values()) == {1}, "that of the winner, too"
    assert group.view.config.unproven_epoch == 2
    await group.until(lambda: set(group.starts.values()) == {2})
    _, master = await group.master(epoch=2)
    assert await group.put(master) is Status.PUT_OK


@simulated(flush=FlushDiskType.ASYNC_FLUSH)
async def test_a_later_start_is_named_only_for_its_own_link(group):
    """Acks on the link of an earlier start say nothing of a later one."""
    node_id, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    lost = node_id % 3 + 1
    network, host = group.cluster.network, group.node(lost).host
    network.cut(host, group.node(node_id).host)
    group.node(lost).kill()  # its link stays, as far as the master knows
    group.start(lost)
    await group.until(lambda: group.view.members[lost].node.start == 2)
    acks = set_of(master).acks.get(lost)
    assert acks.ack_offset == set_of(master).confirm_offset
    for _ in range(100):
        assert group.starts.get(lost) in {1, None}
        await trio.sleep(0.01)
    network.repair(host, group.node(node_id).host)
    await group.until(lambda: group.starts.get(lost) == 2)
    connection = master.ha_service.connections[acks.connection_id]
    assert group.view.members[lost].link.startswith(connection.address[0])
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_start_that_follows_at_once_is_named_without_leaving_the_set(group):
    """A member that was restarted quickly is a member all the time, and may stand as one."""
    node_id, _master = await group.master()
    lost = node_id % 3 + 1
    group.node(lost).kill()
    group.start(lost)
    await group.until(lambda: group.starts.get(lost) == 2)
    assert {1, 2, 3} == group.starts.keys()
    assert group.view.state.epoch == 1


@pytest.mark.parametrize("digit", ["0", "f"])
@simulated()
async def test_a_directory_that_was_thrown_away_is_named_no_more(group, digit):
    """A restored coordinator names it; it would be elected, and the one that has all would not."""
    node_id, master = await group.master()
    other, state = node_id % 3 + 1, group.view.state
    wanted = state.member(other)
    thrown_away = attrs.evolve(wanted, uuid=wanted.uuid.translate({ord(c): digit for c in HEX}))
    members = tuple(thrown_away if each == wanted else each for each in state.members)
    group.commit(group.keys.state, attrs.evolve(state, members=members).encode())
    await group.until(lambda: group.view.state.member(other) == wanted)
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_an_old_view_does_not_undo_what_was_accepted(group):
    """A watch may bring the state of before the master's own write after its answer."""
    node_id, master = await group.master()
    lost = await lose_a_member(group, node_id)
    await group.until(lambda: lost not in group.starts)
    await trio.sleep(1.0)
    group.client(node_id).faults = LinkFaults(watch_delay_s=(3.0, 3.0))
    group.start(lost)
    await group.until(lambda: set_of(master).accepted == {1, 2, 3})
    until = trio.current_time() + 5.0
    while trio.current_time() < until:
        assert set_of(master).needed >= group.view.state.ids, "one that may stand is not awaited"
        await trio.sleep(0.001)


@simulated()
async def test_a_write_that_may_come_late_is_not_forgotten_by_a_read_that_fails(group):
    """The proposal stays pending: what was sent may be made even if its node is gone by then."""
    node_id, master = await group.master()
    lost = await lose_a_member(group, node_id)
    await group.until(lambda: lost not in group.starts)
    await trio.sleep(1.0)
    store = group.stores[node_id]
    store.late_s = 4.0
    store.next("commit", "state", Fate.LATE, *[Fate.LOST] * 20)
    before = len(store.asked)
    group.start(lost)
    await group.until(lambda: set_of(master).proposal is not None)
    await group.until(lambda: f"commit {group.keys.state}" in store.asked[before:])
    store.next("read", "", Fate.LOST)
    group.node(lost).kill()
    await group.until(lambda: lost in group.starts)
    assert set_of(master).needed >= group.view.state.ids, "one that may stand is not awaited"
