"""The table of what each slave has acknowledged."""

from hastore.ha.group_transfer_service import SlaveAckTable


def test_push2_slave_max_offset_never_falls():
    """The highest ack remains after its slave has disconnected."""
    table = SlaveAckTable()
    assert table.acknowledge(1, 500)
    assert not table.acknowledge(2, 300)
    table.remove(1)
    assert table.push2_slave_max_offset == 500
    assert not table.acknowledge(2, 400)
    assert table.acknowledge(2, 501)


def test_nearest_ignores_slaves_that_have_disconnected():
    """Availability depends on the slaves that are connected now."""
    table = SlaveAckTable()
    table.acknowledge(1, 500)
    table.acknowledge(2, 300)
    assert (table.connected, table.nearest) == (2, 500)
    table.remove(1)
    assert (table.connected, table.nearest) == (1, 300)
    table.remove(2)
    assert (table.connected, table.nearest) == (0, None)
    table.remove(2)
