"""The wake-up that is never lost."""

import trio
import trio.testing

from hastore.concurrency.wait_notify_object import WaitNotifyObject


async def test_a_wakeup_before_the_wait_is_not_lost():
    """Any number of wake-ups before the wait are one."""
    wake = WaitNotifyObject()
    wake.wakeup()
    wake.wakeup()
    await wake.wait_for_running()
    with trio.move_on_after(0) as scope:
        await wake.wait_for_running()
    assert scope.cancelled_caught


async def test_a_sleeper_is_woken_once():
    """The service sleeps until the wake-up and sleeps again after it."""
    wake = WaitNotifyObject()
    turns = []

    async def service():
        while True:
            await wake.wait_for_running()
            turns.append(len(turns))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(service)
        await trio.testing.wait_all_tasks_blocked()
        assert wake.is_waiting
        wake.wakeup()
        wake.wakeup()
        await trio.testing.wait_all_tasks_blocked()
        assert turns in ([0], [0, 1])
        nursery.cancel_scope.cancel()
    assert not wake.is_waiting


async def test_a_wait_given_up_leaves_no_sleeper_behind():
    """After a cancelled wait the next wake-up is kept for the next wait."""
    wake = WaitNotifyObject()
    with trio.move_on_after(0):
        await wake.wait_for_running()
    assert not wake.is_waiting
    wake.wakeup()
    await wake.wait_for_running()
