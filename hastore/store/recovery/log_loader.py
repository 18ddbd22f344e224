"""Opens what is in a store's ``commitlog/``: finds the log's end, and trims a torn tail.

First everything is read and checked, then things are changed, in this order: the bytes after the
last whole record are copied to ``DIR/trimmed/``, zeroed in the log, and forced to disk; those
between the durable boundary and the log's end are written again and forced to disk; only then are
positions set.  So no byte is lost, no stale byte can become a record again, and no byte counts only
because it is in the page cache.

``rules`` decides where the walk begins and what a bad record means.  Damage raises LogDamagedError,
and nothing is changed.

Without a checkpoint and consume queues (a log that is opened alone) a master walks every record, to
find each queue's next offset, and a slave the last three files; checksums are verified in the last
three.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, NoReturn, final

import attrs

from hastore.errors import DiskError, DiskFullError, LogDamagedError
from hastore.store.log.mapped_file_queue import FILES_MAPPED, file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR, TRIMMED_DIR, find_log_files
from hastore.store.queue.stale_units import StaleSearch
from hastore.store.queue.unit_check import UnitCheck
from hastore.store.record.layout import BLANK_SIZE_MIN
from hastore.store.record.record_check import RecordCheck, RecordKind
from hastore.store.recovery import trim as recovery_trim
from hastore.store.recovery.log_opener import LogEnd, LogOpener
from hastore.store.recovery.progress import Progress
from hastore.store.recovery.rules import (
    HEAD_SIZE_MAX,
    LOG_FILES_CHECKED,
    StartFacts,
    is_cut_at,
)
from hastore.store.recovery.tail_scan import FileWalk, check_at, scan_rest
from hastore.store.recovery.trim import Range, TrimmedTail
from hastore.store.reserve_file import ReserveFile
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk, DiskFile, Env
    from hastore.store.log.mapped_file_queue import MappedFileQueue
    from hastore.store.log.store_directory import LogFiles
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore
    from hastore.store.record.topic_queue_table import TopicQueueTable
    from hastore.store.recovery.store_checkpoint import StoreCheckpoint


_log = logger("store")


@attrs.frozen(kw_only=True)
class LoadReport:
    """What was found when the log was opened."""

    file_size: int
    files: int
    records: int  # walked
    queues: int
    min_offset: int
    max_offset: int
    last_exit_ok: bool
    trimmed: TrimmedTail | None
    removed_files: tuple[str, ...]  # paths of files without a byte of the log
    foreign_names: tuple[str, ...]  # in commitlog/, but not log files
    redispatch_from: int = 0  # where the dispatch begins again
    dispatched_to: int = 0  # the farthest queue's end; between the two there may be holes
    written_again: int = 0  # bytes from the durable boundary to the log's end
    last_message_offset: int | None = None  # where the last whole message begins, if known


@final
@attrs.frozen(kw_only=True)
class FoundEnd:
    """Where an opening has found the log's end, before it changes anything.

    ``end_offset`` is the end of the last whole record, or of the BLANK after it.  ``kept_offset``
    is the end that the opened log will have: a slave's ends before such a BLANK.
    ``intact_offset`` is where an intact record begins after the bytes that are cut off; None if
    there is none.
    """

    end_offset: int
    kept_offset: int
    intact_offset: int | None
    read: Callable[[int, int], bytes]  # offset and size to bytes of the log

    def lacks(self, offset: int) -> bool:
        """Return whether a whole record that ended at ``offset`` or below is missing.

        Acknowledgements of bytes may end inside a record: the rest of that record had not arrived.
        """
        if offset <= self.end_offset:
            return False
        size = min(offset - self.end_offset, HEAD_SIZE_MAX)
        return not is_cut_at(self.end_offset, offset, self.read(self.end_offset, size))


@attrs.frozen(kw_only=True)
class LoadedLog:
    """An open log."""

    queue: MappedFileQueue
    store_timestamp_ms: int
    report: LoadReport


@final
@attrs.define(eq=False)
class LogLoader:
    """Loads one directory, once.

    ``before_change`` is called before the first change, with the end that was found.
    """

    env: Env
    data_dir: str
    file_size_wanted: int | None
    table: TopicQueueTable | None  # filled by the walk; None for a slave, which needs none
    last_exit_ok: bool
    before_change: Callable[[FoundEnd], None]
    checkpoint: StoreCheckpoint | None = None
    consume_queues: ConsumeQueueStore | None = None
    _walked_from: int = attrs.field(default=0, init=False)  # where the walk to the end began
    _last_blank: tuple[int, int] | None = attrs.field(default=None, init=False)  # file, position
    _progress: Progress = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Measure the time of a long start from here."""
        self._progress = Progress(_log_progress, self.env.wall_clock.now_s)

    @property
    def _disk(self) -> Disk:
        return self.env.disk

    @property
    def _path(self) -> str:
        return f"{self.data_dir}/{COMMIT_LOG_DIR}"

    @property
    def _is_alone(self) -> bool:
        return self.checkpoint is None and self.consume_queues is None

    def load(self) -> LoadedLog:
        """Find the log's end, trim a torn tail, and open the files.

        Raises LogDamagedError, FileSizeMismatchError, NotAStoreError, DiskError.
        """
        found = find_log_files(self._disk, self.data_dir, self.file_size_wanted)
        if self.table is not None:  # an empty slave begins where its master says
            found = found.kept_empty()
        facts = StartFacts.of(self.checkpoint, self.consume_queues, last_exit_ok=self.last_exit_ok)
        walk = self._new_walk(facts)
        end = self._find_end(found, walk, facts)
        after_fall = facts.after_fall(walk.last_store_ms)
        if after_fall is not None:
            _log.warning(
                "store_times_fell",
                last_store_timestamp_ms=walk.last_store_ms,
                checkpoint_timestamp_ms=facts.settled_ms,
                effect="the start reads and dispatches more of the log again",
            )
            facts, self._last_blank = after_fall, None
            walk = self._new_walk(facts)
            end = self._find_end(found, walk, facts)
        kept = end if self.table is not None else self._before_blank(end)
        self.before_change(
            FoundEnd(
                end_offset=end.offset(found),
                kept_offset=kept.offset(found),
                intact_offset=end.intact_offset,
                read=functools.partial(self._read_if_there, found),
            )
        )
        end = kept
        trimmed = self._save(found, end)
        self._lower_boundary(end.offset(found))
        opener = LogOpener(
            disk=self._disk,
            path=self._path,
            found=found,
            end=end,
            rewrite_from=self._rewrite_from(found, end, facts, walk),
            dead=self._dead(found, end),
            progress=self._progress,
            check_from=walk.border if facts.flushed_offset is not None else walk.unsettled_from,
        )
        queue = opener.open(begins_anywhere=self.table is None, syncs=not self.last_exit_ok)
        try:
            self._take_queue_offsets(queue)
            self._raise_boundary(queue.max_offset)
        except BaseException:
            queue.close(remove_prepared=False)
            raise
        dispatched_to = 0 if self.consume_queues is None else self.consume_queues.max_physic_offset
        report = LoadReport(
            file_size=found.file_size,
            files=len(queue.files),
            records=walk.records,
            queues=0 if self.table is None else self.table.queue_count,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            last_exit_ok=self.last_exit_ok,
            trimmed=trimmed,
            removed_files=tuple(opener.removed),
            foreign_names=found.foreign,
            redispatch_from=facts.redispatch_from(
                queue.min_offset, queue.max_offset, walk.unsettled_from
            ),
            dispatched_to=dispatched_to,
            written_again=opener.written_again,
            last_message_offset=walk.last_message_offset,
        )
        _log_report(report, self._path)
        timestamp_ms = walk.store_timestamp_ms
        return LoadedLog(queue=queue, store_timestamp_ms=timestamp_ms, report=report)

    def _new_walk(self, facts: StartFacts) -> FileWalk:
        return FileWalk(
            table=self.table,
            dispatched_to=facts.dispatched_to,
            settled_ms=facts.settled_ms,
            torn_from=facts.torn_from,
            on_walked=self._progress.advance,
        )

    # -- reading ---------------------------------------------------------------------------------

    def _reading(self, file_from_offset: int) -> contextlib.closing[DiskFile]:
        path = f"{self._path}/{file_name(file_from_offset)}"
        return contextlib.closing(self._disk.open_file(path, writable=False))

    def _read(self, found: LogFiles, physic_offset: int, size: int) -> bytes:
        position = physic_offset % found.file_size
        with self._reading(physic_offset - position) as disk_file:
            return disk_file.pread(size, position)

    def _read_if_there(self, found: LogFiles, physic_offset: int, size: int) -> bytes:
        """Read what the file of an offset has from there on; nothing if there is no such file."""
        if physic_offset - physic_offset % found.file_size not in found.offsets:
            return b""
        return self._read(found, physic_offset, size)

    def _find_end(self, found: LogFiles, walk: FileWalk, facts: StartFacts) -> LogEnd:
        """Walk to the log's end and check what comes after it."""
        index, position, check = self._walk(found, walk, facts)
        if index == len(found.offsets):  # the last file is full, or there is none
            end = LogEnd(index=max(index - 1, 0), position=position, check=None)
            self._check_missing(found, end, facts)
        else:
            assert check is not None
            end = self._check_rest(found, index, position, check, facts)
        return end

    def _before_blank(self, end: LogEnd) -> LogEnd:
        """Move the end of a slave's log back to a BLANK with nothing after it.

        How much of its filler was received is unknown; RocketMQ's log ends there too.  The master
        sends the same bytes again, so there is nothing to save.
        """
        if self._last_blank is None:
            return end
        index, position = self._last_blank
        is_at_file_end = end.index == index or (end.index == index + 1 and not end.position)
        if not is_at_file_end or not position:
            return end
        return attrs.evolve(end, index=index, position=position)

    def _walk(
        self, found: LogFiles, walk: FileWalk, facts: StartFacts
    ) -> tuple[int, int, RecordCheck | None]:
        """Walk to the log's end; return the file's index, the position in it, what is there."""
        last_with_data = self._last_with_data(found.offsets)
        first_checked = max(0, last_with_data - LOG_FILES_CHECKED + 1)
        if self._is_alone:
            index = first_checked if self.table is None else 0
        else:
            index = facts.first_file(
                found.offsets,
                found.file_size,
                last_with_data,
                lambda index: self._first_store_ms(found.offsets[index]),
                needs_queue_offsets=self.table is not None,
            )
            if facts.is_boundary_known:
                first_checked = index
        first = index
        self._walked_from = found.offsets[first] if first < len(found.offsets) else 0
        self._progress.begin("reading", (last_with_data + 1 - first) * found.file_size)
        check = None
        position = 0
        while index < len(found.offsets):
            offset = found.offsets[index]
            with self._reading(offset) as disk_file:
                stopped = walk.walk(disk_file, offset, check_crc=index >= first_checked)
            position, check = stopped.position, stopped.check
            if check.kind is not RecordKind.BLANK:
                break
            if check.size >= BLANK_SIZE_MIN:
                self._last_blank = (index, position - check.size)
            index += 1
            self._progress.done = (index - first) * found.file_size
        return index, position, check

    def _last_with_data(self, offsets: tuple[int, ...]) -> int:
        for index in range(len(offsets) - 1, -1, -1):
            with self._reading(offsets[index]) as disk_file:
                if any(disk_file.pread(8, 0)):
                    return index
        return 0

    def _first_store_ms(self, file_from_offset: int) -> int | None:
        with self._reading(file_from_offset) as disk_file:
            check = check_at(disk_file, 0, file_from_offset, check_crc=True)
        return check.store_timestamp_ms if check.kind is RecordKind.MESSAGE else None

    # -- checking --------------------------------------------------------------------------------

    def _check_missing(self, found: LogFiles, end: LogEnd, facts: StartFacts) -> None:
        """Refuse a log that is shorter than its flushed part."""
        if not found.offsets and not (facts.flushed_offset or 0) % found.file_size:
            return  # perhaps a log that never got its first byte: it began at a file's start
        offset = end.offset(found)
        reason = facts.why_damage_at(offset, None, b"")
        if reason:
            self._refuse(offset, "missing", f"the log ends here, but {reason}")

    def _check_rest(
        self, found: LogFiles, index: int, position: int, check: RecordCheck, facts: StartFacts
    ) -> LogEnd:
        """Check what comes after the last whole record; refuse damage."""
        physic_offset = found.offsets[index] + position
        kind = f"{check.kind.value}{': ' if check.detail else ''}{check.detail}"
        with self._reading(found.offsets[index]) as disk_file:
            head = disk_file.pread(facts.head_size(physic_offset), position)
        reason = facts.why_damage_at(physic_offset, check, head)
        if reason:
            self._refuse(physic_offset, kind, reason)
        ranges = []
        intact_offset = None
        for later in range(index, len(found.offsets)):
            offset = found.offsets[later]
            start = position if later == index else 0
            with self._reading(offset) as disk_file:
                rest = scan_rest(disk_file, offset, start, to_the_end=facts.is_boundary_known)
            if rest.record is not None and intact_offset is None:
                intact_offset = offset + rest.record
                if facts.is_damage_before(intact_offset, rest.store_timestamp_ms):
                    reason = f"an intact record follows at {intact_offset}"
                    self._refuse(physic_offset, kind, reason)
            if rest.nonzero_end > start:
                ranges.append(Range(offset + start, offset + rest.nonzero_end))
        return LogEnd(
            index=index,
            position=position,
            check=check,
            ranges=tuple(ranges),
            intact_offset=intact_offset,
        )

    def _refuse(self, physic_offset: int, kind: str, reason: str) -> NoReturn:
        raise LogDamagedError(
            f"the log in {self.data_dir} is damaged at offset {physic_offset} ({kind}); {reason};"
            " nothing was changed",
            path=self._path,
            physic_offset=physic_offset,
            hint=f"hastore log repair {self.data_dir} --from-replica DIR; to check first:"
            f" hastore log verify {self.data_dir}",
        )

    # -- changing --------------------------------------------------------------------------------

    def _save(self, found: LogFiles, end: LogEnd) -> TrimmedTail | None:
        """Copy every byte that will be cut off to ``trimmed/``, durably."""
        if not end.ranges:
            return None
        assert end.check is not None
        now_ms = self.env.wall_clock.now_ms()
        read = functools.partial(self._read, found)
        copied = recovery_trim.pieces(end.ranges, read)
        directory = f"{self.data_dir}/{TRIMMED_DIR}"
        with ReserveFile(self._disk, self.data_dir).freed():
            paths = recovery_trim.save(self._disk, directory, now_ms, copied)
        return TrimmedTail(
            physic_offset=end.ranges[0].start,
            size=sum(part.stop - part.start for part in end.ranges),
            kind=end.check.kind.value,
            topic=end.check.topic.decode(errors="replace") if end.check.topic else None,
            saved_paths=paths,
            intact_offset=end.intact_offset,
        )

    def _lower_boundary(self, end_offset: int) -> None:
        """Lower the checkpoint's flushed offset, durably, before bytes below it are zeroed."""
        if self.checkpoint is not None and self.checkpoint.flushed_offset > end_offset:
            self.checkpoint.flushed_offset = end_offset
            self.checkpoint.flush()

    def _raise_boundary(self, end_offset: int) -> None:
        """Record in the checkpoint, durably, that the whole log is on disk."""
        if self.checkpoint is None:
            return
        self.checkpoint.flushed_offset = end_offset
        try:
            self.checkpoint.flush()
        except DiskFullError as error:  # the store can serve reads; the old checkpoint is true
            _log.warning("checkpoint_not_written", reason=str(error), next=error.hint)

    def _rewrite_from(
        self, found: LogFiles, end: LogEnd, facts: StartFacts, walk: FileWalk
    ) -> int | None:
        """Return where the bytes begin that may be in the page cache only; None if none are."""
        if self.last_exit_ok or self.checkpoint is None or not found.offsets:
            return None
        if facts.flushed_offset is not None:
            return max(facts.flushed_offset, found.offsets[0])
        if facts.flushed_ms is not None:
            # A little more than RocketMQ has not flushed; if it flushed all, what follows the end.
            return end.offset(found) if walk.unsettled_from is None else walk.unsettled_from
        return found.offsets[max(0, end.index - FILES_MAPPED + 1)]

    def _dead(self, found: LogFiles, end: LogEnd) -> list[Range]:
        """Return the ranges that must be zeros: those cut now and, after a crash, earlier ones."""
        dead = list(end.ranges)
        if not self.last_exit_ok and found.offsets:
            dead += recovery_trim.cut_before(self._disk, self.data_dir, end.offset(found))
        return dead

    def _take_queue_offsets(self, log: MappedFileQueue) -> None:
        """Advance queue offsets to the consume queues' ends; drop their units of no record.

        These are units beyond the log, and stale ones (``stale_units``).  Only the consume queues
        know the next offset of a queue whose records are all deleted, and of a deleted topic only
        its deletion.
        """
        if self.consume_queues is None:
            return
        self.consume_queues.truncate(log.max_offset)
        next_offsets = self._cut_stale(self.consume_queues, log)
        if self.table is None:
            return
        for (topic_name, queue_id), next_offset in next_offsets.items():
            self.table.advance(topic_name.encode(errors="surrogateescape"), queue_id, next_offset)
        if 0 < log.min_offset < log.max_offset and not len(self.consume_queues):
            _log.warning(
                "queue_offsets_of_deleted_records_unknown",
                min_offset=log.min_offset,
                reason="the log's front is deleted and there are no consume queues; a queue without"
                " a record in the rest of the log begins at 0 again",
            )
        for queue in self.consume_queues:
            topic = queue.topic.encode(errors="surrogateescape")
            self.table.advance(topic, queue.queue_id, queue.max_offset)
        for name, deletion in self.consume_queues.deleted.items():
            topic = name.encode(errors="surrogateescape")
            for queue_id, next_offset in deletion.next_offsets.items():
                self.table.advance(topic, queue_id, next_offset)

    def _cut_stale(
        self, queues: ConsumeQueueStore, log: MappedFileQueue
    ) -> dict[tuple[str, int], int]:
        """Cut the queues' stale units, which ``trimmed/`` keeps.

        Return from which queue offset each of these queues may continue, at least.
        """

        def read(physic_offset: int, size: int) -> bytes:
            mapped_file = log.find_mapped_file_by_offset(physic_offset)
            size = min(size, log.max_offset - physic_offset)
            if mapped_file is None or size <= 0:
                return b""
            return mapped_file.disk_file.pread(size, physic_offset - mapped_file.file_from_offset)

        search = StaleSearch(
            UnitCheck(read),
            file_size=log.file_size,
            min_offset=log.min_offset,
            intact_from=self._walked_from,
            intact_end=lambda file_from_offset: self._walk_old(file_from_offset, log, None),
        )
        stale = search.find(list(queues), queues.file_size)
        if not stale:
            return {}
        directory = f"{self.data_dir}/{TRIMMED_DIR}"
        with ReserveFile(self._disk, self.data_dir).freed():
            path = recovery_trim.save_units(
                self._disk, directory, self.env.wall_clock.now_ms(), stale
            )
        ends = {(one.queue.topic, one.queue.queue_id): one.queue.max_offset for one in stale}
        firsts = {(one.queue.topic, one.queue.queue_id): one.queue_offset for one in stale}
        queues.cut_stale(stale, functools.partial(self._lower_times, log))
        _log.warning("stale_units_cut", queues=len(ends), units=len(stale), saved=path)
        return firsts if self._collect_before_walk(queues.rebuild_from or 0, log) else ends

    def _lower_times(self, log: MappedFileQueue, physic_offset: int) -> None:
        """Let the checkpoint claim, durably, no unit or index entry from ``physic_offset`` on.

        It also claims the whole log, which is on disk by now: a checkpoint that was RocketMQ's
        becomes hastore's.
        """
        if self.checkpoint is None:
            return
        first = physic_offset - physic_offset % log.file_size
        offsets = [one.file_from_offset for one in log.files]
        try:
            found = [
                self._first_store_ms(offset)
                for offset in offsets
                if first <= offset < log.max_offset
            ]
        except DiskError as error:
            if not error.is_unreadable:
                raise
            found = []
        # Earlier than each file's first record, so that the next start walks all of these files.
        store_ms = max(min((ms or 0 for ms in found), default=0) - 1, 0)
        checkpoint = self.checkpoint
        checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, store_ms)
        checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, store_ms)
        checkpoint.flushed_offset = log.max_offset
        checkpoint.flush()

    def _collect_before_walk(self, rebuild_from: int, log: MappedFileQueue) -> bool:
        """Collect the queue offsets of records that no unit names any more, if there is a table.

        The walk to the log's end began at ``_walked_from``.  Return whether all of them are known:
        damage hides those after it in its file.
        """
        is_whole = True
        for mapped_file in log.files if self.table is not None else ():
            start = mapped_file.file_from_offset
            end = start + log.file_size
            if rebuild_from < end and start < self._walked_from:
                is_whole = self._walk_old(start, log, self.table) == end and is_whole
        return is_whole

    def _walk_old(
        self, file_from_offset: int, log: MappedFileQueue, table: TopicQueueTable | None
    ) -> int:
        """Walk a file that the start has not read; return the offset of its damage, or its end.

        A file that cannot be read counts as damaged from its start on.
        """
        mapped_file = log.find_mapped_file_by_offset(file_from_offset)
        assert mapped_file is not None, "only offsets of the log are asked for"
        walk = FileWalk(table=table, on_walked=self._progress.advance)
        self._progress.begin("reading", log.file_size)
        try:
            stopped = walk.walk(mapped_file.disk_file, file_from_offset, check_crc=False)
        except DiskError as error:
            if not error.is_unreadable:
                raise
            return file_from_offset
        return file_from_offset + stopped.position


def _log_progress(progress: Progress) -> None:
    _log.info("recovering", step=progress.step, **progress.pairs())


def _log_report(report: LoadReport, path: str) -> None:
    for name in report.foreign_names:
        _log.warning("foreign_file_ignored", name=name, path=path)
    for removed in report.removed_files:
        _log.info("empty_file_removed", path=removed, reason="it holds no byte of the log")
    trimmed = report.trimmed
    if trimmed is not None:
        _log.warning(
            "torn_tail_trimmed",
            physic_offset=trimmed.physic_offset,
            size=trimmed.size,
            kind=trimmed.kind,
            topic=trimmed.topic,
            sound_offset=trimmed.intact_offset,
            saved=list(trimmed.saved_paths),
        )
    _log.info(
        "log_loaded",
        files=report.files,
        records=report.records,
        min_offset=report.min_offset,
        max_offset=report.max_offset,
        last_exit_ok=report.last_exit_ok,
        redispatch_from=report.redispatch_from,
        written_again=report.written_again,
    )
