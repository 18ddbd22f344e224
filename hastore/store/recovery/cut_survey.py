"""Reads what a cut of a log would take, and whether it may: nothing is changed here.

::

    file 0                  file 1
    record record record │ record record record BLANK │ record record │ torn bytes  zeros
           └ the walk begins in this file        └──── counted ───────┘
                 offset ─┘ (a record's start, or the log's end)                  └ end_offset
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, NoReturn, final

import attrs

from hastore.errors import CutRefusedError
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR, find_log_files
from hastore.store.record.layout import HEAD_READ_SIZE
from hastore.store.record.record_check import (
    INTACT_KINDS,
    RecordKind,
    check_record,
    is_one_begun,
)
from hastore.store.recovery.tail_scan import CHUNK_SIZE, check_at, nonzero_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.store.log.store_directory import LogFiles
    from hastore.store.record.record_check import RecordCheck


@final
@attrs.define(eq=False, kw_only=True)
class CutSurvey:
    """One walk over the part of a log from ``physic_offset`` on, and the file before it.

    ``end_offset`` is the end of all bytes that are not 0; a torn tail counts.  ``messages`` counts
    the whole messages to be cut, by topic, up to the first damage.  That begins at ``unread_from``;
    None: nothing follows them but the beginning of a message.  ``kept_store_ms`` is the store time
    of the last record before the cut, 0 if there is none; ``first_message_end`` is the end of the
    first whole message to be cut.
    """

    disk: Disk
    data_dir: str
    found: LogFiles
    physic_offset: int
    end_offset: int = attrs.field(default=0, init=False)
    messages: Counter[str] = attrs.field(factory=Counter, init=False)
    unread_from: int | None = attrs.field(default=None, init=False)
    kept_store_ms: int = attrs.field(default=0, init=False)
    first_message_end: int | None = attrs.field(default=None, init=False)

    def run(self) -> None:
        """Walk.  Raises CutRefusedError if the log cannot be cut there, DiskError."""
        offsets, size = self.found.offsets, self.found.file_size
        begin = offsets[0] if offsets else 0
        if self.physic_offset < begin:
            self._refuse(
                f"the log begins at {begin}", "begin again in an empty directory, or with a copy"
            )
        self.end_offset = begin
        last = 0
        if offsets:
            # The file of the byte before: its last record's time, and whether a record ends there.
            first = max(self.physic_offset - 1 - begin, 0) // size
            last = self._walk(min(first, len(offsets) - 1))
        if self.physic_offset > self.end_offset:
            self._refuse("the log ends before that", "compare the epochs of both logs")
        counted_to = self.end_offset
        self._find_last_byte(last)
        if not is_one_begun(self._head_at(counted_to), counted_to, self.end_offset):
            self.unread_from = counted_to

    def _walk(self, index: int) -> int:
        """Walk from a file's start to the log's end, and return the file where that is."""
        size = self.found.file_size
        for number in range(index, len(self.found.offsets)):
            base = self.found.offsets[number]
            self.end_offset = base
            with self._reading(base) as disk_file:
                for offset, check in _records(disk_file, base):
                    self._see(offset, check)
            if self.end_offset < base + size:
                return number
        return len(self.found.offsets) - 1

    def _see(self, offset: int, check: RecordCheck) -> None:
        end = offset + check.size
        if offset < self.physic_offset < end:
            what = "record" if check.kind is RecordKind.MESSAGE else "filler"
            self._refuse(
                f"a {what} of {check.size} bytes begins at {offset}",
                "the two logs differ before that: compare them by hastore log diff",
            )
        self.end_offset = end
        if check.kind is not RecordKind.MESSAGE:
            return
        if offset < self.physic_offset:
            self.kept_store_ms = max(self.kept_store_ms, check.store_timestamp_ms)
        else:
            if self.first_message_end is None:
                self.first_message_end = end
            self.messages[check.topic.decode(errors="surrogateescape")] += 1

    def _find_last_byte(self, index: int) -> None:
        """Move the end past what follows the last whole record: a torn tail, or a prepared file."""
        end = self.end_offset
        for base in self.found.offsets[index:]:
            with self._reading(base) as disk_file:
                for start, data in nonzero_chunks(disk_file, max(end - base, 0)):
                    self.end_offset = max(self.end_offset, base + start + len(data.rstrip(b"\0")))

    def _head_at(self, physic_offset: int) -> bytes:
        """Return what a record's head would be; nothing where no file has it."""
        for base in self.found.offsets:
            if base <= physic_offset < base + self.found.file_size:
                with self._reading(base) as disk_file:
                    head = disk_file.pread(HEAD_READ_SIZE, physic_offset - base)
                return head.ljust(HEAD_READ_SIZE, b"\0")
        return bytes(HEAD_READ_SIZE)

    def _reading(self, base: int) -> contextlib.closing[DiskFile]:
        path = f"{self.data_dir}/{COMMIT_LOG_DIR}/{file_name(base)}"
        return contextlib.closing(self.disk.open_file(path, writable=False))

    def _refuse(self, reason: str, hint: str) -> NoReturn:
        raise CutRefusedError(
            f"the log in {self.data_dir} cannot be cut at {self.physic_offset}: {reason};"
            " nothing was changed",
            path=self.data_dir,
            physic_offset=self.physic_offset,
            hint=hint,
        )


def first_message_end(disk: Disk, data_dir: str, physic_offset: int) -> int | None:
    """Return the end of the first whole message at ``physic_offset`` or above; None: there is none.

    Reads the log's files, also of a log that is in use; blocks.  Raises DiskError.
    """
    found = find_log_files(disk, data_dir, None)
    for base in found.offsets:
        if base + found.file_size <= physic_offset:
            continue
        path = f"{data_dir}/{COMMIT_LOG_DIR}/{file_name(base)}"
        with contextlib.closing(disk.open_file(path, writable=False)) as disk_file:
            for offset, check in _records(disk_file, base):
                if offset >= physic_offset and check.kind is RecordKind.MESSAGE:
                    return offset + check.size
    return None


def _records(disk_file: DiskFile, base: int) -> Iterator[tuple[int, RecordCheck]]:
    """Yield the intact records and the BLANK at the beginning of a file, with their offsets."""
    size = disk_file.size
    data, start, position = b"", 0, 0
    while position < size:
        available = size - position
        check = check_record(data, position - start, available, base + position)
        if check.kind not in INTACT_KINDS and start + len(data) < size:
            data, start = disk_file.pread(CHUNK_SIZE, position), position
            check = check_record(data, 0, available, base + position)
        if check.kind not in INTACT_KINDS:  # a record larger than a chunk, or the end
            check = check_at(disk_file, position, base, check_crc=True)
        if check.kind not in INTACT_KINDS:
            return
        yield base + position, check
        position += check.size
