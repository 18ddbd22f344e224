"""The checkpoint never claims more than is on disk, and is written at most once a second."""

import errno

import pytest
import trio
import trio.testing

from hastore.errors import DiskError
from hastore.flush.checkpoint_flusher import CheckpointFlusher
from hastore.message import Message
from hastore.status import FlushDiskType
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.flush.flush_world import World
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.store.open_log import DATA_DIR, append, make_file


def saved(world):
    """Return the checkpoint that the next start would read."""
    return StoreCheckpoint.open(world.disk.kill(), DATA_DIR)


@pytest.fixture
async def running(nursery):
    world = World(with_checkpoint=True)
    nursery.start_soon(world.manager.run)
    await trio.testing.wait_all_tasks_blocked()
    return world


async def test_each_pass_records_the_flushed_offset_and_time(running, autojump_clock):
    """They are those of the last record that was synced."""
    running.clock.ms += 1_000
    request = running.put()
    await request.wait()
    assert running.checkpoint.flushed_offset == running.log.max_offset
    assert running.checkpoint.physic_msg_timestamp == running.clock.ms
    await trio.sleep(0.1)
    assert saved(running).flushed_offset == running.log.max_offset
    assert saved(running).physic_msg_timestamp == running.clock.ms


async def test_record_appended_during_a_sync_is_not_claimed(running, autojump_clock):
    """Neither its end nor its store time."""
    await running.put().wait()
    running.offload.hang()
    first = running.put()
    await trio.testing.wait_all_tasks_blocked()
    first_ms = running.clock.ms
    running.clock.ms += 5_000
    append(running.log, Message("t", b"later"))
    assert running.checkpoint.flushed_offset < first.append_result.next_offset
    running.offload.go_on()
    await first.wait()
    assert running.checkpoint.flushed_offset == first.append_result.next_offset
    assert running.checkpoint.physic_msg_timestamp == first_ms


async def test_the_file_is_written_once_a_second_at_most(running, autojump_clock):
    """However many syncs there are, and not at all while nothing changes."""
    written = []
    running.checkpoint_flusher.checkpoint = Spy(running.checkpoint, written)
    for _ in range(50):
        await running.put(0).wait()
        await trio.sleep(0.1)
    assert 5 <= len(written) <= 7
    await trio.sleep(5)
    count, syncs = len(written), len(running.disk.syncs)
    await trio.sleep(3600)
    assert (len(written), len(running.disk.syncs)) == (count, syncs)


class Spy:
    def __init__(self, checkpoint, written):
        self.__dict__["checkpoint"] = checkpoint
        self.__dict__["written"] = written

    def __getattr__(self, name):
        return getattr(self.checkpoint, name)

    def __setattr__(self, name, value):
        setattr(self.checkpoint, name, value)

    def flush(self):
        self.written.append(trio.current_time())
        self.checkpoint.flush()


async def test_stop_writes_the_checkpoint(autojump_clock):
    """It is written last, so it covers the last flush."""
    world = World(with_checkpoint=True)
    world.put()
    await world.manager.flush_all()
    assert saved(world).flushed_offset == world.log.max_offset > 0


async def test_pass_by_pages_does_not_claim_the_time_of_the_rest(autojump_clock):
    """The last record is not synced, so its time is not the checkpoint's."""
    world = World(FlushDiskType.ASYNC_FLUSH, with_checkpoint=True)
    flusher = world.manager._flusher
    world.append(3000)
    world.clock.ms += 1_000
    world.append(3000)
    await flusher.flush(4)
    assert world.checkpoint.flushed_offset == world.log.file_size < world.log.max_offset
    assert world.checkpoint.physic_msg_timestamp == 0
    await flusher.flush(0)
    assert world.checkpoint.physic_msg_timestamp == world.clock.ms


async def test_pool_takes_the_time_from_committed_records_only(autojump_clock):
    """The newest record may still be in a write buffer."""
    world = World(FlushDiskType.ASYNC_FLUSH, with_checkpoint=True, transient_store_pool_enable=True)
    make_file(world.log)
    world.append(10)
    first_ms = world.clock.ms
    await world.manager._committer.commit()
    world.clock.ms += 1_000
    world.append(10)
    await world.manager._flusher.flush()
    assert world.checkpoint.physic_msg_timestamp == first_ms
    assert world.checkpoint.flushed_offset == world.log.readable_offset < world.log.max_offset
    await world.manager.flush_all()
    assert world.checkpoint.physic_msg_timestamp == world.clock.ms


async def test_a_slave_takes_the_time_from_its_dispatch(autojump_clock):
    """It appends bytes, not records (rocketmq #1153: a slave without a time starts slowly)."""
    from hastore.flush.flush_manager import FlushManager

    world = World(master=False)
    checkpoint = StoreCheckpoint.open(world.disk, DATA_DIR)
    manager = FlushManager(
        world.env,
        world.log,
        world.config,
        CheckpointFlusher(world.env, checkpoint),
        store_timestamp_ms=lambda: 4_711,
    )
    world.log.mapped_file_queue.first_file_offset = 0
    make_file(world.log)
    assert world.log.append_data(0, memoryview(bytes(100)))
    await manager.flush_all()
    assert (checkpoint.flushed_offset, checkpoint.physic_msg_timestamp) == (100, 4_711)


async def test_the_queues_time_falls_where_the_logs_times_do(autojump_clock):
    """In a RocketMQ master's log: a time from before would let later records look flushed."""
    flusher = CheckpointFlusher(fake_env(FakeDisk()), StoreCheckpoint(FakeDisk(), "/d/checkpoint"))
    flusher.record_flushed(10, 500)
    flusher.record_flushed(20, 400)
    flusher.record_flushed(30, None)
    flusher.record_queues_flushed(300)
    flusher.record_queues_flushed(200)
    flusher.record_queues_flushed(0)  # nothing is dispatched yet
    checkpoint = flusher.checkpoint
    assert (checkpoint.flushed_offset, checkpoint.physic_msg_timestamp) == (30, 500)
    assert checkpoint.logics_msg_timestamp == 200


def no_descriptor():
    error = DiskError("cannot write /d/checkpoint: Too many open files", path="/d/checkpoint")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return error


@pytest.mark.parametrize("refusal", [disk_full, no_descriptor])
async def test_temporary_write_error_ends_nothing(running, autojump_clock, caplog, refusal):
    """On a full disk, or without a descriptor, the older checkpoint is still true."""
    running.disk.fail("write_file", refusal())
    await running.put().wait()
    await trio.sleep(1.5)
    await running.put().wait()
    await trio.sleep(1.5)
    assert caplog.text.count("checkpoint_not_written") == 1
    running.disk.heal()
    await running.put().wait()
    await trio.sleep(1.5)
    assert saved(running).flushed_offset == running.log.max_offset


async def test_other_write_error_is_fail_stop(autojump_clock):
    """A node must not acknowledge anything on a disk that cannot write 4 KiB."""
    world = World(with_checkpoint=True)
    world.disk.fail(
        "write_file", DiskError("cannot write: Input/output error", path="/d/checkpoint")
    )
    world.put()
    with pytest.raises(DiskError, match="Input/output error"):
        await world.manager.run()
