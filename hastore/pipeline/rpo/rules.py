"""The rules of ``rpo``: the possible fates of a put, and which are wrong.  Without Spark.

::

    outcome  the producer's knowledge      ok: acknowledged; fail: certainly not stored; unknown
    promised the acknowledgement covers a slave too: a SYNC_MASTER's, to a put that waited
    held     a surviving log has it, intact and with its body
    repeated a surviving log has it more often than it was sent
    expired  its master's file with it has expired, by the history

An acknowledged message is lost if no survivor has it.  If only its master had to store it (an
ASYNC_MASTER, or WAIT=false), or if it has expired, no promise is broken: it is counted apart.
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
# Puts with the same values of these are counted together.
ALIKE: Final = (
    "node", "outcome", "status", "promised", "present", "repeated", "expired", "wiped", "began",
)  # fmt: skip


class Fate(enum.Enum):
    """The fate of a put; the worst first."""

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
        """Whether the producer's knowledge is wrong."""
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
    """The verdict over all puts."""

    KEPT = "kept"
    LOST = "lost"  # an acknowledged message is lost
    BROKEN = "broken"  # none is lost, but one is duplicated, altered, or present though it failed


def fate_of(outcome: str, *, promised: bool, held: bool, repeated: bool, expired: bool) -> Fate:
    """Return the fate of one put."""
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
    """The number of puts with the same facts for the rules.

    ``present`` has a character per survivor, 1 if it has the message.  ``wiped``: the disk of their
    master was wiped afterwards; then ``began`` is the number of masters started before they were
    sent, else 0.  ``extra`` counts records beyond the number sent, ``altered`` those with the key
    of such a put and another body.
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
        """The fate of all of them."""
        return fate_of(
            self.outcome,
            promised=self.promised,
            held="1" in self.present,
            repeated=self.repeated,
            expired=self.expired,
        )

    def plus(self, other: PutTally) -> PutTally:
        """Return the sum with a tally of the same facts."""
        return attrs.evolve(
            self,
            puts=self.puts + other.puts,
            extra=self.extra + other.extra,
            altered=self.altered + other.altered,
        )


def count_fates(tallies: Iterable[PutTally]) -> dict[Fate, int]:
    """Return the number of puts by fate, 0 included."""
    counts = dict.fromkeys(Fate, 0)
    for tally in tallies:
        counts[tally.fate] += tally.puts
    return counts


def verdict_of(tallies: Iterable[PutTally], *, strict: bool = False) -> RpoVerdict:
    """Return the verdict; ``strict``: messages that only their master was to have count as lost."""
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
    """Sum the counts of puts over topics."""
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
    """Sum the counts of puts by one column and fate; the most frequent value first."""
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
    """Return the numbers of records that each survivor holds, and of messages that it lacks.

    ``altered`` records have the key of a put and another body, ``foreign`` ones no put's key.
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
