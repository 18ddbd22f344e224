"""The bytes of the classic HA protocol, in both directions.

Master to slave, a frame (source: RocketMQ 4.9.8 ``HAConnection``, identical in 5.x)::

    0               8           12                 12 + body_size
    +---------------+-----------+------------------+
    | physic offset | body size | commit-log bytes |      i64, i32, big-endian, signed
    +---------------+-----------+------------------+

``body size`` 0 is a heartbeat; its offset is that of the next byte to be sent.  A frame never
crosses the end of a mapped file and may begin and end inside a record.

Slave to master, a report: a bare i64, the slave's max offset, and nothing else.

Invariant: a frame with its header fits the slave's read buffer of 4 MiB; otherwise the slave could
never parse it.
"""

from __future__ import annotations

import struct
from typing import Final

from hastore.config import HA_FRAME_BODY_SIZE_MAX
from hastore.errors import ProtocolError

HEADER: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")
HEADER_SIZE: Final = HEADER.size
REPORT_SIZE: Final = REPORT.size

# No log can end at these offsets (a record is at least 91 bytes, a BLANK 8), so a new slave may use
# them as its first report to say where it wants to begin.
REPORT_NEW_SLAVE: Final = 0  # RocketMQ's new slave
REPORT_FROM_EARLIEST: Final = 1  # a stock master sends from byte 1 on; byte 0 is always 0
REPORT_DIVERGED: Final = -1  # "our logs differ": a slave's last report; stock masters ignore it
REPORT_FROM_LAST_FILE: Final = 2  # for hastore masters; a stock master is asked again with 0
FIRST_OFFSET_MIN: Final = 3  # the least offset that a slave reports as its own
# A slave with a log begins this much before its end, or earlier, to compare what it has.
OVERLAP_SIZE: Final = 4096

_OFFSET_MAX: Final = (1 << 63) - 1
_WRONG_PEER_HINT: Final = (
    "is that the HA port of a RocketMQ or hastore master?"
    " (a RocketMQ master's haTransferBatchSize must stay below 4 MiB - 12)"
)


def encode_header(physic_offset: int, body_size: int) -> bytes:
    """Return the 12 bytes of a frame's header."""
    return HEADER.pack(physic_offset, body_size)


def check_header(physic_offset: int, body_size: int) -> None:
    """Raise ProtocolError for a header that no master sends, before its body is received."""
    if physic_offset < 0:
        msg = f"the master sent a frame at offset {physic_offset}"
        raise ProtocolError(msg, hint=_WRONG_PEER_HINT)
    if physic_offset > _OFFSET_MAX - HA_FRAME_BODY_SIZE_MAX:
        msg = f"the master sent a frame at offset {physic_offset}, where no log can be"
        raise ProtocolError(msg, hint=_WRONG_PEER_HINT)
    if not 0 <= body_size <= HA_FRAME_BODY_SIZE_MAX:
        msg = (
            f"the master sent a frame of {body_size} bytes at offset {physic_offset};"
            f" 0 to {HA_FRAME_BODY_SIZE_MAX} fit the read buffer"
        )
        raise ProtocolError(msg, hint=_WRONG_PEER_HINT)


def encode_report(physic_offset: int) -> bytes:
    """Return the 8 bytes of a report."""
    return REPORT.pack(physic_offset)
