"""Index files as Arrow columns: a row for each entry, and one for each fault of a file.

Each entry must lead to the previous one of its slot, and each slot to its newest entry: then every
entry can be found.  A whole file is in memory at once (420 MB at most).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa

from hastore.store.index.layout import (
    ENTRY_FIELDS,
    ENTRY_SIZE,
    FILE_NAME_DIGITS,
    HEADER_SIZE,
    IndexHeader,
    IndexLayout,
    unpack_header,
    unpack_mark,
)
from hastore.store.index.service import INDEX_DIR
from hastore.store.index.slots import read_slots
from hastore.store.store_lock import ABORT_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hastore.env.interface import Disk, DiskFile

    Array = NDArray[Any]

ENTRIES: Final = pa.schema(
    [
        ("store", pa.string()),
        ("file", pa.string()),
        ("number", pa.int32()),
        ("key_hash", pa.int32()),
        ("physic_offset", pa.int64()),
        ("time_diff_s", pa.int32()),
        ("begin_ms", pa.int64()),
        ("fault", pa.string()),  # "severity kind: detail"; the entry's own values are null then
    ]
)
_ENTRY_TYPE: Final = np.dtype([(name, f">{code}") for name, code in ENTRY_FIELDS])
_BATCH_ROWS: Final = 50_000
_FAULTS_MAX: Final = 10_000  # of a file; a file with more is no index of this log


@attrs.frozen(kw_only=True)
class IndexFileName:
    """One file of a store's index."""

    store: str
    path: str
    name: str
    size: int
    is_open: bool  # its store was not closed cleanly


def find_index_files(disk: Disk, store: str, root: str) -> list[IndexFileName]:
    """List a store's index files of any size but 0.  Raises DiskError."""
    path = f"{root}/{INDEX_DIR}"
    if not disk.exists(path):
        return []
    is_open = disk.exists(f"{root}/{ABORT_FILE}")
    return [
        IndexFileName(
            store=store,
            path=f"{path}/{entry.name}",
            name=entry.name,
            size=entry.size,
            is_open=is_open,
        )
        for entry in disk.list_dir(path)
        if not entry.is_dir
        and len(entry.name) == FILE_NAME_DIGITS
        and entry.name.isascii()
        and entry.name.isdecimal()
        and entry.size
    ]


def read_entries(disk: Disk, file: IndexFileName, layout: IndexLayout) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a file of the layout's size, then its faults.  Raises DiskError."""
    with contextlib.closing(disk.open_file(file.path, writable=False)) as disk_file:
        header = unpack_header(disk_file.pread(HEADER_SIZE, 0))
        if not layout.holds(header):
            text = f"{file.name} has an impossible header: {tuple(header)}"
            yield _fault_batch(file, [(0, "damage index-header", text)])
            return
        size = (header.index_count - 1) * ENTRY_SIZE
        data = disk_file.pread(size, layout.entry_position(1)).ljust(size, b"\0")
        entries = np.frombuffer(data, _ENTRY_TYPE)
        for start in range(0, len(entries), _BATCH_ROWS):
            yield _entry_batch(file, header, start + 1, entries[start : start + _BATCH_ROWS])
        faults = list(_faults(disk_file, file.name, header, layout, entries, is_open=file.is_open))
        if faults:
            yield _fault_batch(file, faults[:_FAULTS_MAX])


def _entry_batch(
    file: IndexFileName, header: IndexHeader, number: int, entries: Array
) -> pa.RecordBatch:
    count = len(entries)
    arrays = [
        pa.repeat(pa.scalar(file.store), count),
        pa.repeat(pa.scalar(file.name), count),
        pa.array(np.arange(number, number + count, dtype=np.int32)),
        pa.array(entries["key_hash"].astype(np.int32)),
        pa.array(entries["physic_offset"].astype(np.int64)),
        pa.array(entries["time_diff_s"].astype(np.int32)),
        pa.repeat(pa.scalar(header.begin_timestamp_ms, pa.int64()), count),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)


def _fault_batch(file: IndexFileName, faults: list[tuple[int, str, str]]) -> pa.RecordBatch:
    rows = [
        {
            "store": file.store,
            "file": file.name,
            "physic_offset": offset,
            "fault": f"{kind}: {detail}",
        }
        for offset, kind, detail in faults
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRIES)


def _faults(
    disk_file: DiskFile,
    name: str,
    header: IndexHeader,
    layout: IndexLayout,
    entries: Array,
    *,
    is_open: bool,
) -> Iterator[tuple[int, str, str]]:
    """Yield offset, severity and kind, and detail of what is wrong inside a file."""
    slots = entries["key_hash"].astype(np.int64) % layout.slot_count
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    is_same = np.zeros(len(order), np.bool_)
    is_same[1:] = ordered[1:] == ordered[:-1]
    expected = np.zeros(len(order), np.int32)
    expected[order[1:]] = np.where(is_same[1:], order[:-1] + 1, 0)
    for index in np.flatnonzero(entries["previous"] != expected):
        detail = f"entry {index + 1} of {name} leads to {entries['previous'][index]}"
        detail += f" instead of {expected[index]}"
        yield int(entries["physic_offset"][index]), "damage index-chain", detail
    begin = header.begin_physic_offset
    if len(entries):
        has = (int(entries["physic_offset"][0]), int(entries["physic_offset"][-1]))
        if has != (begin, header.end_physic_offset):
            detail = f"{name} says it has records {begin} to {header.end_physic_offset},"
            yield has[0], "damage index-header", f"{detail} but has {has[0]} to {has[1]}"
    is_newest = np.ones(len(order), np.bool_)
    is_newest[:-1] = ~is_same[1:]
    heads = np.zeros(layout.slot_count, np.int32)
    heads[ordered[is_newest]] = order[is_newest] + 1
    mark = unpack_mark(disk_file.pread(ENTRY_SIZE, layout.mark_position))
    limit = header.index_count if mark is not None or is_open else 2**31
    for detail in _slot_faults(disk_file, name, heads, limit):
        yield begin, "damage index-chain", detail
    used = int(np.count_nonzero(heads))
    if used != header.used_slots:
        detail = f"{name} says that {header.used_slots} slots are in use, {used} are"
        yield begin, "warning index-header", detail


def _slot_faults(disk_file: DiskFile, name: str, heads: Array, limit: int) -> Iterator[str]:
    """Yield the slots that are wrong; those of a growing file may be ahead of its header."""
    covered = empty = 0
    for start, numbers in read_slots(disk_file, len(heads)):
        found = np.frombuffer(numbers, np.int32)
        empty += int(np.count_nonzero(heads[covered:start]))
        covered = start + len(found)
        ours = heads[start:covered]
        for at in np.flatnonzero((found != ours) & (found < limit)):
            yield f"slot {start + at} of {name} leads to {found[at]}, not to {ours[at]}"
    empty += int(np.count_nonzero(heads[covered:]))
    if empty:
        yield f"{empty} slots of {name} are empty although they have entries"
