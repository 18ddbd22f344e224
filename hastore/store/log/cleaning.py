"""Decides which files of the log are deleted now, and why: facts in, a decision out.

::

    file 0      file 1      file 2      …      last file    (prepared)
    deleted     deleted     kept ◄── the first file that must stay ends the round

    used      effect                                             (per cent of the file system)
    > 75      expired files are deleted at any hour              disk_max_used_space_ratio
    > 85      files are deleted whatever their age               disk_space_clean_forcibly_ratio
    > 90      puts are refused too, until it is 85 or less       disk_space_warning_level_ratio

A file has expired ``file_reserved_time_h`` after the last write to it; expired files are deleted in
the hours of ``delete_when``.  A file that a connected slave, the dispatch or a reader still needs
is *held*: it stays up to ``destroy_mapped_file_interval_forcibly_ms`` longer, at every level of the
disk (two minutes of refused puts cost less than a new copy for a slave).  Deleting a held file ends
the round, and the decision names its holders.  With ``delete_only_archived`` a file that is not
archived stays without a limit, at every level: puts are refused instead, and nothing is lost.

Invariants: the deleted files are a prefix, so a log never has a hole; the last file is never
deleted, nor one that is not flushed, nor one that must be archived first.  Source of the rules:
RocketMQ's ``CleanCommitLogService``.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, Self, final

import attrs

from hastore.errors import ConfigError
from hastore.quantities import read_digits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.config import StoreConfig

_HOUR_MS: Final = 3_600_000
_HOURS_A_DAY: Final = 24
# RocketMQ's limits of each ratio (lowest, highest).
_MAX_USED_RANGE: Final = (10, 95)
_FORCIBLY_RANGE: Final = (30, 85)
_WARNING_RANGE: Final = (35, 90)


class DiskLevel(enum.Enum):
    """What may be deleted because of the disk's use."""

    ROOM = "room"
    CLEAN_EXPIRED = "clean-expired"  # expired files, at any hour
    CLEAN_ANY = "clean-any"  # files of any age


class Reason(enum.Enum):
    """Why a file is deleted, or why the first that stays does."""

    EXPIRED = "expired"
    NO_ROOM = "the disk is too full"
    LAST_FILE = "the last file stays"
    NOT_THE_HOUR = "not the hour"
    NOT_EXPIRED = "not expired"
    CLOCK_IN_DOUBT = "the clock is in doubt"
    NOT_FLUSHED = "not flushed"
    NOT_ARCHIVED = "not archived"
    HELD = "held"
    BATCH_ENDS = "enough for one round"


@attrs.frozen(kw_only=True)
class OldFile:
    """One file: its range, its date (``file_dates``), its state, how many reads are under way."""

    start: int
    end: int
    date_ms: int
    is_flushed: bool = True
    is_archived: bool = True  # or need not be
    readers: int = 0


@attrs.frozen(kw_only=True)
class DateFloor:
    """Files that start below ``physic_offset`` are not older than ``date_ms``, whatever they say.

    The clock was behind until then.
    """

    physic_offset: int
    date_ms: int


@attrs.frozen(kw_only=True)
class Hold:
    """A slave, reader or service that needs the log from ``physic_offset`` on."""

    physic_offset: int
    who: str


@attrs.frozen(kw_only=True)
class Removal:
    """A file to delete; ``holders`` are those who still needed it when its hold ran out."""

    start: int
    reason: Reason
    holders: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CleaningDecision:
    """The files to delete, oldest first, and why the next one stays; ``holders`` if it is HELD."""

    removals: tuple[Removal, ...]
    stopped_because: Reason
    holders: tuple[str, ...] = ()


@final
@attrs.frozen(kw_only=True)
class CleaningRules:
    """The configured limits."""

    reserved_ms: int
    hours: frozenset[int]
    hold_ms: int
    batch_max: int
    max_used: int
    forcibly: int
    warning: int
    cleans_forcibly: bool

    @classmethod
    def of(cls, config: StoreConfig) -> Self:
        """Read the configuration.  Raises ConfigError for an invalid hour."""
        return cls(
            reserved_ms=config.file_reserved_time_h * _HOUR_MS,
            hours=parse_hours(config.delete_when),
            hold_ms=config.destroy_mapped_file_interval_forcibly_ms,
            batch_max=config.delete_file_batch_max,
            max_used=_within(config.disk_max_used_space_ratio, _MAX_USED_RANGE),
            forcibly=_within(config.disk_space_clean_forcibly_ratio, _FORCIBLY_RANGE),
            warning=_within(config.disk_space_warning_level_ratio, _WARNING_RANGE),
            cleans_forcibly=config.clean_file_forcibly_enable,
        )

    def level(self, used_percent: int) -> DiskLevel:
        """Return what may be deleted when this much of the disk is used."""
        if used_percent > self.forcibly and self.cleans_forcibly:
            return DiskLevel.CLEAN_ANY
        if used_percent > min(self.max_used, self.forcibly):
            return DiskLevel.CLEAN_EXPIRED
        return DiskLevel.ROOM

    def is_full(self, used_percent: int, *, was_full: bool) -> bool:
        """Whether puts are refused: above the warning level, and then down to the lower one."""
        return used_percent > (min(self.forcibly, self.warning) if was_full else self.warning)


def used_percent(ratio: float) -> int:
    """Return the use of a disk in whole per cent, rounded up as ``df`` does."""
    return math.ceil(round(ratio * 100, 6))


def parse_hours(text: str) -> frozenset[int]:
    """Read ``delete_when``: hours of the local day, separated by ``;``."""
    hours = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        hour = read_digits(part)
        if hour is None or hour >= _HOURS_A_DAY:
            msg = f"delete_when: {part!r} is not an hour of the day"
            raise ConfigError(msg, hint='00 to 23, separated by ";", for example "04" or "02;14"')
        hours.add(hour)
    return frozenset(hours)


def file_dates(
    starts: Sequence[int], modified_ms: Sequence[int], now_ms: int, floor: DateFloor | None = None
) -> list[int]:
    """Return the dates of files, oldest first: the instants from which their ages are counted.

    As a rule that is when a file was modified last.  A date in the future is wrong, because the
    clock was ahead once: the next file's counts then, since files are written in order.  ``floor``
    is for files that were written while the clock was behind.
    """
    dates = []
    next_ms = now_ms
    for start, modified in zip(reversed(starts), reversed(modified_ms), strict=True):
        next_ms = modified if modified <= now_ms else next_ms
        if floor is not None and start < floor.physic_offset:
            next_ms = max(next_ms, floor.date_ms)
        dates.append(next_ms)
    return dates[::-1]


def decide(
    rules: CleaningRules,
    files: Sequence[OldFile],
    *,
    now_ms: int,
    hour: int,
    level: DiskLevel,
    in_doubt: bool = False,
    holds: Sequence[Hold] = (),
    held_ms: float = 0,
) -> CleaningDecision:
    """Decide which of ``files`` (oldest first, the last one being written) to delete now.

    ``held_ms`` is how long the first file has stayed only because it was held.  ``in_doubt``: the
    clock is, so no file is deleted because of its age; one may still be for want of room.
    """
    removals: list[Removal] = []

    def stopped(reason: Reason, holders: tuple[str, ...] = ()) -> CleaningDecision:
        return CleaningDecision(removals=tuple(removals), stopped_because=reason, holders=holders)

    if level is DiskLevel.ROOM and hour not in rules.hours:
        return stopped(Reason.NOT_THE_HOUR)
    for file in files[:-1]:
        if len(removals) == rules.batch_max:
            return stopped(Reason.BATCH_ENDS)
        is_old = file.date_ms + rules.reserved_ms <= now_ms
        has_expired = is_old and not in_doubt
        if not has_expired and level is not DiskLevel.CLEAN_ANY:
            return stopped(Reason.CLOCK_IN_DOUBT if is_old else Reason.NOT_EXPIRED)
        if not file.is_flushed:
            return stopped(Reason.NOT_FLUSHED)
        if not file.is_archived:
            return stopped(Reason.NOT_ARCHIVED)
        reason = Reason.EXPIRED if has_expired else Reason.NO_ROOM
        holders = _holders_of(file, holds)
        if not holders:
            removals.append(Removal(start=file.start, reason=reason))
        elif not removals and held_ms >= rules.hold_ms:
            removals.append(Removal(start=file.start, reason=reason, holders=holders))
            return stopped(Reason.BATCH_ENDS)
        else:
            return stopped(Reason.HELD, holders)
    return stopped(Reason.LAST_FILE)


def _holders_of(file: OldFile, holds: Sequence[Hold]) -> tuple[str, ...]:
    holders = [hold.who for hold in holds if hold.physic_offset < file.end]
    if file.readers:
        holders.append(f"{file.readers} reads under way")
    return tuple(holders)


def _within(value: int, limits: tuple[int, int]) -> int:
    lowest, highest = limits
    return min(max(value, lowest), highest)
