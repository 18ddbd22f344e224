"""Warms a new file up: touches every page before it is needed, and locks it in memory if allowed.

The first write to a page of a map waits for the kernel, which finds the block, zeroes the page and
enters it into the page table.  The thread that makes the file does that here, so no append has to.
The price is that the whole file is written twice: first as zeros, then with its records.

Under SYNC_FLUSH the zeros are synced on the way, else the first put's sync would wait for a
gigabyte of them (RocketMQ's flushLeastPagesWhenWarmMapedFile).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.env.interface import PAGE_SIZE
from hastore.status import FlushDiskType
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import StoreConfig
    from hastore.env.interface import Memory
    from hastore.store.log.mapped_file import MappedFile

# Small, because a page fault of another thread waits for the same lock in the kernel.
PIECE_SIZE: Final = 1024 * 1024
_ZEROS: Final = bytes(PIECE_SIZE)

_log = logger("flush")


@final
@attrs.define(eq=False)
class WarmUp:
    """Warms files up, and keeps them in memory until they have rolled."""

    memory: Memory
    config: StoreConfig
    lock_refusal: str | None = attrs.field(default=None, init=False)
    _can_populate: bool = attrs.field(default=True, init=False)

    def warm(self, mapped_file: MappedFile) -> None:
        """Touch all pages and lock them; blocks, for as long as the disk takes.

        Raises DiskError if the zeros cannot be written.  A kernel that refuses to lock memory is
        logged once and is no error.
        """
        buffer = mapped_file.disk_file.buffer
        assert buffer is not None
        is_synced = self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        sync_each = self.config.flush_least_pages_when_warm_mapped_file * PAGE_SIZE
        synced = 0
        for position in range(0, mapped_file.file_size, PIECE_SIZE):
            end = min(position + PIECE_SIZE, mapped_file.file_size)
            self._touch(mapped_file, position, end - position)
            if is_synced and end - synced >= sync_each:
                mapped_file.disk_file.sync()
                synced = end
        if is_synced and synced < mapped_file.file_size:
            mapped_file.disk_file.sync()
        if self.lock_refusal is None:
            self.lock_refusal = self.memory.lock(buffer)
            mapped_file.is_locked = self.lock_refusal is None
            if self.lock_refusal is not None:
                _log.warning(
                    "mapped_files_not_locked",
                    reason=self.lock_refusal,
                    effect="warm pages may be taken away again under memory pressure",
                )
        self.memory.will_need(buffer)

    def _touch(self, mapped_file: MappedFile, position: int, size: int) -> None:
        buffer = mapped_file.disk_file.buffer
        assert buffer is not None
        if self._can_populate:
            refusal = self.memory.populate(buffer, position, size)
            if refusal is None:
                return
            self._can_populate = False
            _log.info("warm_up_writes_zeros", reason=refusal)
        mapped_file.disk_file.pwrite(_ZEROS[:size], position)

    def cool(self, mapped_file: MappedFile) -> None:
        """Unlock a file that has rolled; blocks."""
        buffer = mapped_file.disk_file.buffer
        if buffer is not None:
            self.memory.unlock(buffer)
        mapped_file.is_locked = False
