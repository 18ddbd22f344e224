"""Reports the progress of a long start every five seconds; a short one reports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_S: Final = 5.0


@final
@attrs.define(eq=False)
class Progress:
    """``done`` of ``size`` bytes of one step of the work, whose name is ``step``.

    ``bytes_per_s`` is the rate since the report before, also if another step began meanwhile.
    ``report`` is called at most every five seconds, first five seconds after this was made, and
    only while something is left.  ``now_s`` may be the wall clock: if that is set back, the five
    seconds begin again.
    """

    report: Callable[[Progress], None]
    now_s: Callable[[], float]
    step: str = ""
    size: int = 0
    done: int = 0
    bytes_per_s: float = attrs.field(default=0.0, init=False)
    _since_report: int = attrs.field(default=0, init=False)  # bytes
    _reported_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Count from now."""
        self._reported_s = self.now_s()

    @property
    def percent(self) -> int:
        """Percentage done, rounded down; 100 if there is nothing to do."""
        return 100 * self.done // self.size if self.size else 100

    def pairs(self) -> dict[str, int]:
        """Return what a log event says of it; without the time that is left if nothing moved."""
        pairs = {
            "done_bytes": self.done,
            "total_bytes": self.size,
            "percent": self.percent,
            "bytes_per_s": round(self.bytes_per_s),
        }
        if self.bytes_per_s:
            pairs["left_s"] = round((self.size - self.done) / self.bytes_per_s)
        return pairs

    def begin(self, step: str, size: int) -> None:
        """Begin another step, of ``size`` bytes."""
        self.step, self.size, self.done = step, size, 0

    def advance(self, size: int) -> None:
        """Record that ``size`` more bytes are done."""
        self.done += size
        self._since_report += size
        now_s = self.now_s()
        passed_s = now_s - self._reported_s
        if 0 <= passed_s < INTERVAL_S:
            return
        self._reported_s = now_s
        since_report, self._since_report = self._since_report, 0
        if passed_s > 0 and self.done < self.size:
            self.bytes_per_s = since_report / passed_s
            self.report(self)
