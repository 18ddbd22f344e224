"""Diverged logs are found, whatever their last bytes are, before any ack of them counts."""

from __future__ import annotations

import contextlib

import attrs
import pytest

import hastore
from hastore.errors import DiskError
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.ha_frames import encode_header
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import (
    FILE_SIZE,
    log_bytes,
    master_config,
    messages,
    raw_master,
    raw_slave,
    read_report,
    slave_config,
)
from tests.support.waiting import eventually

ASYNC = {"role": BrokerRole.ASYNC_MASTER}


async def history(directory, letter, *, count, last):
    """Write a master's log of small messages and a last one; return its bytes."""
    config = master_config(directory, **ASYNC, store={"append_prop_crc": False})
    async with hastore.open_master(config) as master:
        for _ in range(count):
            await master.put(hastore.Message("t", letter * 1000))
        await master.put(hastore.Message("t", last))
        end = master.max_offset
    return log_bytes(directory, end)


async def feed(sock, data, start=0):
    """Send bytes of a log as a master does."""
    for at in range(start, len(data), 32768):
        body = data[at : at + 32768]
        await sock.send(encode_header(at, len(body)) + body)


@contextlib.asynccontextmanager
async def slave_of(tmp_path, data):
    """Yield a slave that follows any listener at its master's port, with ``data`` as its log."""
    async with raw_master() as former:
        config = slave_config(tmp_path / "s", former.address)
        async with hastore.open_slave(config) as slave:
            sock = await former.accept()
            await read_report(sock)
            await feed(sock, data)
            await eventually(lambda: slave.max_offset == len(data))
            sock.close()
            former.listener.close()
            yield slave


@pytest.mark.parametrize("ends_in", ["a filler", "a body that both have"])
async def test_diverged_log_with_equal_last_bytes_is_found(tmp_path, ends_in):
    """Zeros after a BLANK, or part of a body that both have: the comparison starts at a record."""
    sizes = {"a filler": (40, 40_000), "a body that both have": (8, 50_000)}
    count, size = sizes[ends_in]
    old = await history(tmp_path / "old", b"O", count=count, last=b"same" * (size // 4))
    end = FILE_SIZE if ends_in == "a filler" else len(old) - 20_000
    async with slave_of(tmp_path, old[:end]) as slave:
        assert len(set(old[end - 4096 : end])) <= 4
        listen = slave.config.master
        await history(tmp_path / "m", b"N", count=count - 1, last=b"same" * (size // 4))
        store = {"append_prop_crc": False}
        config = master_config(tmp_path / "m", ha_listen=listen, store=store)
        async with hastore.open_master(config) as master:
            await eventually(lambda: slave.status().state == "diverged")
            assert "not the same log" in slave.status().master_link.reason
            assert slave.max_offset == end
            # The slave knows before the master has read its last word.
            await eventually(lambda: not master.ha_service.is_slave_ok(master.max_offset))
            result = await master.put(messages(1)[0])
            assert result.status is PutMessageStatus.SLAVE_NOT_AVAILABLE


async def test_first_report_of_a_diverged_slave_releases_no_put(tmp_path):
    """A former master reports an offset of its own log, which lacks the waiting puts."""
    old = await history(tmp_path / "b", b"O", count=40, last=b"")
    ha = attrs.evolve(QUICK, slave_timeout_ms=500)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as slow,
    ):
        await slow.report(1)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        requests = [master.submit(hastore.Message("t", b"N" * 1000)) for _ in range(38)]
        assert 0 < len(old) - master.max_offset < 8192
        async with hastore.open_slave(slave_config(tmp_path / "b", master.ha_address)) as diverged:
            for request in requests:
                await request.wait()
            assert {r.status for r in requests} == {PutMessageStatus.FLUSH_SLAVE_TIMEOUT}
            assert master.status().push2_slave_max_offset <= 1
            await eventually(lambda: diverged.status().state == "diverged")


async def test_single_corrupted_frame_does_not_mean_diverged(tmp_path):
    """One first frame at a wrong offset ends only its link; two in a row mean another log."""
    data = await history(tmp_path / "old", b"O", count=5, last=b"")
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address)
        async with hastore.open_slave(config) as slave:
            for lies in (False, True, False, True, True):
                sock = await master.accept()
                start = await read_report(sock)
                if start <= 1:
                    await feed(sock, data)
                else:
                    body = data[start:]
                    await sock.send(encode_header(start ^ (lies << 12), len(body)) + body)
                if not lies:
                    await eventually(lambda: slave.status().state == "streaming")
                    assert slave.status().master_link.reason is None
                with contextlib.suppress(ConnectionError):  # the slave leaves bytes unread
                    while lies and await read_report(sock) is not None:
                        pass
                sock.close()
            await eventually(lambda: slave.status().state == "diverged")
            assert slave.max_offset == len(data)


async def test_bytes_that_expire_during_the_comparison_raise_disk_error(tmp_path):
    """Nothing is left to compare with, and nothing hangs."""
    async with hastore.open_master(master_config(tmp_path / "m", **ASYNC)) as master:
        while master.max_offset <= FILE_SIZE:
            await master.put(hastore.Message("t", b"x" * 500))
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            appender = slave.ha_client._appender
            appender.reset()
            assert appender.position < FILE_SIZE
            frame = memoryview(log_bytes(tmp_path / "m"))[appender.position : FILE_SIZE]
            slave.commit_log.mapped_file_queue.take_first()
            with pytest.raises(DiskError, match="have expired"):
                appender.compare(appender.position, frame)
