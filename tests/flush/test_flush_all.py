"""The last flush of a stop: repeated for new appends, never after a failed sync."""

import pytest
import trio.testing

from hastore.errors import FlushFailedError
from hastore.flush.flush_manager import FLUSH_ALL_RETRIES_MAX
from hastore.status import FlushDiskType
from tests.flush.flush_world import World
from tests.support.env.scripted_disk import sync_failed


def append_at_each_sync(world, count):
    """Append something during each of the next ``count`` syncs."""
    left = [count]

    def append(_sync):
        if left[0]:
            left[0] -= 1
            world.append(10)

    world.disk.before("sync", append)


@pytest.mark.parametrize("pool", [False, True])
async def test_appends_during_the_last_flush_cause_another_pass(autojump_clock, caplog, pool):
    """The retries are counted and logged."""
    caplog.set_level("INFO")
    world = World(FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=pool)
    world.append(10)
    append_at_each_sync(world, 3)
    await world.manager.flush_all()
    assert world.is_flushed
    assert world.manager.flush_all_retries == 3
    assert "flushed_with_retries" in caplog.text


async def test_a_stop_without_appends_is_one_pass(autojump_clock, caplog):
    """Nothing is counted, nothing is logged."""
    caplog.set_level("INFO")
    world = World()
    world.append(10)
    await world.manager.flush_all()
    assert (world.manager.flush_all_retries, len(world.disk.syncs)) == (0, 1)
    assert "flushed_with_retries" not in caplog.text


async def test_last_flush_ends_after_ten_retries(autojump_clock):
    """RocketMQ's limit; the unflushed rest makes the stop an unclean one."""
    world = World()
    world.append(10)
    append_at_each_sync(world, 1_000)
    await world.manager.flush_all()
    assert not world.is_flushed
    assert world.manager.flush_all_retries == FLUSH_ALL_RETRIES_MAX == 10
    assert world.manager.pass_times.count == 11


async def test_failed_sync_is_not_tried_again(autojump_clock):
    """A second fdatasync would claim success for bytes that the disk does not have."""
    world = World()
    world.append(10)
    world.disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        await world.manager.flush_all()
    world.disk.heal()
    with pytest.raises(FlushFailedError):
        await world.manager.flush_all()
    assert len(world.disk.syncs) == 1
    assert not world.is_flushed


async def test_last_flush_waits_for_a_running_commit(autojump_clock, nursery):
    """It then repeats neither the commit nor the flush."""
    world = World(FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=True)
    nursery.start_soon(world.manager.run)
    await trio.testing.wait_all_tasks_blocked()
    world.offload.hang()
    world.append(10)
    await trio.testing.wait_all_tasks_blocked()
    async with trio.open_nursery() as stopping:
        stopping.start_soon(world.manager.flush_all)
        await trio.testing.wait_all_tasks_blocked()
        world.offload.go_on()
    assert world.is_flushed
    assert (len(world.committed), world.manager.pass_times.count) == (1, 1)
