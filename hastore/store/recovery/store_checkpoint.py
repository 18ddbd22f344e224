"""The store's checkpoint: up to when, and up to where, everything is known to be on disk.

::

    0     physic_msg_timestamp   i64   store time of the last record of the log that was flushed
    8     logics_msg_timestamp   i64   … whose consume queue units were flushed
    16    index_msg_timestamp    i64   … whose keys are in an index file that was flushed
    24    flushed_offset         i64   all of the log below it is on disk (RocketMQ 5: its master's)
    32    confirm_offset         i64   RocketMQ 5: confirmPhyOffset
    40    seal                   20    hastore's: magic 8, sequence i64, CRC32 u32 of bytes 0 to 56
    1024  a copy of bytes 0 to 60, of every even sequence
    2048  a copy of bytes 0 to 60, of every odd sequence
    4096  the end

RocketMQ reads and writes only the first 40 bytes.  A flush writes one copy, syncs, and writes the
head, which the next flush or the close syncs.  So any crash leaves a valid block: the other copy
holds the flush before.  If the head is not hastore's newest block, the first flush replaces the
whole file.  Invariant: head and copies lie in separate sectors.

When read, the newest block with a valid seal wins.  If the head has no valid seal, and is no mix of
the two copies either (a torn write by hastore), RocketMQ wrote it: then its timestamps count, and
``flushed_offset`` is 0, because RocketMQ stores its master's offset there, not this disk's.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.store.reserve_file import write_beside_reserve
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.env.interface import Disk, DiskFile

CHECKPOINT_FILE: Final = "checkpoint"
CHECKPOINT_SIZE: Final = 4096
# RocketMQ starts to look for the first record to dispatch again this much earlier.
SAFETY_MS: Final = 3_000

_FIELDS: Final = struct.Struct(">5q")
_BLOCK: Final = struct.Struct(">5q8sqI")
_MAGIC: Final = b"hastore\x01"
_SEALED_SIZE: Final = _BLOCK.size - 4
_COPY_POSITIONS: Final = (1024, 2048)
_TIMESTAMP_MAX: Final = 2**43  # the year 2248: a later time is damage

_log = logger("store")


@attrs.frozen
class _Block:
    """One sealed block: the number of the flush that wrote it, and its 40 bytes."""

    sequence: int
    fields: bytes


@final
@attrs.define(eq=False)
class StoreCheckpoint:
    """The checkpoint of one store; ``flush`` writes the numbers, which anybody may set, to disk.

    ``is_usable``: the file exists and is valid; if not, nothing is known about the disk.
    ``is_own``: hastore wrote it, so ``flushed_offset`` is reliable, even if it is 0.
    """

    disk: Disk
    path: str
    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    flushed_offset: int = 0
    confirm_offset: int = 0
    is_usable: bool = False
    is_own: bool = False
    _is_sealed: bool = attrs.field(default=False, init=False)  # the head is hastore's newest
    _sequence: int = attrs.field(default=0, init=False)
    _fields_on_disk: bytes = attrs.field(default=b"", init=False)
    _file: DiskFile | None = attrs.field(default=None, init=False)

    @classmethod
    def open(cls, disk: Disk, data_dir: str) -> StoreCheckpoint:
        """Read a store's checkpoint without changing it.

        A missing, short or damaged one reads as zeros, with a warning.  Raises DiskError if the
        disk cannot be read.
        """
        checkpoint = cls(disk, f"{data_dir}/{CHECKPOINT_FILE}")
        if disk.exists(checkpoint.path):
            checkpoint._read(disk.read_file(checkpoint.path))
        return checkpoint

    @property
    def min_timestamp(self) -> int:
        """Store time before which all records are flushed and dispatched; 0 if unknown."""
        earlier = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(earlier - SAFETY_MS, 0)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        head = data[: _FIELDS.size]
        blocks = [_read_block(data, position) for position in _COPY_POSITIONS]
        copies = sorted((b for b in blocks if b is not None), key=lambda b: b.sequence)
        sealed_head = _read_block(data, 0)
        sealed = [*copies, sealed_head] if sealed_head is not None else copies
        newest = max(sealed, key=lambda block: block.sequence, default=None)
        self._sequence = 0 if newest is None else newest.sequence
        self._is_sealed = (
            newest is not None and newest == sealed_head and len(data) == CHECKPOINT_SIZE
        )
        is_ours = sealed_head is not None or _is_mixture(head, copies)
        if not is_ours and _is_plausible(head, newest):
            self._take(_FIELDS.unpack(head))
            self.flushed_offset = 0
            return
        if newest is None:
            if data.strip(b"\0"):
                _log.warning("checkpoint_unreadable", path=self.path, size=len(data))
            return
        if not is_ours:
            _log.warning("checkpoint_damaged", path=self.path, used="its copy")
        self._take(_FIELDS.unpack(newest.fields))
        self.is_own = True
        if self._is_sealed:
            self._fields_on_disk = newest.fields

    def _take(self, numbers: tuple[int, ...]) -> None:
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.flushed_offset,
            self.confirm_offset,
        ) = numbers
        self.is_usable = True

    # -- writing ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write and sync the numbers if they have changed; blocks.

        Raises DiskError; then the checkpoint on disk is still readable, and the next flush writes
        everything again.  FlushFailedError from the sync is final, as for any file.
        """
        fields = _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.flushed_offset,
            self.confirm_offset,
        )
        if fields == self._fields_on_disk:
            return
        self._fields_on_disk = b""
        sequence = self._sequence + 1
        block = _seal(sequence, fields)
        if self._is_sealed:
            if self._file is None:
                self._file = self.disk.open_sparse_file(self.path, CHECKPOINT_SIZE)
            self._is_sealed = False
            self._file.pwrite(block, _COPY_POSITIONS[sequence % 2])
            self._file.sync()
            self._file.pwrite(block, 0)
        else:
            self.close()
            image = bytearray(CHECKPOINT_SIZE)
            for position in (0, *_COPY_POSITIONS):
                image[position : position + _BLOCK.size] = block
            write_beside_reserve(self.disk, self.path, bytes(image))
        self._is_sealed = True
        self._sequence = sequence
        self._fields_on_disk = fields
        self.is_usable = self.is_own = True

    def forget_dispatched(self) -> None:
        """Claim, durably, no unit of any record, so that the next start dispatches the whole log.

        RocketMQ's checkpoint is removed: it has no offset that says what is on disk, and hastore's
        would say that nothing is.
        """
        self.logics_msg_timestamp = 0
        if self.is_own:
            self.flush()
        else:
            self.disk.remove(self.path)

    def close(self) -> None:
        """Sync the head, for RocketMQ, and close; idempotent.  Raises DiskError."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._is_sealed:
                file.sync()
        finally:
            file.close()


def _seal(sequence: int, fields: bytes) -> bytes:
    sealed = fields + _MAGIC + sequence.to_bytes(8, "big")
    return sealed + zlib.crc32(sealed).to_bytes(4, "big")


def _read_block(data: bytes, position: int) -> _Block | None:
    """Return the block at a position; None without a valid seal."""
    raw = data[position : position + _BLOCK.size]
    if len(raw) < _BLOCK.size:
        return None
    *_, magic, sequence, crc = _BLOCK.unpack(raw)
    if magic != _MAGIC or crc != zlib.crc32(raw[:_SEALED_SIZE]):
        return None
    return _Block(sequence, raw[: _FIELDS.size])


def _is_mixture(head: bytes, copies: Sequence[_Block]) -> bool:
    """Whether each byte of the head is that of a copy: then hastore wrote it, torn."""
    return bool(copies) and all(
        any(copy.fields[index] == byte for copy in copies) for index, byte in enumerate(head)
    )


def _is_plausible(head: bytes, newest: _Block | None) -> bool:
    """Whether a head without a seal can be RocketMQ's: no time is before hastore's newest."""
    if len(head) < _FIELDS.size or not head.strip(b"\0"):
        return False
    times = _FIELDS.unpack(head)[:3]
    earliest = (0, 0, 0) if newest is None else _FIELDS.unpack(newest.fields)[:3]
    return all(least <= time < _TIMESTAMP_MAX for least, time in zip(earliest, times, strict=True))
