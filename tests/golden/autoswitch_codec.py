"""RocketMQ 5's AutoSwitch HA protocol, as far as the vectors need it: hastore does not speak it.

::

    slave to master    handshake   state i32 = 1, sync from last file i16, async learner i16,
                                   broker id i64
                       report      state i32 = 2, the slave's max offset i64
    master to slave    handshake   state i32 = 1, body size i32, max offset i64, last epoch i32,
                                   body: (epoch i32, start offset i64), ascending
                       transfer    state i32 = 2, body size i32, offset i64, epoch i32,
                                   the epoch's start offset i64, confirm offset i64, body: log bytes

A transfer without a body is a heartbeat; its offset is -1 as long as the master has no log.

The epoch file is text: the number of entries, the CRC32 (without its sign bit) of all lines below,
then ``epoch-startOffset``, a line each.
"""

import struct
import zlib

import attrs

HANDSHAKE, TRANSFER = 1, 2
_STATE = struct.Struct(">i")
_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_REPORT = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")


@attrs.frozen(kw_only=True)
class SlaveHandshake:
    broker_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False

    def encode(self):
        flags = (self.sync_from_last_file, self.async_learner)
        return _SLAVE_HANDSHAKE.pack(HANDSHAKE, *flags, self.broker_id)


@attrs.frozen(kw_only=True)
class Report:
    max_offset: int

    def encode(self):
        return _REPORT.pack(TRANSFER, self.max_offset)


@attrs.frozen(kw_only=True)
class MasterHandshake:
    max_offset: int
    last_epoch: int
    epochs: tuple[tuple[int, int], ...]

    def encode(self):
        size = _EPOCH.size * len(self.epochs)
        head = _MASTER_HANDSHAKE.pack(HANDSHAKE, size, self.max_offset, self.last_epoch)
        return head + b"".join(_EPOCH.pack(*entry) for entry in self.epochs)


@attrs.frozen(kw_only=True)
class Transfer:
    """A transfer's header; ``size`` bytes of the log follow it."""

    offset: int
    size: int
    epoch: int
    start: int
    confirm: int

    def encode(self):
        fields = (self.size, self.offset, self.epoch, self.start, self.confirm)
        return _TRANSFER.pack(TRANSFER, *fields)


def of_slave(data):
    """Yield every message that a slave sent."""
    position = 0
    while position < len(data):
        (state,) = _STATE.unpack_from(data, position)
        if state == HANDSHAKE:
            _, from_last, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(data, position)
            position += _SLAVE_HANDSHAKE.size
            yield SlaveHandshake(
                broker_id=broker_id,
                sync_from_last_file=from_last == 1,
                async_learner=learner == 1,
            )
        else:
            assert state == TRANSFER
            _, max_offset = _REPORT.unpack_from(data, position)
            position += _REPORT.size
            yield Report(max_offset=max_offset)


def of_master(data, *, has_bodies=True):
    """Yield every message that a master sent; without ``has_bodies`` transfers are headers only."""
    position = 0
    while position < len(data):
        state, size = struct.unpack_from(">ii", data, position)
        if state == HANDSHAKE:
            _, _, max_offset, last_epoch = _MASTER_HANDSHAKE.unpack_from(data, position)
            position += _MASTER_HANDSHAKE.size
            entries = tuple(_EPOCH.iter_unpack(data[position : position + size]))
            position += size
            yield MasterHandshake(max_offset=max_offset, last_epoch=last_epoch, epochs=entries)
        else:
            assert state == TRANSFER
            _, _, offset, epoch, start, confirm = _TRANSFER.unpack_from(data, position)
            position += _TRANSFER.size + (size if has_bodies else 0)
            yield Transfer(offset=offset, size=size, epoch=epoch, start=start, confirm=confirm)


def epoch_file(epochs):
    """Return the text of an epoch file."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"


def read_epoch_file(text):
    """Return the entries; ValueError if count or CRC32 is wrong."""
    epochs = [tuple(map(int, line.split("-"))) for line in text.splitlines()[2:]]
    if epoch_file(epochs) != text:
        msg = f"an epoch file that contradicts itself: {text!r}"
        raise ValueError(msg)
    return epochs
