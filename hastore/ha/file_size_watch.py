"""Detects, on a slave, that its master's files have another size, and which.

The HA protocol does not carry the file size, but the BLANK at each file's end is replicated, so the
log only fits files of the master's size.  Two signs:

* a frame would cross our file's end: the master's files are larger;
* a frame ends with a BLANK, and no file of ours ends there: the master's are smaller.

A message's body can hold the bytes of a BLANK, so the second sign only counts once a walk over the
records has reached that BLANK.
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

LAST_OF_BLANK: Final = (0, BLANK_MAGIC_BYTES[-1])  # a BLANK and its zeros end with one of these
TAIL_SIZE: Final = 256  # where a BLANK at a file's end is looked for
_WALK_CHUNK_SIZE: Final = 1024 * 1024
_HEAD_CHUNK_SIZE: Final = 64 * 1024  # after a record with as much left


@final
@attrs.define(eq=False)
class FirstBlankFinder:
    """Walks records by their sizes, fed with consecutive bytes from a record boundary on."""

    next_record: int  # the offset of the next record's first byte
    is_lost: bool = attrs.field(default=False, init=False)  # met bytes that are no record
    found: int | None = attrs.field(default=None, init=False)  # the end of the first BLANK
    walked_from: int = attrs.field(init=False)  # the first record's offset
    fed_until: int = attrs.field(init=False)  # the end of the bytes seen
    _partial: bytes = attrs.field(default=b"", init=False)  # from ``next_record`` on

    def __attrs_post_init__(self) -> None:
        """Begin at the first record."""
        self.walked_from = self.fed_until = self.next_record

    @property
    def is_done(self) -> bool:
        """Whether more bytes change nothing."""
        return self.is_lost or self.found is not None

    def pass_over(self, max_offset: int) -> bool:
        """Take the rest of a large record as seen, up to ``max_offset``; return false if small."""
        rest = min(self.next_record, max_offset) - self.fed_until
        if rest < _HEAD_CHUNK_SIZE:
            return False
        self.fed_until += rest
        return True

    def feed(self, physic_offset: int, data: bytes | memoryview) -> int | None:
        """Scan the bytes from ``fed_until`` on; return ``found``."""
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
    """Return whether bytes end like a BLANK and its zeros: a hint, not a proof."""
    if not data or data[-1] not in LAST_OF_BLANK:
        return False
    stripped = bytes(data[-TAIL_SIZE:]).rstrip(b"\0")
    if len(stripped) < BLANK_SIZE_MIN:  # a long filler, or few bytes
        stripped = bytes(data).rstrip(b"\0")
    else:
        data = data[-TAIL_SIZE:]
    if not stripped.endswith(BLANK_MAGIC_BYTES) or len(stripped) < BLANK_SIZE_MIN:
        return False
    (size,) = SIZE.unpack_from(stripped, len(stripped) - BLANK_SIZE_MIN)
    return bool(size == len(data) - len(stripped) + BLANK_SIZE_MIN)


def blank_size(data: bytes) -> int:
    """Return the size of the BLANK at the start of ``data``; 0 if there is none."""
    if len(data) < BLANK_SIZE_MIN:
        return 0
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    return int(size) if magic == BLANK_MAGIC_CODE else 0


def find_first_blank(
    finder: FirstBlankFinder, read: Callable[[int, int], bytes], max_offset: int
) -> None:
    """Feed the finder with a log's bytes up to ``max_offset`` that it has not seen; blocks.

    Of large records only the start is read: a file of 1 GiB took 0.5 s, for which a slave's acks
    waited.  Each chunk is fed before the next is read, so a walk that failed can continue.
    """
    while not finder.is_done and finder.fed_until < max_offset:
        is_after_large = finder.pass_over(max_offset)
        chunk_size = _HEAD_CHUNK_SIZE if is_after_large else _WALK_CHUNK_SIZE
        position = finder.fed_until
        data = read(position, min(chunk_size, max_offset - position))
        if not data:
            break
        finder.feed(position, data)
