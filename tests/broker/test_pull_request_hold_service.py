"""Held pulls: woken by growth or by time, never twice, never for who is gone."""

import trio

from hastore.broker.pulls import pull_request_hold_service
from hastore.broker.pulls.pull_request_hold_service import HeldPull, PullRequestHoldService


class Someone:
    is_closed = False


def held(client, offset=0, *, seconds=10.0, queue_id=0, topic="T"):
    return HeldPull(client, topic, queue_id, offset, trio.current_time() + seconds, None)


async def test_a_pull_is_woken_once_when_its_queue_grows(autojump_clock):
    """Only pulls of that queue, only those whose offset is there now, each once."""
    woken = []
    service = PullRequestHoldService(woken.append)
    client = Someone()
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


async def test_a_pull_is_woken_when_its_time_is_up(autojump_clock, nursery):
    """Within a tenth of a second after the deadline, in the order of the deadlines."""
    woken = []
    service = PullRequestHoldService(lambda pull: woken.append((pull, trio.current_time())))
    nursery.start_soon(service.run)
    begin = trio.current_time()
    client = Someone()
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


async def test_a_pull_that_was_woken_by_growth_is_not_due_later(autojump_clock, nursery):
    """Its deadline passes without a second wake-up; held again it has its deadline still."""
    woken = []
    service = PullRequestHoldService(woken.append)
    nursery.start_soon(service.run)
    pull = held(Someone(), seconds=1.0)
    service.hold(pull)
    service.notify("T", 0, 1)
    await trio.sleep(0.5)
    pull.queue_offset = 1
    service.hold(pull)
    assert woken == [pull]
    await trio.sleep(2)
    assert woken == [pull, pull]


async def test_who_is_gone_is_forgotten(autojump_clock, nursery):
    """Pulls of a closed connection are woken by nothing and cannot be held."""
    woken = []
    service = PullRequestHoldService(woken.append)
    nursery.start_soon(service.run)
    gone, other = Someone(), Someone()
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


async def test_a_client_holds_so_many_pulls_and_no_more(autojump_clock, monkeypatch):
    """One above the limit is not held; the others stay."""
    monkeypatch.setattr(pull_request_hold_service, "HELD_MAX", 2)
    service = PullRequestHoldService(lambda _: None)
    client = Someone()
    assert [service.hold(held(client)) for _ in range(3)] == [True, True, False]
    assert service.hold(held(Someone()))
    assert len(service) == 3
