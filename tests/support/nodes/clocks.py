"""The watch of a clock, for parts of a node that a test makes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.broker.clock.clock_verdict import ClockReading
from hastore.broker.clock.clock_watch import ClockWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore.env.interface import Env, WallClock
    from hastore.store.commit_log import CommitLog

HOUR_MS = 3_600_000


def a_clock(
    env: Env,
    log: CommitLog,
    *,
    data_dir: str = "/d",
    others: Callable[[], Iterable[ClockReading]] = tuple,
) -> ClockWatch:
    """Return the watch of a store that was just opened; it knows no other clock by default."""
    return ClockWatch(
        env=env,
        data_dir=data_dir,
        keep_ms=72 * HOUR_MS,
        others=others,
        store_timestamp_ms=lambda: log.store_timestamp_ms,
        max_offset=lambda: log.max_offset,
        on_correction=log.expect_correction,
    )


def reading(clock: WallClock, *, ahead_ms: float = 0.0, host: str = "10.0.0.9") -> ClockReading:
    """Return what a machine's clock says that is so much ahead of ours, read now."""
    boot_ms = clock.boot_s() * 1000
    return ClockReading(
        who=f"the node at {host}",
        host=host,
        offset_ms=clock.now_ms() + ahead_ms - boot_ms,
        error_ms=1.0,
        boot_ms=boot_ms,
    )


def agreeing(clock: WallClock) -> tuple[ClockReading, ...]:
    """Return the reading of another machine, whose clock is always the same as ours."""
    return (reading(clock),)
