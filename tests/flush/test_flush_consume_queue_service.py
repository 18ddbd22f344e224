"""The consume queues' flush: by pages and by time; its checkpoint claims only what is on disk."""

import pytest
import trio
import trio.testing

from hastore.config import StoreConfig
from hastore.errors import DiskError, FlushFailedError
from hastore.flush.checkpoint_flusher import CheckpointFlusher
from hastore.flush.flush_consume_queue_service import FlushConsumeQueueService
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.env.scripted_disk import disk_full, sync_failed
from tests.support.store.open_log import DATA_DIR

FILE_SIZE = 40_000  # 2,000 units, 10 pages
PAGE_UNITS = 205


class Index:
    """A fake index that records its calls; the real one has its own tests."""

    def __init__(self):
        self.path = "index"
        self.is_dirty = False
        self.events = []
        self.error = None

    def dirty_files(self):
        return [self] if self.is_dirty else []

    def sync(self):
        if self.error is not None:
            raise self.error
        self.events.append("sync")

    def mark_flushed(self, files):
        assert files == [self]
        self.is_dirty = False
        self.events.append("mark")


class World:
    """Consume queues on a fake disk, their service, and a checkpoint."""

    def __init__(self, disk=None, **config):
        self.disk, self.offload = disk or FakeDisk(), FakeOffload()
        env = fake_env(self.disk, offload=self.offload)
        self.queues = ConsumeQueueStore.load(self.disk, DATA_DIR, FILE_SIZE)
        self.index = Index()
        self.checkpoint = StoreCheckpoint.open(self.disk, DATA_DIR)
        self.dispatched_ms = 0
        self.offset = 0
        self.next_offsets = {}
        self.service = FlushConsumeQueueService(
            env=env,
            config=StoreConfig(data_dir=DATA_DIR, **config),
            consume_queues=self.queues,
            index_service=self.index,
            checkpoint_flusher=CheckpointFlusher(env, self.checkpoint),
            dispatched_timestamp_ms=lambda: self.dispatched_ms,
        )

    def dispatch(self, units=1, queue_id=0, at_ms=None):
        """Put units, commit them, notify the service."""
        for _ in range(units):
            queue_offset = self.next_offsets.get(queue_id, 0)
            self.queues.put("t", queue_id, queue_offset, self.offset, 100, 7)
            self.next_offsets[queue_id] = queue_offset + 1
            self.offset += 100
        self.queues.commit()
        self.dispatched_ms = self.dispatched_ms + 1 if at_ms is None else at_ms
        self.service.notify_dispatched()

    def durable(self, queue_id=0):
        """Return how many units of a queue the next start would find after a power cut."""
        queues = ConsumeQueueStore.load(self.disk.cut_power(), DATA_DIR, FILE_SIZE)
        queues.recover()
        queue = queues.find("t", queue_id)
        return 0 if queue is None else queue.max_offset


@pytest.fixture
async def world(nursery):
    made = World()
    nursery.start_soon(made.service.run)
    await trio.testing.wait_all_tasks_blocked()
    made.dispatch()
    await trio.sleep(2)  # the first pass is a thorough one: get it over with
    assert made.durable() == 1
    return made


async def test_the_first_units_after_a_start_are_synced_by_a_thorough_pass(world, autojump_clock):
    """It syncs the file and its directories, and moves the checkpoint."""
    assert world.queues.dirty_dirs() == []
    assert world.checkpoint.logics_msg_timestamp == world.dispatched_ms == 1
    assert f"{DATA_DIR}/consumequeue/t/0" in world.disk.syncs


async def test_two_dirty_pages_are_synced_after_the_interval(world, autojump_clock):
    """The checkpoint does not move, because queues with fewer pages are not on disk."""
    world.dispatch(2 * PAGE_UNITS)
    world.dispatch(1, queue_id=1)
    await trio.sleep(1.5)
    assert world.durable() > 2 * PAGE_UNITS
    assert world.durable(1) == 0
    assert world.checkpoint.logics_msg_timestamp == 1


async def test_fewer_dirty_pages_wait_for_the_thorough_pass(world, autojump_clock):
    """It comes 60 s after the last one, and moves the checkpoint."""
    world.dispatch(10, at_ms=5_000)
    await trio.sleep(50)
    assert world.durable() == 1
    await trio.sleep(12)
    assert world.durable() == 11
    assert world.checkpoint.logics_msg_timestamp == 5_000


async def test_checkpoint_time_is_that_of_the_start_of_the_pass(autojump_clock):
    """Units that are dispatched while the disk works are in the page cache only."""
    world = World()
    world.dispatch(at_ms=1_000)
    world.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.service.flush)
        await trio.testing.wait_all_tasks_blocked()
        world.dispatch(at_ms=2_000)
        world.offload.go_on()
    assert world.checkpoint.logics_msg_timestamp == 1_000
    assert world.service.is_dirty
    await world.service.flush()
    assert world.checkpoint.logics_msg_timestamp == 2_000
    assert not world.service.is_dirty


async def test_an_idle_node_syncs_nothing_and_has_no_timer(world, autojump_clock):
    """Everything is on disk, and the checkpoint says so."""
    world.dispatch(5)
    await trio.sleep(130)
    assert not world.service.is_dirty
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
    runs = world.offload.runs
    await trio.sleep(3600)
    assert world.offload.runs == runs


async def test_the_index_is_synced_with_thorough_passes_only(world, autojump_clock):
    """Its slots are all over the file, so one sync of it costs many writes."""
    world.index.is_dirty = True
    world.dispatch(2 * PAGE_UNITS)
    await trio.sleep(2)
    assert world.index.events == []
    await trio.sleep(60)
    assert world.index.events == ["sync", "mark"]


async def test_flush_works_without_an_index(autojump_clock):
    """The case of message_index_enable false."""
    world = World()
    world.service.index_service = None
    world.dispatch(3)
    await world.service.flush()
    assert world.durable() == 3


async def test_many_queues_are_all_synced_by_one_thorough_pass(autojump_clock):
    """The store returns 128 files at a time."""
    world = World()
    for queue_id in range(300):
        world.dispatch(1, queue_id=queue_id)
    world.offload.runs = 0
    await world.service.flush()
    assert world.queues.is_flushed
    assert world.checkpoint.logics_msg_timestamp == 300
    assert world.offload.runs == 3 + 1  # for the files, and for their directories


async def test_pass_ends_although_writes_continue(autojump_clock):
    """It syncs each file that was dirty at its start, and is then over."""
    world = World()
    for queue_id in range(300):
        world.dispatch(1, queue_id=queue_id)

    def write_again(_file):
        world.dispatch(1, queue_id=len(world.disk.syncs) % 300)

    world.disk.before("sync", write_again)
    before_ms = world.dispatched_ms
    await world.service.flush()
    assert world.checkpoint.logics_msg_timestamp == before_ms
    queues = ConsumeQueueStore.load(world.disk.cut_power(), DATA_DIR, FILE_SIZE)
    queues.recover()
    assert all(queue.max_offset >= 1 for queue in queues)
    assert len(queues) == 300


async def test_a_failed_sync_is_fail_stop(autojump_clock):
    """The checkpoint does not move, and nothing is tried again."""
    world = World()
    world.dispatch(3)
    world.disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        await world.service.run()
    world.disk.heal()
    syncs = len(world.disk.syncs)
    with pytest.raises(FlushFailedError):
        await world.service.flush()
    assert len(world.disk.syncs) == syncs
    assert world.checkpoint.logics_msg_timestamp == 0


async def test_full_disk_only_delays_the_flush(autojump_clock, caplog):
    """The index meets a hole: the error is logged once, and every pass tries again."""
    world = World()
    world.index.is_dirty, world.index.error = True, disk_full()
    world.dispatch(3)
    await world.service.flush()
    await world.service.flush()
    assert world.checkpoint.logics_msg_timestamp == 0
    assert caplog.text.count("queues_not_flushed") == 1
    world.index.error = None
    await world.service.flush()
    assert world.checkpoint.logics_msg_timestamp == world.dispatched_ms


async def test_a_directory_that_cannot_be_synced_is_fail_stop(autojump_clock):
    """A file without its name is not on disk."""
    world = World()
    world.disk.fail("sync_dir", DiskError("cannot sync: Input/output error", path="/d"))
    world.dispatch(1)
    with pytest.raises(DiskError):
        await world.service.flush()
    assert world.checkpoint.logics_msg_timestamp == 0
