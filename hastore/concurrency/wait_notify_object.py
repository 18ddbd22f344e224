"""A wake-up that is never lost and costs no task switch when nobody sleeps.

RocketMQ's WaitNotifyObject, without its polling: a service parks in ``wait_for_running`` until
somebody calls ``wakeup`` (several wake-ups before the service looks are one), or until a deadline.

Invariant: after ``wakeup`` returns, the next ``wait_for_running`` of each sleeper returns.
"""

from __future__ import annotations

from typing import final

import attrs
import trio


@final
@attrs.define(eq=False)
class WaitNotifyObject:
    """A flag and at most one task that sleeps on it (``sleeper``)."""

    _notified: bool = attrs.field(default=False, init=False)
    sleeper: trio.lowlevel.Task | None = attrs.field(default=None, init=False)

    @property
    def is_waiting(self) -> bool:
        """Whether the service sleeps right now."""
        return self.sleeper is not None

    def wakeup(self) -> None:
        """Wake the sleeper, or let the next wait return at once."""
        sleeper = self.sleeper
        if sleeper is not None:
            self.sleeper = None
            trio.lowlevel.reschedule(sleeper)
        else:
            self._notified = True

    async def wait_for_running(self) -> None:
        """Sleep until the next wake-up.

        Wrap it in ``trio.move_on_at`` for a deadline.  A checkpoint in every case, so that a
        service that is woken without end still lets the others run.
        """
        if self._notified:
            self._notified = False
            await trio.lowlevel.checkpoint()
            return
        assert self.sleeper is None, "one service per WaitNotifyObject"
        self.sleeper = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.sleeper = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        self._notified = False
