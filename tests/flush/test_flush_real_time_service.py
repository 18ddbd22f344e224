"""ASYNC_FLUSH: which bytes are synced when, and no timer without dirty bytes."""

import pytest
import trio
import trio.testing

from hastore.message import Message
from hastore.status import FlushDiskType
from tests.flush.flush_world import World, started

PAGE = 4096
SIZE = 64 * PAGE


def timed_world(**config):
    return World(FlushDiskType.ASYNC_FLUSH, file_size=SIZE, **config)


async def test_fewer_than_four_pages_wait_for_the_thorough_pass(nursery, autojump_clock):
    """RocketMQ's flushCommitLogLeastPages and its thorough interval of 10 s."""
    world = await started(nursery, timed_world())
    begin = trio.current_time()
    world.append(2 * PAGE)
    await trio.sleep(8)
    assert not world.is_flushed
    while not world.is_flushed:
        await trio.sleep(0.1)
    assert 9 <= trio.current_time() - begin <= 10


async def test_four_dirty_pages_are_synced_at_the_next_interval(nursery, autojump_clock):
    """Three pages are not enough."""
    world = await started(nursery, timed_world())
    world.append(3 * PAGE)
    await trio.sleep(2)
    assert not world.is_flushed
    world.append(PAGE)
    await trio.sleep(0.6)
    assert world.is_flushed


async def test_full_file_is_synced_however_few_its_dirty_pages(nursery, autojump_clock):
    """A roll leaves no unsynced byte in the old file."""
    world = await started(nursery, timed_world())
    while world.log.max_offset < SIZE - 2 * PAGE:
        world.append(PAGE)
    await trio.sleep(1)
    world.append(4 * PAGE)  # has no room: the file is closed
    await trio.sleep(0.6)
    assert world.manager.flushed_offset >= SIZE


async def test_first_message_after_a_quiet_time_is_synced_at_next_interval(nursery, autojump_clock):
    """The thorough interval counts from the last thorough pass, so it has long passed."""
    world = await started(nursery, timed_world())
    await trio.sleep(60)
    world.append(10)
    await trio.sleep(0.6)
    assert world.is_flushed


@pytest.mark.parametrize("timed", [True, False])
async def test_idle_node_has_no_timer(nursery, autojump_clock, timed):
    """An hour brings no pass and no sync."""
    world = await started(nursery, timed_world(flush_commit_log_timed=timed))
    world.append(10)
    await trio.sleep(20)
    assert world.is_flushed
    passes, runs = world.manager.pass_times.count, world.offload.runs
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
    await trio.sleep(3600)
    assert (world.manager.pass_times.count, world.offload.runs) == (passes, runs)


async def test_dirty_bytes_below_the_limit_cause_one_wake_up(nursery, autojump_clock):
    """After a pass with too few pages the only timer is that of the thorough pass."""
    world = await started(nursery, timed_world())
    world.append(PAGE)
    await trio.sleep(1.5)
    assert not world.is_flushed
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 6


async def test_untimed_append_wakes_the_service(nursery, autojump_clock):
    """With flush_commit_log_timed false, four pages are synced before the next interval."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.append(3 * PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.is_flushed
    before = trio.current_time()
    world.append(PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert world.is_flushed
    assert trio.current_time() == before


async def test_untimed_rest_is_synced_by_the_thorough_pass(nursery, autojump_clock):
    """A single small message waits 10 s at most."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.append(10)
    await trio.sleep(5)
    assert not world.is_flushed
    await trio.sleep(6)
    assert world.is_flushed


async def test_appends_during_a_slow_sync_get_another_pass(nursery, autojump_clock):
    """They wait for no further append."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.offload.hang()
    world.append(4 * PAGE)
    await trio.sleep(1)
    world.append(4 * PAGE)
    world.offload.go_on()
    await trio.testing.wait_all_tasks_blocked()
    assert world.is_flushed


async def test_least_pages_of_0_syncs_any_byte(nursery, autojump_clock):
    """With this setting every message is on disk within about half a second."""
    world = await started(nursery, timed_world(flush_least_pages=0))
    for _ in range(5):
        world.append(1)
        await trio.sleep(0.6)
        assert world.is_flushed


async def test_full_file_is_synced_without_the_tail_of_the_next(autojump_clock):
    """The new file has too few dirty pages."""
    world = timed_world()
    while world.log.max_offset < SIZE:
        world.append(7 * PAGE)
    assert world.log.max_offset > SIZE
    assert [end for _, end in world.log.flush_targets(20)] == [SIZE]
    assert len(world.log.flush_targets(0)) == 2
    assert world.log.append_message(Message("t", b"")).physic_offset > SIZE
