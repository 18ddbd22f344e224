"""The source of bytes for damaged ranges: another copy of the same log.

``check_part`` verifies that the copy's records are intact and in their place, up to exactly the
range's end; ``check_context`` that the copy equals this log on both sides of the range, but for
fillers; ``is_same_log`` that both logs of a replica group have the range of the same masters.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, final

import attrs

from hastore.errors import LogDamagedError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import read_identity
from hastore.store.record.layout import (
    BLANK_SIZE_MIN,
    MAGIC_POSITION,
    MESSAGE_PATTERN,
    claimed_size,
)
from hastore.store.record.record_check import INTACT_KINDS, RecordKind, check_record, claims_fit
from hastore.store.recovery.trim import Range
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.repair.filler import FILLER_SIZE_MAX, FILLER_SIZE_MIN, is_filler
from hastore.store.tools.repair.reasons import INTACT_IS_RIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Disk
    from hastore.epoch_history import EpochHistory
    from hastore.store.queue.confirmed_records import ConfirmedRecords, ReadLog
    from hastore.store.record.layout import Buffer
    from hastore.store.record.record_check import RecordCheck

CONTEXT_SIZE: Final = 4_096  # bytes compared before and after a range
_READ_SIZE: Final = 8 * 1024 * 1024
_WALK_SIZE: Final = 1024 * 1024  # of the replica's log, in search of one that confirms


class RepairSource(Protocol):
    """A replica's log."""

    name: str

    def read(self, physic_offset: int, size: int) -> bytes:
        """Return exactly these bytes; they may cross a file's end.

        Raises LogDamagedError if the replica lacks any, DiskError if it cannot be read.
        """


@final
class DirectorySource:
    """A store's directory, opened for reading only; no node may be writing to it."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.name = path
        self._disk = disk
        self._log = find_log(disk, path)
        self._log.refuse_unfinished_cut()

    @property
    def root(self) -> str | None:
        """The store's directory; None of a log without the store around it."""
        return self._log.root

    @property
    def mapped_file_size(self) -> int | None:
        """Size of its files; None if it has none."""
        return self._log.mapped_file_size

    @property
    def end_offset(self) -> int:
        """Where its files end: its log ends there or before."""
        return max((file.next_offset for file in self._log.files), default=0)

    def read(self, physic_offset: int, size: int) -> bytes:
        """Read across files."""
        data, files = b"", self._log.files
        while len(data) < size:
            offset = physic_offset + len(data)
            # The last file that has the offset: one that is too long overlaps the next.
            file = next(
                (f for f in reversed(files) if f.physic_offset <= offset < f.next_offset), None
            )
            if file is None:
                raise _not_there(self.name, offset)
            with contextlib.closing(self._disk.open_file(file.path, writable=False)) as disk_file:
                position = offset - file.physic_offset
                piece = disk_file.pread(min(size - len(data), file.size - position), position)
            if not piece:
                raise _not_there(self.name, offset)
            data += piece
        return data


def is_same_log(disk: Disk, source: DirectorySource, own: EpochHistory, part: Range) -> bool:
    """Whether a directory has the bytes of a range of this log by its epochs; False: it has none.

    ``own`` are the epochs of this log, of a member of a replica group.  Intact records prove
    nothing: a former master has some that nobody acknowledged, where a later one has others.
    Raises LogDamagedError if the directory has another log there, or may have one because an
    earlier repair took it from a log without epochs.  An unverified log may have fillers, too;
    ``check_part`` finds them.
    """
    if source.root is None:
        return False
    epochs = EpochFile(disk, f"{source.root}/{EPOCH_FILE}").load()
    if not epochs.entries:
        return False
    point = own.consistent_point(part.stop, epochs, source.end_offset)
    if point is None or point.offset < part.stop:
        agreed = 0 if point is None else point.offset
        raise LogDamagedError(
            f"the log of {source.name} is another one from {agreed} on: its epochs are {epochs},"
            f" and those of this log {own}",
            path=source.name,
            physic_offset=agreed,
            hint="name a member that has followed the same masters, or the HA port of the group's"
            " master",
        )
    identity = read_identity(disk, source.root)
    found = None if identity is None else identity.unverified
    is_wrong = found is not None and found.why not in INTACT_IS_RIGHT
    if found is not None and is_wrong and found.begin < part.stop and part.start < found.end:
        raise LogDamagedError(
            f"{source.name} is no source for the bytes from {part.start} to {part.stop}: {found}",
            path=source.name,
            physic_offset=part.start,
            hint="use another replica, or repair without one",
        )
    return True


@final
@attrs.frozen
class RepairConfirmation:
    """What confirms a record behind damage: its unit, or the replica's record in its place."""

    by_units: ConfirmedRecords
    source: RepairSource | None

    def resume_after(self, physic_offset: int, file_end: int, read: ReadLog) -> int | None:
        """Return where reading resumes after damage; None if nothing up to ``file_end`` is sure.

        The replica's records are walked from the damaged one on: after it, the first one that is
        the same here, or whose place has a filler in either log.  A unit may confirm an earlier
        record, in the middle of what the replica has filled.  Raises DiskError, and what ``source``
        raises if it cannot be read.
        """
        found = [self.by_units.resume_after(physic_offset, file_end, read)]
        if self.source is not None:
            found.append(_first_confirmed(self.source, physic_offset, file_end, read))
        return min((offset for offset in found if offset is not None), default=None)


def _first_confirmed(
    source: RepairSource, physic_offset: int, file_end: int, read: ReadLog
) -> int | None:
    offset, after_filler = physic_offset, False
    while file_end - offset >= BLANK_SIZE_MIN:
        data = memoryview(_read_some(source, offset, min(_WALK_SIZE, file_end - offset)))
        size = claimed_size(data)
        if len(data) == _WALK_SIZE < size <= file_end - offset and claims_fit(data):
            data = memoryview(_read_some(source, offset, size))
        position = 0
        while True:
            at = offset + position
            check = check_record(data[position:], 0, file_end - at, at)
            if check.kind not in INTACT_KINDS:
                break
            piece = data[position : position + check.size]  # of a BLANK perhaps its start only
            if at > physic_offset:
                own, left = read(at, len(piece)), file_end - at
                if _confirms(check, piece, own, left, at, after_filler=after_filler):
                    return at
            if check.kind is RecordKind.BLANK:
                return None
            after_filler = is_filler(check)
            position += check.size
        if not position:
            return None
        offset += position
    return None


def _confirms(
    check: RecordCheck, piece: Buffer, own: bytes, available: int, at: int, *, after_filler: bool
) -> bool:
    """Whether a replica's record confirms that one begins in this log, too: at ``at``.

    It is the same, or either log has a filler of its size in the message's place.  A replica's
    filler ``after_filler`` confirms nothing: long fillers come in pieces, and a later piece may
    begin inside a body.
    """
    if after_filler and is_filler(check):
        return False
    if own == piece:
        return True
    own_check = check_record(own, 0, available, at)
    return own_check.kind is check.kind is RecordKind.MESSAGE and (
        own_check.size == check.size and (is_filler(own_check) or is_filler(check))
    )


def _read_some(source: RepairSource, physic_offset: int, size: int) -> bytes:
    """Read ``size`` bytes of a replica, or fewer if its log ends before them."""
    while size:
        try:
            return source.read(physic_offset, size)
        except LogDamagedError:
            size //= 2
    return b""


class CheckedPart(NamedTuple):
    """What a copy has in a range: whether there is a filler, and the SHA-256 of its bytes."""

    has_filler: bool
    sha256: str


def check_part(
    source: RepairSource, part: Range, file_size: int, *, may_end_inside: bool, data_dir: str
) -> CheckedPart:
    """Read a range, all in one file, and check its records.

    ``may_end_inside``: the range may end in the middle of a record, as a slave's log may.  Raises
    LogDamagedError.
    """
    file_end = part.start - part.start % file_size + file_size
    offset, read_size, has_filler = part.start, _READ_SIZE, False
    digest = hashlib.sha256()
    while offset < part.stop:
        data = memoryview(source.read(offset, min(read_size, part.stop - offset)))
        position = 0
        check = check_record(data, 0, file_end - offset, offset)
        while check.kind is RecordKind.MESSAGE:
            has_filler = has_filler or is_filler(check)
            position += check.size
            available = file_end - offset - position
            check = check_record(data[position:], 0, available, offset + position)
        if position:
            digest.update(data[:position])
            offset, read_size = offset + position, _READ_SIZE
            continue
        is_short = len(data) < part.stop - offset
        if check.kind is RecordKind.TORN and is_short and file_end - offset >= BLANK_SIZE_MIN:
            read_size *= 2  # a record larger than what was read
            continue
        if not (
            file_end - offset < BLANK_SIZE_MIN
            or (check.kind is RecordKind.BLANK and file_end == part.stop)
            or (check.kind is RecordKind.TORN and may_end_inside)
        ):
            raise LogDamagedError(
                f"{source.name} cannot repair {data_dir}: its own log is damaged at {offset}"
                f" ({check.kind.value}), or it has other records there",
                path=source.name,
                physic_offset=offset,
                hint="use another replica, or repair without one",
            )
        digest.update(data)
        offset += len(data)
        for start in range(offset, part.stop, _READ_SIZE):  # of a BLANK
            digest.update(source.read(start, min(_READ_SIZE, part.stop - start)))
        break
    return CheckedPart(has_filler, digest.hexdigest())


def check_context(
    source: RepairSource,
    physic_offset: int,
    own: bytes,
    file_size: int,
    *,
    data_dir: str,
    read_own: Callable[[int, int], bytes],
) -> None:
    """Compare intact bytes of this log, all in one file, with the replica's.

    Where either of the two has a filler, the other may have the message.  ``read_own`` reads this
    log, at most to the file's end.  Raises LogDamagedError.
    """
    other = source.read(physic_offset, len(own))
    if other == own:
        return
    part = Range(physic_offset, physic_offset + len(own))
    fillers = [*_fillers(source.read, part, file_size), *_fillers(read_own, part, file_size)]
    for at, (a, b) in enumerate(zip(own, other, strict=True), physic_offset):
        if a != b and not any(each.start <= at < each.stop for each in fillers):
            raise LogDamagedError(
                f"{source.name} is not a replica of {data_dir}: the logs differ at {at}, beside"
                " the damage",
                path=source.name,
                physic_offset=at,
                hint="use another replica; to compare: hastore log diff",
            )


def _fillers(read: Callable[[int, int], bytes], part: Range, file_size: int) -> Iterator[Range]:
    """Yield the fillers that overlap a range of one file, each with a BLANK right after it."""
    base = part.start - part.start % file_size
    begin, file_end = max(base, part.start - FILLER_SIZE_MAX), base + file_size
    data = read(begin, part.stop - begin)
    for match in MESSAGE_PATTERN.finditer(data, MAGIC_POSITION):
        position = match.start() - MAGIC_POSITION
        size, at = claimed_size(data, position), begin + position
        stop = at + size
        if not (part.start < stop <= file_end and FILLER_SIZE_MIN <= size <= FILLER_SIZE_MAX):
            continue
        record = data[position : position + size] if stop <= part.stop else read(at, size)
        check = check_record(record, 0, file_end - at, at)
        if check.kind is RecordKind.MESSAGE and is_filler(check):
            if stop < part.stop and file_end - stop >= BLANK_SIZE_MIN:
                head = read(stop, BLANK_SIZE_MIN)
                if check_record(head, 0, file_end - stop, stop).kind is RecordKind.BLANK:
                    stop = file_end
            yield Range(at, stop)


def _not_there(name: str, physic_offset: int) -> LogDamagedError:
    return LogDamagedError(
        f"{name} has nothing at offset {physic_offset}",
        path=name,
        physic_offset=physic_offset,
        hint="use another replica, or repair without one",
    )
