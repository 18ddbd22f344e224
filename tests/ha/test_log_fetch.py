"""Fetching ranges of a live master's log, to mend a slave's with."""

import pytest
import trio

import hastore
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.errors import ProtocolError, UnreachableError
from hastore.ha import log_fetch
from hastore.ha.log_fetch import fetch_range, fetch_source
from hastore.status import BrokerRole
from hastore.store.log_repair import plan_repair
from hastore.store.log_repair_plan import RepairAction
from hastore.wire.ha_frames import HEADER, REPORT
from tests.ha.harness import log_bytes, master_config, messages
from tests.store.fake_disk import FakeDisk


@pytest.fixture
async def master(tmp_path):
    config = master_config(tmp_path, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as running:
        for message in messages(500):
            await running.put(message)
        yield running


@pytest.mark.parametrize("start", [0, 1, 2, 3, 1_000, 70_000])
async def test_a_range_is_what_the_master_has(master, tmp_path, start):
    """From any offset on, across files, and never an acknowledgement of more."""
    end = master.commit_log.max_offset
    assert end > 2 * 65_536
    for stop in (start + 1, start + 66_000, end):
        data = await fetch_range(master.ha_address, start, stop, stop)
        assert data == log_bytes(tmp_path)[start:stop]


async def test_what_stands_behind_the_range_may_be_missing(master, tmp_path):
    """The master's heartbeat says that there is no more."""
    end = master.commit_log.max_offset
    data = await fetch_range(master.ha_address, end - 500, end - 100, end + 4_096)
    assert data == log_bytes(tmp_path)[end - 500 : end]


async def test_a_whole_plan_is_fetched(master, tmp_path):
    """Each damaged range, with 4 KiB on both sides where there are as many."""
    disk = FakeDisk()
    whole = log_bytes(tmp_path)
    for number in range(3):
        image = bytearray(whole[number * 65_536 : number * 65_536 + 65_536])
        if number == 1:
            image[5_000:5_100] = bytes(100)
        disk.put(f"/d/commitlog/{number * 65_536:020d}", bytes(image))
    plan = plan_repair(disk, "/d")
    assert [part.action for part in plan.parts] == [RepairAction.FILL]
    source = await fetch_source(master.ha_address, plan)
    mended = plan_repair(disk, "/d", source=source)
    assert [part.action for part in mended.parts] == [RepairAction.REPLACE]
    (part,) = plan.parts
    assert source.read(part.start, part.stop - part.start) == whole[part.start : part.stop]


async def test_nobody_there_is_told():
    """No port, or one that closes at once."""
    listener = await open_listener(("127.0.0.1", 0), "test")
    address = bound_address(listener)
    async with trio.open_nursery() as nursery:

        async def hang_up():
            sock, _ = await listener.accept()
            sock.close()

        nursery.start_soon(hang_up)
        with pytest.raises(UnreachableError, match="closed the connection before it sent offset 5"):
            await fetch_range(address, 5, 6, 6)
    listener.close()
    with pytest.raises(UnreachableError):
        await fetch_range(address, 5, 6, 6)


async def test_a_master_that_sends_something_else_is_refused(autojump_clock):
    """Frames from another place, and silence."""
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
            await fetch_range(address, 5_000, 6_000, 6_000)
        nursery.start_soon(serve, b"")
        with pytest.raises(UnreachableError, match="is silent"):
            await fetch_range(address, 7_000, 8_000, 8_000)
        nursery.cancel_scope.cancel()
    listener.close()
    assert reports[0] == 5_000
    assert set(reports[1:]) == {7_000}
    assert len(reports) > 4
    assert log_fetch.SILENCE_MAX_S == 20.0
