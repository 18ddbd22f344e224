"""What RocketMQ's consume queues know of queue offsets whose records are deleted.

    consumequeue/TOPIC/QUEUE_ID/%020d   units of 20 bytes, the n-th of a queue at byte 20 * n
    physicalOffset 8 | size 4 | tagsCode 8

A log without its front no longer tells how far a queue had come that got no message since; its
consume queue does: the index of its last unit.  Reading only.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from hastore.store.mapped_file_queue import FILE_NAME_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.topic_queue_table import TopicQueueTable

CONSUME_QUEUE_DIR: Final = "consumequeue"
_UNIT: Final = struct.Struct(">qiq")
_CHUNK_SIZE: Final = 50_000 * _UNIT.size
_QUEUE_ID_DIGITS_MAX: Final = 9


def note_consume_queues(disk: Disk, data_dir: str, end_offset: int, table: TopicQueueTable) -> int:
    """Note where each queue goes on behind what lies before ``end_offset``; gives the queues."""
    count = 0
    for topic, queue_id, path in _queues(disk, f"{data_dir}/{CONSUME_QUEUE_DIR}"):
        next_offset = _next_offset(disk, path, end_offset)
        if next_offset is not None:
            table.note(topic.encode(errors="surrogateescape"), queue_id, next_offset)
            count += 1
    return count


def _queues(disk: Disk, path: str) -> Iterator[tuple[str, int, str]]:
    for topic in disk.list_dir(path):
        if not topic.is_dir:
            continue
        for queue in disk.list_dir(f"{path}/{topic.name}"):
            if queue.is_dir and _is_number(queue.name) and len(queue.name) <= _QUEUE_ID_DIGITS_MAX:
                yield topic.name, int(queue.name), f"{path}/{topic.name}/{queue.name}"


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _next_offset(disk: Disk, path: str, end_offset: int) -> int | None:
    """Give the index behind a queue's last unit; None where it has none."""
    for file in reversed(disk.list_dir(path)):
        if file.is_dir or len(file.name) != FILE_NAME_SIZE or not _is_number(file.name):
            continue
        disk_file = disk.open_file(f"{path}/{file.name}", writable=False)
        try:
            index = _last_unit(disk_file, end_offset)
        finally:
            disk_file.close()
        if index is not None:
            return int(file.name) // _UNIT.size + index + 1
    return None


def _last_unit(disk_file: DiskFile, end_offset: int) -> int | None:
    """Give the index, in its file, of the last unit of a record before ``end_offset``."""
    count = disk_file.size // _UNIT.size
    last_chunk = max(count * _UNIT.size - 1, 0) // _CHUNK_SIZE * _CHUNK_SIZE
    for start in range(last_chunk, -1, -_CHUNK_SIZE):
        written = disk_file.pread(_CHUNK_SIZE, start).rstrip(b"\0")  # a unit may end in zeros
        whole = written.ljust(-(-len(written) // _UNIT.size) * _UNIT.size, b"\0")
        for index in range(len(whole) // _UNIT.size - 1, -1, -1):
            physic_offset, size, _ = _UNIT.unpack_from(whole, index * _UNIT.size)
            if size > 0 and 0 <= physic_offset < end_offset:
                return start // _UNIT.size + index
    return None
