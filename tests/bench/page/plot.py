"""The plot of docs/performance.md: rate and p99 over producers, in process and over TCP.

::

    rate  in process │ rate  over TCP        four panels, both axes logarithmic;
    p99   in process │ p99   over TCP        a line for the extension, pure Python, the bare loop

An SVG in a page on GitHub is an image, without the styles around it; so the colours are written
into it, on a card that is readable on dark pages, too.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hastore.html
from tests.bench.axes.measured import BARE, EXTENSION, PURE, TITLES
from tests.bench.axes.put_axes import TASKS

STYLE = (Path(hastore.html.__file__).parent / "style.css").read_text().partition("@media")[0]
COLOURS = dict(re.findall(r"(--[\w-]+):\s*([^;]+);", STYLE))
FONT = COLOURS["--font"].replace('"', "'")
LINES = {EXTENSION: "--s0", PURE: "--s1", BARE: "--other"}
PANELS = (("producers", "in the master's process"), ("tcp", "over TCP, one connection"))
FIGURES = (
    ("rate", "messages a second", 1.0),
    ("p99_us", "99th percentile, ms", 1e-3),
)

WIDTH, HEIGHT = 960, 660
_LEFT, _TOP, _GAP_X, _GAP_Y = 64, 106, 76, 80
_PANEL_WIDTH = (WIDTH - _LEFT - _GAP_X - 24) // 2
_PANEL_HEIGHT = (HEIGHT - _TOP - _GAP_Y - 44) // 2

Series = dict[str, list[tuple[float, float]]]


def plot(kept: Mapping[str, Any]) -> str:
    """Return the SVG."""
    axes = {axis["key"]: axis for axis in kept.get("bench", {}).get("axes", ())}
    drawn = [
        _text(24, 34, "A put of 1 KiB by the number of producers", 19, "--ink", weight=700),
        *_legend(),
    ]
    for row, (figure, title, unit) in enumerate(FIGURES):
        series = {key: _series(axes.get(key), figure, unit) for key, _ in PANELS}
        values = [y for each in series.values() for points in each.values() for _, y in points]
        limits = _decades(values)
        for column, (key, place) in enumerate(PANELS):
            x = _LEFT + column * (_PANEL_WIDTH + _GAP_X)
            y = _TOP + row * (_PANEL_HEIGHT + _GAP_Y)
            drawn += _panel(x, y, f"{title}: {place}", series[key], limits)
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}">\n'
        "<title>Rate and 99th percentile of puts over the number of producers</title>\n"
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10"'
        f' fill="{COLOURS["--paper"]}" stroke="{COLOURS["--grid"]}"/>\n{body}\n</svg>\n'
    )


def _series(axis: Mapping[str, Any] | None, figure: str, unit: float) -> Series:
    found: Series = {}
    for point in axis["points"] if axis else ():
        for variant, figures in point["variants"].items():
            if figures.get(figure):
                found.setdefault(variant, []).append((point["value"], figures[figure] * unit))
    return found


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """Return the limits of a logarithmic axis: values 1, 2 or 5 times a power of ten."""
    if not values:
        return 1.0, 10.0
    return _step(min(values), up=False), _step(max(values), up=True)


def _step(value: float, *, up: bool) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    if up:
        return next(power * each for each in (1, 2, 5, 10) if power * each >= value)
    return next(power * each for each in (5, 2, 1) if power * each <= value)


def _panel(x: int, y: int, title: str, series: Series, limits: tuple[float, float]) -> list[str]:
    """Draw one panel: its grid, its lines, its labels."""
    low, high = limits

    def across(tasks: float) -> float:
        return x + 14 + math.log(tasks) / math.log(TASKS[-1]) * (_PANEL_WIDTH - 28)

    def up(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return y + _PANEL_HEIGHT * (1 - share)

    drawn = [_text(x, y - 12, title, 13, "--ink", weight=600)]
    for value in _ticks(low, high):
        level = up(value)
        drawn.append(
            f'<line x1="{x}" y1="{level:.1f}" x2="{x + _PANEL_WIDTH}" y2="{level:.1f}"'
            f' stroke="{COLOURS["--grid"]}"/>'
        )
        drawn.append(_text(x - 6, level + 4, _short(value), 11, "--muted", anchor="end"))
    drawn += [
        _text(across(tasks), y + _PANEL_HEIGHT + 17, str(tasks), 11, "--muted", anchor="middle")
        for tasks in TASKS
    ]
    drawn.append(
        _text(x + _PANEL_WIDTH, y + _PANEL_HEIGHT + 33, "producers", 11, "--muted", anchor="end")
    )
    for variant, colour in LINES.items():
        points = [(across(tasks), up(value)) for tasks, value in series.get(variant, ())]
        if not points:
            continue
        path = " ".join(f"{at:.1f},{level:.1f}" for at, level in points)
        dash = ' stroke-dasharray="5 4"' if variant == BARE else ""
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{COLOURS[colour]}"'
            f' stroke-width="2.2"{dash}/>'
        )
        drawn += [
            f'<circle cx="{at:.1f}" cy="{level:.1f}" r="3.2" fill="{COLOURS[colour]}"/>'
            for at, level in points
        ]
    return drawn


def _ticks(low: float, high: float) -> list[float]:
    ticks = []
    power = 10.0 ** math.floor(math.log10(low))
    while power <= high:
        ticks += [power * each for each in (1, 2, 5) if low <= power * each <= high * 1.0001]
        power *= 10
    return ticks


def _legend() -> list[str]:
    drawn = []
    x = 24
    for variant, colour in LINES.items():
        dash = ' stroke-dasharray="5 4"' if variant == BARE else ""
        drawn.append(
            f'<line x1="{x}" y1="55" x2="{x + 26}" y2="55" stroke="{COLOURS[colour]}"'
            f' stroke-width="2.2"{dash}/>'
        )
        drawn.append(_text(x + 33, 59, TITLES[variant], 12, "--muted"))
        x += 150
    return drawn


def _short(value: float) -> str:
    return f"{value / 1_000:g}k" if value >= 1_000 else f"{value:g}"


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    colour: str,
    *,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="{anchor}" fill="{COLOURS[colour]}">{html.escape(text)}</text>'
    )
