"""ASYNC_FLUSH: what is synced when, by pages and by time, and no timer without dirty bytes."""

import pytest
import trio
import trio.testing

from hastore.message import Message
from hastore.status import FlushDiskType
from tests.flush.test_flush_manager import World, started

PAGE = 4096
SIZE = 64 * PAGE


def timed_world(**config):
    return World(FlushDiskType.ASYNC_FLUSH, file_size=SIZE, **config)


async def test_less_than_four_pages_wait_for_the_thorough_pass(nursery, autojump_clock):
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
    """And the thorough pass does not come earlier for it."""
    world = await started(nursery, timed_world())
    world.append(3 * PAGE)
    await trio.sleep(2)
    assert not world.is_flushed
    world.append(PAGE)
    await trio.sleep(0.6)
    assert world.is_flushed


async def test_a_full_file_is_synced_whatever_its_pages(nursery, autojump_clock):
    """A roll leaves nothing behind."""
    world = await started(nursery, timed_world())
    while world.log.max_offset < SIZE - 2 * PAGE:
        world.append(PAGE)
    await trio.sleep(1)
    world.append(4 * PAGE)  # has no room: the file is closed
    await trio.sleep(0.6)
    assert world.manager.flushed_offset >= SIZE


async def test_a_first_message_after_a_quiet_time_is_synced_at_the_next_interval(
    nursery, autojump_clock
):
    """The thorough interval counts from the last thorough pass, so it has long passed."""
    world = await started(nursery, timed_world())
    await trio.sleep(60)
    world.append(10)
    await trio.sleep(0.6)
    assert world.is_flushed


@pytest.mark.parametrize("timed", [True, False])
async def test_an_idle_node_wakes_for_nothing(nursery, autojump_clock, timed):
    """An hour: no pass, no sync, and the clock has nothing to jump to."""
    world = await started(nursery, timed_world(flush_commit_log_timed=timed))
    world.append(10)
    await trio.sleep(20)
    assert world.is_flushed
    passes, runs = world.manager.flush_passes, world.offload.runs
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
    await trio.sleep(3600)
    assert (world.manager.flush_passes, world.offload.runs) == (passes, runs)


async def test_dirty_bytes_that_wait_cause_one_wake_up_not_one_an_interval(nursery, autojump_clock):
    """Between the look that was not worth it and the thorough pass there is no timer."""
    world = await started(nursery, timed_world())
    world.append(PAGE)
    await trio.sleep(1.5)
    assert not world.is_flushed
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 6


async def test_not_timed_an_append_wakes_the_service(nursery, autojump_clock):
    """flush_commit_log_timed false: four pages are synced at once, not at the next interval."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.append(3 * PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.is_flushed
    before = trio.current_time()
    world.append(PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert world.is_flushed
    assert trio.current_time() == before


async def test_not_timed_the_rest_is_synced_by_the_thorough_pass(nursery, autojump_clock):
    """A single small message waits 10 s at most."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.append(10)
    await trio.sleep(5)
    assert not world.is_flushed
    await trio.sleep(6)
    assert world.is_flushed


async def test_appends_during_a_slow_sync_are_not_forgotten(nursery, autojump_clock):
    """What came while the disk hung is worth a pass of its own."""
    world = await started(nursery, timed_world(flush_commit_log_timed=False))
    world.offload.hang()
    world.append(4 * PAGE)
    await trio.sleep(1)
    world.append(4 * PAGE)
    world.offload.go_on()
    await trio.testing.wait_all_tasks_blocked()
    assert world.is_flushed


async def test_least_pages_of_0_syncs_any_byte(nursery, autojump_clock):
    """The setting for those who want every message on disk within half a second."""
    world = await started(nursery, timed_world(flush_least_pages=0))
    for _ in range(5):
        world.append(1)
        await trio.sleep(0.6)
        assert world.is_flushed


async def test_a_roll_and_a_tail_are_synced_apart(autojump_clock):
    """Without enough pages in the new file only the full one is."""
    world = timed_world()
    while world.log.max_offset < SIZE:
        world.append(7 * PAGE)
    assert world.log.max_offset > SIZE
    assert [end for _, end in world.log.flush_targets(20)] == [SIZE]
    assert len(world.log.flush_targets(0)) == 2
    assert world.log.append_message(Message("t", b"")).physic_offset > SIZE
