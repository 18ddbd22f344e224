"""Nodes whose disks are full, and their group's coordinator: in virtual time."""

import itertools

import pytest
import trio

from hastore.broker.node.group_node import GroupNode
from hastore.cluster.decide import HANDOVER_S
from hastore.cluster.group_records import GroupConfig, Switchover
from hastore.cluster.storage import PAUSE_MIN_S, choose_successor
from hastore.concurrency.store_health import STEADY_AFTER_S, Write
from hastore.errors import DiskFullError
from hastore.flush.allocate_mapped_file_service import RETRY_S, AllocateMappedFileService
from hastore.status import PutMessageStatus as Status
from hastore.store.log.mapped_file_queue import MappedFileQueue
from hastore.store.reserve_file import RESERVE_FILE
from tests.cluster.simulated import simulated
from tests.support.nodes.group_nodes import set_of

FILE_SIZE = 8 * 1024
CHECKED_EVERY_S = 10.0  # how full a disk is


def preferred(group, master_id):
    """Return the node that a master would ask first."""
    others = [each for node_id, each in group.view.members.items() if node_id != master_id]
    return choose_successor(others).node.node_id


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
async def test_a_successor_counts_as_requested_once_etcd_has_the_request(group, caplog):
    """While etcd is full it cannot be requested; it was logged as requested each second."""
    first, master = await steady(group)

    def requested():
        return [e for e in caplog.records if e.msg["event"] == "successor_requested"]

    group.node(first).live_disk.fill()
    await fill_the_log(group, master)
    await group.until(lambda: not group.view.members[first].can_store)
    group.model.fill()
    await trio.sleep(30.0)
    assert group.view.config.switchover is None
    logged = len(requested())
    assert logged == 0
    group.model.make_room()
    await group.master(epoch=2, members=2)
    logged = len(requested())
    assert logged == 1


def has_asked(group, *ids):
    """Return whether a round of requests has tried these nodes, and none is under way."""
    config = group.view.config
    tried = frozenset() if config.room_requests is None else config.room_requests.tried
    return tried >= set(ids) and config.switchover is None


def prepare_only_when_asked(monkeypatch):
    """Let slaves allocate no file before they are asked to take over."""
    monkeypatch.setattr(GroupNode, "want_next_file", lambda _node: None)


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_request_is_void_if_the_successor_has_no_room(group, monkeypatch):
    """It allocates before it takes over; all are asked, and again after a minute."""
    prepare_only_when_asked(monkeypatch)
    first, _ = await steady(group)
    others = [node for node in group.cluster.nodes if node is not group.node(first)]
    for node in others:  # just after they have said that they have room
        node.live_disk.fill()
    health = group.cluster.agent(first).node.store_health
    health.failed(Write.CONFIG, "no space for topics")
    await group.until(lambda: group.view.config.switchover is not None)
    assert group.view.config.switchover.for_room
    took_s = await group.until(lambda: has_asked(group, 1, 2, 3))
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


@pytest.mark.parametrize("is_asked_first", [True, False])
@simulated(mapped_file_size=FILE_SIZE)
async def test_another_member_takes_over_where_the_first_cannot(group, monkeypatch, is_asked_first):
    """A quota that statvfs does not know: the node says that it has room until it tries."""
    if is_asked_first:
        prepare_only_when_asked(monkeypatch)
    first, _ = await steady(group)
    best = preferred(group, first)
    unable = group.cluster.agent(best).node
    create_file = MappedFileQueue.create_file

    def create(queue, file_from_offset):
        if queue is unable.role_node.commit_log.mapped_file_queue:
            raise DiskFullError("over quota", path=queue.path, hint="raise the quota")
        return create_file(queue, file_from_offset)

    monkeypatch.setattr(MappedFileQueue, "create_file", create)
    group.cluster.agent(first).node.store_health.failed(Write.CONFIG, "no space for topics")
    await group.until(lambda: group.view.state.epoch == 2)
    assert group.view.state.master.node_id not in {first, best}
    assert (best in group.view.config.room_requests.tried) == is_asked_first
    await trio.sleep(10 * STEADY_AFTER_S)
    assert not group.view.members[best].can_store, "a retry must succeed first"
    assert unable.status().next_file_fault is not None
    monkeypatch.undo()
    await trio.sleep(RETRY_S + STEADY_AFTER_S + CHECKED_EVERY_S)
    assert group.view.members[best].has_room
    assert unable.status().next_file_fault is None


def make_files_within(monkeypatch, seconds):
    """Let each log file take so long; return the list of those that were begun."""
    create_or_shed, begun = AllocateMappedFileService._create_or_shed, []

    async def create_slowly(service, file_from_offset):
        begun.append(file_from_offset)
        mapped_file = await create_or_shed(service, file_from_offset)
        await trio.sleep(seconds)
        return mapped_file

    monkeypatch.setattr(AllocateMappedFileService, "_create_or_shed", create_slowly)
    return begun


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_successor_makes_its_next_file_before_it_is_asked(group, monkeypatch):
    """It begins when the master says that it cannot store, so a file may take some seconds."""
    first, _ = await steady(group)
    make_files_within(monkeypatch, 1.5 * HANDOVER_S)
    group.cluster.agent(first).node.store_health.failed(Write.CONFIG, "no space for topics")
    took_s = await group.until(lambda: group.view.state.epoch == 2)
    assert took_s < 3 * HANDOVER_S
    assert len(group.view.config.room_requests.tried) == 2, "nobody has voided it"


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_file_that_is_made_too_late_serves_the_next_request(group, monkeypatch):
    """The first round is void; the file stays, so that the second round succeeds."""
    first, _ = await steady(group)
    begun = make_files_within(monkeypatch, 5 * HANDOVER_S)
    group.cluster.agent(first).node.store_health.failed(Write.CONFIG, "no space for topics")
    await group.until(lambda: has_asked(group, 1, 2, 3))
    assert group.view.state.epoch == 1
    await group.until(lambda: group.view.state.epoch == 2)
    assert len(begun) == 2, "one file for each"


@simulated(mapped_file_size=FILE_SIZE)
async def test_a_fault_that_follows_the_role_moves_it_ever_more_rarely(group):
    """The pause between two handovers is the group's, not each node's."""
    await steady(group)
    moved, epoch = [], 1
    while trio.current_time() < 1_500.0:
        for node_id in group.masters():
            health = group.cluster.agent(node_id).node.store_health
            health.failed(Write.CONFIG, "permission denied")
        if group.view.state.epoch != epoch:
            epoch = group.view.state.epoch
            moved.append(trio.current_time())
        await trio.sleep(1.0)
    pauses = [later - earlier for earlier, later in itertools.pairwise(moved)]
    assert [round(pause, -1) for pause in pauses] == [60, 120, 240, 480]


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
