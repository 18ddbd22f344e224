"""Finds out, on a slave, that its master's files have another size, and which.

The HA protocol does not name the file size, yet the filler at each file's end (the BLANK record)
is replicated, so the layout only fits files of the master's size.  Two signs:

* a frame would cross our file's end: the master's files are larger.  The stream is then only read,
  not stored, until the first BLANK tells their size;
* a frame ends with a BLANK record, and no file of ours ends there: the master's are smaller.

A body can hold the bytes of a BLANK, so the second sign only counts once a walk over the records
from the log's start has met that BLANK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.record.layout import (
    BLANK_MAGIC_BYTES,
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    SIZE,
    SIZE_AND_MAGIC,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_TAIL_SIZE: Final = 256
_WALK_CHUNK_SIZE: Final = 1024 * 1024


@final
@attrs.define(eq=False)
class FirstBlankFinder:
    """Walks records by their sizes, fed with consecutive bytes from a record boundary on.

    ``feed`` gives the offset right behind the first BLANK record as soon as its 8 bytes are there;
    None until then.  That (``found``) and bytes that are no records (``is_lost``) end the walk for
    good.
    """

    next_record: int
    is_lost: bool = attrs.field(default=False, init=False)
    found: int | None = attrs.field(default=None, init=False)
    walked_from: int = attrs.field(init=False)
    fed_until: int = attrs.field(init=False)
    _partial: bytes = attrs.field(default=b"", init=False)

    def __attrs_post_init__(self) -> None:
        """Nothing was fed yet."""
        self.walked_from = self.fed_until = self.next_record

    @property
    def is_done(self) -> bool:
        """Whether more bytes would tell nothing more."""
        return self.is_lost or self.found is not None

    def feed(self, physic_offset: int, data: bytes | memoryview) -> int | None:
        """Take the next bytes; they must begin where the last ended."""
        assert physic_offset == self.fed_until
        self.fed_until += len(data)
        if self.is_done:
            return self.found
        if self.next_record + BLANK_SIZE_MIN > self.fed_until:
            if self.next_record < self.fed_until:
                self._partial += bytes(data)[-(self.fed_until - self.next_record) :]
            return None
        window = self._partial + bytes(data) if self._partial else data
        start = self.fed_until - len(window)
        self._partial = b""
        while self.next_record + BLANK_SIZE_MIN <= self.fed_until:
            size, magic = SIZE_AND_MAGIC.unpack_from(window, self.next_record - start)
            if size < BLANK_SIZE_MIN:
                self.is_lost = True
                return None
            self.next_record += size
            if magic == BLANK_MAGIC_CODE:
                self.found = self.next_record
                return self.found
        if self.next_record < self.fed_until:
            self._partial = bytes(window[self.next_record - start :])
        return None


def ends_with_blank(data: memoryview) -> bool:
    """Whether bytes end as a BLANK record and its filler of zeros end (a hint, not a proof)."""
    if not data or data[-1] not in (0, BLANK_MAGIC_BYTES[-1]):
        return False
    stripped = bytes(data[-_TAIL_SIZE:]).rstrip(b"\0")
    if len(stripped) < BLANK_SIZE_MIN:  # a long filler, or few bytes at all
        stripped = bytes(data).rstrip(b"\0")
    else:
        data = data[-_TAIL_SIZE:]
    if not stripped.endswith(BLANK_MAGIC_BYTES) or len(stripped) < BLANK_SIZE_MIN:
        return False
    (size,) = SIZE.unpack_from(stripped, len(stripped) - BLANK_SIZE_MIN)
    return bool(size == len(data) - len(stripped) + BLANK_SIZE_MIN)


def blank_size(data: bytes) -> int:
    """Return the size of the BLANK that bytes begin with; 0 where they do not."""
    if len(data) < BLANK_SIZE_MIN:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    return int(size) if magic == BLANK_MAGIC_CODE else 0


def find_first_blank(
    finder: FirstBlankFinder, read: Callable[[int, int], bytes], max_offset: int
) -> None:
    """Walk a log's own bytes: feed those up to ``max_offset`` that the finder has not seen yet.

    Blocks; each chunk is fed before the next is read, so a walk that fails goes on where it was.
    """
    while not finder.is_done and finder.fed_until < max_offset:
        position = finder.fed_until
        data = read(position, min(_WALK_CHUNK_SIZE, max_offset - position))
        if not data:
            break
        finder.feed(position, data)
