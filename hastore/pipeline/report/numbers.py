"""Format a report's numbers: short, with their unit, times in UTC.  Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
NAME_MAX: Final = 48


def count_text(count: float | None) -> str:
    """``1 073 921 408``, with narrow no-break spaces; "" for None."""
    return "" if count is None else f"{count:,.0f}".replace(",", "\u202f")


def short_count(count: float) -> str:
    """``918``, ``12.4 k``, ``4.33 M``: for a headline."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{_three(count / scale)}\u202f{unit}"
    return count_text(count) if count >= 100 or count == int(count) else _three(count)  # noqa: PLR2004


def size_text(size: float | None) -> str:
    """``812 B``, ``128 MiB``."""
    if size is None:
        return "–"
    unit = size_unit(size)
    value = size / size_scale(unit)
    return f"{value:.0f}\u202f{unit}" if unit == "B" else f"{_three(value)}\u202f{unit}"


def size_unit(size: float) -> str:
    """Return the largest unit in which a size is at least 1."""
    place = 0
    while size >= 1024 and place < len(_UNITS) - 1:  # noqa: PLR2004
        size, place = size / 1024, place + 1
    return _UNITS[place]


def size_scale(unit: str) -> float:
    """Return the number of bytes in a unit."""
    return float(1024 ** _UNITS.index(unit))


def duration_text(ms: float | None) -> str:
    """``84 µs``, ``4.1 ms``, ``3.1 s``, ``12 min``, ``2.5 h``, ``3 d``."""
    if ms is None:
        return "–"
    if ms < 0:
        return f"−{duration_text(-ms)}"
    for limit, scale, unit in (
        (1, 0.001, "µs"), (1000, 1, "ms"), (120_000, 1000, "s"),
        (7_200_000, 60_000, "min"), (172_800_000, 3_600_000, "h"),
    ):  # fmt: skip
        if ms < limit and (ms or unit == "ms"):
            return f"{_three(ms / scale)}\u202f{unit}"
    return f"{_three(ms / 86_400_000)}\u202fd"


def time_text(ms: int | None, *, seconds: bool = True) -> str:
    """``2026-11-21 08:12:22``, in UTC."""
    if ms is None:
        return "–"
    moment = dt.datetime.fromtimestamp(ms // 1000, dt.UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}" if seconds else f"{moment:%Y-%m-%d %H:%M}"


def share_text(part: float, whole: float) -> str:
    """``12.3 %``, or ``< 0.1 %``."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return "<\u202f0.1\u202f%" if 0 < percent < 0.1 else f"{percent:.1f}\u202f%"  # noqa: PLR2004


def name_text(name: str | None) -> str:
    """Return a name of a topic, tag or key without control characters, shortened for the page."""
    text = _CONTROLS.sub("\ufffd", name or "")
    return text if len(text) <= NAME_MAX else f"{text[: NAME_MAX - 1]}…"


def _three(value: float) -> str:
    """Format with three significant digits, without trailing zeros."""
    text = f"{value:.3g}" if value < 1000 else f"{value:.0f}"  # noqa: PLR2004
    return text if "e" not in text else f"{value:.0f}"
