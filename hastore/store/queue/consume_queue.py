"""One queue of one topic: where each of its messages lies in the log, by queue offset.

::

    | blank … | expired … | min_offset … readable … | max_offset … pending … | next_offset
    └─────────────────── in files ─────────────────┘└── in ``tail`` ────────┘

A unit is put into ``tail``, in memory, and becomes readable when ``write_tail`` has written it.

* The first unit of a queue need not be its 0th: the log's front may be gone.  Its file is then
  filled with blanks up to it (RocketMQ's pre-blank).
* A unit is only written at its own index: an index that was skipped is blank, and is repaired if
  its record comes after all.
* A unit found by a recovery may be torn and look like a whole one: when its own record is put
  again, it is compared and repaired.

Invariants: files lie end to end; the last unit is not a blank; bytes after the last unit are zeros;
``max_physic_offset`` is the end of the last unit's record, pending units included; all files but
the last three are on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.file import ConsumeQueueFile
from hastore.store.queue.unit import BLANK, BLANK_UNIT, UNIT, UNIT_SIZE, Unit, is_torn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.store.queue.file import ConsumeQueueFiles

QUEUE_FILES_CHECKED: Final = 3  # by a recovery, from the end; as many as RocketMQ checks
_CHUNK_UNITS: Final = 200
_ZEROS_SIZE_MAX: Final = 1024 * 1024


@final
class ConsumeQueue:
    """The queue ``queue_id`` of ``topic``; offsets are half-open: [min_offset, max_offset)."""

    __slots__ = (
        "_chunk",
        "_files",
        "_min_physic_offset",
        "_obsolete",
        "_patches",
        "files",
        "max_offset",
        "max_physic_offset",
        "min_offset",
        "next_offset",
        "path",
        "queue_id",
        "repair_from",
        "repair_to",
        "tail",
        "topic",
        "trusted_from",
    )

    def __init__(self, files: ConsumeQueueFiles, root: str, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.path = f"{root}/{topic}/{queue_id}"
        self.files: list[ConsumeQueueFile] = []
        self.tail = bytearray()  # units from next_offset - len / 20 on, not written yet
        # A put in [repair_from, repair_to) may replace the existing unit.
        self.repair_from = self.repair_to = 0
        # Units from here on were put while the store was open, so they name records of the queue;
        # earlier ones are checked when they are read.  At most ``next_offset``.
        self.trusted_from = 0
        self._patches: dict[int, bytes] = {}  # units of such puts, not written yet
        self._obsolete: list[ConsumeQueueFile] = []  # to be removed before the next write
        self._files = files
        self._min_physic_offset: int | None = None  # of the unit at min_offset, once known
        self.set_end(0, 0)
        self.min_offset = 0

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} [{self.min_offset}, {self.max_offset})>"

    def set_end(self, max_offset: int, max_physic_offset: int) -> None:
        """Set the queue's end, with nothing pending."""
        self.max_offset = self.next_offset = max_offset
        self.max_physic_offset = max_physic_offset
        self.trusted_from = min(self.trusted_from, max_offset)
        self.tail.clear()
        self._chunk = (0, b"")
        for queue_offset in [index for index in self._patches if index >= max_offset]:
            del self._patches[queue_offset]

    # -- putting ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no unit was ever put, or none is left."""
        return not self.files and not self.tail

    def begin_at(self, queue_offset: int) -> None:
        """Begin the queue at ``queue_offset``, with blanks from its file's start up to it."""
        assert self.is_empty
        file_units = self._files.file_size // UNIT_SIZE
        self.tail += BLANK * (queue_offset % file_units)
        self.min_offset = self.max_offset = self.next_offset = queue_offset

    def restart_at(self, queue_offset: int) -> None:
        """Begin a queue without records again, far after its end."""
        assert self.min_offset == self.next_offset
        self._obsolete += self.files
        self.files.clear()
        self.set_end(0, 0)
        self.repair_from = self.repair_to = 0
        self.begin_at(queue_offset)

    def fill_to(self, queue_offset: int) -> None:
        """Fill the indexes up to ``queue_offset``, whose records are missing, with blanks."""
        if self.repair_from == self.repair_to:
            self.repair_from = self.next_offset
        self.repair_to = queue_offset
        self.tail += BLANK * (queue_offset - self.next_offset)
        self.next_offset = queue_offset

    def append_units(self, data: bytes) -> None:
        """Append units from ``next_offset`` on; their records follow those of the queue."""
        physic_offset, size, _ = UNIT.unpack_from(data, len(data) - UNIT_SIZE)
        assert physic_offset >= self.max_physic_offset
        self.tail += data
        self.next_offset += len(data) // UNIT_SIZE
        self.max_physic_offset = physic_offset + size

    def repair(self, queue_offset: int, unit: bytes) -> bool | None:
        """Replace a blank or torn unit of the same record; true if it has to be written.

        Return None if the existing unit belongs to another record.
        """
        if self.files and queue_offset * UNIT_SIZE < self.files[0].start:
            return False  # expired meanwhile
        at = len(self.tail) - (self.next_offset - queue_offset) * UNIT_SIZE
        if at >= 0:
            old = bytes(self.tail[at : at + UNIT_SIZE])
        else:
            old = self._patches.get(queue_offset) or self._unit_at(queue_offset)
        if old == unit:
            return False
        if not is_torn(old, unit):
            return None
        if at >= 0:
            self.tail[at : at + UNIT_SIZE] = unit
        else:
            self._patches[queue_offset] = unit
        if queue_offset == self.next_offset - 1:
            physic_offset, size, _ = UNIT.unpack(unit)
            self.max_physic_offset = physic_offset + size
        return True

    def begins_before(self, queue_offset: int) -> None:
        """Let readers begin at a unit that was repaired, if they begin after it now."""
        if queue_offset < self.min_offset:
            self.min_offset = queue_offset
            self._min_physic_offset = None

    def _unit_at(self, queue_offset: int) -> bytes:
        """Read a unit, and keep a chunk of those after it: a dispatch reads them in order."""
        begin, data = self._chunk
        at = (queue_offset - begin) * UNIT_SIZE
        if not 0 <= at < len(data):
            data = self._read(queue_offset, min(queue_offset + _CHUNK_UNITS, self.max_offset))
            self._chunk = (queue_offset, data)
            at = 0
        return data[at : at + UNIT_SIZE]

    def write_tail(self) -> bool:
        """Write the pending units; return whether the queue grew.  After a DiskError, repeat it."""
        while self._obsolete:
            self._files.remove(self.path, self._obsolete[-1])
            self._obsolete.pop()
        if self._patches:
            self._write_patches()
        tail = self.tail
        if not tail:
            return False
        file_size = self._files.file_size
        position = self.next_offset * UNIT_SIZE - len(tail)
        written = 0
        try:
            while written < len(tail):
                start = position - position % file_size
                if not self.files or self.files[-1].start != start:
                    self._add_file(start)
                piece = bytes(tail) if not written else bytes(tail[written:])
                piece = piece[: start + file_size - position]
                self._files.write(self.path, self.files[-1], piece, position - start)
                written += len(piece)
                position += len(piece)
        finally:
            del tail[:written]
            self.max_offset = max(position // UNIT_SIZE, self.min_offset)
        return True

    def _write_patches(self) -> None:
        for queue_offset, unit in list(self._patches.items()):
            file = self._file_of(queue_offset)
            self._files.write(self.path, file, unit, queue_offset * UNIT_SIZE - file.start)
            del self._patches[queue_offset]
        self._chunk = (0, b"")

    def _add_file(self, start: int) -> None:
        assert not self.files or start == self.files[-1].start + self._files.file_size
        if len(self.files) >= QUEUE_FILES_CHECKED:
            # A recovery will no longer check it.
            self._files.ensure_flushed(self.path, self.files[-QUEUE_FILES_CHECKED])
        file = ConsumeQueueFile(start)
        self._files.open(self.path, file)
        self.record_new_names(is_first=not self.files)
        self.files.append(file)

    def record_new_names(self, *, is_first: bool) -> None:
        """Let the next flush sync the queue's directory, which has a new file.

        ``is_first``: the directories of the queue and the topic may be new too.
        """
        record_new_dir = self._files.record_new_dir
        record_new_dir(self.path)
        if is_first:
            topic_path = self.path.rpartition("/")[0]
            record_new_dir(topic_path)
            record_new_dir(topic_path.rpartition("/")[0])

    # -- reading ---------------------------------------------------------------------------------

    def units(self, queue_offset: int, count: int) -> list[Unit]:
        """Return up to ``count`` units, to ``max_offset`` or a file's end at most; [] outside.

        An impossible unit (a damaged disk) is returned as a blank.
        """
        if not self.min_offset <= queue_offset < self.max_offset:
            return []
        data = self._read(queue_offset, min(queue_offset + count, self.max_offset))
        found = list(map(Unit._make, UNIT.iter_unpack(data)))
        for index, (physic_offset, size, _) in enumerate(found):
            if size <= 0 or physic_offset < 0:
                found[index] = BLANK_UNIT
        return found

    def _read(self, begin: int, end: int) -> bytes:
        """Read the units of [begin, end), to the end of the file that holds the first at most."""
        file = self._file_of(begin)
        position = begin * UNIT_SIZE - file.start
        size = min((end - begin) * UNIT_SIZE, self._files.file_size - position)
        data = self._files.open(self.path, file).pread(size, position)
        return data.ljust(size, b"\0")  # shorter if the file was cut meanwhile

    def _file_of(self, queue_offset: int) -> ConsumeQueueFile:
        index = (queue_offset * UNIT_SIZE - self.files[0].start) // self._files.file_size
        return self.files[index]

    def last_unit_below(self, end: int, physic_offset: int | None) -> tuple[int, Unit] | None:
        """Return index and unit of the last record before index ``end``, skipping blanks.

        If ``physic_offset`` is given, the record ends at or before it.
        """
        begin = self.files[0].start // UNIT_SIZE if self.files else end
        file_units = self._files.file_size // UNIT_SIZE
        while end > begin:
            start = max(end - _CHUNK_UNITS, (end - 1) // file_units * file_units)
            data = self._read(start, end)
            for at in range(len(data) - UNIT_SIZE, -1, -UNIT_SIZE):
                unit = Unit._make(UNIT.unpack_from(data, at))
                if unit.size <= 0 or unit.physic_offset < 0 or unit.is_blank:
                    continue
                if physic_offset is None or unit.physic_offset + unit.size <= physic_offset:
                    return start + at // UNIT_SIZE, unit
            end = start
        return None

    # -- cutting at the end ------------------------------------------------------------------------

    def truncate(self, physic_offset: int) -> bool:
        """Drop the units of records that end after ``physic_offset``; return whether any were.

        Durable when it returns: a stale unit that came back would pass for that of a new record
        with the same queue offset.
        """
        if self.max_physic_offset <= physic_offset:
            return False
        tail = self.tail
        while tail:
            unit = Unit._make(UNIT.unpack_from(tail, len(tail) - UNIT_SIZE))
            if not unit.is_blank and unit.physic_offset + unit.size <= physic_offset:
                self.max_physic_offset = unit.physic_offset + unit.size
                return True
            del tail[-UNIT_SIZE:]
            self.next_offset -= 1
        self.cut(self.last_unit_below(self.max_offset, physic_offset))
        return True

    def cut(self, last: tuple[int, Unit] | None) -> None:
        """Make ``last`` the last unit: later files are removed, later bytes zeroed.

        Without a last unit the queue is empty, and has no files.
        """
        if last is None:
            self.destroy()
            return
        index, unit = last
        end = (index + 1) * UNIT_SIZE
        while self.files[-1].start >= end:
            self._files.remove(self.path, self.files[-1])
            self.files.pop()
        self._zero_from(self.files[-1], end - self.files[-1].start)
        self.set_end(index + 1, unit.physic_offset + unit.size)
        self.min_offset = min(self.min_offset, self.max_offset)
        self.repair_to = min(self.repair_to, self.max_offset)
        self.repair_from = min(self.repair_from, self.repair_to)

    def blank(self, queue_offsets: Sequence[int]) -> None:
        """Replace units by blanks, durably; a put of a record at one of these indexes repairs it.

        A unit that came back after a power cut might be too far from the queue's end to be checked.
        """
        is_repairing = self.repair_from < self.repair_to
        changed: dict[ConsumeQueueFile, None] = {}
        for queue_offset in queue_offsets:
            file = self._file_of(queue_offset)
            self._files.write(self.path, file, BLANK, queue_offset * UNIT_SIZE - file.start)
            changed[file] = None
        for file in changed:
            self._files.open(self.path, file).sync()
        low, high = min(queue_offsets), max(queue_offsets) + 1
        self.repair_from = min(self.repair_from, low) if is_repairing else low
        self.repair_to = max(self.repair_to, high) if is_repairing else high
        self._chunk = (0, b"")

    def _zero_from(self, file: ConsumeQueueFile, position: int) -> None:
        """Overwrite everything written after ``position`` with zeros, and sync it."""
        disk_file = self._files.open(self.path, file)
        file_size = self._files.file_size
        is_changed = False
        while (position := disk_file.next_data(position)) < file_size:
            size = min(_ZEROS_SIZE_MAX - position % _ZEROS_SIZE_MAX, file_size - position)
            written = disk_file.pread(size, position).rstrip(b"\0")
            if written:
                disk_file.pwrite(bytes(len(written)), position)
                is_changed = True
            position += size
        if is_changed:
            disk_file.sync()

    def destroy(self) -> None:
        """Remove all files, the last one first; then the queue is empty."""
        while self.files:
            self._files.remove(self.path, self.files[-1])
            self.files.pop()
        self.set_end(0, 0)
        self.min_offset = self.repair_from = self.repair_to = 0
        self._min_physic_offset = None

    def abandon(self) -> None:
        """Let go of all files, whose directory is about to be removed; then the queue is empty."""
        self._files.abandon(self.path, [*self.files, *self._obsolete])
        self.files.clear()
        self._obsolete.clear()
        self.destroy()

    # -- cutting at the front ----------------------------------------------------------------------

    def take_expired(self, min_physic_offset: int) -> list[ConsumeQueueFile]:
        """Take the leading files whose records all lie below ``min_physic_offset``, never the last.

        The caller removes them, in this order, or gives them back.  ``min_offset`` becomes that of
        the first unit whose record is still there, or ``max_offset``.
        """
        if self._min_physic_offset is not None and self._min_physic_offset >= min_physic_offset:
            return []
        files, count = self.files, 0
        while count < len(files) - 1:
            next_index = files[count + 1].start // UNIT_SIZE
            last = self._real_at_or_before(next_index - 1, files[count].start // UNIT_SIZE)
            if last is not None and last[1].physic_offset >= min_physic_offset:
                break
            count += 1
        if count:
            self._drop_before(files[count].start // UNIT_SIZE)
        if files:
            self._correct_min_offset(min_physic_offset)
        taken, files[:count] = files[:count], []
        for file in taken:
            file.closing = self._files.detach(file)
        return taken

    def remove_taken(self, file: ConsumeQueueFile) -> None:
        """Remove a file that was taken; blocks, and may run in any thread.  Raises DiskError."""
        self._files.disk.remove(f"{self.path}/{file_name(file.start)}")
        if file.closing is not None:
            file.closing.close()

    def give_back(self, files: list[ConsumeQueueFile]) -> None:
        """Put back the files that could not be removed: the first such file and all after it."""
        for file in files:
            self._files.attach(self.path, file)
        if self.files and files[-1].start + self._files.file_size == self.files[0].start:
            self.files[:0] = files
        else:  # the queue began again far after its end meanwhile
            self._obsolete += files
        self._min_physic_offset = None

    def _drop_before(self, queue_offset: int) -> None:
        self.min_offset = max(self.min_offset, queue_offset)
        for index in [index for index in self._patches if index < queue_offset]:
            del self._patches[index]

    def _correct_min_offset(self, min_physic_offset: int) -> None:
        low, high = self.min_offset, self.max_offset
        if self.max_physic_offset <= min_physic_offset:
            low = high
        while low < high:  # units below low are expired, that at high is not
            middle = (low + high) // 2
            real = self._real_at_or_before(middle, low)
            if real is None or real[1].physic_offset < min_physic_offset:
                low = middle + 1
            else:
                high = real[0]
        self.min_offset = low
        self._min_physic_offset = None
        if low < self.max_offset:
            self._min_physic_offset = UNIT.unpack(self._read(low, low + 1))[0]

    def _real_at_or_before(self, index: int, lowest: int) -> tuple[int, Unit] | None:
        """Return the last unit of [lowest, index] that is not a blank."""
        unit = Unit._make(UNIT.unpack(self._read(index, index + 1)))
        if not unit.is_blank:
            return index, unit
        found = self.last_unit_below(index, None)
        return found if found is not None and found[0] >= lowest else None
