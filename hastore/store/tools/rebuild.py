"""Rebuilds consume queues and index from a store's log, while no node runs on it.

They are built in ``DIR/rebuild.tmp`` and swapped in when they are whole (``rebuilt_dirs``).

Like a node's dispatch, a rebuild does not verify checksums; damaged places are skipped and counted.
So are records behind damage that no consume queue names (``queue.confirmed_records``): a producer
may have planted them, or their queue is what is lost.  Once the new files are swapped in, nothing
names them any more and their queue offsets are given again, so that needs ``accept_loss``.
A queue whose records have all expired cannot be built from the log: its files are copied, else it
would begin at 0 again.  A deleted topic's records get no units (``deleted_topics``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NoReturn, final

import attrs

from hastore.errors import LossRefusedError, NotAStoreError
from hastore.store.index.service import INDEX_DIR, IndexService
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.queue.consume_queue_store import ConsumeQueueStore
from hastore.store.queue.deleted_topics import load_deleted
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import file_size_of
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.record.derived_record import derive
from hastore.store.record.record_check import RecordKind
from hastore.store.recovery.rebuilt_dirs import (
    REBUILD_DIR,
    refuse_immovable,
    remove_leftovers,
    restore_interrupted,
    swap,
)
from hastore.store.recovery.store_checkpoint import CHECKPOINT_FILE, StoreCheckpoint
from hastore.store.store_lock import StoreLock
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_finding import SetAside, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.config import StoreConfig
    from hastore.env.interface import Disk, Env
    from hastore.store.queue.directory import QueueFiles
    from hastore.store.record.record_check import RecordCheck
    from hastore.store.tools.log_directory import LogDirectory
    from hastore.wire.config_tables import DeletedTopic

_RECORDS_A_COMMIT: Final = 1_000
_COMMITS_A_FLUSH: Final = 200
_COPY_SIZE: Final = 1024 * 1024


@attrs.frozen(kw_only=True)
class RebuildReport:
    """What was built; counts of parts that were not requested are 0.

    ``unreadable`` counts damaged places in the log, and ``set_aside`` what they hide.
    ``queues_kept`` counts queues without a record in the log, whose files were copied; ``queues``
    counts the others.
    """

    records: int
    unreadable: int
    set_aside: SetAside
    end_offset: int
    queues: int
    units: int
    queues_kept: int
    keys: int
    index_files: int


def rebuild(
    env: Env,
    data_dir: str,
    config: StoreConfig,
    *,
    consume_queues: bool,
    index: bool,
    deleted: Mapping[str, DeletedTopic] | None = None,
    end_offset: int | None = None,
    accept_loss: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> RebuildReport:
    """Rebuild one or both in one pass over the log; ``on_progress`` is called with the bytes read.

    ``deleted`` are the deleted topics, in place of those that the directory names.  Records from
    ``end_offset`` on are left to the node; None: it leaves none.
    Blocks.  ``config`` sets the index files' size; consume queues keep the size of their files.
    Raises StoreLockedError if a node runs, NotAStoreError if there is no log, UnfinishedCutError,
    ImmovableDirectoryError before anything is built, DiskError (then only DIR/rebuild.tmp is
    changed); without ``accept_loss`` LossRefusedError if records behind damage would get no unit
    and no key.
    """
    disk = env.disk
    log = find_log(disk, data_dir)
    log.refuse_unfinished_cut()
    if log.root != (data_dir.rstrip("/") or "/"):
        raise NotAStoreError(
            f"{data_dir} is a log without the store around it",
            path=data_dir,
            hint="name the store's directory, which holds commitlog/",
        )
    built = (CONSUME_QUEUE_DIR,) * consume_queues + (INDEX_DIR,) * index
    lock = StoreLock.take(disk, log.root)
    try:
        refuse_immovable(disk, log.root, built)
        restore_interrupted(disk, log.root)
        remove_leftovers(disk, log.root)
        build = _Rebuild(
            env,
            log.root,
            config,
            log,
            consume_queues=consume_queues,
            index=index,
            deleted=load_deleted(disk, log.root) if deleted is None else deleted,
            end_offset=end_offset,
        )
        report = build.run(on_progress)
        if report.set_aside.records and not accept_loss:
            remove_leftovers(disk, log.root)
            refuse_loss(log.root, report.set_aside)
        now_ms = env.wall_clock.now_ms()
        for name in built:
            swap(disk, log.root, name, now_ms)
        if index:
            record_index(disk, log.root, build.index_end_ms)
        remove_leftovers(disk, log.root)
        return report
    finally:
        lock.release(clean=False)


def refuse_loss(data_dir: str, found: SetAside) -> NoReturn:
    """Raise LossRefusedError for the records behind damage that a rebuild would leave out."""
    are = "record is" if found.records == 1 else "records are"
    raise LossRefusedError(
        f"nothing changed: behind damage in {data_dir}, in {found.size} bytes, {found.records}"
        f" {are} unconfirmed (no consume queue names them), and would be left out",
        path=data_dir,
        hint=f"to see them: hastore log cat {data_dir} --unconfirmed; hastore log repair {data_dir}"
        " --from-replica DIR|H:P confirms those that are right; else add --accept-loss",
    )


def copy_queue(disk: Disk, old: QueueFiles, root: str, new_root: str, file_size: int) -> None:
    """Copy one queue's files durably, leaving holes for zeros."""
    path = f"{old.topic}/{old.queue_id}"
    new_path = f"{new_root}/{path}"
    disk.make_dirs(new_path)
    for file in old.files:
        name = file_name(file.start)
        with (
            contextlib.closing(disk.open_file(f"{root}/{path}/{name}", writable=False)) as source,
            contextlib.closing(disk.open_sparse_file(f"{new_path}/{name}", file_size)) as target,
        ):
            for position in range(0, file_size, _COPY_SIZE):
                data = source.pread(min(_COPY_SIZE, file_size - position), position)
                if data.count(0) != len(data):
                    target.pwrite(data, position)
            target.sync()
    disk.sync_dir(new_path)


def record_index(disk: Disk, data_dir: str, end_ms: int) -> None:
    """Record in the checkpoint that the index is on disk, else a start after a crash deletes it."""
    if not disk.exists(f"{data_dir}/{CHECKPOINT_FILE}"):
        return
    checkpoint = StoreCheckpoint.open(disk, data_dir)
    if not checkpoint.is_usable:
        return
    checkpoint.index_msg_timestamp = end_ms
    checkpoint.flush()
    checkpoint.close()


@attrs.define
class _NoCheckpoint:
    """Stands in for the checkpoint while the index is built in another directory."""

    index_msg_timestamp: int = 0

    def flush(self) -> None:
        """Do nothing: the real checkpoint is written after the swap."""


@final
class _Rebuild:
    """One pass over the log."""

    def __init__(
        self,
        env: Env,
        data_dir: str,
        config: StoreConfig,
        log: LogDirectory,
        *,
        consume_queues: bool,
        index: bool,
        deleted: Mapping[str, DeletedTopic],
        end_offset: int | None,
    ) -> None:
        self._disk = env.disk
        self._end_offset = end_offset
        self._log = log
        self._delay_levels = DelayLevels.parse(config.message_delay_level)
        self._old_root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
        self._queues: ConsumeQueueStore | None = None
        self._index: IndexService | None = None
        self._records = self._units = self._keys = self._unreadable = 0
        self._set_aside = SetAside()
        self.index_end_ms = 0
        new_dir = f"{data_dir}/{REBUILD_DIR}"
        if consume_queues:
            wanted = file_size_of(config.mapped_file_size_consume_queue)
            found = find_queues(self._disk, self._old_root, wanted)
            self._old_queues = found.queues
            self._queues = ConsumeQueueStore.load(self._disk, new_dir, found.file_size)
            self._queues.deleted = deleted
        if index:
            self._index = IndexService.load(
                env, new_dir, config, _NoCheckpoint(), last_exit_ok=True
            )

    def run(self, on_progress: Callable[[int], None] | None) -> RebuildReport:
        """Build, sync and close."""
        walker = LogWalker(self._disk, self._log, check_crc=False, on_progress=on_progress)
        queues_kept = queues = index_files = 0
        try:
            self._dispatch(walker)
            self._flush()
            if self._queues is not None:
                queues = len(self._queues)
                queues_kept = self._keep_expired(self._queues)
            if self._index is not None:
                index_files = len(self._index.files)
                self.index_end_ms = self._index.files[-1].end_timestamp_ms if index_files else 0
        except BaseException:
            if self._queues is not None:
                self._queues.close()
            if self._index is not None:
                self._index.destroy()
            raise
        if self._queues is not None:
            self._queues.close()
        if self._index is not None:
            self._index.close()
        return RebuildReport(
            records=self._records,
            unreadable=self._unreadable,
            set_aside=self._set_aside,
            end_offset=walker.end_offset,
            queues=queues,
            units=self._units,
            queues_kept=queues_kept,
            keys=self._keys,
            index_files=index_files,
        )

    def _dispatch(self, walker: LogWalker) -> None:
        queues, index = self._queues, self._index
        for offset, check in walker.walk():
            if self._end_offset is not None and offset >= self._end_offset:
                break
            if check.kind is not RecordKind.MESSAGE:
                if check.kind is not RecordKind.BLANK:
                    self._skip(offset, check)
                continue
            self._records += 1
            record = derive(
                check.topic.decode(errors="surrogateescape"),
                sys_flag=check.sys_flag,
                store_ms=check.store_timestamp_ms,
                properties=check.properties,
                delay_levels=self._delay_levels,
            )
            if (
                queues is not None
                and record.is_in_queue
                and not queues.is_deleted(record.topic, offset)
            ):
                self._units += 1
                queues.put(
                    record.topic,
                    check.queue_id,
                    check.queue_offset,
                    offset,
                    check.size,
                    record.tags_code,
                )
            if index is not None:
                if record.keys:
                    self._keys += len(record.keys)
                    index.put(record.topic, record.keys, offset, check.store_timestamp_ms)
                index.record_seen(offset, offset)
            if self._records % _RECORDS_A_COMMIT == 0:
                self._commit()
                if self._records % (_RECORDS_A_COMMIT * _COMMITS_A_FLUSH) == 0:
                    self._flush()
        self._commit()

    def _skip(self, physic_offset: int, check: RecordCheck) -> None:
        """Count a damaged place."""
        self._unreadable += 1
        damage = find_in_record(
            Severity.DAMAGE, check.kind.value, physic_offset, check, check.detail
        )
        self._set_aside = self._set_aside.with_finding(damage)

    def _commit(self) -> None:
        if self._queues is not None:
            self._queues.commit()
        if self._index is not None:
            self._index.commit()

    def _flush(self) -> None:
        """Force everything to disk, which frees the memory of full index files."""
        if self._queues is not None:
            self._queues.settle()
        if self._index is not None:
            flushes = self._index.dirty_files()
            for flush in flushes:
                flush.sync()
            self._index.mark_flushed(flushes)

    def _keep_expired(self, queues: ConsumeQueueStore) -> int:
        """If the log's front is deleted, copy the old queues of which it has no record."""
        if not self._log.min_offset:
            return 0
        kept = 0
        for old in self._old_queues:
            if queues.find(old.topic, old.queue_id) is None:
                new_root = f"{self._log.root}/{REBUILD_DIR}/{CONSUME_QUEUE_DIR}"
                copy_queue(self._disk, old, self._old_root, new_root, queues.file_size)
                kept += 1
        return kept
