"""Deletion of the log's oldest files when they have expired, or the disk is too full.

``hastore.store.log.cleaning`` decides what may be deleted; this service does it, file by file:

    taken out of the log ─► unlinked, directory synced ─► closed, once no read of it is under way

so a crash at any point leaves a log without a hole.  The disk is checked again before each file:
one file of a gigabyte may be all the room that was missing.  The link to a slave whose hold ran out
is closed (``HAService.refuse_expired``).

Invariant: files leave the log from its front, in order, each removed before the next is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.store_health import StoreHealth, Write
from hastore.errors import DiskError
from hastore.store.archive.check import ArchiveCheck, ArchiveFindings, LogFileState
from hastore.store.disk_usage import DATA_DIR, disk_name, disk_usages
from hastore.store.log.cleaning import (
    CleaningRules,
    DiskLevel,
    OldFile,
    Reason,
    decide,
    file_dates,
    used_percent,
)
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.queue.directory import CONSUME_QUEUE_DIR
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hastore.broker.clock.clock_watch import ClockWatch
    from hastore.config import StoreConfig
    from hastore.env.interface import DiskSpace, Env
    from hastore.store.commit_log import CommitLog
    from hastore.store.disk_usage import DiskUsage
    from hastore.store.log.cleaning import CleaningDecision, Hold, Removal
    from hastore.store.log.mapped_file import MappedFile

FIRST_RUN_S: Final = 60.0
_INODES_LEAST: Final = 16  # of a node that takes over from one that cannot store
# A read in a thread finds its file and begins to hold it in microseconds.
_CLOSE_AFTER_S: Final = 0.1
_HOUR: Final = slice(8, 10)  # of yyyyMMddHHmmssSSS

_NOTHING_ARCHIVED: Final = ArchiveFindings(archived=frozenset())

_log = logger("broker")


@final
@attrs.define(eq=False, kw_only=True)
class CleanCommitLogService:
    """The expiry of one node's log.

    ``holds`` returns who needs which part of it.  ``refuse_expired`` is called in the step in which
    a file leaves the log in spite of a hold; ``on_removed`` when a round has removed something;
    ``on_disk_full`` with the reason why puts are refused from now on, None once they are not.
    ``flush_queues`` is awaited before a file is removed: after that only the units of its messages
    show, after a power cut, how far their queues had come.
    """

    env: Env
    config: StoreConfig
    commit_log: CommitLog
    clock: ClockWatch
    holds: Callable[[], Sequence[Hold]]
    refuse_expired: Callable[[], None]
    on_removed: Callable[[], None]
    on_disk_full: Callable[[str | None], None]
    flush_queues: Callable[[], Awaitable[object]] | None = None
    first_run_s: float = FIRST_RUN_S  # after the start
    health: StoreHealth = attrs.field(factory=StoreHealth)
    keep_reserve: Callable[[], object] = lambda: None  # blocks; called at each look at the disk
    rules: CleaningRules = attrs.field(init=False)
    last_decision: CleaningDecision | None = attrs.field(default=None, init=False)
    _is_full: bool = attrs.field(default=False, init=False)
    # Start of the first file, and since when (trio time) a hold alone has kept it.
    _held: tuple[int, float] | None = attrs.field(default=None, init=False)
    _fault: str | None = attrs.field(default=None, init=False)
    # With delete_only_archived: the check, its result in this round, the reason logged last.
    _archive: ArchiveCheck | None = attrs.field(default=None, init=False)
    _in_archive: ArchiveFindings = attrs.field(default=_NOTHING_ARCHIVED, init=False)
    _unarchived_because: str | None = attrs.field(default=None, init=False)
    # Removed files that are not closed yet: a read of them may be under way.
    _open: list[MappedFile] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        """Read the limits, and take over how full the disk was for the node's former role."""
        self.rules = CleaningRules.of(self.config)
        self._is_full = self.health.fails(Write.DISK_LEVEL)
        if self.config.delete_only_archived is not None:
            self._archive = ArchiveCheck(self.env.disk, self.config.delete_only_archived)

    async def run(self) -> None:
        """Serve until cancelled: check the disk at once, delete after the first minute."""
        begun = trio.current_time()
        try:
            while True:
                if trio.current_time() >= begun + self.first_run_s:
                    await self.clean()
                else:
                    await self._check_disk()
                await trio.sleep(self.config.clean_resource_interval_ms / 1000)
        finally:
            for mapped_file in self._open:
                if not mapped_file.holders:
                    _close(mapped_file)

    async def clean(self) -> int:
        """Do one round; return the number of files that were removed."""
        await self._close_removed()
        removed = 0
        modified_ms: Mapping[str, int] | None = None
        while removed < self.rules.batch_max:
            level = await self._check_disk()
            hour = int(self.env.wall_clock.local_name(self.env.wall_clock.now_ms())[_HOUR])
            if modified_ms is None and (level is not DiskLevel.ROOM or hour in self.rules.hours):
                modified_ms = await self._modified_ms()
                await self._check_archive(level, modified_ms)
            decision = self._decide(level, hour, modified_ms or {})
            if decision.removals and self.flush_queues is not None:
                await self.flush_queues()
                decision = self._decide(level, hour, modified_ms or {})
            if not decision.removals or not await self._remove(decision.removals[0]):
                break
            removed += 1
            if decision.removals[0].holders:  # the holder gets a round to react
                break
        if removed:
            self.on_removed()
        return removed

    # -- what may be deleted ---------------------------------------------------------------------

    async def _check_disk(self) -> DiskLevel:
        """Return what may be deleted, and have puts refused or accepted by the fullest disk.

        Files are deleted only for a disk on which that makes room.
        """
        path = self.commit_log.path
        try:
            usages = await self.env.offload.run(self._usages)
        except DiskError as error:
            self._record_fault(error)
            self.health.has_room_for_two_files = None
            return DiskLevel.ROOM
        fullest = usages[0]
        percent = used_percent(fullest.space.used_ratio)
        self.health.has_room_for_two_files = all(
            self._has_room(usage.space) for usage in usages if COMMIT_LOG_DIR in usage.directories
        )
        was_full, self._is_full = self._is_full, self.rules.is_full(percent, was_full=self._is_full)
        if self._is_full:
            reason = (
                f"the {disk_name(fullest.directories)} is {percent} % full: above"
                f" {self.rules.warning} % puts are refused, until it is {self.rules.forcibly} %"
                " or less"
            )
            if self._unarchived_because is not None:
                reason += "; files that are not archived stay (delete_only_archived)"
            self.on_disk_full(reason)
            self.health.failed(Write.DISK_LEVEL, reason)
            if not was_full:
                _log.error("disk_full", path=_path_on(fullest, path), used_percent=percent)
        else:
            self.health.works(Write.DISK_LEVEL)
        if was_full and not self._is_full:
            self.on_disk_full(None)
            _log.info("disk_has_room_again", path=path, used_percent=percent)
        cleaned = [usage.space.used_ratio for usage in usages if usage.is_cleaned]
        return self.rules.level(used_percent(max(cleaned, default=0.0)))

    def _has_room(self, space: DiskSpace) -> bool:
        """Return whether two more log files fit, and some small ones.

        One of them may be there: it was made because the master cannot store.
        """
        queue = self.commit_log.mapped_file_queue
        is_one_there = queue.wants_next_file and queue.prepared is not None
        files = 1 if is_one_there else 2
        has_inodes = space.free_inodes is None or space.free_inodes >= _INODES_LEAST
        return has_inodes and space.free_bytes >= files * self.commit_log.file_size

    def _usages(self) -> tuple[DiskUsage, ...]:
        """Return how full the file systems are, the fullest first; blocks.  Raises DiskError."""
        self.keep_reserve()
        root = self.commit_log.path
        usages = disk_usages(self.env.disk, root)
        names = {name for usage in usages for name in usage.directories}
        if names.isdisjoint({COMMIT_LOG_DIR, CONSUME_QUEUE_DIR}):
            raise DiskError(
                f"{root} has neither {COMMIT_LOG_DIR}/ nor {CONSUME_QUEUE_DIR}/: nothing can be"
                " cleaned",
                path=root,
                hint="find out what removed or renamed them",
            )
        return usages

    async def _modified_ms(self) -> Mapping[str, int]:
        path = self.commit_log.mapped_file_queue.path
        try:
            entries = await self.env.offload.run(lambda: self.env.disk.list_dir(path))
        except DiskError as error:
            self._record_fault(error)
            return {}
        return {entry.name: entry.modified_ms for entry in entries}

    async def _check_archive(self, level: DiskLevel, modified_ms: Mapping[str, int]) -> None:
        """Look up which of the expired files are archived, if only such may be deleted."""
        archive = self._archive
        if archive is None:
            return
        expired_ms = self.env.wall_clock.now_ms() - self.rules.reserved_ms
        files = []
        for file, date_ms in self._dated(modified_ms)[: self.rules.batch_max]:
            name = file_name(file.file_from_offset)
            time_ms = modified_ms.get(name)
            if time_ms is None or (date_ms > expired_ms and level is not DiskLevel.CLEAN_ANY):
                break
            state = LogFileState(
                name=name, path=file.path, size=file.file_size, modified_ms=time_ms
            )
            files.append(state)
        self._in_archive = await self.env.offload.run(lambda: archive.find_archived(files))

    def _dated(self, modified_ms: Mapping[str, int]) -> list[tuple[MappedFile, int]]:
        """Return the log's files, the oldest first, each with its date (ms)."""
        now_ms = self.env.wall_clock.now_ms()
        newest = max(modified_ms, default="")

        def modified(name: str) -> int:
            """Return when a file was modified (ms).

            A file that is not listed was created since; or it was unlinked, and put back into the
            log because the directory could not be synced.
            """
            return modified_ms.get(name, now_ms if name > newest else 0)

        files = self.commit_log.mapped_file_queue.files
        starts = [file.file_from_offset for file in files]
        dates = file_dates(
            starts, [modified(file_name(start)) for start in starts], now_ms, self.clock.date_floor
        )
        return list(zip(files, dates, strict=True))

    def _decide(
        self, level: DiskLevel, hour: int, modified_ms: Mapping[str, int]
    ) -> CleaningDecision:
        now = trio.current_time()
        in_doubt = self.clock.check().in_doubt  # first: it may find that dates are too early
        files = [
            OldFile(
                start=file.file_from_offset,
                end=file.next_file_offset,
                date_ms=date_ms,
                is_flushed=file.flushed_position == file.file_size,
                is_archived=self._archive is None
                or file_name(file.file_from_offset) in self._in_archive.archived,
                readers=file.holders,
            )
            for file, date_ms in self._dated(modified_ms)[: self.rules.batch_max + 1]
        ]
        if self._held is not None and (not files or self._held[0] != files[0].start):
            self._held = None
        decision = decide(
            self.rules,
            files,
            now_ms=self.env.wall_clock.now_ms(),
            hour=hour,
            level=level,
            in_doubt=in_doubt,
            holds=self.holds(),
            held_ms=0 if self._held is None else (now - self._held[1]) * 1000,
        )
        if decision.stopped_because is not Reason.HELD or decision.removals:
            self._held = None
        elif self._held is None:
            self._held = (files[0].start, now)
            _log.warning(
                "expired_file_held",
                file_from_offset=files[0].start,
                holders=list(decision.holders),
                at_most_ms=self.rules.hold_ms,
            )
        self._report_unarchived(files[0].start if files else 0, decision)
        self.last_decision = decision
        return decision

    def _report_unarchived(self, start: int, decision: CleaningDecision) -> None:
        """Log once why the first file stays, if that is because it is not archived."""
        if decision.removals:
            return
        if decision.stopped_because is not Reason.NOT_ARCHIVED:
            self._unarchived_because = None
            return
        reason = self._in_archive.reason or "it was not checked yet"
        if self._unarchived_because == reason:
            return
        self._unarchived_because = reason
        _log.warning(
            "expired_file_not_archived",
            file_from_offset=start,
            reason=reason,
            next=f"hastore pipeline run archive {self.commit_log.path}"
            f" --out {self.config.delete_only_archived}",
        )

    # -- removal ---------------------------------------------------------------------------------

    async def _remove(self, removal: Removal) -> bool:
        """Remove the first file; return False if the disk fails, and keep the file."""
        queue = self.commit_log.mapped_file_queue
        mapped_file = queue.take_first()
        assert mapped_file.file_from_offset == removal.start
        if removal.holders:
            self.refuse_expired()
        try:
            await self.env.offload.run(lambda: self.env.disk.remove(mapped_file.path))
        except DiskError as error:
            queue.give_back(mapped_file)
            self._record_fault(error)
            return False
        except BaseException:
            self._open.append(mapped_file)
            raise
        self._fault = None
        self._open.append(mapped_file)
        _log.info(
            "file_deleted",
            path=mapped_file.path,
            reason=removal.reason.value,
            held_by=list(removal.holders),
        )
        await trio.sleep(max(self.config.delete_files_interval_ms / 1000, _CLOSE_AFTER_S))
        await self._close_removed()
        return True

    async def _close_removed(self) -> None:
        """Close the removed files that nobody reads any more, which frees their space."""
        closing = [mapped_file for mapped_file in self._open if not mapped_file.holders]
        for mapped_file in closing:
            if await self.env.offload.run(lambda file=mapped_file: _close(file)):  # type: ignore[misc]
                self._open.remove(mapped_file)

    def _record_fault(self, error: DiskError) -> None:
        if self._fault != str(error):
            self._fault = str(error)
            _log.error("cleaning_failed", reason=str(error), next=error.hint)


def _path_on(usage: DiskUsage, data_dir: str) -> str:
    """Return a path of the store on a file system: the data directory's where that is on it."""
    first = usage.directories[0]
    return data_dir if first == DATA_DIR else f"{data_dir}/{first}"


def _close(mapped_file: MappedFile) -> bool:
    """Close; return False while views of the map exist."""
    try:
        mapped_file.close()
    except BufferError:
        return False
    return True
