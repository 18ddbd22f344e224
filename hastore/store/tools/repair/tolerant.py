"""Reads a log past bad sectors: unreadable bytes are returned as zeros, and recorded.

Zeros in a record are damage that its checksums show.  When a bad sector is written again, the disk
often maps it to a good one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from hastore.errors import DiskError

if TYPE_CHECKING:
    from hastore.env.interface import Disk, DiskFile

_BLOCK_SIZE: Final = 4_096  # of a disk with large sectors


@final
class TolerantDisk:
    """A read-only disk whose files return zeros for unreadable bytes."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._unreadable: dict[tuple[int, int], None] = {}

    @property
    def unreadable(self) -> list[tuple[int, int]]:
        """The ranges of the log that could not be read, in order."""
        return sorted(self._unreadable)

    def open_file(self, path: str, *, writable: bool) -> TolerantFile:
        """Open a log file."""
        assert not writable
        disk_file = self._disk.open_file(path, writable=False)
        return TolerantFile(disk_file, int(path.rpartition("/")[2]), self._unreadable)


@final
class TolerantFile:
    """A file of a TolerantDisk."""

    def __init__(
        self, disk_file: DiskFile, physic_offset: int, unreadable: dict[tuple[int, int], None]
    ) -> None:
        self._disk_file = disk_file
        self._physic_offset = physic_offset
        self._unreadable = unreadable
        self.path = disk_file.path
        self.size = disk_file.size

    def pread(self, size: int, position: int) -> bytes:
        """Read bytes, sector by sector if the disk cannot read all at once."""
        try:
            return self._without_unreadable(self._disk_file.pread(size, position), position)
        except DiskError:
            pass
        end = min(position + size, self.size)
        data = bytearray()
        while position < end:
            piece = min(_BLOCK_SIZE - position % _BLOCK_SIZE, end - position)
            try:
                data += self._disk_file.pread(piece, position)
            except DiskError:
                data += bytes(piece)
                start = self._physic_offset + position - position % _BLOCK_SIZE
                stop = min(start + _BLOCK_SIZE, self._physic_offset + self.size)
                self._unreadable[start, stop] = None
            position += piece
        return bytes(data)

    def _without_unreadable(self, data: bytes, position: int) -> bytes:
        """Return the bytes with zeros for the sectors that another read found unreadable.

        A repair writes such a sector as a whole, so what is readable of it is lost, too.
        """
        begin = self._physic_offset + position
        for start, stop in self._unreadable:
            low, high = max(start - begin, 0), min(stop - begin, len(data))
            if low < high:
                data = data[:low] + bytes(high - low) + data[high:]
        return data

    def next_data(self, position: int) -> int:
        """Return the next position that may not be zero."""
        return self._disk_file.next_data(position)

    def close(self) -> None:
        """Close the file."""
        self._disk_file.close()
