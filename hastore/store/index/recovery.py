"""Finds which part of an index can be trusted after a stop, and cuts the rest off.

RocketMQ deletes a file that ends later than the checkpoint's ``indexMsgTimestamp`` and indexes
again only what its recovery happens to read: older keys of that file are lost for good.  Here
nothing is lost: entries that may not be on disk are cut off, and ``redispatch_from`` names the
record from which all must be indexed again.  The first case that applies decides what is cut:

    a mark (hastore had it open)   by the newest one: entries from its count on, and later files
    a clean stop, no mark          nothing
    an unclean stop, no mark       RocketMQ had it open: a whole file that ends later than the
                                   checkpoint says; everything after a file that is not full
    an impossible header           that whole file, and later ones

A slave of RocketMQ that has cut its log leaves its index as it was.  Stale units in the consume
queues show that; then the file with keys of that part of the log is cut whole, and later ones.

To cut entries off, each slot that points at one must get the newest entry before them.  The first
cut entry of its chain has that as ``previous``.  If one of them did not reach the disk whole, the
hashes of all remaining entries are read instead (20 million: some seconds).

The cut begins with a synced mark, so that the next start repeats it if the process is killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hastore.env.interface import SECTOR_SIZE
from hastore.errors import DiskFullError
from hastore.store.index.file import IndexFile
from hastore.store.index.layout import (
    ENTRY,
    ENTRY_SIZE,
    FILE_NAME_DIGITS,
    IndexHeader,
    IndexMark,
)
from hastore.store.index.slots import read_slots, swapped
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.env.interface import Disk
    from hastore.store.index.layout import IndexLayout

_ENTRIES_A_READ: Final = 50_000

_log = logger("store")


class IndexCut(NamedTuple):
    """Where the trusted part ends: at entry ``index_count`` of a file, after all earlier files.

    It holds every key up to the record at ``seen_offset``.
    """

    file: int
    index_count: int
    seen_offset: int


def open_index_files(
    disk: Disk, path: str, layout: IndexLayout, *, last_exit_ok: bool = True
) -> list[IndexFile]:
    """Open a directory's index files, oldest first; other entries are logged and ignored.

    After an unclean stop they are read from the disk, because a failed sync may have left bytes in
    the page cache only.  Raises DiskError.
    """
    files = []
    for entry in disk.list_dir(path):
        name = entry.name
        if (
            entry.is_dir
            or len(name) != FILE_NAME_DIGITS
            or not (name.isascii() and name.isdecimal())
        ):
            _log.warning("index_stray_file", path=f"{path}/{name}", next="ignored")
        elif entry.size == layout.file_size:
            files.append(IndexFile.open(disk, f"{path}/{name}", layout, forgets=not last_exit_ok))
        elif not entry.size:
            disk.remove(f"{path}/{name}")  # its creation was interrupted
        else:
            _log.warning(
                "index_file_of_another_size",
                path=f"{path}/{name}",
                size=entry.size,
                wanted=layout.file_size,
                next="not read; max_hash_slot_num and max_index_num must be as they were",
            )
    if files and not last_exit_ok:
        files[-1].is_new = True  # its name may not be on disk
    return files


def find_cut(
    files: Sequence[IndexFile],
    flushed_timestamp_ms: int,
    *,
    last_exit_ok: bool,
    stale_from: int | None = None,
) -> IndexCut | None:
    """Return where the trusted part ends; None if all of it is trusted.

    From ``stale_from`` on, the index may have keys of records that were cut from the log.
    """
    cut = _find_cut(files, flushed_timestamp_ms, last_exit_ok=last_exit_ok)
    for number, file in enumerate(files if stale_from is not None else ()):
        if cut is not None and (cut.file, cut.index_count) <= (number, 1):
            break
        if stale_from is not None and file.end_physic_offset >= stale_from:
            return IndexCut(number, 1, file.begin_physic_offset)
    return cut


def _find_cut(
    files: Sequence[IndexFile], flushed_timestamp_ms: int, *, last_exit_ok: bool
) -> IndexCut | None:
    for number in range(len(files) - 1, -1, -1):
        file = files[number]
        mark = file.mark
        if (
            mark is not None
            and mark.index_count <= file.index_count
            and file.layout.holds(file.header)
        ):
            return IndexCut(number, mark.index_count, mark.seen_offset)
    for number, file in enumerate(files):
        before = files[number - 1].end_physic_offset if number else 0
        if not file.layout.holds(file.header):
            _log.warning("index_header_damaged", path=file.path, next="indexed again")
            return IndexCut(number, 1, before)
        if not last_exit_ok and file.end_timestamp_ms > flushed_timestamp_ms:
            return IndexCut(number, 1, file.begin_physic_offset)
        if not last_exit_ok and (not file.is_full or file is files[-1]):
            return IndexCut(number, file.index_count, file.end_physic_offset)
    return None


def find_offset(files: Sequence[IndexFile], end_offset: int) -> IndexCut | None:
    """Return where records from an offset on begin; None if the index has none of them."""
    number = len(files) - 1
    while number > 0 and not _begins_before(files[number], end_offset):
        number -= 1
    if number < 0:
        return None
    file = files[number]
    low, high = 1, file.index_count
    while low < high:
        middle = (low + high) // 2
        if file.read_entry(middle).physic_offset < end_offset:
            low = middle + 1
        else:
            high = middle
    if low == file.index_count and all(later.index_count == 1 for later in files[number + 1 :]):
        return None
    return IndexCut(number, low, file.read_entry(low - 1).physic_offset if low > 1 else end_offset)


def _begins_before(file: IndexFile, end_offset: int) -> bool:
    return file.index_count > 1 and file.read_entry(1).physic_offset < end_offset


def cut_back(disk: Disk, files: list[IndexFile], cut: IndexCut) -> IndexCut:
    """Cut the index and return where; blocks.  After a DiskError the next start cuts again.

    If the disk is full, the whole file is removed instead, which needs no room; what is cut is
    indexed again.
    """
    try:
        _cut_file(disk, files, cut)
    except DiskFullError as error:
        while len(files) > cut.file:
            _remove_last(disk, files)
        _log.warning("index_file_removed", reason=str(error), next="indexed again")
        if not files:
            return IndexCut(0, 1, 0)
        return IndexCut(len(files) - 1, files[-1].index_count, files[-1].end_physic_offset)
    return cut


def _cut_file(disk: Disk, files: list[IndexFile], cut: IndexCut) -> None:
    file = files[cut.file]
    mark = IndexMark(cut.index_count, cut.seen_offset)
    if file.mark != mark:
        file.write_mark(mark)
    while len(files) > cut.file + 1:
        _remove_last(disk, files)
    header, cut_count = file.header, file.index_count - cut.index_count
    slots = file.start_filling()
    if cut.index_count == 1:
        slots.clear()
        header = IndexFile.new(disk, "", file.layout, files[-2] if cut.file else None).header
    else:
        for slot, number in _restored_heads(file, cut.index_count).items():
            slots.set(slot, number)
        if cut_count:
            header = _header_at(file, cut.index_count)
    if cut_count:
        _log.warning(
            "index_cut", path=file.path, entries=cut_count, redispatch_from=cut.seen_offset
        )
    if header != file.header or 1 in slots.dirty:
        file.cut(header)
    else:
        file.clear_after(cut.index_count)


def _remove_last(disk: Disk, files: list[IndexFile]) -> None:
    files[-1].close()
    disk.remove(files[-1].path)
    files.pop()


def _header_at(file: IndexFile, index_count: int) -> IndexHeader:
    """Return the header that a file had with fewer entries; the end's milliseconds are lost."""
    last = file.read_entry(index_count - 1)
    end_ms = file.begin_timestamp_ms
    if index_count > 2:
        end_ms = min(end_ms + 1000 * last.time_diff_s + 999, file.end_timestamp_ms)
    return file.header._replace(
        end_timestamp_ms=end_ms, end_physic_offset=last.physic_offset, index_count=index_count
    )


def _restored_heads(file: IndexFile, index_count: int) -> dict[int, int]:
    """Return the slots that point at or after entry ``index_count``, with their earlier values."""
    slot_count, entry_count = file.layout
    heads: dict[int, int] = {}
    limit = index_count
    for start, numbers in read_slots(file.made_file(), slot_count):
        if max(numbers) < index_count and min(numbers) >= 0:
            continue
        for at, number in enumerate(numbers):
            if not 0 <= number < index_count:
                heads[start + at] = 0
                limit = max(limit, number + 1)
    unknown = set(heads)
    for slot, previous in _links_back(file, index_count, min(limit, entry_count)):
        if slot in unknown:
            unknown.discard(slot)
            heads[slot] = previous
    if unknown:
        for number, data in _read_entries(file, 1, index_count):
            for at, key_hash in enumerate(swapped(data)[::5]):
                if key_hash % slot_count in unknown:
                    heads[key_hash % slot_count] = number + at
    return heads


def _links_back(file: IndexFile, index_count: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield slot and previous entry of each later entry that points below ``index_count``."""
    slot_count = file.layout.slot_count
    for number, data in _read_entries(file, index_count, end):
        position = file.layout.entry_position(number)
        for at, (key_hash, physic_offset, _, previous) in enumerate(ENTRY.iter_unpack(data)):
            is_there = physic_offset > 0 and not _may_be_torn(data, at, position)
            if is_there and 0 <= previous < index_count:
                yield key_hash % slot_count, previous


def _may_be_torn(data: bytes, at: int, position: int) -> bool:
    """Whether an entry lies in two sectors, one of which may be missing on disk."""
    start = ENTRY_SIZE * at
    in_first = -(position + start) % SECTOR_SIZE
    if not 0 < in_first < ENTRY_SIZE:
        return False
    entry = data[start : start + ENTRY_SIZE]
    return not entry[:in_first].strip(b"\0") or not entry[in_first:].strip(b"\0")


def _read_entries(file: IndexFile, number: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Read entries in pieces: number of the first, bytes."""
    disk_file = file.made_file()
    while number < end:
        size = ENTRY_SIZE * min(_ENTRIES_A_READ, end - number)
        data = disk_file.pread(size, file.layout.entry_position(number))
        data = data.ljust(size, b"\0")
        yield number, data
        number += size // ENTRY_SIZE


def last_record(files: Sequence[IndexFile]) -> tuple[int, int]:
    """Return the offset of the newest entry's record and how many entries it has; (-1, 0) for none.

    A record's keys may lie in two files, or more where files are tiny.
    """
    offset, count = -1, 0
    for file in reversed(files):
        for number in range(file.index_count - 1, 0, -1):
            found = file.read_entry(number).physic_offset
            if offset not in (-1, found):
                return offset, count
            offset = found
            count += 1
    return offset, count
