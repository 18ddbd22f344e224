"""A store on a fake disk for recovery: log, consume queues and checkpoint, opened together.

A test runs dispatch and flush directly; there are no services that run them over time.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from hastore.config import StoreConfig
from hastore.message import StoredMessage
from hastore.store.commit_log import CommitLog
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.record.append_message_result import AppendMessageResult
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.recovery.log_loader import LoadReport
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.store_lock import StoreLock
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.store import open_log

FILE_SIZE = open_log.FILE_SIZE
QUEUE_FILE_SIZE = 1_000


def log_name(offset: int) -> str:
    return f"/d/commitlog/{offset - offset % FILE_SIZE:020d}"


@attrs.define(eq=False)
class Recovered:
    """An open store; ``dispatched`` is the log offset up to which its queues have units."""

    disk: FakeDisk
    clock: FakeClock
    log: CommitLog
    queues: ConsumeQueueStore
    checkpoint: StoreCheckpoint
    dispatched: int

    @property
    def report(self) -> LoadReport:
        return self.log.load_report

    def append(self, body: bytes = b"body", **fields: Any) -> AppendMessageResult:
        self.clock.ms += 1
        return open_log.append(self.log, body=body, **fields)

    def append_data(self, physic_offset: int, data: bytes) -> None:
        """Append as a slave does, in pieces that do not cross a file's end."""
        while data:
            size = min(len(data), FILE_SIZE - physic_offset % FILE_SIZE)
            open_log.append_data(self.log, physic_offset, data[:size])
            physic_offset, data = physic_offset + size, data[size:]

    def dispatch(self) -> None:
        """Put the unit of every complete record that was not dispatched yet."""
        for offset, size, message in messages(self.log, self.dispatched):
            if message.sys_flag & 0xC in (0x4, 0xC):  # prepared, rolled back
                continue
            self.queues.put(message.topic, message.queue_id, message.queue_offset, offset, size, 0)
            self.dispatched = offset + size
        self.queues.commit()

    def flush_log(self, *, checkpoint: bool = True) -> None:
        open_log.flush(self.log)
        self.checkpoint.flushed_offset = self.log.flushed_offset
        self.checkpoint.physic_msg_timestamp = self.clock.ms
        if checkpoint:
            self.checkpoint.flush()

    def flush_queues(self, *, checkpoint: bool = True) -> None:
        while files := self.queues.dirty_files():
            for file in files:
                file.sync()
            self.queues.mark_flushed(files)
        self.queues.mark_dirs_flushed(self.queues.dirty_dirs())
        self.checkpoint.logics_msg_timestamp = self.clock.ms
        if checkpoint:
            self.checkpoint.flush()

    def close(self, *, clean: bool = True) -> None:
        if clean:
            self.dispatch()
            self.flush_log()
            self.flush_queues()
        self.queues.close()
        self.checkpoint.close()
        self.log.close(clean=clean)

    def all_bytes(self) -> bytes:
        return open_log.all_bytes(self.log)

    def bodies(self) -> list[bytes]:
        return [message.body for _, _, message in messages(self.log, self.log.min_offset)]

    def queue_contents(self) -> dict[tuple[str, int], dict[int, int]]:
        """Return the physical offsets in each queue, by queue offset, without blank units."""
        found = {}
        for queue in self.queues:
            units: dict[int, int] = {}
            offset = queue.min_offset
            while read := queue.units(offset, 32):
                for unit in read:
                    if unit.size != 0x7FFFFFFF:
                        units[offset] = unit.physic_offset
                    offset += 1
            found[queue.topic, queue.queue_id] = units
        return found


def messages(log: CommitLog, offset: int) -> Iterator[tuple[int, int, StoredMessage]]:
    """Yield every complete message from an offset on: offset, size, message."""
    while offset < log.max_offset:
        data = log.read(offset, log.file_size)
        left = log.file_size - offset % log.file_size
        check = check_record(data, 0, left, offset)
        if check.kind is RecordKind.MESSAGE:
            yield offset, check.size, decode(data[: check.size])
            offset += check.size
        elif check.kind is RecordKind.BLANK or left < 8:
            offset += left
        else:
            return


def recover(
    disk: FakeDisk, *, master: bool = True, clock: FakeClock | None = None, **config: Any
) -> Recovered:
    """Open ``/d``; a failure closes and unlocks everything, as in MessageStore."""
    clock = clock or FakeClock()
    env = fake_env(disk, clock)
    disk.make_dirs("/d")
    lock = StoreLock.take(disk, "/d")
    opened: list[StoreCheckpoint | ConsumeQueueStore] = []
    try:
        checkpoint = StoreCheckpoint.open(disk, "/d")
        opened.append(checkpoint)
        queues = ConsumeQueueStore.load(disk, "/d", QUEUE_FILE_SIZE)
        opened.append(queues)
        queues.recover(last_exit_ok=lock.last_exit_ok)
        log = CommitLog.open(
            env,
            StoreConfig(
                data_dir="/d", mapped_file_size=config.pop("mapped_file_size", FILE_SIZE), **config
            ),
            store_host=open_log.STORE_HOST,
            needs_queue_offsets=master,
            lock=lock,
            checkpoint=checkpoint,
            consume_queues=queues,
        )
    except BaseException:
        for part in opened:
            part.close()
        lock.release(clean=False)
        raise
    return Recovered(disk, clock, log, queues, checkpoint, log.load_report.redispatch_from)


def poke(disk: FakeDisk, offset: int, data: bytes) -> None:
    """Overwrite bytes of the log, on the disk and in the page cache."""
    path = log_name(offset)
    image = bytearray(disk.inodes[path].seen())
    image[offset % FILE_SIZE : offset % FILE_SIZE + len(data)] = data
    assert len(image) == FILE_SIZE
    disk.put(path, bytes(image))
