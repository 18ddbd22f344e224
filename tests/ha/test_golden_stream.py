"""Replay an HA stream, recorded from real RocketMQ, into both of our sides."""

import random

import attrs
import pytest
import trio

import hastore
from hastore.ha.ha_client import HAClient, LinkEndedError
from hastore.ha.ha_link import HALink
from hastore.status import BrokerRole
from hastore.wire.ha_frames import REPORT
from tests.golden import streams
from tests.ha.recorded_session import END, mark_all_delivered, recorded_reports
from tests.patience import WITHIN_S
from tests.support.nodes.harness import FILE_SIZE, log_bytes, master_config, raw_slave, slave_config
from tests.support.waiting import eventually


class ScriptedSocket:
    """Returns the master's half of a recording in pieces, and keeps what is sent."""

    def __init__(self, data, sizes):
        self.data = memoryview(data)
        self.sizes = iter(sizes)
        self.sent = bytearray()

    async def recv_into(self, buffer):
        count = min(next(self.sizes, 0), len(buffer), len(self.data))
        buffer[:count] = self.data[:count]
        self.data = self.data[count:]
        return count

    async def send(self, data, flags=0):
        self.sent += data
        return len(data)


def fixed_sizes(size):
    while True:
        yield size


def random_sizes(seed):
    choose = random.Random(seed)
    while True:
        yield choose.choice((1, 2, 3, 7, 11, 12, 13, 100, 5000, 70_000))


async def feed(golden, tmp_path, sizes):
    """Feed the recorded half to a new slave; return the offsets that it reported."""
    async with hastore.open_slave(slave_config(tmp_path / "s", ("127.0.0.1", 1))) as slave:
        env = attrs.evolve(slave.env, receive=lambda sock, buffer: sock.recv_into(buffer))
        client = HAClient(
            env, slave.config, slave.commit_log, slave.flush_manager, slave.allocate_service
        )
        sock = ScriptedSocket((golden / "ha_stream_m2s.bin").read_bytes(), sizes)
        now = trio.current_time()
        client.link = HALink(sock, client.link.frame_sizes, None, now, lambda _sock, _data: 0)
        with pytest.raises(LinkEndedError):
            await client._read(sock)
        assert slave.max_offset == END
    expected = log_bytes(golden / "replica", END)
    assert log_bytes(tmp_path / "s", END) == expected
    return [offset for (offset,) in REPORT.iter_unpack(sock.sent)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 11, 12, 13, 64, 1000, 1448, 32_768, 2**20, 2**22])
async def test_recorded_stream_yields_the_recorded_log_at_every_chunk_size(golden, tmp_path, size):
    """The slave's log equals that of RocketMQ's slave; its reports are among the recorded ones."""
    reports = await feed(golden, tmp_path, fixed_sizes(size))
    assert reports[-1] == END
    assert reports == sorted(set(reports))
    assert set(reports) <= set(recorded_reports(golden))


@pytest.mark.parametrize("seed", range(10))
async def test_recorded_stream_in_pieces_of_random_sizes(golden, tmp_path, seed):
    """Mixed sizes lead to the same log."""
    assert (await feed(golden, tmp_path, random_sizes(seed)))[-1] == END


async def test_reports_equal_rocketmqs_if_fed_frame_by_frame(golden, tmp_path):
    """The pieces are those in which the recording arrived."""
    reports = await feed(golden, tmp_path, iter(streams.pieces()))
    assert reports == recorded_reports(golden)


async def test_our_master_serves_the_recorded_slave(golden_copy, golden, tmp_path):
    """With the same log and the slave's reports, it sends frames that a RocketMQ slave accepts."""
    config = master_config(
        mark_all_delivered(golden_copy("replica_master")), role=BrokerRole.ASYNC_MASTER
    )
    async with hastore.open_master(config) as master, raw_slave(master) as peer:
        assert master.max_offset == END
        pending = recorded_reports(golden)
        await peer.report(0)
        received = bytearray()
        while len(received) < END:
            offset, body = await peer.frame()
            assert offset == len(received)
            assert 0 < len(body) <= 4 * 1024 * 1024 - 12
            assert offset // FILE_SIZE == (offset + len(body) - 1) // FILE_SIZE
            received += body
            while pending and pending[0] <= len(received):
                await peer.report(pending.pop(0))
        await eventually(lambda: master.status().slaves[0].ack_offset == END)
        assert bytes(received) == log_bytes(golden / "replica", END)


async def test_a_reconnect_at_the_end_gets_heartbeats_only(golden_copy, golden, tmp_path):
    """In the second recorded session the slave reports the log's end."""
    recorded = (golden / "ha_stream_2_m2s.bin").read_bytes()
    reports = (golden / "ha_stream_2_s2m.bin").read_bytes()
    config = master_config(
        mark_all_delivered(golden_copy("replica_master")), role=BrokerRole.ASYNC_MASTER
    )
    quick = hastore.HAConfig(ha_send_heartbeat_interval_ms=50)
    async with (
        hastore.open_master(
            hastore.MasterConfig(
                store=config.store,
                role=config.role,
                listen=None,
                ha_listen=config.ha_listen,
                ha=quick,
            )
        ) as master,
        raw_slave(master) as peer,
    ):
        await peer.sock.send(reports)
        with trio.fail_after(WITHIN_S):
            data = b""
            while len(data) < len(recorded):
                data += await peer.sock.recv(len(recorded) - len(data))
        assert data == recorded
