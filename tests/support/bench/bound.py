"""One row of the table: a bound, the measured value, and its reference.

Everything is measured in pairs, ours and the reference right after each other, so that a slow
moment of the machine hits both; the ratio that counts is the median of the pairs' ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class Bound:
    """A bound on a ratio: at most ``limit``, or at least ``limit`` if ``at_least``."""

    key: str
    work: str
    text: str
    limit: float
    at_least: bool = False


@attrs.frozen(kw_only=True)
class Row:
    """A measured bound; ``ours`` and ``reference`` are medians, in ``unit``."""

    bound: Bound
    ours: float
    reference: float
    unit: str
    ratios: Sequence[float]
    note: str = ""

    @classmethod
    def of_pairs(
        cls, bound: Bound, pairs: Sequence[tuple[float, float]], unit: str, note: str = ""
    ) -> Row:
        """Make a row of (ours, reference) pairs."""
        return cls(
            bound=bound,
            ours=statistics.median(ours for ours, _ in pairs),
            reference=statistics.median(reference for _, reference in pairs),
            unit=unit,
            ratios=[ours / reference for ours, reference in pairs],
            note=note,
        )

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    @property
    def holds(self) -> bool:
        """Whether the bound holds."""
        return (
            self.ratio >= self.bound.limit
            if self.bound.at_least
            else self.ratio <= self.bound.limit
        )

    @property
    def within_twice(self) -> bool:
        """Whether the bound holds or is missed by at most a factor of two."""
        limit = self.bound.limit
        return self.ratio >= limit / 2 if self.bound.at_least else self.ratio <= limit * 2

    def to_dict(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "key": self.bound.key,
            "work": self.bound.work,
            "bound": self.bound.text,
            "limit": self.bound.limit,
            "at_least": self.bound.at_least,
            "ours": self.ours,
            "reference": self.reference,
            "unit": self.unit,
            "ratio": self.ratio,
            "ratios": list(self.ratios),
            "holds": self.holds,
            "within_twice": self.within_twice,
            "note": self.note,
        }
