"""The bytes of the AutoSwitch HA protocol (RocketMQ 5 in controller mode), in both directions.

All integers are big-endian and signed (source: RocketMQ 5.3 ``AutoSwitchHAClient`` and
``AutoSwitchHAConnection``; streams recorded from them).  A slave's handshake and its reports::

    0         4                6            8         16
    +---------+----------------+------------+---------+
    | state 1 | from last file | is learner | node id |      i32, i16, i16, i64
    +---------+----------------+------------+---------+
    | state 2 | max offset                  |                i32, i64
    +---------+-----------------------------+

A master's answer to the handshake, and its frames::

    0         4           8            16           20
    +---------+-----------+------------+------------+------------------------+
    | state 1 | body size | max offset | last epoch | (epoch, start offset)… |
    +---------+-----------+------------+------------+------------------------+
      i32       i32         i64          i32          each i32, i64

    0         4           8               16      20            28               36
    +---------+-----------+---------------+-------+-------------+----------------+--------+
    | state 2 | body size | physic offset | epoch | epoch start | confirm offset | bytes… |
    +---------+-----------+---------------+-------+-------------+----------------+--------+
      i32       i32         i64             i32     i64           i64

The handshake's 16 bytes must leave in one write: a RocketMQ master reads the node id as 0 if it has
only the first 12.  Its answer's last epoch is -1 if there is none.

A frame's bytes come from one mapped file and one epoch.  hastore labels a frame with that epoch and
its start; RocketMQ labels one that ends where an epoch ends with the *next* one, so the start may
be above the frame's offset.  Body size 0 is a heartbeat: its offset is the next one to be sent, -1
if the master has no log yet.

Invariant: a frame with its header fits the slave's read buffer of 4 MiB.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import attrs

from hastore.config import HA_FRAME_BODY_SIZE_MAX
from hastore.epoch_history import ENTRIES_MAX, EpochEntry, EpochHistory, fault_of
from hastore.errors import ProtocolError

STATE_READY: Final = 0  # never sent; a classic report begins with it
STATE_HANDSHAKE: Final = 1
STATE_TRANSFER: Final = 2
STATE_SHUTDOWN: Final = 4  # never sent

HANDSHAKE: Final = struct.Struct(">ihhq")
REPORT: Final = struct.Struct(">iq")
ANSWER_HEADER: Final = struct.Struct(">iiqi")
FRAME_HEADER: Final = struct.Struct(">iiqiqq")
HANDSHAKE_SIZE: Final = HANDSHAKE.size
REPORT_SIZE: Final = REPORT.size
ANSWER_HEADER_SIZE: Final = ANSWER_HEADER.size
FRAME_HEADER_SIZE: Final = FRAME_HEADER.size
# A frame's body may be this much smaller than a classic one's, whose header has 12 bytes.
FRAME_BODY_SIZE_MAX: Final = HA_FRAME_BODY_SIZE_MAX - (FRAME_HEADER_SIZE - 12)
NODE_ID_MIN: Final = 1
READER_ID_MAX: Final = (1 << 63) - 1
READER_IDS: Final = 1 << 40  # the highest node ids, of which a reader of the log draws one

_ENTRY: Final = struct.Struct(">iq")
_NO_EPOCH: Final = -1
_NO_EPOCH_ENTRY: Final = EpochEntry(_NO_EPOCH, -1)
_NO_LOG: Final = -1
_OFFSET_MAX: Final = (1 << 63) - 1
_YES: Final = 1
WRONG_PEER_HINT: Final = (
    'does the other end speak autoswitch? It needs [ha] protocol = "autoswitch", or on a RocketMQ 5'
    " broker enableControllerMode; a hastore master's status names whom it refuses, and why"
)


@attrs.frozen(kw_only=True)
class Handshake:
    """A slave's first 16 bytes."""

    node_id: int
    from_last_file: bool = False  # of interest only to a slave without a log
    is_learner: bool = False  # never counts, never becomes master

    @property
    def is_reader(self) -> bool:
        """Whether it only reads a part of the log, by an id that it has drawn."""
        return self.is_learner and self.node_id > READER_ID_MAX - READER_IDS

    def encode(self) -> bytes:
        """Return the 16 bytes."""
        return HANDSHAKE.pack(STATE_HANDSHAKE, self.from_last_file, self.is_learner, self.node_id)

    @classmethod
    def decode(cls, data: bytes) -> Handshake:
        """Read 16 bytes.  Raises ProtocolError for another state or an impossible node id."""
        state, from_last_file, is_learner, node_id = HANDSHAKE.unpack(data)
        if state != STATE_HANDSHAKE:
            msg = f"the slave began with state {state} instead of a handshake"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        if node_id < NODE_ID_MIN:
            msg = f"the slave's node id is {node_id}; the least is {NODE_ID_MIN}"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        return cls(
            node_id=node_id, from_last_file=from_last_file == _YES, is_learner=is_learner == _YES
        )


def encode_report(max_offset: int) -> bytes:
    """Return the 12 bytes of a report."""
    return REPORT.pack(STATE_TRANSFER, max_offset)


def decode_report(data: bytes) -> int:
    """Return a report's max offset.  Raises ProtocolError for another state or a negative one."""
    max_offset: int
    state, max_offset = REPORT.unpack(data)
    if state != STATE_TRANSFER:
        msg = f"the slave sent state {state} where a report was expected"
        raise ProtocolError(msg, hint=WRONG_PEER_HINT)
    if max_offset < 0:
        msg = f"the slave reported {max_offset}, where no log can end"
        raise ProtocolError(msg, hint=WRONG_PEER_HINT)
    return max_offset


@attrs.frozen(kw_only=True)
class HandshakeAnswer:
    """What a master answers: where its log ends, and its epochs."""

    max_offset: int
    epochs: EpochHistory

    def encode(self) -> bytes:
        """Return the bytes, to be sent in one write: a Java slave that reads a part asks again."""
        last_epoch = self.epochs.last_epoch
        entries = b"".join(_ENTRY.pack(*entry) for entry in self.epochs.entries)
        header = ANSWER_HEADER.pack(
            STATE_HANDSHAKE,
            len(entries),
            self.max_offset,
            _NO_EPOCH if last_epoch is None else last_epoch,
        )
        return header + entries

    @classmethod
    def decode(cls, data: memoryview) -> tuple[HandshakeAnswer, int] | None:
        """Read an answer at the front of ``data``; return it and its size, None if it is not whole.

        Raises ProtocolError if no master sends such bytes.
        """
        if len(data) < ANSWER_HEADER_SIZE:
            return None
        state, body_size, max_offset, last_epoch = ANSWER_HEADER.unpack_from(data)
        if state != STATE_HANDSHAKE:
            msg = f"the master answered the handshake with state {state}"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        if not 0 <= body_size <= ENTRIES_MAX * _ENTRY.size or body_size % _ENTRY.size:
            msg = (
                f"the master announced {body_size} bytes of epochs;"
                f" 0 to {ENTRIES_MAX} entries of {_ENTRY.size} bytes are allowed"
            )
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        if max_offset < 0:
            msg = f"the master's log ends at {max_offset}"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        size = ANSWER_HEADER_SIZE + body_size
        if len(data) < size:
            return None
        with data[ANSWER_HEADER_SIZE:size] as body:
            entries = tuple(EpochEntry(*entry) for entry in _ENTRY.iter_unpack(body))
        fault = fault_of(entries)
        if fault is None and last_epoch != (entries[-1].epoch if entries else _NO_EPOCH):
            fault = f"its last epoch is not {last_epoch}, as the header says"
        if fault is not None:
            msg = f"the master's list of epochs is damaged: {fault}"
            raise ProtocolError(msg, hint="look at it: hastore log epochs DIR, on the master")
        return cls(max_offset=max_offset, epochs=EpochHistory(entries)), size


def encode_frame_header(
    body_size: int,
    physic_offset: int | None,
    epoch: EpochEntry | None,
    confirm_offset: int | None,
) -> bytes:
    """Return the 36 bytes of a FrameHeader, without making one: once for each put of a producer."""
    return FRAME_HEADER.pack(
        STATE_TRANSFER,
        body_size,
        _NO_LOG if physic_offset is None else physic_offset,
        *(epoch or _NO_EPOCH_ENTRY),
        _NO_LOG if confirm_offset is None else confirm_offset,
    )


class FrameHeader(NamedTuple):
    """The 36 bytes before a frame's body."""

    body_size: int
    physic_offset: int | None  # None: a heartbeat of a master without a log
    epoch: EpochEntry | None  # the master's label, see above; None: a heartbeat without one
    confirm_offset: int | None  # None: the master does not know one

    def encode(self) -> bytes:
        """Return the 36 bytes."""
        return encode_frame_header(*self)

    @classmethod
    def decode(cls, data: memoryview, position: int = 0) -> FrameHeader:
        """Read 36 bytes.  Raises ProtocolError for a header that no master may send.

        A negative size is refused: a RocketMQ master sends one, and then bytes that it does not
        count, to a slave whose offset is below its first epoch.
        """
        state, body_size, physic_offset, epoch, epoch_start, confirm_offset = (
            FRAME_HEADER.unpack_from(data, position)
        )
        if state != STATE_TRANSFER:
            msg = f"the master sent state {state} where a frame was expected"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        if not 0 <= body_size <= FRAME_BODY_SIZE_MAX:
            msg = (
                f"the master sent a frame of {body_size} bytes at offset {physic_offset};"
                f" 0 to {FRAME_BODY_SIZE_MAX} fit the read buffer"
            )
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        offset = None if physic_offset == _NO_LOG and not body_size else physic_offset
        if offset is not None and not 0 <= offset <= _OFFSET_MAX - FRAME_BODY_SIZE_MAX:
            msg = f"the master sent a frame at offset {physic_offset}, where no log can be"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        entry = None if epoch == _NO_EPOCH and not body_size else EpochEntry(epoch, epoch_start)
        if entry is not None and (epoch < 0 or epoch_start < 0):
            msg = f"the master sent a frame of epoch {entry} at offset {physic_offset}"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        if confirm_offset < _NO_LOG:
            msg = f"the master sent the confirm offset {confirm_offset} at offset {physic_offset}"
            raise ProtocolError(msg, hint=WRONG_PEER_HINT)
        return cls(body_size, offset, entry, None if confirm_offset == _NO_LOG else confirm_offset)
