"""What is kept of decisions: what was weak, once for each cause, and a sample of the others."""

import pytest
import trio

from hastore.concurrency.decision_log import OK_PERIOD_S, WEAK_MAX, DecisionLog
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.status import PutMessageStatus

TIMEOUT = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
NOT_AVAILABLE = PutMessageStatus.SLAVE_NOT_AVAILABLE


def decide(log, status, reason=None, topic="orders"):
    """Have one put decided."""
    GroupCommitRequest(topic, 0, log).decide(status, reason)


async def test_a_put_that_is_ok_is_counted_and_not_kept():
    """It costs one addition."""
    log = DecisionLog()
    decide(log, PutMessageStatus.PUT_OK)
    assert log.counts[PutMessageStatus.PUT_OK] == 1
    assert not log.weak


async def test_decisions_of_one_cause_are_one_entry(autojump_clock):
    """With their number, the time of the first and of the last, and one look at the slaves."""
    looks = []
    log = DecisionLog(describe=lambda status, _offset: looks.append(status))
    for behind in (100, 200, 300):
        decide(log, NOT_AVAILABLE, f"the nearest slave is {behind} bytes behind; the limit is 9")
    began = trio.current_time()
    for _ in range(3):
        decide(log, TIMEOUT, "no slave acknowledged it within 3000 ms; it is stored here")
        await trio.sleep(1)
    first, second = log.weak
    assert (first.status, first.count) == (NOT_AVAILABLE, 3)
    assert (second.status, second.count) == (TIMEOUT, 3)
    assert (second.first_time - began, second.last_time - began) == (0, 2)
    assert looks == [NOT_AVAILABLE, TIMEOUT]


@pytest.mark.parametrize(
    "reasons",
    [("no slave is connected; the last was a:1: x", "no slave is connected; the last was b:1: x")],
)
async def test_another_cause_is_another_entry(reasons):
    """A slave that came and went in between is another story."""
    log = DecisionLog()
    for reason in reasons:
        decide(log, NOT_AVAILABLE, reason)
    assert [decision.reason for decision in log.weak] == list(reasons)


async def test_memory_is_bounded_whatever_is_sent():
    """Few entries, short texts; and a producer's own faults push nothing out."""
    log = DecisionLog()
    for number in range(WEAK_MAX * 2):
        decide(log, TIMEOUT, f"{number} was slow", topic="t" * 10_000)
    assert len(log.weak) == WEAK_MAX
    assert all(len(each.topic) <= 255 for each in log.weak)
    last = log.weak[-1]
    decide(log, PutMessageStatus.MESSAGE_ILLEGAL, "the topic is empty")
    assert log.weak[-1] is last
    assert log.counts[PutMessageStatus.MESSAGE_ILLEGAL] == 1


async def test_acknowledgements_are_sampled_by_time():
    """At most one in a tenth of a second, so a busy master keeps some seconds of them."""
    log = DecisionLog()
    request = GroupCommitRequest("orders", 3)
    for number in range(100):
        now = 5.0 + number * OK_PERIOD_S / 10
        log.acknowledged(request, 7, (0.004, 0.001), ("10.0.0.2", 5), now)
    assert 9 <= len(log.ok) <= 11
    assert (log.ok[0].count, log.ok[0].slave) == (7, ("10.0.0.2", 5))
