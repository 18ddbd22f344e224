"""Which connection is evicted when a port is full."""

import pytest

from hastore.concurrency.port_limits import Activity, Crowd, Occupant, PortLimits

ALL = Crowd(3, None)
LIMITS = PortLimits(connections_max=3, per_address_max=2)


def test_there_is_room_below_both_limits():
    """One below each limit, a newcomer comes in, and nobody is in its way."""
    assert LIMITS.crowd("10.0.0.1", count=2, of_address=1) is None


def test_all_connections_are_in_the_way_at_the_ports_limit():
    """The newcomer competes with every connection."""
    assert LIMITS.crowd("10.0.0.1", count=3, of_address=1) == Crowd(3, None)


@pytest.mark.parametrize("count", [2, 3])
def test_an_address_at_its_limit_is_in_its_own_way(count):
    """Whether the port is full or not: the limit of the address is looked at first."""
    assert LIMITS.crowd("10.0.0.1", count=count, of_address=2) == Crowd(2, "10.0.0.1")


def test_the_oldest_unidentified_connection_is_evicted():
    """Even where an identified one is older."""
    occupants = [
        Occupant("idle", "10.0.0.1", Activity.IDLE, since=0.0),
        Occupant("silent", "10.0.0.2", since=1.0),
        Occupant("silent later", "10.0.0.3", since=2.0),
    ]
    assert ALL.evict(occupants) == "silent"


def test_an_idle_connection_is_evicted_before_a_busy_one():
    """Of the idle ones the one that has been so for the longest, though it came last."""
    occupants = [
        Occupant("busy", "10.0.0.1", Activity.BUSY, since=0.0),
        Occupant("idle", "10.0.0.1", Activity.IDLE, since=9.0),
        Occupant("idle longer", "10.0.0.1", Activity.IDLE, since=5.0),
    ]
    assert ALL.evict(occupants) == "idle longer"


def test_of_busy_connections_the_slowest_is_evicted():
    """The one whose answer has been under way for the longest."""
    occupants = [
        Occupant("quick", "10.0.0.1", Activity.BUSY, since=8.0),
        Occupant("slow", "10.0.0.1", Activity.BUSY, since=3.0),
    ]
    assert ALL.evict(occupants) == "slow"


def test_the_newcomer_is_refused_where_nobody_may_be_evicted():
    """A port that offers no identified connection keeps them all."""
    assert ALL.evict([]) is None


def test_an_address_evicts_its_own_connections_only():
    """An older one of another address stays; an IPv6 address is its /64."""
    crowd = LIMITS.crowd("2001:db8::1", count=3, of_address=2)
    assert crowd is not None
    other = Occupant("other", "2001:db8:0:1::1")
    assert crowd.evict([other, Occupant("own", "2001:db8::2")]) == "own"
    assert crowd.evict([other]) is None
