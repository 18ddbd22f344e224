"""One index file: keys to physical offsets, a hash table with chains (bytes: ``layout``).

    put       changes slots and the tail of entries in memory
    commit    writes the tail, contiguous, by one pwrite
    flush     writes changed slots, then header and mark; then fdatasync (IndexFlush, any thread)

The file is sparse and written by ``pwrite``: under a map a hole on a full disk is SIGBUS, and
allocating 420 MB ahead is too much for an index.  A put costs no system call.  Entries are written
before slots, the header last: after a kill indexCount covers only entries that were written.  Slots
may then point above it: RocketMQ takes them for empty, and ``recovery`` restores them.

Invariants: entries are in the order of their records' offsets; an entry's ``previous`` is below its
own number; entries below the tail never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import FlushFailedError
from hastore.native.in_use import extension
from hastore.store.index.layout import (
    ENTRY,
    ENTRY_SIZE,
    HEADER,
    HEADER_SIZE,
    PACKED_KEY,
    SLOT,
    SLOT_SIZE,
    IndexEntry,
    IndexHeader,
    IndexLayout,
    IndexMark,
    pack_mark,
    unpack_header,
    unpack_mark,
)
from hastore.store.index.slots import PAGE_SHIFT, IndexSlots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile

CLOCK_STEP_MAX_MS: Final = 600_000  # if the clock is set back further, queries may miss records
_TIME_DIFF_MAX: Final = 2**31 - 1
_CLEAR_CHUNK: Final = 1024 * 1024
_CLEAR_AHEAD: Final = 4 * _CLEAR_CHUNK  # of zeros, after which the search ends

_pack_entry = ENTRY.pack


@final
@attrs.define(eq=False, kw_only=True)
class IndexFile:
    """One file; ``disk_file`` is None until it is made.  Call ``start_filling`` before ``put``."""

    disk: Disk
    path: str
    layout: IndexLayout
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physic_offset: int
    end_physic_offset: int
    used_slots: int
    index_count: int
    disk_file: DiskFile | None = None
    mark: IndexMark | None = None  # the mark in the file
    slots: IndexSlots | None = attrs.field(default=None, init=False)
    is_new: bool = attrs.field(default=False, init=False)  # its name may not be on disk yet
    flush_failed: bool = attrs.field(default=False, init=False)  # its state on disk is unknown
    _tail: tuple[int, bytearray] = attrs.field(init=False)  # uncommitted: first number, entries
    _pages_in_flush: bytes | None = attrs.field(default=None, init=False)
    _is_dirty: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin after the existing entries."""
        self._tail = (self.index_count, bytearray())

    @classmethod
    def new(cls, disk: Disk, path: str, layout: IndexLayout, before: IndexFile | None) -> IndexFile:
        """Begin a file, in memory only; its header starts with the end of the file before."""
        time = max(before.end_timestamp_ms, 0) if before is not None else 0
        offset = max(before.end_physic_offset, 0) if before is not None else 0
        file = cls(
            disk=disk,
            path=path,
            layout=layout,
            begin_timestamp_ms=time,
            end_timestamp_ms=time,
            begin_physic_offset=offset,
            end_physic_offset=offset,
            used_slots=0,
            index_count=1,
        )
        file.slots = IndexSlots(layout.slot_count)
        file.is_new = True
        return file

    @classmethod
    def open(
        cls, disk: Disk, path: str, layout: IndexLayout, *, forgets: bool = False
    ) -> IndexFile:
        """Open an existing file of the right size and read its header and mark.

        ``forgets``: read from the disk, not from the page cache.
        """
        disk_file = disk.open_sparse_file(path, layout.file_size)
        if forgets:
            disk_file.forget()
        header = unpack_header(disk_file.pread(HEADER_SIZE, 0))
        mark = unpack_mark(disk_file.pread(ENTRY_SIZE, layout.mark_position))
        return cls(
            disk=disk,
            path=path,
            layout=layout,
            **header._asdict(),
            disk_file=disk_file,
            mark=mark,
        )

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return self.path.rpartition("/")[2]

    @property
    def header(self) -> IndexHeader:
        """The header for the present entries."""
        return IndexHeader(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_physic_offset,
            self.end_physic_offset,
            self.used_slots,
            self.index_count,
        )

    @property
    def is_full(self) -> bool:
        """Whether no further key fits."""
        return self.index_count >= self.layout.entry_count

    @property
    def committed_count(self) -> int:
        """Number of the first uncommitted entry."""
        return self._tail[0]

    @property
    def is_dirty(self) -> bool:
        """Whether the file is new or has changes that no flush has written."""
        return self._is_dirty or self.is_new or self._pages_in_flush is not None

    # -- putting ---------------------------------------------------------------------------------

    def start_filling(self) -> IndexSlots:
        """Load the slots into memory."""
        if self.slots is None:
            self.slots = IndexSlots.read(self.made_file(), self.layout.slot_count)
        return self.slots

    def put(self, key_hash: int, physic_offset: int, store_timestamp_ms: int) -> None:
        """Add one key of a record; the file must not be full."""
        slots = self.slots
        assert slots is not None
        numbers = slots.numbers
        number = self.index_count
        begin = self.begin_timestamp_ms
        seconds = (store_timestamp_ms - begin) // 1000 if begin > 0 else 0
        if not 0 <= seconds <= _TIME_DIFF_MAX:
            seconds = min(max(seconds, 0), _TIME_DIFF_MAX)
        slot = key_hash % self.layout[0]
        previous = numbers[slot]
        if not 0 <= previous < number:  # left by a RocketMQ that was killed
            previous = 0
        # Entry, count, slot: a query in another thread that sees the slot sees the other two.
        self._tail[1].extend(_pack_entry(key_hash, physic_offset, seconds, previous))
        self.index_count = number + 1
        numbers[slot] = number
        slots.dirty[slot >> PAGE_SHIFT] = 1
        if number == 1:
            self.begin_timestamp_ms = store_timestamp_ms
            self.begin_physic_offset = physic_offset
        if not previous:
            self.used_slots += 1
        self.end_timestamp_ms = store_timestamp_ms
        self.end_physic_offset = physic_offset

    def put_keys(self, keys: bytes) -> None:
        """Add packed keys (``PACKED_KEY``); the file must have room for all of them.

        After an error, for keys that no file can hold, none of them counts.
        """
        slots = self.slots
        assert slots is not None
        number, tail = self.index_count, self._tail[1]
        tail_size = len(tail)
        self.index_count += len(keys) // PACKED_KEY.size
        fill = fill_index_in_python if extension is None else extension.fill_index
        try:
            free_slots, self.begin_timestamp_ms = fill(
                slots.numbers, slots.dirty, PAGE_SHIFT, number, self.begin_timestamp_ms, keys, tail
            )
        except BaseException:
            self.index_count = number
            del tail[tail_size:]
            raise
        self.used_slots += free_slots
        if number == 1:
            self.begin_physic_offset = PACKED_KEY.unpack_from(keys)[1]
        _, self.end_physic_offset, self.end_timestamp_ms = PACKED_KEY.unpack_from(
            keys, len(keys) - PACKED_KEY.size
        )

    def commit(self) -> None:
        """Write the new entries; after a DiskError the next commit writes them again."""
        first, entries = self._tail
        if not entries:
            return
        self.made_file().pwrite(bytes(entries), self.layout.entry_position(first))
        self._tail = (self.index_count, bytearray())
        self._is_dirty = True

    def made_file(self) -> DiskFile:
        """Return the open file, making it if there is none."""
        if self.disk_file is None:
            self.disk_file = self.disk.open_sparse_file(self.path, self.layout.file_size)
        return self.disk_file

    # -- to disk ---------------------------------------------------------------------------------

    def write_mark(self, mark: IndexMark) -> None:
        """Set the mark at once, durably; blocks."""
        disk_file = self.made_file()
        disk_file.pwrite(pack_mark(mark), self.layout.mark_position)
        disk_file.sync()
        if self.is_new:
            self.sync_directory()
        self.mark = mark

    def put_mark(self, mark: IndexMark) -> None:
        """Set the mark, for a start after a kill; the next flush makes it durable."""
        self.made_file().pwrite(pack_mark(mark), self.layout.mark_position)
        self._is_dirty = True

    def sync_directory(self) -> None:
        """Sync the directory, so that the new file's name survives a power cut."""
        self.disk.sync_dir(self.path.rpartition("/")[0])
        self.is_new = False

    def begin_flush(self, *, first_mark: IndexMark | None, mark: IndexMark | None) -> IndexFlush:
        """Return a flush of the present state; later puts are not part of it.

        If the file has no mark, ``first_mark`` is written and synced before anything else; ``mark``
        is written with the rest (None removes the mark).
        """
        assert not self._tail[1], "commit first"
        pages = self.slots.take_dirty() if self.slots is not None else b""
        if self._pages_in_flush:  # the last flush failed
            pages = bytes(map(max, pages, self._pages_in_flush))
        self._pages_in_flush = pages
        self._is_dirty = False
        return IndexFlush(self, pages, self.header, first_mark, mark)

    def end_flush(self, flush: IndexFlush) -> None:
        """Record that a flush succeeded; free the slots of a full file, which are now on disk."""
        if self._pages_in_flush is not flush.pages:
            return
        self._pages_in_flush = None
        self.mark = flush.mark
        if self.is_full and not self._is_dirty and flush.header.index_count == self.index_count:
            self.slots = None

    # -- cutting ---------------------------------------------------------------------------------

    def cut(self, header: IndexHeader) -> None:
        """Go back to the state of ``header``, for which the slots are already set; blocks.

        Later entries are zeroed last: after a kill the next start cuts again.
        """
        slots = self.start_filling()
        entries_end = self.index_count
        self.begin_timestamp_ms = header.begin_timestamp_ms
        self.end_timestamp_ms = header.end_timestamp_ms
        self.begin_physic_offset = header.begin_physic_offset
        self.end_physic_offset = header.end_physic_offset
        self.index_count = header.index_count
        self.used_slots = slots.count_used()
        self._tail = (self.index_count, bytearray())
        flush = self.begin_flush(first_mark=None, mark=self.mark)
        flush.sync()
        self.end_flush(flush)
        self.clear_after(entries_end)

    def clear_after(self, number: int) -> None:
        """Zero the entries after the last one: up to ``number``, and on while any is written."""
        disk_file = self.made_file()
        position, last = self.layout.entry_position(self.index_count), self.layout.file_size
        end_position = self.layout.entry_position(min(number, self.layout.entry_count))
        zeros_seen = 0
        while position < last and (position < end_position or zeros_seen < _CLEAR_AHEAD):
            written = min(disk_file.next_data(position), last)
            if written > position:  # a hole, of up to 400 MB
                zeros_seen += written - position
                position = written
                continue
            data = disk_file.pread(min(_CLEAR_CHUNK, last - position), position)
            if data.count(0) == len(data):
                zeros_seen += len(data)
            else:
                zeros_seen = 0
                disk_file.pwrite(bytes(len(data)), position)
                self._is_dirty = True
            position += len(data)

    def close(self) -> None:
        """Close without writing; idempotent."""
        if self.disk_file is not None:
            self.disk_file.close()

    # -- reading ---------------------------------------------------------------------------------

    def read_entry(self, number: int) -> IndexEntry:
        """Return an entry; safe during ``put`` and ``commit`` in another thread."""
        while True:
            first, entries = self._tail
            if number < first:
                data = self.made_file().pread(ENTRY_SIZE, self.layout.entry_position(number))
                return IndexEntry._make(ENTRY.unpack(data.ljust(ENTRY_SIZE, b"\0")))
            at = ENTRY_SIZE * (number - first)
            data = bytes(entries[at : at + ENTRY_SIZE])
            if len(data) == ENTRY_SIZE:  # else it was committed just now
                return IndexEntry._make(ENTRY.unpack(data))

    def _head(self, slot: int) -> int:
        slots = self.slots
        if slots is not None:
            return slots.numbers[slot]
        data = self.made_file().pread(SLOT_SIZE, HEADER_SIZE + SLOT_SIZE * slot)
        (number,) = SLOT.unpack(data)
        return int(number)

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file can have records of a time window, by its header's times."""
        return (
            self.index_count > 1
            and self.begin_timestamp_ms <= end_ms + CLOCK_STEP_MAX_MS
            and self.end_timestamp_ms + CLOCK_STEP_MAX_MS >= begin_ms
        )

    def offsets(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the offsets of committed records with a hash in a time window, newest first.

        Other keys may have the same hash, and the file holds only whole seconds: the caller
        compares key and time with the record.
        """
        file_begin_ms = self.begin_timestamp_ms
        committed = self.committed_count
        number = self._head(key_hash % self.layout.slot_count)
        limit = self.index_count
        while 0 < number < limit:
            entry = self.read_entry(number)
            low = high = file_begin_ms
            if number > 1:
                low += 1000 * entry.time_diff_s
                high = low + 999
                if not entry.time_diff_s:
                    low = 0  # earlier times are stored as 0 too
            if high + CLOCK_STEP_MAX_MS < begin_ms:
                return
            if (
                entry.key_hash == key_hash
                and number < committed
                and low <= end_ms
                and high >= begin_ms
            ):
                yield entry.physic_offset
            limit, number = number, entry.previous  # always lower, so the loop ends


def fill_index_in_python(  # noqa: PLR0917 - as the C extension's
    numbers: memoryview,
    dirty: bytearray,
    page_shift: int,
    number: int,
    begin_ms: int,
    keys: bytes,
    tail: bytearray,
) -> tuple[int, int]:
    """Append the entries of packed keys to ``tail``, and set the slots; the C extension's twin.

    The first entry has ``number``.  Return how many slots were free, and the file's begin time.
    """
    slots = len(numbers)
    free_slots = 0
    for key_hash, physic_offset, store_ms in PACKED_KEY.iter_unpack(keys):
        seconds = 0
        if 0 < begin_ms < store_ms:
            seconds = min((store_ms - begin_ms) // 1000, _TIME_DIFF_MAX)
        slot = key_hash % slots
        previous = numbers[slot]
        if not 0 < previous < number:  # free, or left by a RocketMQ that was killed
            previous = 0
            free_slots += 1
        # The entry, then its slot: a query in another thread that sees the one sees the other.
        tail += _pack_entry(key_hash, physic_offset, seconds, previous)
        numbers[slot] = number
        dirty[slot >> page_shift] = 1
        if number == 1:
            begin_ms = store_ms
        number += 1
    return free_slots, begin_ms


@final
@attrs.frozen(eq=False)
class IndexFlush:
    """One file's flush: ``sync`` blocks and may run in any thread."""

    file: IndexFile
    pages: bytes
    header: IndexHeader
    first_mark: IndexMark | None
    mark: IndexMark | None

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path

    def sync(self) -> None:
        """Write slots, then header and mark, and force the file to disk.

        Raises DiskError (DiskFullError if a hole cannot be allocated); the next flush writes all of
        it again.  FlushFailedError is final.
        """
        file = self.file
        try:
            if self.first_mark is not None and file.mark is None:
                file.write_mark(self.first_mark)
            disk_file = file.made_file()
            if file.slots is not None:
                file.slots.write(disk_file, self.pages)
            disk_file.pwrite(HEADER.pack(*self.header), 0)
            data = pack_mark(self.mark) if self.mark is not None else bytes(ENTRY_SIZE)
            disk_file.pwrite(data, file.layout.mark_position)
            disk_file.sync()
            if file.is_new:
                file.sync_directory()
        except FlushFailedError:
            file.flush_failed = True
            raise
