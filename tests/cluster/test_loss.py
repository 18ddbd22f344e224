"""Which bytes a failover would cut, and which epoch is to blame for a cut."""

import pytest

from hastore.cluster.loss import Loss, NodeCut, NodeLoss, cuts_by_epoch, lacking
from hastore.epoch_history import EpochEntry, EpochHistory, EpochSpan
from hastore.store.recovery.log_cut import LogCut
from hastore.store.tools.group_log import GroupLog


def log(end, *entries, begin=0):
    """Return a log with these epochs."""
    return GroupLog(
        epochs=EpochHistory(tuple(EpochEntry(*entry) for entry in entries)),
        min_offset=begin,
        end_offset=end,
        confirm_offset=None,
        cuts=(),
    )


@pytest.mark.parametrize(
    ("chosen", "other", "expected"),
    [
        (log(500, (1, 0)), log(500, (1, 0)), None),
        (log(500, (1, 0)), log(400, (1, 0)), None),
        (log(500, (1, 0)), log(700, (1, 0)), (500, 700)),
        (log(900, (1, 0), (3, 500)), log(700, (1, 0), (2, 600)), (500, 700)),
        (log(900, (1, 0), (3, 500)), log(700, (1, 0), (2, 400)), (400, 700)),
        (log(0), log(700, (1, 0)), (0, 700)),
        (log(0), log(700, (4, 200), begin=300), (300, 700)),
        (log(0), log(0), None),
    ],
    ids=[
        "the same", "it has more", "it has less", "an epoch went on elsewhere",
        "the other began earlier", "an empty log", "an empty log, an old one", "both are empty",
    ],
)  # fmt: skip
def test_what_a_node_lacks_begins_at_the_consistent_point(chosen, other, expected):
    """The same as where the other's log would be cut."""
    assert lacking(chosen, other) == expected


def test_what_two_nodes_have_is_not_counted_twice():
    """The messages of both are the same; each may have more of one topic."""
    nodes = [
        NodeLoss(node_id=at, begin=0, end=9, messages=messages, confirmed=None)
        for at, messages in ((1, {"a": 2, "b": 1}), (2, {"a": 3}))
    ]
    loss = Loss(to_id=3, nodes=tuple(nodes))
    assert loss.at_least == {"a": 3, "b": 1}
    assert loss.to_json()["nodes"][1]["messages"] == {"a": 3}


def test_a_loss_names_the_nodes_that_may_have_more():
    """Of all messages, and of those that were confirmed."""
    known = {"begin": 0, "end": 90, "messages": {"a": 1}, "confirmed": {"a": 1}}
    loss = Loss(
        to_id=3,
        nodes=(
            NodeLoss(node_id=1, **known),
            NodeLoss(node_id=2, unread_from=40, **known),
            NodeLoss(node_id=4, unread_from=9, confirmed_unread_from=9, **known),
        ),
    )
    assert (loss.uncounted, loss.uncounted_confirmed) == ({2, 4}, {4})
    assert [each["unread_from"] for each in loss.to_json()["nodes"]] == [None, 40, 9]


def cut(node_id, *epochs, time_ms=1):
    """Return a cut of a node's log."""
    spans = tuple(EpochSpan(epoch, 100, 200) for epoch in epochs)
    return NodeCut(
        node_id=node_id,
        cut=LogCut(
            physic_offset=100,
            end_offset=200,
            reason="r",
            time_ms=time_ms,
            epochs=spans,
            messages={"T": 1},
            saved_paths=(),
        ),
    )


def test_the_first_later_epoch_made_a_cut_necessary():
    """Also if the node has been down for several; without epochs nobody knows."""
    late, early, unknown = cut(1, 2, 3), cut(2, 1, time_ms=0), cut(3)
    future = cut(1, 9)
    found, others = cuts_by_epoch([1, 3, 4, 6], [late, early, unknown, future])
    assert found == {1: [], 3: [early], 4: [late], 6: []}
    assert others == [future, unknown]
