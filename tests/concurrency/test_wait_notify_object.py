"""A wake-up is never lost."""

import trio
import trio.testing

from hastore.concurrency.wait_notify_object import WOKEN, WaitNotifyObject, park, wake_all


async def test_wakeup_before_the_wait_is_kept():
    """Several wake-ups before the wait count as one."""
    wake = WaitNotifyObject()
    wake.wakeup()
    wake.wakeup()
    await wake.wait_for_running()
    with trio.move_on_after(0) as scope:
        await wake.wait_for_running()
    assert scope.cancelled_caught


async def test_waiting_service_runs_once_for_each_wakeup():
    """It sleeps until the wake-up, and again after it."""
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


async def test_cancelled_wait_does_not_take_the_next_wakeup():
    """That wake-up is kept for the next wait."""
    wake = WaitNotifyObject()
    with trio.move_on_after(0):
        await wake.wait_for_running()
    assert not wake.is_waiting
    wake.wakeup()
    await wake.wait_for_running()


async def test_one_call_wakes_all_that_are_parked():
    """A task that was cancelled before is not among them."""
    sleepers = []
    woken = []

    async def sleeper(number):
        assert await park(sleepers) is None
        woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(sleeper, number)
        with trio.CancelScope() as scope:
            scope.cancel()
            await park(sleepers)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sleepers) == 3
        wake_all(sleepers)
    assert sorted(woken) == [0, 1, 2]


async def test_what_wakes_tasks_can_be_used_again_and_again():
    """An ``outcome.Value`` could not; otherwise this is like one of None."""

    def generator():
        while True:
            received.append((yield "next"))

    async def asynchronous():
        while True:
            received.append((yield "next"))

    received = []
    plain, other = generator(), asynchronous()
    next(plain)
    await anext(other)
    for _ in range(2):
        assert WOKEN.unwrap() is None
        assert WOKEN.send(plain) == "next"
        assert await WOKEN.asend(other) == "next"
    assert received == [None] * 4
    await other.aclose()
