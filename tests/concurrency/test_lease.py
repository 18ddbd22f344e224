"""A lease's deadline is before any moment at which the lease can have ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.group_commit_request import LEASE_OVER, GroupCommitRequest, Part
from hastore.concurrency.lease import TTL_MIN_S, Lease, margin_s
from hastore.status import PutMessageStatus


class Clock:
    """Seconds that a test sets."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return them."""
        return self.now


def test_a_new_lease_is_over():
    """Nothing may be decided before the first renewal."""
    assert Lease(Clock()).is_over()


def test_the_deadline_counts_from_before_the_request():
    """However late the answer came, the ttl began when the request was sent, at the earliest."""
    clock = Clock()
    lease = Lease(clock)
    clock.now = 108.0
    lease.renewed(100.0, asked_s=10, granted_s=10)
    assert lease.deadline == 110.0 - margin_s(10)
    clock.now = 109.2
    assert not lease.is_over()
    clock.now = lease.deadline
    assert lease.is_over()


@pytest.mark.parametrize(("asked_s", "granted_s"), [(10, 60), (60, 10)])
def test_the_shorter_of_asked_and_granted_counts(asked_s, granted_s):
    """A coordinator may grant more than it keeps, and other nodes wait for what was asked."""
    lease = Lease(Clock())
    lease.renewed(100.0, asked_s=asked_s, granted_s=granted_s)
    assert lease.deadline == 110.0 - margin_s(10)


def test_a_late_answer_does_not_lower_the_deadline():
    """Answers may overtake each other."""
    lease = Lease(Clock())
    lease.renewed(103.0, 10, 10)
    lease.renewed(100.0, 10, 10)
    assert lease.deadline == 113.0 - margin_s(10)
    lease.end()
    assert lease.is_over()


def test_a_lease_rests_on_promises_until_it_is_renewed_for_as_long():
    """Only then may a node that has promised nothing become a member."""
    lease = Lease(Clock())
    assert not lease.rests_on_promises
    lease.renewed(100.0, 10, 10)
    assert lease.promised(99.0, 10) < lease.deadline
    assert not lease.rests_on_promises
    assert lease.promised(103.0, 10) == lease.deadline == 113.0 - margin_s(10)
    assert lease.rests_on_promises
    lease.renewed(102.0, 10, 10)
    assert lease.rests_on_promises
    lease.renewed(103.0, 10, 10)
    assert not lease.rests_on_promises
    lease.promised(104.0, 10)
    lease.end()
    assert lease.is_over()
    assert not lease.rests_on_promises


@given(
    ttl_s=st.floats(TTL_MIN_S, 60),
    drift=st.floats(-0.01, 0.01),
    delay_s=st.floats(0, 5),
)
def test_the_deadline_is_before_the_end_of_the_lease(ttl_s, drift, delay_s):
    """The coordinator's clock may run 1 % faster, and count from when the request was sent."""
    lease = Lease(Clock())
    lease.renewed(0.0, ttl_s, ttl_s)
    ends_at = delay_s + ttl_s / (1 + drift)  # by the holder's clock
    assert lease.deadline < ends_at


@pytest.mark.parametrize("part", [Part.FLUSH, Part.HA, 0])
async def test_no_put_is_ok_after_the_deadline(part):
    """Whatever it waited for, and also if it waited for nothing."""
    clock = Clock()
    lease = Lease(clock)
    lease.renewed(100.0, 10, 10)
    log = DecisionLog(lease=lease)
    for now, status in (
        (lease.deadline - 0.001, PutMessageStatus.PUT_OK),
        (lease.deadline, PutMessageStatus.FLUSH_SLAVE_TIMEOUT),
    ):
        clock.now = now
        request = GroupCommitRequest("t", 0, log)
        if part:
            request.expect(part)
            request.complete(part, PutMessageStatus.PUT_OK)
        else:
            request.decide(PutMessageStatus.PUT_OK)
        assert request.status is status
        assert log.counts[status] == 1
    assert request.reason == LEASE_OVER
