"""Opens indexes on a fake disk, and flushes them as the flush service does."""

from itertools import islice

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


def query_index(
    service: IndexService,
    topic: str,
    key: str,
    *,
    max_count: int = 10_000,
    begin_ms: int = 0,
    end_ms: int = 2**62,
) -> list[int]:
    """Return the first ``max_count`` candidates."""
    return list(islice(service.candidates(topic, key, begin_ms, end_ms), max_count))


def delete_expired(service: IndexService, min_physic_offset: int) -> int:
    """Remove the expired files at once, as the expiry does in steps; return their number."""
    count = 0
    while (file := service.search.take_expired(min_physic_offset)) is not None:
        try:
            service.search.remove_taken(file)
        except BaseException:
            service.search.give_back(file)
            raise
        service.search.close_removed()
        count += 1
    return count
