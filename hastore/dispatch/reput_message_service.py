"""Follows the log up to the confirm offset and dispatches each record: RocketMQ's reput.

::

    log      ───────┬───────────────┬──────────────────┬───────────────┤
             committed_offset  reput_offset      confirm offset    max offset
         readable ◄─┘  dispatched ◄─┘ ···· next ·····► ┘

A pass begins one to three milliseconds after the wake-up and takes all that has gathered: one pass
costs as much as a dozen messages.  An acknowledgement, a flush or a frame that finds GATHER_SIZE
confirmed begins it at once, while the other node works.  It goes in steps of a few records, between
which other tasks run, such as acknowledgements to producers; the commit that makes a pass readable
goes in steps too.

A bad record whose size is known is skipped and logged; at any other damage dispatch stops, sets
``fault``, and tries again only when the log grows.  A slave also verifies checksums here: it did
not encode these records itself.

Invariants: ``committed_offset`` ≤ ``reput_offset``, and both only grow; records are dispatched in
the log's order, each at least once, and only below the confirm offset.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.message_rate import MessageRate
from hastore.concurrency.store_health import StoreHealth, Write
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.dispatch.record_scan import scan_fed_records, scan_records
from hastore.errors import DiskError, FlushFailedError
from hastore.native.in_use import extension
from hastore.store.log.cold_read import is_cold
from hastore.store.record.layout import (
    BLANK_MAGIC_CODE,
    BLANK_SIZE_MIN,
    HEAD_READ_SIZE,
    SIZE_AND_MAGIC,
    claimed_size,
)
from hastore.store.record.record_check import RecordKind, check_record, claims_fit
from hastore.store.recovery.progress import Progress
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.dispatch.record_dispatcher import RecordDispatcher
    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog, FedRecord
    from hastore.store.log_rewrite import WrittenRecord
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.record.record_check import RecordCheck

# How long a pass waits for more records: if a consumer waits for them, and if none does.  A timer
# costs as much as hundreds of records.
GATHER_S: Final = 0.001
GATHER_UNAWAITED_S: Final = 0.003
# Bytes that start a pass at once.  In Python 64 producers put 1.1 times as much as with the timer
# alone.  With the extension passes that small would cost a tenth more CPU and gain nothing.
GATHER_SIZE: Final = (128 if extension is None else 512) * 1024
RETRY_S: Final = 1.0  # after a failed write of consume queues or index
RECORDS_A_STEP: Final = 32  # some 100 µs in Python, then other tasks run
_STEP_SHIFT: Final = 12  # far behind, one record for each 4 KiB: else 64 producers outrun dispatch
_RECORDS_A_PASS: Final = 1_000
CHUNK_SIZE: Final = 1024 * 1024
_BUFFER_SIZE_MAX: Final = 8 * 1024 * 1024  # a record that claims more may be damaged
_FEED_MAX: Final = 10_000  # records; dispatch that is further behind reads the log

_log = logger("dispatch")


@final
@attrs.define(eq=False)
class ReputMessageService:
    """The dispatch of one node; notify ``wake`` after the log or its confirm offset grew."""

    env: Env
    commit_log: CommitLog
    dispatcher: RecordDispatcher
    confirm_offset: Callable[[], int]
    reput_offset: int
    # Where the last message begins that was read from the log, or a later known one.
    last_message_offset: int | None = attrs.field(default=None, kw_only=True)
    # A slave's: called with the offset of a bad record and the reason.  It detects and logs log
    # files of the wrong size.  None on a master, which verifies no checksums.
    on_bad_record: Callable[[int, str], None] | None = attrs.field(default=None, kw_only=True)
    wake: DispatchWake = attrs.field(factory=DispatchWake, kw_only=True)
    health: StoreHealth = attrs.field(factory=StoreHealth, kw_only=True)
    _tried_to: int = attrs.field(default=0, init=False)  # the confirm offset of the last pass
    # The end of the incomplete record at ``reput_offset``; it is not read until that is confirmed.
    _awaited_end: int = attrs.field(default=0, init=False)
    _log_fault: str | None = attrs.field(default=None, init=False)
    _disk_fault: str | None = attrs.field(default=None, init=False)
    # Consume queues and index have all records below it.
    committed_offset: int = attrs.field(init=False)
    _subscribers: list[Callable[[list[ConsumeQueue]], None]] = attrs.field(factory=list, init=False)
    _awaited: list[Callable[[], bool]] = attrs.field(factory=list, init=False)
    _is_commit_due: bool = attrs.field(default=False, init=False)
    dispatched: MessageRate = attrs.field(factory=MessageRate, init=False)
    skipped: int = attrs.field(default=0, init=False)  # bad records
    # Store time of the last record that consume queues and index have committed.
    dispatched_timestamp_ms: int = attrs.field(default=0, init=False)
    _taken_timestamp_ms: int = attrs.field(default=0, init=False)  # not committed yet
    _chunk: memoryview = attrs.field(default=memoryview(b""), init=False)  # of the log
    _chunk_offset: int = attrs.field(default=0, init=False)  # where the chunk begins
    _rewrites: int = attrs.field(default=0, init=False)  # of the log, by ``log_rewritten``
    _buffer: memoryview = attrs.field(
        factory=lambda: memoryview(bytearray(CHUNK_SIZE)), init=False
    )  # of a chunk that needed no wait

    # What a master has encoded in Python lately: reading it back would cost more.
    _feed: deque[FedRecord] = attrs.field(factory=lambda: deque(maxlen=_FEED_MAX), init=False)

    def __attrs_post_init__(self) -> None:
        """Begin where the last run ended."""
        self.wake.has_enough = self._has_enough
        self.committed_offset = self.reput_offset
        if self.on_bad_record is None:
            self.commit_log.feed = self._feed

    def subscribe(
        self,
        notify: Callable[[list[ConsumeQueue]], None],
        is_awaited: Callable[[], bool] | None = None,
    ) -> None:
        """Call ``notify`` after each pass, with the queues that grew; it must not block or raise.

        None has grown if all records were of unfinished transactions.

        All are called in the order in which they subscribed.  Passes come more often while an
        ``is_awaited`` returns true.
        """
        self._subscribers.append(notify)
        if is_awaited is not None:
            self._awaited.append(is_awaited)

    def wakeup(self) -> None:
        """Start a pass soon."""
        self.wake.start.wakeup()

    def _has_enough(self) -> bool:
        # Do not count again the bytes that the last pass left, such as a part of a record.
        enough = max(self.reput_offset, self._tried_to) + GATHER_SIZE
        return self.commit_log.max_offset >= enough and self.confirm_offset() >= enough

    @property
    def fault(self) -> str | None:
        """Why dispatch has stopped; None while it runs."""
        return self._disk_fault or self._log_fault

    @property
    def behind(self) -> int:
        """Bytes that are confirmed but not readable yet."""
        return max(self.confirm_offset() - self.committed_offset, 0)

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError is fail-stop.

        If the backlog at the start takes long, its progress is logged.
        """
        begun_at = self.committed_offset
        progress = Progress(_log_progress, trio.current_time)
        progress.size = self.commit_log.max_offset - begun_at
        while True:
            while await self._pass():
                progress.advance(self.committed_offset - begun_at - progress.done)
            await self.wake.start.wait_for_running()
            if not self._has_enough():
                is_awaited = any(is_awaited() for is_awaited in self._awaited)
                with trio.move_on_after(GATHER_S if is_awaited else GATHER_UNAWAITED_S):
                    await self.wake.enough.wait_for_running()
                    await trio.lowlevel.checkpoint()  # what the same ack has released goes first

    def log_rewritten(self, records: Iterable[WrittenRecord]) -> None:
        """Take records that were written into the log in place of other bytes, now or before.

        Those from ``reput_offset`` on are dispatched as usual.  The units of the others are put
        now, and committed by the next pass.
        """
        self._chunk, self._awaited_end = memoryview(b""), 0
        self._rewrites += 1
        self.dispatcher.log_rewritten()
        for record in records:
            if record.is_in_queue and record.physic_offset < self.reput_offset:
                self.dispatcher.restore(record)
                self._is_commit_due = True
        self.wakeup()

    async def catch_up(self) -> None:
        """Dispatch all that is confirmed now: for a stop, and for tests."""
        while await self._pass():
            pass

    async def _pass(self) -> bool:
        """Dispatch and commit a pass of confirmed records; return whether more are waiting."""
        log = self.commit_log
        if self.reput_offset < log.min_offset:
            _log.warning("dispatch_jumps", start=self.reput_offset, to=log.min_offset)
            self.reput_offset = log.min_offset
        self._tried_to = limit = self.confirm_offset()
        count = 0
        while max(self.reput_offset + 1, self._awaited_end) <= limit and count < _RECORDS_A_PASS:
            start = self.reput_offset
            count_max = min(max((limit - start) >> _STEP_SHIFT, RECORDS_A_STEP), _RECORDS_A_PASS)
            count += await self._step(limit, count_max)
            if self.reput_offset == start:
                break  # the next record is incomplete
            self._is_commit_due = True  # if this pass is cancelled, the next one commits
            await trio.lowlevel.checkpoint()
        if count:
            self.dispatched.mark(trio.current_time())
            self.dispatched.count += count
        self._chunk = memoryview(b"")
        if self._is_commit_due:
            await self._commit()
        self.committed_offset = self.reput_offset
        await trio.lowlevel.checkpoint()
        return count >= _RECORDS_A_PASS

    async def _step(self, limit: int, count_max: int) -> int:
        """Read and dispatch some records; return how many."""
        start, read_end, rewrites = self.reput_offset, limit, self._rewrites
        if self._feed:
            scan = scan_fed_records(self._feed, start, limit, count_max)
            if scan.record_count:
                self.dispatcher.dispatch_scan(scan, start)
                self._took(scan.last_offset, scan.last_store_ms)
                self.reput_offset = scan.position
                return scan.record_count
        if self._feed:
            fed_offset, fed_size = self._feed[0][:2]
            if fed_offset > start:
                read_end = min(limit, fed_offset)  # what is fed need not be read
            elif start + fed_size > limit:
                self._awaited_end = start + fed_size
                return 0
        if not self._has_record(start):
            self._read_now(start, read_end)
        size = 0 if self._has_record(start) else self._size_to_read(start, read_end)
        if size:
            data = await self._read(start, size)
            if len(data) >= BLANK_SIZE_MIN:
                size = claimed_size(data)
                if len(data) < size <= read_end - start:  # one record larger than a chunk
                    data = await self._read(start, size)
            # ``catch_up`` and ``run`` may read at the same time; and the bytes may be old ones.
            if self.reput_offset != start or self._rewrites != rewrites:
                return 0
            self._chunk, self._chunk_offset = memoryview(data), start
        return self._dispatch_chunk(limit, count_max)

    def _read_now(self, physic_offset: int, end: int) -> None:
        """Take a chunk, or one record larger than that, from the page cache as far as it is there.

        The buffer grows with the records, so that the pages of a large one are not fresh each time.
        """
        log = self.commit_log
        size = min(CHUNK_SIZE, end - physic_offset)
        count = log.read_now(physic_offset, self._buffer[:size])
        if count == CHUNK_SIZE:
            size = claimed_size(self._buffer)
            if count < size <= min(end - physic_offset, _BUFFER_SIZE_MAX):
                if size > len(self._buffer):
                    start, self._buffer = self._buffer[:count], memoryview(bytearray(size))
                    self._buffer[:count] = start
                count += log.read_now(physic_offset + count, self._buffer[count:size])
        self._chunk, self._chunk_offset = self._buffer[:count], physic_offset

    def _has_record(self, physic_offset: int) -> bool:
        """Whether the current chunk holds the whole record at an offset; of a BLANK its start."""
        at = physic_offset - self._chunk_offset
        rest = len(self._chunk) - at
        if at < 0 or rest < BLANK_SIZE_MIN:
            return False
        size, magic = SIZE_AND_MAGIC.unpack_from(self._chunk, at)
        return bool(magic == BLANK_MAGIC_CODE or 0 <= size <= rest)

    def _size_to_read(self, physic_offset: int, end: int) -> int:
        """Return how much to read, even if that waits; 0: the chunk has all up to ``end``."""
        left = end - physic_offset
        wanted = min(CHUNK_SIZE, left)
        if len(self._chunk) < max(wanted, BLANK_SIZE_MIN):
            return wanted
        size = claimed_size(self._chunk)
        return size if size <= left else 0

    async def _read(self, physic_offset: int, size: int) -> bytes:
        log = self.commit_log
        if is_cold(physic_offset, log.max_offset):
            return await self.env.offload.run(lambda: log.read(physic_offset, size))
        return log.read(physic_offset, size)

    def _dispatch_chunk(self, limit: int, count_max: int) -> int:
        """Dispatch the next whole records of the chunk; return how many."""
        data, base = self._chunk, self._chunk_offset
        file_size = self.commit_log.file_size
        count, check_crc = 0, self.on_bad_record is not None
        at = self.reput_offset - base
        while len(data) - at >= BLANK_SIZE_MIN and count < count_max:
            offset = base + at
            scan = scan_records(data, at, offset, file_size, count_max - count, check_crc=check_crc)
            if scan.record_count:
                self.dispatcher.dispatch_scan(scan, offset)
                self._took(scan.last_offset, scan.last_store_ms)
                count += scan.record_count
                at = scan.position
                continue
            file_end = offset - offset % file_size + file_size
            check = check_record(data, at, file_end - offset, offset, check_crc=check_crc)
            if check.kind is RecordKind.MESSAGE:
                self.dispatcher.dispatch_record(check, offset)
                self._took(offset, check.store_timestamp_ms)
                count += 1
                at += check.size
            elif check.kind is RecordKind.BLANK:
                if file_end <= limit:
                    at = file_end - base
                else:  # a slave has received only a part of the filler
                    self._awaited_end = file_end
                break
            elif check.size:
                self.skipped += 1
                _log.error("bad_record_skipped", physic_offset=offset, kind=check.kind.value)
                if self.on_bad_record is not None:
                    self.on_bad_record(offset, f"{check.kind.value}: {check.detail}")
                at += check.size
            else:
                self._stop_or_wait(offset, data[at:], check, file_end)
                break
        self.reput_offset = base + at
        return count

    def _stop_or_wait(
        self, physic_offset: int, data: memoryview, check: RecordCheck, file_end: int
    ) -> None:
        """Wait for the rest of a TORN record; stop at one that its file or its head rules out."""
        size, end_max = claimed_size(data), file_end
        if self._feed and self._feed[0][0] > physic_offset:
            end_max = min(end_max, self._feed[0][0])
        what = f"{check.kind.value}: {check.detail}"
        if check.kind is not RecordKind.TORN or physic_offset + size > end_max:
            is_blank = SIZE_AND_MAGIC.unpack_from(data)[1] == BLANK_MAGIC_CODE
            is_layout = is_blank or check.kind is RecordKind.TORN
            self._stop_at(physic_offset, what, is_layout=is_layout)
        elif len(data) < HEAD_READ_SIZE:
            return  # the next step sees more of its head
        elif claims_fit(data[:HEAD_READ_SIZE]):
            self._awaited_end = physic_offset + size
        else:
            what = f"{RecordKind.BAD_LENGTHS.value}: its body's length does not fit size {size}"
            self._stop_at(physic_offset, what, is_layout=False)

    def _took(self, last_offset: int, store_timestamp_ms: int) -> None:
        """Record what was dispatched last."""
        self.last_message_offset = max(self.last_message_offset or 0, last_offset)
        self._taken_timestamp_ms = store_timestamp_ms

    def _stop_at(self, physic_offset: int, what: str, *, is_layout: bool) -> None:
        """Stop at an offset and report it; ``on_bad_record`` logs a wrong file size itself."""
        fault = f"dispatch stopped at offset {physic_offset}: {what}"
        if self._log_fault != fault:
            self._log_fault = fault
            if self.on_bad_record is None or not is_layout:
                _log.error("dispatch_stopped", physic_offset=physic_offset, reason=what)
            if self.on_bad_record is not None:
                self.on_bad_record(physic_offset, what)

    # -- consume queues and index ----------------------------------------------------------------

    async def _commit(self) -> None:
        """Commit what was dispatched; if the disk fails, try again until it succeeds."""
        while True:
            try:
                grown = self.dispatcher.commit_step()
            except FlushFailedError:
                raise  # final: the log is on the same disk
            except DiskError as error:
                if self._disk_fault is None:
                    _log.error("dispatch_cannot_write", reason=str(error), next=error.hint)
                self._disk_fault = str(error)
                self.health.failed(Write.CONSUME_QUEUES, str(error))
                await trio.sleep(RETRY_S)
                continue
            if grown is None:
                await trio.lowlevel.checkpoint()
                continue
            self._is_commit_due = False
            self._disk_fault = None
            self.health.works(Write.CONSUME_QUEUES)
            self.committed_offset = self.reput_offset
            self.dispatched_timestamp_ms = self._taken_timestamp_ms
            for notify in self._subscribers:
                notify(grown)
            return


def _log_progress(progress: Progress) -> None:
    _log.info("dispatching", **progress.pairs())
