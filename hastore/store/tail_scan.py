"""Finds where a log ends: walks the records of a file, and looks at what lies behind the last one.

::

    record | record | … | record | torn bytes | zeros …        the end is behind the last record
    record | record | … | BLANK  filler ─────────────┤         the file's end

A log may end in the middle of a record: a slave's does, where a frame was cut, and anybody's after
a kill.  Then the rest of that record is zeros, which no checksum covers if they are its texts
alone; ``is_cut_off`` sees them.

A walk reads big chunks with ``pread`` (never through a map: cold pages would stall every thread)
and goes from record to record.  Each must carry its own offset, so that a stale record from
another place is never taken for one of here.  Reading only; nothing is changed.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, final

import attrs
from isal import isal_zlib

from hastore.store.message_codec import (
    INNER_BATCH_FLAG,
    TRANSACTION_PREPARED_TYPE,
    inner_batch_count,
)
from hastore.store.record_check import (
    BLANK_SIZE_MIN,
    CRC_MASK,
    MESSAGE_MAGIC_CODE,
    MESSAGE_MAGIC_CODE_V2,
    MESSAGE_MAGICS,
    PROP_CRC_SIZE,
    RECORD_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    RecordCheck,
    RecordKind,
    check_record,
    claims_fit,
    prop_crc_property,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import DiskFile
    from hastore.store.topic_queue_table import TopicQueueTable

CHUNK_SIZE: Final = 1024 * 1024
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_MAGIC_SIZE: Final = 4
_ZEROS: Final = bytes(CHUNK_SIZE + _MAGIC_SIZE - 1)
_MAGIC_POSITION: Final = 4  # in a record
_OFFSET_POSITION: Final = 28

_FIELDS: Final = struct.Struct(">iiiiiqqi")  # totalSize … sysFlag
_HEAD_SIZE: Final = 128  # up to the body's length and more, whatever the hosts
_SIZE_AND_MAGIC: Final = struct.Struct(">ii")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
# Where the body begins, by sysFlag bits 4 and 5 (an IPv6 host is 12 bytes longer).
_BODY_POSITIONS: Final = (88, 100, 100, 112)

_crc32 = isal_zlib.crc32


@attrs.frozen(kw_only=True)
class WalkEnd:
    """Where the walk of a file stopped, and what stands there; BLANK: at the file's end."""

    position: int
    check: RecordCheck


@final
@attrs.define(eq=False)
class FileWalk:
    """Walks files in order; counts records and notes queue offsets where there is a ``table``."""

    table: TopicQueueTable | None
    records: int = 0
    store_timestamp_ms: int = 0  # of the last record

    def walk(self, disk_file: DiskFile, file_from_offset: int, *, check_crc: bool) -> WalkEnd:
        """Walk one file from its start to its BLANK, or to the first that is no sound record."""
        position = 0
        last_record = None
        while True:
            data = disk_file.pread(CHUNK_SIZE, position)
            stopped, last = self._walk_chunk(data, position, file_from_offset, check_crc=check_crc)
            if last is not None:
                position, last_record = stopped, last
                continue
            check = check_at(disk_file, position, file_from_offset, check_crc=check_crc)
            if check.kind is not RecordKind.MESSAGE:
                break
            self._note(check)
            last_record = position
            position += check.size
        if last_record is not None:
            last_check = check_at(disk_file, last_record, file_from_offset, check_crc=False)
            if check.kind is RecordKind.EMPTY and is_cut_off(last_check):
                position, check = (
                    last_record,
                    last_check._replace(kind=RecordKind.TORN, detail="its last bytes are missing"),
                )
                self._take_back(check)
            else:
                self.store_timestamp_ms = max(
                    self.store_timestamp_ms, last_check.store_timestamp_ms
                )
        if check.kind is RecordKind.BLANK:
            position = disk_file.size
        return WalkEnd(position=position, check=check)

    def _walk_chunk(
        self, data: bytes, base: int, file_from_offset: int, *, check_crc: bool
    ) -> tuple[int, int | None]:
        """Walk the sound records that lie whole in ``data``, which begins at ``base``.

        Gives the position behind them and that of the last.  Whatever is not plainly sound is left
        to ``check_at``: this loop runs once a record of the log.
        """
        available = len(data)
        physic_base = file_from_offset + base
        table = self.table
        unpack_fields = _FIELDS.unpack_from
        unpack_int = _INT.unpack_from
        view = memoryview(data)
        at = last = records = 0
        while at + RECORD_SIZE_MIN <= available:
            size, magic, _, queue_id, _, queue_offset, physic_offset, sys_flag = unpack_fields(
                data, at
            )
            end = at + size
            body = at + _BODY_POSITIONS[sys_flag >> 4 & 3]
            if physic_offset != physic_base + at or end > available or body + 3 > end:
                break
            topic = body + unpack_int(data, body - 4)[0]
            if not body <= topic <= end - 4:
                break
            if magic == MESSAGE_MAGIC_CODE and data[topic] <= TOPIC_SIZE_MAX_V1:
                text = topic + 1 + data[topic]
                topic += 1
            elif magic == MESSAGE_MAGIC_CODE_V2:
                text = topic + 2 + (data[topic] << 8 | data[topic + 1])
                topic += 2
            else:
                break
            if text + 2 > end or text + 2 + (data[text] << 8 | data[text + 1]) != end:
                break
            if check_crc and not _is_crc_right(data, view, at, text + 2, end):
                check = check_record(view, at, available - at, physic_offset)
                if check.kind is not RecordKind.MESSAGE:
                    break
            if table is not None:
                if sys_flag & (TRANSACTION_PREPARED_TYPE | INNER_BATCH_FLAG):
                    self._note_special(
                        check_record(view, at, available - at, physic_offset, check_crc=False)
                    )
                else:
                    table.note(data[topic:text], queue_id, queue_offset + 1)
            last = at
            at = end
            records += 1
        self.records += records
        return base + at, base + last if records else None

    def _take_back(self, check: RecordCheck) -> None:
        """Forget the last record again."""
        self.records -= 1
        if self.table is not None and not check.sys_flag & TRANSACTION_PREPARED_TYPE:
            self.table.forget(check.topic, check.queue_id, check.queue_offset)

    def _note(self, check: RecordCheck) -> None:
        self.records += 1
        if self.table is not None:
            self._note_special(check)

    def _note_special(self, check: RecordCheck) -> None:
        """Note any record's queue offset: PREPARED and ROLLBACK have none, a batch has several."""
        assert self.table is not None
        if check.sys_flag & TRANSACTION_PREPARED_TYPE:  # ROLLBACK has this bit too
            return
        count = 1
        if check.sys_flag & INNER_BATCH_FLAG:
            count = inner_batch_count(check.properties)
        self.table.note(check.topic, check.queue_id, check.queue_offset + count)


def is_cut_off(check: RecordCheck) -> bool:
    """Whether a record with nothing behind it lacks its last bytes.

    Neither a topic nor properties end in a byte 0, so a 0 there was never written.  (Where there
    are no properties their length, two bytes 0, is the end, and the topic tells.)
    """
    return (check.properties or check.topic)[-1:] == b"\0"


def _is_crc_right(data: bytes, view: memoryview, at: int, text: int, end: int) -> bool:
    """Whether the checksums of a record whose lengths agree are plainly right.

    ``text`` is where its properties begin.  What is not plainly right is for ``check_record``.
    """
    body = at + _BODY_POSITIONS[data[at + 39] >> 4 & 3]
    crc, body_size = _INT.unpack_from(data, at + 8)[0], _INT.unpack_from(data, body - 4)[0]
    if _crc32(view[body : body + body_size]) & CRC_MASK != crc:
        return False
    crc_start = end - PROP_CRC_SIZE
    if crc_start < text:
        return True
    stored = data[crc_start:end]
    if stored[:4] == b"__CR" or stored[4:9] == b"C32#\x01":
        return stored == prop_crc_property(view[at:crc_start])
    return True


def check_at(
    disk_file: DiskFile, position: int, file_from_offset: int, *, check_crc: bool
) -> RecordCheck:
    """Check what stands at a position of a file, reading no more than a real record's bytes."""
    available = disk_file.size - position
    if available < BLANK_SIZE_MIN:  # no room for a BLANK: nothing can follow
        return RecordCheck(RecordKind.BLANK, available)
    head = disk_file.pread(_HEAD_SIZE, position)
    size, magic = _SIZE_AND_MAGIC.unpack_from(head)
    if magic not in MESSAGE_MAGICS or not _HEAD_SIZE <= size <= available:
        # A small record is in the head; of anything else the head is all that counts.
        return check_record(head, 0, available, file_from_offset + position, check_crc=check_crc)
    if not claims_fit(head):
        return RecordCheck(RecordKind.BAD_LENGTHS, 0, f"its lengths do not fit size {size}")
    data = disk_file.pread(size, position)
    return check_record(
        memoryview(data), 0, available, file_from_offset + position, check_crc=check_crc
    )


@attrs.frozen(kw_only=True)
class Behind:
    """What lies behind the last sound record: the next sound one, and the end of bytes not 0."""

    record: int | None
    nonzero_end: int


def look_behind(disk_file: DiskFile, file_from_offset: int, position: int) -> Behind:
    """Look for a sound record at or behind ``position``, and for the last byte that is not 0.

    Sound means: whole, its checksums right, and it says that it stands where it stands.  Positions
    are the file's.
    """
    nonzero_end = position
    for start, data in nonzero_chunks(disk_file, position):
        nonzero_end = start + len(data.rstrip(b"\0"))
        for match in _MAGIC.finditer(data):
            record = start + match.start() - _MAGIC_POSITION
            stored = disk_file.pread(_LONG.size, max(record, 0) + _OFFSET_POSITION)
            if record < position or stored != _LONG.pack(file_from_offset + record):
                continue
            check = check_at(disk_file, record, file_from_offset, check_crc=True)
            if check.kind is RecordKind.MESSAGE and not is_cut_off(check):
                return Behind(record=record, nonzero_end=nonzero_end)
    return Behind(record=None, nonzero_end=nonzero_end)


def nonzero_chunks(disk_file: DiskFile, position: int) -> Iterator[tuple[int, bytes]]:
    """Give each chunk from ``position`` on that has bytes other than 0, and where it begins.

    A chunk also holds the last bytes of the one before, so that a magic number is whole in one.
    """
    size = disk_file.size
    overlap = _MAGIC_SIZE - 1
    begin = position
    while (position := disk_file.next_data(position)) < size:
        start = max(position - overlap, begin)
        # To a multiple of CHUNK_SIZE: a page that was read half stays, and would count as data.
        end = min(position - position % CHUNK_SIZE + CHUNK_SIZE, size)
        data = disk_file.pread(end - start, start)
        assert len(data) > position - start, f"{disk_file.path} is shorter than {size}"
        if data != _ZEROS[: len(data)]:
            yield start, data
        position = start + len(data)
