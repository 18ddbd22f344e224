"""The slots of the growing index file, in memory, and which of them are not on disk yet.

    slots   |  1024 of them, 4 KiB  |  1024 …  |       numbers of the newest entries, 0 for none
    dirty   |  1                    |  0       |       one byte a page: changed since it was written

20 MB at the defaults, of which only touched pages take memory.  On disk the slots are big-endian
after the file's header, and written page by page.
"""

from __future__ import annotations

import re
import sys
from array import array
from typing import TYPE_CHECKING, Final, final

from hastore.store.index.layout import HEADER_SIZE, SLOT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import DiskFile

PAGE_SHIFT: Final = 10
_PAGES_A_WRITE_MAX: Final = 256
_RUN: Final = re.compile(rb"\x01{1,%d}" % _PAGES_A_WRITE_MAX)
_SLOTS_A_READ: Final = 256 * 1024
_IS_UNLIKE_DISK: Final = sys.byteorder == "little"


def swapped(data: bytes | bytearray) -> array[int]:
    """Return big-endian 4-byte numbers as the machine's own, or the other way round."""
    numbers = array("i")
    numbers.frombytes(data)
    if _IS_UNLIKE_DISK:
        numbers.byteswap()
    return numbers


def read_slots(disk_file: DiskFile, slot_count: int) -> Iterator[tuple[int, array[int]]]:
    """Yield a file's slots in pieces, skipping pieces of zeros: number of the first, values."""
    for start in range(0, slot_count, _SLOTS_A_READ):
        size = SLOT_SIZE * min(_SLOTS_A_READ, slot_count - start)
        data = disk_file.pread(size, HEADER_SIZE + SLOT_SIZE * start).ljust(size, b"\0")
        if data.count(0) != size:
            yield start, swapped(data)


@final
class IndexSlots:
    """``numbers[slot]`` may be read and set; setting one also sets its page in ``dirty``."""

    __slots__ = ("_data", "dirty", "numbers")

    def __init__(self, slot_count: int) -> None:
        self._data = bytearray(SLOT_SIZE * slot_count)
        self.numbers = memoryview(self._data).cast("i")
        self.dirty = bytearray((slot_count >> PAGE_SHIFT) + 1)

    @classmethod
    def read(cls, disk_file: DiskFile, slot_count: int) -> IndexSlots:
        """Return a file's slots."""
        slots = cls(slot_count)
        view = memoryview(slots._data)
        for start, numbers in read_slots(disk_file, slot_count):
            data = numbers.tobytes()
            view[SLOT_SIZE * start : SLOT_SIZE * start + len(data)] = data
        return slots

    def set(self, slot: int, number: int) -> None:
        """Set a slot, and mark its page dirty."""
        self.numbers[slot] = number
        self.dirty[slot >> PAGE_SHIFT] = 1

    def clear(self) -> None:
        """Set all slots to 0; pages that were 0 already stay clean."""
        page_size = SLOT_SIZE << PAGE_SHIFT
        for page in range(len(self.dirty)):
            data = self._data[page * page_size : (page + 1) * page_size]
            if data.count(0) != len(data):
                memoryview(self._data)[page * page_size : page * page_size + len(data)] = bytes(
                    len(data)
                )
                self.dirty[page] = 1

    def count_used(self) -> int:
        """Return the number of slots that are not 0."""
        return len(self.numbers) - array("i", bytes(self._data)).count(0)

    def take_dirty(self) -> bytes:
        """Return the dirty pages and mark them clean."""
        pages = bytes(self.dirty)
        self.dirty = bytearray(len(pages))
        return pages

    def write(self, disk_file: DiskFile, pages: bytes) -> None:
        """Write the pages that are 1, at most a MiB a call; safe while slots change."""
        for run in _RUN.finditer(pages):
            start, end = run.start() << PAGE_SHIFT, run.end() << PAGE_SHIFT
            data = swapped(self._data[SLOT_SIZE * start : SLOT_SIZE * end]).tobytes()
            disk_file.pwrite(data, HEADER_SIZE + SLOT_SIZE * start)
