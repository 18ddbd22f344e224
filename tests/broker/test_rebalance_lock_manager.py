"""Locks of queues: one holder a group, renewed or lapsed."""

from hastore.broker.groups import rebalance_lock_manager
from hastore.broker.groups.rebalance_lock_manager import MessageQueue, RebalanceLockManager

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_a_queue_has_one_holder_a_group():
    """The second client gets what is free; another group has locks of its own."""
    locks = RebalanceLockManager()
    assert locks.lock("g", [ONE], "a", 0.0) == [ONE]
    assert locks.lock("g", [ONE, TWO], "b", 1.0) == [TWO]
    assert locks.lock("h", [ONE], "b", 1.0) == [ONE]


def test_a_lock_lapses_without_renewal():
    """After a minute of silence the next client gets it; a renewal counts from then."""
    locks = RebalanceLockManager()
    locks.lock("g", [ONE], "a", 0.0)
    assert locks.lock("g", [ONE], "a", 50.0) == [ONE]
    assert locks.lock("g", [ONE], "b", 110.0) == []
    assert locks.lock("g", [ONE], "b", 110.1) == [ONE]
    assert locks.lock("g", [ONE], "a", 111.0) == []


def test_only_the_holder_unlocks():
    """A stranger's unlock changes nothing."""
    locks = RebalanceLockManager()
    locks.lock("g", [ONE], "a", 0.0)
    locks.unlock("g", [ONE, TWO], "b")
    assert locks.lock("g", [ONE], "b", 0.0) == []
    locks.unlock("g", [ONE], "a")
    assert locks.lock("g", [ONE], "b", 0.0) == [ONE]


def test_there_are_so_many_locks_and_no_more(monkeypatch):
    """A full table takes no new lock, renews what is there, and forgets what has lapsed."""
    monkeypatch.setattr(rebalance_lock_manager, "LOCKS_MAX", 1)
    locks = RebalanceLockManager()
    assert locks.lock("g", [ONE, TWO], "a", 0.0) == [ONE]
    assert locks.lock("g", [ONE, TWO], "a", 1.0) == [ONE]
    assert locks.lock("g", [TWO], "b", 62.0) == [TWO]
