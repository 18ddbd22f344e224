"""What one peer may cost, and all of them together: each limit is enforced and logged."""

import contextlib
import logging

import attrs
import pytest
import trio

import hastore
from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.port import remoting_server
from hastore.broker.port.buffered_total import BufferedTotal
from hastore.broker.port.output_total import STALLED_S, HeldOutput, OutputTotal
from hastore.broker.port.request_processors import RequestProcessors
from hastore.concurrency import peers
from hastore.concurrency.peers import PeerCount, PeerLog, peer_key
from hastore.concurrency.port_limits import PROOF_S, RESERVED_MAX
from hastore.config import KIB, MIB, RemotingConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.trace import logger
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_command import RemotingCommand
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import master_config, raw_slave, slave_config
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import RawClient, raw_client, send_command
from tests.support.nodes.reading import dispatched, open_master, pull_command
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def client_from(host, address):
    """Connect a client from one address of this machine (it has all of 127/8)."""
    with trio.socket.socket() as sock:
        await sock.bind((host, 0))
        await sock.connect(address)
        yield RawClient(sock)


def kinds(caplog):
    """Return the kinds of the refusals that were logged, in order."""
    return [record.msg["kind"] for record in caplog.records if "kind" in record.msg]


# -- connections -----------------------------------------------------------------------------------


async def test_connections_per_address_are_limited(autojump_clock, caplog):
    """The third connection of an address is closed and listed; another address is served."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    config = RemotingConfig(connections_per_address_max=2)
    async with serving(InMemoryTarget(), config) as (server, address):
        async with raw_client(address) as one, raw_client(address) as two:
            assert (await one.ask(send_command(1))).code == 0
            assert (await two.ask(send_command(1))).code == 0
            async with raw_client(address) as third:
                await third.closed()
            assert "2 clients of its address" in server.statistics().refused[0][1]
            async with client_from("127.0.0.2", address) as other:
                assert (await other.ask(send_command(1))).code == 0
            assert (await one.ask(send_command(2))).code == 0
        await eventually(lambda: not server.statistics().connections)
        async with raw_client(address) as fourth:
            assert (await fourth.ask(send_command(1))).code == 0
    assert kinds(caplog) == ["connections_per_address_max"]


@pytest.mark.parametrize("is_near", [True, False])
async def test_without_keys_this_machine_has_connections_above_the_limits(
    autojump_clock, monkeypatch, is_near
):
    """Who operates a node comes in, and stays; clients of other machines do not."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    monkeypatch.setattr(remoting_server, "is_loopback", lambda _host: is_near)
    config = RemotingConfig(connections_max=1)
    async with serving(InMemoryTarget(), config) as (server, address):
        async with raw_client(address) as client, contextlib.AsyncExitStack() as stack:
            assert (await client.ask(send_command(1))).code == 0
            above = [
                await stack.enter_async_context(raw_client(address))
                for _ in range(RESERVED_MAX if is_near else 0)
            ]
            for own in above:
                assert (await own.ask(send_command(1))).code == 0
            async with raw_client(address) as one_more:
                answer = b""
                with contextlib.suppress(OSError):  # it may be closed already
                    await one_more.send(send_command(1))
                    answer = await one_more.sock.recv(65_536)
                assert answer == b""
            await trio.sleep(2 * PROOF_S)
            for own in above:
                assert (await own.ask(send_command(2))).code == 0
            assert server.statistics().connections == (1 + RESERVED_MAX if is_near else 1)
            assert (await client.ask(send_command(2))).code == 0


async def test_a_client_that_has_asked_for_nothing_is_evicted(caplog):
    """Of the connections without a request the oldest is closed; clients that have asked stay."""
    config = RemotingConfig(connections_max=3)
    async with serving(InMemoryTarget(), config) as (server, address):
        async with (
            raw_client(address) as client,
            client_from("127.0.0.3", address) as unidentified,
            raw_client(address) as later,
        ):
            assert (await client.ask(send_command(1))).code == 0
            await eventually(lambda: server.statistics().connections == 3)
            async with client_from("127.0.0.2", address) as new:
                assert (await new.ask(send_command(1))).code == 0
                with trio.fail_after(WITHIN_S):
                    await unidentified.closed()
                assert (await client.ask(send_command(2))).code == 0
                assert (await later.ask(send_command(2))).code == 0
                assert server.statistics().connections == 3
    assert kinds(caplog) == ["connections_max"]


async def test_eviction_at_an_address_limit_stays_within_the_address():
    """The address's own silent peer is evicted, no other."""
    config = RemotingConfig(connections_per_address_max=1)
    async with serving(InMemoryTarget(), config) as (_, address):
        async with (
            client_from("127.0.0.2", address) as other,
            raw_client(address) as unidentified,
            raw_client(address) as client,
        ):
            assert (await client.ask(send_command(1))).code == 0
            with trio.fail_after(WITHIN_S):
                await unidentified.closed()
            assert (await other.ask(send_command(1))).code == 0


# -- time ------------------------------------------------------------------------------------------


async def test_trickling_header_is_cut_off_at_the_header_timeout(autojump_clock, caplog):
    """The time-out counts from the request's first byte, although the connection is not idle."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    async with serving(InMemoryTarget()) as (server, address):
        async with raw_client(address) as slow:
            assert (await slow.ask(send_command(1))).code == 0
            began = trio.current_time()
            async with trio.open_nursery() as nursery:

                async def trickle():
                    with contextlib.suppress(OSError):
                        for byte in encode_command(send_command(2)):
                            await slow.send(bytes([byte]))
                            await trio.sleep(1)

                nursery.start_soon(trickle)
                with trio.fail_after(WITHIN_S):
                    await slow.closed()
                nursery.cancel_scope.cancel()
            assert trio.current_time() - began >= 10
        assert "no complete request header within 10000 ms" in server.statistics().refused[0][1]
    assert kinds(caplog) == ["header_timeout_ms"]


async def test_a_client_may_connect_long_before_it_asks(autojump_clock):
    """The header time-out begins with the first byte, so half a minute of silence is allowed."""
    autojump_clock.autojump_threshold = 0.02
    async with serving(InMemoryTarget()) as (_, address), raw_client(address) as client:
        await trio.sleep(30)
        assert (await client.ask(send_command(1))).code == 0


async def test_connection_without_a_request_is_closed_at_the_idle_timeout(autojump_clock):
    """By default after 120 s."""
    autojump_clock.autojump_threshold = 0.02
    async with serving(InMemoryTarget()) as (server, address):
        began = trio.current_time()
        async with raw_client(address) as silent:
            await silent.closed()
        assert trio.current_time() - began >= 120
        assert "no reply read, for 120000 ms" in server.statistics().refused[0][1]


async def test_header_timeout_excludes_bodies_and_pauses_between_requests(autojump_clock):
    """Only the idle time-out applies to them."""
    autojump_clock.autojump_threshold = 0.02
    async with serving(InMemoryTarget()) as (_, address):
        async with raw_client(address) as client:
            frame = encode_command(send_command(1, body=bytes(100_000)))
            await client.send(frame[:50_000])
            await trio.sleep(30)
            await client.send(frame[50_000:])
            assert (await client.receive()).code == 0
            await trio.sleep(30)
            assert (await client.ask(send_command(2))).code == 0


async def test_header_is_in_time_although_the_node_paused_reading(autojump_clock):
    """A client that waits for answers is not blamed for the header that waits after them."""
    autojump_clock.autojump_threshold = 0.02
    target = InMemoryTarget(answer=None)
    config = RemotingConfig(in_flight_max=1)
    assert config.header_timeout_ms < 30_000 < config.idle_timeout_ms
    async with serving(target, config) as (_, address), raw_client(address) as client:
        frame = encode_command(send_command(2))
        await client.send(encode_command(send_command(1))[:5])
        await trio.sleep(1)
        await client.send(encode_command(send_command(1))[5:] + frame[:20])
        await trio.sleep(30)
        target.release()
        assert (await client.receive()).opaque == 1
        await client.send(frame[20:])
        await eventually(lambda: target.held)
        target.release()
        assert (await client.receive()).opaque == 2


# -- incomplete requests ---------------------------------------------------------------------------


@attrs.define(eq=False)
class Sender:
    """A connection with an incomplete request."""

    total: BufferedTotal
    host: str
    buffered_size: int = 0
    is_closed: bool = False

    @property
    def peer(self):
        return self.host, 4711

    def send(self, size):
        self.buffered_size += size
        self.total.count(size)

    def close_largest(self, _total):
        self.is_closed = True
        size, self.buffered_size = self.buffered_size, 0
        self.total.count(-size)


def test_many_small_requests_of_one_peer_evict_no_other():
    """All connections of an address count together, and its own largest one is closed."""
    senders = []
    total = BufferedTotal(1_000, senders)
    client = Sender(total, "10.0.0.1")
    senders += [client, *(Sender(total, f"2001:db8::{n}") for n in range(1, 21))]
    client.send(400)
    for sender in senders[1:]:
        sender.send(30)
    senders[7].send(1)
    assert [sender.is_closed for sender in senders].index(True) == 7
    assert not client.is_closed
    client.send(300)
    assert (client.is_closed, total.size) == (True, 570)


# -- answers that are not read ---------------------------------------------------------------------


@attrs.define(eq=False)
class Reader:
    """A connection that holds output."""

    total: OutputTotal | None = None
    stalled_since: float | None = None
    small: int = 0
    large: int = 0
    is_closed: bool = False

    def close_stalled(self):
        self.is_closed = True
        self.total.count(-self.small)
        self.total.release(self.large)
        self.small = self.large = 0
        self.stalled_since = None


async def test_longest_stalled_connections_are_closed_above_the_total(autojump_clock):
    """They have read nothing for five seconds; no more are closed than necessary."""
    readers = [Reader(), Reader(), Reader()]
    total = OutputTotal(100, readers)
    for reader, since in zip(readers, (2.0, 1.0, None), strict=True):
        reader.total, reader.small, reader.stalled_since = total, 40, since
    start = trio.current_time()
    for reader in readers[:2]:
        reader.stalled_since += start
        total.count(40)
    await trio.sleep(STALLED_S + 3)
    total.count(20)
    assert not any(reader.is_closed for reader in readers)
    total.count(1)
    assert [reader.is_closed for reader in readers] == [False, True, False]
    assert total.size == 61


async def test_large_answer_waits_until_room_is_freed_or_a_peer_is_stalled(autojump_clock):
    """A peer counts as stalled after five seconds, and is then closed."""
    readers = [Reader(), Reader()]
    total = OutputTotal(100, readers)
    for reader in readers:
        reader.total, reader.large = total, 50
        await total.reserve(50)
    begun = trio.current_time()
    readers[0].stalled_since = begun
    await total.reserve(50)
    assert readers[0].is_closed
    assert trio.current_time() - begun >= STALLED_S
    async with trio.open_nursery() as nursery:
        nursery.start_soon(total.reserve, 30)
        await trio.testing.wait_all_tasks_blocked()
        total.release(50)
    assert (total.large, readers[1].is_closed) == (80, False)


@attrs.define(eq=False)
class Trickle:
    """A connection that reads a little of a large answer now and then."""

    held: HeldOutput
    is_closed: bool = False

    @property
    def stalled_since(self):
        return self.held.stalled_since

    def close_stalled(self):
        self.is_closed = True
        self.held.close()

    async def send(self, size):
        await self.held.reserve(size)
        self.held.begin(size)
        while not self.is_closed:
            await trio.sleep(STALLED_S - 0.5)
            self.held.taken(10)


async def test_peer_that_reads_slowly_does_not_block_other_answers(autojump_clock):
    """An answer has a second for each MiB plus five, even if its peer is not stalled yet."""
    readers = []
    total = OutputTotal(8 * MIB, readers)
    readers += [Trickle(HeldOutput(total)), Trickle(HeldOutput(total))]
    async with trio.open_nursery() as nursery:
        for reader in readers:
            nursery.start_soon(reader.send, 4 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await total.reserve(4 * MIB)
        assert 4 + STALLED_S <= trio.current_time() - begun < 4 + 2 * STALLED_S
        assert [reader.is_closed for reader in readers].count(True) == 1
        nursery.cancel_scope.cancel()


async def test_large_answers_wait_in_order(autojump_clock):
    """A later answer does not overtake, even if it is small enough to fit."""
    total = OutputTotal(100, [])
    await total.reserve(90)
    made = []

    async def wait(size):
        await total.reserve(size)
        made.append(size)

    async with trio.open_nursery() as nursery:
        for size in (50, 5, 45):
            nursery.start_soon(wait, size)
            await trio.testing.wait_all_tasks_blocked()
        assert (made, total.reserve_now(5)) == ([], False)
        total.release(90)
    assert made == [50, 5, 45]


async def test_answers_above_the_total_rarely_scan_all_connections(autojump_clock):
    """They scan only when a connection may have been stalled for long enough."""

    class Readers(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    readers = Readers(Reader() for _ in range(10))
    total = OutputTotal(100, readers)
    for reader in readers:
        reader.total, reader.small, reader.stalled_since = total, 20, trio.current_time()
        total.count(20)
    readers.looks = 0
    for _ in range(1_000):
        await trio.sleep(STALLED_S / 1_001)
        total.count(1)
    assert readers.looks <= 1
    await trio.sleep(STALLED_S)
    total.count(1)
    assert any(reader.is_closed for reader in readers)


async def test_a_put_is_answered_while_a_large_answer_waits_for_room():
    """Both are on one connection, as in RocketMQ's clients; the large answer comes later."""
    async with serving(InMemoryTarget()) as (server, address), raw_client(address) as client:
        total = server._output_total
        await total.reserve(total.size_max)
        topics = RemotingCommand(code=21, opaque=1)
        await client.send(topics, send_command(2), send_command(3))
        with trio.fail_after(WITHIN_S):
            assert {(await client.receive()).opaque for _ in range(2)} == {2, 3}
            await client.send(send_command(4))
            assert (await client.receive()).opaque == 4
            total.release(total.size_max)
            assert (await client.receive()).opaque == 1
        await eventually(lambda: not total.large)


def test_answers_that_wait_for_a_slave_reserve_no_room():
    """CONSUMER_SEND_MSG_BACK waits as a put does, and its answer is small; a pull's is large."""
    env, config = real_env(), RemotingConfig()
    data = BrokerData.make(env, config, None)
    processors = RequestProcessors(env, InMemoryTarget(), config, data)
    answers = [processors.process(RemotingCommand(code=code), None) for code in (36, 28102, 11, 12)]
    assert [later.is_large for later in answers] == [False, False, True, True]


async def test_answer_larger_than_the_total_is_made_alone():
    """A limit below one answer lets answers through one by one."""
    total = OutputTotal(10, [])
    await total.reserve(50)
    total.release(50)
    await total.reserve(50)
    assert total.large == 50


async def test_consumers_that_never_read_cannot_fill_the_memory(tmp_path, monkeypatch, caplog):
    """They are closed above the total; a consumer that reads gets every answer meanwhile."""
    monkeypatch.setattr("hastore.broker.port.output_total.STALLED_S", 0.2)
    limits = {"output_size_total_max": 2_000 * KIB, "pull_size_max": 1_000 * KIB}
    async with open_master(tmp_path, **limits) as master:
        # Pieces too small for sendfile: two topics take turns.
        for _ in range(100):
            await master.put(Message("L", bytes(8_000)))
            await master.put(Message("M", bytes(100)))
        await dispatched(master, master.max_offset)
        async with contextlib.AsyncExitStack() as stack, raw_client(master.address) as client:
            pulls = [encode_command(pull_command(n, topic="L", count_max=1000)) for n in range(20)]
            for _ in range(4):
                deaf = await stack.enter_async_context(raw_client(master.address))
                deaf.sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
                await deaf.send(*pulls)
            for n in range(10):
                with trio.fail_after(WITHIN_S):
                    answer = await client.ask(pull_command(n, topic="L", count_max=1000))
                assert (answer.code, len(answer.body) > 700_000) == (0, True)
    assert "output_size_total_max" in kinds(caplog)


# -- slaves ----------------------------------------------------------------------------------------


async def test_slaves_per_address_are_limited(tmp_path, caplog):
    """The address's silent peer is evicted; without one the new connection is closed."""
    ha = attrs.evolve(QUICK, ha_connections_per_address_max=2)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        raw_slave(master) as unidentified,
        raw_slave(master) as first,
    ):
        await first.report(0)
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        async with hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave:
            await unidentified.closed_by_master()
            await eventually(lambda: slave.status().state == "streaming")
            async with raw_slave(master) as third:
                await third.closed_by_master()
            assert len(master.status().slaves) == 2
        reasons = [refusal.reason for refusal in master.ha_service.refusals]
        assert reasons == [
            "evicted: 2 connections of this address, and no report",
            "2 connections of this address are there already",
        ]
    assert kinds(caplog) == ["ha_connections_per_address_max"]  # once for both


async def test_peer_without_a_complete_report_is_closed(tmp_path, caplog):
    """Other bytes are no sign of life: the time-out of the first report applies."""
    ha = attrs.evolve(QUICK, ha_first_report_timeout_ms=100)
    async with hastore.open_master(master_config(tmp_path, ha=ha)) as master:
        async with raw_slave(master) as peer:
            await peer.sock.send(b"\0\0\0")
            with trio.fail_after(WITHIN_S):
                await peer.closed_by_master()
        assert master.ha_service.refusals[0].reason == "no report within 100 ms"
    assert kinds(caplog) == ["ha_first_report_timeout_ms"]


async def test_bytes_without_a_complete_report_count_as_silence(tmp_path, autojump_clock):
    """Housekeeping drops a slave while it still sends a byte now and then."""
    autojump_clock.autojump_threshold = 0.02
    sent = []
    ha = attrs.evolve(QUICK, ha_housekeeping_interval_ms=200, ha_send_heartbeat_interval_ms=50)
    config = master_config(tmp_path, ha=ha)
    async with hastore.open_master(config, env=RealFiles().env) as master:
        async with raw_slave(master) as peer, trio.open_nursery() as nursery:
            await peer.report(0)

            async def trickle():
                with contextlib.suppress(OSError):
                    for _ in range(7):
                        await peer.sock.send(b"\0")
                        sent.append(trio.current_time())
                        await trio.sleep(0.05)

            nursery.start_soon(trickle)
            with trio.fail_after(WITHIN_S):
                await peer.closed_by_master()
            nursery.cancel_scope.cancel()
        assert len(sent) < 7
        assert "silent for 200 ms" in master.ha_service.unavailable_because(0)


# -- the log ---------------------------------------------------------------------------------------


async def test_refusal_is_logged_once_a_minute_for_each_kind_and_peer(autojump_clock, caplog):
    """The next line has the number of refusals that were not logged."""
    log = PeerLog(logger("remoting"), "client_refused")
    for port in range(100):
        log.log_line(("10.0.0.1", port), kind="idle", reason="idle")
    log.log_line(("10.0.0.1", 1), kind="frame", reason="too large")
    log.log_line(("10.0.0.2", 1), kind="idle", reason="idle")
    assert len(caplog.records) == 3
    await trio.sleep(peers.INTERVAL_S)
    log.log_line(("10.0.0.1", 7), kind="idle", reason="idle")
    assert caplog.records[-1].msg["more"] == 99


async def test_refusals_of_many_addresses_are_limited_too(autojump_clock, caplog):
    """There is a limit of lines a minute in all, and of remembered peers."""
    log = PeerLog(logger("remoting"), "client_refused")
    for n in range(5_000):
        log.log_line((f"10.0.{n // 256}.{n % 256}", 1), kind="idle", reason="idle")
    assert len(caplog.records) == peers.LINES_MAX
    await trio.sleep(peers.INTERVAL_S)
    log.log_line(("10.9.9.9", 1), kind="idle", reason="idle")
    assert caplog.records[-1].msg["others"] == 5_000 - peers.LINES_MAX
    assert len(log._logged) <= peers.HOSTS_MAX


async def test_slaves_that_come_and_go_are_logged_ten_times_a_minute(tmp_path, caplog):
    """The limit is per address; connections of healthy slaves are all logged."""
    caplog.set_level(logging.INFO, logger="hastore")
    async with hastore.open_master(master_config(tmp_path, ha=QUICK)) as master:
        for _ in range(15):
            async with raw_slave(master) as peer:
                await peer.report(0)
                await peer.frame()  # a heartbeat: the slave is known
                await peer.report(-5)
                await peer.closed_by_master()
    events = [record.msg["event"] for record in caplog.records]
    assert events.count("ha_slave_connected") == 10
    assert events.count("ha_slave_gone") == 10
    assert events.count("ha_slave_refused") == 1


def test_peer_key_is_an_ipv4_address_or_an_ipv6_network():
    """IPv4 mapped into IPv6 counts as IPv4; IPv6 counts by /64; anything else by its text."""
    assert peer_key("10.0.0.1") == "10.0.0.1" == peer_key("::ffff:10.0.0.1")
    assert peer_key("2001:db8::1") == peer_key("2001:db8::ffff:2") == "2001:db8::/64"
    assert peer_key("2001:db8:0:1::1") != peer_key("2001:db8::1")
    assert peer_key("fe80::1%eth0").startswith("fe80::")
    assert peer_key("not:an:address") == "not:an:address"


def test_an_address_without_connections_is_forgotten():
    """Counting up and down leaves no entry."""
    count = PeerCount()
    for port in (1, 2):
        count.add(("10.0.0.1", port))
    assert count.of(("10.0.0.1", 9)) == 2
    for port in (1, 2):
        count.remove(("10.0.0.1", port))
    assert count.of(("10.0.0.1", 9)) == 0
    assert not count._counts


def test_refusals_are_logged_as_warnings(caplog):
    """Operators see them without a lower log level."""
    caplog.set_level(logging.WARNING, logger="hastore")

    async def main():
        PeerLog(logger("ha"), "ha_slave_refused", "slave").log_line(("::1", 5), reason="why")

    trio.run(main)
    assert caplog.records[0].msg["slave"] == "[::1]:5"
