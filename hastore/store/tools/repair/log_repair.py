"""Repairs a damaged log: ``hastore log repair DIR [--from-replica DIR] [--backup DIR]``.

::

    plan_repair   find damage, check the replica         nothing is changed
    apply_repair  lock, compare with the planned state
                  identity.json: unverified              a node of a replica group is not elected
                  mark the last stop as unclean          the next start recovers as after a crash
                  copy every range that will be changed  to the backup directory, durably
                  lower the checkpoint                   if the log loses its end
                  take lost units out of the queues
                  write the ranges, sync
                  identity.json: as before               if no message was lost

A repair that is killed is run again, and ends what the first one began: the ranges that it repaired
are intact, the others are still damaged (units come first, because after the ranges nothing would
show which are lost).

With a replica a range gets the replica's bytes.  Without one it is set aside and filled with
records that every reader skips (``filler``), so later offsets stay the same.  If nothing intact
follows a range, it is cut off instead, and the log ends there.

No consumer may get filler, so the units of lost messages leave the consume queues::

    | unit | unit of a lost record | unit |     becomes  | unit | blank (0, 0x7FFFFFFF, 0) | unit |
    | unit | unit of a lost record | zeros      becomes  | unit | zeros                           |

RocketMQ itself writes blanks before a queue's first unit, and its readers skip them.  At a queue's
end they would do harm: RocketMQ takes offset plus size of the last unit, 2 GiB, for the end of the
dispatched log.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from typing import TYPE_CHECKING, Final, assert_never

import attrs

from hastore.errors import LogDamagedError
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import TRIMMED_DIR
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, Unverified, read_identity
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, find_queues
from hastore.store.queue.unit import BLANK, BLANK_SIZE, UNIT, UNIT_SIZE
from hastore.store.recovery import trim as recovery_trim
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.recovery.trim import Range
from hastore.store.store_lock import StoreLock
from hastore.store.tools.repair import reasons
from hastore.store.tools.repair.filler import fill
from hastore.store.tools.repair.lost import units_in
from hastore.store.tools.repair.plan import (
    RepairAction,
    RepairPart,
    RepairPlan,
    fingerprint,
)
from hastore.store.tools.repair.tolerant import TolerantDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hastore.env.interface import Disk, DiskFile, Env
    from hastore.store.tools.repair.source import RepairSource

_PIECE_SIZE: Final = 8 * 1024 * 1024
_BLOCK_SIZE: Final = 4_096  # of a disk with large sectors
_NEW_SUFFIX: Final = ".repair"


@attrs.frozen(kw_only=True)
class RepairReport:
    """Where the old bytes are kept, and how many consume queue units were lost.

    ``unverified``: what identity.json says now, so that the node is not elected; None if its whole
    log counts, or if the directory belongs to no replica group.
    """

    saved_paths: tuple[str, ...]
    units_blanked: int
    unverified: Unverified | None = None


def apply_repair(
    env: Env,
    plan: RepairPlan,
    *,
    source: RepairSource | None = None,
    backup_dir: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> RepairReport:
    """Carry a plan out; blocks.  ``source`` is the one that it was made with.

    The old bytes go to ``backup_dir``, ``DIR/trimmed`` if None.  ``on_progress`` is called with the
    bytes of each write.  Raises StoreLockedError if a node runs, LogDamagedError if the log was
    changed since the plan was made, IdentityFileError, DiskError.
    """
    lock = StoreLock.take(env.disk, plan.data_dir)
    try:
        if fingerprint(env.disk, plan.log_path) != plan.files:
            raise LogDamagedError(
                f"{plan.log_path} was changed since the plan was made; nothing was repaired",
                path=plan.log_path,
                physic_offset=plan.parts[0].start if plan.parts else 0,
                hint=f"hastore log repair {plan.data_dir}",
            )
        for part in plan.parts:
            if part.action is RepairAction.NEEDS_REPLICA:
                raise LogDamagedError(
                    f"{plan.log_path} cannot be repaired without a replica: {part}",
                    path=plan.log_path,
                    physic_offset=part.start,
                    hint=f"hastore log repair {plan.data_dir} --from-replica DIR",
                )
        identity = _identity_of(env.disk, plan.data_dir)
        before = None if identity is None else identity.current.unverified
        if plan.is_empty:
            return RepairReport(
                saved_paths=(),
                units_blanked=0,
                unverified=_finish(env.disk, identity, before, plan),
            )
        if identity is not None:
            identity.mark_unverified(_unverified_by(plan, before))
        lock.write_abort(env.process_id)
        saved = _save(env, plan, backup_dir or f"{plan.data_dir}/{TRIMMED_DIR}")
        _lower_checkpoint(env.disk, plan)
        units = _blank_units(env.disk, plan.data_dir, plan.lost) if plan.lost else 0
        for path in plan.resized:
            _resize(env.disk, path, plan.file_size)
        for part in plan.parts:
            _write(env.disk, plan, part, source, on_progress)
        return RepairReport(
            saved_paths=saved,
            units_blanked=units,
            unverified=_finish(env.disk, identity, before, plan),
        )
    finally:
        lock.release(clean=False)


def _identity_of(disk: Disk, data_dir: str) -> NodeIdentity | None:
    """Return the identity of a directory whose lock is held; None if it has none."""
    current = read_identity(disk, data_dir)
    return None if current is None else NodeIdentity(disk, f"{data_dir}/{IDENTITY_FILE}", current)


def is_unfinished(disk: Disk, data_dir: str) -> bool:
    """Whether a repair that would lose nothing was begun there, and has not ended."""
    identity = read_identity(disk, data_dir)
    return identity is not None and _is_unfinished(identity.unverified)


def _is_unfinished(found: Unverified | None) -> bool:
    return found is not None and found.why == reasons.UNFINISHED


def _finish(
    disk: Disk, identity: NodeIdentity | None, before: Unverified | None, plan: RepairPlan
) -> Unverified | None:
    """Let a repaired log count if nothing was lost; return what does not count.

    ``before`` is what did not count when the repair began: an earlier one may have been killed.
    """
    if identity is None:
        return None
    found = identity.current.unverified
    is_only_ours = before is None or _is_unfinished(before)
    if found is not None and is_only_ours and not plan.is_lossy:
        if before is not None:  # what a killed repair had written may not be on the disk yet
            _sync(disk, plan, before)
        identity.clear_unverified(found)
    return identity.current.unverified


def _sync(disk: Disk, plan: RepairPlan, found: Unverified) -> None:
    """Force the log's files in a range to the disk."""
    for base in range(found.begin - found.begin % plan.file_size, found.end, plan.file_size):
        path = f"{plan.log_path}/{file_name(base)}"
        if disk.exists(path):
            with contextlib.closing(disk.open_file(path, writable=True)) as disk_file:
                disk_file.sync()


def _unverified_by(plan: RepairPlan, before: Unverified | None) -> Unverified:
    """Return the part of the log that the repair changes, and how."""
    starts = [part.start for part in plan.parts] or [plan.min_offset]
    if any(part.is_unproven for part in plan.parts) or (
        before is not None and before.why == reasons.UNPROVEN
    ):
        why = reasons.UNPROVEN  # of the whole joined range: no other reason may hide it
    elif any(part.action is RepairAction.CUT for part in plan.parts):
        why = reasons.CUT
    elif plan.is_lossy:
        why = reasons.FILLED
    else:  # what was known before stays the reason
        why = reasons.UNFINISHED if before is None else before.why
    stop = max((part.stop for part in plan.parts), default=starts[0])
    return Unverified(begin=min(starts), end=stop, why=why)


def _save(env: Env, plan: RepairPlan, backup_dir: str) -> tuple[str, ...]:
    """Copy all bytes that will be changed, except pieces of zeros."""
    copied = ((offset, data) for offset, data in _old_bytes(env.disk, plan) if data.strip(b"\0"))
    return recovery_trim.save(env.disk, backup_dir, env.wall_clock.now_ms(), copied)


def _old_bytes(disk: Disk, plan: RepairPlan) -> Iterator[tuple[int, bytes]]:
    tolerant = TolerantDisk(disk)
    there = {file.name: file.size for file in disk.list_dir(plan.log_path)}

    def read(base: int, physic_offset: int, size: int) -> bytes:
        if file_name(base) not in there:
            return b""
        path = f"{plan.log_path}/{file_name(base)}"
        with contextlib.closing(tolerant.open_file(path, writable=False)) as disk_file:
            return disk_file.pread(size, physic_offset - base)

    for part in plan.parts:
        base = part.start - part.start % plan.file_size
        yield from recovery_trim.pieces(
            [Range(part.start, part.stop)], functools.partial(read, base)
        )
    for path in plan.resized:  # bytes after a file's proper end
        base = int(path.rpartition("/")[2])
        extra = Range(base + plan.file_size, base + there[file_name(base)])
        yield from recovery_trim.pieces([extra], functools.partial(read, base))


def _lower_checkpoint(disk: Disk, plan: RepairPlan) -> None:
    """Lower the checkpoint's flushed offset, durably, to the start of a range that is cut off."""
    cut = [part.start for part in plan.parts if part.action is RepairAction.CUT]
    if not cut:
        return
    checkpoint = StoreCheckpoint.open(disk, plan.data_dir)
    checkpoint.flushed_offset = min(cut)
    checkpoint.flush()
    checkpoint.close()


def _resize(disk: Disk, path: str, file_size: int) -> None:
    """Replace a file by one of the proper size."""
    new_path = f"{path}{_NEW_SUFFIX}"
    disk.remove(new_path)
    with contextlib.closing(disk.create_file(new_path, file_size)) as new:
        with contextlib.closing(TolerantDisk(disk).open_file(path, writable=False)) as old:
            for position in range(0, min(old.size, file_size), _PIECE_SIZE):
                size = min(_PIECE_SIZE, old.size - position, file_size - position)
                new.pwrite(old.pread(size, position), position)
        new.sync()
    disk.rename(new_path, path)


def _write(
    disk: Disk,
    plan: RepairPlan,
    part: RepairPart,
    source: RepairSource | None,
    on_progress: Callable[[int], None] | None,
) -> None:
    """Write the planned bytes of one range, durably."""
    base = part.start - part.start % plan.file_size
    path = f"{plan.log_path}/{file_name(base)}"
    if disk.exists(path):
        opened = disk.open_file(path, writable=True)
    elif part.action is RepairAction.CUT:
        return  # the checkpoint no longer covers it
    else:
        opened = disk.create_file(path, plan.file_size)
    with contextlib.closing(opened) as disk_file:
        for edge in (part.start, part.stop - 1):
            _rewrite_sector(disk, disk_file, edge - base)
        if part.action is RepairAction.CUT:
            recovery_trim.zero(disk_file, part.start - base, part.stop - base)
        else:
            position = part.start - base
            for data in _new_bytes(plan, part, source):
                disk_file.pwrite(data, position)
                position += len(data)
                if on_progress is not None:
                    on_progress(len(data))
            assert position == part.stop - base
        disk_file.sync()


def _rewrite_sector(disk: Disk, disk_file: DiskFile, position: int) -> None:
    """Write a whole sector, because a part of an unreadable one cannot be written either."""
    start = position - position % _BLOCK_SIZE
    tolerant = TolerantDisk(disk)
    with contextlib.closing(tolerant.open_file(disk_file.path, writable=False)) as readable:
        disk_file.pwrite(readable.pread(_BLOCK_SIZE, start), start)


def _new_bytes(plan: RepairPlan, part: RepairPart, source: RepairSource | None) -> Iterator[bytes]:
    size = part.stop - part.start
    match part.action:
        case RepairAction.REPLACE:
            assert source is not None, "the plan was made with a replica"
            yield from _checked_bytes(part, source)
        case RepairAction.FILL:
            to_file_end = part.stop % plan.file_size == 0
            yield from fill(part.start, size, part.store_timestamp_ms, to_file_end=to_file_end)
        case RepairAction.ZERO | RepairAction.CUT | RepairAction.NEEDS_REPLICA:
            for offset in range(part.start, part.stop, _PIECE_SIZE):
                yield bytes(min(_PIECE_SIZE, part.stop - offset))
        case _:
            assert_never(part.action)


def _checked_bytes(part: RepairPart, source: RepairSource) -> Iterator[bytes]:
    """Yield a replica's bytes; the last piece only if all are those that the plan has checked.

    A master is asked again, and its disk may return others.  Raises LogDamagedError.
    """
    digest = hashlib.sha256()
    for offset in range(part.start, part.stop, _PIECE_SIZE):
        size = min(_PIECE_SIZE, part.stop - offset)
        data = source.read(offset, size)
        digest.update(data)
        if offset + size == part.stop and digest.hexdigest() != part.sha256:
            raise LogDamagedError(
                f"{source.name} has other bytes from {part.start} to {part.stop} now than when they"
                " were checked",
                path=source.name,
                physic_offset=part.start,
                hint="its disk may be failing: hastore log verify, there; use another replica",
            )
        yield data


# -- consume queues ------------------------------------------------------------------------------


def _blank_units(disk: Disk, data_dir: str, lost: Sequence[Range]) -> int:
    """Take out the units of all records that begin in ``lost``; return their number.

    Durable when it returns.  Raises DiskError; call it again to continue.
    """
    root = f"{data_dir}/{CONSUME_QUEUE_DIR}"
    found = find_queues(disk, root, None)
    count = 0
    for queue in found.queues:
        path = f"{root}/{queue.topic}/{queue.queue_id}"
        is_last = True
        for file in reversed(queue.files):
            opened = disk.open_sparse_file(f"{path}/{file_name(file.start)}", found.file_size)
            with contextlib.closing(opened) as disk_file:
                hits, holds_units = _blank_file(disk_file, lost, is_last=is_last)
                first_offset, first_size, _ = UNIT.unpack(disk_file.pread(UNIT_SIZE, 0))
            count += hits
            is_last = is_last and not holds_units
            if 0 < first_size < BLANK_SIZE and first_offset < lost[0].start:
                break  # units stand in the log's order
    return count


def _blank_file(disk_file: DiskFile, lost: Sequence[Range], *, is_last: bool) -> tuple[int, bool]:
    """Take units out of one file; return their number, and whether others are left in it.

    ``is_last``: no later file has a unit.
    """
    hits, keeps = units_in(disk_file, lost)
    for index in hits:
        is_end = is_last and index > keeps
        disk_file.pwrite(bytes(UNIT_SIZE) if is_end else BLANK, index * UNIT_SIZE)
    if hits:
        disk_file.sync()
    return len(hits), keeps >= 0
