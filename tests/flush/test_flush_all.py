"""The last flush of a stop: once more for what came meanwhile, never again for what failed."""

import pytest
import trio.testing

from hastore.errors import FlushFailedError
from hastore.flush.flush_manager import FLUSH_ALL_RETRIES_MAX
from hastore.status import FlushDiskType
from tests.flush.test_flush_manager import World
from tests.support.env.scripted_disk import sync_failed


def append_at_each_sync(world, count):
    """Let something append while each of the next syncs runs."""
    left = [count]

    def append(_sync):
        if left[0]:
            left[0] -= 1
            world.append(10)

    world.disk.before("sync", append)


@pytest.mark.parametrize("pool", [False, True])
async def test_what_is_appended_meanwhile_makes_another_pass(autojump_clock, caplog, pool):
    """Counted, and said in the log."""
    caplog.set_level("INFO")
    world = World(FlushDiskType.ASYNC_FLUSH, transient_store_pool_enable=pool)
    world.append(10)
    append_at_each_sync(world, 3)
    await world.manager.flush_all()
    assert world.is_flushed
    assert world.manager.flush_all_retries == 3
    assert "flushed_with_retries" in caplog.text


async def test_a_stop_without_appends_is_one_pass(autojump_clock, caplog):
    """Nothing to count, nothing to say."""
    caplog.set_level("INFO")
    world = World()
    world.append(10)
    await world.manager.flush_all()
    assert (world.manager.flush_all_retries, len(world.disk.syncs)) == (0, 1)
    assert "flushed_with_retries" not in caplog.text


async def test_appends_without_end_end_the_last_flush_all_the_same(autojump_clock):
    """Ten retries, as RocketMQ; what is left makes the stop an unclean one."""
    world = World()
    world.append(10)
    append_at_each_sync(world, 1_000)
    await world.manager.flush_all()
    assert not world.is_flushed
    assert world.manager.flush_all_retries == FLUSH_ALL_RETRIES_MAX == 10
    assert world.manager.flush_passes == 11


async def test_a_sync_that_failed_is_not_tried_again(autojump_clock):
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


async def test_the_last_flush_waits_for_a_commit_that_runs(autojump_clock, nursery):
    """And then finds nothing left to do twice."""
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
    assert (world.manager.commit_passes, world.manager.flush_passes) == (1, 1)
