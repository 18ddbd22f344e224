"""Nodes whose disks are full, and their group's coordinator: in virtual time."""

import trio

from hastore.cluster.group_records import GroupConfig, Switchover
from hastore.cluster.storage import PAUSE_MIN_S
from hastore.concurrency.store_health import STEADY_AFTER_S, Write
from hastore.status import PutMessageStatus as Status
from hastore.store.reserve_file import RESERVE_FILE
from tests.cluster.simulated import simulated
from tests.support.nodes.group_nodes import set_of

FILE_SIZE = 8 * 1024
CHECKED_EVERY_S = 10.0  # how full a disk is


async def steady(group):
    """Wait until a group has a master, and the others have room; return the master."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK, "each log has a file"
    await trio.sleep(STEADY_AFTER_S + CHECKED_EVERY_S)
    await group.until(
        lambda: all(
            member.has_room for node_id, member in group.view.members.items() if node_id != first
        )
    )
    return first, master


async def fill_the_log(group, master):
    """Put until the log's files are full."""
    while await group.put(master, size=1_000) is Status.PUT_OK:
        pass


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_master_without_room_hands_over_and_comes_back_as_a_slave(group):
    """The next set is without it until it can store again; no node ends, and none asks it back."""
    first, master = await steady(group)
    group.node(first).live_disk.fill()
    await fill_the_log(group, master)
    began = trio.current_time()
    second, successor = await group.master(epoch=2, members=2)
    assert trio.current_time() - began < 6.0
    assert second != first
    assert await group.put(successor) is Status.PUT_OK
    assert first not in group.view.state.ids
    await trio.sleep(20.0)
    assert first not in group.view.state.ids
    assert set_of(successor).unable == {first}
    group.node(first).live_disk.make_room()
    await group.until(lambda: first in group.view.state.ids)
    assert group.view.state.epoch == 2
    assert group.ended == {}


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_request_is_void_if_the_successor_has_no_room(group):
    """It allocates before it takes over; the master asks again after a minute."""
    first, _ = await steady(group)
    others = [node for node in group.cluster.nodes if node is not group.node(first)]
    for node in others:  # just after they have said that they have room
        node.live_disk.fill()
    health = group.cluster.agent(first).node.store_health
    health.failed(Write.CONFIG, "no space for topics")
    await group.until(lambda: group.view.config.switchover is not None)
    assert group.view.config.switchover.for_room
    took_s = await group.until(lambda: group.view.config.switchover is None)
    assert took_s < 1.0
    assert group.view.state.epoch == 1
    asked_at = trio.current_time()
    for node in others:
        node.live_disk.make_room()
    await trio.sleep(0.9 * PAUSE_MIN_S)
    assert group.view.state.epoch == 1
    await group.until(lambda: group.view.state.epoch == 2)
    assert trio.current_time() - asked_at < 1.1 * PAUSE_MIN_S
    assert group.ended == {}


@simulated(mapped_file_size=FILE_SIZE)
async def test_all_roles_change_on_full_disks(group):
    """A forced switchover succeeds although no disk has room: each node has a reserve."""
    master_id, _ = await steady(group)
    for node in group.cluster.nodes:
        assert node.live_disk.exists(f"/d/{RESERVE_FILE}")
        node.live_disk.fill()
    for epoch in range(1, 5):
        to_id = max(group.view.state.ids - {master_id})  # one that cannot store may have left
        await group.until(
            lambda to_id=to_id, epoch=epoch: group.view.members[to_id].last_epoch == epoch
        )
        forced = Switchover(from_epoch=epoch, to_id=to_id, is_forced=True)
        group.configure(GroupConfig(switchover=forced))
        await group.until(
            lambda to_id=to_id, epoch=epoch: (
                group.view.state.epoch == epoch + 1 and group.masters().keys() == {to_id}
            )
        )
        master_id = to_id
    (master,) = group.masters().values()
    assert await group.put(master) is Status.PUT_OK, "its last file has room"
    assert group.ended == {}
