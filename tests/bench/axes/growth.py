"""Whether a put's cost grows faster than what it is measured over.

Between two points of an axis the time a message takes may grow at most as the axis' value does;
TOLERANCE is the noise of two medians.  The bare loop is there for comparison: what it cannot do
either, such as 20 slaves on two cores, is the machine's limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs

from tests.bench.axes.measured import BARE, TITLES, Point, node_variants

GROWING = ("slaves", "queues", "bodies")
TOLERANCE = 1.15


@attrs.frozen
class Growth:
    """A step between two points; ``cost`` is how much longer a message takes after it."""

    axis: str
    variant: str
    start: str
    end: str
    value: float
    cost: float

    @property
    def is_linear(self) -> bool:
        """Whether the cost grows at most as the value does."""
        return self.cost <= self.value * TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**attrs.asdict(self), "is_linear": self.is_linear}

    def __str__(self) -> str:
        verdict = "linear or better" if self.is_linear else "WORSE THAN LINEAR"
        step = f"{self.start} → {self.end}"
        return (
            f"{self.axis:<8} {TITLES[self.variant]:<12} {step:<26}"
            f" × {self.value:<8.4g} a message takes × {self.cost:<8.4g} {verdict}"
        )


def growth(points: Mapping[str, Sequence[Point]]) -> list[Growth]:
    """Return the steps of the axes that grow, as far as they were measured."""
    steps = []
    for axis in GROWING:
        for variant in (*node_variants(), BARE):
            for one, other in pairwise(points.get(axis, ())):
                before, after = one.median(variant, "rate"), other.median(variant, "rate")
                if before and after:
                    value = other.value / one.value
                    steps.append(
                        Growth(axis, variant, one.label, other.label, value, before / after)
                    )
    return steps
