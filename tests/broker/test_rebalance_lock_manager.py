"""Locks of queues: one holder per group, until it unlocks or stops renewing."""

from hastore.broker.groups import rebalance_lock_manager
from hastore.broker.groups.rebalance_lock_manager import MessageQueue, RebalanceLockManager

LOCKS = 1_000  # of one owner, at most

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def locked(locks, group, queues, client_id, now):
    """Return the queues that a client then holds."""
    return locks.lock(group, queues, client_id, now)[0]


def test_a_queue_has_one_lock_holder_per_group():
    """A second client gets only what is free; another group has its own locks."""
    locks = RebalanceLockManager(LOCKS)
    assert locked(locks, "g", [ONE], "a", 0.0) == [ONE]
    assert locked(locks, "g", [ONE, TWO], "b", 1.0) == [TWO]
    assert locked(locks, "h", [ONE], "b", 1.0) == [ONE]


def test_a_lock_lapses_without_renewal():
    """A minute after the last renewal another client can get it."""
    locks = RebalanceLockManager(LOCKS)
    locks.lock("g", [ONE], "a", 0.0)
    assert locked(locks, "g", [ONE], "a", 50.0) == [ONE]
    assert locked(locks, "g", [ONE], "b", 110.0) == []
    assert locked(locks, "g", [ONE], "b", 110.1) == [ONE]
    assert locked(locks, "g", [ONE], "a", 111.0) == []


def test_only_the_holder_can_unlock():
    """The unlock of another client changes nothing."""
    locks = RebalanceLockManager(LOCKS)
    locks.lock("g", [ONE], "a", 0.0)
    locks.unlock("g", [ONE, TWO], "b")
    assert locked(locks, "g", [ONE], "b", 0.0) == []
    locks.unlock("g", [ONE], "a")
    assert locked(locks, "g", [ONE], "b", 0.0) == [ONE]


def test_the_number_of_locks_is_limited(monkeypatch):
    """A full table takes no new lock, renews existing ones and frees those that have lapsed."""
    monkeypatch.setattr(rebalance_lock_manager, "LOCKS_MAX", 1)
    locks = RebalanceLockManager(LOCKS)
    queues, refusal = locks.lock("g", [ONE, TWO], "a", 0.0)
    assert queues == [ONE]
    assert str(refusal) == "this broker already has 1 locks of queues, the most it keeps"
    assert locked(locks, "g", [ONE, TWO], "a", 1.0) == [ONE]
    assert locked(locks, "g", [TWO], "b", 62.0) == [TWO]
