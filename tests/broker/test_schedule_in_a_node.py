"""Delayed messages in whole nodes: delivery, reads, restarts and promotion."""

import attrs
import trio

import hastore
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.store.record.message_codec import decode
from hastore.store.record.message_filter import TagFilter
from tests.support.env.fake_env import FakeOffload, TrioClock
from tests.support.nodes.harness import master_config, slave_config
from tests.support.store.store_reads import get_message
from tests.support.waiting import eventually

STORE = {"message_delay_level": "1s 5s 1h", "max_hash_slot_num": 100, "max_index_num": 1000}


def config_of(path, **changes):
    return master_config(path, role=BrokerRole.ASYNC_MASTER, store=STORE, **changes)


def quick_env():
    """An environment without threads, whose wall clock follows virtual time."""
    return attrs.evolve(real_env(), offload=FakeOffload(), wall_clock=TrioClock())


def delayed(name, level):
    properties = {"UNIQ_KEY": name, "KEYS": "k", "TAGS": "red", "DELAY": str(level)}
    return Message("orders", name.encode(), queue_id=2, properties=properties)


def bodies(node):
    """What a consumer with a tag filter reads from the topic; delivered messages must match it."""
    store = node.message_store
    found = get_message(
        store, "orders", 2, 0, max_count=1000, message_filter=TagFilter.parse("red")
    )
    return [decode(record).body.decode() for record in found.records or ()]


async def test_a_delayed_message_is_readable_once_it_is_due(tmp_path, autojump_clock):
    """It is found by queue with its tag and by key, but not before."""
    async with hastore.open_master(config_of(tmp_path), env=quick_env()) as master:
        await trio.sleep(10)
        assert (await master.put(delayed("five", 2))).ok
        assert (await master.put(delayed("one", 1))).ok
        await trio.sleep(0.9)
        assert bodies(master) == []
        await trio.sleep(0.2)
        assert bodies(master) == ["one"]
        await trio.sleep(4)
        assert bodies(master) == ["one", "five"]
        (record,) = master.message_store.query_message("orders", "five")
        assert decode(record).body == b"five"


async def test_many_messages_of_a_level_are_all_delivered_in_order(tmp_path, autojump_clock):
    """They span several files, and a put at a file's end has to wait."""
    names = [f"m{n}" for n in range(900)]
    async with hastore.open_master(config_of(tmp_path), env=quick_env()) as master:
        requests = [master.submit(delayed(name, 1)) for name in names]
        for request in requests:
            assert (await request.wait()).stored
        await trio.sleep(5)
        assert bodies(master) == names
        assert master.status().mapped_files > 3


async def test_a_restart_delivers_the_rest(tmp_path, autojump_clock):
    """Messages that became due meanwhile come at once; delivered ones do not come again."""
    env = quick_env()
    async with hastore.open_master(config_of(tmp_path), env=env) as master:
        await trio.sleep(1)
        for name, level in (("one", 1), ("five", 2)):
            assert (await master.put(delayed(name, level))).ok
        await trio.sleep(2)
    await trio.sleep(60)
    async with hastore.open_master(config_of(tmp_path), env=env) as master:
        await trio.sleep(1)
        assert bodies(master) == ["one", "five"]
        service = master.schedule_message_service
        assert service.delivered == 1
        assert {1: (1, 1), 2: (1, 1)}.items() <= service.progress().items()


async def test_a_promoted_slave_delivers_only_undelivered_messages(tmp_path):
    """It has no stored offsets, but the index shows what its master had delivered."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        settings = slave_config(tmp_path / "s", master.ha_address, store=STORE)
        async with hastore.open_slave(settings) as slave:
            for name, level in (("a", 1), ("b", 1), ("later", 2), ("much later", 3)):
                assert (await master.put(delayed(name, level))).ok
            await eventually(lambda: bodies(slave) == ["a", "b"])
            await eventually(lambda: slave.max_offset == master.max_offset)
            assert bodies(slave) == ["a", "b"]
    assert not (tmp_path / "s" / "config" / "delayOffset.json").exists()
    async with hastore.open_master(config_of(tmp_path / "s")) as master:
        await eventually(lambda: bodies(master) == ["a", "b", "later"])
        await trio.sleep(0.2)
        assert bodies(master) == ["a", "b", "later"]
    assert (tmp_path / "s" / "config" / "delayOffset.json").exists()
