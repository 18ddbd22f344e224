"""A put that reads its slave's report itself: when it may, and how else it can end."""

import contextlib
import errno
import os
import socket
import struct

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.env.real import real_env
from hastore.env.sending import RealSecondReceiver
from hastore.ha.read_loan import ACKS_WITHOUT_OFFER, ReadLoan
from hastore.message import Message
from hastore.status import PutMessageStatus
from tests.patience import WITHIN_S
from tests.support.nodes.configs import QUICK
from tests.support.nodes.harness import master_config, raw_slave
from tests.support.waiting import eventually

MESSAGE = Message("orders", b"body")
OK = PutMessageStatus.PUT_OK
TIMEOUT = PutMessageStatus.FLUSH_SLAVE_TIMEOUT
PATIENT = attrs.evolve(QUICK, slave_timeout_ms=600_000)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close(2) resets the connection


@attrs.define(eq=False)
class Receivers:
    """Counts what puts read from links."""

    reading: int = 0  # puts, now
    read: int = 0  # reports that puts have read

    def env(self):
        """Return an environment that counts."""

        def second_receiver(sock):
            return Counted(RealSecondReceiver(sock), self)

        return attrs.evolve(real_env(), second_receiver=second_receiver)


@attrs.define(eq=False)
class Counted:
    """A second receiver that counts."""

    receiver: RealSecondReceiver
    counts: Receivers

    async def receive(self, buffer):
        self.counts.reading += 1
        try:
            count = await self.receiver.receive(buffer)
        finally:
            self.counts.reading -= 1
        self.counts.read += bool(count)
        return count

    def interrupt(self):
        self.receiver.interrupt()

    def close(self):
        self.receiver.close()


async def start_slave(master, slave):
    """Let a raw slave begin at the master's end."""
    await slave.report(master.max_offset)
    await eventually(lambda: master.ha_service.is_slave_ok(master.max_offset))


async def acknowledge(master, slave):
    """Acknowledge all frames for ever."""
    acked = master.max_offset
    while (frame := await slave.frame()) is not None:
        offset, body = frame
        if body:
            acked = offset + len(body)
            await slave.report(acked)


async def acknowledge_next(slave):
    """Acknowledge the next frame that has a body."""
    body = b""
    while not body:
        offset, body = await slave.frame()
    await slave.report(offset + len(body))


@contextlib.asynccontextmanager
async def pair(tmp_path, env, ha=PATIENT):
    """A master, a slave that has begun, and a nursery that is cancelled at the end."""
    config = master_config(tmp_path / "m", ha=ha)
    with trio.fail_after(WITHIN_S):
        async with (
            hastore.open_master(config, env=env) as master,
            raw_slave(master) as slave,
            trio.open_nursery() as nursery,
        ):
            await start_slave(master, slave)
            yield master, slave, nursery
            nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def put_that_reads(tmp_path, ha=PATIENT):
    """A master and a slave that has the first of two puts only; the second one reads its link."""
    receivers = Receivers()
    statuses = []

    async def produce():
        statuses.append((await master.put(MESSAGE)).status)
        statuses.append((await master.put(MESSAGE)).status)
        statuses.append("went on")

    async with pair(tmp_path, receivers.env(), ha) as (master, slave, nursery):
        nursery.start_soon(produce)
        await acknowledge_next(slave)
        await eventually(lambda: receivers.reading)
        assert (statuses, receivers.read) == ([OK], 0)
        yield master, slave, statuses, receivers


@pytest.mark.parametrize("puts_batches", [False, True])
async def test_all_puts_but_the_first_read_their_reports(tmp_path, puts_batches):
    """Of a producer that puts one after the other; several of them leave that to the link."""
    receivers = Receivers()

    async def produce(count):
        for _ in range(count):
            if puts_batches:
                status = (await master.put_batch([MESSAGE, MESSAGE])).status
            else:
                status = (await master.put(MESSAGE)).status
            assert status is OK

    async with pair(tmp_path, receivers.env()) as (master, slave, nursery):
        nursery.start_soon(acknowledge, master, slave)
        await produce(20)
        assert receivers.read >= 18
        read = receivers.read
        async with trio.open_nursery() as producers:
            for _ in range(8):
                producers.start_soon(produce, 20)
        assert receivers.read - read < 40  # of 160


async def test_a_request_that_was_submitted_reads_through_wait_for(tmp_path):
    """As ``put`` does; a decided one returns at once."""
    receivers = Receivers()
    async with pair(tmp_path, receivers.env()) as (master, slave, nursery):
        nursery.start_soon(acknowledge, master, slave)
        for _ in range(10):
            request = master.submit(MESSAGE)
            await master.wait_for(request)
            assert request.status is OK
        await master.wait_for(request)
        assert receivers.read >= 8


async def test_a_deadline_wakes_a_put_that_reads(tmp_path, mock_clock):
    """Nothing arrives; and then the link's task reads again."""
    mock_clock.rate = 1.0
    ha = attrs.evolve(QUICK, slave_timeout_ms=15_000)
    async with put_that_reads(tmp_path, ha) as (master, slave, statuses, receivers):
        mock_clock.jump(15.0)
        await eventually(lambda: len(statuses) == 3)
        assert statuses == [OK, TIMEOUT, "went on"]
        assert receivers.reading == 0
        await acknowledge_next(slave)
        await eventually(lambda: master.status().slaves[0].ack_offset == master.max_offset)
        assert receivers.read == 0


async def test_another_slaves_ack_wakes_a_put_that_reads(tmp_path):
    """The first link goes on."""
    async with put_that_reads(tmp_path) as (master, slave, statuses, receivers):
        async with raw_slave(master) as other:
            await other.report(master.status().push2_slave_max_offset)
            await acknowledge_next(other)
            await eventually(lambda: len(statuses) == 3)
            assert statuses == [OK, OK, "went on"]
            assert receivers.read == 0
            await acknowledge_next(slave)
            await eventually(
                lambda: (
                    [each.ack_offset for each in master.status().slaves] == [master.max_offset] * 2
                )
            )


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("closes", "closed by the slave"),
        ("resets", "link broken: Connection reset by peer"),
        ("reports nonsense", "refused: "),
    ],
)
async def test_a_link_ends_as_if_its_own_task_had_read(tmp_path, how, reason):
    """And the put waits on."""
    async with put_that_reads(tmp_path) as (master, slave, statuses, receivers):
        if how == "reports nonsense":
            await slave.report(master.max_offset + 1_000_000)
        else:
            await slave.frame()
            if how == "resets":
                slave.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                slave.sock.close()
            else:
                slave.sock.shutdown(socket.SHUT_WR)  # a close would reset if a frame is unread
        await eventually(lambda: master.ha_service.departure is not None)
        assert master.ha_service.departure.reason.startswith(reason)
        assert (statuses, receivers.reading) == ([OK], 0)


async def test_a_link_that_ends_otherwise_wakes_a_put_that_reads(tmp_path):
    """As that of a silent slave does; the put waits on, and no task reads."""
    async with put_that_reads(tmp_path) as (master, slave, statuses, receivers):
        for connection in master.ha_service.connections.values():
            connection.finish("silent")
        await slave.closed_by_master()
        await eventually(lambda: not receivers.reading)
        assert master.ha_service.departure.reason == "silent"
        assert master.ha_service.loan is None
        assert statuses == [OK]


async def test_a_put_is_decided_by_the_report_before_the_end(tmp_path):
    """The report and the end arrive together."""
    async with put_that_reads(tmp_path) as (master, slave, statuses, _receivers):
        await slave.report(master.max_offset)
        slave.sock.close()
        await eventually(lambda: len(statuses) == 3)
        assert statuses == [OK, OK, "went on"]
        await eventually(lambda: master.ha_service.departure is not None)


@pytest.mark.parametrize("tasks", [1, 2])
async def test_one_put_reads_if_it_is_the_only_one(tmp_path, tasks):
    """Not while another one waits; and one of two tasks that wait for the same put."""
    receivers = Receivers()
    async with pair(tmp_path, receivers.env()) as (master, slave, nursery):
        requests, went_on = [], trio.Event()

        async def produce():
            await master.put(MESSAGE)
            requests.append(master.submit(MESSAGE))
            if tasks == 1:
                requests.append(master.submit(MESSAGE))
            else:
                nursery.start_soon(master.wait_for, requests[0])
            await master.wait_for(requests[-1])
            went_on.set()

        nursery.start_soon(produce)
        await acknowledge_next(slave)
        await eventually(lambda: requests)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert receivers.reading == tasks - 1
        await slave.report(master.max_offset)
        await went_on.wait()
        assert {request.status for request in requests} == {OK}
        assert receivers.read == tasks - 1


async def test_a_cancelled_put_gives_the_link_back(tmp_path):
    """Its own task reads the report then."""
    receivers = Receivers()
    async with pair(tmp_path, receivers.env()) as (master, slave, nursery):

        async def produce():
            await master.put(MESSAGE)
            await master.put(MESSAGE)

        nursery.start_soon(produce)
        await acknowledge_next(slave)
        await eventually(lambda: receivers.reading)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await eventually(lambda: not receivers.reading)
            await acknowledge_next(slave)
            await eventually(lambda: master.status().slaves[0].ack_offset == master.max_offset)
            assert receivers.read == 0


async def test_the_end_of_the_master_wakes_a_put_that_reads(tmp_path):
    """With the status of any put that waits then."""
    statuses = []

    async def produce():
        statuses.append((await master.put(MESSAGE)).status)
        statuses.append((await master.put(MESSAGE)).status)

    receivers = Receivers()
    config = master_config(tmp_path / "m", ha=PATIENT)
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            async with hastore.open_master(config, env=receivers.env()) as master:
                async with raw_slave(master) as slave:
                    await start_slave(master, slave)
                    nursery.start_soon(produce)
                    await acknowledge_next(slave)
                    await eventually(lambda: receivers.reading)
                    other = master.submit(MESSAGE)
                    master.stop()
                    await eventually(lambda: len(statuses) == 2)
                    assert receivers.reading == 0
    assert statuses == [OK, other.status]
    assert other.status is not OK


@pytest.mark.parametrize(("spin_us", "slaves"), [(10, 1), (0, 2)])
async def test_no_put_reads(tmp_path, spin_us, slaves):
    """While the master polls, or another slave's ack would decide most puts."""
    receivers = Receivers()
    config = master_config(tmp_path / "m", ha=attrs.evolve(PATIENT, ha_spin_us=spin_us))
    with trio.fail_after(WITHIN_S):
        async with (
            hastore.open_master(config, env=receivers.env()) as master,
            contextlib.AsyncExitStack() as stack,
            trio.open_nursery() as nursery,
        ):
            for _ in range(slaves):
                slave = await stack.enter_async_context(raw_slave(master))
                await slave.report(master.max_offset)
                nursery.start_soon(acknowledge, master, slave)
            await eventually(lambda: len(master.ha_service.standing().slaves) == slaves)
            for _ in range(20):
                assert (await master.put(MESSAGE)).status is OK
            assert receivers.read == 0
            nursery.cancel_scope.cancel()


async def test_a_link_without_a_second_descriptor_works(tmp_path):
    """The process has as many as it may; the link is not tried again at each ack."""
    tried = []

    def second_receiver(_sock):
        tried.append(None)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    env = attrs.evolve(real_env(), second_receiver=second_receiver)
    async with pair(tmp_path, env) as (master, slave, nursery):
        nursery.start_soon(acknowledge, master, slave)
        for _ in range(20):
            assert (await master.put(MESSAGE)).status is OK
        assert len(tried) == 1


async def test_an_offer_that_no_put_took_is_not_repeated_soon(tmp_path, monkeypatch):
    """It costs two turns of the read task, for nothing with a producer that rests."""
    offers, statuses = [], []
    offer = ReadLoan.offer

    async def counting(self):
        offers.append(len(statuses))
        return await offer(self)

    monkeypatch.setattr(ReadLoan, "offer", counting)
    async with pair(tmp_path, real_env()) as (master, slave, nursery):
        nursery.start_soon(acknowledge, master, slave)
        for _ in range(2 * ACKS_WITHOUT_OFFER + 4):
            statuses.append((await master.put(MESSAGE)).status)
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        assert set(statuses) == {OK}
        assert offers == [0, ACKS_WITHOUT_OFFER + 1, 2 * ACKS_WITHOUT_OFFER + 2]


# -- the second descriptor -----------------------------------------------------------------------


@pytest.fixture
def ends():
    """Two ends of a connection; the first is trio's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with trio.socket.from_stdlib_socket(ours) as sock, theirs:
        yield sock, theirs


async def test_a_second_receiver_receives_what_the_socket_would(ends):
    """And 0 at the end; the socket works on once it is closed."""
    sock, theirs = ends
    receiver = RealSecondReceiver(sock)
    buffer = memoryview(bytearray(10))
    theirs.send(b"123")
    assert await receiver.receive(buffer) == 3
    assert bytes(buffer[:3]) == b"123"
    receiver.close()
    receiver.close()
    receiver.interrupt()
    theirs.send(b"45")
    assert await sock.recv(10) == b"45"


async def test_a_second_receiver_meets_the_end(ends):
    """Of the stream."""
    sock, theirs = ends
    receiver = RealSecondReceiver(sock)
    theirs.close()
    assert await receiver.receive(memoryview(bytearray(10))) == 0
    receiver.close()


@pytest.mark.parametrize("how", ["interrupt", "close"])
async def test_a_second_receiver_is_interrupted(ends, how):
    """It can receive again, unless it is closed."""
    sock, theirs = ends
    receiver = RealSecondReceiver(sock)
    found = []

    async def receive():
        found.append(await receiver.receive(memoryview(bytearray(10))))

    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            getattr(receiver, how)()
        if how == "interrupt":
            theirs.send(b"1")
            await receive()
    assert found == ([None, 1] if how == "interrupt" else [None])
    receiver.close()


async def test_a_second_receiver_that_wakes_in_vain_says_so(ends, monkeypatch):
    """The other descriptor's reader was quicker."""
    sock, _theirs = ends
    receiver = RealSecondReceiver(sock)

    async def wait_readable(_sock):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    assert await receiver.receive(memoryview(bytearray(10))) is None
    receiver.close()
