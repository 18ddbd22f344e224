"""Reads a log file in chunks that begin where a record begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.columnar.record_block import RecordBlock, walk
from hastore.errors import DiskError
from hastore.store.record.layout import (
    HEAD_READ_SIZE,
    MAGIC_POSITION,
    MESSAGE_PATTERN,
    claimed_size,
)
from hastore.store.record.record_check import claims_fit

if TYPE_CHECKING:
    from hastore.env.interface import Disk

CHUNK_SIZE: Final = 3 * 1024 * 1024  # with its table about as much as a core's caches hold


@final
class RecordReader:
    """One open file; close it by ``with``."""

    def __init__(self, disk: Disk, path: str, file_size: int) -> None:
        self.path = path
        self.file_size = file_size
        self._file = disk.open_file(path, writable=False)

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, chunk_size: int | None = None) -> bytes:
        """Read a chunk, or the whole record at ``position`` if that is larger.

        Raises DiskError, also if the file has become shorter.
        """
        chunk_size = chunk_size or CHUNK_SIZE
        data = self._read(position, chunk_size)
        size = claimed_size(data)
        if (
            chunk_size < size <= self.file_size - position
            and MESSAGE_PATTERN.match(data, MAGIC_POSITION)
            and claims_fit(data[:HEAD_READ_SIZE])
        ):
            data = self._read(position, size)
        return data

    def read_block(self, position: int, offset: int, end: int) -> RecordBlock:
        """Read the records from ``position`` on that begin below the offset ``end``.

        ``offset`` is the physical offset of ``position``.  Raises DiskError.
        """
        data = self.read(position)
        starts, walked = walk(data, 0, end - offset)
        return RecordBlock(data, starts, walked, offset)

    def _read(self, position: int, size: int) -> bytes:
        size = min(size, self.file_size - position)
        data = self._file.pread(size, position)
        if len(data) < size:
            raise DiskError(
                f"{self.path} was cut while it was read: {self.file_size} bytes before, "
                f"{position + len(data)} now",
                path=self.path,
                hint="copy the directory of a node that is stopped, or read the node's own",
            )
        return data
