"""Finds the numbers of slots and entries of an index file; the file does not say them.

::

    | header 40 | slots 4 × ? | entry 0 | entry 1 … entry index_count - 1 | unused … |
       begin and end offset ───────────────┴─────────────┘

The header has the physic offset of the first and of the last entry's record.  Where one of them
stands in the file, its entry begins 4 bytes before, and so the slots end 20 bytes per entry before
that.  The file's size, both entries and the last one's slot must agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.store.index.layout import (
    ENTRY,
    ENTRY_SIZE,
    HEADER_SIZE,
    SLOT,
    SLOT_SIZE,
    IndexEntry,
    IndexLayout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import DiskFile
    from hastore.store.index.layout import IndexHeader

_CHUNK_SIZE: Final = 1024 * 1024
_HASH_SIZE: Final = 4  # of an entry, before its physic offset
_OFFSET_SIZE: Final = 8


def find_layout(disk_file: DiskFile, header: IndexHeader) -> IndexLayout | None:
    """Return the layout of a file with this header; None if none fits, or it has no entry.

    Raises DiskError.
    """
    number, wanted = 1, header.begin_physic_offset
    if wanted <= 0:  # zeros are everywhere
        number, wanted = header.index_count - 1, header.end_physic_offset
    if header.index_count <= 1 or wanted <= 0:
        return None
    for position in _positions(disk_file, wanted.to_bytes(_OFFSET_SIZE)):
        slots_size = position - _HASH_SIZE - number * ENTRY_SIZE - HEADER_SIZE
        entries_size = disk_file.size - HEADER_SIZE - slots_size
        if slots_size <= 0 or slots_size % SLOT_SIZE or entries_size % ENTRY_SIZE:
            continue
        layout = IndexLayout(slots_size // SLOT_SIZE, entries_size // ENTRY_SIZE)
        if layout.holds(header) and _fits(disk_file, layout, header):
            return layout
    return None


def _fits(disk_file: DiskFile, layout: IndexLayout, header: IndexHeader) -> bool:
    """Whether the first and the last entry are the header's, and the last one's slot leads to it.

    The slots of a growing file may be ahead of its header.
    """
    count = header.index_count
    first, last = (_entry(disk_file, layout, number) for number in (1, count - 1))
    if first.previous or min(first.key_hash, last.key_hash) < 0:
        return False
    if (first.physic_offset, last.physic_offset) != (
        header.begin_physic_offset, header.end_physic_offset
    ):  # fmt: skip
        return False
    slot = disk_file.pread(SLOT_SIZE, HEADER_SIZE + last.key_hash % layout.slot_count * SLOT_SIZE)
    newest: int = SLOT.unpack(slot)[0]
    return newest >= count - 1


def _entry(disk_file: DiskFile, layout: IndexLayout, number: int) -> IndexEntry:
    data = disk_file.pread(ENTRY_SIZE, layout.entry_position(number))
    return IndexEntry._make(ENTRY.unpack(data.ljust(ENTRY_SIZE, b"\0")))


def _positions(disk_file: DiskFile, wanted: bytes) -> Iterator[int]:
    """Yield where some bytes stand in a file, holes left out."""
    position = HEADER_SIZE
    while (position := disk_file.next_data(position)) < disk_file.size:
        # What begins before a hole's end may end in the data.
        begin = max(position - len(wanted) + 1, HEADER_SIZE)
        data = disk_file.pread(position + _CHUNK_SIZE - begin, begin)
        at = data.find(wanted)
        while at >= 0:
            yield begin + at
            at = data.find(wanted, at + 1)
        position += _CHUNK_SIZE
