"""Opens commit logs on a fake disk, and appends to them as a node would."""

from typing import Any

from hastore.config import StoreConfig
from hastore.env.interface import Env
from hastore.message import Message
from hastore.status import AppendMessageStatus
from hastore.store.commit_log import CommitLog
from hastore.store.record.append_message_result import AppendMessageResult
from tests.support.env.fake_env import fake_env

DATA_DIR = "/d"
STORE_HOST = ("127.0.0.1", 10_911)
FILE_SIZE = 4096


def open_log(
    env: Env | None = None,
    *,
    master: bool = True,
    store_host: tuple[str, int] = STORE_HOST,
    **config: Any,
) -> CommitLog:
    """Open ``/d``, by default with files of 4 KiB."""
    config.setdefault("mapped_file_size", FILE_SIZE)
    return CommitLog.open(
        env or fake_env(),
        StoreConfig(data_dir=DATA_DIR, **config),
        store_host=store_host,
        needs_queue_offsets=master,
    )


def make_file(log: CommitLog) -> None:
    """Create the next file at once, as AllocateMappedFileService does."""
    queue = log.mapped_file_queue
    offset = queue.wanted_file_offset()
    if offset is not None:
        queue.offer(queue.create_file(offset))


def append(
    log: CommitLog, message: Message | list[Message] | None = None, **fields: Any
) -> AppendMessageResult:
    """Append a message (or a list of them); create the next file if it is needed."""
    if message is None:
        message = Message(fields.pop("topic", "orders"), fields.pop("body", b"body"), **fields)
    result = _append_once(log, message)
    if result.status is AppendMessageStatus.END_OF_FILE:
        make_file(log)
        result = _append_once(log, message)
    return result


def _append_once(log: CommitLog, message: Message | list[Message]) -> AppendMessageResult:
    if isinstance(message, list):
        return log.append_batch(message)
    return log.append_message(message)


def append_data(log: CommitLog, physic_offset: int, data: bytes) -> None:
    """Append a slave's bytes; create the next file if it is needed."""
    if not log.append_data(physic_offset, memoryview(data)):
        make_file(log)
        assert log.append_data(physic_offset, memoryview(data))


def flush(log: CommitLog) -> None:
    """Flush at once, as the flush services do."""
    targets = log.flush_targets()
    for mapped_file, _ in targets:
        mapped_file.disk_file.sync()
    log.mark_flushed(targets)


def close(log: CommitLog) -> None:
    """Flush and close the log, as a clean stop does."""
    flush(log)
    log.close(clean=True)


def all_bytes(log: CommitLog) -> bytes:
    """Return all bytes from the log's start to its end."""
    data = b""
    while log.min_offset + len(data) < log.max_offset:
        data += log.read(log.min_offset + len(data), log.file_size)
    return data
