"""In a replica group, topics, groups and offsets follow the master through changes of roles."""

import attrs
import pytest

from hastore.broker.groups import slave_synchronize
from hastore.client.admin import AdminClient
from hastore.message import Message
from hastore.status import PutMessageStatus as Status
from hastore.wire.config_tables import SubscriptionGroupConfig
from tests.support.nodes import group_nodes
from tests.support.nodes.group_nodes import group, node_config, promote_by_request
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.02)


def queue_end(node):
    """Of its present role's store: a slave may be in step before its node announces it."""
    return node.role_node.message_store.max_offset_in_queue("orders", 0)


def copied(node):
    return node.role_node.slave_synchronize.data


@pytest.fixture
def quick_disks(monkeypatch):
    """Delay offsets are copied once their deliveries are on the slave's disk."""

    def quick_config(data_dir, *args, **changes):
        config = node_config(data_dir, *args, **changes)
        quick = {"message_delay_level": "1s 1h", "flush_interval_ms": 20, "flush_least_pages": 0}
        return attrs.evolve(config, store=attrs.evolve(config.store, **quick))

    monkeypatch.setattr(group_nodes, "node_config", quick_config)


@pytest.mark.usefixtures("quick_disks")
async def test_groups_go_on_after_each_change_of_roles(tmp_path):
    """Also after the second one: the former master has become a copy."""
    ha = attrs.evolve(group_nodes.HA, ha_send_heartbeat_interval_ms=50)  # has the confirm offset
    async with group(tmp_path, 2, ha=ha) as (one, two):
        for epoch, (master, slave) in enumerate(((one, two), (two, one), (one, two)), 1):
            serving = await promote_by_request(master, slave, epoch)
            async with AdminClient.connect(master.address) as admin:
                if epoch == 1:
                    await admin.create_topic("orders", read_queue_nums=16, write_queue_nums=3)
                    await admin.create_group(SubscriptionGroupConfig(group="g", retry_max_times=3))
                else:
                    topic = (await admin.topics())["orders"]
                    assert (topic.read_queue_nums, topic.write_queue_nums) == (16, 3)
                    assert (await admin.groups())["g"].retry_max_times == 3
                    assert await admin.query_offset("g", "orders", 0) == epoch - 1
                    progress = serving.schedule_message_service.progress
                    await eventually(lambda: progress().get(1) == (epoch - 1, epoch - 1))  # noqa: B023
                delayed = Message("orders", b"%d" % epoch, properties={"DELAY": "1"})
                assert (await serving.put(delayed)).status is Status.PUT_OK
                await eventually(lambda: {queue_end(node) for node in (one, two)} == {epoch})  # noqa: B023
                await admin.update_offset("g", "orders", 0, epoch)
            await eventually(lambda: copied(slave).offsets.query("g", "orders", 0) == epoch)  # noqa: B023
            await eventually(lambda: slave.role_node.delay_offsets() == {1: epoch})  # noqa: B023
            assert slave.status().table_copies.reason is None
            delivered = serving.schedule_message_service.delivered
            assert delivered == 1
