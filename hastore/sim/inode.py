"""One file of a simulated disk: what programs see, and what a power cut leaves.

A sync fails as on ext4 (docs/assumptions.md): the pages count as clean, so the next sync returns
without writing them; bytes written *afterwards* are dirty again.  A page that had never been
written before never reaches the platter again, whatever is written to it, until ``forget`` drops it
from the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.env.interface import SECTOR_SIZE

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator

_PAGE_SIZE: Final = 4_096


@final
@attrs.define(eq=False)
class Inode:
    """One file: what programs see, and what a power cut leaves."""

    cache: mmap.mmap | bytearray
    durable: bytes
    clean: bytes | None = None  # after a failed sync: what the kernel wrongly counts as written
    is_name_durable: bool = True
    modified_ms: int = 0
    is_sparse: bool = False
    mapped: int = 0
    stale: frozenset[int] = frozenset()  # numbers of pages that no sync writes

    def seen(self) -> bytes:
        """Return the bytes that programs see."""
        return bytes(self.cache)

    def sync(self) -> None:
        """Write dirty sectors to the platter."""
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
        """Yield the positions of the sectors that the next sync writes."""
        for start in range(0, len(seen), SECTOR_SIZE):
            end = start + SECTOR_SIZE
            if seen[start:end] != written[start:end] and start // _PAGE_SIZE not in self.stale:
                yield start

    def fail_sync(self) -> None:
        """Count dirty sectors as written without writing them."""
        if self.clean is not None:
            self.sync()  # sectors dirtied since the last failure may have been written
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
        """Drop clean pages of a range, so that they are read from the platter."""
        if self.clean is None:
            return
        end = position + size if size else len(self.cache)
        self.sync()  # dirty pages are written first
        self.cache[position:end] = self.durable[position:end]
        self.clean = self.seen()
        first, after = position // _PAGE_SIZE, -(-end // _PAGE_SIZE)
        self.stale = frozenset(page for page in self.stale if not first <= page < after)

    def after_power_cut(self, keeps: Callable[[], bool]) -> bytes:
        """Return the platter at the next boot; ``keeps`` is asked for each dirty sector."""
        seen, written = self.seen(), self.clean if self.clean is not None else self.durable
        if seen == written:
            return self.durable
        left = bytearray(self.durable)
        for start in self._dirty(seen, written):
            if keeps():
                left[start : start + SECTOR_SIZE] = seen[start : start + SECTOR_SIZE]
        return bytes(left)
