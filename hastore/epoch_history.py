"""Which master wrote which bytes of a log: its epochs, and where each begins.

::

    epoch      1            2       5
    log        0 .......... 2444 .. 6110 .......... end

Each epoch has one master.  Its bytes go from its start to the next epoch's start, those of the last
one to the log's end.  Two logs that name the same start for an epoch should hold the same bytes up
to the nearer end of that epoch: the *consistent point* (KIP-101; RocketMQ 5's
``EpochFileCache.findConsistentPoint``).  It is no proof: every group begins with epoch 1 at 0.

Invariant: epochs and start offsets both rise strictly, so only the last epoch may be empty.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EPOCH_MAX: Final = (1 << 31) - 1
EPOCH_JUMP_MAX: Final = 1_000_000  # more than all promotions of a group's life
ENTRIES_MAX: Final = 1_000  # the most that RocketMQ's handshake has room for
_OFFSET_MAX: Final = (1 << 63) - 1
_start_offset: Final = operator.attrgetter("start_offset")


class EpochEntry(NamedTuple):
    """An epoch and the offset of its first byte; as text ``2-1222``."""

    epoch: int
    start_offset: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.start_offset}"


class EpochSpan(NamedTuple):
    """An epoch's bytes in a log: from ``start_offset`` up to ``end_offset``, exclusive."""

    epoch: int
    start_offset: int
    end_offset: int


class ConsistentPoint(NamedTuple):
    """Two logs agree up to ``offset``, by their epochs; ``epoch`` is the last that they share."""

    epoch: int
    offset: int


def fault_of(entries: Iterable[EpochEntry]) -> str | None:
    """Return why a list of epochs is illegal; None if it is legal."""
    before: EpochEntry | None = None
    for number, entry in enumerate(entries):
        if number == ENTRIES_MAX:
            return f"more than {ENTRIES_MAX} epochs"
        if not (0 <= entry.epoch <= EPOCH_MAX and 0 <= entry.start_offset <= _OFFSET_MAX):
            return f"epoch {entry} is out of range"
        if before is not None and entry.epoch <= before.epoch:
            return f"epoch {entry} after {before}: epochs must rise"
        if before is not None and entry.start_offset <= before.start_offset:
            return f"epoch {entry} after {before}: start offsets must rise"
        before = entry
    return None


@final
@attrs.frozen
class EpochHistory:
    """The epochs of one log, oldest first; every change returns another history."""

    entries: tuple[EpochEntry, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Assert the invariant; readers of foreign entries call ``fault_of`` first."""
        fault = fault_of(self.entries)
        assert fault is None, fault

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return ", ".join(map(str, self.entries)) or "none"

    @property
    def last_epoch(self) -> int | None:
        """The newest epoch; None if there is none."""
        return self.entries[-1].epoch if self.entries else None

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another epoch."""
        return len(self.entries) >= ENTRIES_MAX

    def spans(self, end_offset: int) -> Iterator[EpochSpan]:
        """Yield the bytes of each epoch in a log that ends at ``end_offset``.

        An epoch that begins after the log's end is left out: none of its bytes are there.
        """
        next_starts = [*(entry.start_offset for entry in self.entries), end_offset][1:]
        for (epoch, start), next_start in zip(self.entries, next_starts, strict=True):
            if start <= end_offset:
                yield EpochSpan(epoch, start, min(next_start, end_offset))

    def at(self, physic_offset: int) -> EpochEntry | None:
        """Return the epoch that wrote, or will write, the byte there; None before the first."""
        following = bisect.bisect(self.entries, physic_offset, key=_start_offset)
        return self.entries[following - 1] if following else None

    def end_epoch(self, end_offset: int) -> int | None:
        """Return the epoch of the last byte of a log that ends there; None if none is known.

        It says, with the end, which of two logs is newer.  The last entry does not: its epoch may
        begin at the log's end, or above it, if a power cut took bytes of the epoch before.
        """
        found = self.at(end_offset - 1)
        return None if found is None else found.epoch

    def end_of(self, entry: EpochEntry) -> int | None:
        """Return where the next epoch begins; None for the last one, which goes on."""
        following = bisect.bisect(self.entries, entry.start_offset, key=_start_offset)
        return self.entries[following].start_offset if following < len(self.entries) else None

    # -- changes ---------------------------------------------------------------------------------

    def begin(self, entry: EpochEntry) -> EpochHistory:
        """Return the history in which ``entry`` is the newest epoch, newer than all here.

        Epochs that begin there or later have written nothing that the log still holds; they are
        dropped.  Kept, they would make equal starts, which RocketMQ refuses silently: the new
        epoch would be missing, and two different logs look the same.
        """
        assert self.last_epoch is None or entry.epoch > self.last_epoch, f"{entry} after {self}"
        return EpochHistory((*self.cut(entry.start_offset).entries, entry))

    def cut(self, end_offset: int) -> EpochHistory:
        """Return the history of the log's part below ``end_offset``."""
        kept = (entry for entry in self.entries if entry.start_offset < end_offset)
        return EpochHistory(tuple(kept))

    def drop_expired(self, min_offset: int) -> EpochHistory:
        """Return the history without the epochs that end below ``min_offset``.

        One that ends exactly there stays, as in RocketMQ: a slave that has that epoch and no later
        one still finds it common.
        """
        kept = [
            entry
            for entry, following in itertools.pairwise(self.entries)
            if following.start_offset >= min_offset
        ]
        return EpochHistory((*kept, *self.entries[-1:]))

    # -- two histories ---------------------------------------------------------------------------

    def consistent_point(
        self, end_offset: int, other: EpochHistory, other_end_offset: int
    ) -> ConsistentPoint | None:
        """Return up to where this log and another agree; None if no epoch is common to both.

        Each log ends at its ``end_offset``.  The newest epoch that both have from the same start on
        decides: there one of the two has ended, or gone on in another epoch.
        """
        others = {span[:2]: span for span in other.spans(other_end_offset)}
        for span in reversed(list(self.spans(end_offset))):
            common = others.get(span[:2])
            if common is not None:
                return ConsistentPoint(span.epoch, min(span.end_offset, common.end_offset))
        return None
