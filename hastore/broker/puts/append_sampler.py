"""A sample of a master's appends: their duration, their number, and the end of the log.

Each append costs two comparisons.  At most every 16 ms, an append marks the end of the log and the
count of messages, and has the next append measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.concurrency.message_rate import MessageRate

if TYPE_CHECKING:
    from hastore.ha.log_end_history import LogEndHistory
    from hastore.store.record.append_message_result import AppendMessageResult

_PERIOD_S: Final = 0.016


@final
@attrs.define(eq=False)
class AppendSampler:
    """An append marks if its wall time is not in ``since_wall_s`` … ``due_wall_s``."""

    end_history: LogEndHistory
    append_times: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    appended: MessageRate = attrs.field(factory=MessageRate, init=False)  # counted by PutMessage
    is_measuring: bool = attrs.field(default=True, init=False)  # the next append
    since_wall_s: float = attrs.field(default=0.0, init=False)
    due_wall_s: float = attrs.field(default=0.0, init=False)

    def measured(self, took_s: float) -> None:
        """Record how long the measured append took."""
        self.is_measuring = False
        self.append_times.observe(took_s)

    def mark(self, wall_s: float, result: AppendMessageResult) -> None:
        """Mark the log's end, and have the next append measured.

        ``wall_s`` is the wall clock as the append has read it.  Store timestamps would not do: they
        stand still while the clock is set back.  After a jump of the clock one mark is early.
        """
        self.since_wall_s = wall_s
        self.due_wall_s = wall_s + _PERIOD_S
        self.is_measuring = True
        now = trio.current_time()
        self.end_history.mark(now, result.physic_offset, result.next_offset)
        self.appended.mark(now)
