"""Whether two logs are one: their bytes are compared by checksums, without moving them.

::

    master  ├──────────────────────────────────────────────────────┤
    slave         ├───────────────────────────────────────────┤
    samples       ├┤       ├┤       ├┤       ├┤       ├───────┤   the end, the start, and between

Equal offsets mean equal bytes, and a log that parted stays apart behind that place: so the end of
what both hold tells most.  A difference is then narrowed down to its first byte.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

from hastore.broker.observe.node_status import NodeStatus
from hastore.store.tools.log_diff import look_at_side

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.client.admin import AdminClient
    from hastore.env.interface import Disk
    from hastore.store.tools.log_directory import LogDirectory

STEP_SIZE: Final = 4 * 1024 * 1024  # what a node gives at a time
_TAIL_SIZE: Final = 1024 * 1024
_SAMPLE_SIZE: Final = 64 * 1024
_SAMPLES: Final = 14


class LogSource(Protocol):
    """A log that can be asked for checksums."""

    begin: int
    end: int

    async def crc32(self, begin: int, end: int) -> int:
        """Give the CRC32 of at most ``STEP_SIZE`` bytes; HastoreError where that is impossible."""


@final
@attrs.define(eq=False)
class NodeLog:
    """The log of a node that runs."""

    admin: AdminClient
    begin: int
    end: int

    async def crc32(self, begin: int, end: int) -> int:
        """Ask the node."""
        return await self.admin.log_digest(begin, end)

    async def renew_end(self) -> None:
        """Ask the node where its log ends now."""
        status = (await self.admin.ha_status()).get("hastore")
        if isinstance(status, dict):
            self.end = max(self.end, NodeStatus.from_dict(status).max_offset)


@final
class DirectoryLog:
    """The log in a directory on which no node runs."""

    def __init__(self, disk: Disk, log: LogDirectory) -> None:
        side = look_at_side(disk, log)
        self.begin, self.end = side.min_offset, side.max_offset
        self._disk = disk
        self._log = log

    async def crc32(self, begin: int, end: int) -> int:
        """Read the files."""
        crc = 0
        for file in self._log.files:
            start, stop = max(begin, file.physic_offset), min(end, file.next_offset)
            if start >= stop:
                continue
            opened = self._disk.open_file(file.path, writable=False)
            try:
                crc = zlib.crc32(opened.pread(stop - start, start - file.physic_offset), crc)
            finally:
                opened.close()
        return crc


@attrs.frozen(kw_only=True)
class Comparison:
    """What came of it; ``first_difference`` None: no difference in the ``compared`` bytes."""

    begin: int
    end: int
    compared: int
    first_difference: int | None


async def compare(one: LogSource, other: LogSource, *, is_full: bool) -> Comparison:
    """Compare what both hold; an empty range is compared, and equal."""
    begin, end = max(one.begin, other.begin), min(one.end, other.end)
    compared = 0
    difference: int | None = None
    for start, stop in _ranges(begin, end, is_full=is_full):
        if await one.crc32(start, stop) != await other.crc32(start, stop):
            found = await _first_difference(one, other, start, stop)
            difference = found if difference is None else min(difference, found)
            if is_full:
                break
        compared += stop - start
    return Comparison(begin=begin, end=end, compared=compared, first_difference=difference)


def _ranges(begin: int, end: int, *, is_full: bool) -> Iterator[tuple[int, int]]:
    """What to compare: all of it in steps, or the end, the start and samples between."""
    if is_full or end - begin <= _TAIL_SIZE + _SAMPLE_SIZE * (_SAMPLES + 1):
        for start in range(begin, end, STEP_SIZE):
            yield start, min(start + STEP_SIZE, end)
        return
    yield end - _TAIL_SIZE, end
    between = end - _TAIL_SIZE - _SAMPLE_SIZE - begin
    for number in range(_SAMPLES):
        start = begin + between * number // _SAMPLES
        yield start, start + _SAMPLE_SIZE


async def _first_difference(one: LogSource, other: LogSource, begin: int, end: int) -> int:
    """Halve a range that differs until one byte is left."""
    while end - begin > 1:
        middle = (begin + end) // 2
        if await one.crc32(begin, middle) != await other.crc32(begin, middle):
            end = middle
        else:
            begin = middle
    return begin
