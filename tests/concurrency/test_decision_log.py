"""The decision log keeps weak decisions, one entry for each cause, and a sample of the others."""

import pytest
import trio

from hastore.concurrency.decision_log import OK_PERIOD_S, SAME_CAUSE_S, WEAK_MAX, DecisionLog
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.status import AppendMessageStatus, PutMessageStatus
from hastore.store.record.append_message_result import AppendMessageResult

TIMEOUT = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
NOT_AVAILABLE = PutMessageStatus.SLAVE_NOT_AVAILABLE


BUSY = PutMessageStatus.OS_PAGE_CACHE_BUSY
NO_FILE = PutMessageStatus.CREATE_MAPPED_FILE_FAILED


def decide(log, status, reason=None, topic="orders", stored_ms=None):
    """Decide one put; with ``stored_ms``, after it was appended at that time."""
    request = GroupCommitRequest(topic, 0, log)
    if stored_ms is not None:
        appended = AppendMessageStatus.PUT_OK, 0, 100, 0, 1, stored_ms, b""
        request.append_result = AppendMessageResult(*appended)
    request.decide(status, reason)


async def test_ok_put_is_counted_but_not_kept():
    """It costs one addition."""
    log = DecisionLog()
    decide(log, PutMessageStatus.PUT_OK)
    assert log.counts[PutMessageStatus.PUT_OK] == 1
    assert not log.weak


async def test_messages_are_counted_and_batches_beside_them():
    """A batch is as many messages as it has; one message alone is no batch."""
    log = DecisionLog()
    for count in (1, 32, 7):
        GroupCommitRequest("orders", 0, log, count).decide(PutMessageStatus.PUT_OK)
        GroupCommitRequest("orders", 0, log, count).decide(NOT_AVAILABLE, "no slave")
    for status in (PutMessageStatus.PUT_OK, NOT_AVAILABLE):
        assert (log.counts[status], log.batch_counts[status]) == (40, 2)
    assert [entry.count for entry in log.weak] == [40]


async def test_decisions_with_one_cause_share_an_entry(autojump_clock):
    """It holds their count, the first and last time, and the slaves as described once."""
    described = []
    log = DecisionLog(describe=lambda status, _offset: described.append(status))
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
    assert described == [NOT_AVAILABLE, TIMEOUT]


@pytest.mark.parametrize(
    "reasons",
    [("no slave is connected; the last was a:1: x", "no slave is connected; the last was b:1: x")],
)
async def test_different_causes_get_separate_entries(reasons):
    """Another slave came and went between the two, so the reasons differ."""
    log = DecisionLog()
    for reason in reasons:
        decide(log, NOT_AVAILABLE, reason)
    assert [decision.reason for decision in log.weak] == list(reasons)


async def test_same_cause_hours_later_gets_a_new_entry(autojump_clock):
    """It has its own time, and describes the slaves at that time."""
    log = DecisionLog(describe=lambda _status, _offset: trio.current_time())
    for _ in range(5):
        decide(log, TIMEOUT, "not within 3000 ms")
    for number in range(1_000):
        decide(log, PutMessageStatus.PUT_OK, stored_ms=number)
    await trio.sleep(5 * 3600)
    decide(log, TIMEOUT, "not within 3000 ms")
    first, second = log.weak
    assert (first.count, second.count) == (5, 1)
    assert second.context - first.context == pytest.approx(5 * 3600, abs=1)


async def test_stored_puts_are_grouped_by_store_time():
    """So a master without a slave need not read the clock for each put."""
    log, gap_ms = DecisionLog(), round(SAME_CAUSE_S * 1000)
    for stored_ms in (0, gap_ms, 2 * gap_ms, 3 * gap_ms + 1, 3 * gap_ms + 2):
        decide(log, NOT_AVAILABLE, "no slave is connected", stored_ms=stored_ms)
    assert [each.count for each in log.weak] == [3, 2]


async def test_alternating_refusals_do_not_push_out_other_entries():
    """A log file is not created in time: both statuses alternate, each with changing numbers."""
    log = DecisionLog()
    decide(log, TIMEOUT, "not within 3000 ms")
    for number in range(WEAK_MAX * 2):
        decide(log, BUSY, f"{number} puts have waited {number + 1_000} ms for the next file")
        decide(log, NO_FILE, f"no next file: commitlog/{number:020}")
    assert [(each.status, each.count) for each in log.weak] == [
        (TIMEOUT, 1),
        (BUSY, WEAK_MAX * 2),
        (NO_FILE, WEAK_MAX * 2),
    ]


async def test_cause_that_was_pushed_out_gets_a_new_entry():
    """If it only counted in the old entry, it would be visible nowhere."""
    log = DecisionLog()
    decide(log, BUSY, "busy")
    for number in range(WEAK_MAX):
        decide(log, TIMEOUT, f"{number} was slow")
    decide(log, BUSY, "busy")
    assert (log.weak[-1].status, log.weak[-1].count) == (BUSY, 1)


async def test_memory_is_bounded():
    """Entries are few and texts short; invalid messages are counted but push nothing out."""
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
    """At most one is kept each tenth of a second, so a busy master has the last few seconds."""
    log = DecisionLog()
    request = GroupCommitRequest("orders", 3)
    for number in range(100):
        now = 5.0 + number * OK_PERIOD_S / 10
        log.acknowledged(request, 7, (0.004, 0.001), ("10.0.0.2", 5), now)
    assert 9 <= len(log.ok) <= 11
    assert (log.ok[0].count, log.ok[0].slave) == (7, ("10.0.0.2", 5))
