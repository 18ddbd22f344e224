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
from tests.support.nodes.harness import (
    FILE_SIZE,
    QUICK,
    LentBytes,
    flushed_by,
    log_bytes,
    master_config,
    messages,
    raw_slave,
    slave_config,
)
from tests.support.waiting import eventually

LARGE = 4 * 1024 * 1024  # of a file for large messages


def same(master, slave):
    return lambda: slave.max_offset == master.max_offset


@contextlib.asynccontextmanager
async def large_master(tmp_path, env, **store):
    """Open an asynchronous master with three messages of 1 MB."""
    config = master_config(
        tmp_path / "m", role=BrokerRole.ASYNC_MASTER, file_size=LARGE, store=store
    )
    async with hastore.open_master(config, env=env) as master:
        for _ in range(3):
            await master.put(hastore.Message("big", bytes(1_000_000)))
        yield master


@contextlib.asynccontextmanager
async def large_slave(tmp_path, master):
    """Open a slave, and wait until it has all."""
    config = slave_config(tmp_path / "s", master.ha_address, file_size=LARGE)
    async with hastore.open_slave(config) as slave:
        await eventually(same(master, slave))
        yield slave


async def test_every_put_is_acknowledged_by_the_slave_that_has_it(tmp_path):
    """Under SYNC_MASTER PUT_OK means that the bytes are in the slave's log too."""
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


async def test_a_new_slave_gets_the_whole_history_over_file_ends(tmp_path):
    """Files, BLANK ends and all, are byte-identical, for one and for several slaves."""
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
                await eventually(same(master, slave))
                received = slave.status().master_link.received_bytes
                if turn:
                    assert received < master.max_offset
        end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_without_a_slave_the_answer_is_slave_not_available_at_once(tmp_path):
    """The message is stored, the producer is told at once, and told why."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        request = master.submit(messages(1)[0])
        assert request.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "no slave is connected" in request.reason
        assert request.result.next_offset == master.max_offset


async def test_wait_false_does_not_wait_for_slaves(tmp_path):
    """WAIT=false is PUT_OK with no slave at all."""
    async with hastore.open_master(master_config(tmp_path / "m")) as master:
        message = hastore.Message("orders", b"x", properties={"WAIT": "false"})
        assert (await master.put(message)).status is PutMessageStatus.PUT_OK


async def test_a_silent_slave_gives_flush_slave_timeout_and_the_message_stays(tmp_path):
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
        if not frame[1]:  # the put may come before the answer to the first report, or behind it
            assert frame == (0, b"")
            frame = await peer.frame()
        assert frame == (0, log_bytes(tmp_path / "m", result.next_offset))


async def test_one_ack_answers_all_that_it_covers(tmp_path):
    """An ack in the middle releases the puts up to it and no other; the next one the rest."""
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
    """What a scanner sends is refused and named; the put that waits is not told a lie."""
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


async def test_a_later_report_beyond_the_end_closes_the_link_and_acknowledges_nothing(tmp_path):
    """Bytes that were never sent cannot be acknowledged, not even by a known slave."""
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


async def test_a_departed_slaves_ack_never_makes_a_laggard_look_healthy(tmp_path):
    """When the near slave leaves, availability is judged by the far one that stays."""
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
            await eventually(same(master, near))
            await eventually(lambda: master.ha_service.is_slave_ok(master.max_offset))
            assert (await master.put(messages(1)[0])).ok
        await eventually(lambda: len(master.status().slaves) == 1)
        request = master.submit(messages(1)[0])
        assert request.status is PutMessageStatus.SLAVE_NOT_AVAILABLE
        assert "bytes behind" in request.reason


async def test_a_slave_ahead_of_its_master_is_divergence_on_both_ends(tmp_path):
    """The master refuses; after a second look the slave names both offsets, and stays."""
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


async def test_an_old_masters_tail_is_found_by_its_bytes(tmp_path):
    """A log that parted from ours is refused although ours has grown past its end since."""
    async_role = {"role": BrokerRole.ASYNC_MASTER}
    async with hastore.open_master(master_config(tmp_path / "old", **async_role)) as master:
        for message in messages(10):
            await master.put(message)
        settings = slave_config(tmp_path / "new", master.ha_address)
        async with hastore.open_slave(settings) as slave:
            await eventually(same(master, slave))
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


async def test_a_slave_a_little_ahead_is_found_at_the_first_heartbeat(tmp_path):
    """Within the compared overlap a heartbeat tells that the master's log ends before ours."""
    async_role = {"role": BrokerRole.ASYNC_MASTER}
    async with hastore.open_master(master_config(tmp_path / "m", **async_role)) as master:
        for message in messages(10):
            await master.put(message)
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await eventually(same(master, slave))
        await master.put(messages(1)[0])
        end = master.max_offset
    quick = attrs.evolve(QUICK, ha_send_heartbeat_interval_ms=50)
    async with hastore.open_master(master_config(tmp_path / "s", ha=quick)) as master:
        async with hastore.open_slave(slave_config(tmp_path / "m", master.ha_address)) as slave:
            await eventually(lambda: slave.status().state == "diverged")
            reason = slave.status().master_link.reason
            assert str(end) in reason
            assert str(master.max_offset) in reason


async def test_from_last_file_leaves_the_older_files_out(tmp_path):
    """A slave that asks for the last file begins at that file's first byte."""
    config = master_config(tmp_path / "m", role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(900):
            await master.put(message)
        settings = slave_config(
            tmp_path / "s", master.ha_address, slave_from=hastore.SlaveStart.LAST_FILE
        )
        async with hastore.open_slave(settings) as slave:
            await eventually(same(master, slave))
            last = master.max_offset - master.max_offset % FILE_SIZE
            assert slave.status().min_offset == last


@pytest.mark.parametrize("slave_size", [FILE_SIZE // 2, FILE_SIZE * 2, FILE_SIZE + 4096])
async def test_another_file_size_is_found_at_the_first_blank_and_named(
    tmp_path, slave_size, caplog
):
    """A slave with smaller or larger files stops and says which size its master has: once."""
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
    assert warned_of(caplog) == ["ha_gave_up"]


def warned_of(caplog):
    """The events of what was logged at warning or above."""
    return [each.msg["event"] for each in caplog.records if each.levelno >= logging.WARNING]


async def test_another_file_size_is_named_where_the_dispatch_meets_it_first(
    tmp_path, monkeypatch, caplog
):
    """A BLANK in the midst of a file cannot be dispatched, and yet is no damage of the master's."""

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
    assert warned_of(caplog) == ["ha_gave_up"]


async def test_a_sync_flush_slave_reports_only_what_it_has_flushed(tmp_path):
    """With SYNC_FLUSH on the slave an ack is a promise of its disk."""
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
    """PUT_OK waits for both the own disk and the slave."""
    config = master_config(tmp_path / "m", store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            requests = [master.submit(message) for message in messages(200)]
            for request in requests:
                assert await request.wait() is PutMessageStatus.PUT_OK
            assert master.commit_log.flushed_offset >= requests[-1].append_result.next_offset


async def test_a_peer_that_never_reads_slows_nobody_else(tmp_path):
    """One stuck connection leaves the other slave's acks and the producers alone."""
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


async def test_the_master_stops_while_producers_wait(tmp_path):
    """At a stop a put that waits for a slave is told that it is stored and not acknowledged."""
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


async def test_a_block_that_raises_gets_its_own_exception_back(tmp_path):
    """An error of the caller comes out of the block as itself."""
    with pytest.raises(ValueError, match="mine"):
        async with hastore.open_master(master_config(tmp_path / "m")):
            raise ValueError("mine")


@pytest.mark.parametrize("taken", [1, 11, 12, 13, 40, 300])
async def test_a_socket_that_takes_a_few_bytes_at_once_gets_the_rest_in_order(tmp_path, taken):
    """What a producer could not send at once its slave's own task sends, and nothing twice."""

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


async def test_a_slave_without_room_for_its_next_file_drops_the_link_and_heals(tmp_path):
    """A failed append is visible, no ack is given for it, and space that comes back mends it."""
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
            assert slave.status().master_link.connections <= 2  # no storm while there is no room
            disk.heal()
            await eventually(lambda: slave.max_offset == master.max_offset)
            await eventually(lambda: master.ha_service.is_slave_ok(master.max_offset))
            assert (await master.put(messages(1)[0])).ok


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_only_what_is_flushed_is_lent_to_a_socket(tmp_path, flush):
    """A socket may hold pages for longer than the process lives; the slave gets all, either way."""
    lent = LentBytes()
    async with large_master(tmp_path, lent.env(), **flushed_by(flush)) as lent.master:
        async with large_slave(tmp_path, lent.master):
            pass
        assert bool(lent.ends) is (flush is FlushDiskType.SYNC_FLUSH)
    assert not lent.unflushed


async def test_a_slave_that_needs_cold_bytes_makes_nobody_wait(tmp_path, monkeypatch):
    """While a thread reads them, producers and another slave go on; then it gets all, too."""

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
                await eventually(same(master, good))
                assert late.max_offset == 0
                offload.go_on()
                await eventually(same(master, late))


async def test_a_report_may_be_read_before_the_writer_runs_again(tmp_path):
    """An ack that overtakes the end of our own send is no ack of bytes that were never sent."""

    async def send_and_dawdle(sock, file, position, size):
        await real_env().send_file(sock, file, position, size)
        await trio.sleep(0.1)

    env = attrs.evolve(real_env(), send_file=send_and_dawdle)
    async with large_master(tmp_path, env, flush_disk_type=FlushDiskType.SYNC_FLUSH) as master:
        async with large_slave(tmp_path, master) as slave:
            assert slave.status().master_link.connections == 1
        assert not master.status().refused


async def test_two_connections_of_one_slave_are_harmless(tmp_path):
    """A half-open old link beside the new one neither blocks acks nor fakes them."""
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
    """Both ports may be IPv6, and addresses are written with brackets."""
    config = master_config(tmp_path / "m", ha_listen=("::1", 0))
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            assert (await master.put(messages(1)[0])).ok
            assert master.status().ha_address.startswith("[::1]:")


async def test_a_port_in_use_is_a_named_error(tmp_path):
    """A second master on the same HA port says which port, and what to do."""
    async with hastore.open_master(master_config(tmp_path / "a")) as master:
        config = master_config(tmp_path / "b", ha_listen=master.ha_address)
        with pytest.raises(ListenError, match=str(master.ha_address[1])) as caught:
            async with hastore.open_master(config):
                pass
        assert "another port" in caught.value.hint
        assert not (tmp_path / "b" / "abort").exists()


async def test_one_store_is_open_once(tmp_path):
    """A second node on the same directory is refused, and the first goes on."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        with pytest.raises(StoreLockedError):
            async with hastore.open_slave(slave_config(tmp_path, master.ha_address)):
                pass
        await master.put(messages(1)[0])
    async with hastore.open_master(master_config(tmp_path)) as master:
        assert master.max_offset > 0


async def test_a_group_that_the_block_raises_stays_a_group(tmp_path):
    """Only the wrapping of our own nursery is taken off."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with hastore.open_master(master_config(tmp_path / "m")):
            raise BaseExceptionGroup("mine", [ValueError("one")])
    assert caught.value.message == "mine"


def test_the_configs_refuse_what_cannot_work():
    """A batch that no read buffer takes and a slave's role on a master are refused."""
    with pytest.raises(hastore.HastoreError, match="read buffer"):
        hastore.HAConfig(ha_transfer_batch_size_max=4 * 1024 * 1024)
    with pytest.raises(hastore.HastoreError, match="not SLAVE"):
        hastore.MasterConfig(store=StoreConfig(data_dir="x"), role=BrokerRole.SLAVE)
