"""A log and its flush manager on a fake disk."""

import trio
import trio.testing

from hastore.concurrency.group_commit_request import GroupCommitRequest, Part
from hastore.config import StoreConfig
from hastore.flush.checkpoint_flusher import CheckpointFlusher
from hastore.flush.flush_manager import FlushManager
from hastore.message import Message
from hastore.status import FlushDiskType
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, FakeMemory, FakeOffload, fake_env
from tests.support.store.open_log import DATA_DIR, FILE_SIZE, append, open_log


class World:
    """A log and its flush manager on a fake disk."""

    def __init__(
        self,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        *,
        master=True,
        file_size=FILE_SIZE,
        with_checkpoint=False,
        **config,
    ):
        self.disk, self.offload, self.clock = FakeDisk(), FakeOffload(), FakeClock()
        self.memory = FakeMemory()
        self.env = fake_env(self.disk, self.clock, self.offload, self.memory)
        self.config = StoreConfig(
            data_dir=DATA_DIR,
            mapped_file_size=file_size,
            flush_disk_type=flush_disk_type,
            **config,
        )
        self.log = open_log(self.env, master=master, mapped_file_size=file_size)
        self.checkpoint = StoreCheckpoint.open(self.disk, DATA_DIR) if with_checkpoint else None
        self.checkpoint_flusher = None
        if self.checkpoint is not None:
            self.checkpoint_flusher = CheckpointFlusher(self.env, self.checkpoint)
        self.flushed, self.committed, self.failed = [], [], []
        self.manager = FlushManager(
            self.env,
            self.log,
            self.config,
            self.checkpoint_flusher,
            on_flushed=self.flushed.append,
            on_committed=lambda: self.committed.append(self.log.readable_offset),
            on_failed=lambda error: self.failed.append((error, self.log.readable_offset)),
        )

    def append(self, size):
        """Append a body of ``size`` bytes, as a put that waits for nothing does."""
        append(self.log, Message("t", bytes(size)))
        self.manager.notify_appended()

    def put(self, size=10):
        """Append and wait for the disk, as put_message does; return the request."""
        result = append(self.log, Message("t", bytes(size)))
        self.manager.notify_appended()
        request = GroupCommitRequest("t", 0)
        request.append_result = result
        request.expect(Part.FLUSH)
        self.manager.handle_disk_flush(request, result.next_offset)
        return request

    @property
    def is_flushed(self):
        return self.manager.flushed_offset == self.log.max_offset


async def started(nursery, world):
    """Return a world whose services are running and idle."""
    nursery.start_soon(world.manager.run)
    await trio.testing.wait_all_tasks_blocked()
    world.append(0)  # the first pass is a thorough one: get it over with
    await trio.sleep(1)
    assert world.is_flushed
    return world
