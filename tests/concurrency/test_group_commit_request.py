"""Waiting puts are released by acknowledgements or by their deadlines."""

import pytest
import trio
import trio.testing

from hastore.concurrency.group_commit_request import (
    DeadlineWatcher,
    GroupCommitRequest,
    OffsetOrderedQueue,
    Part,
)
from hastore.status import PutMessageStatus as Status


def waiting(parts=Part.HA):
    request = GroupCommitRequest("topic", 0)
    request.expect(parts)
    return request


def ha_queue(offsets, timeout=3.0):
    queue = OffsetOrderedQueue(Part.HA, Status.FLUSH_SLAVE_TIMEOUT)
    requests = {offset: waiting() for offset in offsets}
    for index, (offset, request) in enumerate(requests.items()):
        queue.put(offset, timeout + index, request)
    return queue, requests


def test_ack_releases_requests_up_to_its_offset():
    """Later requests go on waiting."""
    queue, requests = ha_queue([100, 200, 300])
    assert queue.release(99) == 0
    assert queue.release(200) == 2
    assert [requests[o].status for o in (100, 200, 300)] == [Status.PUT_OK, Status.PUT_OK, None]


def test_each_request_has_its_own_deadline():
    """A due request times out; the next one does not."""
    queue, requests = ha_queue([100, 200])
    assert queue.expire(3.5, "late") == 1
    assert requests[100].status is Status.FLUSH_SLAVE_TIMEOUT
    assert requests[100].reason == "late"
    assert requests[200].status is None
    assert queue.head_deadline == 4.0


@pytest.mark.parametrize(
    ("flush", "ha", "decided"),
    [
        (Status.PUT_OK, Status.PUT_OK, Status.PUT_OK),
        (Status.FLUSH_DISK_TIMEOUT, Status.PUT_OK, Status.FLUSH_DISK_TIMEOUT),
        (Status.PUT_OK, Status.FLUSH_SLAVE_TIMEOUT, Status.FLUSH_SLAVE_TIMEOUT),
        (Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.SLAVE_NOT_AVAILABLE),
    ],
)
@pytest.mark.parametrize("ha_first", [False, True])
def test_slave_status_takes_precedence_over_disk_status(flush, ha, decided, ha_first):
    """The last part decides the request; if both failed, it has the HA status."""
    request = waiting(Part.FLUSH | Part.HA)
    parts = [(Part.FLUSH, flush), (Part.HA, ha)]
    first, last = reversed(parts) if ha_first else parts
    request.complete(*first)
    assert request.status is None
    request.complete(*last)
    assert request.status is decided


def test_second_completion_of_a_part_is_ignored():
    """An ack that comes after the timeout does not change the answer."""
    request = waiting()
    request.complete(Part.HA, Status.FLUSH_SLAVE_TIMEOUT)
    request.complete(Part.HA, Status.PUT_OK)
    assert request.status is Status.FLUSH_SLAVE_TIMEOUT


async def test_all_waiters_of_a_request_are_woken():
    """A wait that starts after the decision returns at once."""
    request = waiting()
    seen = []

    async def wait():
        seen.append(await request.wait())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        request.complete(Part.HA, Status.PUT_OK)
    assert seen == [Status.PUT_OK] * 3
    assert await request.wait() is Status.PUT_OK


async def test_cancelled_wait_leaves_the_request_undecided():
    """A later wait still returns the status."""
    request = waiting()
    with trio.CancelScope() as scope:
        scope.cancel()
        await request.wait()
    assert scope.cancelled_caught
    assert request.status is None
    request.complete(Part.HA, Status.PUT_OK)
    assert await request.wait() is Status.PUT_OK


async def test_watcher_times_out_each_request_at_its_deadline(autojump_clock):
    """The last of the three is put after an idle time."""
    queue = OffsetOrderedQueue(Part.HA, Status.FLUSH_SLAVE_TIMEOUT)
    watcher = DeadlineWatcher(queue, "late")
    answered = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        await trio.sleep(10)
        begin = trio.current_time()

        async def put(after):
            await trio.sleep(after)
            request = waiting()
            watcher.put(int(100 * after), trio.current_time() + 3, request)
            await request.wait()
            answered.append(round(trio.current_time() - begin, 6))

        async with trio.open_nursery() as puts:
            for after in (1.0, 1.5, 20.0):
                puts.start_soon(put, after)
        nursery.cancel_scope.cancel()
    assert answered == [4.0, 4.5, 23.0]
