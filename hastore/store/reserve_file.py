"""Room that a node of a replica group keeps for itself: ``DIR/reserve``, allocated and empty.

A node whose disk is full must still be able to give up its role, take another, and record what it
has seen: an identity, an epoch, a set of members, ``abort``, the copy of what is cut off the log.
Each of these writes replaces a small file by a new one beside it, and so needs a block and an inode
for a moment.  Where there is none, the reserve is removed, the write is made, and the reserve is
allocated again, as large as there is room for.

Everything here blocks.  Any thread may write; other files of the directory never use the reserve.

Invariant: between two writes the reserve is on the disk, unless other programs have taken the room.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.config import RESERVE_SIZE_MIN
from hastore.errors import DiskError, DiskFullError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk

RESERVE_FILE: Final = "reserve"

_log = logger("store")

_lock = threading.RLock()  # one writer at a time frees a reserve


@final
@attrs.frozen
class ReserveFile:
    """The reserve of a store's directory."""

    disk: Disk
    data_dir: str

    @property
    def path(self) -> str:
        """The file."""
        return f"{self.data_dir.rstrip('/')}/{RESERVE_FILE}"

    def keep(self, wanted: int) -> int:
        """Allocate what is missing of so many bytes; return how many there are, 0 without room."""
        with _lock:
            try:
                size = self._size()
                while size < wanted and wanted >= RESERVE_SIZE_MIN:
                    size = self._allocate(size, wanted)
                    wanted //= 2
            except DiskError as error:
                _log.warning("no_reserve", path=self.path, reason=str(error), next=error.hint)
                return 0
            return size

    def _size(self) -> int:
        return self.disk.stamp(self.path).size if self.disk.exists(self.path) else 0

    def _allocate(self, size: int, wanted: int) -> int:
        """Replace a reserve by a larger one if there is room; return the size that there is now."""
        if size and self.disk.space(self.data_dir).free_bytes < wanted - size:
            return size
        # A removal that succeeds is the end of what is recorded as failed: not without a file.
        if self.disk.exists(self.path):
            self.disk.remove(self.path)
        try:
            self.disk.create_file(self.path, wanted).close()
        except DiskFullError:
            return 0
        return wanted

    @contextlib.contextmanager
    def freed(self) -> Iterator[None]:
        """Remove the reserve while the block runs, then allocate it again."""
        with _lock:
            size = self._size()
            if size:
                self.disk.remove(self.path)
            try:
                yield
            finally:
                if size:
                    self.keep(size)

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file durably, in the room of the reserve if there is no other.

        Raises DiskError; DiskFullError if even that is not enough.
        """
        try:
            self.disk.write_file(path, data)
        except DiskFullError:
            if not self.disk.exists(self.path):
                raise
            with self.freed():
                self.disk.write_file(path, data)


def write_beside_reserve(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file of a store's directory itself, as ``ReserveFile.write_file`` does."""
    ReserveFile(disk, path.rpartition("/")[0]).write_file(path, data)
