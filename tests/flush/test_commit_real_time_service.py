"""TransientStorePool: commits by pages and by time, then the flush; errors are final."""

import attrs
import pytest
import trio
import trio.testing

from hastore.config import MasterConfig, SlaveConfig, StoreConfig
from hastore.errors import ConfigError, DiskError
from hastore.flush.flush_manager import FlushManager
from hastore.message import Message
from hastore.status import FlushDiskType, PutMessageStatus
from tests.flush.flush_world import World, started
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, make_file, open_log

PAGE = 4096
SIZE = 64 * PAGE


def pool_world(file_size=SIZE, **config):
    world = World(
        FlushDiskType.ASYNC_FLUSH, file_size=file_size, transient_store_pool_enable=True, **config
    )
    make_file(world.log)
    return world


def readable(world):
    return world.log.readable_offset == world.log.max_offset


async def test_a_message_is_readable_within_the_thorough_interval(nursery, autojump_clock):
    """200 ms at most, however small it is."""
    world = await started(nursery, pool_world())
    world.append(10)
    begin = trio.current_time()
    await trio.testing.wait_all_tasks_blocked()
    world.append(10)
    while not readable(world):
        await trio.sleep(0.01)
    assert 0.1 < trio.current_time() - begin <= 0.21


async def test_four_pages_are_committed_at_once(nursery, autojump_clock):
    """The append that completes four pages wakes the service before the timer does."""
    world = await started(nursery, pool_world())
    world.append(10)
    await trio.testing.wait_all_tasks_blocked()
    before = trio.current_time()
    world.append(3 * PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert not readable(world)
    world.append(PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert readable(world)
    assert trio.current_time() == before


async def test_append_below_four_pages_does_not_wake_the_service(nursery, autojump_clock):
    """A task switch costs more than an append."""
    world = await started(nursery, pool_world())
    world.append(10)
    await trio.testing.wait_all_tasks_blocked()
    runs = world.offload.runs
    for _ in range(50):
        world.append(10)
        await trio.lowlevel.checkpoint()
    assert world.offload.runs == runs


async def test_a_commit_wakes_the_flush(nursery, autojump_clock):
    """Write buffer, file, disk: the second step follows the first without an append."""
    world = await started(nursery, pool_world(flush_least_pages=0))
    world.committed.clear()
    world.append(100)
    await trio.sleep(0.25)
    assert world.committed == [world.log.max_offset]
    assert not world.is_flushed
    await trio.sleep(0.6)
    assert world.is_flushed


async def test_an_idle_node_with_a_pool_has_no_timer(nursery, autojump_clock):
    """Neither the commit nor the flush has one."""
    world = await started(nursery, pool_world())
    world.append(10)
    await trio.sleep(20)
    assert world.is_flushed
    runs = world.offload.runs
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
    await trio.sleep(3600)
    assert world.offload.runs == runs


async def test_untimed_flush_waits_for_a_commit_without_spinning(nursery, autojump_clock):
    """While a commit hangs there is nothing to flush, and nothing runs."""
    world = await started(nursery, pool_world(flush_commit_log_timed=False))
    world.offload.hang()
    world.append(20 * PAGE)
    await trio.testing.wait_all_tasks_blocked()
    runs = world.offload.runs
    world.append(20 * PAGE)
    await trio.testing.wait_all_tasks_blocked()
    assert world.offload.runs == runs
    world.offload.go_on()
    await trio.sleep(1)
    assert world.is_flushed


async def test_buffers_are_reused_over_many_files(nursery, autojump_clock):
    """Two or three are in use at a time; the log is complete."""
    world = await started(nursery, pool_world(file_size=4 * PAGE, transient_store_pool_size=3))
    for index in range(100):
        world.append(900 + index)
        if index % 6 == 0:
            await trio.sleep(0.01)
    await trio.sleep(1)
    assert readable(world)
    pool = world.log.mapped_file_queue.transient_store_pool
    assert pool.available >= 1
    assert len(world.memory.locked) <= 3
    again = open_log(fake_env(world.disk.kill()), mapped_file_size=4 * PAGE)
    assert again.max_offset == world.log.max_offset


async def test_kill_loses_only_uncommitted_messages(nursery, autojump_clock):
    """RocketMQ's pool loses them too; recovery finds whole records."""
    world = await started(nursery, pool_world())
    world.append(5 * PAGE)
    await trio.sleep(0.3)
    committed = world.log.readable_offset
    assert committed == world.log.max_offset
    world.append(10)
    world.append(10)
    assert world.log.max_offset > committed
    again = open_log(fake_env(world.disk.kill()), mapped_file_size=SIZE)
    assert again.max_offset == committed
    assert append(again).physic_offset == committed


async def test_power_cut_loses_unflushed_messages(nursery, autojump_clock):
    """A committed message is in the page cache only."""
    world = await started(nursery, pool_world())
    flushed = world.log.max_offset
    world.append(10)
    await trio.sleep(0.3)
    assert readable(world)
    assert not world.is_flushed
    again = open_log(fake_env(world.disk.cut_power()), mapped_file_size=SIZE)
    assert again.max_offset == flushed


async def test_a_failed_commit_is_fail_stop_and_never_tried_again(autojump_clock):
    """P7: the error comes out of ``run``, after it was reported in the same step."""
    world = pool_world()
    world.append(10)
    error = DiskError("cannot write /d/x: Input/output error", path="/d/x")
    world.disk.fail("pwrite", error, reaches=5)
    with pytest.raises(DiskError, match="Input/output error"):
        await world.manager.run()
    assert world.failed == [(error, 0)]
    world.disk.heal()  # the disk works again, but nothing is tried
    before = world.disk.files()
    with pytest.raises(DiskError, match="Input/output error"):
        await world.manager.flush_all()
    assert world.disk.files() == before
    assert world.disk.syncs == []
    assert (world.log.readable_offset, world.log.flushed_offset) == (0, 0)


async def test_a_failed_sync_ends_a_node_with_a_pool_too(autojump_clock):
    """Committed bytes stay readable; none count as flushed."""
    world = pool_world()
    world.append(10)
    world.disk.fail("sync", DiskError("no", path="/d/x"))
    with pytest.raises(DiskError):
        await world.manager.run()
    assert world.log.flushed_offset == 0 < world.log.readable_offset


async def test_hanging_commit_stops_no_append(nursery, autojump_clock):
    """Appends go to the buffer; the commit that returns late still counts."""
    world = await started(nursery, pool_world())
    world.offload.hang()
    world.append(4 * PAGE)
    await trio.sleep(30)
    world.append(4 * PAGE)
    assert world.put(10).status is PutMessageStatus.PUT_OK
    assert not readable(world)
    world.offload.go_on()
    await trio.sleep(1)
    assert readable(world)


async def test_a_stop_commits_and_flushes_the_rest(autojump_clock):
    """A clean stop loses nothing, and leaves no ``abort``."""
    world = pool_world()
    world.append(10)
    await world.manager.flush_all()
    assert world.is_flushed
    assert world.manager.flush_all_retries == 0
    world.log.close(clean=True)
    again = open_log(fake_env(world.disk.kill()), mapped_file_size=SIZE)
    assert again.load_report.last_exit_ok
    assert again.max_offset > 0


async def test_buffers_are_locked_by_the_service_in_a_thread(nursery, autojump_clock):
    """An mlock of a gigabyte takes a while."""
    world = World(FlushDiskType.ASYNC_FLUSH)
    make_file(world.log)  # as a master does before its services run
    config = attrs.evolve(world.config, transient_store_pool_enable=True)
    manager = FlushManager(world.env, world.log, config)
    assert world.memory.calls == [("anonymous", FILE_SIZE)]
    nursery.start_soon(manager.run)
    await trio.testing.wait_all_tasks_blocked()
    assert len(world.memory.locked) == 1


def test_sync_flush_with_a_pool_is_refused():
    """RocketMQ 4 accepts it and ignores the pool."""
    with pytest.raises(ConfigError, match="ASYNC_FLUSH"):
        StoreConfig(
            data_dir="/d",
            transient_store_pool_enable=True,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
        )


def test_a_slave_with_a_pool_is_refused():
    """A slave reports what it has stored, and a write buffer stores nothing."""
    store = StoreConfig(data_dir="/d", transient_store_pool_enable=True)
    assert MasterConfig(store=store).store is store
    with pytest.raises(ConfigError, match="slave"):
        SlaveConfig(store=store, master=("127.0.0.1", 1))


async def test_batch_becomes_readable_as_a_whole(nursery, autojump_clock):
    """It goes through the write buffer like a single message."""
    world = await started(nursery, pool_world())
    end = world.log.readable_offset
    append(world.log, [Message("t", bytes(100)), Message("t", bytes(100))])
    assert world.log.read(end, 1000) == b""
    world.manager.notify_appended()
    await trio.sleep(0.3)
    assert len(world.log.read(end, 10_000)) == world.log.max_offset - end
