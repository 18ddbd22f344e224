"""What consumers read from a running node: confirmed messages only, and the same on a slave."""

from pathlib import Path

import trio
import trio.testing

import hastore
from hastore.config import HAConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType, GetMessageStatus, PutMessageStatus
from hastore.store.record.message_filter import TagFilter
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.harness import master_config, messages, raw_slave, slave_config
from tests.support.store.store_reads import get_message
from tests.support.waiting import eventually

ASYNC = BrokerRole.ASYNC_MASTER


def queue_files(path: Path) -> dict[str, bytes]:
    """The contents of all consume queue files, by path."""
    root = path / "consumequeue"
    return {
        str(file.relative_to(root)): file.read_bytes()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


def seen(node, topic="orders", queues=4) -> int:
    """The number of messages that consumers can read."""
    return sum(node.message_store.max_offset_in_queue(topic, queue) for queue in range(queues))


async def test_a_message_is_soon_readable_by_queue_tag_and_key(tmp_path):
    """It is read in the master's own process."""
    async with hastore.open_master(master_config(tmp_path, role=ASYNC)) as master:
        message = Message("orders", b"one", properties={"TAGS": "red", "KEYS": "k"})
        result = await master.put(message)
        await eventually(lambda: seen(master) == 1)
        store = master.message_store
        found = get_message(store, "orders", 0, 0, message_filter=TagFilter.parse("red"))
        assert found.status is GetMessageStatus.FOUND
        assert found.ranges[0][0] == result.physic_offset
        assert store.query_message("orders", "k") == list(found.records)


async def test_a_slave_builds_the_same_queues(tmp_path):
    """Its consume queues have the same bytes as the master's, over file ends and batches."""
    async with hastore.open_master(master_config(tmp_path / "m", role=ASYNC)) as master:
        settings = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            for message in messages(100):
                await master.put(message)
            await master.put_batch([Message("batch", bytes(size)) for size in range(9)])
            await eventually(lambda: seen(slave) == seen(master) == 100)
            await eventually(lambda: seen(slave, "batch") == 9)
            for refused in (
                slave.submit(messages(1)[0]),
                slave.submit_batch(messages(2)),
                slave.submit_batch([]),
            ):
                assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert queue_files(tmp_path / "m") == queue_files(tmp_path / "s")


async def test_a_message_is_invisible_until_a_slave_acknowledges_it(tmp_path):
    """A SYNC_MASTER's consumers wait for the acknowledgement, as its producers do."""
    async with hastore.open_master(master_config(tmp_path)) as master, raw_slave(master) as peer:
        await peer.report(0)
        await eventually(lambda: master.ha_service.ack_table.connected == 1)
        request = master.submit(Message("orders", b"unacknowledged"))
        body = b""
        while not body:  # a heartbeat comes first
            _, body = await peer.frame()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert seen(master) == 0
        await peer.report(len(body))
        assert await request.wait() is PutMessageStatus.PUT_OK
        await eventually(lambda: seen(master) == 1)


async def test_the_checkpoint_has_the_confirm_offset(tmp_path):
    """Readers that only have the files, such as a Spark stream, read the log up to it."""

    def confirmed():
        return StoreCheckpoint.open(real_env().disk, str(tmp_path)).confirm_offset

    async with hastore.open_master(master_config(tmp_path)) as master, raw_slave(master) as peer:
        await peer.report(0)
        await eventually(lambda: master.ha_service.ack_table.connected == 1)
        first = master.submit(Message("orders", b"acknowledged"))
        end = master.max_offset
        await peer.frame()
        await peer.report(end)
        assert await first.wait() is PutMessageStatus.PUT_OK
        master.submit(Message("orders", b"unacknowledged"))
        await eventually(lambda: confirmed() == end)
        assert master.max_offset > end
    assert confirmed() <= master.max_offset


async def test_read_uncommitted_shows_unacknowledged_messages(tmp_path):
    """The option restores RocketMQ 4.9's visibility."""
    config = master_config(tmp_path, store={"read_uncommitted": True})
    async with hastore.open_master(config) as master, raw_slave(master) as peer:
        await peer.report(0)
        await eventually(lambda: master.ha_service.ack_table.connected == 1)
        request = master.submit(Message("orders", b"unacknowledged"))
        await eventually(lambda: seen(master) == 1)
        assert master.status().push2_slave_max_offset == 0
        await peer.report(master.max_offset)
        assert await request.wait() is PutMessageStatus.PUT_OK


async def test_without_a_slave_the_master_confirms_alone(tmp_path, autojump_clock):
    """After a start it waits first, although the put was answered with SLAVE_NOT_AVAILABLE."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    config = master_config(tmp_path, ha=HAConfig(slave_timeout_ms=2_000))
    async with hastore.open_master(config, env=RealFiles().env) as master:
        result = await master.put(Message("orders", b"alone"))
        assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert seen(master) == 0
        await eventually(lambda: seen(master) == 1, every_s=0.5)


async def test_a_departed_slave_does_not_block_readers(tmp_path):
    """The master alone confirms what the slave had not acknowledged."""
    config = master_config(tmp_path, ha=HAConfig(slave_timeout_ms=50))
    async with hastore.open_master(config) as master:
        async with raw_slave(master) as peer:
            await peer.report(0)
            await eventually(lambda: master.ha_service.ack_table.connected == 1)
            request = master.submit(Message("orders", b"left alone"))
            assert await request.wait() is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
            assert seen(master) == 0
        await eventually(lambda: seen(master) == 1)


async def test_queues_survive_a_clean_stop_and_are_rebuilt_after_a_kill(tmp_path):
    """For the kill the queue files are deleted; every message is found again."""
    for throw_away in (False, True):
        async with hastore.open_master(master_config(tmp_path, role=ASYNC)) as master:
            before = seen(master)
            for message in messages(25):
                await master.put(message)
            await eventually(lambda before=before: seen(master) == before + 25)
        if throw_away:
            for file in (tmp_path / "consumequeue").rglob("0*"):
                if file.is_file():
                    file.unlink()
            (tmp_path / "abort").write_text("1")
    async with hastore.open_master(master_config(tmp_path, role=ASYNC)) as master:
        await eventually(lambda: seen(master) == 50)
        result = await master.put(Message("orders", b"next", queue_id=1))
        assert result.queue_offset == 12


async def test_under_sync_flush_only_flushed_messages_are_visible(tmp_path):
    """Dispatch stays at or below the flushed offset."""
    config = master_config(
        tmp_path, role=ASYNC, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}
    )
    async with hastore.open_master(config) as master:
        for message in messages(20):
            await master.put(message)
        await eventually(lambda: seen(master) == 20)
        assert master.reput_message_service.reput_offset <= master.commit_log.flushed_offset
