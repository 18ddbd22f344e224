"""Whether a slave that has a log begins where one can: a look at one record, once a connection.

A log ends where a record ends.  So the first report of a slave is the start of a record of ours, or
our own end; that of a hastore slave may lie ``OVERLAP_SIZE`` before such a place, or at the least
offset that it reports.  Another one is no proof of another log: a slave whose link broke inside a
record ends there, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.ha.slave_appender import FIRST_OFFSET_MIN, OVERLAP_SIZE
from hastore.store.log.cold_read import is_cold
from hastore.store.record.layout import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    MESSAGE_MAGICS,
    SIZE_AND_MAGIC,
    head_struct,
)

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog

_HEAD: Final = head_struct("size", "magic", "stored_offset")


def starts_record(log: CommitLog, offset: int) -> bool:
    """Whether a record of ours, a BLANK, or nothing yet begins at ``offset``; blocks.

    A record says where it stands, so that one look is enough.
    """
    if offset == log.readable_offset:
        return True
    data = log.read(offset, _HEAD.size)
    if len(data) < BLANK_SIZE_MIN:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(data)
    if magic == BLANK_MAGIC_CODE:
        return bool(size == log.file_size - offset % log.file_size)
    if magic not in MESSAGE_MAGICS or len(data) < _HEAD.size:
        return False
    return bool(_HEAD.unpack(data)[2] == offset)


def slave_may_begin(log: CommitLog, offset: int) -> bool:
    """Whether ``offset`` is a place where a sound slave begins that was not cut off; blocks."""
    places = offset, offset + OVERLAP_SIZE
    return offset == FIRST_OFFSET_MIN or any(starts_record(log, place) for place in places)


async def look_at_beginning(env: Env, log: CommitLog, offset: int) -> str | None:
    """Return what is to be said of a slave whose first report is ``offset``; None for nothing.

    Raises DiskError where that cannot be read.
    """
    if is_cold(offset, log.max_offset):
        may_begin = await env.offload.run(lambda: slave_may_begin(log, offset))
    else:
        may_begin = slave_may_begin(log, offset)
    if may_begin:
        return None
    return (
        f"it began at {offset}, inside a record: it was cut off there once, or its log is not this"
        " master's"
    )
