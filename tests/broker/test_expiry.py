"""Expiry in whole nodes: remaining data is complete, and both ends report a slave cut off."""

from functools import partial

import attrs
import pytest
import trio

import hastore
from hastore.broker.expiry.expiry import make_expiry
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole, GetMessageStatus
from hastore.store.log.cleaning import Reason
from hastore.store.record.message_codec import decode
from tests.support.env.fake_env import FakeClock, FakeOffload
from tests.support.env.scripted_disk import ScriptedDisk
from tests.support.nodes.clocks import a_clock, agreeing
from tests.support.nodes.harness import FILE_SIZE, master_config, messages, raw_slave, slave_config
from tests.support.store.store_reads import get_message
from tests.support.waiting import eventually

DAY_MS = 86_400_000
STORE = {
    "delete_when": ";".join(map(str, range(24))),
    "delete_files_interval_ms": 0,
    "destroy_mapped_file_interval_forcibly_ms": 60_000,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100,
    "max_index_num": 200,
}


def config_of(path, **changes):
    store = STORE | changes.pop("store", {})
    return master_config(path, role=BrokerRole.ASYNC_MASTER, store=store, **changes)


def expiry_of(master, *, days=4):
    """The expiry services of a node whose clock is some days ahead."""
    env = master.env
    clock = FakeClock(env.wall_clock.now_ms() + days * DAY_MS)
    env = attrs.evolve(env, wall_clock=clock)
    expiry = make_expiry(
        env,
        master.message_store,
        master.reput_message_service,
        clock=a_clock(env, master.commit_log),
        ha_service=master.ha_service,
        on_disk_full=master.put_message.set_disk_full,
    )
    return expiry.clean_commit_log_service, expiry.clean_consume_queue_service


async def fill(master, files):
    """Put messages until the log has ``files`` files, all flushed and dispatched."""
    while master.max_offset < (files - 1) * FILE_SIZE + 1:
        for message in messages(20):
            assert (await master.put(message)).ok
    await master.flush_manager.flush_all()
    await eventually(lambda: not master.reput_message_service.behind)


async def test_queues_and_index_expire_with_the_log(tmp_path):
    """After a round the remaining messages, and no others, are found by offset and by key."""
    async with hastore.open_master(config_of(tmp_path)) as master:
        await fill(master, 6)
        store = master.message_store
        await master.dispatching.finish()
        clean_log, clean_queues = expiry_of(master)
        queue_files = len(list((tmp_path / "consumequeue" / "orders" / "0").iterdir()))
        index_files = len(list((tmp_path / "index").iterdir()))
        assert await clean_log.clean() == 5
        assert clean_log.last_decision.stopped_because is Reason.LAST_FILE
        low = store.commit_log.min_offset
        assert low == 5 * FILE_SIZE
        early = get_message(store, "orders", 0, 0)
        assert all(offset >= low for offset, _ in early.ranges)
        assert await clean_queues.clean() > 0
        for queue_id in range(4):
            first = store.min_offset_in_queue("orders", queue_id)
            end = store.max_offset_in_queue("orders", queue_id)
            assert first > 0
            found = get_message(store, "orders", queue_id, 0)
            assert found.status is GetMessageStatus.OFFSET_TOO_SMALL
            assert found.next_begin_offset == first
            found = get_message(store, "orders", queue_id, first, max_count=1000)
            assert found.next_begin_offset == end
            assert all(offset >= low for offset, _ in found.ranges)
            assert len(found.ranges) == end - first
        assert len(list((tmp_path / "consumequeue" / "orders" / "0").iterdir())) < queue_files
        assert len(list((tmp_path / "index").iterdir())) < index_files
        records = store.query_message("orders", "k19")
        assert records
        assert all(decode(record).physic_offset >= low for record in records)
        end = master.max_offset
    async with hastore.open_master(config_of(tmp_path)) as master:
        assert master.commit_log.min_offset == low
        assert master.max_offset == end
        assert (await master.put(Message("orders", b"x"))).physic_offset == end


async def test_a_full_disk_refuses_puts_and_serves_reads(tmp_path, autojump_clock):
    """Above 90 % puts are SERVICE_NOT_AVAILABLE with the reason, until the usage has dropped."""
    env = attrs.evolve(real_env(), offload=FakeOffload())
    async with hastore.open_master(config_of(tmp_path), env=env) as master:
        result = await master.put(Message("orders", b"x"))
        clean_log, _ = expiry_of(master, days=0)
        full = ScriptedDisk(env.disk, used=0.95)
        clean_log.env = attrs.evolve(clean_log.env, disk=full)
        await clean_log.clean()
        refused = await master.put(Message("orders", b"x"))
        assert refused.status.value == "SERVICE_NOT_AVAILABLE"
        assert "disk is 95 % full" in refused.reason
        size = result.next_offset - result.physic_offset
        assert decode(master.commit_log.read(result.physic_offset, size)).body == b"x"
        full.used = 0.5
        await clean_log.clean()
        assert (await master.put(Message("orders", b"x"))).ok


async def test_a_slave_holds_its_files_until_the_limit_then_is_refused(tmp_path):
    """Its link is closed; the refusal names both offsets and what to do."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        await fill(master, 3)
        async with raw_slave(master) as peer:
            await peer.report(100)
            await eventually(master.ha_service.holds)
            clean_log, _ = expiry_of(master)
            assert await clean_log.clean() == 0
            assert clean_log.last_decision.stopped_because is Reason.HELD
            assert "slave 127.0.0.1" in clean_log.last_decision.holders[0]
            assert await clean_log.clean() == 0
            clean_log.rules = attrs.evolve(clean_log.rules, hold_ms=1)
            await trio.sleep(0.002)
            assert await clean_log.clean() == 1
            await peer.closed_by_master()
        (refusal,) = master.status().refused
        assert f"has deleted its files before {FILE_SIZE}" in refusal.reason
        assert "from 100 on" in refusal.reason
        assert "empty directory" in refusal.hint
        assert refusal.reported_offset == 100
        await eventually(lambda: not master.status().slaves)
        assert await clean_log.clean() == 1


async def test_a_send_holds_its_file_until_the_file_is_forced_out(tmp_path):
    """The slave reads nothing; its link is closed after the file is forced out."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        for message in messages(200, size=60_000):
            assert (await master.put(message)).ok
        await master.flush_manager.flush_all()
        await eventually(lambda: not master.reput_message_service.behind)
        async with raw_slave(master) as peer:
            await peer.report(1)  # and reads nothing: the socket fills up
            queue = master.commit_log.mapped_file_queue
            await eventually(lambda: any(file.holders for file in queue.files))
            held = next(file for file in queue.files if file.holders)
            clean_log, _ = expiry_of(master)
            clean_log.rules = attrs.evolve(clean_log.rules, hold_ms=200)

            async def is_forced_out():
                await clean_log.clean()
                return held not in queue.files

            await eventually(is_forced_out, every_s=0.05)
            await eventually(lambda: not held.holders)
            await peer.closed_by_master()
        assert (await master.put(Message("orders", b"x"))).ok
        assert "this slave needs the log from" in master.status().refused[0].reason


async def test_a_slave_that_returns_too_late_fails_with_a_hint(tmp_path):
    """Both ends report the reason; the slave stops connecting and keeps its log."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        await fill(master, 1)
        slave_settings = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(slave_settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            end = slave.max_offset
        await fill(master, 4)
        clean_log, _ = expiry_of(master)
        assert await clean_log.clean() == 3
        async with hastore.open_slave(slave_settings) as slave:
            await eventually(lambda: slave.status().state == "failed")
            link = slave.status().master_link
            assert f"the master deleted what this slave needs: from {end} on" in link.reason
            assert f"begins at {3 * FILE_SIZE}" in link.reason
            assert "empty" in link.hint
            assert slave.max_offset == end
        assert f"oldest byte {3 * FILE_SIZE}" in master.status().refused[0].reason


@pytest.mark.parametrize("behind", [1, 3_000])
async def test_a_slave_near_the_masters_min_offset_still_connects(tmp_path, behind):
    """The slave's end remains on the master; only bytes to compare before it are deleted."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        await fill(master, 1)
        while master.max_offset < FILE_SIZE + behind:
            assert (await master.put(Message("orders", b"x" * 300))).ok
        slave_settings = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(slave_settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
        await fill(master, 3)
        clean_log, _ = expiry_of(master)
        clean_log.rules = attrs.evolve(clean_log.rules, batch_max=1)
        assert await clean_log.clean() == 1
        async with hastore.open_slave(slave_settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            assert slave.status().master_link.state == "streaming"


async def test_a_slave_expires_its_own_files(tmp_path):
    """Each node uses its own clock and disk, and the link is not affected."""
    async with hastore.open_master(config_of(tmp_path / "m")) as master:
        await fill(master, 4)
        settings = slave_config(tmp_path / "s", master.ha_address, store=STORE)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            await slave.flush_manager.flush_all()
            await eventually(lambda: not slave.reput_message_service.behind)
            clock = FakeClock(slave.env.wall_clock.now_ms() + 4 * DAY_MS)
            env = attrs.evolve(slave.env, wall_clock=clock)
            expiry = make_expiry(
                env,
                slave.message_store,
                slave.reput_message_service,
                clock=a_clock(env, slave.commit_log),
            )
            assert await expiry.clean_commit_log_service.clean() == 3
            assert slave.commit_log.min_offset == 3 * FILE_SIZE
            assert (await master.put(Message("orders", b"x"))).ok
            await eventually(lambda: slave.max_offset == master.max_offset)
        async with hastore.open_slave(settings) as slave:
            assert (await master.put(Message("orders", b"x"))).ok
            await eventually(lambda: slave.max_offset == master.max_offset)


async def test_the_expiry_services_run_in_a_node(tmp_path, autojump_clock):
    """The first round is a minute after the start and includes the queues."""
    env = attrs.evolve(real_env(), offload=FakeOffload())
    async with hastore.open_master(config_of(tmp_path), env=env) as master:
        await fill(master, 3)
        later = attrs.evolve(env, wall_clock=FakeClock(env.wall_clock.now_ms() + 4 * DAY_MS))
        others = partial(agreeing, later.wall_clock)
        data_dir = str(tmp_path / "clock")
        expiry = make_expiry(
            later,
            master.message_store,
            master.reput_message_service,
            clock=a_clock(later, master.commit_log, data_dir=data_dir, others=others),
            ha_service=master.ha_service,
            on_disk_full=master.put_message.set_disk_full,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expiry.run)
            await trio.sleep(70)
            assert master.commit_log.min_offset == 2 * FILE_SIZE
            assert master.message_store.min_offset_in_queue("orders", 0) > 0
            nursery.cancel_scope.cancel()
