"""What ``rpo`` counted, added up by fate, by status, by topic and by survivor: without Spark.

A row of counts has the facts of puts that are alike, and lists with a number for each survivor:

    {"node", "outcome", "status", "promised", "present", "repeated", "expired", "wiped", "began",
     "topic", "puts", "extra", "copies": […], "others": […], "damaged": […]}

A row without a ``node`` is no put's: records that the history does not account for, and damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.pipeline.rpo.rules import OK, Fate, PutTally

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Counts = Sequence[Mapping[str, Any]]

# What puts must have in common to be counted together.
ALIKE: Final = (
    "node", "outcome", "status", "promised", "present", "repeated", "expired", "wiped", "began",
)  # fmt: skip


def tallies(counts: Counts) -> list[PutTally]:
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


def by(counts: Counts, column: str) -> list[dict[str, Any]]:
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


def by_survivor(counts: Counts, survivors: Sequence[str]) -> list[dict[str, Any]]:
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
