"""Heartbeats, silence and broken links, on both sides."""

import collections
import itertools

import attrs
import trio

import hastore
from hastore.env.real import real_env
from hastore.env.sync_thread import RealSyncThread
from hastore.status import BrokerRole
from hastore.store.record.message_codec import encode_blank
from hastore.wire.ha_frames import HEADER, encode_header
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import (
    FILE_SIZE,
    RawMaster,
    log_bytes,
    master_config,
    messages,
    raw_master,
    raw_slave,
    read_report,
    slave_config,
)
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import eventually

BUSY = attrs.evolve(QUICK, ha_send_heartbeat_interval_ms=50, ha_housekeeping_interval_ms=2_000)
STRICT = attrs.evolve(QUICK, ha_send_heartbeat_interval_ms=100, ha_housekeeping_interval_ms=1_000)
# Long enough for what a test does between two frames of its master.
PATIENT = attrs.evolve(STRICT, ha_housekeeping_interval_ms=4_000)


@attrs.define(eq=False)
class HeldWalk:
    """Runs calls in worker threads, but may hold those that walk a slave's file."""

    gate: trio.Event | None = None
    held: int = 0

    async def run(self, call):
        if self.gate is not None and "_find_first_blank" in call.__qualname__:
            self.held += 1
            await self.gate.wait()
        return await trio.to_thread.run_sync(call)

    def sync_thread(self):
        return RealSyncThread()

    def hold(self):
        self.gate = trio.Event()

    def go_on(self):
        self.gate.set()
        self.gate = None


async def test_an_idle_master_sends_heartbeats_with_its_next_offset(tmp_path):
    """A quiet link carries empty frames at the offset of the next byte."""
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=BUSY)) as master,
        raw_slave(master) as peer,
    ):
        await peer.report(0)
        assert [await peer.frame() for _ in range(3)] == [(0, b"")] * 3


async def test_an_idle_slave_repeats_its_report(tmp_path):
    """The master hears from a slave that has nothing new to acknowledge."""
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address, ha=BUSY)
        async with hastore.open_slave(config):
            sock = await master.accept()
            assert [await read_report(sock) for _ in range(4)] == [1, 1, 1, 1]
            sock.close()


async def test_heartbeats_do_not_count_as_traffic(tmp_path):
    """A slave in step has no lag between two heartbeats, nor while one arrives in pieces."""
    record = LogBuilder().fill(1).data
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address)
        async with hastore.open_slave(config) as slave:
            sock = await master.accept()
            monitor = slave.ha_client.received.flow_monitor
            await sock.send(HEADER.pack(0, len(record)))
            await sock.send(record)
            await eventually(lambda: slave.max_offset == len(record))
            assert monitor.total_bytes == HEADER.size + len(record)
            await eventually(lambda: not monitor.bytes_per_s(trio.current_time()))
            heard = slave.ha_client.link.last_read_time
            await sock.send(HEADER.pack(len(record), 0) + HEADER.pack(len(record), 0)[:5])
            await eventually(lambda: slave.ha_client.link.last_read_time > heard)
            heard = slave.ha_client.link.last_read_time
            await sock.send(HEADER.pack(len(record), 0)[5:])
            await eventually(lambda: slave.ha_client.link.last_read_time > heard)
            assert slave.status().master_link.lag_s == 0.0
            assert monitor.total_bytes == HEADER.size + len(record)
            sock.close()


async def test_short_frame_means_that_the_master_has_no_more(tmp_path):
    """A full batch does not, nor a frame at a file's end, nor a new link."""
    async with hastore.open_master(
        master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    ) as real:
        ends = [(await real.put(message)).next_offset for message in messages(4, size=20_000)]
        log = log_bytes(tmp_path / "m")
    assert ends[0] + 32_768 < FILE_SIZE < ends[3]
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            begin, seen = 0, []
            for end in (ends[0], ends[0] + 32_768, FILE_SIZE, ends[3]):
                await sock.send(HEADER.pack(begin, end - begin) + log[begin:end])
                await eventually(lambda end=end: slave.max_offset == end)
                seen.append(slave.ha_client.link.frame_sizes.reached_end)
                begin = end
            assert seen == [True, False, False, True]
            sock.close()
            sock = await master.accept()
            await read_report(sock)
            assert not slave.ha_client.link.frame_sizes.reached_end
            sock.close()


async def test_a_silent_slave_is_dropped_and_no_longer_counts(tmp_path, autojump_clock):
    """The master closes it after the housekeeping interval."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    config = master_config(tmp_path / "m", ha=STRICT)
    async with (
        hastore.open_master(config, env=RealFiles().env) as master,
        raw_slave(master) as peer,
    ):
        await peer.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        await peer.closed_by_master()
        await eventually(lambda: not master.status().slaves)
        assert "silent" in master.ha_service.unavailable_because(0)


async def test_slave_reconnects_to_a_silent_master(tmp_path, autojump_clock):
    """The slave leaves after the housekeeping interval."""
    autojump_clock.autojump_threshold = 0.02
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address, ha=STRICT)
        async with hastore.open_slave(config, env=RealFiles().env):
            first = await master.accept()
            second = await master.accept()
            assert await read_report(second) == 1
            first.close()
            second.close()


async def test_slow_walk_of_its_own_file_does_not_count_as_silence(tmp_path, autojump_clock):
    """While a slave walks its file the master may be silent; its time begins afterwards."""
    autojump_clock.autojump_threshold = 0.02
    fake_blanks = encode_blank(8) * 30
    data = LogBuilder().add(fake_blanks).add().data
    cut = bytes(data).index(fake_blanks) + 80
    offload = HeldWalk()
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address, ha=PATIENT)
        async with hastore.open_slave(
            config, env=attrs.evolve(real_env(), offload=offload)
        ) as slave:
            sock = await master.accept()
            await sock.send(HEADER.pack(0, 50) + data[:50])
            await eventually(lambda: slave.max_offset == 50)  # it no longer waits for a file
            offload.hold()
            await sock.send(HEADER.pack(50, cut - 50) + data[50:cut])
            await eventually(lambda: offload.held)
            # One report each 100 ms: in total, longer than a master may be silent.
            reports = [await read_report(sock) for _ in range(50)]
            assert None not in reports
            offload.go_on()
            assert [await read_report(sock) for _ in range(4)][-1] == cut
            await sock.send(HEADER.pack(cut, len(data) - cut) + data[cut:])
            await eventually(lambda: slave.max_offset == len(data))
            assert slave.status().master_link.connections == 1
            sock.close()


async def test_slave_retries_until_its_master_listens(tmp_path):
    """It backs off between refused connections, and status shows the reason."""
    with trio.socket.socket() as listener:
        await listener.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        master = RawMaster(listener)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            await eventually(lambda: slave.status().state == "backing-off")
            assert "refused" in slave.status().master_link.reason
            listener.listen()
            sock = await master.accept()
            assert await read_report(sock) == 1
            sock.close()


async def test_a_frame_cut_by_the_end_of_the_link_leaves_no_partial_bytes(tmp_path):
    """The slave neither stores nor reports an incomplete frame, and asks again."""
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address)
        async with hastore.open_slave(config) as slave:
            sock = await master.accept()
            assert await read_report(sock) == 1
            await sock.send(HEADER.pack(0, 100) + bytes(60))
            sock.close()
            sock = await master.accept()
            assert await read_report(sock) == 1
            assert slave.max_offset == 0
            sock.close()


async def test_slave_of_a_stock_master_gets_the_whole_log(tmp_path):
    """The master takes 1 for an offset and sends from there; the slave supplies byte 0."""
    async with hastore.open_master(
        master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    ) as real:
        await real.put(messages(1)[0])
        log = log_bytes(tmp_path / "m", real.max_offset)
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            assert await read_report(sock) == 1
            await sock.send(HEADER.pack(1, len(log) - 1) + log[1:])
            assert await read_report(sock) == len(log)
            assert slave.max_offset == len(log)
            sock.close()
    assert log_bytes(tmp_path / "s", len(log)) == log


async def test_stock_master_without_its_first_file_is_reported(tmp_path):
    """It sends heartbeats at 1 for ever; the error's hint is the remedy."""
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            assert await read_report(sock) == 1
            await sock.send(encode_header(1, 0))
            await eventually(lambda: slave.status().state == "streaming")
            assert slave.status().master_link.reason is None
            await sock.send(encode_header(1, 0))
            await eventually(lambda: slave.status().master_link.reason is not None)
            assert "has deleted its first file" in slave.status().master_link.reason
            assert "--from last-file" in slave.ha_client.error.hint
            assert slave.status().state == "streaming"
            data = LogBuilder().fill(1).data[1:]
            await sock.send(encode_header(1, len(data)) + data + encode_header(1 + len(data), 0))
            await eventually(lambda: slave.status().master_link.reason is None)
            sock.close()


async def test_stock_master_that_answers_at_offset_2_is_asked_with_zero(tmp_path):
    """The slave connects again and reports 0, as RocketMQ's slaves do."""
    async with raw_master() as master:
        config = slave_config(
            tmp_path / "s", master.address, slave_from=hastore.SlaveStart.LAST_FILE
        )
        async with hastore.open_slave(config):
            sock = await master.accept()
            assert await read_report(sock) == 2
            await sock.send(HEADER.pack(2, 0))
            sock.close()
            sock = await master.accept()
            assert await read_report(sock) == 0
            sock.close()


async def test_web_server_on_the_masters_port_is_an_error_with_a_hint(tmp_path):
    """No master sends such a frame, so the hint is about the HA port."""
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            await sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await eventually(lambda: slave.status().master_link.reason is not None)
            assert "HA port" in slave.status().master_link.hint
            sock.close()


async def test_empty_slave_fails_at_a_first_frame_within_a_file(tmp_path):
    """No file could begin at that offset; the slave stops with an error and does not crash."""
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            sock = await master.accept()
            await sock.send(HEADER.pack(12_345, 5) + b"hello")
            await eventually(lambda: slave.status().state == "failed")
            assert slave.max_offset == 0
            sock.close()


async def test_a_silent_peer_is_evicted_for_a_slave(tmp_path):
    """Connections that never report cannot keep slaves out."""
    ha = attrs.evolve(QUICK, ha_connections_max=2)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as first,
        raw_slave(master),
    ):
        await eventually(lambda: len(master.status().slaves) == 2)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await first.closed_by_master()
            await eventually(lambda: master.ha_service.is_slave_ok(0))
        assert "evicted" in master.status().refused[0].reason


async def test_connection_above_the_limit_is_closed_at_once(tmp_path):
    """The connection below the limit is still served."""
    ha = attrs.evolve(QUICK, ha_connections_max=1)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as served,
    ):
        await served.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        async with raw_slave(master) as extra:
            await extra.closed_by_master()
        assert len(master.status().slaves) == 1


async def test_slave_that_vanishes_within_a_large_frame_ends_only_its_link(tmp_path):
    """Neither the master nor the next slave is affected."""
    async with hastore.open_master(
        master_config(tmp_path / "m", file_size=16 * 1024 * 1024, role=BrokerRole.ASYNC_MASTER)
    ) as master:
        for _ in range(4):
            await master.put(hastore.Message("big", bytes(3_000_000)))
        for _ in range(5):
            async with raw_slave(master) as peer:
                await peer.report(0)
                await peer.sock.recv(1000)
        await eventually(lambda: not master.status().slaves)
        config = slave_config(tmp_path / "s", master.ha_address, file_size=16 * 1024 * 1024)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
            assert slave.status().master_link.connections == 1
        assert not master.status().refused
        end = master.max_offset
    assert end > 12_000_000
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_idle_master_does_not_poll(tmp_path, autojump_clock):
    """An hour of virtual time has 360 rounds of expiry, 720 looks at clocks and 4,000 at names.

    Their exact number depends on how quickly their threads are, which run in real time.  Each look
    takes two turns of its task and one of trio's, which brings the thread's result.
    """
    turns = collections.Counter()

    class Count(trio.abc.Instrument):
        def before_task_step(self, task):
            turns[task.name.rpartition(".")[2]] += 1

    async with hastore.open_master(master_config(tmp_path / "m")):
        trio.lowlevel.add_instrument(Count())
        await trio.sleep(3600)
    assert 1 < turns.pop("watch_names") < 2 * 4_000 + 100
    assert turns.pop("run_sync_soon task>") < 4_000 + 2_000
    assert turns.total() < 2 * 720 + 2_000  # polling each half second would be 7,200


async def test_each_read_counts_once_in_the_append_times(tmp_path):
    """Also if it ends within a frame."""
    log = LogBuilder(file_size=FILE_SIZE)
    for n in range(4):
        log.add(b"%d" % n)
    frames = b"".join(
        HEADER.pack(begin, end - begin) + log.data[begin:end]
        for begin, end in itertools.pairwise([*log.offsets, log.end])
    )
    size = len(frames) // 4
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.address)) as slave:
            times = slave.ha_client.received.append_times
            sock = await master.accept()
            await read_report(sock)
            sent, counts = 0, []
            for end in (size, 2 * size + 20, 4 * size):
                await sock.send(frames[sent:end])
                await eventually(lambda end=end: slave.max_offset == log.end * (end // size) // 4)
                await trio.testing.wait_all_tasks_blocked()
                counts.append(times.count - sum(counts))
                sent = end
            sock.close()
    assert counts == [1, 1, 1]


async def test_link_broken_within_a_large_frame_resumes_at_the_exact_byte(tmp_path):
    """The slave keeps nothing of the torn frame, reports its end, and loses nothing."""
    log = LogBuilder(file_size=4 * 1024 * 1024)
    log.add(bytes(range(256)) * 4096)
    body = bytes(log.data)
    async with raw_master() as master:
        config = slave_config(tmp_path / "s", master.address, file_size=log.file_size)
        async with hastore.open_slave(config):
            sock = await master.accept()
            assert await read_report(sock) == 1
            await sock.send(HEADER.pack(0, 100) + body[:100])
            assert await read_report(sock) == 100
            await sock.send(HEADER.pack(100, len(body) - 100) + body[100:300_000])
            sock.close()
            sock = await master.accept()
            resumed = await read_report(sock)
            assert resumed == 3  # it compares as many of the 100 bytes as it can
            await sock.send(HEADER.pack(resumed, len(body) - resumed))
            rest = body[resumed:]
            while rest:
                rest = rest[await sock.send(rest) :]
            assert await read_report(sock) == len(body)
            sock.close()
    assert log_bytes(tmp_path / "s", len(body)) == body
