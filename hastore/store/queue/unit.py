"""The unit of a consume queue: where one message lies in the log; 20 bytes.

::

    byte 20 * n of a queue (of all its files together) is the unit of queue offset n

    | physic_offset 8 | size 4     | tags_code 8 |   valid: physic_offset >= 0 and size > 0
    | 0               | 0x7FFFFFFF | 0           |   a blank: no message has this queue offset

All integers are big-endian and signed.  This module is the only owner of the format.

With RocketMQ's ``enableConsumeQueueExt`` a tags code is the offset of a unit in consumequeue_ext/
plus the least 64-bit number: hash codes are 32-bit numbers, so every lower one is such an address.

Source: RocketMQ 4.9.8 ``ConsumeQueue`` (CQ_STORE_UNIT_SIZE, ``fillPreBlank``); the same in 5.x.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

# Name, and format as ``struct`` writes it.
UNIT_FIELDS: Final = (("physic_offset", "q"), ("size", "i"), ("tags_code", "q"))
UNIT: Final = struct.Struct(">" + "".join(code for _, code in UNIT_FIELDS))
UNIT_SIZE: Final = UNIT.size
SIZE_POSITION: Final = 8
EXT_ADDRESS_MAX: Final = -(2**31) - 1  # greatest tags code that is an address
BLANK_SIZE: Final = 0x7FFFFFFF  # in the size field of a blank
BLANK: Final = UNIT.pack(0, BLANK_SIZE, 0)


class Unit(NamedTuple):
    """One message's place in the log; of a delayed message ``tags_code`` is when it is due."""

    physic_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        """Whether no message has this queue offset."""
        return self.size == BLANK_SIZE and not self.physic_offset

    @property
    def is_extended(self) -> bool:
        """Whether the tags code is an address in consumequeue_ext/."""
        return self.tags_code <= EXT_ADDRESS_MAX


BLANK_UNIT: Final = Unit(0, BLANK_SIZE, 0)


def file_size_of(size_wanted: int) -> int:
    """Return the size of a queue's files: the configured one, rounded up to whole units."""
    return -(-size_wanted // UNIT_SIZE) * UNIT_SIZE


def is_torn(old: bytes, unit: bytes) -> bool:
    """Whether ``old`` is a blank or a torn ``unit``: a part of it, and zeros.

    A crash may leave one of the two sectors that a unit lies in as it was before.
    """
    if old == BLANK or old[:SIZE_POSITION] == unit[:SIZE_POSITION]:
        return True
    same = 0
    while same < UNIT_SIZE and old[-1 - same] == unit[-1 - same]:
        same += 1
    return not any(old[: UNIT_SIZE - same])
