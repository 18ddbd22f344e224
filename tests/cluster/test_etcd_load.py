"""What a group costs its etcd, and what becomes of one whose etcd is full, down or damaged."""

import attrs
import pytest
import trio

from hastore.cluster import operations
from hastore.cluster.decide import HANDOVER_S
from hastore.cluster.group_records import Switchover, inspect_group
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.own_member import END_INTERVAL_S
from hastore.cluster.registration import REFUSED_MAX_S
from hastore.status import PutMessageStatus as Status
from tests.cluster.simulated import simulated
from tests.support.nodes.group_nodes import set_of
from tests.support.nodes.simulated_group import Fate

TTL_S = 3
SHOWN_WITHIN_S = 15.0  # that etcd is full, where nothing is written


async def load(group, seconds):
    """Put messages for a while; return how many revisions etcd has more, a second."""
    ((_, master),) = group.masters().items()
    began, before = trio.current_time(), group.model.state.revision
    while trio.current_time() < began + seconds:
        assert await group.put(master) is Status.PUT_OK
        await trio.sleep(0.1)
    return (group.model.state.revision - before) / (trio.current_time() - began)


def events(caplog, name):
    """Return the log events of a name."""
    return [each.msg for each in caplog.records if each.msg.get("event") == name]


# -- revisions ------------------------------------------------------------------------------------


@simulated(ttl_s=TTL_S)
async def test_a_loaded_group_writes_half_a_revision_a_second_at_most(group):
    """Three nodes wrote 3 a second: each its log's end, every third of a ttl.  Idle: none."""
    await group.master()
    assert 0 < await load(group, 120) <= 0.5
    await trio.sleep(2 * END_INTERVAL_S)
    revision = group.model.state.revision
    ends = {member.end for member in group.view.members.values()}
    await trio.sleep(600)
    assert group.model.state.revision == revision
    assert ends == {node.max_offset for node in group.masters().values()}


def are_behind(group):
    """Return whether a record has an end below what the group has confirmed."""
    confirmed = group.view.state.confirm_offset
    return any(member.end < confirmed for member in group.view.members.values())


@simulated(ttl_s=TTL_S)
async def test_a_record_follows_what_the_group_has_confirmed(group):
    """Else a switchover is refused, because of what the node seems to have lost."""
    _, master = await group.master()
    for _ in range(100):
        assert await group.put(master) is Status.PUT_OK
        await trio.sleep(0.5)
        since = trio.current_time()
        await group.until(lambda: not are_behind(group))
        assert trio.current_time() < since + TTL_S / 2
    assert group.view.state.confirm_offset


@simulated(ttl_s=TTL_S)
async def test_an_election_goes_by_ends_as_they_are(group):
    """However long ago a node has published its own: the longer log wins."""
    first, master = await group.master()
    await trio.sleep(END_INTERVAL_S)
    others = sorted({1, 2, 3} - {first})
    group.client(others[0]).cut()  # it says nothing more until the election
    for _ in range(20):
        assert await group.put(master) is Status.PUT_OK
    group.node(first).kill()
    group.client(others[0]).heal()
    _, master = await group.master(epoch=2, members=2)
    (record,) = (each for each in group.view.history if each.epoch == 2)
    assert record.end == master.max_offset > 0


# -- no space -------------------------------------------------------------------------------------


def status_of(group, node_id):
    """Return what a node says of its etcd."""
    return group.roles[node_id].coordinator_status()


@simulated(ttl_s=TTL_S)
async def test_a_full_etcd_is_noticed_although_nothing_is_written(group):
    """By all nodes, within seconds; puts go on, and leases are renewed."""
    node_id, master = await group.master()
    group.model.fill()
    await trio.sleep(SHOWN_WITHIN_S)
    assert {status_of(group, each).etcd_alarms for each in (1, 2, 3)} == {("NOSPACE",)}
    assert all(status_of(group, each).is_reachable for each in (1, 2, 3))
    for _ in range(20 * TTL_S):
        assert await group.put(master) is Status.PUT_OK
        await trio.sleep(1)
    assert group.masters() == {node_id: master}
    group.model.make_room()
    await trio.sleep(SHOWN_WITHIN_S)
    assert {status_of(group, each).etcd_alarms for each in (1, 2, 3)} == {()}


@simulated(ttl_s=TTL_S)
async def test_a_master_that_dies_while_etcd_is_full_is_replaced_once_there_is_room(group):
    """Nobody can be elected before, and no node gives up."""
    first, _ = await group.master()
    group.model.fill()
    group.node(first).kill()
    await trio.sleep(20 * TTL_S)
    assert group.masters() == {}
    group.model.make_room()
    _, master = await group.master(epoch=2, members=2)
    assert await group.put(master) is Status.PUT_OK
    assert not group.ended


@simulated(ttl_s=TTL_S)
async def test_a_node_that_starts_while_etcd_is_full_waits(group):
    """It ended, so that a member which had died did not come back by itself."""
    first, master = await group.master()
    other = first % 3 + 1
    group.model.fill()
    group.node(other).kill()
    await trio.sleep(TTL_S)
    group.start(other)
    await trio.sleep(20 * TTL_S)
    assert not group.ended
    status = status_of(group, other)
    assert (status.etcd_alarms, "NOSPACE" in status.doing) == (("NOSPACE",), True)
    group.model.make_room()
    await group.until(lambda: other in group.view.members and not set_of(master).missing())
    assert await group.put(master) is Status.PUT_OK


async def outcomes(master, group, count):
    """Return what becomes of puts, one a second; a put that waits is given up after that time."""
    found = []
    for _ in range(count):
        with trio.move_on_after(1) as scope:
            found.append(await group.put(master))
        if not scope.cancelled_caught:
            await trio.sleep(1)
    return found


@pytest.mark.parametrize("is_ready", [False, True])
@simulated(ttl_s=TTL_S)
async def test_an_etcd_that_fills_up_in_a_switchover_does_not_stop_puts(group, is_ready):
    """The master held them, and each way out was a write: until an operator had made room.

    Once the successor may take over, etcd has to remove the request first: newer ones do.
    """
    first, master = await group.master()
    other = first % 3 + 1
    group.model.state.deletes_while_full = is_ready
    wish = Switchover(from_epoch=1, to_id=other)
    group.configure(attrs.evolve(group.view.config, switchover=wish))
    if is_ready:
        await group.until(lambda: group.view.config.switchover.ready_end is not None)
    group.model.fill()
    await trio.sleep(HANDOVER_S + 2 * RETRY_PAUSE_S)
    assert set(await outcomes(master, group, 60)) == {Status.PUT_OK}
    group.model.make_room()
    await group.until(lambda: group.view.config.switchover is None)
    assert group.masters() == {first: master}
    assert await group.put(master) is Status.PUT_OK
    group.configure(attrs.evolve(group.view.config, switchover=wish))
    await group.master(epoch=2)


@simulated(ttl_s=TTL_S)
async def test_a_full_etcd_that_has_offered_the_term_keeps_puts_held(group):
    """It refuses the write by which it exceeds its quota, and carries it out."""
    first, master = await group.master()
    wish = Switchover(from_epoch=1, to_id=first % 3 + 1)
    group.stores[first].next("commit", "config", Fate.FILLS)
    group.configure(attrs.evolve(group.view.config, switchover=wish))
    await group.until(lambda: group.model.is_full)
    assert group.view.config.switchover.ready_end == master.max_offset
    assert Status.PUT_OK not in await outcomes(master, group, 30)
    group.model.make_room()
    await group.until(lambda: group.view.config.switchover is None)
    assert len(group.masters()) == 1


@simulated(ttl_s=TTL_S)
async def test_an_offer_that_may_still_arrive_keeps_puts_held(group):
    """A later refusal says nothing about the first request, which had no answer."""
    first, master = await group.master()
    wish = Switchover(from_epoch=1, to_id=first % 3 + 1)
    group.stores[first].next("commit", "config", Fate.LOST)
    group.configure(attrs.evolve(group.view.config, switchover=wish))
    await group.until(lambda: not status_of(group, first).is_reachable)
    group.model.fill()
    assert Status.PUT_OK not in await outcomes(master, group, 30)
    group.model.make_room()
    await group.until(lambda: group.view.config.switchover is None)
    assert Status.PUT_OK in await outcomes(master, group, 2)  # once it knows that, too


@simulated(ttl_s=TTL_S, starts=False)
async def test_a_node_that_started_before_its_etcd_ends_once_that_refuses_it(group):
    """It waited for ever, without a word, and said that etcd does not answer."""

    def refuse_later_reads(_node_id, store):
        store.next("read", "", Fate.LOST, *[Fate.REFUSED] * 100)

    group.before = refuse_later_reads
    group.start(1)
    await trio.sleep(REFUSED_MAX_S / 2)
    assert "permission denied" in status_of(group, 1).doing
    await group.until(lambda: group.ended)
    assert "permission denied" in str(group.ended[1])


# -- what is logged -------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["down", "full"])
@simulated(ttl_s=TTL_S, starts=False)
async def test_waiting_for_etcd_is_logged_as_it_begins_and_ends(group, fault, caplog):
    """It was logged each second until a node had registered."""
    caplog.set_level("INFO", logger="hastore")
    if fault == "down":
        group.model.stop()
    else:
        group.model.fill()
    group.start(1)
    await trio.sleep(120)
    begins = events(caplog, "coordinator_unreachable" if fault == "down" else "coordinator_alarm")
    assert len(begins) == 1
    if fault == "down":
        group.model.start()
    else:
        group.model.make_room()
    group.start(2, 3)
    await group.master()
    ends = "coordinator_reachable" if fault == "down" else "coordinator_alarm_over"
    assert events(caplog, ends)


@simulated(ttl_s=TTL_S, listens=True, has_neighbour=True)
async def test_a_silent_etcd_is_logged_once_by_each_task_that_asks_it(group, caplog):
    """The master asks for promises, too: a member that is dead refuses each time."""
    caplog.set_level("INFO", logger="hastore")
    first, _ = await group.master()
    caplog.clear()
    group.model.stop()
    group.node(first % 3 + 1).kill()
    await trio.sleep(60)
    assert len(events(caplog, "promise_refused")) in {1, 2}
    # By each node that is up, in both groups.
    assert 0 < len(events(caplog, "routes_not_exchanged")) <= 6
    assert 0 < len(events(caplog, "coordinator_unreachable")) <= 6


@simulated(ttl_s=TTL_S)
async def test_a_set_that_cannot_be_written_is_logged_once(group, caplog):
    """As long as the reason is the same."""
    caplog.set_level("INFO", logger="hastore")
    first, _ = await group.master()
    group.model.fill()
    group.node(first % 3 + 1).kill()
    await trio.sleep(60)
    assert len(events(caplog, "set_not_written")) == 1


def refuse_writes(group):
    """Let etcd refuse all writes, as for a user without the permission."""
    for store in group.stores.values():
        store.next("commit", "", *[Fate.REFUSED] * 1_000)


@pytest.mark.parametrize("is_master_killed", [False, True])
@simulated(ttl_s=TTL_S)
async def test_refused_writes_are_logged_and_shown_until_one_is_done(
    group, caplog, is_master_killed
):
    """`decided` was logged twice a second, and `check` said OK each other time."""
    caplog.set_level("INFO", logger="hastore")
    first, master = await group.master()
    refuse_writes(group)
    caplog.clear()
    if is_master_killed:
        group.node(first).kill()
        await trio.sleep(3 * TTL_S)
    shown = {node_id: set() for node_id in {1, 2, 3} - ({first} if is_master_killed else set())}
    for second in range(60):
        if not is_master_killed:
            assert await group.put(master) is Status.PUT_OK
        await trio.sleep(1)
        for node_id, found in shown.items():
            status = status_of(group, node_id)
            assert status.is_reachable
            if second > END_INTERVAL_S:
                found.add(status.unusable_because)
    assert all(found == {"etcd: permission denied"} for found in shown.values())
    assert len(events(caplog, "decided")) <= 2
    assert {each["reason"] for each in events(caplog, "coordinator_refusal")} == {
        "etcd: permission denied"
    }
    assert len(events(caplog, "coordinator_refusal")) == len(shown)
    for store in group.stores.values():
        store.forget_fates()
    await trio.sleep(2 * TTL_S)
    assert {status_of(group, node_id).unusable_because for node_id in shown} == {None}
    assert len(events(caplog, "coordinator_refusal_over")) == len(shown)


@simulated(ttl_s=TTL_S)
async def test_refused_writes_in_a_switchover_do_not_stop_puts(group):
    """As with a full etcd; the request is removed once that is allowed."""
    first, master = await group.master()
    refuse_writes(group)
    wish = Switchover(from_epoch=1, to_id=first % 3 + 1)
    group.configure(attrs.evolve(group.view.config, switchover=wish))
    await trio.sleep(HANDOVER_S + 2 * RETRY_PAUSE_S)
    assert set(await outcomes(master, group, 30)) == {Status.PUT_OK}
    for store in group.stores.values():
        store.forget_fates()
    await group.until(lambda: group.view.config.switchover is None)
    assert group.masters() == {first: master}


@simulated(ttl_s=TTL_S)
async def test_an_alarm_that_cannot_be_written_is_logged_once(group, caplog):
    """A backup of an etcd that was full has that alarm: each node logged it each second."""
    caplog.set_level("INFO", logger="hastore")
    first, master = await group.master()
    backup = group.model.state.copy()
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(60)
    group.node(first).kill()
    await group.master(epoch=2, members=2)
    group.model.stop()
    group.model.restore(backup, as_other_cluster=False)
    group.model.fill()
    group.model.start()
    await trio.sleep(60)
    assert 2 <= len(events(caplog, "alarm")) <= 2 * 2
    group.model.make_room()
    await group.until(lambda: group.view.config.alarm is not None)


@simulated(ttl_s=TTL_S, starts=False)
async def test_an_etcd_that_is_full_and_then_down_is_said_to_be_down(group):
    """A node that has not registered yet went on saying that it is full."""
    group.model.fill()
    group.start(1)
    await trio.sleep(2 * TTL_S)
    assert "NOSPACE" in status_of(group, 1).doing
    group.model.stop()
    await trio.sleep(2 * TTL_S)
    assert "does not answer" in status_of(group, 1).doing
    group.model.start()
    await trio.sleep(2 * TTL_S)
    assert "NOSPACE" in status_of(group, 1).doing


# -- damaged keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["state", "leader", "config"])
@simulated(ttl_s=TTL_S)
async def test_garbage_in_a_key_is_named_as_such(group, key):
    """The coordinator answers: it was said that it does not."""
    await group.master()
    for node_id in (1, 2, 3):
        group.node(node_id).kill()
    await trio.sleep(3 * TTL_S)
    group.commit(group.keys.base + key, b"\xff\xfegarbage")
    group.start(1, 2, 3)
    await trio.sleep(3 * TTL_S)
    for node_id in (1, 2, 3):
        status = status_of(group, node_id)
        assert f"key {group.keys.base}{key}" in status.doing
        assert f"key {group.keys.base}{key}" in status.unusable_because
    assert not group.ended


@simulated(ttl_s=TTL_S)
async def test_a_state_with_garbage_is_replaced_by_force(group):
    """From the newest log; nothing is lost, and the group elects again."""
    first, master = await group.master()
    group.client(first % 3 + 1).cut()  # of which etcd has an old end
    for _ in range(5):
        assert await group.put(master) is Status.PUT_OK
    end = master.max_offset
    group.client(first % 3 + 1).heal()
    group.commit(group.keys.state, b"garbage")
    await trio.sleep(2 * TTL_S)
    assert group.masters() == {first: master}, "it goes on by its lease"
    group.node(first).kill()
    group.start(first)
    await trio.sleep(3 * TTL_S)
    view = inspect_group(group.keys, group.model.state.read(group.keys.base))
    assert {member.end for member in view.members.values()} == {end}
    change = operations.init(group.keys, view, force=True)
    assert change.what == f"the group begins with the log of nodes 1, 2, 3, at {end}"
    group.commit_change(change)
    _, master = await group.master(epoch=2)
    assert await group.put(master) is Status.PUT_OK


@pytest.mark.parametrize("is_of_another", [False, True])
@simulated(ttl_s=TTL_S)
async def test_garbage_in_the_record_of_a_node_that_is_down_does_not_bar_its_start(
    group, is_of_another
):
    """It has no lease that ends; a process that is up would replace it within a third of a ttl."""
    await group.master()
    group.node(2).kill()
    await group.until(lambda: 2 not in group.view.members)
    garbage = group.view.members[1].encode() if is_of_another else b"garbage"
    group.commit(group.keys.member(2), garbage)
    group.start(2)
    took_s = await group.until(lambda: 2 in group.view.members)
    assert took_s >= 3 * TTL_S
    assert group.view.members[2].kept_since == 1
    assert not group.ended


@simulated(ttl_s=TTL_S)
async def test_garbage_in_its_own_record_is_replaced(group):
    """Nobody else writes there, and it took no part any more."""
    first, _ = await group.master()
    other = first % 3 + 1
    item = group.model.state.items[group.keys.member(other)]
    group.commit(item.key, b"garbage")
    await group.until(lambda: other in group.view.members)
    assert group.view.members[other].node.node_id == other
