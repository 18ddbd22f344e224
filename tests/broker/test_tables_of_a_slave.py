"""What a slave copied from its master is there when its directory is started as a master."""

import json

import attrs
import pytest

import hastore
from hastore.broker.groups import slave_synchronize
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.observe.node_status import NodeStatus, TableCopies
from hastore.client.admin import AdminClient
from hastore.client.remoting_client import open_remoting_client
from hastore.concurrency.tcp import describe
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.wire.config_tables import SubscriptionGroupConfig
from hastore.wire.remoting_codes import RequestCode
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.harness import master_config, slave_config
from tests.support.waiting import eventually

# Without an index only the delay offset knows what was delivered.
STORE = {
    "message_delay_level": "1s 1h",
    "message_index_enable": False,
    "flush_interval_ms": 20,  # delay offsets are copied once their deliveries are on the disk
    "flush_least_pages": 0,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.02)


def config_of(path):
    return master_config(path, role=BrokerRole.ASYNC_MASTER, listen=ANY_PORT, store=STORE)


def slave_of(path, master, **changes):
    return slave_config(
        path, master.ha_address, master_client=master.address, store=STORE, **changes
    )


def delayed(name, level):
    properties = {"UNIQ_KEY": name, "DELAY": str(level)}
    return Message("orders", name.encode(), properties=properties)


def table(path, name):
    """What a slave has written; None before."""
    file = path / "config" / name
    return json.loads(file.read_text()) if file.exists() else None


def size(node):
    return node.message_store.max_offset_in_queue("orders", 0)


async def test_a_promoted_slave_goes_on_with_its_masters_tables(tmp_path):
    """Queue counts, permissions, groups, offsets, and the delayed messages that are still due."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        async with (
            hastore.open_slave(slave_of(tmp_path / "s", master)) as slave,
            AdminClient.connect(master.address) as admin,
        ):
            await admin.create_topic("orders", read_queue_nums=16, write_queue_nums=3, perm=6)
            await admin.create_topic("quiet", read_queue_nums=2, write_queue_nums=1, perm=4)
            await admin.create_group(SubscriptionGroupConfig(group="g", retry_max_times=3))
            for name, level in (("a", 1), ("b", 1), ("later", 2)):
                assert (await master.put(delayed(name, level))).ok
            await eventually(lambda: size(slave) == 2)
            await admin.update_offset("g", "orders", 0, 1)
            await eventually(lambda: slave.status().table_copies.reason is None)
            await eventually(lambda: slave.delay_offsets() == {1: 2})
            await eventually(
                lambda: slave.slave_synchronize.data.offsets.query("g", "orders", 0) == 1
            )
        on_master = table(tmp_path / "m", "topics.json")
    assert table(tmp_path / "s", "topics.json") == on_master
    assert table(tmp_path / "s", "delayOffset.json") == {"offsetTable": {"1": 2}}
    async with (
        hastore.open_master(config_of(tmp_path / "s")) as master,
        AdminClient.connect(master.address) as admin,
    ):
        topics = await admin.topics()
        assert (topics["orders"].read_queue_nums, topics["orders"].write_queue_nums) == (16, 3)
        assert (topics["quiet"].read_queue_nums, topics["quiet"].perm) == (2, 4)
        assert (await admin.groups())["g"].retry_max_times == 3
        assert await admin.query_offset("g", "orders", 0) == 1
        assert (await master.put(delayed("c", 1))).ok
        await eventually(lambda: size(master) == 3)
        assert master.schedule_message_service.delivered == 1
        assert {1: (3, 3), 2: (0, 1)}.items() <= master.schedule_message_service.progress().items()


async def test_offsets_above_the_end_of_a_queue_are_lowered_at_the_start(tmp_path):
    """Messages that come later would be skipped in place of those that the slave lacked."""
    async with hastore.open_master(config_of(tmp_path)) as master:
        for _ in range(3):
            assert (await master.put(Message("orders", b"x"))).ok
    path = tmp_path / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable": {"orders@g": {"0": 7, "1": 4}, "orders@h": {"0": 2}}}')
    async with (
        hastore.open_master(config_of(tmp_path)) as master,
        AdminClient.connect(master.address) as admin,
    ):
        assert await admin.consumer_offsets() == {
            ("orders", "g"): {0: 3, 1: 0},
            ("orders", "h"): {0: 2},
        }
    assert table(tmp_path, "consumerOffset.json")["offsetTable"]["orders@g"] == {"0": 3, "1": 0}


async def test_a_group_of_the_slave_keeps_what_it_has_committed_there(tmp_path):
    """Until the master's offset moves; then the group goes on from that."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        settings = attrs.evolve(slave_of(tmp_path / "s", master), listen=ANY_PORT)
        async with (
            hastore.open_slave(settings) as slave,
            AdminClient.connect(master.address) as admin,
            AdminClient.connect(slave.address) as here,
        ):
            for _ in range(3):
                assert (await master.put(Message("orders", b"x"))).ok
            await eventually(lambda: size(slave) == 3)
            offset_of = slave.slave_synchronize.data.offsets.query
            await admin.update_offset("g", "orders", 0, 1)
            await eventually(lambda: offset_of("g", "orders", 0) == 1)
            await here.update_offset("g", "orders", 0, 3)
            await admin.update_offset("other", "orders", 0, 1)
            await eventually(lambda: offset_of("other", "orders", 0) == 1)
            assert await here.query_offset("g", "orders", 0) == 3
            await admin.update_offset("g", "orders", 0, 2)
            await eventually(lambda: offset_of("g", "orders", 0) == 2)


async def test_a_tag_saves_the_body_of_an_unchanged_table(tmp_path):
    """A slave that asks every second gets a table once."""
    async with (
        hastore.open_master(config_of(tmp_path)) as master,
        AdminClient.connect(master.address) as admin,
        open_remoting_client(master.address) as client,
    ):
        await admin.create_topic("orders", read_queue_nums=1, write_queue_nums=1)
        first = await client.invoke(RequestCode.GET_ALL_TOPIC_CONFIG)
        tag = {"tableTag": first.ext_fields["tableTag"]}
        assert b"orders" in first.body
        assert (await client.invoke(RequestCode.GET_ALL_TOPIC_CONFIG, tag)).body == b""
        await admin.create_topic("more", read_queue_nums=1, write_queue_nums=1)
        assert b"more" in (await client.invoke(RequestCode.GET_ALL_TOPIC_CONFIG, tag)).body


async def test_a_master_hands_out_its_delay_offsets(tmp_path):
    """As RocketMQ does, by level."""
    async with (
        hastore.open_master(config_of(tmp_path)) as master,
        open_remoting_client(master.address) as client,
    ):
        assert (await master.put(delayed("a", 1))).ok
        await eventually(lambda: master.schedule_message_service.delivered)
        answer = await client.invoke(RequestCode.GET_ALL_DELAY_OFFSET)
        assert json.loads(answer.body) == {"offsetTable": {"1": 1}}


async def test_status_and_doctor_say_whether_the_tables_are_copied(tmp_path):
    """``status`` survives its JSON form; a finding has the reason and the next step."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        settings = slave_of(tmp_path / "s", master)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().table_copies.age_s is not None)
            status = NodeStatus.from_dict(json.loads(json.dumps(slave.status().to_dict())))
            assert status.table_copies.address == describe(master.address)
            assert found(status) == [(Level.OK, None)]
        settings = attrs.evolve(settings, master_client=master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().table_copies.reason is not None)
            ((level, hint),) = found(slave.status())
            assert level is Level.NOTICE
            assert "--master-client" in hint
    refused = TableCopies(
        address="m:1", reason=None, hint=None, age_s=1.0, refused={"topics": "row 'T'"}
    )
    assert found(attrs.evolve(status, table_copies=refused)) == [(Level.NOTICE, None)]


def found(status):
    """Level and next step of what there is about tables."""
    return [
        (each.level, each.hint) for each in findings(status, Limits()) if each.subject == "tables"
    ]
