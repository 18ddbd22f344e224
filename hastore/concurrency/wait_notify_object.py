"""A wake-up that is never lost and costs no task switch when nobody sleeps.

RocketMQ's WaitNotifyObject, without its polling: a service parks in ``wait_for_running`` until
``wakeup`` is called, or until a deadline.  Several wake-ups before the service runs count as one.

Invariant: after ``wakeup`` returns, the next ``wait_for_running`` of each sleeper returns.

``park`` and ``wake_all`` are the cheapest event for several tasks: a ``trio.Event`` for every put
would cost more than the put, and most puts never need the list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

_T = TypeVar("_T")


@final
class _Woken(outcome.Outcome[None]):
    """What a task gets that slept for nothing but its wake-up.

    One for all tasks: an ``outcome.Value`` serves once, and costs half a microsecond a wake-up.
    """

    def unwrap(self) -> None:
        """Return to the sleeper."""

    def send(self, gen: Generator[_T, None, object]) -> _T:
        """Resume a generator."""
        return gen.send(None)

    async def asend(self, agen: AsyncGenerator[_T, None]) -> _T:
        """Resume an asynchronous generator."""
        return await agen.asend(None)


WOKEN: Final = _Woken()


@final
@attrs.define(eq=False)
class WaitNotifyObject:
    """A flag and at most one task that sleeps until it is set."""

    _notified: bool = attrs.field(default=False, init=False)
    sleeper: trio.lowlevel.Task | None = attrs.field(default=None, init=False)  # the waiting task

    @property
    def is_waiting(self) -> bool:
        """Whether a task sleeps in ``wait_for_running``."""
        return self.sleeper is not None

    def wakeup(self) -> None:
        """Wake the sleeper, or let the next wait return at once."""
        sleeper = self.sleeper
        if sleeper is not None:
            self.sleeper = None
            trio.lowlevel.reschedule(sleeper, WOKEN)
        else:
            self._notified = True

    async def wait_for_running(self) -> None:
        """Sleep until the next wake-up; wrap it in ``trio.move_on_at`` for a deadline.

        Always a checkpoint, so that a service that is woken constantly still lets others run.
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


Sleepers = list[trio.lowlevel.Task]


async def park(sleepers: Sleepers) -> None:
    """Sleep until ``wake_all``; a cancelled task leaves the list."""
    task = trio.lowlevel.current_task()
    sleepers.append(task)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        sleepers.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


def wake_all(sleepers: Sleepers) -> None:
    """Wake every task in the list, which must not be used again."""
    for task in sleepers:
        trio.lowlevel.reschedule(task, WOKEN)
