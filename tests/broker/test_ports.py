"""The listening sockets of a node."""

from hastore.broker.node.master import open_ports
from tests.support.nodes.group_nodes import node_config


async def test_the_addresses_outlive_the_sockets(tmp_path):
    """A node that stops may still say where it was, to its coordinator for one."""
    async with open_ports(node_config(tmp_path, 1)) as ports:
        assert ports.ha_address[1] > 0
        assert ports.client_address is not None
        before = (ports.ha_address, ports.client_address, ports.observer_address)
    assert before == (ports.ha_address, ports.client_address, ports.observer_address)
