"""At its limits a port evicts unidentified connections first, then idle ones, then slow ones."""

import pytest

from hastore.concurrency.port_limits import Activity, Crowd, Occupant, PortLimits, evict_unproven

ALL = Crowd(3, None)
LIMITS = PortLimits(connections_max=3, per_address_max=2)


def test_connection_below_both_limits_competes_with_none():
    """Each limit has room for exactly one more."""
    assert LIMITS.crowd("10.0.0.1", count=2, of_address=1) is None


def test_full_port_makes_all_connections_compete():
    """No address is named, so any connection can be evicted."""
    assert LIMITS.crowd("10.0.0.1", count=3, of_address=1) == Crowd(3, None)


@pytest.mark.parametrize("count", [2, 3])
def test_full_address_competes_with_its_own_connections(count):
    """The limit of the address is checked first, even if the port is full too."""
    assert LIMITS.crowd("10.0.0.1", count=count, of_address=2) == Crowd(2, "10.0.0.1")


def test_oldest_unidentified_connection_is_evicted():
    """An identified connection stays even if it is older."""
    occupants = [
        Occupant("idle", "10.0.0.1", Activity.IDLE, since=0.0),
        Occupant("silent", "10.0.0.2", since=1.0),
        Occupant("silent later", "10.0.0.3", since=2.0),
    ]
    assert ALL.evict(occupants) == "silent"


def test_idle_connection_is_evicted_before_a_busy_one():
    """Of several, the one that has been idle longest, even if it was opened last."""
    occupants = [
        Occupant("busy", "10.0.0.1", Activity.BUSY, since=0.0),
        Occupant("idle", "10.0.0.1", Activity.IDLE, since=9.0),
        Occupant("idle longer", "10.0.0.1", Activity.IDLE, since=5.0),
    ]
    assert ALL.evict(occupants) == "idle longer"


def test_slowest_of_the_busy_connections_is_evicted():
    """Its answer has been in progress for the longest time."""
    occupants = [
        Occupant("quick", "10.0.0.1", Activity.BUSY, since=8.0),
        Occupant("slow", "10.0.0.1", Activity.BUSY, since=3.0),
    ]
    assert ALL.evict(occupants) == "slow"


def test_evicts_none_without_candidates():
    """Then the new connection is refused: some ports never evict identified ones."""
    assert ALL.evict([]) is None


def test_full_address_evicts_only_its_own_connections():
    """Another address keeps its older connection; an IPv6 address counts as its /64."""
    crowd = LIMITS.crowd("2001:db8::1", count=3, of_address=2)
    assert crowd is not None
    other = Occupant("other", "2001:db8:0:1::1")
    assert crowd.evict([other, Occupant("own", "2001:db8::2")]) == "own"
    assert crowd.evict([other]) is None


def test_the_address_with_most_unproven_connections_loses_its_oldest():
    """So an address that keeps coming evicts its own, and keeps no other out."""
    occupants = [
        Occupant("one", "10.0.0.2"),
        Occupant("first of many", "10.0.0.1"),
        Occupant("second of many", "10.0.0.1"),
    ]
    assert evict_unproven(occupants) == "first of many"
    assert evict_unproven(occupants[:2]) == "one"
    assert evict_unproven([]) is None
