"""Who has acknowledged what."""

from hastore.ha.group_transfer_service import SlaveAckTable


def test_push2_slave_max_offset_never_falls():
    """The highest ack of all time stays when its slave leaves."""
    table = SlaveAckTable()
    assert table.acknowledge(1, 500)
    assert not table.acknowledge(2, 300)
    table.remove(1)
    assert table.push2_slave_max_offset == 500
    assert not table.acknowledge(2, 400)
    assert table.acknowledge(2, 501)


def test_a_departed_slaves_ack_does_not_make_a_laggard_look_near():
    """Availability looks at the slaves connected now."""
    table = SlaveAckTable()
    table.acknowledge(1, 500)
    table.acknowledge(2, 300)
    assert (table.connected, table.nearest) == (2, 500)
    table.remove(1)
    assert (table.connected, table.nearest) == (1, 300)
    table.remove(2)
    assert (table.connected, table.nearest) == (0, None)
    table.remove(2)
