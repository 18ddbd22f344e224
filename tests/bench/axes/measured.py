"""What was measured at the points of an axis: rounds of several variants, and their JSON and text.

The variants of a point run in turn, so that a slow moment of the machine hits all of them.  A
figure is the median of its rounds; a ratio is the median of the rounds' ratios, with the smallest
and the largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hastore.native.in_use import extension
from tests.bench.axes.load import median_of

EXTENSION = "extension"
PURE = "pure"
BARE = "bare"
COLUMNS = {
    "rate": "msg/s",
    "mib_per_s": "MiB/s",
    "gb_per_s": "GB/s",
    "copied_gb_per_s": "copied",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "p999_us": "p99.9 µs",
    "cpu_us": "CPU µs",
    "cpu_us_master": "master µs",
    "cpu_us_slave": "slave µs",
    "cpu_us_client": "client µs",
    "cpu_percent": "CPU %",
    "rss_mib": "anon MiB",
}
TITLES = {EXTENSION: "extension", PURE: "pure Python", BARE: "bare loop"}
RATIOS = ((EXTENSION, BARE), (PURE, BARE), (EXTENSION, PURE))
SPREAD_ENOUGH = 1.10  # between the largest and the smallest ratio: no more rounds are needed

Round = dict[str, float | None]


def node_variants() -> tuple[str, ...]:
    """Return the variants of a node that can run here: there may be no extension."""
    return (PURE,) if extension is None else (EXTENSION, PURE)


@attrs.frozen
class Scale:
    """How long to measure: seconds of a round, rounds at a point, sizes of what is written once."""

    seconds: float = 0.5
    count_min: int = 3_000  # messages of a round, for its p99.9
    rounds_min: int = 3
    rounds_max: int = 7
    log_mib: int = 256
    appended: int = 60_000
    idle_s: float = 5.0
    points_max: int = 99


@attrs.frozen
class Point:
    """One point of an axis: its rounds by variant, and the figure whose ratios count."""

    label: str
    value: float
    rounds: Mapping[str, Sequence[Round]]
    figure: str = "rate"
    note: str = ""

    def median(self, variant: str, figure: str) -> float | None:
        """Return the median of a figure; None if the variant has none."""
        return median_of([each.get(figure) for each in self.rounds.get(variant, ())])

    def ratios(self, variant: str, reference: str) -> list[float]:
        """Return the ratio of each round."""
        return _ratios(self.rounds, variant, reference, self.figure)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        figures = {
            variant: {
                figure: _rounded(self.median(variant, figure))
                for figure in dict.fromkeys(key for each in rounds for key in each)
            }
            for variant, rounds in self.rounds.items()
        }
        ratios = {}
        for variant, reference in RATIOS:
            found = self.ratios(variant, reference)
            if found:
                ratios[f"{variant}:{reference}"] = {
                    "median": _rounded(statistics.median(found)),
                    "min": _rounded(min(found)),
                    "max": _rounded(max(found)),
                    "rounds": len(found),
                }
        return {
            "label": self.label,
            "value": self.value,
            "figure": self.figure,
            "variants": figures,
            "ratios": ratios,
            "note": self.note,
        }


def in_turn(
    samplers: Mapping[str, Callable[[], Round]], scale: Scale, figure: str = "rate"
) -> dict[str, list[Round]]:
    """Measure all variants, forwards and backwards in turn, until their ratios agree."""
    rounds: dict[str, list[Round]] = {variant: [] for variant in samplers}
    for number in range(scale.rounds_max):
        order = list(samplers)
        for variant in reversed(order) if number % 2 else order:
            rounds[variant].append(samplers[variant]())
        if number + 1 >= scale.rounds_min and _agree(rounds, figure):
            break
    return rounds


def _agree(rounds: Mapping[str, Sequence[Round]], figure: str) -> bool:
    for variant, reference in RATIOS:
        found = _ratios(rounds, variant, reference, figure)
        if found and max(found) > min(found) * SPREAD_ENOUGH:
            return False
    return True


def _ratios(
    rounds: Mapping[str, Sequence[Round]], variant: str, reference: str, figure: str
) -> list[float]:
    return [
        ours[figure] / theirs[figure]  # type: ignore[operator]
        for ours, theirs in zip(rounds.get(variant, ()), rounds.get(reference, ()), strict=False)
        if ours.get(figure) and theirs.get(figure)
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def head_of(figures: Iterable[str]) -> str:
    """Return the line above the points of an axis."""
    line = f"{'':<37}" + "".join(f"{COLUMNS[figure]:>11}" for figure in figures)
    return f"{line}{'of bare':>10}  spread"


def lines_of(point: Point, figures: Iterable[str]) -> list[str]:
    """Return the lines of one point: a line a variant."""
    document = point.to_dict()
    lines = []
    for variant, values in document["variants"].items():
        label = point.label if not lines else ""
        line = f"{label:<24} {TITLES[variant]:<12}"
        line += "".join(f"{number(values.get(figure)):>11}" for figure in figures)
        ratio = document["ratios"].get(f"{variant}:{BARE}")
        if ratio:
            line += f"{ratio['median']:10.2f}  {ratio['min']:.2f}…{ratio['max']:.2f}"
        lines.append(line.rstrip())
    if point.note:
        lines.append(f"    {point.note}")
    return lines


def number(value: float | None) -> str:
    """Return a figure with three or more digits; a dash for an unknown one."""
    if value is None:
        return "-"
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
