"""One file of a simulated disk: what programs see, and what a power cut leaves.

A failed sync is ext4's (docs/assumptions.md): the pages count as clean, so the next sync returns
without having written them; what is written again *afterwards* is dirty again.  Of a page that was
never written before, nothing gets there at all any more, whatever is written to it: its block stays
marked so.  ``forget`` has the cache read from the platter, and ends that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

SECTOR_SIZE: Final = 512
_PAGE_SIZE: Final = 4_096


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
    stale: frozenset[int] = frozenset()  # pages of which nothing reaches the platter

    def seen(self) -> bytes:
        """Return what programs see."""
        return bytes(self.cache)

    def sync(self) -> None:
        """Bring to the platter what is dirty."""
        seen = self.seen()
        if self.clean is None:
            self.durable = seen
            return
        kept = bytearray(self.durable)
        for start in self._dirty(seen, self.clean):
            end = start + SECTOR_SIZE
            kept[start:end] = seen[start:end]
        self.durable, self.clean = bytes(kept), seen

    def _dirty(self, seen: bytes, written: bytes) -> Iterator[int]:
        """Yield where the sectors begin that the next sync writes."""
        for start in range(0, len(seen), SECTOR_SIZE):
            end = start + SECTOR_SIZE
            if seen[start:end] != written[start:end] and start // _PAGE_SIZE not in self.stale:
                yield start

    def fail_sync(self) -> None:
        """Lose what is dirty, and take it for written."""
        if self.clean is not None:
            self.sync()  # what was dirtied since the last failure may have got there
        self.clean = seen = self.seen()
        pages = range(0, len(seen), _PAGE_SIZE)
        never_written = {
            start // _PAGE_SIZE
            for start in pages
            if not any(self.durable[start : start + _PAGE_SIZE])
            and any(seen[start : start + _PAGE_SIZE])
        }
        self.stale |= never_written

    def forget(self, position: int, size: int) -> None:
        """Read from the platter what counts as written."""
        if self.clean is None:
            return
        end = position + size if size else len(self.cache)
        self.sync()  # what is dirty is written out first
        self.cache[position:end] = self.durable[position:end]
        self.clean = self.seen()
        first, behind = position // _PAGE_SIZE, -(-end // _PAGE_SIZE)
        self.stale = frozenset(page for page in self.stale if not first <= page < behind)

    def after_power_cut(self, keeps: Callable[[], bool]) -> bytes:
        """Return the platter as the next boot finds it; ``keeps`` decides for a dirty sector."""
        seen, written = self.seen(), self.clean if self.clean is not None else self.durable
        if seen == written:
            return self.durable
        left = bytearray(self.durable)
        for start in self._dirty(seen, written):
            if keeps():
                left[start : start + SECTOR_SIZE] = seen[start : start + SECTOR_SIZE]
        return bytes(left)
