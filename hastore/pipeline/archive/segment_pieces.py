"""Split a range of a log into blocks of records and gaps between them.

| record | record | ?????? | record | BLANK     |         block, gap, block, gap
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hastore.columnar.record_reader import RecordReader
from hastore.store.record.record_check import MEASURED_KINDS, RecordKind
from hastore.store.tools.log_finding import SetAside, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.columnar.log_range import LogRange
    from hastore.columnar.record_block import RecordBlock
    from hastore.env.interface import Disk
    from hastore.store.queue.confirmed_records import ConfirmedRecords
    from hastore.store.tools.log_directory import LogDirectory


class Gap(NamedTuple):
    """Bytes ``[start_offset, end_offset)`` without a record: filler, damage, or not written yet."""

    start_offset: int
    end_offset: int
    faults: int  # damaged places in it
    set_aside: SetAside = SetAside()  # what they hide


def pieces(
    disk: Disk, log: LogDirectory, log_range: LogRange, confirmed: ConfirmedRecords
) -> Iterator[RecordBlock | Gap]:
    """Yield the blocks and gaps of a range, in order.  Raises DiskError.

    Checksums are not checked: a record is any whose lengths agree.  ``confirmed`` is one object for
    all ranges of a log, because it remembers what it has read of the consume queues.
    """
    base = log_range.file_offset
    at, end = log_range.start_offset, log_range.end_offset
    with RecordReader(disk, log_range.path, log_range.file_size) as reader:
        while at < end:
            block = reader.read_block(at - base, at, end)
            if block.end:
                yield block
                at += block.end
            else:
                gap = _gap(disk, log, log_range, at, confirmed)
                yield gap
                at = gap.end_offset


def _gap(
    disk: Disk, log: LogDirectory, log_range: LogRange, at: int, confirmed: ConfirmedRecords
) -> Gap:
    file_end = log_range.file_offset + log_range.file_size
    end = min(log_range.end_offset, file_end)
    faults, set_aside = 0, SetAside()
    walker = LogWalker(
        disk, log, from_offset=at, at_record=True, check_crc=False, confirmed=confirmed
    )
    for offset, check in walker.walk():
        if offset >= end:
            break
        if check.kind in MEASURED_KINDS:  # which is enough for a block
            return Gap(at, offset, faults, set_aside)
        if check.kind is not RecordKind.BLANK:
            faults += 1
            damage = find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)
            set_aside = set_aside.with_finding(damage)
    return Gap(at, end, faults, set_aside)
