"""Cuts the end off a closed store, at an offset, so that nothing of it ever comes back.

::

    log      record record record │ record record record │ zeros
                           offset ┘                      └ end_offset
                                  └─ copied to trimmed/, then zeroed or removed ─┘

The steps, each durable before the next:

1. check that a record begins at the offset, that the confirm mark is not above it, and that there
   is room for the copy; if not, refuse, with nothing changed;
2. copy the bytes to ``trimmed/``, and describe them in a JSON file beside them;
3. write ``cut.json``: from here on the cut will be finished, by this process or by the next one;
4. lower the checkpoint; remove log files after the offset, the newest first, and zero the rest of
   its own file; zero units and index entries of cut records; lower the delay offsets, and the
   places in the log where topics were deleted; cut the epoch file;
5. remove ``cut.json``.

Step 4 may run any number of times.  It does not rely on what an earlier run may have left in the
page cache only: after a failed sync the kernel considers pages clean that the disk does not have.
So cached pages are dropped before they are read (a checkpoint detects such a state itself).

RocketMQ zeroes nothing when it cuts.  Where a new record ends exactly at the start of an old one,
the old ones are records of the log again at the next start, and two nodes differ unnoticed.

Invariant: wherever the process is killed, or the power is cut, the log, queues, index, checkpoint
and epochs that the next opening finds are those before the cut, or those after it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs

from hastore.config import StoreConfig
from hastore.errors import BelowConfirmMarkError, DiskError, DiskFullError
from hastore.quantities import read_integer
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.index.service import INDEX_DIR, IndexService
from hastore.store.json_file import JsonFile
from hastore.store.log.mapped_file_queue import file_name, is_file_name
from hastore.store.log.store_directory import (
    COMMIT_LOG_DIR,
    CUT_FILE,
    DELAY_OFFSET_FILE,
    TRIMMED_DIR,
    find_log_files,
)
from hastore.store.queue.deleted_topics import limit_deleted, load_deleted, store_deleted
from hastore.store.queue.unit import UNIT_SIZE
from hastore.store.recovery import trim as recovery_trim
from hastore.store.recovery.cut_queues import cut_queues, find_queue_ends
from hastore.store.recovery.cut_survey import CutSurvey
from hastore.store.recovery.log_cut import CutIntent, LogCut
from hastore.store.recovery.rebuilt_dirs import restore_interrupted
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.recovery.trim import FORGET_SIZE, Range
from hastore.store.reserve_file import ReserveFile
from hastore.topic import SCHEDULE_TOPIC
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk, Env
    from hastore.epoch_history import EpochHistory
    from hastore.store.log.store_directory import LogFiles
    from hastore.store.store_lock import StoreLock

_SPARE_SIZE: Final = 256 * 1024  # of room for the small files, and for what else is written

_log = logger("store")


def cut_store(
    env: Env,
    config: StoreConfig,
    lock: StoreLock,
    physic_offset: int,
    *,
    reason: str,
    confirm_mark: int | None = None,
    on_cut: Callable[[int], None] | None = None,
) -> LogCut | None:
    """Cut the log of a closed store, which the caller has locked, at ``physic_offset``; blocks.

    The offset is a record's start or the log's end.  Return what was cut, None if nothing was
    there.  A cut that was not finished before is finished first.  ``on_cut`` gets the offset before
    anything is changed.

    Raises, with nothing changed: CutRefusedError; BelowConfirmMarkError if the offset is below
    ``confirm_mark``, up to which every member has acknowledged the log; DiskFullError if there is
    no room for the copy; EpochFileError; DiskError.  After another DiskError ``cut.json`` may be
    there; then the next opening, or the next call, finishes the cut.
    """
    disk, data_dir = env.disk, lock.path
    restore_interrupted(disk, data_dir)
    finished = complete_cut(env, lock)
    found = find_log_files(disk, data_dir, config.mapped_file_size)
    survey = CutSurvey(disk=disk, data_dir=data_dir, found=found, physic_offset=physic_offset)
    survey.run()
    if confirm_mark is not None:
        check_confirm_mark(data_dir, physic_offset, confirm_mark, survey.first_message_end)
    epoch_file = EpochFile(disk, f"{data_dir}/{EPOCH_FILE}")
    history = epoch_file.load()
    if survey.end_offset == physic_offset:
        if history.cut(physic_offset) != history:
            epoch_file.store(history.cut(physic_offset))
        return finished
    intent = CutIntent(
        cut=_describe(survey, history, reason, env.wall_clock.now_ms()),
        kept_store_ms=survey.kept_store_ms,
        queue_ends=find_queue_ends(
            disk, data_dir, config.mapped_file_size_consume_queue, physic_offset
        ),
        index_slots=config.max_hash_slot_num,
        index_entries=config.max_index_num,
    )
    with ReserveFile(disk, data_dir).freed():
        _check_room(disk, data_dir, intent.cut)
        if on_cut is not None:
            on_cut(physic_offset)
        intent = _save(disk, data_dir, found, intent)
        _carry_out(env, lock, intent)
    return intent.cut


def check_confirm_mark(
    data_dir: str, physic_offset: int, confirm_mark: int, message_end: int | None
) -> None:
    """Raise BelowConfirmMarkError if a cut would lose a message below the confirm mark.

    ``message_end`` is the end of the first whole message that the cut takes, None without one.
    Acks end anywhere, also within a record: one that was acknowledged in part was never PUT_OK, and
    a node that starts again drops it, or the BLANK after its last message.
    """
    if message_end is None or message_end > confirm_mark:
        return
    raise BelowConfirmMarkError(
        f"alarm: the log in {data_dir} must not be cut at {physic_offset}: it has what every member"
        f" of its group acknowledged up to {confirm_mark}, and its master's log is another one from"
        f" {physic_offset} on; a log is corrupt, the master is one of another group, or its"
        " election was unclean; nothing was changed. Either this node becomes master, or what it"
        " alone has is given up",
        path=data_dir,
        physic_offset=physic_offset,
        confirm_mark=confirm_mark,
        hint="to keep this log: hastore cluster failover --to this node's ID --accept-loss; to give"
        f" it up, first save what it alone has: hastore log cat {data_dir} --from-offset"
        f" {physic_offset}, then stop the node and start it with an empty --data directory (in a"
        f" group with an etcd: hastore cluster reinit {data_dir})",
    )


def complete_cut(env: Env, lock: StoreLock) -> LogCut | None:
    """Finish the cut of a store that is under way, if there is one; blocks.  Return it.

    Called at every opening, before anything reads the log, the queues, the index, the checkpoint
    or the epochs.  Raises DiskError (repeat it), UnfinishedCutError, EpochFileError.
    """
    intent = CutIntent.load(env.disk, lock.path)
    if intent is None:
        return None
    with ReserveFile(env.disk, lock.path).freed():
        _carry_out(env, lock, intent)
    return intent.cut


# -- before the point of no return ---------------------------------------------------------------


def _describe(survey: CutSurvey, history: EpochHistory, reason: str, now_ms: int) -> LogCut:
    offset, end = survey.physic_offset, survey.end_offset
    spans = (
        span._replace(start_offset=max(span.start_offset, offset)) for span in history.spans(end)
    )
    return LogCut(
        physic_offset=offset,
        end_offset=end,
        reason=reason,
        time_ms=now_ms,
        epochs=tuple(span for span in spans if span.start_offset < span.end_offset),
        messages=dict(sorted(survey.messages.items())),
        saved_paths=(),
        unread_from=survey.unread_from,
    )


def _check_room(disk: Disk, data_dir: str, cut: LogCut) -> None:
    free = disk.space(data_dir).free_bytes
    if free < cut.size + _SPARE_SIZE:
        raise DiskFullError(
            f"no room in {data_dir} for a copy of the {cut.size} bytes that are to be cut off the"
            f" log at {cut.physic_offset}: {free} bytes are free; nothing was changed",
            path=data_dir,
            hint=f"free {cut.size + _SPARE_SIZE - free} bytes on that file system",
        )


def _save(disk: Disk, data_dir: str, found: LogFiles, intent: CutIntent) -> CutIntent:
    """Copy the bytes, describe them, and write the intent, durably.

    If that fails before there is an intent, the copies are removed: the cut may be tried often,
    and each would leave a copy.
    """
    cut = intent.cut
    saved: list[str] = []
    while disk.exists(f"{data_dir}/{cut.path}"):  # from a cut that was killed
        cut = attrs.evolve(cut, time_ms=cut.time_ms + 1)
    try:
        for base in found.offsets:
            part = Range(max(cut.physic_offset, base), min(cut.end_offset, base + found.file_size))
            path = f"{data_dir}/{COMMIT_LOG_DIR}/{file_name(base)}"
            with contextlib.closing(disk.open_file(path, writable=False)) as disk_file:
                pieces = recovery_trim.pieces(
                    [part], lambda offset, size: disk_file.pread(size, offset % found.file_size)
                )
                for piece in pieces:
                    directory = f"{data_dir}/{TRIMMED_DIR}"
                    saved += recovery_trim.save(disk, directory, cut.time_ms, [piece])
        names = (path.removeprefix(f"{data_dir}/") for path in saved)
        cut = attrs.evolve(cut, saved_paths=tuple(names))
        saved.append(f"{data_dir}/{cut.path}")
        disk.write_file(saved[-1], cut.encode())
        intent = attrs.evolve(intent, cut=cut)
        intent.store(disk, data_dir)
    except DiskError:
        if not disk.exists(f"{data_dir}/{CUT_FILE}"):
            with contextlib.suppress(DiskError):
                for path in saved:
                    disk.remove(path)
        raise
    return intent


# -- after it ------------------------------------------------------------------------------------


def _carry_out(env: Env, lock: StoreLock, intent: CutIntent) -> None:
    """Do the steps after the intent; idempotent."""
    disk, data_dir, cut = env.disk, lock.path, intent.cut
    checkpoint = StoreCheckpoint.open(disk, data_dir)
    _lower_checkpoint(checkpoint, intent)
    _cut_log(disk, f"{data_dir}/{COMMIT_LOG_DIR}", cut)
    cut_queues(disk, data_dir, intent.queue_ends)
    _lower_delay_offsets(disk, data_dir, intent)
    _lower_deleted(disk, data_dir, cut.physic_offset)
    _cut_index(env, lock, intent, checkpoint)
    epoch_file = EpochFile(disk, f"{data_dir}/{EPOCH_FILE}")
    history = epoch_file.load()
    if epoch_file.loaded_from is not None:
        epoch_file.store(history.cut(cut.physic_offset))
    disk.remove(f"{data_dir}/{CUT_FILE}")
    _log.warning(
        "log_cut",
        physic_offset=cut.physic_offset,
        end_offset=cut.end_offset,
        size=cut.size,
        epochs=[span.epoch for span in cut.epochs],
        messages=dict(cut.messages),
        reason=cut.reason,
        saved=list(cut.saved_paths),
    )


def _lower_checkpoint(checkpoint: StoreCheckpoint, intent: CutIntent) -> None:
    """Let the checkpoint claim nothing beyond the cut, by offset or by time.

    The records that will follow may be older than those that were cut.
    """
    if not checkpoint.is_usable:
        return
    offset, store_ms = intent.cut.physic_offset, intent.kept_store_ms
    checkpoint.flushed_offset = min(checkpoint.flushed_offset, offset)
    checkpoint.confirm_offset = min(checkpoint.confirm_offset, offset)
    checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, store_ms)
    checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, store_ms)
    checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, store_ms)
    checkpoint.flush()
    checkpoint.close()


def _cut_log(disk: Disk, path: str, cut: LogCut) -> None:
    """Remove the files after the offset, then zero the rest of its own file, durably.

    The log's first file stays, even if it is all zeros: its name says where the log begins.
    """
    files = [entry for entry in disk.list_dir(path) if is_file_name(entry.name)]
    for entry in reversed(files):
        start = int(entry.name)
        if start >= cut.physic_offset and entry is not files[0]:
            disk.remove(f"{path}/{entry.name}")
        elif start + entry.size > cut.physic_offset:
            position = cut.physic_offset - start
            # Not mapped: mapped pages are not dropped, and a full disk has no room for holes.
            opened = disk.open_sparse_file(f"{path}/{entry.name}", entry.size)
            with contextlib.closing(opened) as disk_file:
                # Drops all cached pages from there on.  Those before it that the kernel may cache
                # in one piece with them are written again: they may be in the cache only.
                recovery_trim.write_again(disk_file, position - position % FORGET_SIZE, position)
                recovery_trim.zero(disk_file, position, min(cut.end_offset - start, entry.size))
                disk_file.sync()
    disk.sync_dir(path)


def _lower_delay_offsets(disk: Disk, data_dir: str, intent: CutIntent) -> None:
    """Let no stored delay offset pass delayed messages that follow the cut.

    They are others than those that were delivered.
    """
    prefix = f"{SCHEDULE_TOPIC}/"
    ends = {  # by level: its queue is one below
        str(int(name.removeprefix(prefix)) + 1): end // UNIT_SIZE
        for name, end in intent.queue_ends.items()
        if name.startswith(prefix)
    }
    if not ends:
        return
    file = JsonFile(disk, f"{data_dir}/{DELAY_OFFSET_FILE}")
    content = file.load()
    table = content.get("offsetTable")
    if not isinstance(table, dict):
        return
    lowered = dict(table)
    for level in table.keys() & ends.keys():
        offset = read_integer(table[level])
        if offset is not None and offset > ends[level]:
            lowered[level] = ends[level]
    if lowered != table:
        file.store({**content, "offsetTable": lowered})


def _lower_deleted(disk: Disk, data_dir: str, physic_offset: int) -> None:
    """Let no deletion of a topic cover the messages that follow the cut: they are others."""
    deleted = load_deleted(disk, data_dir)
    limited = limit_deleted(deleted, physic_offset)
    if limited != deleted:
        store_deleted(disk, data_dir, limited)


def _cut_index(env: Env, lock: StoreLock, intent: CutIntent, checkpoint: StoreCheckpoint) -> None:
    """Take the entries of cut records out of the index, and zero them, durably.

    If a file was cut, its mark says so: the next opening indexes again from the record that the
    mark names.
    """
    disk, path = env.disk, f"{lock.path}/{INDEX_DIR}"
    for entry in disk.list_dir(path):
        if not entry.is_dir:
            opened = disk.open_file(f"{path}/{entry.name}", writable=False)
            with contextlib.closing(opened) as disk_file:
                disk_file.forget()
    config = StoreConfig(
        data_dir=lock.path,
        max_hash_slot_num=intent.index_slots,
        max_index_num=intent.index_entries,
    )
    service = IndexService.load(env, lock.path, config, checkpoint, last_exit_ok=lock.last_exit_ok)
    try:
        service.truncate(intent.cut.physic_offset)
        is_marked = any(file.mark for file in service.files)
        if lock.last_exit_ok and service.redispatch_from() is not None and not is_marked:
            # The disk was full, so a whole file was removed, and nothing in the index says so.
            lock.write_abort(env.process_id)
        if service.files:
            service.files[-1].clear_after(intent.index_entries)
            service.files[-1].made_file().sync()
    finally:
        service.close(clean=False)
