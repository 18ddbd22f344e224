"""Tasks that sleep until one thing is decided: the cheapest event there is, made when needed.

A ``trio.Event`` for every put would cost more than the put; a list that most puts never make does
not.
"""

from __future__ import annotations

import trio

Sleepers = list[trio.lowlevel.Task]


async def park(sleepers: Sleepers) -> None:
    """Sleep until ``wake_all``; a cancelled sleeper is in the list no more."""
    task = trio.lowlevel.current_task()
    sleepers.append(task)

    def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
        sleepers.remove(task)
        return trio.lowlevel.Abort.SUCCEEDED

    await trio.lowlevel.wait_task_rescheduled(abort)


def wake_all(sleepers: Sleepers) -> None:
    """Wake every sleeper; the list is of no use any more."""
    for task in sleepers:
        trio.lowlevel.reschedule(task)
