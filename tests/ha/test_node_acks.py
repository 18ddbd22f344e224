"""One ack a node, from its newest connection; and since when a node has stalled."""

import pytest

from hastore.ha.node_acks import NEAR_S, NodeAcks


def acks_of(*acks, end=1_000):
    """Nodes 2 and up, connected at 10 s, with these acks at 20 s."""
    table = NodeAcks(end)
    for node_id, offset in enumerate(acks, 2):
        table.connected(node_id, node_id * 10, 10.0)
        if offset is not None:
            table.acknowledged(node_id * 10, offset, 20.0)
    return table


def seen(table, node_id=2):
    node = table.node(node_id)
    return node.connection_id, node.ack_offset, node.stalled_since


@pytest.mark.parametrize(
    ("ack", "event", "expected"),
    [
        # while it has all of the log
        (1_000, lambda t: t.connected(2, 21, 30.0), (21, None, 30.0)),
        (1_000, lambda t: t.observed(2, 21, 30.0), (None, None, 30.0)),
        (1_000, lambda t: t.disconnected(20, 30.0), (None, None, 30.0)),
        (1_000, lambda t: t.disconnected(99, 30.0), (20, 1_000, None)),
        (1_000, lambda t: t.acknowledged(20, 1_000, 30.0), (20, 1_000, None)),
        (1_000, lambda t: t.appended(1_500, 30.0), (20, 1_000, 30.0)),
        (1_000, lambda t: t.appended(1_000, 30.0), (20, 1_000, None)),
        # while it has not
        (500, lambda t: t.connected(2, 21, 30.0), (21, None, 20.0)),
        (500, lambda t: t.observed(2, 21, 30.0), (None, None, 20.0)),
        (500, lambda t: t.disconnected(20, 30.0), (None, None, 20.0)),
        (500, lambda t: t.acknowledged(20, 1_000, 30.0), (20, 1_000, None)),
        (500, lambda t: t.acknowledged(20, 700, 30.0), (20, 700, 30.0)),
        (500, lambda t: t.acknowledged(20, 500, 30.0), (20, 500, 20.0)),
        (500, lambda t: t.appended(1_500, 30.0), (20, 500, 20.0)),
        # before its first ack
        (None, lambda t: t.acknowledged(20, 0, 30.0), (20, 0, 10.0)),
        (None, lambda t: t.acknowledged(20, 1, 30.0), (20, 1, 30.0)),
    ],
)
def test_rows_of_the_table(ack, event, expected):
    """Each event changes what the module's table says."""
    table = acks_of(ack)
    event(table)
    assert seen(table) == expected


def test_acks_of_an_earlier_connection_do_not_count():
    """Neither those before the newest connection, nor those that arrive later."""
    table = acks_of(900)
    table.connected(2, 21, 30.0)
    assert table.acknowledged(20, 1_000, 31.0) is None
    assert seen(table) == (21, None, 20.0)
    assert table.disconnected(20, 32.0) is None
    assert table.acknowledged(21, 600, 33.0) is table.node(2)
    assert table.node(2).ack_offset == 600


def test_earlier_connection_does_not_count_again_when_the_newest_has_closed():
    """It was replaced for good."""
    table = acks_of(900)
    table.connected(2, 21, 30.0)
    table.disconnected(21, 31.0)
    assert table.acknowledged(20, 1_000, 32.0) is None
    assert table.node(2).connection_id is None


def test_node_that_connects_again_and_again_stays_stalled():
    """Acks of what it had before are nothing new, whichever connection they come on."""
    table = acks_of(500)
    for connection_id, offset in ((21, 0), (22, 400), (23, 500)):
        table.connected(2, connection_id, 30.0 + connection_id)
        table.acknowledged(connection_id, offset, 31.0 + connection_id)
        assert table.node(2).stalled_since == 20.0
    table.acknowledged(23, 501, 60.0)
    assert table.node(2).stalled_since == 60.0


def test_observer_is_shown_and_never_counts():
    """Its acks are kept for status; a later connection that counts replaces it."""
    table = acks_of(900)
    table.observed(9, 90, 30.0)
    assert table.acknowledged(90, 1_000, 31.0) is None
    (observer,) = table.observers
    assert (observer.node_id, observer.ack_offset, observer.since) == (9, 1_000, 30.0)
    assert table.get(9) is None
    table.connected(9, 91, 32.0)
    assert not table.observers
    assert table.disconnected(90, 33.0) is None
    table.observed(8, 80, 34.0)
    assert table.disconnected(80, 35.0) is None
    assert not table.observers


def test_illegal_acks_are_programmer_errors():
    """The code that reads them from the wire has validated them."""
    table = acks_of(500)
    for offset in (499, 1_001, -1):
        with pytest.raises(AssertionError):
            table.acknowledged(20, offset, 30.0)
    with pytest.raises(AssertionError):
        table.connected(3, 20, 30.0)
    with pytest.raises(AssertionError):
        table.forget(2)


def test_appends_stall_only_nodes_that_had_everything():
    """It returns whether there was one, so that the caller can wait for a deadline."""
    table = acks_of(1_000, 400)
    assert table.appended(1_100, 30.0)
    assert not table.appended(1_200, 40.0)
    assert [node.stalled_since for node in table] == [30.0, 20.0]


def test_nodes_that_are_gone_leave_nothing_behind():
    """Reconnecting for ever costs no memory."""
    table = acks_of(1_000)
    for connection_id in range(100, 200):
        table.connected(2, connection_id, 30.0)
        table.acknowledged(connection_id, 1_000, 30.0)
    table.disconnected(199, 31.0)
    table.forget(2)
    assert not list(table)
    assert not table.in_step
    assert not table._counting


def test_learner_is_near_if_it_reaches_a_recent_end():
    """The first ack only sets the mark; a slow one sets the next."""
    table = acks_of(None)
    node = table.node(2)

    def acknowledge(offset, now):
        table.acknowledged(20, offset, now)
        return node.is_near(table.end_offset, now)

    assert not acknowledge(100, 30.0)  # mark 1,000
    assert not acknowledge(900, 30.1)
    table.appended(2_000, 30.2)
    assert not acknowledge(1_000, 30.0 + NEAR_S + 0.1)  # too late; mark 2,000
    table.appended(3_000, 30.7)
    assert acknowledge(2_000, 30.0 + 2 * NEAR_S)
