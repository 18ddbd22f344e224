"""No PUT_OK leaves after the end of a master's lease; all other answers do."""

import contextlib

import attrs
import pytest
import trio

from hastore.concurrency.group_commit_request import LEASE_OVER
from hastore.concurrency.lease import Lease
from hastore.concurrency.tcp import send_all
from hastore.status import PutMessageStatus
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.waiting import eventually


@attrs.define
class Clock:
    """A clock that stands still."""

    now: float = 0.0

    def __call__(self):
        return self.now


def lease_of(clock):
    """Return a lease that lasts."""
    lease = Lease(clock)
    lease.renewed(clock.now, 10, 10)
    return lease


@contextlib.asynccontextmanager
async def small_client(address):
    """Connect with a receive buffer for few answers."""
    with trio.socket.socket() as sock:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 2_048)
        await sock.connect(address)
        yield sock


async def test_a_put_that_was_decided_in_time_is_not_put_ok_after_the_end():
    """It is stored; that no other master lacks it is not told any more."""
    clock, target = Clock(), InMemoryTarget(answer=None)
    lease = lease_of(clock)
    async with serving(target, lease=lease) as (_, address), raw_client(address) as client:
        assert (await decided(client, target)).code == ResponseCode.SUCCESS
        await client.send(send_command(2))
        await eventually(lambda: target.held)
        target.release()  # the writing task has not run yet
        clock.now = lease.deadline
        answer = await client.receive()
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert (answer.opaque, answer.remark) == (2, LEASE_OVER)
    assert answer.ext_fields["queueOffset"] == "1"


async def decided(client, target):
    """Put a message, decide it, and return the answer."""
    await client.send(send_command(1))
    await eventually(lambda: target.held)
    target.release()
    return await client.receive()


@pytest.mark.parametrize(
    "status", [PutMessageStatus.FLUSH_SLAVE_TIMEOUT, PutMessageStatus.SERVICE_NOT_AVAILABLE]
)
async def test_a_master_whose_lease_is_over_answers_all_that_is_not_put_ok(status):
    """A deposed master's clients learn what has become of their puts, and whom to ask."""
    clock, target = Clock(), InMemoryTarget(answer=status, reason="node 2 is master of epoch 8")
    lease = lease_of(clock)
    async with serving(target, lease=lease) as (_, address), raw_client(address) as client:
        lease.end()
        answers = [await client.ask(send_command(number)) for number in (1, 2)]
        assert (await client.ask(RemotingCommand(code=35, opaque=3))).opaque == 3
    assert {answer.remark for answer in answers} == {"node 2 is master of epoch 8"}
    assert {answer.ext_fields["putStatus"] for answer in answers} == {status.value}


async def put_many(sock):
    """Send puts until the connection ends."""
    data = b"".join(encode_command(send_command(number)) for number in range(2_000))
    with contextlib.suppress(OSError):
        await send_all(sock, data)


async def test_answers_that_a_peer_has_not_taken_by_the_end_never_leave():
    """Their connection ends, so that a part of an answer stays one."""
    clock, target = Clock(), InMemoryTarget(keep=False)
    lease = lease_of(clock)
    async with serving(target, lease=lease, send_buffer_size=4_096) as (server, address):
        async with small_client(address) as sock:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put_many, sock)
                received = len(await sock.recv(1))
                await trio.testing.wait_all_tasks_blocked(0.1)
                clock.now = lease.deadline
                with contextlib.suppress(OSError):
                    while taken := await sock.recv(65_536):
                        received += len(taken)
                nursery.cancel_scope.cancel()
        await eventually(lambda: not server.statistics().connections)
    assert received < 100_000
