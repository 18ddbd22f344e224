"""Consume queues on a fake disk, and the units that a log would dispatch into them."""

from hastore.store.queue.consume_queue import ConsumeQueue
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from tests.support.env.fake_disk import FakeDisk

DATA_DIR = "/d"
ROOT = "/d/consumequeue"
FILE_SIZE = 200  # 10 units
SIZE = 100  # of each record


def open_queues(
    disk: FakeDisk | None = None, *, file_size: int = FILE_SIZE, last_exit_ok: bool = False
) -> ConsumeQueueStore:
    """Load and recover the queues of ``/d``."""
    store = ConsumeQueueStore.load(disk or FakeDisk(), DATA_DIR, file_size)
    store.recover(last_exit_ok=last_exit_ok)
    return store


def put(
    store: ConsumeQueueStore,
    begin: int,
    end: int,
    *,
    topic: str = "t",
    queue_id: int = 0,
    base: int = 0,
    commit: bool = True,
) -> list[ConsumeQueue]:
    """Put the records of queue offsets [begin, end), the n-th at ``base`` + 100 * n."""
    for index in range(begin, end):
        store.put(topic, queue_id, index, base + index * SIZE, SIZE, index)
    return store.commit() if commit else []


def unit(index: int, *, base: int = 0) -> tuple[int, int, int]:
    """Return the unit of such a record."""
    return (base + index * SIZE, SIZE, index)


def all_units(queue: ConsumeQueue) -> dict[int, tuple[int, int, int]]:
    """Return every readable unit of a queue, by queue offset."""
    found: dict[int, tuple[int, int, int]] = {}
    offset = queue.min_offset
    while units := queue.units(offset, 1_000):
        for one in units:
            found[offset] = (one.physic_offset, one.size, one.tags_code)
            offset += 1
    assert offset == queue.max_offset
    return found


def flush(store: ConsumeQueueStore, *, least_pages: int = 0) -> list[str]:
    """Flush at once, as the flush service does; return the synced paths."""
    paths = []
    while files := store.dirty_files(least_pages):
        for file in files:
            file.sync()
            paths.append(file.path)
        store.mark_flushed(files)
    dirs = store.dirty_dirs()
    for path in dirs:
        store._files.disk.sync_dir(path)
    store.mark_dirs_flushed(dirs)
    return paths
