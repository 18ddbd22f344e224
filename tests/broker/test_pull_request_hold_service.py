"""Held pulls: woken once, by a growing queue or a deadline, and dropped with their client."""

import trio

from hastore.broker.pulls import pull_request_hold_service
from hastore.broker.pulls.pull_request_hold_service import HeldPull, PullRequestHoldService

HELD = 1_000  # of one owner, at most


class FakeClient:
    is_closed = False
    owner = "address 10.0.0.8"


def held(client, offset=0, *, seconds=10.0, queue_id=0, topic="T"):
    return HeldPull(client, topic, queue_id, offset, trio.current_time() + seconds, None)


async def test_a_pull_is_woken_once_when_its_queue_grows(autojump_clock):
    """Only pulls of that queue are, and only those whose offset exists now."""
    woken = []
    service = PullRequestHoldService(woken.append, HELD)
    client = FakeClient()
    first, second = held(client, 5), held(client, 7)
    other = held(client, 5, queue_id=1)
    for pull in (first, second, other):
        assert service.hold(pull)
    service.notify("T", 0, 5)
    assert woken == []
    service.notify("T", 0, 6)
    service.notify("T", 0, 6)
    assert woken == [first]
    service.notify("T", 0, 8)
    assert woken == [first, second]
    assert len(service) == 1


async def test_a_pull_is_woken_at_its_deadline(autojump_clock, nursery):
    """Within about a tenth of a second, in the order of the deadlines."""
    woken = []
    service = PullRequestHoldService(lambda pull: woken.append((pull, trio.current_time())), HELD)
    nursery.start_soon(service.run)
    begin = trio.current_time()
    client = FakeClient()
    slow, quick = held(client, seconds=5.0), held(client, seconds=0.25)
    service.hold(slow)
    await trio.sleep(0.1)
    service.hold(quick)
    await trio.sleep(10)
    assert [pull for pull, _ in woken] == [quick, slow]
    assert all(pull.is_due for pull, _ in woken)
    assert 0.25 <= woken[0][1] - begin <= 0.46
    assert 5.0 <= woken[1][1] - begin <= 5.11
    assert len(service) == 0
    assert not service._slots


async def test_a_pull_woken_by_growth_wakes_at_its_deadline_if_held_again(autojump_clock, nursery):
    """Its deadline stays the same and causes a single wake-up."""
    woken = []
    service = PullRequestHoldService(woken.append, HELD)
    nursery.start_soon(service.run)
    pull = held(FakeClient(), seconds=1.0)
    service.hold(pull)
    service.notify("T", 0, 1)
    await trio.sleep(0.5)
    pull.queue_offset = 1
    service.hold(pull)
    assert woken == [pull]
    await trio.sleep(2)
    assert woken == [pull, pull]


async def test_pulls_of_a_closed_connection_are_forgotten(autojump_clock, nursery):
    """Nothing wakes them, and the client's later pulls are not held."""
    woken = []
    service = PullRequestHoldService(woken.append, HELD)
    nursery.start_soon(service.run)
    gone, other = FakeClient(), FakeClient()
    service.hold(held(gone))
    kept = held(other)
    service.hold(kept)
    service.client_gone(gone)
    gone.is_closed = True
    assert not service.hold(held(gone))
    service.notify("T", 0, 1)
    assert woken == [kept]
    await trio.sleep(20)
    assert len(service) == 0
    assert not service._clients


async def test_the_number_of_a_clients_held_pulls_is_limited(autojump_clock, monkeypatch):
    """The pull above the limit is not held; other clients have their own limit."""
    monkeypatch.setattr(pull_request_hold_service, "HELD_MAX", 2)
    service = PullRequestHoldService(lambda _: None, HELD)
    client = FakeClient()
    assert [service.hold(held(client)) for _ in range(3)] == [True, True, False]
    assert service.hold(held(FakeClient()))
    assert len(service) == 3
