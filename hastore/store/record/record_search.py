"""Searches bytes for intact records where no walk can say where a record begins.

::

    ?????? head ? head ? head ? head ?????????? texts ????     each head claims all up to the texts
    ├────┼────┼────┼────┼────┼────┼────┼────┼────┼────┼        marks: CRC32 of all bytes up to here

A producer may fill a body with heads that each claim the rest of the file.  To read what each one
claims takes time that grows with the square of the body: 711 heads in 64 KiB read 711 files.  So
nothing is read because of a claimed size.  The lengths after the body are read where the head says
that they are, a few bytes each.  A checksum of any range follows from the CRC32 at its two ends::

    crc(start … stop) = crc(begin … stop) ^ shifted(crc(begin … start), stop - start)

and each byte is read once for those.  Invariant: a record is found exactly where ``check_record``
returns MESSAGE.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, final

from isal import isal_zlib

from hastore.store.record.layout import (
    BODY_POSITIONS,
    CRC_MASK,
    HEAD_READ_SIZE,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MAGIC_POSITION,
    MESSAGE_MAGIC_CODE,
    MESSAGE_PATTERN,
    PROP_CRC_SIZE,
    PROPERTIES_LENGTH,
    RECORD_SIZE_MIN,
    STORED_OFFSET,
    STORED_OFFSET_POSITION,
    TEXT_SIZE_MAX,
    TOPIC_LENGTHS,
    TOPIC_SIZE_MAX_V1,
    head_struct,
)
from hastore.store.record.record_check import claims_prop_crc, prop_crc_of, texts_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Read = Callable[[int, int], bytes]  # position, size: the bytes, fewer at the end

_MARK_EVERY: Final = 1024  # bytes: 4 MiB of marks for a log file of 1 GiB
_READ_SIZE: Final = 1024 * _MARK_EVERY
_MAGIC_AND_BODY_CRC: Final = head_struct("magic", "body_crc")
_LENGTH_SIZE_MAX: Final = 2  # of a topic's or the properties' length


class FoundRecord(NamedTuple):
    """An intact record.  ``is_cut_off``: as ``record_check.is_cut_off`` says of it."""

    size: int
    is_cut_off: bool


@final
class RecordSearch:
    """Searches ``[begin, end)`` for intact records, in time linear in its size.

    Positions are those of ``read``; position 0 has the offset ``physic_base``.
    """

    def __init__(self, read: Read, physic_base: int, begin: int, end: int) -> None:
        self._read_outside = read
        self._physic_base = physic_base
        self._begin, self._end = begin, end
        self._sums = _Checksums(self._read, begin, end)
        self._data, self._start = b"", 0

    def heads(self, data: bytes, start: int) -> Iterator[int]:
        """Yield where records may begin whose magic is in ``data``, which begins at ``start``.

        Each names its own offset.
        """
        self._data, self._start = data, start
        for match in MESSAGE_PATTERN.finditer(data):
            position = start + match.start() - MAGIC_POSITION
            if self._begin <= position <= self._end - RECORD_SIZE_MIN:
                stored = self._read(position + STORED_OFFSET_POSITION, STORED_OFFSET.size)
                if stored == STORED_OFFSET.pack(self._physic_base + position):
                    yield position

    def check(self, position: int) -> FoundRecord | None:
        """Check a record whose head is at a position that ``heads`` has yielded."""
        head = self._read(position, min(HEAD_READ_SIZE, self._end - position))
        texts_at = texts_range(head)
        if texts_at is None:
            return None
        body_end, size = texts_at
        if not RECORD_SIZE_MIN <= size <= self._end - position:
            return None
        magic, body_crc = _MAGIC_AND_BODY_CRC.unpack_from(head)
        topic_at = body_end + TOPIC_LENGTHS[magic].size
        lengths = self._read(position + body_end, _LENGTH_SIZE_MAX)
        topic_size = int.from_bytes(lengths[: topic_at - body_end])
        text_at = topic_at + topic_size + PROPERTIES_LENGTH.size
        topic_size_max = TOPIC_SIZE_MAX_V1 if magic == MESSAGE_MAGIC_CODE else TEXT_SIZE_MAX
        if topic_size > topic_size_max or not size - TEXT_SIZE_MAX <= text_at <= size:
            return None
        lengths = self._read(position + text_at - PROPERTIES_LENGTH.size, PROPERTIES_LENGTH.size)
        if text_at + int.from_bytes(lengths) != size:
            return None
        body_at = BODY_POSITIONS[head[HOST_FLAGS_POSITION] & HOST_FLAGS]
        if self._sums.of(position + body_at, position + body_end) & CRC_MASK != body_crc:
            return None
        ending_size = min(size - text_at, PROP_CRC_SIZE)
        ending = self._read(position + size - ending_size, ending_size)
        if claims_prop_crc(ending) and (
            ending_size < PROP_CRC_SIZE
            or ending != prop_crc_of(self._sums.of(position, position + size - PROP_CRC_SIZE))
        ):
            return None
        if not ending and topic_size:
            ending = self._read(position + topic_at + topic_size - 1, 1)
        return FoundRecord(size, ending[-1:] == b"\0")

    def _read(self, position: int, size: int) -> bytes:
        """Read bytes, from the chunk that is searched if it has them."""
        at = position - self._start
        if 0 <= at <= len(self._data) - size:
            return self._data[at : at + size]
        return self._read_outside(position, size)


@final
class _Checksums:
    """CRC32 of any range of ``[begin, end)``; reads each byte once, and less than a mark twice."""

    def __init__(self, read: Read, begin: int, end: int) -> None:
        self._read = read
        self._begin, self._end = begin, end
        self._marks = array("I", [0])

    def of(self, start: int, stop: int) -> int:
        """Return the CRC32 of ``[start, stop)``."""
        shifted = isal_zlib.crc32_combine(self._up_to(start), 0, stop - start)
        return self._up_to(stop) ^ shifted

    def _up_to(self, position: int) -> int:
        """Return the CRC32 of ``[begin, position)``."""
        index, more = divmod(position - self._begin, _MARK_EVERY)
        while len(self._marks) <= index:
            self._mark_more()
        return isal_zlib.crc32(self._read(position - more, more), self._marks[index])

    def _mark_more(self) -> None:
        at = self._begin + (len(self._marks) - 1) * _MARK_EVERY
        size = min(_READ_SIZE, (self._end - at) // _MARK_EVERY * _MARK_EVERY)
        data = memoryview(self._read(at, size).ljust(size, b"\0"))  # the file may be cut meanwhile
        crc = self._marks[-1]
        for start in range(0, size, _MARK_EVERY):
            crc = isal_zlib.crc32(data[start : start + _MARK_EVERY], crc)
            self._marks.append(crc)
