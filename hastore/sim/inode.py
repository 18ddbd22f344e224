"""One file of a simulated disk: what programs see, and what a power cut leaves.

A failed sync is ext4's (docs/assumptions.md): the pages count as clean, so the next sync returns
without having written them; what is written again *afterwards* is dirty again.  ``forget`` has the
cache read from the platter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

SECTOR_SIZE: Final = 512


@final
@attrs.define(eq=False)
class Inode:
    """One file: what programs see, and what a power cut leaves."""

    cache: mmap.mmap | bytearray
    durable: bytes
    clean: bytes | None = None  # after a failed sync: what counts as written, and is not
    is_name_durable: bool = True
    modified_ms: int = 0
    is_sparse: bool = False
    mapped: int = 0

    def seen(self) -> bytes:
        """Give what programs see."""
        return bytes(self.cache)

    def sync(self) -> None:
        """Bring to the platter what is dirty."""
        seen = self.seen()
        if self.clean is None:
            self.durable = seen
            return
        kept = bytearray(self.durable)
        for start in range(0, len(seen), SECTOR_SIZE):
            end = start + SECTOR_SIZE
            if seen[start:end] != self.clean[start:end]:
                kept[start:end] = seen[start:end]
        self.durable, self.clean = bytes(kept), seen

    def fail_sync(self) -> None:
        """Lose what is dirty, and take it for written."""
        if self.clean is not None:
            self.sync()  # what was dirtied since the last failure may have got there
        self.clean = self.seen()

    def forget(self, position: int, size: int) -> None:
        """Read from the platter what counts as written."""
        if self.clean is None:
            return
        end = position + size if size else len(self.cache)
        self.sync()  # what is dirty is written out first
        self.cache[position:end] = self.durable[position:end]
        self.clean = self.seen()

    def after_power_cut(self, keeps: Callable[[], bool]) -> bytes:
        """Give the platter as the next boot finds it; ``keeps`` decides for a dirty sector."""
        seen, written = self.seen(), self.clean if self.clean is not None else self.durable
        if seen == written:
            return self.durable
        left = bytearray(self.durable)
        for start in range(0, len(seen), SECTOR_SIZE):
            end = start + SECTOR_SIZE
            if seen[start:end] != written[start:end] and keeps():
                left[start:end] = seen[start:end]
        return bytes(left)
