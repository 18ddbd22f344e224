"""Consume queues on a fake disk, and the units that a log would dispatch into them."""

from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from tests.support.env.fake_disk import FakeDisk

DATA_DIR = "/d"
ROOT = "/d/consumequeue"
FILE_SIZE = 200  # 10 units
SIZE = 100  # of each record


def open_queues(disk=None, *, file_size=FILE_SIZE, last_exit_ok=False):
    """Load and recover the queues of ``/d``."""
    store = ConsumeQueueStore.load(disk or FakeDisk(), DATA_DIR, file_size)
    store.recover(last_exit_ok=last_exit_ok)
    return store


def put(store, begin, end, *, topic="t", queue_id=0, base=0, commit=True):
    """Put the records of queue offsets [begin, end), the n-th at ``base`` + 100 * n."""
    for index in range(begin, end):
        store.put(topic, queue_id, index, base + index * SIZE, SIZE, index)
    return store.commit() if commit else []


def unit(index, *, base=0):
    """Return the unit of such a record."""
    return (base + index * SIZE, SIZE, index)


def all_units(queue):
    """Return every readable unit of a queue, by queue offset."""
    found, offset = {}, queue.min_offset
    while units := queue.units(offset, 1_000):
        for one in units:
            found[offset] = tuple(one)
            offset += 1
    assert offset == queue.max_offset
    return found


def flush(store, *, least_pages=0):
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
