"""``--from last-file``: a slave that began in the middle of the log, across restarts."""

from __future__ import annotations

import shutil

import pytest

import hastore
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.ha_frames import encode_header
from tests.support.nodes.harness import (
    FILE_SIZE,
    log_bytes,
    master_config,
    messages,
    raw_master,
    read_report,
    slave_config,
)
from tests.support.store.store_reads import get_message
from tests.support.waiting import eventually

LAST_FILE = {"slave_from": hastore.SlaveStart.LAST_FILE}


def master_at(directory, address=None, **changes):
    """Open a master, at an address that its slave already knows."""
    config = {} if address is None else {"ha_listen": address}
    return hastore.open_master(master_config(directory, **config, **changes))


async def put_until(master, offset):
    """Put messages until the log is at least this long."""
    while master.max_offset < offset:
        for message in messages(4):
            await master.put(message)


async def in_step(slave, master):
    """Wait until the slave has the whole log and has dispatched it."""
    await eventually(lambda: slave.max_offset == master.max_offset)
    reput = slave.reput_message_service
    await eventually(lambda: reput.committed_offset == slave.max_offset)


def same_from(min_offset, one, other, end):
    """Return whether both directories hold the same bytes from an offset on."""
    ours = b"".join(
        file.read_bytes()
        for file in sorted((one / "commitlog").iterdir())
        if int(file.name) >= min_offset
    )
    return ours[: end - min_offset] == log_bytes(other, end - min_offset)


def queue_units(node):
    """For each queue, return its first and end offset and its messages' physical offsets."""
    units = {}
    for queue_id in range(4):
        offset = node.message_store.min_offset_in_queue("orders", queue_id)
        end = node.message_store.max_offset_in_queue("orders", queue_id)
        limits = {"max_count": 10_000, "max_size": 1 << 30}
        result = get_message(node.message_store, "orders", queue_id, offset, **limits)
        units[queue_id] = offset, end, [at for at, _ in result.ranges]
    return units


async def test_slave_resumes_at_its_end_after_its_master_restarts(tmp_path):
    """The master rolls files meanwhile; the slave copies every new byte and no older file."""
    async with master_at(tmp_path / "m", role=BrokerRole.ASYNC_MASTER) as master:
        await put_until(master, 3 * FILE_SIZE + 20_000)
        address = master.ha_address
    async with hastore.open_slave(slave_config(tmp_path / "s", address, **LAST_FILE)) as slave:
        for files in (4, 6, 7):
            await eventually(lambda: slave.status().state != "streaming")
            async with master_at(tmp_path / "m", address) as master:
                await in_step(slave, master)
                await put_until(master, files * FILE_SIZE + 10_000)
                await in_step(slave, master)
                result = await master.put(messages(1)[0])
                assert result.status is PutMessageStatus.PUT_OK
                await in_step(slave, master)
                assert slave.status().min_offset == 3 * FILE_SIZE
                assert slave.status().master_link.reason is None
                end = master.max_offset
    assert same_from(3 * FILE_SIZE, tmp_path / "m", tmp_path / "s", end)


@pytest.mark.parametrize("into_file", [0, 300, 20_000])
async def test_slave_resumes_at_its_end_after_its_own_restart(tmp_path, into_file):
    """``--from`` is for a slave without a log: its second start skips no file.

    Its last file holds no message, one message, or more than it compares.
    """
    async with master_at(tmp_path / "m", role=BrokerRole.ASYNC_MASTER) as master:
        await put_until(master, 2 * FILE_SIZE)
        while master.max_offset % FILE_SIZE < into_file:
            await master.put(messages(1)[0])
        config = slave_config(tmp_path / "s", master.ha_address, **LAST_FILE)
        async with hastore.open_slave(config) as slave:
            await in_step(slave, master)
            begin = slave.status().min_offset
        await put_until(master, 5 * FILE_SIZE + 300)
        async with hastore.open_slave(config) as slave:
            await in_step(slave, master)
            assert slave.status().min_offset == begin
            assert slave.status().master_link.connections == 1
            for queue_id, (first, end, offsets) in queue_units(slave).items():
                whole = queue_units(master)[queue_id]
                assert end == whole[1]
                assert len(offsets) == end - first
                assert offsets == whole[2][-len(offsets) :]
        end = master.max_offset
    assert same_from(begin, tmp_path / "m", tmp_path / "s", end)


async def test_empty_slave_starts_at_the_last_file_of_its_second_start(tmp_path):
    """The master was empty, restarted, and rolled files before the slave came back."""
    async with master_at(tmp_path / "m", role=BrokerRole.ASYNC_MASTER) as master:
        address = master.ha_address
        config = slave_config(tmp_path / "s", address, **LAST_FILE)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.max_offset == 0
    async with master_at(tmp_path / "m", address, role=BrokerRole.ASYNC_MASTER) as master:
        await put_until(master, 2 * FILE_SIZE + 5_000)
        async with hastore.open_slave(config) as slave:
            await in_step(slave, master)
            assert slave.status().min_offset == 2 * FILE_SIZE


async def test_slave_can_be_promoted(tmp_path):
    """Queue offsets continue although the beginnings of the queues are missing."""
    async with master_at(tmp_path / "m", role=BrokerRole.ASYNC_MASTER) as master:
        await put_until(master, 2 * FILE_SIZE + 5_000)
        config = slave_config(tmp_path / "s", master.ha_address, **LAST_FILE)
        async with hastore.open_slave(config) as slave:
            await in_step(slave, master)
        units = queue_units(master)
    async with master_at(tmp_path / "s", role=BrokerRole.ASYNC_MASTER) as promoted:
        for message in messages(4):
            result = await promoted.put(message)
            assert result.queue_offset == units[message.queue_id][1]
    shutil.rmtree(tmp_path / "m")


async def test_stock_master_that_restarts_is_asked_for_the_next_offset(tmp_path):
    """0 asks a stock master for its last file; a slave with a log never sends it again."""
    async with master_at(tmp_path / "m", role=BrokerRole.ASYNC_MASTER) as real:
        await put_until(real, 2 * FILE_SIZE + 9_000)
        log, begin = log_bytes(tmp_path / "m", real.max_offset), 2 * FILE_SIZE
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address, **LAST_FILE)
        async with hastore.open_slave(config) as slave:
            sock = await master.accept()
            assert await read_report(sock) == 2
            await sock.send(encode_header(2, 0))
            sock.close()
            sock = await master.accept()
            assert await read_report(sock) == 0
            half = begin + 5_000
            await sock.send(encode_header(begin, half - begin) + log[begin:half])
            await eventually(lambda: slave.max_offset == half)
            sock.close()
            sock = await master.accept()
            first = await read_report(sock)
            assert begin <= first < half
            await sock.send(encode_header(first, len(log) - first) + log[first:])
            await eventually(lambda: slave.max_offset == len(log))
            sock.close()
        async with hastore.open_slave(config) as slave:
            sock = await master.accept()
            assert begin <= await read_report(sock) < len(log)
            assert slave.status().min_offset == begin
            sock.close()
    assert log_bytes(tmp_path / "s", len(log) - begin) == log[begin:]
