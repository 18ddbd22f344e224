"""Fetching ranges of a live master's log, to repair a slave's."""

import pytest
import trio

import hastore
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.config import HAConfig
from hastore.errors import LogDamagedError, ProtocolError, UnreachableError
from hastore.ha import log_fetch
from hastore.ha.log_fetch import fetch_range
from hastore.status import BrokerRole
from hastore.wire.ha_frames import HEADER, REPORT
from tests.support.nodes.harness import log_bytes, master_config, messages


@pytest.fixture
async def master(tmp_path):
    config = master_config(tmp_path, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as running:
        for message in messages(500):
            await running.put(message)
        yield running


@pytest.mark.parametrize("start", [0, 1, 2, 3, 1_000, 70_000])
async def test_fetched_range_equals_the_masters_bytes(master, tmp_path, start):
    """From any offset on, and across files."""
    end = master.commit_log.max_offset
    assert end > 2 * 65_536
    for stop in (start + 1, start + 66_000, end):
        data = await fetch_range(master.ha_address, start, stop - start)
        assert data == log_bytes(tmp_path)[start:stop]


async def test_range_beyond_the_masters_end_raises_log_damaged(tmp_path):
    """The master's heartbeats show where its log ends."""
    config = master_config(tmp_path, ha=HAConfig(ha_send_heartbeat_interval_ms=50))
    async with hastore.open_master(config) as master:
        for message in messages(50):
            master.submit(message)
        end = master.max_offset
        assert (
            await fetch_range(master.ha_address, end - 500, 500)
            == log_bytes(tmp_path)[end - 500 : end]
        )
        with pytest.raises(LogDamagedError, match=f"ends before offset {end + 1}") as caught:
            await fetch_range(master.ha_address, end - 100, 101)
        assert caught.value.physic_offset == end


async def test_no_listener_or_a_closed_link_raises_unreachable():
    """One listener closes the connection at once; then there is none."""
    listener = await open_listener(("127.0.0.1", 0), "test")
    address = bound_address(listener)
    async with trio.open_nursery() as nursery:

        async def hang_up():
            sock, _ = await listener.accept()
            sock.close()

        nursery.start_soon(hang_up)
        with pytest.raises(UnreachableError, match="closed the connection before it sent offset 5"):
            await fetch_range(address, 5, 1)
    listener.close()
    with pytest.raises(UnreachableError):
        await fetch_range(address, 5, 1)


async def test_frames_at_another_offset_and_silence_raise(autojump_clock):
    """During the silence the fetch repeats its report."""
    listener = await open_listener(("127.0.0.1", 0), "test")
    address = bound_address(listener)
    reports = []

    async def serve(reply):
        sock, _ = await listener.accept()
        with sock:
            reports.append(REPORT.unpack(await sock.recv(8))[0])
            if reply:
                await sock.send(reply)
                await trio.sleep_forever()
            while data := await sock.recv(8):
                reports.append(REPORT.unpack(data)[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, HEADER.pack(1_000, 0))
        with pytest.raises(ProtocolError, match="sends from 1000, asked for 5000"):
            await fetch_range(address, 5_000, 1000)
        nursery.start_soon(serve, b"")
        with pytest.raises(UnreachableError, match="is silent"):
            await fetch_range(address, 7_000, 1000)
        nursery.cancel_scope.cancel()
    listener.close()
    assert reports[0] == 5_000
    assert set(reports[1:]) == {7_000}
    assert len(reports) > 4
    assert log_fetch.SILENCE_MAX_S == 20.0
