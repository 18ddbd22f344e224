"""A failover without a coordinator: who may become master, row by row."""

import attrs
import pytest

from hastore.cluster.by_hand import NodeFacts, check_promises, choose, plan
from hastore.errors import OperationRefusedError

IDS = (1, 2, 3)


def facts(at: int, **changes: object) -> NodeFacts:
    """Return a slave of g1 that has all of epoch 7."""
    known = NodeFacts(
        address=("h", at),
        node_id=at,
        group="g1",
        is_master=False,
        last_epoch=7,
        seen_epoch=7,
        end=1_000,
    )
    return attrs.evolve(known, **changes)


def refused(call, *arguments, **named):
    """Return the refusal as ``message → hint``."""
    with pytest.raises(OperationRefusedError) as caught:
        call(*arguments, **named)
    return f"{caught.value} → {caught.value.hint}"


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ((facts(2), facts(3)), 2),
        ((facts(2), facts(3, end=1_001)), 3),
        ((facts(2, end=9_000, last_epoch=6), facts(3)), 3),
        ((facts(2, is_unverified=True), facts(3)), 3),
        ((facts(2, last_epoch=8, end_epoch=7, end=900), facts(3, end_epoch=7)), 3),
    ],
)
def test_the_newest_log_of_a_majority_becomes_master(nodes, chosen):
    """By its last epoch, then its end; in the second epoch after all that they have seen."""
    nodes = (attrs.evolve(nodes[0], seen_epoch=9), nodes[1])
    found = plan(nodes, IDS)
    assert (found.nobodys_epoch, found.epoch) == (10, 11)
    assert (found.master_id, found.loss) == (chosen, None)


@pytest.mark.parametrize(
    ("nodes", "ids", "message"),
    [
        ((), IDS, "no node answers"),
        ((facts(2), facts(3, node_id=None)), IDS, "h:3 is no node of a replica group"),
        ((facts(2), facts(3, group="g2")), IDS, "h:3 is of group g2, and h:2 of g1"),
        ((facts(2), facts(2)), IDS, "two of the addresses are node 2 → name each node once"),
        ((facts(2), facts(3, has_coordinator=True)), IDS, "h:3 has a coordinator, which"),
        ((facts(1, is_master=True), facts(2)), IDS, "node 1 answers, and is master of epoch 7"),
        ((facts(2), facts(3)), None, "is not known: name all ids with --ids"),
        ((facts(3),), IDS, "node 3 alone is no majority of 1, 2, 3: the others may have"),
        ((facts(3), facts(8)), IDS, "nodes 3, 8 alone are no majority of 1, 2, 3"),
    ],
)
def test_a_failover_that_could_lose_messages_is_refused(nodes, ids, message):
    """Each by what is in the way."""
    assert message in refused(plan, nodes, ids)


def test_a_live_master_is_deposed_by_force_and_knows_the_ids():
    """It gives up its role, and may become master again."""
    master = facts(1, is_master=True, configured_ids=IDS)
    assert plan((master, facts(2)), None, force_with_live_master=True).master_id == 1
    assert "no majority" in refused(plan, (master,), None, force_with_live_master=True)


def test_an_unverified_log_is_taken_only_with_its_loss():
    """By name, or because it is the newest: then every verified one lacks something."""
    equal = (facts(2, is_unverified=True), facts(3))
    told = refused(plan, equal, IDS, 2)
    assert "node 2 has not compared its log with a master's" in told
    assert "--to 3, which has all; else --accept-loss" in told
    newest = (facts(2, is_unverified=True, end=2_000), facts(3))
    assert "node 2 has not compared" in refused(plan, newest, IDS)
    assert "node 3 lacks" in refused(plan, newest, IDS, 3)
    found = plan(newest, IDS, accept_loss=True)
    assert (found.master_id, "has not compared" in str(found.loss)) == (2, True)


def test_less_than_a_majority_and_a_shorter_log_are_taken_only_with_their_loss():
    """What may be lost is said."""
    found = plan((facts(3),), IDS, accept_loss=True)
    assert (found.master_id, "no majority" in str(found.loss)) == (3, True)
    shorter = (facts(2), facts(3, end=400))
    told = refused(plan, shorter, IDS, 3)
    assert "node 3 lacks 600 B that node 2 has: acknowledged messages may be lost" in told
    assert "--to 2, which has all; else --accept-loss" in told
    found = plan(shorter, IDS, 3, accept_loss=True)
    assert (found.master_id, found.loss) == (3, "node 3 lacks 600 B that node 2 has")
    older = (facts(2), facts(3, last_epoch=6, end=5_000))
    assert "ends in epoch 6, and that of node 2 in epoch 7" in refused(choose, older, 3)
    assert "node 9 is not one of those that answer: nodes 2, 3" in refused(choose, shorter, 9)
    assert choose((facts(2), facts(3)), 3) == (3, None)


def test_promises_count_only_if_they_were_recorded_and_are_a_majority():
    """A node whose coordinator decides takes the request as news, and records nothing."""
    promised = (facts(2, seen_epoch=8), facts(3, seen_epoch=8))
    check_promises(promised, IDS, 8)
    assert "node 3 has not recorded epoch 8: does a coordinator decide" in refused(
        check_promises, (promised[0], facts(3)), IDS, 8
    )
    assert "node 2 alone is no majority" in refused(check_promises, promised[:1], IDS, 8)
