"""Rules of a start: what it may rely on, where its walk begins, and what a bad record means.

::

    file 0        file 1        file 2            file 3
    … settled … │ … settled … │ … settled │ young  durable ┐ young      (end)
                                └ the walk begins here     └ rewritten, or trimmed where bad

Before the log is read, the checkpoint says what is on disk (the *durable boundary*) and from which
store time on records may not have been dispatched, and the consume queues say up to which offset
they were.  Decisions only; nothing is read or changed here.

A bad record ends the log as *torn* (it is trimmed), or is *damage* (the store is not opened):

==============================  ===============================================================
below the durable boundary      damage, unless it is the first part of a record that went on
                                beyond the boundary: a slave flushes wherever a frame ended
above it, after a crash         torn with everything after it: none of that was acknowledged as
                                on disk, and a power cut may leave a hole before intact bytes
intact records after it, and    damage
the boundary is not known, or
the last stop was clean
nothing intact after it         torn
==============================  ===============================================================

RocketMQ's own checkpoint gives a store time instead of an offset: records up to it are on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.store.record.layout import (
    BODY_LENGTH,
    BODY_POSITIONS,
    HEAD_READ_SIZE,
    HOST_FLAGS,
    HOST_FLAGS_POSITION,
    MESSAGE_MAGICS,
    PROPERTIES_LENGTH,
    SIZE_AND_MAGIC,
    STORED_OFFSET,
    STORED_OFFSET_POSITION,
    TOPIC_LENGTHS,
)
from hastore.store.record.record_check import RecordKind, claims_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.recovery.store_checkpoint import StoreCheckpoint

# Queues are flushed more often, as far as the disk has room.
_FELL_WITHIN_MS: Final = 600_000
LOG_FILES_CHECKED: Final = 3  # as many as RocketMQ's normal recovery reads
HEAD_SIZE_MAX: Final = 64 * 1024 * 1024  # larger than any record


@attrs.frozen(kw_only=True)
class StartFacts:
    """What is known before the log is read.

    ``flushed_offset``: everything below it is on disk; None if unknown.  ``flushed_ms``: the same
    as a store time, only if RocketMQ wrote the store.  ``settled_ms``: records up to this store
    time are on disk and dispatched; None after a clean stop (all of them are).  ``dispatched_to``:
    the end of the last record that the consume queues have; 0 for none.
    """

    last_exit_ok: bool
    flushed_offset: int | None = None
    flushed_ms: int | None = None
    settled_ms: int | None = None
    dispatched_to: int = 0

    @classmethod
    def of(
        cls,
        checkpoint: StoreCheckpoint | None,
        consume_queues: ConsumeQueueStore | None,
        *,
        last_exit_ok: bool,
    ) -> StartFacts:
        """Read what checkpoint and consume queues say."""
        dispatched_to = 0
        if consume_queues is not None:
            dispatched_to = max(consume_queues.max_physic_offset, 0)
            if consume_queues.rebuild_from is not None:
                dispatched_to = min(dispatched_to, consume_queues.rebuild_from)
        if checkpoint is None:
            settled_ms = None if last_exit_ok else 0
            return cls(
                last_exit_ok=last_exit_ok, settled_ms=settled_ms, dispatched_to=dispatched_to
            )
        is_own = checkpoint.is_own
        return cls(
            last_exit_ok=last_exit_ok,
            flushed_offset=checkpoint.flushed_offset if is_own else None,
            flushed_ms=None if is_own else checkpoint.physic_msg_timestamp or None,
            settled_ms=None if last_exit_ok else checkpoint.min_timestamp,
            dispatched_to=dispatched_to,
        )

    @property
    def is_boundary_known(self) -> bool:
        """Whether something says which bytes are on disk."""
        return self.flushed_offset is not None or self.flushed_ms is not None

    @property
    def torn_from(self) -> int | None:
        """Offset from which on a power cut may have left holes; None if that is not known."""
        return None if self.last_exit_ok else self.flushed_offset

    def after_fall(self, last_store_ms: int) -> StartFacts | None:
        """Return what is known of a log whose last record is older than the settled ones.

        None if it is not.  Store times have fallen then, since the queues were flushed: RocketMQ
        does not keep them from it where the clock is set back.  So later records look settled and
        are not.  That was not long ago, by the log's own times.
        """
        if not self.settled_ms or not 0 < last_store_ms < self.settled_ms:
            return None
        return attrs.evolve(self, settled_ms=max(last_store_ms - _FELL_WITHIN_MS, 1))

    # -- where the walk begins -------------------------------------------------------------------

    def first_file(
        self,
        offsets: Sequence[int],
        file_size: int,
        last_with_data: int,
        first_store_ms: Callable[[int], int | None],
        *,
        needs_queue_offsets: bool,
    ) -> int:
        """Return the index of the file where the walk begins.

        ``first_store_ms`` returns the store time of a file's first record, None if that is damaged.
        After a clean stop the walk begins at the third-last file, else at the newest one whose
        first record is settled and on disk.  A master's walk, which collects queue offsets, also
        covers every record that the consume queues do not have.
        """
        if needs_queue_offsets and (not self.dispatched_to or self.settled_ms == 0):
            return 0
        index = last_with_data
        is_on_disk_known = self.flushed_offset is not None  # 0 means that nothing is
        is_anything_known = self.settled_ms or is_on_disk_known or needs_queue_offsets
        if self.last_exit_ok or not is_anything_known:
            index = max(0, index - LOG_FILES_CHECKED + 1)
        else:
            while index > 0 and not self._is_settled(offsets[index], first_store_ms(index)):
                index -= 1
        if needs_queue_offsets and offsets:
            index = min(index, (self.dispatched_to - offsets[0]) // file_size)
        return max(index, 0)

    def _is_settled(self, file_from_offset: int, store_ms: int | None) -> bool:
        """Whether everything before a file is settled, if a time is known, and on disk."""
        if not store_ms or (self.settled_ms and store_ms > self.settled_ms):
            return False
        return self.flushed_offset is None or file_from_offset <= self.flushed_offset

    def redispatch_from(self, min_offset: int, end_offset: int, unsettled_from: int | None) -> int:
        """Return the offset where the dispatch begins again.

        ``unsettled_from``: where the walk met the first young record.
        """
        offset = min(self.dispatched_to, end_offset)
        if self.settled_ms == 0:
            return min_offset
        if unsettled_from is not None:
            offset = min(offset, unsettled_from)
        return max(offset, min_offset)

    # -- what a bad record means -----------------------------------------------------------------

    def why_damage_at(self, physic_offset: int, check: RecordCheck | None, head: bytes) -> str:
        """Return why the end of the walk must be damage, whatever follows; "" if it may be torn.

        ``head``: the first bytes there.  ``check`` None: there is no later file.
        """
        flushed = self.flushed_offset
        if flushed is not None and physic_offset < flushed:
            if is_cut_at(physic_offset, flushed, head):
                return ""
            return f"the log was on disk up to {flushed}"
        if check is not None and self.flushed_ms is not None:
            store_ms = _store_ms_of(check)
            if store_ms is not None and store_ms < self.flushed_ms:
                return "its store time says that it was on disk"
        if self.flushed_ms is not None and self.last_exit_ok and physic_offset < self.dispatched_to:
            return f"consumers were served up to {self.dispatched_to}"
        return ""

    def is_damage_before(self, physic_offset: int, store_ms: int) -> bool:
        """Whether a bad record is damage because of the given intact record after it."""
        if self.last_exit_ok or not self.is_boundary_known:
            return True
        if self.flushed_offset is not None:
            return physic_offset < self.flushed_offset
        assert self.flushed_ms is not None
        return store_ms <= self.flushed_ms

    def head_size(self, physic_offset: int) -> int:
        """Return how many bytes ``why_damage_at`` needs as its ``head``."""
        flushed_size = (self.flushed_offset or 0) - physic_offset
        return max(HEAD_READ_SIZE, min(flushed_size, HEAD_SIZE_MAX))


def _store_ms_of(check: RecordCheck) -> int | None:
    """Return the store time of a bad record if it can be read."""
    if check.kind in {RecordKind.BAD_BODY_CRC, RecordKind.BAD_PROP_CRC, RecordKind.TORN}:
        return check.store_timestamp_ms or None
    return None


def is_cut_at(physic_offset: int, flushed_offset: int, head: bytes) -> bool:
    """Whether a record begins at ``physic_offset`` that was flushed only up to ``flushed_offset``.

    Its size must say so, and everything readable of it must agree with that size: inner lengths
    expose a whole record with a damaged size.
    """
    flushed_size = flushed_offset - physic_offset
    if flushed_size < SIZE_AND_MAGIC.size:
        return True  # too little to prove anything
    seen = head[:flushed_size]
    if len(seen) < min(flushed_size, HEAD_READ_SIZE) or flushed_size > HEAD_SIZE_MAX:
        return False
    size, magic = SIZE_AND_MAGIC.unpack_from(seen)
    if magic not in MESSAGE_MAGICS or size <= flushed_size:
        return False
    stored = seen[STORED_OFFSET_POSITION : STORED_OFFSET_POSITION + STORED_OFFSET.size]
    if stored != STORED_OFFSET.pack(physic_offset)[: len(stored)]:
        return False
    if len(seen) >= HEAD_READ_SIZE and not claims_fit(seen):
        return False
    size_by_lengths = _size_by_lengths(seen, TOPIC_LENGTHS[magic].size)
    return size_by_lengths is None or size_by_lengths == size


def _size_by_lengths(seen: bytes, topic_length_size: int) -> int | None:
    """Add up a record's inner lengths; None if not all of them are in ``seen``."""
    if len(seen) <= HOST_FLAGS_POSITION + 1:
        return None
    at = BODY_POSITIONS[seen[HOST_FLAGS_POSITION] & HOST_FLAGS]
    for length_size, next_length_size in (
        (BODY_LENGTH.size, topic_length_size),
        (topic_length_size, PROPERTIES_LENGTH.size),
        (PROPERTIES_LENGTH.size, 0),
    ):
        if len(seen) < at:
            return None
        at += int.from_bytes(seen[at - length_size : at]) + next_length_size
    return at
