"""Bytes per second on a link, over windows of about one second."""

from __future__ import annotations

from typing import Final, final

import attrs

WINDOW_S: Final = 1.0


@final
@attrs.define(eq=False)
class FlowMonitor:
    """Bytes since the start, and the rate of the last full window."""

    total_bytes: int = 0  # never falls
    _window_start: float = 0.0  # trio's time
    _window_bytes: int = 0  # since then
    _rate: float = 0.0  # bytes per second of the window before

    def add(self, size: int, now: float) -> None:
        """Count ``size`` bytes at trio time ``now``."""
        elapsed = now - self._window_start
        if elapsed >= WINDOW_S:
            self._rate = self._window_bytes / elapsed if elapsed < 2 * WINDOW_S else 0.0
            self._window_start = now
            self._window_bytes = 0
        self._window_bytes += size
        self.total_bytes += size

    def bytes_per_s(self, now: float) -> float:
        """Return the current rate; 0 when no bytes have passed recently."""
        elapsed = now - self._window_start
        if elapsed >= 2 * WINDOW_S:
            return 0.0
        if elapsed >= WINDOW_S:
            return self._window_bytes / elapsed
        return max(self._rate, self._window_bytes)
