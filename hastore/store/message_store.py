"""The store of one node: opens and reads log, consume queues, index and checkpoint together.

::

    open   lock -> unfinished cut -> checkpoint -> consume queues -> commit log (recovery) -> index
    read   topic, queue, offset -> consume queue -> (physic offset, size) -> commit log
           topic, key, time     -> index         -> physic offset         -> commit log

Reads see only dispatched records.  Everything is synchronous; a read may wait for the disk.  Reads
of queues and records consist of steps (``cold_read``), for the event loop.
Sources of the rules: RocketMQ ``DefaultMessageStore.getMessage``, ``queryMessage``,
``getOffsetInQueueByTime``.
"""

from __future__ import annotations

import contextlib
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import DiskError
from hastore.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from hastore.status import GetMessageStatus
from hastore.store.commit_log import CommitLog
from hastore.store.index.service import IndexService
from hastore.store.json_file import JsonFile
from hastore.store.log.cold_read import ReadStep
from hastore.store.log.store_directory import TABLE_FILES, check_is_store
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.queue.deleted_topics import limit_deleted, load_deleted, store_deleted
from hastore.store.queue.queue_read import GetMessageResult, QueueRead
from hastore.store.queue.unit_check import UnitCheck
from hastore.store.record.layout import (
    HEAD_READ_SIZE,
    MESSAGE_MAGICS,
    RECORD_SIZE_MIN,
    SIZE_AND_MAGIC,
    STORED_OFFSET,
    STORED_OFFSET_POSITION,
)
from hastore.store.record.message_codec import decode_properties
from hastore.store.record.record_check import (
    RecordCheck,
    RecordKind,
    check_record,
    check_without_body,
    texts_range,
)
from hastore.store.recovery.cut import complete_cut
from hastore.store.recovery.rebuilt_dirs import restore_interrupted
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.reserve_file import ReserveFile
from hastore.store.store_lock import StoreLock
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.store.log.cold_read import ReadSteps
    from hastore.store.record.message_filter import TagFilter
    from hastore.store.recovery.log_cut import LogCut
    from hastore.store.recovery.log_loader import FoundEnd

_RECORD_SIZE_FIRST_READ: Final = 4_096
_CANDIDATES_MAX: Final = 10_000  # records of one hash that a query reads
# What is read in place of texts where no record begins, so that it takes as long.
_NO_TEXTS: Final = (HEAD_READ_SIZE, 2 * HEAD_READ_SIZE)

_log = logger("store")


def lock_store(env: Env, config: StoreConfig) -> StoreLock:
    """Lock a store's directory, making it if there is none, and check its tables.

    Raises StoreLockedError, NotAStoreError, TableFileError, DiskError.
    """
    path = config.data_dir.rstrip("/") or "/"
    env.failed_writes.forget_below(path)  # what could not be stored is read again as it is
    check_is_store(env.disk, path)
    env.disk.make_dirs(path)
    lock = StoreLock.take(env.disk, path)
    try:
        for name, members in TABLE_FILES.items():
            torn = JsonFile(env.disk, f"{path}/{name}").check(members)
            if torn is not None:
                lock.torn_tables[name] = torn
    except BaseException:
        lock.release(clean=False)
        raise
    return lock


@final
@attrs.define(eq=False)
class MessageStore:
    """An open store; ``open`` makes it, ``close`` ends it."""

    env: Env
    config: StoreConfig
    commit_log: CommitLog
    consume_queues: ConsumeQueueStore
    index_service: IndexService | None
    checkpoint: StoreCheckpoint
    redispatch_from: int  # the offset where the dispatch has to begin
    completed_cut: LogCut | None = None  # the cut that this opening has finished
    torn_tables: Mapping[str, str] = attrs.field(factory=dict)  # the lock's
    redispatched_to: int = 0  # how far it has come; the dispatch sets it before ``close``

    @classmethod
    def open(
        cls,
        env: Env,
        config: StoreConfig,
        *,
        store_host: tuple[str, int],
        needs_queue_offsets: bool,
        lock: StoreLock | None = None,
        on_end: Callable[[FoundEnd], None] | None = None,
    ) -> MessageStore:
        """Open a directory, making it if there is none, and recover it; blocks.

        ``needs_queue_offsets`` is true for a master.  A cut that was not finished is finished
        first.  A caller that already holds the directory's ``lock`` keeps it if this fails, else
        ``close`` releases it.  ``on_end`` is ``CommitLog.open``'s.  Raises what that raises.
        """
        is_held_by_caller = lock is not None
        lock = lock or lock_store(env, config)
        path = lock.path
        with contextlib.ExitStack() as undo:
            if not is_held_by_caller:
                undo.callback(lock.release, clean=False)
            if not lock.last_exit_ok:
                lock.sync_names()
            restore_interrupted(env.disk, path)
            completed_cut = complete_cut(env, lock)
            last_exit_ok = lock.last_exit_ok
            checkpoint = StoreCheckpoint.open(env.disk, path)
            undo.callback(checkpoint.close)
            consume_queues = ConsumeQueueStore.load(
                env.disk, path, config.mapped_file_size_consume_queue
            )
            undo.callback(consume_queues.close)

            def before_drop() -> None:
                # Which records lose their units is known in memory only, until the log has been
                # dispatched again.
                lock.write_abort(env.process_id)
                checkpoint.forget_dispatched()

            consume_queues.recover(last_exit_ok=last_exit_ok, before_drop=before_drop)
            deleted = load_deleted(env.disk, path)
            consume_queues.remove_trees(consume_queues.delete_topics(deleted))
            commit_log = CommitLog.open(
                env,
                config,
                store_host=store_host,
                needs_queue_offsets=needs_queue_offsets,
                lock=lock,
                checkpoint=checkpoint,
                consume_queues=consume_queues,
                on_end=on_end,
            )
            undo.callback(commit_log.close, clean=False)  # releases the lock, too
            limited = limit_deleted(deleted, commit_log.max_offset)
            if limited != deleted:
                with ReserveFile(env.disk, path).freed():
                    store_deleted(env.disk, path, limited)
                consume_queues.deleted = limited
            redispatch_from = commit_log.load_report.redispatch_from
            if consume_queues.rebuild_from is not None:
                redispatch_from = min(redispatch_from, consume_queues.rebuild_from)
            consume_queues.delete_expired(commit_log.min_offset)
            index_service = None
            if config.message_index_enable:
                index_service = IndexService.load(
                    env,
                    commit_log.path,
                    config,
                    checkpoint,
                    last_exit_ok=last_exit_ok,
                    stale_from=consume_queues.stale_from,
                )
                undo.callback(index_service.close, clean=False)
                index_service.truncate(commit_log.max_offset)
                wanted = index_service.redispatch_from()
                if wanted is not None:
                    redispatch_from = min(redispatch_from, wanted)
            undo.pop_all()
        return cls(
            env,
            config,
            commit_log,
            consume_queues,
            index_service,
            checkpoint,
            max(redispatch_from, commit_log.min_offset),
            completed_cut,
            lock.torn_tables,
        )

    def close(
        self, *, clean: bool, before_release: Callable[[bool], None] = lambda _clean: None
    ) -> None:
        """Close everything; idempotent.  ``clean``: all is flushed, and ``abort`` is removed.

        ``before_release`` is called with whether the stop is clean, while the lock is still held.

        ``abort`` stays if the rest of the dispatched units cannot be written, so that the next
        start dispatches them again.  It also stays if this run was repairing the queues after a
        crash and has not finished: they may have holes.
        """
        if self.redispatch_from < self.commit_log.load_report.dispatched_to:
            clean = clean and self.redispatched_to >= self.commit_log.load_report.dispatched_to
        try:
            if clean:
                self.consume_queues.settle()
        except DiskError as error:
            _log.error("close_failed", reason=str(error), next=error.hint)
            clean = False
        try:
            self.consume_queues.close()
            if self.index_service is not None:
                self.index_service.close(clean=clean)
            if clean:
                self.checkpoint.flush()
            self.checkpoint.close()
        except DiskError as error:
            _log.error("close_failed", reason=str(error), next=error.hint)
            clean = False
        finally:
            try:
                before_release(clean)
            finally:
                self.commit_log.close(clean=clean)

    # -- queues ----------------------------------------------------------------------------------

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the first offset that a queue still has; 0 for an unknown queue."""
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return self.consume_queues.next_offset_of_deleted(topic, queue_id)
        return queue.min_offset

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 for an unknown queue."""
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return self.consume_queues.next_offset_of_deleted(topic, queue_id)
        return queue.max_offset

    def get_message_steps(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int,
        max_size: int,
        message_filter: TagFilter | None,
    ) -> ReadSteps[GetMessageResult]:
        """Read up to ``max_count`` messages and ``max_size`` bytes (but at least one) of a queue.

        With a filter it checks at most 16,000 units and reads at most 1,000 records; the next read
        always begins at ``next_begin_offset``.  The result is valid at the end of the last step.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            low = high = self.consume_queues.next_offset_of_deleted(topic, queue_id)
            if high == 0:
                return _nothing(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        else:
            low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return _nothing(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return _nothing(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return _nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return _nothing(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        assert queue is not None, "a queue without messages was answered above"
        read = QueueRead(
            queue=queue,
            log_min_offset=lambda: self.commit_log.min_offset,
            read_record=self._check_at,
            unit_check=UnitCheck(self.commit_log.read),
            max_count=max_count,
            max_size=max_size,
            message_filter=message_filter,
        )
        return (yield from read.steps(offset))

    # -- time ------------------------------------------------------------------------------------

    def store_time_steps(self, topic: str, queue_id: int, queue_offset: int) -> ReadSteps[int]:
        """Return the store timestamp (ms) of a message; -1 if there is none."""
        queue = self.consume_queues.find(topic, queue_id)
        units = [] if queue is None else queue.units(queue_offset, 1)
        if not units or units[0].is_blank:
            return -1
        store_ms: int = yield self._store_time(units[0].physic_offset)
        return store_ms

    def earliest_time_steps(self) -> ReadSteps[int]:
        """Return the store timestamp (ms) of the log's first message; -1 if there is none."""
        log = self.commit_log
        if log.min_offset >= log.readable_offset:
            return -1
        store_ms: int = yield self._store_time(log.min_offset)
        return store_ms

    def _store_time(self, physic_offset: int) -> ReadStep:
        def read() -> int:
            found = self._check_at(physic_offset)
            return -1 if found is None else found[1].store_timestamp_ms

        return ReadStep(physic_offset, read)

    def offset_by_time_steps(self, topic: str, queue_id: int, timestamp_ms: int) -> ReadSteps[int]:
        """Return the offset of the first message stored at or after a time, else the queue's end.

        The boundary is RocketMQ 5's LOWER; 4.9 returns the nearest.  0 for an unknown queue.
        Messages that expire meanwhile count as earlier.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return self.consume_queues.next_offset_of_deleted(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            # A blank has no time, so the last message before it decides.
            real = queue.last_unit_below(middle + 1, None)
            if real is None or real[0] < low:
                low = middle + 1
                continue
            store_ms = yield self._store_time(real[1].physic_offset)
            if store_ms < timestamp_ms:
                low = middle + 1
            else:
                high = real[0]
        return max(low, queue.min_offset)

    # -- records ---------------------------------------------------------------------------------

    def size_by_offset_steps(
        self, physic_offset: int, may_read: Callable[[RecordCheck], bool]
    ) -> ReadSteps[int | None]:
        """Return the size of the message at an offset that somebody has named.

        None unless the unit of the record's own queue names this offset and this size: the bytes
        there may be a record that a producer wrote into a body, a message of an unfinished
        transaction, or one of a deleted topic.  None as well if ``may_read`` refuses the record,
        which is checked first.  What is refused takes the same reads, whatever its size.
        """
        if not self.commit_log.min_offset <= physic_offset < self.commit_log.max_offset:
            return None
        check: RecordCheck = yield ReadStep(
            physic_offset, partial(self._check_without_body, physic_offset)
        )
        if not may_read(check) or not self._is_in_queue(check, physic_offset):
            return None
        return check.size

    def _check_without_body(self, physic_offset: int) -> RecordCheck:
        read = self.commit_log.read
        head = read(physic_offset, HEAD_READ_SIZE)
        begin, end = texts_range(head) or _NO_TEXTS
        texts = read(physic_offset + begin, end - begin)
        return check_without_body(head, texts, physic_offset)

    def is_in_queue(self, record: bytes) -> bool:
        """Whether the unit of a record's queue names it; for a record that was read by its offset.

        Only in the event loop, to which the queues belong.
        """
        check = check_record(record, 0, len(record), None, check_crc=False)
        (physic_offset,) = STORED_OFFSET.unpack_from(record, STORED_OFFSET_POSITION)
        return self._is_in_queue(check, physic_offset)

    def _is_in_queue(self, check: RecordCheck, physic_offset: int) -> bool:
        if check.kind is not RecordKind.MESSAGE:
            return False
        queue = self.consume_queues.find(
            check.topic.decode(errors="surrogateescape"), check.queue_id
        )
        units = [] if queue is None else queue.units(check.queue_offset, 1)
        return bool(units) and units[0][:2] == (physic_offset, check.size)

    def record_at(self, physic_offset: int, size: int | None = None) -> bytes | None:
        """Return the record that begins at an offset; None if there is none, or of another size.

        The offset must be below the confirm offset; that is not checked here.
        """
        found = self._check_at(physic_offset)
        if found is None or (size is not None and found[1].size != size):
            return None
        return found[0]

    def _check_at(self, physic_offset: int) -> tuple[bytes, RecordCheck] | None:
        log = self.commit_log
        if physic_offset < log.min_offset:
            return None
        data = log.read(physic_offset, _RECORD_SIZE_FIRST_READ)
        if len(data) < RECORD_SIZE_MIN:
            return None
        size, magic = SIZE_AND_MAGIC.unpack_from(data)
        if magic not in MESSAGE_MAGICS or size < RECORD_SIZE_MIN:
            return None
        if size > len(data):
            data = log.read(physic_offset, size)
        if len(data) < size:
            return None
        record = data[:size]
        check = check_record(record, 0, size, physic_offset, check_crc=False)
        return (record, check) if check.kind is RecordKind.MESSAGE else None

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        with_deleted: bool = False,
    ) -> list[bytes]:
        """Return the records of a topic that carry a key and were stored in a time window.

        ``with_deleted``: also those from before the topic was deleted, if it was.
        Newest first.  The index holds only hashes and whole seconds, so topic, key and time are
        compared with the record's own.  May run in a thread of its own.
        """
        if self.index_service is None:
            return []
        found: dict[int, bytes] = {}
        # More candidates than ``max_count``, because other keys may have the same hash; but with a
        # limit, because an attacker can make millions of them.
        candidates = self.index_service.candidates(topic, key, begin_ms, end_ms)
        for physic_offset in islice(candidates, _CANDIDATES_MAX):
            if len(found) >= max_count:
                break
            if not with_deleted and self.consume_queues.is_deleted(topic, physic_offset):
                continue
            at = self._check_at(physic_offset)
            if at is None or physic_offset in found:
                continue
            record, check = at
            if (
                check.topic.decode(errors="surrogateescape") == topic
                and begin_ms <= check.store_timestamp_ms <= end_ms
                and has_key(decode_properties(check.properties), key)
            ):
                found[physic_offset] = record
        return list(found.values())


def has_key(properties: dict[str, str], key: str) -> bool:
    """Whether a message's UNIQ_KEY is ``key``, or one of its KEYS."""
    return properties.get(PROPERTY_UNIQ_KEY) == key or key in properties.get(
        PROPERTY_KEYS, ""
    ).split(" ")


def _nothing(status: GetMessageStatus, next_offset: int, low: int, high: int) -> GetMessageResult:
    return GetMessageResult(
        status=status, next_begin_offset=next_offset, min_offset=low, max_offset=high
    )
