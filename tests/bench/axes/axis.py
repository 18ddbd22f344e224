"""One axis: its name, its columns, and how each of its points is measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import attrs

from tests.bench.axes.measured import Point, Scale

# Measures in an empty directory; one part may have several points.
Measure = Callable[[Path, Scale], Awaitable[list[Point]]]


@attrs.frozen
class Axis:
    """``key`` is its name in ``ONLY`` and in the JSON; ``figures`` are the columns."""

    key: str
    title: str
    figures: tuple[str, ...]
    parts: Mapping[str, Measure]
