"""Opens what is in a store's ``commitlog/``: finds the log's end, and trims a torn tail.

First everything is read and judged, then things are changed, in this order: the bytes behind the
last whole record are copied to ``DIR/trimmed/``, zeroed in the log, forced to disk; only then do
positions exist.  So no byte is lost, and no stale byte can come back as a record.

* A *torn tail* (nothing sound behind it) is what a crash leaves: it is trimmed and named.
* *Damage* (a sound record behind it) is refused, and nothing is changed: LogDamagedError.

A master walks every record, to know each queue's next offset; a slave only the last three files.
Checksums are compared in the last three files: what is older was flushed long ago.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import LogDamagedError
from hastore.store.consume_queue_notes import note_consume_queues
from hastore.store.mapped_file import MappedFile
from hastore.store.mapped_file_queue import MappedFileQueue, file_name
from hastore.store.record_check import BLANK_SIZE_MIN, RecordCheck, RecordKind
from hastore.store.store_directory import COMMIT_LOG_DIR, TRIMMED_DIR, find_log_files
from hastore.store.tail_scan import CHUNK_SIZE, FileWalk, look_behind
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk, DiskFile, Env
    from hastore.store.record_check import RecordCheck
    from hastore.store.store_directory import LogFiles
    from hastore.store.topic_queue_table import TopicQueueTable

FILES_MAPPED: Final = 2  # the one being written, and one that slaves may still be sent
FILES_CHECKED: Final = 3  # RocketMQ's normal recovery looks at as many
TRIMMED_PIECE_SIZE_MAX: Final = 8 * 1024 * 1024

_log = logger("store")


@attrs.frozen(kw_only=True)
class TrimmedTail:
    """Bytes that were cut off behind the last whole record, and where they are kept."""

    physic_offset: int
    size: int
    kind: str  # what the first of them was: torn, bad-body-crc, …
    topic: str | None  # where it could be read
    saved_paths: tuple[str, ...]


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
    removed_files: tuple[str, ...]  # without a byte of the log
    foreign_names: tuple[str, ...]  # in commitlog/, and no log files


@attrs.frozen(kw_only=True)
class LoadedLog:
    """An open log."""

    queue: MappedFileQueue
    store_timestamp_ms: int
    report: LoadReport


@attrs.frozen(kw_only=True)
class _LogEnd:
    """Where the log ends: ``position`` in file ``index``; ranges are bytes behind it, not 0."""

    index: int
    position: int
    check: RecordCheck | None
    ranges: tuple[tuple[int, int, int], ...]  # file index, start and end position


@final
@attrs.define(eq=False)
class LogLoader:
    """Loads one directory, once.  ``before_change`` is called before the first change."""

    env: Env
    data_dir: str
    file_size_wanted: int | None
    table: TopicQueueTable | None  # filled by the walk; None for a slave, which needs none
    last_exit_ok: bool
    before_change: Callable[[], None]
    _removed: list[str] = attrs.field(factory=list, init=False)
    _last_blank: tuple[int, int] | None = attrs.field(default=None, init=False)  # file, position

    @property
    def _disk(self) -> Disk:
        return self.env.disk

    @property
    def _path(self) -> str:
        return f"{self.data_dir}/{COMMIT_LOG_DIR}"

    def load(self) -> LoadedLog:
        """Read, judge, change, open.

        Raises LogDamagedError, FileSizeMismatchError, NotAStoreError, DiskError.
        """
        found = find_log_files(self._disk, self.data_dir, self.file_size_wanted)
        walk = FileWalk(self.table)
        end = self._find_end(found, walk)
        self._note_deleted(found, end)
        self.before_change()
        saved = self._save(found, end)
        queue = MappedFileQueue(self._disk, self._path, found.file_size)
        try:
            self._open_files(queue, found, end)
        except BaseException:
            queue.close(remove_prepared=False)
            raise
        report = LoadReport(
            file_size=found.file_size,
            files=len(queue.files),
            records=walk.records,
            queues=0 if self.table is None else self.table.queue_count,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            last_exit_ok=self.last_exit_ok,
            trimmed=saved,
            removed_files=tuple(self._removed),
            foreign_names=found.foreign,
        )
        _tell(report, self._path)
        return LoadedLog(
            queue=queue,
            store_timestamp_ms=walk.store_timestamp_ms,
            report=report,
        )

    # -- reading ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self, file_from_offset: int) -> Iterator[DiskFile]:
        disk_file = self._disk.open_file(
            f"{self._path}/{file_name(file_from_offset)}", writable=False
        )
        try:
            yield disk_file
        finally:
            disk_file.close()

    def _find_end(self, found: LogFiles, walk: FileWalk) -> _LogEnd:
        """Walk to the log's end and look behind it."""
        index, position, check = self._walk(found, walk)
        if index == len(found.offsets):  # the last file is full, or there is none
            end = _LogEnd(index=max(index - 1, 0), position=position, check=None, ranges=())
        else:
            assert check is not None
            end = self._look_behind(found, index, position, check)
        return end if self.table is not None else self._before_blank(end)

    def _before_blank(self, end: _LogEnd) -> _LogEnd:
        """Take the end of a slave's log back to the BLANK that nothing stands behind.

        Of its filler nobody knows how much was received; RocketMQ's log ends there too.  The master
        sends it again, the same bytes, so there is nothing to save.
        """
        if self._last_blank is None:
            return end
        index, position = self._last_blank
        is_at_file_end = end.index == index or (end.index == index + 1 and not end.position)
        if not is_at_file_end or not position:
            return end
        return _LogEnd(index=index, position=position, check=end.check, ranges=end.ranges)

    def _walk(self, found: LogFiles, walk: FileWalk) -> tuple[int, int, RecordCheck | None]:
        """Walk to the log's end; gives the file's index, the position in it, what stands there."""
        last_with_data = self._last_with_data(found.offsets)
        first_checked = max(0, last_with_data - FILES_CHECKED + 1)
        index = first_checked if self.table is None else 0
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
        return index, position, check

    def _last_with_data(self, offsets: tuple[int, ...]) -> int:
        for index in range(len(offsets) - 1, -1, -1):
            with self._reading(offsets[index]) as disk_file:
                if any(disk_file.pread(8, 0)):
                    return index
        return 0

    def _look_behind(
        self, found: LogFiles, index: int, position: int, check: RecordCheck
    ) -> _LogEnd:
        physic_offset = found.offsets[index] + position
        ranges = []
        for later in range(index, len(found.offsets)):
            offset = found.offsets[later]
            start = position if later == index else 0
            with self._reading(offset) as disk_file:
                behind = look_behind(disk_file, offset, start)
            if behind.record is not None:
                raise LogDamagedError(
                    f"the log in {self.data_dir} is damaged at offset {physic_offset}"
                    f" ({check.kind.value}{': ' if check.detail else ''}{check.detail}); a sound"
                    f" record follows at {offset + behind.record}; nothing was changed",
                    path=f"{self._path}/{file_name(found.offsets[index])}",
                    physic_offset=physic_offset,
                    hint=f"hastore log verify {self.data_dir}; repair it from a replica",
                )
            if behind.nonzero_end > start:
                ranges.append((later, start, behind.nonzero_end))
        return _LogEnd(index=index, position=position, check=check, ranges=tuple(ranges))

    def _note_deleted(self, found: LogFiles, end: _LogEnd) -> None:
        """Learn from the consume queues how far queues had come in records that are deleted."""
        if self.table is None or not found.offsets or not found.offsets[0]:
            return
        end_offset = found.offsets[end.index] + end.position
        queues = note_consume_queues(self._disk, self.data_dir, end_offset, self.table)
        if not queues:
            _log.warning(
                "queue_offsets_of_deleted_records_unknown",
                min_offset=found.offsets[0],
                reason="the log's front is deleted and there is no consumequeue/; a queue without"
                " a record in the rest of the log begins at 0 again",
            )

    # -- changing --------------------------------------------------------------------------------

    def _save(self, found: LogFiles, end: _LogEnd) -> TrimmedTail | None:
        """Copy every byte that will be cut to ``trimmed/``, durably."""
        if not end.ranges:
            return None
        assert end.check is not None
        self._disk.make_dirs(f"{self.data_dir}/{TRIMMED_DIR}")
        now_ms = self.env.wall_clock.now_ms()
        paths = []
        for index, start, stop in end.ranges:
            with self._reading(found.offsets[index]) as disk_file:
                for position in range(start, stop, TRIMMED_PIECE_SIZE_MAX):
                    data = disk_file.pread(min(TRIMMED_PIECE_SIZE_MAX, stop - position), position)
                    name = f"{file_name(found.offsets[index] + position)}-{now_ms}"
                    paths.append(f"{self.data_dir}/{TRIMMED_DIR}/{name}")
                    self._disk.write_file(paths[-1], data)
        topic = end.check.topic.decode(errors="replace") if end.check.topic else None
        first_index, first_position, _ = end.ranges[0]
        return TrimmedTail(
            physic_offset=found.offsets[first_index] + first_position,
            size=sum(stop - start for _, start, stop in end.ranges),
            kind=end.check.kind.value,
            topic=topic,
            saved_paths=tuple(paths),
        )

    def _open_files(self, queue: MappedFileQueue, found: LogFiles, end: _LogEnd) -> None:
        """Open the files, map the last ones, zero what was cut, keep one empty file as prepared."""
        used = min(end.index + (1 if end.position else 0), len(found.offsets))
        if self.table is not None or used:
            queue.first_file_offset = found.offsets[0] if found.offsets else 0
            kept = used + 1
        else:
            kept = 0  # an empty slave learns from its master where the log starts
        for offset in reversed(found.offsets[kept:]):
            self._remove(f"{self._path}/{file_name(offset)}")
        if found.unfinished is not None:
            self._remove(f"{self._path}/{found.unfinished.name}")
        ranges = {index: (start, stop) for index, start, stop in end.ranges}
        for index, offset in enumerate(found.offsets[:kept]):
            path = f"{self._path}/{file_name(offset)}"
            is_mapped = index >= used - FILES_MAPPED or index in ranges
            disk_file = self._disk.open_file(path, writable=is_mapped)
            mapped_file = MappedFile(offset, found.file_size, disk_file)
            if index < used:
                queue.files.append(mapped_file)
            else:
                queue.prepared = mapped_file
            if index in ranges:
                _zero(mapped_file, *ranges[index])
            # After an unclean stop these bytes may be in the page cache only.
            if index in ranges or not self.last_exit_ok:
                disk_file.sync()
            if index < used:
                wrote = end.position if index == end.index else found.file_size
                mapped_file.wrote_position = mapped_file.flushed_position = wrote

    def _remove(self, path: str) -> None:
        self._disk.remove(path)
        self._removed.append(path)


def _zero(mapped_file: MappedFile, start: int, stop: int) -> None:
    for position in range(start, stop, CHUNK_SIZE):
        size = min(CHUNK_SIZE, stop - position)
        mapped_file.writable_view[position : position + size] = bytes(size)


def _tell(report: LoadReport, path: str) -> None:
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
            saved=list(trimmed.saved_paths),
        )
    _log.info(
        "log_loaded",
        files=report.files,
        records=report.records,
        min_offset=report.min_offset,
        max_offset=report.max_offset,
        last_exit_ok=report.last_exit_ok,
    )
