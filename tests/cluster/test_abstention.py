"""When a node may stand, and what it promises."""

import math

import attrs
import pytest

from hastore.broker.request_target import PromiseWish
from hastore.cluster.abstention import (
    SIT_OUT_MAX_S,
    Abstention,
    Promiser,
    why_not_promising,
)
from hastore.cluster.decide import Following

TTL_S = 10
WISH = PromiseWish(group="g1", epoch=3, master_id=1, ttl_s=10.0)
FOLLOWER = Promiser(
    group="g1",
    ttl_s=TTL_S,
    seen_epoch=3,
    state_epoch=3,
    following=Following(ha_address="n1:10912", epoch=3),
    followed_id=1,
    is_candidate=False,
)


def test_nobody_stands_for_a_ttl_after_a_start():
    """Promises of an earlier start have run out by then."""
    assert Abstention(100.0, TTL_S, 0).stands_from == 110.0


def test_a_promise_of_an_earlier_start_lasts_as_long_as_its_own_ttl():
    """The restart with a shorter one has to wait for it."""
    assert Abstention(100.0, 3, TTL_S).stands_from == 110.0
    assert Abstention(100.0, TTL_S, 3).stands_from == 110.0


def test_a_promise_moves_the_time_and_an_older_one_does_not_move_it_back():
    """The master relies on the latest."""
    abstention = Abstention(0.0, TTL_S, 0)
    abstention.promise(50.0, 10.0)
    abstention.promise(45.0, 10.0)
    assert abstention.stands_from == 60.0


def test_failed_promotions_are_sat_out_for_longer_each_time_up_to_a_limit():
    """And from a ttl again, once one has not failed."""
    abstention, waits = Abstention(-math.inf, TTL_S, 0), []
    for number in range(8):
        now = 1_000.0 * number
        abstention.sit_out(now)
        waits.append(abstention.campaigns_from - now)
    assert waits == [10, 20, 40, 80, 160, SIT_OUT_MAX_S, SIT_OUT_MAX_S, SIT_OUT_MAX_S]
    abstention.served()
    abstention.sit_out(9_000.0)
    assert abstention.campaigns_from == 9_000.0 + TTL_S
    assert abstention.stands_from == -math.inf  # its log's end may be needed to choose another


def test_a_follower_promises_its_master():
    """So the master goes on while the coordinator is silent."""
    assert why_not_promising(FOLLOWER, WISH) is None
    silent = attrs.evolve(FOLLOWER, state_epoch=None, seen_epoch=0)
    assert why_not_promising(silent, WISH) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"group": "g2"}, "it is of replica group g2"),
        ({"ttl_s": 5}, "its ttl is 5 s"),
        ({"followed_id": 2}, "it does not follow node 1"),
        ({"followed_id": None}, "it does not follow node 1"),
        ({"state_epoch": 4}, "epoch 4 has begun"),
        ({"is_candidate": True}, "it stands for election, or has won one"),
        ({"following": None}, "it follows no master of epoch 3"),
        ({"following": Following(ha_address="a", epoch=2)}, "it follows no master of epoch 3"),
        ({"seen_epoch": 4}, "it follows no master of epoch 3"),
    ],
)
def test_a_node_that_may_know_of_a_newer_master_promises_nothing(change, reason):
    """Each reason is named."""
    assert why_not_promising(attrs.evolve(FOLLOWER, **change), WISH) == reason
