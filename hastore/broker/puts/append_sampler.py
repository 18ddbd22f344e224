"""A sample of a master's appends: how long one takes, how many there are, where the log's end was.

An append costs two comparisons here.  A few times a second one of them marks the end of the log
and the count of messages, and has the next append measured.
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
    """Marks are due from an append outside ``since_wall_s`` ≤ its wall time < ``due_wall_s`` on."""

    end_history: LogEndHistory
    append_times: LatencyHistogram = attrs.field(factory=LatencyHistogram, init=False)
    appended: MessageRate = attrs.field(factory=MessageRate, init=False)  # counted by PutMessage
    is_measuring: bool = attrs.field(default=True, init=False)  # the next append
    since_wall_s: float = attrs.field(default=0.0, init=False)
    due_wall_s: float = attrs.field(default=0.0, init=False)

    def measured(self, took_s: float) -> None:
        """Record how long the append took that was to be measured."""
        self.is_measuring = False
        self.append_times.observe(took_s)

    def mark(self, wall_s: float, result: AppendMessageResult) -> None:
        """Mark where the log's end is, and have the next append measured.

        The wall clock that the append has read says when: store timestamps stand still while it is
        set back, and where it jumps this is early, once.
        """
        self.since_wall_s = wall_s
        self.due_wall_s = wall_s + _PERIOD_S
        self.is_measuring = True
        now = trio.current_time()
        self.end_history.mark(now, result.physic_offset, result.next_offset)
        self.appended.mark(now)
