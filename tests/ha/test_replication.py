"""Masters and slaves together, on real sockets and files."""

import contextlib
import logging
import os

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import describe
from hastore.config import StoreConfig
from hastore.env.real import RealDisk, real_env
from hastore.env.sending import RealSendFile
from hastore.errors import ListenError, StoreLockedError
from hastore.ha.slave_appender import SlaveAppender
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from tests.support.env.fake_env import FakeOffload
from tests.support.env.scripted_disk import ScriptedDisk, disk_full
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import (
    FILE_SIZE,
    SentPieces,
    flushed_by,
    log_bytes,
    master_config,
    messages,
    raw_slave,
    slave_config,
)
from tests.support.waiting import eventually

LARGE = 4 * 1024 * 1024  # of a file for large messages


def same_end(master, slave):
    return lambda: slave.max_offset == master.max_offset


@contextlib.asynccontextmanager
async def large_master(tmp_path, env, **store):
    """Open an asynchronous master that holds three messages of 1 MB."""
    config = master_config(
        tmp_path / "m", role=BrokerRole.ASYNC_MASTER, file_size=LARGE, store=store
    )
    async with hastore.open_master(config, env=env) as master:
        for _ in range(3):
            await master.put(hastore.Message("big", bytes(1_000_000)))
        yield master


@contextlib.asynccontextmanager
async def large_slave(tmp_path, master):
    """Open a slave, and wait until it has the master's whole log."""
    config = slave_config(tmp_path / "s", master.ha_address, file_size=LARGE)
    async with hastore.open_slave(config) as slave:
        await eventually(same_end(master, slave))
        yield slave


async def test_put_ok_means_that_the_slave_has_the_message(tmp_path):
    """Under SYNC_MASTER the slave's log covers every message before its producer is answered."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        config = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for message in messages(50):
                result = await master.put(message)
                assert result.status is PutMessageStatus.PUT_OK
                assert slave.max_offset >= result.next_offset
            end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_new_slaves_copy_the_whole_log_across_files(tmp_path):
    """Two slaves end with the master's bytes, BLANKs included."""
    async with hastore.open_master(
        master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    ) as master:
        for message in messages(900):
            await master.put(message)
        assert master.max_offset > 3 * FILE_SIZE
        async with (
            hastore.open_slave(slave_config(tmp_path / "s1", master.ha_address)) as one,
            hastore.open_slave(slave_config(tmp_path / "s2", master.ha_address)) as two,
        ):
            await eventually(lambda: one.max_offset == two.max_offset == master.max_offset)
        end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s1", end)
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s2", end)


async def test_a_slave_resumes_where_its_log_ends(tmp_path):
    """A slave that comes back gets what it lacks and nothing twice."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        slave_settings = slave_config(tmp_path / "s", master.ha_address)
        for turn in range(3):
            for message in messages(200):
                await master.put(message)
            async with hastore.open_slave(slave_settings) as slave:
                await eventually(same_end(master, slave))
                received = slave.status().master_link.received_bytes
                if turn:
                    assert received < master.max_offset
        end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_put_without_a_slave_is_slave_not_available_at_once(tmp_path):
    """The message is stored, and the status has a reason."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        request = master.submit(messages(1)[0])
        assert request.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "no slave is connected" in request.reason
        assert request.result.next_offset == master.max_offset


async def test_wait_false_does_not_wait_for_slaves(tmp_path):
    """WAIT=false is PUT_OK even without a slave."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        message = hastore.Message("orders", b"x", properties={"WAIT": "false"})
        assert (await master.put(message)).status is PutMessageStatus.PUT_OK


async def test_silent_slave_causes_flush_slave_timeout_but_no_loss(tmp_path):
    """A connected slave that acknowledges nothing costs the deadline, not the message."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=200)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as peer,
    ):
        await peer.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        begin = trio.current_time()
        result = await master.put(messages(1)[0])
        assert result.status is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        assert trio.current_time() - begin >= 0.2
        frame = await peer.frame()
        if not frame[1]:  # the put may come before the answer to the first report, or after it
            assert frame == (0, b"")
            frame = await peer.frame()
        assert frame == (0, log_bytes(tmp_path / "m", result.next_offset))


async def test_ack_releases_exactly_the_puts_that_it_covers(tmp_path):
    """An ack in the middle releases the puts up to it; the next ack releases the rest."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=60_000)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as peer,
    ):
        await peer.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        requests = [master.submit(message) for message in messages(10)]
        received = 0
        while received < master.max_offset:
            offset, body = await peer.frame()
            received = offset + len(body)
        for count in (5, 10):
            await peer.report(requests[count - 1].append_result.next_offset)
            await requests[count - 1].wait()
            statuses = [request.status for request in requests]
            assert statuses == [PutMessageStatus.PUT_OK] * count + [None] * (10 - count)


@pytest.mark.parametrize(
    "payload", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 8, (2**63 - 1).to_bytes(8, "big")]
)
async def test_a_port_scan_never_acknowledges(tmp_path, payload):
    """The scanner is refused and listed in status; the waiting put times out."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=300)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as honest,
        raw_slave(master) as scanner,
    ):
        await honest.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        request = master.submit(messages(1)[0])
        await scanner.sock.send(payload)
        await scanner.closed_by_master()
        assert await request.wait() is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        status = master.status()
        assert status.push2_slave_max_offset == 0
        assert len(status.refused) == 1
        assert len(status.slaves) == 1


async def test_later_report_beyond_the_end_closes_link_without_an_ack(tmp_path):
    """Not even a known slave can acknowledge bytes that were never sent."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=300)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as peer,
    ):
        await peer.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        request = master.submit(messages(1)[0])
        await peer.report(master.max_offset + 1)
        await peer.closed_by_master()
        assert await request.wait() is PutMessageStatus.FLUSH_SLAVE_TIMEOUT
        assert master.status().push2_slave_max_offset == 0
        follow_up = master.submit(messages(1)[0])
        assert follow_up.status is PutMessageStatus.SLAVE_NOT_AVAILABLE


async def test_a_departed_slaves_ack_does_not_make_a_lagging_one_available(tmp_path):
    """When the near slave leaves, availability depends on the lagging one that stays."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=60_000, ha_slave_fallbehind_max=10_000)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as laggard,
    ):
        await laggard.report(0)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as near:
            await eventually(lambda: len(master.status().slaves) == 2)
            for message in messages(100):
                master.submit(message)
            await eventually(same_end(master, near))
            await eventually(lambda: master.ha_service.is_slave_ok(master.max_offset))
            assert (await master.put(messages(1)[0])).ok
        await eventually(lambda: len(master.status().slaves) == 1)
        request = master.submit(messages(1)[0])
        assert request.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "bytes behind" in request.reason


async def test_slave_ahead_of_its_master_is_diverged_on_both_sides(tmp_path):
    """The master refuses it; after a second link the slave names both offsets, and stays up."""
    config = master_config(tmp_path / "old", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(20):
            await master.put(message)
        ahead = master.max_offset
    async with hastore.open_master(master_config(tmp_path / "new")) as master:
        await master.put(messages(1)[0])
        settings = slave_config(tmp_path / "old", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            link = slave.status().master_link
            assert str(ahead) in link.reason
            assert str(master.max_offset) in link.reason
            first, second = master.status().refused
            assert 0 <= ahead - first.reported_offset <= 4096 + 400
            assert second.reported_offset == first.reported_offset
            assert link.connections == 2
            assert (await master.put(messages(1)[0])).status is (
                PutMessageStatus.SLAVE_NOT_AVAILABLE
            )
    assert len(log_bytes(tmp_path / "old")) >= ahead


async def test_old_masters_diverged_tail_is_found_by_its_bytes(tmp_path):
    """Its log is refused although ours has grown past its end since."""
    async_role = {"role": BrokerRole.ASYNC_MASTER}
    async with hastore.open_master(master_config(tmp_path / "old", **async_role)) as master:
        for message in messages(10):
            await master.put(message)
        settings = slave_config(tmp_path / "new", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(same_end(master, slave))
        for message in messages(5):
            await master.put(message)
        end = master.max_offset
    async with hastore.open_master(master_config(tmp_path / "new")) as master:
        for message in messages(30):
            await master.put(message)
        assert master.max_offset > end
        async with hastore.open_slave(slave_config(tmp_path / "old", master.ha_address)) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            assert "different bytes" in slave.status().master_link.reason
            assert slave.max_offset == end
            await eventually(lambda: bool(master.status().refused))
            assert master.status().refused[0].reported_offset == -1
            assert master.status().push2_slave_max_offset < end
            await eventually(lambda: not master.status().slaves)
            request = master.submit(messages(1)[0])
            assert request.status is PutMessageStatus.SLAVE_NOT_AVAILABLE


async def test_slave_slightly_ahead_is_diverged_at_the_first_heartbeat(tmp_path):
    """A heartbeat within the compared overlap shows that the master's log ends before ours."""
    async_role = {"role": BrokerRole.ASYNC_MASTER}
    async with hastore.open_master(master_config(tmp_path / "m", **async_role)) as master:
        for message in messages(10):
            await master.put(message)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await eventually(same_end(master, slave))
        await master.put(messages(1)[0])
        end = master.max_offset
    quick = attrs.evolve(QUICK, ha_send_heartbeat_interval_ms=50)
    async with hastore.open_master(master_config(tmp_path / "s", ha=quick)) as master:
        async with hastore.open_slave(slave_config(tmp_path / "m", master.ha_address)) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            reason = slave.status().master_link.reason
            assert str(end) in reason
            assert str(master.max_offset) in reason


async def test_from_last_file_skips_the_older_files(tmp_path):
    """The slave's log begins at the first byte of the last file."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(900):
            await master.put(message)
        settings = slave_config(
            tmp_path / "s", master.ha_address, slave_from=hastore.SlaveStart.LAST_FILE
        )
        async with hastore.open_slave(settings) as slave:
            await eventually(same_end(master, slave))
            last = master.max_offset - master.max_offset % FILE_SIZE
            assert slave.status().min_offset == last


@pytest.mark.parametrize("slave_size", [FILE_SIZE // 2, FILE_SIZE * 2, FILE_SIZE + 4096])
async def test_another_file_size_is_reported_at_the_first_blank(tmp_path, slave_size, caplog):
    """A slave with smaller or larger files stops and reports its master's size once."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(300):
            await master.put(message)
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=slave_size)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "failed")
            link = slave.status().master_link
            assert str(FILE_SIZE) in link.reason
            assert str(slave_size) in link.reason
            assert f"--mapped-file-size {FILE_SIZE}" in link.hint
    assert warning_events(caplog) == ["ha_gave_up"]


def warning_events(caplog):
    """Return the events that were logged at warning level or above."""
    return [each.msg["event"] for each in caplog.records if each.levelno >= logging.WARNING]


async def test_another_file_size_is_reported_if_dispatch_meets_it_first(
    tmp_path, monkeypatch, caplog
):
    """Dispatch stops at a BLANK inside a file, which is no damage of the master's log."""

    async def late(_self):
        await trio.sleep_forever()

    monkeypatch.setattr(SlaveAppender, "_check_layout", late)
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(300):
            await master.put(message)
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=FILE_SIZE * 2)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "failed")
            link = slave.status().master_link
            assert f"those of master {describe(master.ha_address)} are {FILE_SIZE}" in link.reason
            assert f"--mapped-file-size {FILE_SIZE}" in link.hint
    assert warning_events(caplog) == ["ha_gave_up"]


async def test_another_file_size_is_reported_if_dispatch_meets_a_records_half_first(
    tmp_path, monkeypatch, caplog
):
    """A full file that ends inside a record is no damage; the next link measures."""
    check_layout, calls = SlaveAppender._check_layout, []

    async def first_late(self):
        calls.append(self)
        if len(calls) == 1:
            await trio.sleep_forever()
        await check_layout(self)

    monkeypatch.setattr(SlaveAppender, "_check_layout", first_late)
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(300):
            await master.put(message)
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=FILE_SIZE // 2)
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: slave.status().state == "failed")
            assert f"are {FILE_SIZE} bytes" in slave.status().master_link.reason
    assert len(calls) > 1
    assert warning_events(caplog) == ["ha_gave_up"]


async def test_a_sync_flush_slave_reports_only_what_it_has_flushed(tmp_path):
    """With SYNC_FLUSH on the slave, every acknowledged byte is on its disk."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        settings = slave_config(
            tmp_path / "s", master.ha_address, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}
        )
        async with hastore.open_slave(settings) as slave:
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for message in messages(20):
                result = await master.put(message)
                assert result.ok
                assert slave.flushed_offset >= result.next_offset


async def test_sync_flush_and_sync_master_together(tmp_path):
    """PUT_OK waits for the master's own disk and for the slave."""
    config = master_config(tmp_path / "m", store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            requests = [master.submit(message) for message in messages(200)]
            for request in requests:
                assert await request.wait() is PutMessageStatus.PUT_OK
            assert master.commit_log.flushed_offset >= requests[-1].append_result.next_offset


async def test_peer_that_never_reads_does_not_delay_others(tmp_path):
    """A stuck connection affects neither the other slave's acks nor the producers."""
    async with (
        hastore.open_master(master_config(tmp_path / "m", file_size=4 * 1024 * 1024)) as master,
        raw_slave(master) as stuck,
    ):
        await stuck.report(0)
        settings = slave_config(tmp_path / "s", master.ha_address, file_size=4 * 1024 * 1024)
        async with hastore.open_slave(settings):
            await eventually(lambda: len(master.status().slaves) == 2)
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for _ in range(8):
                result = await master.put(hastore.Message("big", bytes(2_000_000)))
                assert result.ok


async def test_stop_answers_waiting_puts_with_flush_slave_timeout(tmp_path):
    """The messages are stored but not acknowledged, and the stop is clean."""
    results = []
    async with trio.open_nursery() as nursery:
        async with (
            hastore.open_master(master_config(tmp_path / "m")) as master,
            raw_slave(master) as peer,
        ):
            await peer.report(0)
            await eventually(lambda: master.ha_service.is_slave_ok(0))

            async def put():
                results.append(await master.put(messages(1)[0]))

            nursery.start_soon(put)
            await eventually(lambda: master.max_offset > 0)
    assert [result.status for result in results] == [PutMessageStatus.FLUSH_SLAVE_TIMEOUT]
    assert not (tmp_path / "m" / "abort").exists()


async def test_exception_of_the_callers_block_is_raised_unchanged(tmp_path):
    """It is not wrapped in an exception group."""
    with pytest.raises(ValueError, match="mine"):
        async with hastore.open_master(master_config(tmp_path / "m")):
            raise ValueError("mine")


@pytest.mark.parametrize("taken", [1, 11, 12, 13, 40, 300])
async def test_partial_sends_are_completed_in_order(tmp_path, taken):
    """A slave's own task sends what a producer could not send at once, and nothing twice."""

    def send_some(sock, buffers):
        return os.write(sock.fileno(), b"".join(buffers)[:taken])

    env = attrs.evolve(real_env(), send_now=send_some)
    async with hastore.open_master(master_config(tmp_path / "m"), env=env) as master:
        config = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(config):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for message in messages(300):
                if message.body[0] % 3:
                    master.submit(message)
                else:
                    assert (await master.put(message)).ok
            assert (await master.put(messages(1)[0])).ok
            end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_slave_on_a_full_disk_drops_its_link_and_recovers(tmp_path):
    """It does not acknowledge the failed append, and continues once there is space."""
    disk = ScriptedDisk(RealDisk())
    env = attrs.evolve(real_env(), disk=disk)
    ha = attrs.evolve(QUICK, slave_timeout_ms=3_000)
    async with hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master:
        config = slave_config(tmp_path / "s", master.ha_address)
        async with hastore.open_slave(config, env=env) as slave:
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            disk.fail("create_file", disk_full)
            requests = [master.submit(message) for message in messages(400)]  # two files
            assert await requests[-1].wait() in {
                PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
                PutMessageStatus.SLAVE_NOT_AVAILABLE,
            }
            await eventually(lambda: "no space" in (slave.status().master_link.reason or ""))
            assert slave.max_offset < requests[-1].result.next_offset
            assert slave.status().master_link.connections <= 2  # no reconnect storm meanwhile
            disk.heal()
            await eventually(lambda: slave.max_offset == master.max_offset)
            await eventually(lambda: master.ha_service.is_slave_ok(master.max_offset))
            assert (await master.put(messages(1)[0])).ok


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_only_flushed_bytes_are_shared_with_a_socket(tmp_path, flush):
    """A socket may hold pages after the process has died; either way the slave gets every byte."""
    shared = SentPieces()
    async with large_master(tmp_path, shared.env(), **flushed_by(flush)) as shared.master:
        async with large_slave(tmp_path, shared.master):
            pass
        assert bool(shared.ends) is (flush is FlushDiskType.SYNC_FLUSH)
    assert not shared.unflushed


async def test_cold_bytes_for_one_slave_delay_no_put_and_no_other_slave(tmp_path, monkeypatch):
    """A thread reads them; afterwards that slave gets everything too."""

    def nothing_is_cached(*_):
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", nothing_is_cached)
    offload = FakeOffload()
    env = attrs.evolve(real_env(), send_file=RealSendFile(offload))
    async with large_master(tmp_path, env, flush_disk_type=FlushDiskType.SYNC_FLUSH) as master:
        async with large_slave(tmp_path, master) as good:
            assert offload.runs
            offload.hang()
            config = slave_config(tmp_path / "late", master.ha_address, file_size=LARGE)
            async with hastore.open_slave(config) as late:
                await eventually(lambda: offload.running == 1)
                for message in messages(20):
                    assert (await master.put(message)).ok
                await eventually(same_end(master, good))
                assert late.max_offset == 0
                offload.go_on()
                await eventually(same_end(master, late))


async def test_report_read_before_our_own_send_returns_is_valid(tmp_path):
    """It does not count as an ack of bytes that were never sent."""

    async def send_and_dawdle(sock, file, position, size):
        await real_env().send_file(sock, file, position, size)
        await trio.sleep(0.1)

    env = attrs.evolve(real_env(), send_file=send_and_dawdle)
    async with large_master(tmp_path, env, flush_disk_type=FlushDiskType.SYNC_FLUSH) as master:
        async with large_slave(tmp_path, master) as slave:
            assert slave.status().master_link.connections == 1
        assert not master.status().refused


async def test_two_connections_of_one_slave_are_harmless(tmp_path):
    """A half-open old link beside the new one neither blocks nor forges acks."""
    async with (
        hastore.open_master(master_config(tmp_path / "m")) as master,
        raw_slave(master) as old,
    ):
        await old.report(0)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await eventually(lambda: len(master.status().slaves) == 2)
            await eventually(lambda: master.ha_service.ack_table.connected == 2)
            for message in messages(20):
                assert (await master.put(message)).ok
            assert slave.max_offset == master.max_offset


async def test_replication_over_ipv6(tmp_path):
    """Addresses are written with brackets."""
    config = master_config(tmp_path / "m", ha_listen=("::1", 0))
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            assert (await master.put(messages(1)[0])).ok
            assert master.status().ha_address.startswith("[::1]:")


async def test_port_in_use_raises_listen_error(tmp_path):
    """The error names the port and suggests another one."""
    async with hastore.open_master(master_config(tmp_path / "a")) as master:
        config = master_config(tmp_path / "b", ha_listen=master.ha_address)
        with pytest.raises(ListenError, match=str(master.ha_address[1])) as caught:
            async with hastore.open_master(config):
                pass
        assert "another port" in caught.value.hint
        assert not (tmp_path / "b" / "abort").exists()


async def test_store_cannot_be_opened_twice(tmp_path):
    """A second node on the same directory is refused, and the first continues."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        with pytest.raises(StoreLockedError):
            async with hastore.open_slave(slave_config(tmp_path, master.ha_address)):
                pass
        await master.put(messages(1)[0])
    async with hastore.open_master(master_config(tmp_path)) as master:
        assert master.max_offset > 0


async def test_exception_group_of_the_callers_block_stays_a_group(tmp_path):
    """Only the wrapping of our own nursery is removed."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with hastore.open_master(master_config(tmp_path / "m")):
            raise BaseExceptionGroup("mine", [ValueError("one")])
    assert caught.value.message == "mine"


def test_configs_reject_impossible_values():
    """A batch that no read buffer can hold, and the role SLAVE for a master."""
    with pytest.raises(hastore.HastoreError, match="read buffer"):
        hastore.HAConfig(ha_transfer_batch_size_max=4 * 1024 * 1024)
    with pytest.raises(hastore.HastoreError, match="not SLAVE"):
        hastore.MasterConfig(store=StoreConfig(data_dir="x"), role=BrokerRole.SLAVE)


@pytest.mark.parametrize(
    ("flush", "frames"), [(FlushDiskType.SYNC_FLUSH, 1), (FlushDiskType.ASYNC_FLUSH, 2)]
)
async def test_puts_of_one_turn_share_a_frame_with_sync_flush(tmp_path, flush, frames):
    """A SYNC_FLUSH slave then syncs once; with ASYNC_FLUSH the first put does not wait for that."""
    config = master_config(tmp_path / "m", store={"flush_disk_type": flush})
    async with hastore.open_master(config) as master, raw_slave(master) as peer:
        await peer.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0) and master.ha_service.rounds.idle)
        requests = [master.submit(message) for message in messages(5)]
        ends = []
        while not ends or ends[-1] < requests[-1].append_result.next_offset:
            offset, body = await peer.frame()
            if body:  # no heartbeat
                ends.append(offset + len(body))
        assert len(ends) == frames
        await peer.report(ends[-1])
        for request in requests:
            assert (await request.wait()).stored
