"""Writing bytes of an open log in place: those of a master, where a member's log has others.

::

    | record | filler filler | record |      becomes      | record | lost message | record |
             └ range ────────┘                                     └ its unit, where it was blank

Offsets after the range do not change, so appends, flushes and readers of other records go on beside
it.  ``rewrite`` returns once the bytes are on the disk.  Everything here blocks, but for
``first_damage``, which says whether the master's records are intact where the two logs differ.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.derived_record import derive
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    HEAD_READ_SIZE,
    MESSAGE_MAGICS,
    RECORD_SIZE_MIN,
    SIZE_AND_MAGIC,
)
from hastore.store.record.record_check import (
    INTACT_KINDS,
    MEASURED_KINDS,
    RecordKind,
    check_record,
    claims_fit,
)
from hastore.store.record.record_search import RecordSearch
from hastore.store.recovery.tail_scan import check_at

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


class BadRecord(NamedTuple):
    """What is at an offset of a log where a record should be."""

    physic_offset: int
    kind: RecordKind


class MoreNeeded(NamedTuple):
    """The last record of some bytes goes on after them, up to this offset at least."""

    stop: int


# -- before anything is written ------------------------------------------------------------------


def record_before(disk: Disk, data_dir: str, file_size: int, physic_offset: int) -> int:
    """Return where a record begins from which on the byte at an offset can be reached.

    It is the record that the byte is part of, or an earlier one that is damaged: what lies between
    may be the rest of a record that was half written.  Raises DiskError.
    """
    found = None
    confirmed = ConfirmedRecords(disk, data_dir)
    with _opened(disk, data_dir, file_size, physic_offset) as (disk_file, base):
        target = physic_offset - base
        for position, check in _places(confirmed, disk_file, base, target, target):
            found = base + position
            if check.kind not in INTACT_KINDS:
                break
    assert found is not None, "a file begins with a record"
    return found


def bad_record_at(
    disk: Disk, data_dir: str, file_size: int, physic_offset: int
) -> BadRecord | None:
    """Return what is wrong with the record at an offset; None if it is intact.

    None, too, if no record begins there.  Raises DiskError.
    """
    confirmed = ConfirmedRecords(disk, data_dir)
    with _opened(disk, data_dir, file_size, physic_offset) as (disk_file, base):
        target = physic_offset - base
        for position, check in _places(confirmed, disk_file, base, target, target):
            if base + position == physic_offset and check.kind not in INTACT_KINDS:
                return BadRecord(physic_offset, check.kind)
    return None


@contextlib.contextmanager
def _opened(
    disk: Disk, data_dir: str, file_size: int, physic_offset: int
) -> Iterator[tuple[DiskFile, int]]:
    """Open the file that has an offset, for a block; it begins at the second value."""
    base = physic_offset - physic_offset % file_size
    path = f"{data_dir}/{COMMIT_LOG_DIR}/{file_name(base)}"
    with contextlib.closing(disk.open_file(path, writable=False)) as disk_file:
        yield disk_file, base


def _places(
    confirmed: ConfirmedRecords,
    disk_file: DiskFile,
    base: int,
    start: int,
    target: int,
    *,
    sure: int | None = None,
) -> Iterator[tuple[int, RecordCheck]]:
    """Yield the records of a file from before ``start`` up to ``target``, and damage between them.

    It begins with a record that its consume queue names, or with the file, and passes over what
    only looks like a record (``queue.confirmed_records``): it may have been planted in a body.
    With ``sure``, where an earlier walk over the file ended, it begins there.
    """

    def read(physic_offset: int, size: int) -> bytes:
        return disk_file.pread(size, physic_offset - base)

    # Our units may still name records that lie inside of a half-written one.
    begin = base + max(start - RECORD_SIZE_MAX, 0)
    position = (confirmed.last_before(begin, base, read) if sure is None else sure) - base
    while position <= target:
        check = check_at(disk_file, position, base, check_crc=True)
        yield position, check
        if check.kind in MEASURED_KINDS:
            position += check.size
            continue
        if check.kind is RecordKind.BLANK:
            return
        found = confirmed.resume_after(base + position, base + disk_file.size, read)
        if found is None:
            return
        position = found - base


def first_damage(
    own: bytes, masters: bytes, begin: int, stop: int, file_end: int
) -> BadRecord | MoreNeeded | None:
    """Return the first record of a master that is damaged where the two logs differ.

    Both logs' bytes begin with a record at ``begin``, and reach ``stop``, all in one file.  None if
    the master's records up to ``stop`` are intact, or the same bytes here.
    """
    position, end = 0, stop - begin
    search = RecordSearch(
        lambda at, size: masters[at : at + size], begin, 0, min(len(masters), file_end - begin)
    )
    heads = search.heads(masters, 0)
    while position < end:
        available = file_end - begin - position
        if available < BLANK_SIZE_MIN:
            return None  # no room for any record
        needed = _needed(masters, position, available)
        if needed > len(masters):
            return MoreNeeded(begin + needed)
        rest = memoryview(masters)[position:]
        check = check_record(rest, 0, available, begin + position, check_crc=False)
        if check.kind is RecordKind.BLANK:
            return None
        # The search computes no checksum twice, however many records claim the same bytes.
        if check.kind is RecordKind.MESSAGE and search.check(position):
            position += check.size
            continue
        following = next((at for at in heads if at > position and search.check(at)), end)
        following = min(following, end)
        if own[position:following] != masters[position:following]:
            kind = check_record(rest, 0, available, begin + position).kind
            return BadRecord(begin + position, kind)
        position = following
    return None


def _needed(data: bytes, position: int, available: int) -> int:
    """Return up to where the record at a position must be known, to say whether it is intact."""
    if len(data) - position < SIZE_AND_MAGIC.size:
        return position + SIZE_AND_MAGIC.size
    size: int
    size, magic = SIZE_AND_MAGIC.unpack_from(data, position)
    if magic not in MESSAGE_MAGICS or not RECORD_SIZE_MIN <= size <= available:
        return position
    if size <= HEAD_READ_SIZE:
        return position + size
    if len(data) - position < HEAD_READ_SIZE:
        return position + HEAD_READ_SIZE
    return position + (size if claims_fit(data[position : position + HEAD_READ_SIZE]) else 0)


# -- writing -------------------------------------------------------------------------------------


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
    disk: Disk,
    data_dir: str,
    file_size: int,
    part: Range,
    delay_levels: DelayLevels,
    *,
    confirmed: ConfirmedRecords | None = None,
    sure: int | None = None,
) -> list[WrittenRecord]:
    """Return the whole messages that overlap a range of one file, in order.  Raises DiskError.

    Who reads range after range passes the same ``confirmed``, and as ``sure`` the end of the last
    message so far: what begins before that is left out.
    """
    confirmed = confirmed or ConfirmedRecords(disk, data_dir)
    with _opened(disk, data_dir, file_size, part.start) as (disk_file, base):
        if sure is not None and not base <= sure < base + file_size:
            sure = None
        return [
            _written(check, base + position, delay_levels)
            for position, check in _places(
                confirmed, disk_file, base, part.start - base, part.stop - 1 - base, sure=sure
            )
            if check.kind is RecordKind.MESSAGE and base + position + check.size > part.start
        ]


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
