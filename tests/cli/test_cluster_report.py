"""What `hastore cluster` says of a group: lines, JSON, and a switchover that did not come about."""

import attrs
import pytest

from hastore.cluster.group_records import GroupConfig, Switchover
from hastore.errors import OperationRefusedError
from hastore_cli.cluster.asking import Asked, check_not_void, groups_in
from hastore_cli.cluster.report import node_rows, status_json, status_lines
from tests.support.nodes.group_views import KEYS, NO_LEADER, OUTSIDE, member, view_of

ASKED = Asked(None, KEYS, "orders", "g1")


def shown(view):
    """Return the status as one text, its blanks squeezed."""
    return "\n".join(" ".join(line.split()) for line in status_lines(ASKED, view))


def test_a_healthy_group_is_a_headline_and_a_line_for_each_node():
    """Who leads, what each has, and whether it may become master."""
    master = member(1, role="master")
    text = shown(view_of(master, member(2, end=400, link="h:9"), member(3)))
    assert text.splitlines()[0] == (
        "group g1 of orders epoch 7 master node 1 SyncStateSet 1, 2, 3 in_sync_replicas all"
    )
    assert "1 master 7 1000 - 2 - yes it is" in text
    assert "2 slave 7 400 600 B 2 h:9 yes yes" in text
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (view_of(member(1), member(2)), "3 down - - - 2 - yes no: node 3 is not up"),
        (view_of(state=OUTSIDE), "no no: node 3 is not in the SyncStateSet"),
        (view_of(**NO_LEADER), "no node is master: nodes 1, 2, 3 may stand, an election is due"),
        (
            view_of(**NO_LEADER, config=GroupConfig(is_paused=True)),
            "no node is master, and elections are paused: nodes 1, 2, 3 may stand",
        ),
        (
            view_of(member(3), state=OUTSIDE, **NO_LEADER),
            "none that is up may become it: start nodes 1, 2; if it is lost: hastore cluster fail",
        ),
        (view_of(config=GroupConfig(is_paused=True)), "paused: hastore cluster resume"),
        (view_of(config=GroupConfig(alarm="x y")), "alarm: x y"),
        (
            view_of(config=GroupConfig(switchover=Switchover(from_epoch=7, to_id=2))),
            "a switchover to node 2 is under way",
        ),
        (view_of(damaged={"k": "bad"}), "k: bad"),
        (view_of(state=None, state_revision=0, **NO_LEADER), "hastore cluster init"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_line(view, said):
    """With the next step, where there is one."""
    assert said in shown(view)


def test_json_has_stable_keys_and_a_reason_for_each_node_that_may_not_stand():
    """Null where a value is not known."""
    shown = status_json(ASKED, view_of(member(1), member(2, kept_since=4)))
    assert shown["schema"] == "hastore.cluster/1"
    assert (shown["leader"]["id"], shown["acks"]) == (1, "all")
    one, two, three = shown["nodes"]
    assert next(iter(one)) == "id"
    assert (one["may_stand"], one["why_not"]) == (True, None)
    assert (two["may_stand"], "may have lost" in two["why_not"]) == (False, True)
    assert (three["role"], three["end"], three["start"]) == ("down", None, 2)
    assert {"is_up", "in_set", "last_epoch", "lag", "link", "uuid"} <= set(one)
    assert [row.lag for row in node_rows(view_of())] == [0, 0, 0]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (view_of(member(1)), "node 2 is not up any more"),
        (view_of(state=attrs.evolve(OUTSIDE, members=OUTSIDE.members[:1])), "has left the Sync"),
        (view_of(member(1), member(2, end=0)), "node 2 lags by 1000 B"),
        (view_of(), "node 2 did not take over in time"),
    ],
)
def test_a_switchover_that_was_taken_back_says_why(view, said):
    """By what the group looks like then; the master goes on in its epoch."""
    with pytest.raises(OperationRefusedError, match="was taken back by node 1") as caught:
        check_not_void(view, 2, 7)
    assert said in str(caught.value)


def test_a_switchover_goes_on_while_the_wish_is_there_or_nobody_leads():
    """Another master than the one that was wished for ends it."""
    wish = GroupConfig(switchover=Switchover(from_epoch=7, to_id=2))
    check_not_void(view_of(config=wish), 2, 7)
    check_not_void(view_of(**NO_LEADER), 2, 7)
    check_not_void(view_of(), 1, 7)
    with pytest.raises(OperationRefusedError, match="node 1 became master of epoch 7 instead"):
        check_not_void(view_of(), 2, 6)


def test_groups_are_found_in_the_keys_below_a_prefix():
    """Cluster and group, each once; what is not so deep is none."""
    keys = ["/p/a/g1/state", "/p/a/g1/ids/1", "/p/b/g2/leader", "/p/other"]
    assert groups_in(keys, "/p") == [("a", "g1"), ("b", "g2")]
