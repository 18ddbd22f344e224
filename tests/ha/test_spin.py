"""Polling a link before the event loop sleeps: what it receives, and what it leaves to others."""

import socket

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.config import HA_SPIN_US_MAX, HAConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.ha.ha_connection import ReadSocketService
from hastore.ha.slave_progress import LogBounds, SlaveProgress
from hastore.ha.spin import SLICE_S, Spin
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore.wire.ha_frames import encode_report
from tests.support.env.fake_env import fake_env
from tests.support.nodes.harness import QUICK, log_bytes, master_config, messages, slave_config
from tests.support.store.open_log import make_file, open_log
from tests.support.waiting import eventually


@attrs.define(eq=False)
class Polls:
    """Returns ``counts`` one after the other, then None; records until when each poll may last."""

    counts: list[int | None] = attrs.field(factory=list)
    asked: list[float] = attrs.field(factory=list)

    def __call__(self, sock, buffer, until):
        self.asked.append(until - trio.current_time())
        return self.counts.pop(0) if self.counts else None


async def test_it_returns_what_the_first_successful_poll_received(autojump_clock):
    """All tasks have a turn between two polls."""
    polls = Polls([None, None, 7])
    turns = []

    async def other():
        while True:
            turns.append(len(polls.asked))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        assert await Spin(polls, 100).receive(None, memoryview(b"")) == 7
        nursery.cancel_scope.cancel()
    assert any(turns)
    assert len(polls.asked) == 3


async def test_no_poll_is_longer_than_a_slice(autojump_clock):
    """Nor than what is left of the spin."""
    polls = Polls()
    assert await Spin(polls, 10).receive(None, memoryview(b"")) is None
    assert max(polls.asked) == pytest.approx(10e-6)
    assert await Spin(polls, 100).receive(None, memoryview(b"")) is None
    assert max(polls.asked) == pytest.approx(SLICE_S)


async def test_it_ends_where_time_stands_still(autojump_clock):
    """So it cannot hang the simulator."""
    polls = Polls()
    assert await Spin(polls, 100).receive(None, memoryview(b"")) is None
    assert len(polls.asked) <= 100


async def test_it_ends_with_its_time():
    """The real clock runs on."""
    clock = trio.testing.MockClock()

    def poll(sock, buffer, until):
        clock.jump(30e-6)

    calls = []

    async def spin():
        await Spin(lambda *args: calls.append(poll(*args)), 100).receive(None, memoryview(b""))

    await trio.to_thread.run_sync(lambda: trio.run(spin, clock=clock))
    assert len(calls) == 4  # after 0, 30, 60 and 90 us


async def test_it_stops_when_nothing_is_awaited(autojump_clock):
    """A master polls only while a put waits."""
    polls = Polls([None, None, 7])
    waiting = [True, True, False]
    spin = Spin(polls, 100)
    assert await spin.receive(None, memoryview(b""), lambda: waiting.pop(0)) is None
    assert len(polls.asked) == 2


async def test_real_poll_receives_returns_at_the_end_and_gives_up():
    """Bytes, the end of the stream, or nothing."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    buffer = memoryview(bytearray(10))
    poll = real_env().poll
    with trio.socket.from_stdlib_socket(ours) as sock, theirs:
        assert poll(sock, buffer, trio.current_time()) is None
        theirs.send(b"123")
        assert poll(sock, buffer, trio.current_time()) == 3
        assert bytes(buffer[:3]) == b"123"
        theirs.close()
        assert poll(sock, buffer, trio.current_time() + 60) == 0


@pytest.mark.parametrize("value", [-1, HA_SPIN_US_MAX + 1])
def test_a_spin_is_at_most_100_us(value):
    """A longer one would cost a core and hold up all tasks."""
    with pytest.raises(ConfigError, match="ha_spin_us"):
        HAConfig(ha_spin_us=value)


@pytest.mark.parametrize(("of_master", "of_slave"), [(100, 0), (0, 100), (100, 100), (1, 1)])
async def test_spinning_nodes_replicate_as_others_do(tmp_path, of_master, of_slave):
    """Same statuses, same bytes."""
    ha = attrs.evolve(QUICK, slave_timeout_ms=30_000)
    config = master_config(tmp_path / "m", ha=attrs.evolve(ha, ha_spin_us=of_master))
    async with hastore.open_master(config) as master:
        slave = slave_config(tmp_path / "s", master.ha_address)
        slave = attrs.evolve(slave, ha=attrs.evolve(slave.ha, ha_spin_us=of_slave))
        async with hastore.open_slave(slave):
            await eventually(lambda: master.ha_service.is_slave_ok(0))
            for message in messages(50):
                assert (await master.put(message)).status is PutMessageStatus.PUT_OK
            requests = [master.submit(message) for message in messages(200)]
            for request in requests:
                assert await request.wait() is PutMessageStatus.PUT_OK
            end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_a_spinning_master_counts_polled_reports(autojump_clock):
    """It polls once a frame was sent, if a put waits; a report may come in parts."""
    log = open_log()
    make_file(log)
    for _ in range(2):
        log.append_message(Message("T", b"body"))
    end = log.max_offset
    progress = SlaveProgress(HAConfig())
    progress.on_report(0, LogBounds.of(log))
    progress.sent(end)
    arriving = [encode_report(1)[:3], encode_report(1)[3:], None, encode_report(end)]
    acks, waiting = [], []

    def poll(sock, buffer, until):
        data = arriving.pop(0) if arriving else None
        if data is not None:
            buffer[: len(data)] = data
        return None if data is None else len(data)

    reader = ReadSocketService(
        fake_env(),
        None,
        log,
        progress,
        check_first_report=lambda _offset, _log: None,
        on_reports=acks.append,
        spinner=Spin(poll, 100),
        is_awaited=lambda: bool(waiting),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.spin)
        await trio.testing.wait_all_tasks_blocked()
        reader.expect_report()
        await trio.testing.wait_all_tasks_blocked()
        assert acks == []  # no put waits
        waiting.append("a put")
        await trio.testing.wait_all_tasks_blocked()
        assert acks == []  # no frame was sent
        reader.expect_report()
        await trio.testing.wait_all_tasks_blocked()
        assert acks == [1, end]
        nursery.cancel_scope.cancel()
