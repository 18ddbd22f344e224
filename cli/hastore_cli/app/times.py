"""Points in time as people write them, and windows of two.

::

    2026-11-21T08:12:22.549Z   with a zone (what hastore itself prints)
    2026-11-21 08:12           without one: local time; a date alone is its first instant
    1795248742549              milliseconds since 1970, as in JSON
    15min   -15min   3d        that long ago
    now

A window ``T1..T2`` is half-open; either side may be left out.  Pure: the caller passes the time.
Every parser raises ValueError with a sentence that says what is allowed.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import attrs

from hastore.quantities import parse_duration_ms, read_digits

_TIME_MAX_MS: Final = 253_402_300_800_000  # the year 10000, where datetime ends
_SECONDS_MAX: Final = 100_000_000_000  # as milliseconds that is March 1973
_FORMS: Final = "write 2026-11-21T08:12:22Z, '2026-11-21 08:12', 15min (ago) or milliseconds"


def parse_time_ms(text: str, now_ms: int) -> int:
    """Return a point in time as milliseconds since 1970."""
    time_ms = _parse_time_ms(text.strip(), now_ms)
    if not -_TIME_MAX_MS <= time_ms <= _TIME_MAX_MS:
        raise ValueError(f"{text!r} is further from now than any message: {_FORMS}")
    return time_ms


def _parse_time_ms(text: str, now_ms: int) -> int:
    if text == "now":
        return now_ms
    number = read_digits(text)
    if number is not None:
        return _from_number(number)
    try:
        return now_ms - parse_duration_ms(text.removeprefix("-"))
    except ValueError:
        pass
    try:
        time = dt.datetime.fromisoformat(text)
        # Without a zone it is local time.
        return round(time.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: {_FORMS}") from None


def _from_number(number: int) -> int:
    if 0 < number < _SECONDS_MAX:
        raise ValueError(f"'{number}' looks like seconds: times are milliseconds, {number}000")
    return number


@attrs.frozen
class TimeWindow:
    """``begin_ms <= time < end_ms``; None: no bound."""

    begin_ms: int | None = None
    end_ms: int | None = None

    def holds(self, time_ms: int) -> bool:
        """Whether it contains a time."""
        if self.begin_ms is not None and time_ms < self.begin_ms:
            return False
        return self.end_ms is None or time_ms < self.end_ms


ALWAYS: Final = TimeWindow()


def parse_window(text: str, now_ms: int) -> TimeWindow:
    """Parse ``T1..T2``, ``T1..`` or ``..T2``."""
    first, dots, last = text.partition("..")
    if not dots or not (first or last):
        raise ValueError(f"{text!r} is not a window: write T1..T2, T1.. or ..T2; {_FORMS}")
    window = TimeWindow(
        parse_time_ms(first, now_ms) if first else None,
        parse_time_ms(last, now_ms) if last else None,
    )
    if None not in {window.begin_ms, window.end_ms} and not window.holds(window.begin_ms or 0):
        raise ValueError(f"{text!r} is empty: its end is not after its beginning")
    return window
