"""What may have become of a put, and which of it is wrong: the rules of ``rpo``, without Spark.

::

    outcome  what a producer concluded     ok: acknowledged; fail: certainly not stored; unknown
    promised the acknowledgement spoke for a slave, too: a SYNC_MASTER's, to a put that waited
    held     a surviving log has it, with its body, sound
    repeated a surviving log has it more often than it was sent
    expired  its master's files with it have expired, as the history says

An acknowledged message is lost when no survivor has it.  Where its master alone was to have it
(an ASYNC_MASTER, or WAIT=false) that is counted apart, and so is what has expired: nothing that was
promised is broken.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Counts = Sequence[Mapping[str, Any]]

OK: Final = "ok"
FAIL: Final = "fail"
UNKNOWN: Final = "unknown"
OUTCOMES: Final = (OK, FAIL, UNKNOWN)
# What puts must have in common to be counted together.
ALIKE: Final = (
    "node", "outcome", "status", "promised", "present", "repeated", "expired", "wiped", "began",
)  # fmt: skip


class Fate(enum.Enum):
    """What became of a put; the worst first."""

    ACKNOWLEDGED_LOST = "acknowledged, lost"
    ACKNOWLEDGED_DUPLICATED = "acknowledged, duplicated"
    FAILED_PRESENT = "failed, present"
    UNKNOWN_DUPLICATED = "unknown, duplicated"
    ALONE_LOST = "acknowledged by the master alone, lost"
    EXPIRED = "acknowledged, expired"
    UNKNOWN_ABSENT = "unknown, absent"
    UNKNOWN_PRESENT = "unknown, present"
    FAILED_ABSENT = "failed, absent"
    ACKNOWLEDGED_KEPT = "acknowledged, kept"

    @property
    def is_wrong(self) -> bool:
        """Whether somebody was told something that is not so."""
        return self in _WRONG


_WRONG: Final = frozenset(
    {
        Fate.ACKNOWLEDGED_LOST,
        Fate.ACKNOWLEDGED_DUPLICATED,
        Fate.FAILED_PRESENT,
        Fate.UNKNOWN_DUPLICATED,
    }
)


class RpoVerdict(enum.Enum):
    """All of it in a word."""

    KEPT = "kept"
    LOST = "lost"  # something acknowledged is
    BROKEN = "broken"  # nothing is lost; a message is there twice, or though it failed, or altered


def fate_of(outcome: str, *, promised: bool, held: bool, repeated: bool, expired: bool) -> Fate:
    """Say what became of one put."""
    if outcome == FAIL:
        return Fate.FAILED_PRESENT if held else Fate.FAILED_ABSENT
    if outcome == UNKNOWN:
        if repeated:
            return Fate.UNKNOWN_DUPLICATED
        return Fate.UNKNOWN_PRESENT if held else Fate.UNKNOWN_ABSENT
    if repeated:
        return Fate.ACKNOWLEDGED_DUPLICATED
    if held:
        return Fate.ACKNOWLEDGED_KEPT
    if expired:
        return Fate.EXPIRED
    return Fate.ACKNOWLEDGED_LOST if promised else Fate.ALONE_LOST


def all_fates() -> Iterator[tuple[str, bool, bool, bool, bool, Fate]]:
    """Yield the rules as a table: outcome, promised, held, repeated, expired, and the fate."""
    for outcome in OUTCOMES:
        for promised, held, repeated, expired in itertools.product((False, True), repeat=4):
            fate = fate_of(
                outcome, promised=promised, held=held, repeated=repeated, expired=expired
            )
            yield outcome, promised, held, repeated, expired, fate


@attrs.frozen(kw_only=True)
class PutTally:
    """Puts that are alike in all that the rules look at, counted.

    ``present`` has a character for each survivor, 1 where it has the message.  ``wiped``: the disk
    of their master was taken away afterwards; then ``began`` masters had started before they were
    sent, else it is 0.  ``extra`` are the records beyond what was sent, ``altered`` those with the
    key of such a put and another body.
    """

    node: str
    outcome: str
    status: str
    promised: bool
    present: str
    repeated: bool
    expired: bool = False
    wiped: bool = False
    began: int = 0
    puts: int
    extra: int
    altered: int

    @property
    def fate(self) -> Fate:
        """What became of them."""
        return fate_of(
            self.outcome,
            promised=self.promised,
            held="1" in self.present,
            repeated=self.repeated,
            expired=self.expired,
        )

    def plus(self, other: PutTally) -> PutTally:
        """Add up with more of the same."""
        return attrs.evolve(
            self,
            puts=self.puts + other.puts,
            extra=self.extra + other.extra,
            altered=self.altered + other.altered,
        )


def count_fates(tallies: Iterable[PutTally]) -> dict[Fate, int]:
    """Count puts by fate; every fate is there."""
    counts = dict.fromkeys(Fate, 0)
    for tally in tallies:
        counts[tally.fate] += tally.puts
    return counts


def judge(tallies: Iterable[PutTally], *, strict: bool = False) -> RpoVerdict:
    """Return the verdict; ``strict``: what only the master was to have counts as lost, too."""
    tallies = list(tallies)
    counts = count_fates(tallies)
    if counts[Fate.ACKNOWLEDGED_LOST] or (strict and counts[Fate.ALONE_LOST]):
        return RpoVerdict.LOST
    is_altered = any(tally.altered for tally in tallies)
    if is_altered or any(count for fate, count in counts.items() if fate.is_wrong):
        return RpoVerdict.BROKEN
    return RpoVerdict.KEPT


# -- counts ----------------------------------------------------------------------------------------

# A row of counts has the facts of puts that are alike, and lists with a number for each survivor:
#   {"node", "outcome", "status", "promised", "present", "repeated", "expired", "wiped", "began",
#    "topic", "puts", "extra", "copies": […], "others": […], "damaged": […]}
# Rows without a ``node`` count records that match no put of the history, and damage.


def tallies_of(counts: Counts) -> list[PutTally]:
    """Add up over topics."""
    found: dict[tuple[Any, ...], PutTally] = {}
    for row in counts:
        if row["node"] is None:
            continue
        tally = _tally(row)
        same = tuple(row[name] for name in ALIKE)
        before = found.get(same)
        found[same] = tally if before is None else before.plus(tally)
    return list(found.values())


def fates_by(counts: Counts, column: str) -> list[dict[str, Any]]:
    """Add up by one column, a number for each fate; the most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for row in counts:
        if row["node"] is None:
            continue
        tally = _tally(row)
        line = found.setdefault(
            row[column], {column: row[column], "puts": 0} | {fate.name.lower(): 0 for fate in Fate}
        )
        line["puts"] += tally.puts
        line[tally.fate.name.lower()] += tally.puts
    return sorted(found.values(), key=lambda line: (-line["puts"], line[column]))


def fates_by_survivor(counts: Counts, survivors: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each survivor holds, and how many acknowledged messages it lacks.

    ``altered`` have the key of a put and another body, ``foreign`` a key that no put has, or none.
    """
    lines = []
    for at, survivor in enumerate(survivors):
        of_puts = [row for row in counts if row["node"] is not None]
        others = [row for row in counts if row["node"] is None]
        acknowledged = [row for row in of_puts if row["outcome"] == OK]
        lines.append(
            {
                "survivor": survivor,
                "messages": sum(row["copies"][at] for row in of_puts),
                "acknowledged": _puts(row for row in acknowledged if row["present"][at] == "1"),
                "lacks": _puts(row for row in acknowledged if row["present"][at] == "0"),
                "altered": sum(row["others"][at] for row in of_puts),
                "foreign": sum(row["others"][at] for row in others),
                "damaged": sum(row["damaged"][at] for row in others),
            }
        )
    return lines


def _puts(rows: Iterable[Mapping[str, Any]]) -> int:
    return sum(row["puts"] for row in rows)


def _tally(row: Mapping[str, Any]) -> PutTally:
    alike = {name: row[name] for name in ALIKE}
    return PutTally(**alike, puts=row["puts"], extra=row["extra"], altered=sum(row["others"]))
