"""Opens commit logs on a fake disk, and appends to them as a node would."""

from hastore.config import StoreConfig
from hastore.message import Message
from hastore.status import AppendMessageStatus
from hastore.store.commit_log import CommitLog
from tests.support.env.fake_env import fake_env

DATA_DIR = "/d"
STORE_HOST = ("127.0.0.1", 10_911)
FILE_SIZE = 4096


def open_log(env=None, *, master=True, store_host=STORE_HOST, **config):
    """Open ``/d``, by default with files of 4 KiB."""
    config.setdefault("mapped_file_size", FILE_SIZE)
    return CommitLog.open(
        env or fake_env(),
        StoreConfig(data_dir=DATA_DIR, **config),
        store_host=store_host,
        needs_queue_offsets=master,
    )


def make_file(log):
    """Create the next file at once, as AllocateMappedFileService does."""
    queue = log.mapped_file_queue
    offset = queue.wanted_file_offset()
    if offset is not None:
        queue.offer(queue.create_file(offset))


def append(log, message=None, **fields):
    """Append a message (or a list of them); create the next file if it is needed."""
    if message is None:
        message = Message(fields.pop("topic", "orders"), fields.pop("body", b"body"), **fields)
    call = log.append_batch if isinstance(message, list) else log.append_message
    result = call(message)
    if result.status is AppendMessageStatus.END_OF_FILE:
        make_file(log)
        result = call(message)
    return result


def append_data(log, physic_offset, data):
    """Append a slave's bytes; create the next file if it is needed."""
    if not log.append_data(physic_offset, memoryview(data)):
        make_file(log)
        assert log.append_data(physic_offset, memoryview(data))


def flush(log):
    """Flush at once, as the flush services do."""
    targets = log.flush_targets()
    for mapped_file, _ in targets:
        mapped_file.disk_file.sync()
    log.mark_flushed(targets)


def close(log):
    """Flush and close the log, as a clean stop does."""
    flush(log)
    log.close(clean=True)


def all_bytes(log):
    """Return all bytes from the log's start to its end."""
    data = b""
    while log.min_offset + len(data) < log.max_offset:
        data += log.read(log.min_offset + len(data), log.file_size)
    return data
