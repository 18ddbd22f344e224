"""Nodes and their coordinator: what they do of what ``decide`` says, and when answers are lost."""

import math
from collections.abc import Callable

import attrs
import pytest
import trio

from hastore.broker.request_target import RoleWish
from hastore.client.admin import query_offset
from hastore.cluster import handover, operations
from hastore.cluster.decide import HANDOVER_S, Wait
from hastore.cluster.group_records import (
    GroupConfig,
    GroupState,
    Keys,
    Registration,
    Switchover,
)
from hastore.cluster.key_value_store import Delete, Lease, Put
from hastore.errors import CoordinatorRefusedError, WrongNodeError
from hastore.message import Message
from hastore.sim.group.node_log import EPOCH_PATH
from hastore.status import PutMessageStatus as Status
from hastore.store.node_identity import Unverified
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from tests.cluster.simulated import simulated
from tests.support.nodes.group_nodes import set_of
from tests.support.nodes.simulated_group import (
    TTL_S,
    Fate,
    ScriptedStore,
    SimulatedGroup,
    run_group,
)


@simulated()
async def test_a_group_of_empty_directories_creates_itself(group):
    """One becomes master of epoch 1, all are members, and puts are acknowledged by all."""
    node_id, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    (record,) = group.view.history
    assert (record.epoch, record.master_id, record.former_id) == (1, node_id, None)
    assert (record.end, record.why) == (0, "election")
    assert group.view.members.keys() == {1, 2, 3}
    assert group.view.registrations.keys() == {1, 2, 3}
    assert group.terms == [(node_id, 1)]


@simulated(creates_itself=False)
async def test_a_group_that_nobody_has_created_waits(group):
    """Else a mistyped name would make a second group."""
    await trio.sleep(60)
    assert group.view.state is None
    assert "hastore cluster init" in group.roles[1].action.why


def test_a_group_whose_nodes_are_not_those_of_the_configuration_is_named(caplog):
    """Else nodes 7 and 8 would copy the log of another group that has their group's name."""

    async def test(group):
        await group.master()
        assert group.roles[2].coordinator_status().unlisted_because is None
        group.role_config = attrs.evolve(group.role_config, initial_ids=frozenset({2, 7, 8}))
        group.node(2).kill()
        former = group.roles[2]
        group.start(2)
        await group.until(lambda: group.roles[2] is not former and group.roles[2].view is not None)
        because = group.roles[2].coordinator_status().unlisted_because
        assert because == (
            "/test/c1/g1/ has nodes 1, 3, and [node] group_ids of this node names 2, 7, 8"
        )

    run_group(test)
    named = [each for each in caplog.records if each.msg.get("event") == "group_ids_differ"]
    assert len(named) == 1
    assert "[node] group" in named[0].msg["next"]


def test_each_reason_for_waiting_is_logged_once(caplog):
    """A node that waits for one thing, then for another, says so; it does not repeat itself."""
    caplog.set_level("INFO", logger="hastore")

    async def test(group):
        await trio.sleep(60)
        group.commit(group.keys.config, GroupConfig(alarm="look at it").encode())
        await group.until(lambda: group.roles[1].action == Wait("alarm: look at it"))
        await trio.sleep(60)

    run_group(test, nodes=1, creates_itself=False)
    decided = [each.msg["why"] for each in caplog.records if each.msg.get("event") == "decided"]
    assert decided[-2:] == [
        "the coordinator does not know the group: hastore cluster init",
        "alarm: look at it",
    ]
    assert len(decided) == len(set(decided)) <= 3


@simulated()
async def test_after_an_epoch_that_was_forgotten_a_later_one_begins(group):
    """A node that has seen it follows no earlier master, and says so."""
    node_id, _ = await group.master()
    other = min({1, 2, 3} - {node_id})
    group.cluster.agent(other).node.identity.see(9)
    group.node(other).kill()
    group.start(other)
    _, master = await group.master(epoch=10)
    assert set_of(master).accepted == {1, 2, 3}
    assert group.view.config.seen_epoch == 9
    assert await group.put(master) is Status.PUT_OK


# -- registration ---------------------------------------------------------------------------------


async def ended(group, node_id):
    """Wait until a node has ended by itself; return why."""
    await group.until(lambda: node_id in group.ended)
    return group.ended[node_id]


async def leave_record(group, node_id):
    """Leave the record of another directory of a node, whose process is dead; return its lease."""
    await group.until(lambda: node_id in group.view.members)
    group.node(node_id).kill()
    member = group.view.members[node_id]
    other = attrs.evolve(member, node=attrs.evolve(member.node, uuid="another"))
    lease = group.model.grant(TTL_S)
    put = Put(group.keys.member(node_id), other.encode(), lease=lease.lease_id)
    group.model.take(lambda: group.model.state.commit([], [put]))
    return lease.lease_id


@simulated()
async def test_a_record_that_another_directory_has_left_is_waited_for(group):
    """Its process was killed with the request under way, and its id was freed before that came."""
    await group.master()
    await leave_record(group, 2)
    group.start(2)
    await group.until(lambda: 2 not in group.view.members)
    await group.until(lambda: 2 in group.view.members)
    assert group.view.members[2].node.uuid != "another"
    assert not group.ended


@simulated()
async def test_another_directory_that_runs_under_the_id_is_refused(group):
    """It renews its lease."""
    await group.master()
    lease_id = await leave_record(group, 2)
    begun = trio.current_time()

    async def renew():
        while True:
            group.model.renew(lease_id)
            await trio.sleep(TTL_S / 3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew)
        group.start(2)
        error = await ended(group, 2)
        nursery.cancel_scope.cancel()
    assert isinstance(error, WrongNodeError)
    assert "another directory than " in str(error)
    assert "runs as node 2 of /test/c1/g1/" in str(error)
    assert trio.current_time() - begun >= 3 * TTL_S
    assert group.view.members[2].node.uuid == "another"


@simulated(starts=False)
async def test_another_directory_under_an_id_is_refused(group):
    """The node ends, and the registration stays as it was."""
    value = Registration(uuid="another", start=1).encode()
    group.commit(group.keys.registration(2), value)
    group.start(2)
    error = await ended(group, 2)
    assert isinstance(error, WrongNodeError)
    assert "is another directory than the one that /test/c1/g1/ knows as node 2" in str(error)
    assert "hastore cluster remove 2" in error.hint
    assert group.view.registrations[2].uuid == "another"


@pytest.mark.parametrize("is_known", [False, True], ids=["nobody", "another group"])
@simulated()
async def test_a_directory_of_another_cluster_is_refused(group, is_known):
    """By its name the group would be another one; nothing is written, and the right name works."""
    await group.master()
    await group.until(lambda: identity_of(group, 2).coordinator is not None)
    right, wrong = group.keys, Keys.of("/test", "c2", "g1")
    if is_known:  # of the same name, without a node 2
        state = GroupState(epoch=0, master=None, members=(), acks="all")
        group.commit(wrong.state, state.encode())
    group.node(2).kill()
    before = dict(group.model.state.read(wrong.base).items)
    group.keys = wrong
    group.start(2)
    error = await ended(group, 2)
    assert isinstance(error, WrongNodeError)
    assert error.exit_code == 6
    assert str(error).endswith("as etcd knows it, and not of /test/c2/g1/")
    assert " is node 2 of group g1 in cluster c1," in str(error)
    assert "set [cluster] name (or [node] cluster) to c1" in error.hint
    assert group.model.state.read(wrong.base).items == before
    group.ended.clear()
    group.keys = right
    group.start(2)
    await group.until(lambda: group.view.registrations[2].start == 3)
    assert not group.ended


def identity_of(group, node_id):
    """Return what is in a node's identity.json."""
    return group.cluster.agent(node_id).node.identity.current


@simulated()
async def test_a_directory_that_was_removed_may_go_to_another_cluster(group):
    """That is the way on which a person moves it."""
    await group.master()
    await group.until(lambda: identity_of(group, 2).coordinator is not None)
    group.node(2).kill()
    change = Delete(group.keys.registration(2))
    group.model.take(lambda: group.model.state.commit([], [change]))
    group.keys = Keys.of("/test", "c2", "g1")
    group.start(2)
    await group.until(lambda: 2 in group.view.registrations)
    assert not group.ended


@simulated()
async def test_another_history_of_a_directory_proves_nothing(group):
    """The token in etcd is another one: it may lack what was acknowledged since it was copied."""
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    group.node(2).kill()
    known = group.view.registrations[2]
    group.commit(group.keys.registration(2), attrs.evolve(known, start=9, nonce="x").encode())
    group.start(2)
    await group.until(lambda: group.view.registrations[2].start == 10)
    await group.until(lambda: 2 in group.view.members)
    said = group.view.members[2]
    assert (said.node.start, said.kept_since, said.disowned_in) == (10, 10, 10)
    assert "a copy, or an older state of it" in said.doubt
    await group.until(lambda: group.starts.get(2) == 10)  # a master has seen that it has all
    assert not group.ended


@simulated()
async def test_another_history_is_seen_between_two_tries_of_a_registration(group):
    """A copy ran and ended while the node, which had recorded its token, had no answer."""
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    group.node(2).kill()
    await group.until(lambda: 2 not in group.view.members)
    known = group.view.registrations[2]
    group.before = lambda _node_id, store: store.next("commit", "ids/2", Fate.LOST)
    group.stores[2].asked.clear()
    group.start(2)
    request = f"commit {group.keys.registration(2)}"
    await group.until(lambda: request in group.stores[2].asked)
    assert group.view.registrations[2] == known, "the request is lost"
    group.commit(group.keys.registration(2), attrs.evolve(known, start=2, nonce="x").encode())
    await group.until(lambda: 2 in group.view.members)
    said = group.view.members[2]
    assert (said.node.start, said.kept_since) == (3, 3)
    assert "a copy, or an older state of it" in said.doubt
    assert not group.ended


@simulated()
async def test_a_running_node_ends_once_another_process_has_its_id(group):
    """It was cut off from etcd, and a copy of its directory was started."""
    await group.master()
    known = group.view.registrations[2]
    group.commit(group.keys.registration(2), attrs.evolve(known, start=9, nonce="x").encode())
    error = await ended(group, 2)
    assert isinstance(error, WrongNodeError)
    assert "another process runs as node 2" in str(error)


@simulated()
async def test_an_earlier_claim_of_its_own_ends_no_node(group):
    """An etcd that was restored to the past has one."""
    await group.master()
    known = group.view.registrations[2]
    group.commit(group.keys.registration(2), attrs.evolve(known, start=0, nonce="x").encode())
    await trio.sleep(3 * TTL_S)
    assert not group.ended


@simulated()
async def test_a_later_start_takes_the_id_over(group):
    """Of the same directory."""
    await group.master()
    group.node(2).kill()
    group.start(2)
    await group.until(lambda: group.view.registrations[2].start == 2)
    assert not group.ended


@simulated()
async def test_a_start_after_a_power_cut_waits_while_no_lease_can_end(group):
    """Etcd is down for longer than three leases, and its leases live again once it is back."""
    await group.master()
    group.node(2).cut_power()
    group.start(2)
    await trio.sleep(1)
    assert group.view.registrations[2].start == 1, "the record of its last start is there"
    group.model.stop()
    await trio.sleep(4 * TTL_S)
    group.model.start()
    await group.until(lambda: group.view.registrations[2].start == 2)
    assert not group.ended


@simulated()
async def test_a_start_after_a_power_cut_waits_while_etcd_elects_two_leaders(group):
    """Each one lets all leases live a ttl and an election time-out longer, two thirds of a ttl."""
    await group.master()
    group.node(2).cut_power()
    group.start(2)
    await trio.sleep(0.9 * TTL_S)  # soon the record would be gone
    group.model.change_leader(extend_s=TTL_S * 2 / 3)
    await trio.sleep(TTL_S * 5 / 3 - 0.1)
    assert 2 in group.view.members, "the record of its last start is there"
    group.model.change_leader(extend_s=TTL_S * 2 / 3)
    await group.until(lambda: group.view.registrations[2].start == 2)
    assert not group.ended


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.ANSWER_LOST, Fate.LATE])
@simulated(starts=False)
async def test_a_registration_without_an_answer_is_made(group, fate):
    """It is asked for again, and what the first request did is its own."""
    group.before = lambda _node_id, store: store.next("commit", "ids/2", fate, fate)
    group.start(1, 2, 3)
    await group.master()
    assert group.view.registrations[2].start == 1
    assert not group.ended


@simulated(starts=False)
async def test_a_node_that_the_coordinator_refuses_at_first_ends(group):
    """A wrong password does not become right."""
    group.before = lambda _node_id, store: store.next("read", "", Fate.REFUSED)
    group.start(1)
    assert isinstance(await ended(group, 1), CoordinatorRefusedError)


@simulated(starts=False)
async def test_a_node_that_is_refused_later_tries_on_for_a_while(group):
    """Somebody is changing the password."""
    group.before = lambda _node_id, store: store.next("read", "", Fate.LOST, Fate.REFUSED)
    group.start(2)
    await group.until(lambda: 2 in group.view.registrations)
    assert 2 not in group.ended


# -- elections ------------------------------------------------------------------------------------


@simulated()
async def test_another_member_follows_a_master_that_was_killed(group):
    """Once its lease is over; it has what was acknowledged, and begins the next epoch."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    end = master.max_offset
    group.node(first).kill()
    second, master = await group.master(epoch=2, members=2)
    assert second != first
    assert master.max_offset == end
    assert await group.put(master) is Status.PUT_OK
    record = group.view.history[-1]
    assert (record.epoch, record.former_id, record.master_id) == (2, first, second)
    assert record.end == end
    group.start(first)
    await group.until(lambda: len(group.view.state.members) == 3)
    assert group.terms == [(first, 1), (second, 2)]


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.ANSWER_LOST])
@simulated(starts=False)
async def test_a_campaign_without_an_answer(group, fate):
    """If it was made, its node is master; if not, there is another campaign.

    Nothing changes meanwhile, so that no watch has anything to say.
    """
    group.before = lambda _node_id, store: store.next("commit", "leader", fate)
    group.start(1, 2, 3)
    node_id, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    assert group.terms == [(node_id, 1)]
    assert [each.epoch for each in group.view.history] == [1]
    await trio.sleep(3 * TTL_S)
    assert group.masters() == {node_id: master}


@simulated(starts=False)
async def test_a_campaign_that_arrives_late_elects_nobody(group):
    """Its lease is revoked before the node campaigns again, or follows another."""
    group.before = lambda _node_id, store: store.next("commit", "leader", Fate.LATE)
    group.start(1, 2, 3)
    node_id, master = await group.master()
    await trio.sleep(4 * TTL_S)
    assert group.masters() == {node_id: master}
    assert (group.view.state.epoch, group.terms) == (1, [(node_id, 1)])
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_promotion_that_cannot_begin_gives_the_key_up(group):
    """Another member becomes master, of the epoch after that."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK  # all have stored the epoch
    torn = first % 3 + 1
    for node_id in {1, 2, 3} - {first, torn}:
        group.client(node_id).cut()  # it does not stand
    epochs = group.node(torn).live_disk.open_file(EPOCH_PATH, writable=True)
    epochs.pwrite(b"torn", 0)  # in place: a node stops whose file is another one
    epochs.close()
    group.node(first).kill()
    await group.until(lambda: group.view.state.master.node_id == torn)
    await group.until(lambda: group.view.leader is None)
    assert group.masters() == {}
    assert "revoke" in group.stores[torn].asked
    assert not group.ended


@simulated()
async def test_a_promotion_that_takes_longer_than_its_lease_gives_the_key_up(group):
    """A disk that hangs must not hang the group."""
    first, _ = await group.master()
    slow = first % 3 + 1
    other = ({1, 2, 3} - {first, slow}).pop()
    group.client(other).cut()
    group.stores[slow].next("commit", "leader", Fate.ANSWER_LOST)  # it begins a second later
    group.node(first).kill()
    await group.until(lambda: group.view.state.master.node_id == slow)
    group.node(slow).set_slow_disk(4 * TTL_S)
    took_s = await group.until(lambda: group.view.leader is None)
    assert took_s < 2 * TTL_S


# -- the lease ------------------------------------------------------------------------------------


@simulated()
async def test_a_master_whose_lease_ends_early_takes_its_key_again(group):
    """In its epoch; the state's revision moves with it, so that no other election counts."""
    node_id, master = await group.master()
    before = group.view
    for other in {1, 2, 3} - {node_id}:
        group.client(other).cut()
    group.model.end_lease_early(before.leader_lease)
    assert group.view.leader is None
    await group.until(lambda: group.view.leader is not None)
    after = group.view
    assert after.leader == before.leader
    assert after.leader_lease != before.leader_lease
    assert after.state == before.state
    assert after.state_revision > before.state_revision
    for other in {1, 2, 3} - {node_id}:
        group.client(other).heal()
    await trio.sleep(3 * TTL_S)
    assert group.masters() == {node_id: master}
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_master_whose_lease_ended_early_steps_down_for_another(group):
    """As it learns of it: what waits is stored and not PUT_OK, and it follows."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(2 * TTL_S)  # after a start nobody stands before its ttl
    group.client(first).cut()
    request = master.submit(Message("orders", b"waits", queue_id=0))
    assert request.status is None
    group.model.end_lease_early(group.view.leader_lease)
    await group.until(lambda: group.view.state.epoch == 2)
    assert not master.has_stepped_down
    group.client(first).heal()
    await group.until(lambda: master.has_stepped_down)
    second = group.view.state.master.node_id
    assert f"node {second} is master of epoch 2" in master.put_message.unavailable_because
    await group.master(epoch=2)


@simulated()
async def test_a_master_that_is_cut_off_goes_on_until_its_deadline(group):
    """Then it steps down, before anybody else can be elected."""
    node_id, master = await group.master()
    roles = group.roles[node_id]
    group.client(node_id).cut()
    cut_at = trio.current_time()
    await trio.sleep(2.0)
    assert await group.put(master) is Status.PUT_OK
    await group.until(lambda: master.has_stepped_down)
    assert TTL_S / 2 < trio.current_time() - cut_at < TTL_S
    assert group.view.leader is not None, "nobody else could have it yet"
    assert await group.put(master) is Status.SERVICE_NOT_AVAILABLE
    assert not roles.is_reachable
    group.client(node_id).heal()
    await group.master(epoch=2)


@pytest.mark.parametrize("seed", [12, 17, 23, 25, 26])
def test_a_stopped_process_decides_nothing_as_it_goes_on(seed):
    """However long its tasks need to see that the lease is over, and whatever acks are there."""

    async def stop_and_go_on(group):
        node_id, master = await group.master()
        assert await group.put(master) is Status.PUT_OK
        bodies = [b"waits %d" % number for number in range(4)]
        requests = [master.submit(Message("orders", each, queue_id=0)) for each in bodies]
        await trio.sleep(0.004)  # the acks arrive as it is stopped, in runs of such seeds
        group.node(node_id).freeze()
        await trio.sleep(0)  # what was about to run has run
        waiting = [each for each in requests if each.status is None]
        await trio.sleep(12.0)
        assert group.view.state.epoch == 2
        group.node(node_id).thaw()
        await group.until(lambda: all(each.status is not None for each in waiting))
        assert {each.status for each in waiting} <= {Status.FLUSH_SLAVE_TIMEOUT}
        await group.master(epoch=2)

    run_group(stop_and_go_on, seed=seed)


@simulated(listens=True)
async def test_a_deposed_master_does_not_confirm_what_consumers_send_back(group):
    """They would drop the message, and no later master need have it."""
    node_id, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    await group.until(lambda: master.reput_message_service.behind == 0)
    fields = {"group": "readers", "offset": "0", "delayLevel": "1"}
    answers = []

    async def send_back():
        answers.append(await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields))

    async with group.to_client_port(node_id) as client:
        await send_back()
        others = {1, 2, 3} - {node_id}
        for other in others:
            group.node(other).freeze()
        end = master.max_offset
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_back)
            await group.until(lambda: master.max_offset > end)
            group.client(node_id).cut()
            await group.until(lambda: master.has_stepped_down)
        for other in others:
            group.node(other).thaw()
    assert [each.code for each in answers] == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
    assert "FLUSH_SLAVE_TIMEOUT" in answers[1].remark


# -- handing over ---------------------------------------------------------------------------------


@simulated(ttl_s=30)
async def test_a_master_that_is_stopped_hands_over_at_once(group):
    """It gives its key up as it ends, so that nobody waits for its lease."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(30)  # likewise
    group.stop(first)
    began = trio.current_time()
    second, master = await group.master(epoch=2, members=2)
    assert second != first
    assert trio.current_time() - began < 2.0
    assert await group.put(master) is Status.PUT_OK


def wish(group, to_id):
    """Wish a switchover in the present epoch."""
    wished = Switchover(from_epoch=group.view.state.epoch, to_id=to_id)
    group.configure(attrs.evolve(group.view.config, switchover=wished))


@simulated()
async def test_a_switchover(group):
    """The successor has all, and begins the next epoch; puts pause for less than a second."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    second = first % 3 + 1
    wish(group, second)
    await group.until(lambda: master.put_message.unavailable_because is not None)
    began = trio.current_time()
    assert await group.put(master) is Status.SERVICE_NOT_AVAILABLE
    found, successor = await group.master(epoch=2)
    assert found == second
    assert await group.put(successor) is Status.PUT_OK
    assert trio.current_time() - began < 1.0
    assert group.view.config == GroupConfig()
    record = group.view.history[-1]
    assert (record.why, record.former_id, record.master_id) == ("switchover", first, second)


@simulated()
async def test_a_switchover_waits_until_all_puts_are_answered(group):
    """Also one that only the master's own disk holds up: all others have it."""
    first, master = await group.master()
    second = first % 3 + 1
    group.node(first).set_slow_disk(0.3)
    request = master.submit(Message("orders", b"body", queue_id=0))
    end = master.max_offset
    acks = set_of(master).acks
    await group.until(lambda: acks.get(second).ack_offset == end)
    wish(group, second)
    await group.until(lambda: group.view.config.switchover.ready_end is not None)
    assert request.status is Status.PUT_OK
    found, _ = await group.master(epoch=2)
    assert found == second


@simulated(listens=True)
async def test_a_switchover_takes_consumers_offsets_along(group):
    """Also those that were committed since the last copy, which is made each second."""
    first, master = await group.master()
    second = first % 3 + 1
    for _ in range(8):
        assert await group.put(master) is Status.PUT_OK
    fields = {"consumerGroup": "readers", "topic": "orders", "queueId": "0"}
    await group.until(lambda: copying_of(group, second).status().age_s is not None)
    async with group.to_client_port(first) as client:
        await client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"commitOffset": "7"})
    wish(group, second)
    await group.master(epoch=2)
    async with group.to_client_port(second) as client:
        assert await query_offset(client, fields) == 7


def copying_of(group, node_id):
    """Return what copies the tables of a slave."""
    return group.cluster.agent(node_id).node.role_node.slave_synchronize


@simulated()
async def test_a_successor_that_does_not_serve_soon_gives_the_key_up(group):
    """The members elect as usual, and puts do not wait for its disk."""
    first, _ = await group.master()
    second = first % 3 + 1
    await trio.sleep(2 * TTL_S)  # after a start nobody stands before its ttl
    wish(group, second)
    await group.until(lambda: group.view.state.epoch == 2)
    group.node(second).set_slow_disk(4 * TTL_S)
    took_s = await group.until(lambda: group.view.leader is None)
    assert took_s < TTL_S / 2


@simulated()
async def test_a_switchover_to_a_node_that_lags_pauses_no_puts(group, monkeypatch):
    """The master knows the lag best: it takes the request back before it refuses a put."""
    monkeypatch.setattr(handover, "SWITCHOVER_LAG_MAX", 500)
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    held = []
    monkeypatch.setattr(type(master.put_message), "hold", lambda _self, why: held.append(why))
    other = first % 3 + 1
    group.cluster.network.cut(group.node(first).host, group.node(other).host)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(group.put, master)
        await trio.sleep(0.1)
        wish(group, other)
        await group.until(lambda: group.view.config.switchover is None)
        group.cluster.network.repair(group.node(first).host, group.node(other).host)
    assert not any(held)
    assert group.masters() == {first: master}


@simulated()
async def test_a_switchover_that_its_successor_does_not_take_is_voided(group):
    """The wish goes first, so that the successor cannot come late; then puts are taken again."""
    first, master = await group.master()
    second = first % 3 + 1
    group.client(second).cut()
    wish(group, second)
    await group.until(lambda: master.put_message.unavailable_because is not None)
    took_s = await group.until(lambda: master.put_message.unavailable_because is None)
    assert 0.99 * HANDOVER_S <= took_s < HANDOVER_S + 0.5, "clocks drift by up to 1 %"
    assert group.view.config == GroupConfig()
    assert await group.put(master) is Status.PUT_OK
    group.client(second).heal()
    await trio.sleep(2 * TTL_S)
    assert group.masters() == {first: master}


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.ANSWER_LOST])
@simulated()
async def test_a_wish_that_may_still_be_there_keeps_puts_held(group, fate):
    """Until an answer says that it is gone."""
    first, master = await group.master()
    wish(group, first)
    await group.until(lambda: group.view.config == GroupConfig())
    group.client(first % 3 + 1).cut()
    group.stores[first].next("commit", "config", fate)  # the successor's end
    wish(group, first % 3 + 1)
    await group.until(lambda: master.put_message.unavailable_because is not None)
    await group.until(lambda: master.put_message.unavailable_because is None)
    assert group.view.config == GroupConfig()
    assert await group.put(master) is Status.PUT_OK


def hold_leases(
    group: SimulatedGroup, patch: pytest.MonkeyPatch, until: Callable[[SimulatedGroup, int], bool]
) -> None:
    """Let no node get a lease before something holds; ``until`` gets the node's id."""
    grant = ScriptedStore.grant

    async def grant_later(self: ScriptedStore, ttl_s: int) -> Lease:
        node_id = next(each for each, store in group.stores.items() if store is self)
        await group.until(lambda: until(group, node_id))
        return await grant(self, ttl_s)

    patch.setattr(ScriptedStore, "grant", grant_later)


@simulated()
async def test_a_successor_that_gets_its_lease_after_the_wish_is_gone_does_not_take_over(
    group, monkeypatch
):
    """It has decided by an older view than the one it has when it writes."""
    first, master = await group.master()
    second = first % 3 + 1
    hold_leases(
        group, monkeypatch, lambda group, at: group.roles[at].view.config.switchover is None
    )
    wish(group, second)
    await group.until(lambda: master.put_message.unavailable_because is not None)
    await group.until(lambda: master.put_message.unavailable_because is None)
    await trio.sleep(2 * TTL_S)
    assert group.masters() == {first: master}


# -- other wishes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [GroupConfig(is_paused=True), GroupConfig(alarm="restored")])
@simulated()
async def test_a_wish_that_comes_during_a_campaign_voids_it(group, monkeypatch, config):
    """The candidate knows of it by the time it has its lease, and did not when it decided."""
    first, _ = await group.master()
    wished = []

    def is_known(group: SimulatedGroup, node_id: int) -> bool:
        if not wished:
            group.configure(config)
            wished.append(node_id)
        return group.roles[node_id].view.config == config

    hold_leases(group, monkeypatch, is_known)
    group.node(first).kill()
    await group.until(lambda: wished, "a candidate that asks for a lease")
    await trio.sleep(3 * TTL_S)
    assert group.view.leader is None
    assert group.view.config == config


@simulated()
async def test_no_master_is_elected_while_elections_are_paused(group):
    """The master that there is goes on."""
    first, master = await group.master()
    group.configure(GroupConfig(is_paused=True))
    await trio.sleep(2 * TTL_S)
    assert await group.put(master) is Status.PUT_OK
    group.node(first).kill()
    await trio.sleep(5 * TTL_S)
    assert group.view.leader is None
    group.configure(GroupConfig())
    await group.master(epoch=2, members=2)


@simulated()
async def test_a_coordinator_that_was_restored_to_the_past_raises_the_alarm(group):
    """Nodes that have later epochs say so, and elect nobody until a person has looked."""
    await group.master()
    backup = group.model.backup()
    group.node(group.view.state.master.node_id).kill()
    _, master = await group.master(epoch=2, members=2)
    assert await group.put(master) is Status.PUT_OK
    group.model.stop()
    await trio.sleep(2 * TTL_S)
    group.model.restore(backup, as_other_cluster=True)
    group.model.start()
    await group.until(lambda: group.view.config.alarm is not None)
    assert "etcd was cluster" in group.view.config.alarm
    await trio.sleep(5 * TTL_S)
    assert group.masters() == {}
    assert group.view.state.epoch == 1


@simulated()
async def test_a_node_that_is_stopped_tells_of_a_restore_that_it_alone_knows(group):
    """As it gives its key up, the others would begin an epoch again."""
    first, _ = await group.master()
    asked = group.stores[first].asked
    backup = group.model.backup()
    for other in {1, 2, 3} - {first}:
        group.node(other).kill()
    await group.master(members=1)
    group.stores[first].next("commit", "config", Fate.LOST)
    asked.clear()
    group.model.stop()
    group.model.restore(backup, as_other_cluster=False)
    group.model.start()
    await group.until(lambda: "commit /test/c1/g1/config" in asked)
    group.stop(first)
    await group.until(lambda: not group.node(first).is_up)
    assert "etcd was at revision" in group.view.config.alarm
    assert group.roles[first].lease.deadline == -math.inf  # by what it has read, it may not decide


@simulated()
async def test_a_wish_from_before_a_pause_is_not_carried_out(group):
    """Nor once elections go on: the master takes it back."""
    first, master = await group.master()
    group.client(first).cut()
    wish(group, first % 3 + 1)
    group.configure(attrs.evolve(group.view.config, is_paused=True))
    group.client(first).heal()
    await group.until(lambda: group.view.config.switchover is None)
    await group.until(lambda: master.takes_puts)  # once it has heard that too
    assert await group.put(master) is Status.PUT_OK
    group.configure(GroupConfig())
    await trio.sleep(2 * TTL_S)
    assert group.masters() == {first: master}
    assert group.terms == [(first, 1)]


# -- etcd goes back in time -----------------------------------------------------------------------


async def shrunk(group):
    """Return a backup from before a member left the set, and that member, which is down."""
    node_id, master = await group.master()
    backup = group.model.backup()
    lost = node_id % 3 + 1
    group.node(lost).kill()
    await group.until(lambda: set_of(master).accepted == group.view.state.ids == {1, 2, 3} - {lost})
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(1.0)
    return backup, lost


async def restore(group, backup, *, as_other_cluster):
    """Restore a backup."""
    group.model.stop()
    await trio.sleep(1.0)
    group.model.restore(backup, as_other_cluster=as_other_cluster)
    group.model.start()


@pytest.mark.parametrize("as_other_cluster", [False, True])
@simulated()
async def test_a_start_notices_that_the_coordinator_was_restored_since(group, as_other_cluster):
    """What it saw before is in its directory: nobody stands, and the member that lacks a put waits.

    The epochs in the logs say nothing, as the epoch is the same.
    """
    backup, lost = await shrunk(group)
    for node_id in {1, 2, 3} - {lost}:
        group.node(node_id).kill()
    await restore(group, backup, as_other_cluster=as_other_cluster)
    group.start(lost)
    await trio.sleep(TTL_S / 2)
    group.start(*{1, 2, 3} - {lost})
    await group.until(lambda: group.view.config.alarm is not None)
    assert " now " in group.view.config.alarm
    await trio.sleep(5 * TTL_S)
    assert group.masters() == {}
    assert group.view.state.epoch == 1
    # A person looks, and takes the newest log.
    group.commit_change(operations.init(group.keys, group.view, force=True))
    assert lost not in group.view.state.ids
    group.configure(GroupConfig())
    node_id, master = await group.master(epoch=2)
    assert node_id != lost
    assert await group.put(master) is Status.PUT_OK
    # Who has looked need not look again.
    other = node_id % 3 + 1
    group.node(other).kill()
    group.start(other)
    await trio.sleep(3 * TTL_S)
    assert group.view.config.alarm is None
    assert group.masters() == {node_id: master}


@simulated()
async def test_who_has_looked_need_not_look_again_where_only_the_cluster_is_another(group):
    """The state is the same, so nothing but the cluster's id says that the mark is an old one."""
    node_id, master = await group.master()
    await restore(group, group.model.backup(), as_other_cluster=True)
    await group.until(lambda: group.view.config.alarm is not None)
    state = group.view.state_revision
    await trio.sleep(3 * TTL_S)
    group.configure(GroupConfig())
    await trio.sleep(TTL_S)
    other = node_id % 3 + 1
    group.node(other).kill()
    group.start(other)
    await trio.sleep(3 * TTL_S)
    assert group.view.config.alarm is None
    assert group.masters() == {node_id: master}
    assert group.view.state_revision >= state


@simulated()
async def test_a_second_restore_takes_no_alarm_back(group):
    """The alarm is not there any more because etcd has gone back, not because anybody looked."""
    backup, lost = await shrunk(group)
    for _ in range(2):
        await restore(group, backup, as_other_cluster=False)
        await group.until(lambda: group.view.config.alarm is not None)
        await trio.sleep(1.0)
    ((node_id, _),) = group.masters().items()
    group.node(node_id).kill()
    group.start(lost)
    await trio.sleep(5 * TTL_S)
    assert group.masters() == {}


@simulated()
async def test_a_master_does_not_take_a_restored_set(group):
    """A node of it may lack what was acknowledged since: it writes its own set again."""
    backup, lost = await shrunk(group)
    ((node_id, master),) = group.masters().items()
    await restore(group, backup, as_other_cluster=False)
    assert group.view.state.ids == {1, 2, 3}
    await group.until(lambda: group.view.config.alarm is not None)
    await group.until(lambda: group.view.state.ids == {1, 2, 3} - {lost})
    assert set_of(master).accepted == {1, 2, 3} - {lost}
    assert group.masters() == {node_id: master}
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_a_notification_of_a_role_only_wakes(group):
    """1008 may come from anybody: the coordinator is asked, and nobody else."""
    node_id, master = await group.master()
    other = node_id % 3 + 1
    roles = group.roles[other]
    assert roles.takes_remote_roles
    seen = group.cluster.agent(other).node.identity.current.seen_epoch
    await roles.change_role(RoleWish(epoch=99, master_id=other))
    await trio.sleep(2 * TTL_S)
    assert group.masters() == {node_id: master}
    assert group.cluster.agent(other).node.identity.current.seen_epoch == seen
    assert isinstance(roles.action, Wait)


# -- a log that is not verified ------------------------------------------------------------------


@simulated(nodes=1)
async def test_a_log_that_an_operator_has_made_the_groups_counts_for_good(group):
    """Nothing is left that it could be compared with: a restart needs no operator again."""
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK

    def identity():
        return group.roles[1]._facts.node.identity

    identity().mark_unverified(Unverified(begin=0, end=50, why="a test filled it"))
    group.node(1).kill()
    group.start(1)
    await trio.sleep(60)
    assert not group.masters()
    assert "an operator decides" in str(group.roles[1].action)
    group.commit_change(operations.failover(group.keys, group.view, 1, at_ms=0, accept_loss=True))
    await group.master(epoch=3)
    await trio.sleep(1)
    assert identity().current.unverified is None
    for epoch in 4, 5:
        group.node(1).kill()
        group.start(1)
        _, master = await group.master(epoch=epoch)
        assert await group.put(master) is Status.PUT_OK


@simulated(nodes=2)
async def test_an_unverified_master_of_a_larger_set_stays_unverified(group):
    """The log of another member may have what its own lacks."""
    _, master = await group.master()
    role = next(each for each in group.roles.values() if each._facts.node.role_node is master)
    found = Unverified(begin=0, end=50, why="a test filled it")
    role._facts.node.identity.mark_unverified(found)
    for state in (group.view.state, None):
        await role._actions._accept_log(state)
    assert role._facts.node.identity.current.unverified == found
