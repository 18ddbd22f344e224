"""How many writes requests take: one for those of a pipeline, none that waits for others; faults.

The clock of these tests stands still, so that they do not depend on the machine's speed.
"""

from __future__ import annotations

import ssl

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hastore.client.pending_request import PendingRequest
from hastore.client.remoting_client import RemotingClient
from hastore.client.topic_routes import TopicRoutes
from hastore.errors import TlsError, UnreachableError
from hastore.tls.tls_fault import as_tls_error
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import FLAG_RESPONSE, RemotingCommand


class Socket:
    """Takes everything that is sent, and answers nothing."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    async def send(self, data: memoryview) -> int:
        """Take a write."""
        await trio.lowlevel.checkpoint()
        self.writes.append(bytes(data))
        return len(data)

    async def recv(self, _size: int) -> bytes:
        """Wait for an answer that does not come."""
        return await trio.sleep_forever()

    def getsockname(self) -> tuple[str, int]:
        """Return some address."""
        return "127.0.0.1", 1

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def sock() -> Socket:
    """Return a socket that counts writes."""
    return Socket()


@pytest.fixture
async def client(sock, nursery) -> RemotingClient:
    """Run a client on that socket."""
    client = RemotingClient(sock, ("127.0.0.1", 1), 10.0, 1_024)
    nursery.start_soon(client.run)
    await wait_all_tasks_blocked()
    return client


def posted(client: RemotingClient, size: int = 4) -> PendingRequest:
    """Post a request of that size."""
    pending = PendingRequest(client.next_opaque())
    client.post(pending, bytes(size))
    return pending


async def turns_until_sent(sock: Socket) -> int:
    """Return how many turns of all tasks pass until the first write."""
    turns = 0
    while not sock.writes:
        await trio.lowlevel.checkpoint()
        turns += 1
    return turns


async def test_what_is_posted_between_checkpoints_is_one_write(client, sock, mock_clock):
    """As by a task that waits for its oldest requests, most of which are answered already."""
    for _ in range(100):
        posted(client)
        await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    assert list(map(len, sock.writes)) == [400]


async def test_what_several_tasks_post_is_one_write(client, sock, nursery, mock_clock):
    """Whichever of them has its turn first."""

    async def post_some():
        for _ in range(20):
            posted(client)
            await trio.lowlevel.checkpoint()

    for _ in range(5):
        nursery.start_soon(post_some)
    await wait_all_tasks_blocked()
    assert list(map(len, sock.writes)) == [400]


async def test_a_request_that_a_task_waits_for_is_sent_at_once(client, sock, nursery, mock_clock):
    """By the next task that runs, which has no reason to wait for others."""

    async def ask():
        await posted(client).done()

    nursery.start_soon(ask)
    assert (
        await turns_until_sent(sock) <= 4
    )  # the task's, the sender's, the socket's; and one, as turns have no order


async def test_a_request_that_a_task_waits_for_hurries_those_before_it(
    client, sock, nursery, mock_clock
):
    """The newest one counts."""

    async def ask():
        posted(client)
        await posted(client).done()

    nursery.start_soon(ask)
    assert await turns_until_sent(sock) <= 4
    assert list(map(len, sock.writes)) == [8]


async def test_tasks_that_work_for_long_delay_no_request_by_their_number(
    client, sock, nursery, mock_clock
):
    """A write waits a millisecond, and for some turns that are not ours to end."""

    async def post_and_work():
        while True:
            posted(client)
            mock_clock.jump(0.0004)
            await trio.lowlevel.checkpoint()

    nursery.start_soon(post_and_work)
    began = trio.current_time()
    while not sock.writes:
        await trio.lowlevel.checkpoint()
    nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= 0.01


@pytest.mark.parametrize("ends", ["broken", "cancelled"])
async def test_requests_that_were_being_gathered_are_decided_at_the_end(ends, sock, mock_clock):
    """None of them was sent."""
    requests = []
    async with trio.open_nursery() as nursery:
        client = RemotingClient(sock, ("127.0.0.1", 1), 10.0, 1_024)
        nursery.start_soon(client.run)
        await wait_all_tasks_blocked()
        for _ in range(5):
            requests.append(posted(client))
            await trio.lowlevel.checkpoint()
        if ends == "broken":
            client.break_link("the test broke it")
        else:
            nursery.cancel_scope.cancel()
    assert sock.writes == []
    assert all(request.failure for request in requests)


class TlsSocketThatBreaks(Socket):
    """Answers some requests, then raises as TLS does for a record that was damaged on the way."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers
        self.is_damaged = trio.Event()

    async def recv(self, _size: int) -> bytes:
        """Return an answer to the next request while there are some."""
        if self.answers:
            while not self.writes:
                await trio.lowlevel.checkpoint()
            self.answers -= 1
            answer = RemotingCommand(code=ResponseCode.SUCCESS, opaque=1, flag=FLAG_RESPONSE)
            return encode_command(answer)
        await self.is_damaged.wait()
        raise as_tls_error(damaged_record())


def damaged_record() -> ssl.SSLError:
    """Return what OpenSSL raises for it."""
    error = ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]")
    error.reason = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    return error


@pytest.mark.parametrize(("answers", "expected"), [(0, TlsError), (1, UnreachableError)])
async def test_a_damaged_record_breaks_a_link_as_a_killed_node_does(nursery, answers, expected):
    """Who asks learns of TLS only where nothing was received: that may be the node's refusal."""
    sock = TlsSocketThatBreaks(answers)
    client = RemotingClient(sock, ("127.0.0.1", 1), 10.0, 1_024)
    nursery.start_soon(client.run)
    for _ in range(answers):
        assert (await client.ask(907)).code == ResponseCode.SUCCESS
    errors = []

    async def ask() -> None:
        with pytest.raises((UnreachableError, TlsError)) as caught:
            await client.ask(907)
        errors.append(caught.value)

    async with trio.open_nursery() as asking:
        for _ in range(3):
            asking.start_soon(ask)
        await wait_all_tasks_blocked()
        sock.is_damaged.set()
    assert [type(error) for error in errors] == [expected] * 3
    assert len({id(error) for error in errors}) == 3
    assert all("bad record mac" in str(error) and error.hint for error in errors)


async def test_routes_are_no_longer_asked_for_where_tls_fails():
    """The link says so, too; a producer's tasks go on."""

    class Refusing:
        async def ask(self, *_args: object) -> RemotingCommand:
            raise as_tls_error(damaged_record())

    routes = TopicRoutes()
    routes.of("T")
    await routes.run(Refusing())
    assert routes.of("T") == ()


async def test_a_task_that_posts_for_ever_delays_no_request_for_ever(
    client, sock, nursery, mock_clock
):
    """At 64 KiB a write is worth its cost."""

    async def post_for_ever():
        while True:
            posted(client, 1024)
            await trio.lowlevel.checkpoint()

    nursery.start_soon(post_for_ever)
    while len(sock.writes) < 3:
        await trio.lowlevel.checkpoint()
    nursery.cancel_scope.cancel()
    assert all(64 <= len(write) / 1024 <= 68 for write in sock.writes)
