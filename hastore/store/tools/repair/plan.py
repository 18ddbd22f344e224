"""Finds the damaged ranges of a log, and plans what replaces each of them.

::

    | record | ?????? | record |           the range, to the next confirmed record or the file's end
    | record | ?????? 0000000 …            nothing confirmed after it: damage below what the
             └ flushed to ┘                checkpoint says was on disk, or where a start would not
                                           trim it because of what looks like a record there

A record is confirmed by a unit of its consume queue (``queue.confirmed_records``) or by the same
bytes in the replica.  Any other one behind damage may have been planted in a body: it is part of
the range, counted, and set aside with it.

Planning reads the whole log and changes nothing.  Bytes that the disk cannot read count as zeros,
so that a bad sector is damage like any other, and writing may repair it.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections import Counter
from typing import TYPE_CHECKING, Final, cast, final

import attrs

from hastore.errors import LogDamagedError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import read_identity
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.record_check import (
    INTACT_KINDS,
    RecordCheck,
    RecordKind,
    check_record,
    is_cut_off,
)
from hastore.store.recovery.rules import StartFacts
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.store.recovery.tail_scan import scan_rest
from hastore.store.recovery.trim import Range
from hastore.store.store_lock import ABORT_FILE
from hastore.store.tools.log_directory import LogDirectory, find_log, read_at
from hastore.store.tools.log_walker import LogWalker
from hastore.store.tools.repair.filler import can_fill
from hastore.store.tools.repair.source import (
    CONTEXT_SIZE,
    DirectorySource,
    RepairConfirmation,
    check_context,
    check_part,
    is_same_log,
)
from hastore.store.tools.repair.tolerant import TolerantDisk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk, DiskFile
    from hastore.epoch_history import EpochHistory
    from hastore.store.tools.repair.source import RepairSource


class RepairAction(enum.Enum):
    """What replaces a range."""

    REPLACE = "replace"  # the replica's bytes
    FILL = "fill"  # records that every reader skips; the range's messages are lost
    CUT = "cut"  # zeros: the log ends here; the messages after it are lost
    ZERO = "zero"  # zeros, where unreadable bytes held no record
    NEEDS_REPLICA = "needs-replica"  # nothing: too few bytes for any filler


# With these the range's messages are lost.
LOSING: Final = frozenset({RepairAction.FILL, RepairAction.CUT})


@attrs.frozen(kw_only=True)
class RepairPart:
    """One damaged range, all in one file; ``reason`` says what is wrong with it."""

    start: int
    stop: int
    reason: str
    action: RepairAction
    store_timestamp_ms: int = 0  # of the last intact record before it
    has_filler: bool = False  # the replica has lost messages there, too, and filled their place
    # The replica does not say whose bytes it has there: they may not be those of the group's log.
    is_unproven: bool = False
    unconfirmed: int = 0  # intact records in it that nothing confirms
    sha256: str | None = None  # of the replica's bytes, which were checked; None without one

    def __str__(self) -> str:
        """Return a line for people."""
        size = self.stop - self.start
        return f"{self.start} to {self.stop} ({size} bytes, {self.reason}): {self.outcome}"

    @property
    def outcome(self) -> str:
        """What happens to the range, for people."""
        return {
            RepairAction.REPLACE: "replaced by the replica's bytes",
            RepairAction.FILL: "set aside and filled; its messages are lost",
            RepairAction.CUT: "set aside; the log ends here, later messages are lost",
            RepairAction.ZERO: "written again as zeros",
            RepairAction.NEEDS_REPLICA: "too small to be filled; only a replica can repair it",
        }[self.action]


@attrs.frozen(kw_only=True)
class RepairPlan:
    """What ``apply_repair`` would do; nothing if ``is_empty``.

    ``torn_at``: a torn tail, which the next start trims; it needs no repair.  ``resized``: paths of
    files that are longer or shorter than the others.  ``files`` is the log's ``fingerprint`` when
    the plan was made.
    """

    data_dir: str
    log_path: str
    file_size: int
    min_offset: int
    parts: tuple[RepairPart, ...]
    resized: tuple[str, ...]
    torn_at: int | None
    files: tuple[tuple[str, int, int], ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        return not self.parts and not self.resized

    @property
    def lost(self) -> tuple[Range, ...]:
        """The ranges whose messages are lost, in order."""
        return tuple(Range(part.start, part.stop) for part in self.parts if part.action in LOSING)

    @property
    def is_lossy(self) -> bool:
        """Whether messages are lost, here or in the replica before, or may be others."""
        return bool(self.lost) or any(p.has_filler or p.is_unproven for p in self.parts)


def plan_repair(
    disk: Disk,
    path: str,
    *,
    source: RepairSource | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> RepairPlan:
    """Read a whole log and plan its repair; blocks.

    ``on_progress`` is called with the bytes of each read.  Raises NotAStoreError, DiskError,
    UnfinishedCutError, and LogDamagedError if this replica cannot repair a range.
    """
    log = find_log(disk, path)
    log.refuse_unfinished_cut()
    if log.root is None or log.mapped_file_size is None:
        raise LogDamagedError(
            f"{path} holds no log file that could be repaired",
            path=path,
            physic_offset=0,
            hint="copy a replica's commitlog/, or begin again in an empty directory",
        )
    data_dir = log.path.rpartition("/")[0] or "."
    planner = _Planner(disk, data_dir, log, _file_size(log), source, on_progress)
    return planner.plan()


def _file_size(log: LogDirectory) -> int:
    """Return the files' proper size: the most frequent one that divides all their offsets."""
    assert log.mapped_file_size is not None
    counts = Counter(file.size for file in log.files if file.size)
    for size, _ in counts.most_common():
        if all(file.physic_offset % size == 0 for file in log.files):
            return size
    return log.mapped_file_size


def fingerprint(disk: Disk, log_path: str) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a log's files, which show whether it was changed since."""
    return tuple((file.name, file.size, file.modified_ms) for file in disk.list_dir(log_path))


@final
@attrs.define(eq=False)
class _Planner:
    disk: Disk
    data_dir: str
    log: LogDirectory
    file_size: int
    source: RepairSource | None
    on_progress: Callable[[int], None] | None
    _parts: list[RepairPart] = attrs.field(factory=list, init=False)
    _store_ms: int = attrs.field(default=0, init=False)
    _torn_at: int | None = attrs.field(default=None, init=False)
    _end: int = attrs.field(default=0, init=False)
    # Start of damage → start of the record right before it, if that has no ``__CRC32#``.
    _uncovered: dict[int, int] = attrs.field(factory=dict, init=False)

    def plan(self) -> RepairPlan:
        """Find the damage, and decide how to repair each range."""
        for file in self.log.files:
            if file.physic_offset % self.file_size:
                raise LogDamagedError(
                    f"{file.path} does not start at a multiple of the file size {self.file_size}",
                    path=file.path,
                    physic_offset=file.physic_offset,
                    hint="move it away, or restore its name",
                )
        files = fingerprint(self.disk, self.log.path)
        tolerant = TolerantDisk(self.disk)
        self._walk(tolerant)
        self._add_unreadable(tolerant)
        parts = tuple(self._decide(part) for part in self._parts)
        return RepairPlan(
            data_dir=self.data_dir,
            log_path=self.log.path,
            file_size=self.file_size,
            min_offset=self.log.min_offset,
            parts=parts,
            resized=tuple(
                file.path
                for file in self.log.files
                if file.size != self.file_size and file.physic_offset < self._end
            ),
            torn_at=self._torn_at,
            files=files,
        )

    # -- what is wrong ---------------------------------------------------------------------------

    @property
    def clipped(self) -> LogDirectory:
        """The log with too long files cut: their extra bytes would overlap the next file."""
        files = (attrs.evolve(f, size=min(f.size, self.file_size)) for f in self.log.files)
        return attrs.evolve(self.log, files=tuple(files))

    def _walk(self, tolerant: TolerantDisk) -> None:
        """Collect damage; ``_check_tail`` handles damage without an intact record after it."""
        confirmed = RepairConfirmation(ConfirmedRecords(self.disk, self.data_dir), self.source)
        walker = LogWalker(
            cast("Disk", tolerant),
            self.clipped,
            confirmed=confirmed,
            on_progress=self.on_progress,
        )
        waiting: list[tuple[int, RecordCheck]] = []
        last: tuple[int, RecordCheck] | None = None
        for offset, check in walker.walk():
            if check.kind not in INTACT_KINDS and last is not None and not last[1].has_prop_crc:
                self._uncovered.setdefault(last[0] + last[1].size, last[0])
            # A BLANK holds no offset, so after damage it may have been written elsewhere.
            is_certain = check.kind is RecordKind.MESSAGE or not waiting
            if check.kind not in INTACT_KINDS or not is_certain:
                waiting.append((offset, check))
                continue
            for at, damage in waiting:
                self._add(at, at + damage.size, damage.kind.value, unconfirmed=damage.unconfirmed)
            waiting.clear()
            last = None
            if check.kind is RecordKind.MESSAGE:
                last = (offset, check)
                self._record_time(check.store_timestamp_ms)
        if last is not None and not waiting and is_cut_off(last[1]):
            waiting.append((last[0], last[1]._replace(kind=RecordKind.TORN)))
        self._end = walker.end_offset
        self._check_tail(waiting, tolerant)

    def _record_time(self, store_ms: int) -> None:
        if not self._store_ms:  # ranges before any intact record get the first one's time
            self._parts = [attrs.evolve(p, store_timestamp_ms=store_ms) for p in self._parts]
        self._store_ms = store_ms

    def _check_tail(self, waiting: list[tuple[int, RecordCheck]], tolerant: TolerantDisk) -> None:
        """Add the log's damaged end, if part of it was flushed; else record where it is torn."""
        checkpoint = StoreCheckpoint.open(self.disk, self.data_dir)
        last_exit_ok = not self.disk.exists(f"{self.data_dir}/{ABORT_FILE}")
        facts = StartFacts.of(checkpoint, None, last_exit_ok=last_exit_ok)
        start = waiting[0][0] if waiting else self._end
        head = read_at(cast("Disk", tolerant), self.clipped, start, facts.head_size(start))
        reason = facts.why_damage_at(start, waiting[0][1] if waiting else None, head)
        if not reason and waiting:
            reason = self._why_not_trimmed(start, facts, tolerant)
        if not reason:
            self._torn_at = start if waiting else None
            return
        kind = waiting[0][1].kind.value if waiting else "missing"
        stop = waiting[-1][0] + waiting[-1][1].size if waiting else start
        if facts.flushed_offset is not None:
            # A replica need not have more; the next start trims the rest.
            has_replica = self.source is not None and facts.flushed_offset > start
            stop = facts.flushed_offset if has_replica else max(stop, facts.flushed_offset)
        unconfirmed = sum(check.unconfirmed for _, check in waiting)
        self._add(start, stop, f"{kind}; {reason}", is_tail=True, unconfirmed=unconfirmed)
        self._end = stop

    def _why_not_trimmed(self, start: int, facts: StartFacts, tolerant: TolerantDisk) -> str:
        """Return why a start would refuse a damaged end instead of trimming it; "" if it trims."""
        for file in self.clipped.files:
            if file.next_offset <= start:
                continue
            opened = tolerant.open_file(file.path, writable=False)
            with contextlib.closing(cast("DiskFile", opened)) as disk_file:
                position = max(start - file.physic_offset, 0)
                rest = scan_rest(disk_file, file.physic_offset, position)
            if rest.record is not None:
                offset = file.physic_offset + rest.record
                is_refused = facts.is_damage_before(offset, rest.store_timestamp_ms)
                return f"an unconfirmed record at {offset}" if is_refused else ""
        return ""

    def _add(
        self, start: int, stop: int, reason: str, *, is_tail: bool = False, unconfirmed: int = 0
    ) -> None:
        """Add a range, split at files' ends, and joined with the one before if they touch."""
        action = RepairAction.CUT if is_tail else RepairAction.FILL
        while start < stop:
            file_end = start - start % self.file_size + self.file_size
            end = min(stop, file_end)
            before = self._parts[-1] if self._parts else None
            if before is not None and before.stop == start and start % self.file_size:
                self._parts[-1] = attrs.evolve(
                    before, stop=end, unconfirmed=before.unconfirmed + unconfirmed
                )
            else:
                self._parts.append(
                    RepairPart(
                        start=start,
                        stop=end,
                        reason=reason,
                        action=action,
                        store_timestamp_ms=self._store_ms,
                        unconfirmed=unconfirmed,
                    )
                )
            start, unconfirmed = end, 0

    def _add_unreadable(self, tolerant: TolerantDisk) -> None:
        """Add unreadable ranges outside the other parts: zeros, or bytes after the log's end."""
        for start, stop in tolerant.unreadable:
            if not any(part.start < stop and start < part.stop for part in self._parts):
                part = RepairPart(
                    start=start, stop=stop, reason="unreadable", action=RepairAction.ZERO
                )
                self._parts.append(part)
        self._parts.sort(key=lambda part: part.start)

    # -- what to do ------------------------------------------------------------------------------

    def _decide(self, part: RepairPart) -> RepairPart:
        if part.action is RepairAction.ZERO:
            return part
        is_tail = part.action is RepairAction.CUT
        if self.source is not None:
            part = self._check(part, self.source, is_tail=is_tail)
            return attrs.evolve(part, action=RepairAction.REPLACE)
        to_file_end = part.stop % self.file_size == 0
        if is_tail or can_fill(part.stop - part.start, to_file_end=to_file_end):
            return part
        return attrs.evolve(part, action=RepairAction.NEEDS_REPLICA)

    def _check(self, part: RepairPart, source: RepairSource, *, is_tail: bool) -> RepairPart:
        """Check that the replica has intact bytes for a range, and the same bytes around it.

        Return the range; it is longer if the damage begins in a record's ``__CRC32#``, so that the
        record seems to have none.
        """
        for start, stop in self._beside(part, is_tail=is_tail):
            own = read_at(self.disk, self.clipped, start, stop - start)
            try:
                if own:
                    check_context(
                        source,
                        start,
                        own,
                        self.file_size,
                        data_dir=self.data_dir,
                        read_own=self._read,
                    )
            except LogDamagedError as error:
                uncovered = self._uncovered.get(part.start)
                if uncovered is None or not uncovered <= error.physic_offset < part.start:
                    raise
                data = source.read(uncovered, part.start - uncovered)
                if not check_record(data, 0, len(data), uncovered).has_prop_crc:
                    raise  # it is unknown which of the two is right
                return self._check(attrs.evolve(part, start=uncovered), source, is_tail=is_tail)
        where = Range(part.start, part.stop)
        checked = check_part(
            source, where, self.file_size, may_end_inside=is_tail, data_dir=self.data_dir
        )
        epochs = self._epochs
        is_unproven = (
            epochs is not None
            and isinstance(source, DirectorySource)
            and not is_same_log(self.disk, source, epochs, where)
        )
        return attrs.evolve(
            part,
            has_filler=checked.has_filler,
            is_unproven=is_unproven,
            sha256=checked.sha256,
        )

    def _read(self, physic_offset: int, size: int) -> bytes:
        """Read this log, at most to the file's end; unreadable bytes are zeros."""
        return read_at(cast("Disk", TolerantDisk(self.disk)), self.clipped, physic_offset, size)

    @functools.cached_property
    def _epochs(self) -> EpochHistory | None:
        """The epochs of this log; None if it is of no replica group, or has none yet."""
        if read_identity(self.disk, self.data_dir) is None:
            return None
        epochs = EpochFile(self.disk, f"{self.data_dir}/{EPOCH_FILE}").load()
        return epochs if epochs.entries else None

    def _beside(self, part: RepairPart, *, is_tail: bool) -> Iterator[tuple[int, int]]:
        """Yield the intact ranges directly before and after a damaged one."""
        before = max((p.stop for p in self._parts if p.stop <= part.start), default=0)
        start = max(before, part.start - CONTEXT_SIZE, self.log.min_offset)
        start = max(start, (part.start - 1) // self.file_size * self.file_size)
        if start < part.start:
            yield start, part.start
        if not is_tail:
            following = min((p.start for p in self._parts if p.start >= part.stop), default=None)
            stop = part.stop + CONTEXT_SIZE
            file_end = part.stop - part.stop % self.file_size + self.file_size
            stop = min(stop, file_end, self._end if following is None else following)
            if part.stop < stop:
                yield part.stop, stop
