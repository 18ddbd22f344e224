"""Members that cannot store: who takes over from them, and which set it begins with."""

import attrs
import pytest

from hastore.cluster.decide import unable_ids
from hastore.cluster.storage import (
    PAUSE_MAX_S,
    PAUSE_MIN_S,
    RequestPauses,
    begins_with,
    choose_successor,
)
from tests.cluster.knowledge import ONE, THREE, TWO, published, state

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


def test_requests_come_ever_more_rarely():
    """Once a minute at most, until the node could store for as long as a pause."""
    pauses, now, waited = RequestPauses(), 0.0, []
    for _ in range(8):
        pauses.asked(now)
        waited.append(pauses.may_ask_from - now)
        now = pauses.may_ask_from
    assert waited == [min(PAUSE_MIN_S * 2**each, PAUSE_MAX_S) for each in range(8)]
    pauses.could_store(PAUSE_MAX_S - 1)
    assert pauses.may_ask_from == now
    pauses.could_store(PAUSE_MAX_S)
    assert pauses.may_ask_from < 0
    pauses.asked(now)
    pauses.asked(now)
    pauses.term_ended()
    assert pauses.may_ask_from == now + PAUSE_MIN_S
    pauses.asked(now)
    assert pauses.may_ask_from == now + PAUSE_MIN_S
