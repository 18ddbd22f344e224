"""Compares two logs by offset: equal, one ahead, or different, and at which message.

    left   |----------------------------------|           end found by a walk of the last file
    right          |------------------x---------------|
           └ only   └ common: compared ┘        └ only right: left is behind
             left              └ first difference, with the message there on each side

Equal offsets mean equal bytes in a master and its slaves, so only the first difference matters.
Logs with epochs also have a consistent point: up to there they should be equal, by their epochs.
The logs may have files of different sizes, and may be written while they are read: bytes written
after an end was found are ignored.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.epoch_history import EpochHistory
from hastore.errors import DiskError, EpochFileError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.record.record_check import INTACT_KINDS, RecordKind
from hastore.store.tools.log_directory import is_written
from hastore.store.tools.log_finding import Finding, Severity, find_in_record
from hastore.store.tools.log_walker import LogWalker

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk, DiskFile
    from hastore.epoch_history import ConsistentPoint
    from hastore.store.tools.log_directory import LogDirectory, LogFile

COMPARE_SIZE: Final = 1024 * 1024


class DiffVerdict(enum.Enum):
    """The outcome of a comparison."""

    EQUAL = "equal"  # over the common range, and both end at the same offset
    PREFIX = "prefix"  # equal over the common range, but one goes on after it
    DIFFERENT = "different"
    DISJOINT = "disjoint"  # both hold messages, but no offset is in both


@attrs.frozen(kw_only=True)
class LogSide:
    """One log: its range ``[min_offset, max_offset)``, and the damage after it, if any."""

    path: str
    min_offset: int
    max_offset: int
    mapped_file_size: int | None
    damaged_tail: Finding | None

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record."""
        return self.min_offset == self.max_offset


@attrs.frozen(kw_only=True)
class EpochComparison:
    """What the epochs of two logs say, whatever their bytes are.

    ``point`` is None if the logs have no epoch in common, or if ``fault`` says why one of the two
    epoch files cannot be read.  Both logs hold the byte before it only if it is above
    ``common_from``.
    """

    point: ConsistentPoint | None
    common_from: int
    fault: str | None = None

    @property
    def is_too_far_behind(self) -> bool:
        """Whether one log begins after the consistent point: it has no byte of the other."""
        return self.point is not None and self.point.offset < self.common_from

    def is_contradicted_by(self, difference: int | None) -> bool:
        """Whether the bytes differ where they should be equal."""
        return difference is not None and self.point is not None and difference < self.point.offset


@attrs.frozen(kw_only=True)
class DiffReport:
    """The comparison; both logs hold ``[common_from, common_to)``.

    ``behind`` is the side that ends first, None if both end at the same offset; ``bytes_behind``
    and ``messages_behind`` are what it lacks.  ``left_place`` and ``right_place`` are the records
    that hold the first difference; their kind is ``message``, ``blank`` or a kind of damage, which
    shows the side that is wrong.  They are None if no file holds that offset.
    """

    left: LogSide
    right: LogSide
    verdict: DiffVerdict
    common_from: int
    common_to: int
    first_difference: int | None
    left_place: Finding | None
    right_place: Finding | None
    damage: Finding | None  # the first that both sides have, if they do not differ
    behind: LogSide | None
    bytes_behind: int
    messages_behind: int
    epochs: EpochComparison | None  # None if a side has no epochs


def diff_logs(
    disk: Disk,
    left_log: LogDirectory,
    right_log: LogDirectory,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> DiffReport:
    """Compare two logs.  Raises DiskError if one cannot be read."""
    left, right = read_side(disk, left_log), read_side(disk, right_log)
    common_from = max(left.min_offset, right.min_offset)
    common_to = max(common_from, min(left.max_offset, right.max_offset))
    difference = _find_difference(
        disk, left_log, right_log, common_from, common_to, on_progress=on_progress
    )
    behind = None
    ahead, ahead_log = (left, left_log)
    if left.max_offset != right.max_offset:
        behind = left if left.max_offset < right.max_offset else right
        ahead, ahead_log = (right, right_log) if behind is left else (left, left_log)
    behind_from = ahead.max_offset if behind is None else max(behind.max_offset, ahead.min_offset)
    return DiffReport(
        left=left,
        right=right,
        verdict=verdict_of(left, right, difference),
        common_from=common_from,
        common_to=common_to,
        first_difference=difference,
        left_place=None if difference is None else _find_place(disk, left_log, difference),
        right_place=None if difference is None else _find_place(disk, right_log, difference),
        damage=None
        if difference is not None
        else _find_damage(disk, left_log, common_from, common_to),
        behind=behind,
        bytes_behind=ahead.max_offset - behind_from,
        messages_behind=_count_messages(disk, ahead_log, behind_from, ahead.max_offset),
        epochs=_compare_epochs(
            (_read_epochs(disk, left_log), left), (_read_epochs(disk, right_log), right)
        ),
    )


def _read_epochs(disk: Disk, log: LogDirectory) -> EpochHistory | str:
    """Return a log's epochs, none without a store around it, or why they cannot be read."""
    if log.root is None:
        return EpochHistory()
    try:
        return EpochFile(disk, f"{log.root}/{EPOCH_FILE}").load()
    except (EpochFileError, DiskError) as error:
        return str(error)


def _compare_epochs(
    left: tuple[EpochHistory | str, LogSide], right: tuple[EpochHistory | str, LogSide]
) -> EpochComparison | None:
    """Compare the epochs of two logs; None if one of them has none."""
    (own, own_side), (other, other_side) = left, right
    common_from = max(own_side.min_offset, other_side.min_offset)
    for found in (own, other):
        if isinstance(found, str):
            return EpochComparison(point=None, common_from=common_from, fault=found)
    assert isinstance(own, EpochHistory)
    assert isinstance(other, EpochHistory)
    if not own.entries or not other.entries:
        return None
    point = own.consistent_point(own_side.max_offset, other, other_side.max_offset)
    return EpochComparison(point=point, common_from=common_from)


def verdict_of(left: LogSide, right: LogSide, difference: int | None) -> DiffVerdict:
    """Return the verdict on two logs whose bytes first differ at ``difference``, if anywhere."""
    if difference is not None:
        return DiffVerdict.DIFFERENT
    if left.max_offset == right.max_offset:
        return DiffVerdict.EQUAL
    if left.is_empty or right.is_empty:
        return DiffVerdict.PREFIX
    if left.max_offset <= right.min_offset or right.max_offset <= left.min_offset:
        return DiffVerdict.DISJOINT
    return DiffVerdict.PREFIX


def read_side(disk: Disk, log: LogDirectory) -> LogSide:
    """Find the range of one log by a walk over its last written file.  Raises DiskError."""
    walker = LogWalker(disk, log, from_offset=_last_written_file(disk, log), check_crc=False)
    last: Finding | None = None
    for offset, check in walker.walk():
        is_intact = check.kind in INTACT_KINDS
        if not is_intact:
            last = find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)
    is_tail = last is not None and last.physic_offset >= walker.end_offset
    return LogSide(
        path=log.path,
        min_offset=log.min_offset,
        max_offset=walker.end_offset,
        mapped_file_size=log.mapped_file_size,
        damaged_tail=last if is_tail else None,
    )


def _last_written_file(disk: Disk, log: LogDirectory) -> int:
    """Return the start of the last file that does not begin with zeros."""
    for file in reversed(log.files):
        if is_written(disk, file):
            return file.physic_offset
    return 0


def _find_difference(
    disk: Disk,
    left_log: LogDirectory,
    right_log: LogDirectory,
    common_from: int,
    common_to: int,
    *,
    on_progress: Callable[[int], None] | None,
) -> int | None:
    """Return the first offset at which the bytes differ."""
    with _OffsetReader(disk, left_log) as left, _OffsetReader(disk, right_log) as right:
        offset = common_from
        while offset < common_to:
            ours = left.read(offset, min(COMPARE_SIZE, common_to - offset))
            theirs = right.read(offset, len(ours))
            size = min(len(ours), len(theirs))
            if ours[:size] != theirs[:size] or size == 0:
                return offset + _first_difference(ours, theirs)
            offset += size
            if on_progress is not None:
                on_progress(size)
    return None


def _first_difference(ours: bytes, theirs: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)


def _find_place(disk: Disk, log: LogDirectory, physic_offset: int) -> Finding | None:
    """Describe what holds an offset: a message, a filler, or damage."""
    for offset, check in LogWalker(disk, log, from_offset=physic_offset).walk():
        if offset <= physic_offset < offset + check.size:
            is_intact = check.kind in INTACT_KINDS
            severity = Severity.WARNING if is_intact else Severity.DAMAGE
            return find_in_record(severity, check.kind.value, offset, check, check.detail)
        if offset > physic_offset:
            break
    return None


def _find_damage(disk: Disk, log: LogDirectory, from_offset: int, to_offset: int) -> Finding | None:
    """Find the first damage that begins in ``[from_offset, to_offset)``."""
    if from_offset >= to_offset:
        return None
    for offset, check in LogWalker(disk, log, from_offset=from_offset).walk():
        if offset >= to_offset:
            break
        if offset >= from_offset and check.kind not in INTACT_KINDS:
            return find_in_record(Severity.DAMAGE, check.kind.value, offset, check, check.detail)
    return None


def _count_messages(disk: Disk, log: LogDirectory, from_offset: int, to_offset: int) -> int:
    """Count the messages that begin in ``[from_offset, to_offset)``."""
    if from_offset >= to_offset:
        return 0
    walk = LogWalker(disk, log, from_offset=from_offset, check_crc=False).walk()
    return sum(
        check.kind is RecordKind.MESSAGE
        for offset, check in walk
        if from_offset <= offset < to_offset
    )


@final
class _OffsetReader:
    """Reads a log by physical offset; the last file that it read stays open."""

    def __init__(self, disk: Disk, log: LogDirectory) -> None:
        self._disk = disk
        self._log = log
        self._file: LogFile | None = None
        self._disk_file: DiskFile | None = None

    def __enter__(self) -> _OffsetReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, physic_offset: int, size: int) -> bytes:
        """Read up to ``size`` bytes of one file; none if no file has the offset."""
        file = self._file
        if file is None or not file.physic_offset <= physic_offset < file.next_offset:
            self._close()
            file = self._log.file_at(physic_offset)
            if file is None:
                return b""
            self._file = file
            self._disk_file = self._disk.open_file(file.path, writable=False)
        assert self._disk_file is not None
        size = min(size, file.next_offset - physic_offset)
        return self._disk_file.pread(size, physic_offset - file.physic_offset)

    def _close(self) -> None:
        if self._disk_file is not None:
            self._disk_file.close()
        self._file = self._disk_file = None
