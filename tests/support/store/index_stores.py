"""Opens indexes on a fake disk, and flushes them as the flush service does."""

from hastore.config import StoreConfig
from hastore.store.index.service import IndexService
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env


class CheckpointStandIn:
    """The part of a StoreCheckpoint that the index needs; ``on_disk`` survives a crash."""

    def __init__(self, index_msg_timestamp: int = 0) -> None:
        self.index_msg_timestamp = self.on_disk = index_msg_timestamp

    def flush(self) -> None:
        self.on_disk = self.index_msg_timestamp


def fake_service(
    disk: FakeDisk | None = None,
    *,
    slots: int = 8,
    entries: int = 20,
    checkpoint: CheckpointStandIn | None = None,
    last_exit_ok: bool = True,
    clock: FakeClock | None = None,
) -> IndexService:
    """Open the index of ``/d``."""
    return IndexService.load(
        fake_env(disk or FakeDisk(), clock or FakeClock()),
        "/d",
        StoreConfig(data_dir="/d", max_hash_slot_num=slots, max_index_num=entries),
        checkpoint or CheckpointStandIn(),
        last_exit_ok=last_exit_ok,
    )


def flush(service: IndexService) -> int:
    """Flush at once, as the flush service does; return the number of files."""
    files = service.dirty_files()
    for file in files:
        file.sync()
    service.mark_flushed(files)
    return len(files)
