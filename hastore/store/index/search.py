"""Looks keys up in index files, and removes expired files.

    newest file ── chain of the key's slot ── next file ── chain ── …        (newest record first)

A query runs in a thread while the event loop changes the index.  It reads the files that exist when
it begins.  A file that expires is taken out of the list at once, may be removed by another thread,
and is closed when no query is under way.

Invariant: a file that a query may read is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.store.index.layout import key_hash, topic_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.env.interface import Disk
    from hastore.store.index.file import IndexFile


@final
@attrs.define(eq=False)
class IndexSearch:
    """The files of one index, its service's own list, oldest first."""

    disk: Disk
    files: list[IndexFile]
    queries: int = attrs.field(default=0, init=False)  # under way
    removed: list[IndexFile] = attrs.field(factory=list, init=False)  # and not closed yet

    def candidates(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the records that may carry a key, stored in [begin_ms, end_ms], newest first.

        Each once.  Some may have another key with the same hash, or be up to a second outside the
        window: compare with the record.
        """
        self.queries += 1
        try:
            hash_of_key = key_hash(topic_hash(topic), key)
            before = -1
            for file in self.files[::-1]:
                if not file.may_hold(begin_ms, end_ms):
                    continue  # else a chain of perhaps millions is walked for nothing
                for physic_offset in file.offsets(hash_of_key, begin_ms, end_ms):
                    if physic_offset != before:
                        before = physic_offset
                        yield physic_offset
        finally:
            self.queries -= 1

    # -- expiry ----------------------------------------------------------------------------------

    def take_expired(self, min_physic_offset: int) -> IndexFile | None:
        """Take the first file, never the last, if it has only records below an offset.

        Return None if it stays, or is not flushed yet.
        """
        if len(self.files) < 2:
            return None
        file = self.files[0]
        if file.end_physic_offset >= min_physic_offset or file.is_dirty:
            return None
        return self.files.pop(0)

    def remove_taken(self, file: IndexFile) -> None:
        """Remove a file that was taken; blocks, and may run in any thread.  Raises DiskError."""
        self.disk.remove(file.path)
        self.removed.append(file)

    def give_back(self, file: IndexFile) -> None:
        """Put back a file that could not be removed."""
        self.files.insert(0, file)

    def close_removed(self) -> None:
        """Close the removed files, once no query may read them, which frees their disk space.

        Blocks, and may run in any thread.
        """
        while self.removed and not self.queries:
            self.removed.pop().close()
