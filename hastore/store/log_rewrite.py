"""Writing bytes of an open log in place: those of a master, where a member's log has others.

::

    | record | filler filler | record |      becomes      | record | lost message | record |
             └ range ────────┘                                     └ its unit, where it was blank

Offsets after the range do not change, so appends, flushes and readers of other records go on beside
it.  ``rewrite`` returns once the bytes are on the disk.  Everything here blocks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.record.derived_record import derive
from hastore.store.record.record_check import RecordKind
from hastore.store.recovery.tail_scan import check_at, scan_rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.log.mapped_file import MappedFile
    from hastore.store.record.delay_levels import DelayLevels
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.recovery.trim import Range

# How far before a range the record that it begins in may begin: RocketMQ's largest by far.
RECORD_SIZE_MAX: Final = 8 * 2**20


class WrittenRecord(NamedTuple):
    """A whole message of a range that was rewritten, as consume queues and index need it."""

    topic: str
    queue_id: int
    queue_offset: int
    physic_offset: int
    size: int
    tags_code: int
    is_in_queue: bool
    keys: tuple[str, ...]
    store_timestamp_ms: int


def rewrite(disk: Disk, mapped_file: MappedFile, physic_offset: int, data: bytes) -> None:
    """Write bytes of one file in place, and force them to the disk.

    A file without a map may be open for reading only.  Raises DiskError, FlushFailedError.
    """
    position = physic_offset - mapped_file.file_from_offset
    assert 0 <= position <= mapped_file.file_size - len(data), "of one file"
    with contextlib.ExitStack() as stack:
        stack.enter_context(mapped_file.held())
        disk_file = mapped_file.disk_file
        if not isinstance(mapped_file.view, memoryview):
            disk_file = disk.open_file(mapped_file.path, writable=True)
            stack.callback(disk_file.close)
        disk_file.pwrite(data, position)
        disk_file.sync()


def written_records(
    disk: Disk, data_dir: str, file_size: int, part: Range, delay_levels: DelayLevels
) -> list[WrittenRecord]:
    """Return the whole messages that overlap a range of one file, in order.  Raises DiskError."""
    base = part.start - part.start % file_size
    path = f"{data_dir}/{COMMIT_LOG_DIR}/{file_name(base)}"
    with contextlib.closing(disk.open_file(path, writable=False)) as disk_file:
        return [
            _written(check, offset, delay_levels)
            for offset, check in _intact_records(disk_file, base, part)
        ]


def _intact_records(
    disk_file: DiskFile, base: int, part: Range
) -> Iterator[tuple[int, RecordCheck]]:
    """Yield the intact messages that overlap a range, and where each begins."""
    position: int | None = max(part.start - base - RECORD_SIZE_MAX, 0)
    assert position is not None
    if position:
        position = scan_rest(disk_file, base, position).record
    while position is not None and base + position < part.stop:
        check = check_at(disk_file, position, base, check_crc=True)
        if check.kind is RecordKind.MESSAGE:
            if base + position + check.size > part.start:
                yield base + position, check
            position += check.size
        elif check.kind is RecordKind.BLANK:
            return
        else:
            position = scan_rest(disk_file, base, position + 1).record


def _written(check: RecordCheck, physic_offset: int, delay_levels: DelayLevels) -> WrittenRecord:
    derived = derive(
        check.topic.decode(errors="surrogateescape"),
        sys_flag=check.sys_flag,
        store_ms=check.store_timestamp_ms,
        properties=check.properties,
        delay_levels=delay_levels,
    )
    return WrittenRecord(
        topic=derived.topic,
        queue_id=check.queue_id,
        queue_offset=check.queue_offset,
        physic_offset=physic_offset,
        size=check.size,
        tags_code=derived.tags_code,
        is_in_queue=derived.is_in_queue,
        keys=derived.keys,
        store_timestamp_ms=check.store_timestamp_ms,
    )
