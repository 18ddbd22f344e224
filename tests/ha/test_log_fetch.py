"""Fetching ranges of a live master's log, to repair a slave's."""

import random

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.config import HAConfig
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import DeposedMasterError, LogDamagedError, ProtocolError, UnreachableError
from hastore.ha import log_fetch
from hastore.ha.log_fetch import GroupLogReader, fetch_range
from hastore.status import BrokerRole
from hastore.wire.ha_frames import HEADER, REPORT
from tests.support.nodes.group import group_master
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


# -- of a replica group --------------------------------------------------------------------------

LOG = bytes(range(251)) * 400  # 100,400 bytes
EPOCHS = ((1, 0), (3, 50_000), (4, 90_000))


def reader(*epochs, seen_epoch=4, seed=1):
    history = EpochHistory(tuple(EpochEntry(*each) for each in epochs or EPOCHS))
    return GroupLogReader(epochs=history, seen_epoch=seen_epoch, randomness=random.Random(seed))


@pytest.mark.parametrize("start", [0, 1, 2, 3, 1_000, 49_999, 70_000])
async def test_a_range_of_a_groups_log_is_fetched_over_autoswitch(tmp_path, start):
    """From any offset on, across files and epochs; no node of the set is disturbed."""
    members = {1, 2}
    async with group_master(
        tmp_path, log=LOG, epochs=EPOCHS, members=members, file_size=65_536
    ) as master:
        for stop in (start + 1, start + 30_000, len(LOG)):
            data = await fetch_range(master.address, start, stop - start, reader=reader())
            assert data == LOG[start:stop]
        assert master.group.accepted == members
        assert not [row for row in master.group.acks if row.node_id not in {1, 2, 3}]


async def test_two_fetches_at_once_do_not_take_each_others_place(tmp_path):
    """Each has a node id of its own."""
    async with group_master(tmp_path, log=LOG, epochs=EPOCHS, file_size=65_536) as master:
        fetched = []

        async def fetch(seed):
            data = await fetch_range(master.address, 0, len(LOG), reader=reader(seed=seed))
            fetched.append(data)

        async with trio.open_nursery() as nursery:
            for seed in range(3):
                nursery.start_soon(fetch, seed)
    assert fetched == [LOG] * 3


@pytest.mark.parametrize(
    ("epochs", "stop", "seen_epoch", "message"),
    [
        (EPOCHS, len(LOG) + 1, 4, "ends before offset 100401"),
        (((1, 0), (2, 50_000)), 60_000, 4, "is another one from 50000 on: its epochs are 1-0, 3-"),
        (((2, 10),), 60_000, 4, "is another one from 0 on"),
        ((), 60_000, 4, "is another one from 0 on"),
        (EPOCHS, 60_000, 5, "the master is in epoch 4, and this node has seen epoch 5"),
    ],
)
async def test_bytes_of_another_log_are_not_fetched(tmp_path, epochs, stop, seen_epoch, message):
    """The epochs of both logs say up to where they are the same."""
    who = reader(*epochs, seen_epoch=seen_epoch)
    if not epochs:
        who = attrs.evolve(who, epochs=EpochHistory())
    async with group_master(tmp_path, log=LOG, epochs=EPOCHS, file_size=65_536) as master:
        with pytest.raises((LogDamagedError, DeposedMasterError), match=message):
            await fetch_range(master.address, 40_000, stop - 40_000, reader=who)


async def test_the_part_before_two_logs_differ_is_fetched(tmp_path):
    """A node that is to cut its end may repair what is before that."""
    who = reader((1, 0), (2, 50_000))
    async with group_master(tmp_path, log=LOG, epochs=EPOCHS, file_size=65_536) as master:
        data = await fetch_range(master.address, 40_000, 10_000, reader=who)
    assert data == LOG[40_000:50_000]


async def test_a_classic_master_is_named_by_its_protocol(master):
    """It closes the link at a handshake, or answers with frames."""
    with pytest.raises((ProtocolError, UnreachableError)):
        await fetch_range(master.ha_address, 0, 100, reader=reader())
