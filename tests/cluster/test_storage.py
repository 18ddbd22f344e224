"""Members that cannot store: who takes over from them, and which set it begins with."""

import attrs
import pytest

from hastore.cluster.decide import unable_ids
from hastore.cluster.group_records import RoomRequests
from hastore.cluster.storage import (
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    Rounds,
    RoundStart,
    begins_with,
    choose_successor,
)
from tests.cluster.knowledge import ONE, THREE, TWO, incarnation, published, state

ROOM = {"has_room": True, "link": "10.0.0.2:4000"}


def test_the_longest_log_takes_over_then_the_priority():
    """Of those that can store, have room, and follow."""
    two, three = published(TWO, end=900, **ROOM), published(THREE, end=1_000, **ROOM)
    assert choose_successor([two, three]) == three
    prior = published(TWO, priority=3, **ROOM)
    assert choose_successor([three, prior]) == prior
    unable = published(THREE, end=2_000, can_store=False, **ROOM)
    assert choose_successor([two, unable, published(ONE)]) == two
    assert choose_successor([unable, published(ONE)]) is None


@pytest.mark.parametrize(
    ("unable", "members_min", "left"),
    [
        ((), 1, (ONE, TWO, THREE)),
        ((ONE,), 1, (TWO, THREE)),
        ((ONE,), 2, (TWO, THREE)),
        ((ONE,), 3, (ONE, TWO, THREE)),
        ((ONE, THREE), 1, (TWO,)),
        ((ONE, THREE), 2, (ONE, TWO)),
        ((ONE, TWO), 1, (TWO, THREE)),  # the master is in its set, whatever it can do
        ((ONE, TWO), 5, (ONE, TWO, THREE)),
    ],
)
def test_members_that_cannot_store_are_left_out_while_enough_stay(unable, members_min, left):
    """Node 2 begins an epoch; puts need not wait for a disk that is full."""
    ids = {each.node_id for each in unable}
    assert begins_with((ONE, TWO, THREE), 2, members_min, unable=ids) == left


def test_an_unproven_member_stays_although_it_cannot_store():
    """Else a single copy of a log might acknowledge."""
    agreed = attrs.evolve(state(), members=(attrs.evolve(ONE, start=3), TWO, THREE))
    unproven = published(attrs.evolve(ONE, start=3), kept_since=4, can_store=False)
    proven = published(THREE, can_store=False)
    assert unable_ids([unproven, published(TWO), proven], agreed) == {3}


class Trouble:
    """Masters of one group that cannot store, one after the other."""

    def __init__(self) -> None:
        """Begin before the first request."""
        self.last, self.start, self.now = None, RoundStart(), 1_000.0

    def asks(self, own_id, epoch, able, unable_since=0.0):
        """Let a master ask as soon as it may; return whom, and after how long."""
        rounds = Rounds(
            last=self.last, began=self.start.began, epoch=epoch, unable_since=unable_since
        )
        members = [published(incarnation(each), **ROOM) for each in able]
        began = self.now
        self.now = max(self.now, unable_since, rounds.may_ask_from)
        if rounds.choose_successor(members, self.now) is None:
            self.now = rounds.over_at
        to_id = rounds.choose_successor(members, self.now).node.node_id
        self.last = rounds.asked(own_id, to_id, now=self.now, wall_ms=int(self.now * 1000))
        self.start.see(self.last, now=self.now, wall_ms=0)
        return to_id, self.now - began


def test_rounds_of_requests_come_ever_more_rarely():
    """A member that voids a request is asked once in a round; the pauses double."""
    trouble = Trouble()
    asked = [trouble.asks(1, 1, {2, 3}) for _ in range(6)]
    assert asked == [(2, 0.0), (3, 0.0), (2, 60.0), (3, 0.0), (2, 120.0), (3, 0.0)]
    for _ in range(20):
        trouble.asks(1, 1, {2, 3})
    assert trouble.last.pause_s == PAUSE_MAX_S


def test_the_pause_is_the_groups_and_a_former_master_comes_last():
    """A fault that follows the role moves it ever more rarely, and back last of all."""
    trouble = Trouble()
    assert trouble.asks(1, 1, {2, 3, 4}) == (2, 0.0)
    assert trouble.asks(2, 2, {1, 3, 4}) == (3, 60.0)
    assert trouble.asks(3, 3, {1, 2, 4}) == (4, 120.0)
    assert trouble.asks(4, 4, {1, 2, 3}) == (1, 240.0)
    assert trouble.asks(1, 5, {2, 3, 4}) == (2, 480.0)


def test_a_master_that_could_store_for_a_pause_begins_with_short_ones_again():
    """What others did before no longer counts."""
    trouble = Trouble()
    trouble.asks(1, 1, {2, 3})
    trouble.asks(2, 2, {1, 3})
    over_at = trouble.start.began + 2 * PAUSE_MIN_S
    assert trouble.asks(3, 3, {1, 2}, unable_since=over_at + 1) == (1, 2 * PAUSE_MIN_S + 1)
    assert (trouble.last.pause_s, trouble.last.tried) == (PAUSE_MIN_S, {3, 1})


def test_a_round_begins_when_it_is_first_seen():
    """Only the age of one that was there before the process is known by wall clocks."""
    start, seen = RoundStart(), RoomRequests(epoch=1, at_ms=5_000, pause_s=60, tried=frozenset({1}))
    start.see(seen, now=100.0, wall_ms=15_000)
    assert start.began == 90.0
    start.see(attrs.evolve(seen, tried=frozenset({1, 2})), now=105.0, wall_ms=0)
    assert start.began == 90.0, "the same round"
    start.see(attrs.evolve(seen, at_ms=1_000), now=110.0, wall_ms=15_000)
    assert start.began == 110.0
    late = RoundStart()
    late.see(seen, now=100.0, wall_ms=0)
    assert late.began == 100.0, "a clock is wrong"
    late = RoundStart()
    late.see(None, now=100.0, wall_ms=0)
    late.see(seen, now=101.0, wall_ms=15_000)
    assert late.began == 101.0
