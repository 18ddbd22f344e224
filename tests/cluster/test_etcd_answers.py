"""The client of etcd and servers that are none, or answer part of what was asked, or nothing."""

from __future__ import annotations

import contextlib
import gc
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from hastore.cluster import etcd_http
from hastore.cluster.etcd_client import LOGIN_PAUSE_MIN_S, EtcdClient, EtcdConfig
from hastore.cluster.key_value_store import Changes, Put
from hastore.errors import (
    CompactedError,
    ConfigError,
    CoordinatorError,
    CoordinatorLoginError,
    CoordinatorRefusedError,
    CoordinatorTlsError,
    CoordinatorUnreachableError,
)
from hastore.testing.free_port import FreePort
from tests.cluster.scripted_http import HEADER, OK_HEAD, answer, scripted_http, stream
from tests.patience import WITHIN_S

SHORT_S = 0.3
EMPTY = answer(b"{%s}" % HEADER)
CHANGED = b'{"result": {%s, "events": [{"kv": {"key": "L2s=", "mod_revision": "10"}}]}}\n' % HEADER
CREATED = b'{"result": {%s, "created": true}}\n' % HEADER


def config(*endpoints: str, timeout_s: float = WITHIN_S) -> EtcdConfig:
    """Return how to reach some endpoints."""
    return EtcdConfig(endpoints=endpoints, timeout_s=timeout_s)


CALLS: dict[str, Callable[[EtcdClient], object]] = {
    "read": lambda client: client.read("/"),
    "commit": lambda client: client.commit([], [Put("/k", b"")]),
    "grant": lambda client: client.grant(5),
    "renew": lambda client: client.renew(7),
    "revoke": lambda client: client.revoke(7),
}
GARBAGE = {
    "a page": answer(b"<html>It works!</html>"),
    "another server's error": answer(b"404 page not found", b"HTTP/1.1 404 Not Found\r\n"),
    "a redirection": answer(b"", b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n"),
    "a list": answer(b"[]"),
    "deep": answer(b"[" * 100_000),
    "infinity": answer(b'{"header": {"cluster_id": Infinity, "revision": NaN}, "kvs": 1}'),
    "half an answer": OK_HEAD + b"Content-Length: 100\r\n\r\n{",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a closed connection": b"",
    "a bad chunk": OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "compressed": answer(gzip.compress(b"{}"), OK_HEAD + b"Content-Encoding: gzip\r\n"),
}


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("call", ["read", "commit"])
async def test_garbage_is_no_answer(call: str, garbage: str) -> None:
    """It says nothing about what was done; the error names the endpoint."""
    async with scripted_http(lambda _: GARBAGE[garbage]) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            with pytest.raises(CoordinatorUnreachableError, match=server.endpoint):
                await CALLS[call](client)


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_ends_a_watch(garbage: str) -> None:
    """As a broken one."""
    async with scripted_http(lambda _: GARBAGE[garbage]) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            async with client.changes("/", 9) as changes:
                with pytest.raises(CoordinatorUnreachableError, match=server.endpoint):
                    await anext(changes)


@pytest.mark.parametrize("call", CALLS)
async def test_no_answer_within_the_timeout(call: str) -> None:
    """One timeout is over everything, also where answers are slow."""
    async with scripted_http(lambda _: None) as server:
        async with EtcdClient.open(config(server.endpoint, timeout_s=SHORT_S)) as client:
            began = trio.current_time()
            with pytest.raises(CoordinatorUnreachableError, match="no answer to /v3"):
                await CALLS[call](client)
            assert trio.current_time() - began >= SHORT_S


async def test_an_answer_that_trickles_is_cut_off() -> None:
    """Bytes that arrive do not extend the timeout."""

    async def trickle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(OK_HEAD + b"Content-Length: 1000000\r\n\r\n")
            with contextlib.suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(b" ")
                    await trio.sleep(SHORT_S / 10)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, trickle, [listener])
        async with EtcdClient.open(config(endpoint, timeout_s=SHORT_S)) as client:
            with pytest.raises(CoordinatorUnreachableError, match="no answer"):
                await client.read("/")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "endless", [answer(b" " * 2000), stream(b" " * 600, b" " * 600)], ids=["whole", "line"]
)
async def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch, endless: bytes) -> None:
    """No peer fills the memory: an answer, and a line of a watch, are given up beyond it."""
    monkeypatch.setattr(etcd_http, "ANSWER_SIZE_MAX", 1000)
    monkeypatch.setattr(etcd_http, "SHORT_ANSWER_SIZE_MAX", 500)
    async with scripted_http(lambda _: endless, stays=True) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            with pytest.raises(CoordinatorUnreachableError, match="an answer of more than"):
                await client.read("/")
            with pytest.raises(CoordinatorUnreachableError, match="an answer of more than"):
                await client.grant(5)
            async with client.changes("/", 9) as changes:
                with pytest.raises(CoordinatorUnreachableError, match="an answer of more than"):
                    await anext(changes)


UNANSWERED = {
    "the connection breaks": b"",
    "no leader": answer(
        b'{"error": "etcdserver: no leader", "message": "etcdserver: no leader", "code": 14}',
        b"HTTP/1.1 503 Service Unavailable\r\n",
    ),
    "silence": None,
}


@pytest.mark.parametrize("why", UNANSWERED)
async def test_a_transaction_is_never_sent_twice(why: str) -> None:
    """Once it may have left, only its sender can say what to do; the next call begins elsewhere."""
    async with (
        scripted_http(lambda _: UNANSWERED[why]) as bad,
        scripted_http(lambda _: EMPTY) as ok,
    ):
        timeout_s = 2.0 if UNANSWERED[why] is None else WITHIN_S
        async with EtcdClient.open(
            config(bad.endpoint, ok.endpoint, timeout_s=timeout_s)
        ) as client:
            with pytest.raises(CoordinatorUnreachableError):
                await client.commit([], [Put("/k", b"")])
            assert (bad.asked, ok.asked) == (["/v3/kv/txn"], [])
        async with EtcdClient.open(config(bad.endpoint, ok.endpoint)) as client:
            bad.script = lambda _: b""
            with pytest.raises(CoordinatorUnreachableError):
                await client.commit([], [Put("/k", b"")])
            await client.commit([], [Put("/k", b"")])
            assert ok.asked == ["/v3/kv/txn"]


@pytest.mark.parametrize("why", ["the connection breaks", "no leader"])
async def test_what_may_be_sent_twice_goes_to_the_next_endpoint(why: str) -> None:
    """A read, for example; and the endpoint that answered is asked first from then on."""
    async with (
        scripted_http(lambda _: UNANSWERED[why]) as bad,
        scripted_http(lambda _: EMPTY) as ok,
    ):
        async with EtcdClient.open(config(bad.endpoint, ok.endpoint)) as client:
            assert (await client.read("/")).revision == 9
            assert (await client.read("/")).revision == 9
        assert (len(bad.asked), len(ok.asked)) == (1, 2)


async def test_a_silent_endpoint_has_a_share_of_the_time() -> None:
    """A read is answered by the second endpoint after the first has used half."""
    timeout_s = 6.0
    async with scripted_http(lambda _: None) as bad, scripted_http(lambda _: EMPTY) as ok:
        async with EtcdClient.open(
            config(bad.endpoint, ok.endpoint, timeout_s=timeout_s)
        ) as client:
            began = trio.current_time()
            assert (await client.read("/")).revision == 9
            assert trio.current_time() - began >= timeout_s / 2


async def test_an_endpoint_without_a_server_costs_nothing() -> None:
    """Nothing was sent there, so that a transaction goes on to the next."""
    with FreePort() as port:
        dead = f"http://127.0.0.1:{port.number}"
        async with scripted_http(lambda _: EMPTY) as server:
            async with EtcdClient.open(config(dead, server.endpoint)) as client:
                assert (await client.commit([], [Put("/k", b"")])).revision == 9
            async with EtcdClient.open(config(dead, dead)) as client:
                with pytest.raises(
                    CoordinatorUnreachableError, match=r"no connection.*;.*no conn"
                ) as no:
                    await client.commit([], [Put("/k", b"")])
                assert "is it running" in str(no.value.hint)


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Return an endpoint that answers no SYN: the queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(listener.getsockname())
        yield "http://{}:{}".format(*listener.getsockname())


@pytest.mark.parametrize("call", ["read", "commit"])
async def test_an_endpoint_that_cannot_be_connected_is_not_said_to_be_slow(call: str) -> None:
    """It was "no answer … does it have a majority, and is its disk quick enough?"."""
    with black_hole() as dead:
        async with EtcdClient.open(config(dead, dead, timeout_s=1.0)) as client:
            with pytest.raises(CoordinatorUnreachableError) as caught:
                await CALLS[call](client)
            assert str(caught.value).count("no connection") == 2
            assert "is it running" in str(caught.value.hint)
            with pytest.raises(CoordinatorUnreachableError, match="no connection"):
                async with client.changes("/", 9) as changes:
                    await anext(changes)
            (found, _) = await client.health("/")
            assert "no connection" in str(found)


async def test_a_request_that_cannot_be_sent_leaves_nothing_open() -> None:
    """A server that hangs up before it has read all is unreachable; nothing is warned of."""

    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, hang_up, [listener])
        async with EtcdClient.open(config(endpoint)) as client:
            with pytest.raises(CoordinatorUnreachableError, match="connection broke"):
                await client.commit([], [Put("/k", bytes(8 * 2**20))])
        gc.collect()
        nursery.cancel_scope.cancel()


async def test_a_connection_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one request at a time; not after a cancelled one, nor once it has idled for long."""
    async with scripted_http(lambda _: EMPTY, stays=True) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            for _ in range(3):
                await client.read("/")
            assert server.connections == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.read, "/")
                nursery.start_soon(client.read, "/")
            assert server.connections == 2
            server.script = lambda _: None
            with trio.move_on_after(SHORT_S):
                await client.read("/")
            server.script = lambda _: EMPTY
            await client.read("/")
            assert server.connections == 2, "the other one was idle"
            monkeypatch.setattr(etcd_http, "_IDLE_MAX_S", 0.0)
            await client.read("/")
            assert server.connections == 3


async def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    """What it says, or that it is readable while it idles, tells in time."""
    async with scripted_http(lambda _: EMPTY) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            for _ in range(3):
                await client.read("/")
        assert server.connections == 3

    async def answer_once(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(EMPTY)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, answer_once, [listener])
        async with EtcdClient.open(config(endpoint)) as client:
            for _ in range(3):
                await client.read("/")
                await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()


async def test_what_follows_an_answer_is_not_the_next_one() -> None:
    """A proxy says that it has waited for long enough, and closes the connection."""
    farewell = b"HTTP/1.1 408 Request Time-out\r\nContent-Length: 0\r\n\r\n"
    async with scripted_http(lambda _: EMPTY + farewell, stays=True) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            for _ in range(2):
                assert (await client.read("/")).revision == 9
        assert server.connections == 2


LOGIN = "/v3/auth/authenticate"
CALLERS = 13
WRONG_PASSWORD = answer(
    b'{"error": "x", "code": 3,'
    b' "message": "etcdserver: authentication failed, invalid user ID or password"}',
    b"HTTP/1.1 400 Bad Request\r\n",
)


@contextlib.asynccontextmanager
async def logging_in(script: Callable[[str], bytes | None]) -> AsyncIterator[tuple[Any, ...]]:
    """Run a server that answers logins by ``script``, and a client with a password."""

    def answer_to(path: str) -> bytes | None:
        return script(path) if path == LOGIN else EMPTY

    async with scripted_http(answer_to) as server:
        with_password = EtcdConfig(
            endpoints=(server.endpoint,), timeout_s=WITHIN_S, user="u", password="p"
        )
        async with EtcdClient.open(with_password) as client:
            yield server, client


async def test_many_calls_log_in_once() -> None:
    """Etcd hashes a password for a tenth of a second: 13 at once kept it from all else."""
    async with logging_in(lambda _: answer(b'{%s, "token": "t"}' % HEADER)) as (server, client):
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(client.read, "/")
        assert server.asked.count(LOGIN) == 1
        assert len(server.asked) == CALLERS + 1


async def test_a_login_that_is_refused_is_tried_again_later() -> None:
    """All calls that wait for it fail with it, and so do those within the pause; it doubles."""
    async with logging_in(lambda _: WRONG_PASSWORD) as (server, client):

        async def fail() -> None:
            with pytest.raises(CoordinatorLoginError, match="authentication failed") as caught:
                await client.read("/")
            assert "password" in str(caught.value.hint)

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(fail)
        assert server.asked == [LOGIN]
        for tries in (2, 3):
            client._login_again_at = trio.current_time()
            await fail()
            await fail()
            assert server.asked == [LOGIN] * tries
        assert client._login_pause_s == 4 * LOGIN_PAUSE_MIN_S


@pytest.mark.parametrize("token", ["é", "a\\nb"])
async def test_a_token_that_is_no_header_is_no_answer(token: str) -> None:
    """A UnicodeEncodeError ended the node."""
    login = answer(b'{%s, "token": "%s"}' % (HEADER, token.encode()))
    async with logging_in(lambda _: login) as (_, client):
        with pytest.raises(CoordinatorUnreachableError, match="a token"):
            await client.read("/")


async def test_a_login_without_an_answer_is_tried_again_soon() -> None:
    """Etcd may be back any moment."""
    async with logging_in(lambda _: b"") as (server, client):
        for tries in range(1, 4):
            with pytest.raises(CoordinatorUnreachableError):
                await client.read("/")
            assert server.asked == [LOGIN] * tries
            assert client._login_pause_s == LOGIN_PAUSE_MIN_S
            client._login_again_at = trio.current_time()


async def test_a_call_that_somebody_gives_up_leaves_the_silent_endpoint() -> None:
    """Else a caller with less patience than the timeout would ask it for ever."""
    async with scripted_http(lambda _: None) as bad, scripted_http(lambda _: EMPTY) as ok:
        async with EtcdClient.open(config(bad.endpoint, ok.endpoint)) as client:
            with trio.move_on_after(SHORT_S):
                await client.read("/")
            assert (await client.read("/")).revision == 9
        assert len(bad.asked) <= 1


def etcd_of_lines(*lines: bytes) -> Callable[[str], bytes]:
    """Return the script of an etcd whose watches have these lines, and then are silent."""
    return lambda path: stream(*lines) if path == "/v3/watch" else EMPTY


async def test_a_line_may_come_in_parts_and_with_others() -> None:
    """Parts are joined at line ends only."""
    event = b'{"kv": {"key": "L2s=", "create_revision": "%d", "mod_revision": "%d"}}'
    lines = CREATED + b"".join(
        b'{"result": {%s, "events": [%s]}}\n' % (HEADER, event % (number, number))
        for number in (10, 11)
    )
    for size in (1, 7, len(lines)):
        parts = [lines[at : at + size] for at in range(0, len(lines), size)]
        async with scripted_http(etcd_of_lines(*parts), stays=True) as server:
            async with EtcdClient.open(config(server.endpoint)) as client:
                async with client.changes("/", 9) as changes:
                    seen = [await anext(changes), await anext(changes)]
        assert [each.revision for each in seen] == [10, 11]
        assert isinstance(seen[0], Changes)


async def test_a_silent_watch_asks_for_a_sign_of_life() -> None:
    """As long as the endpoint answers, the watch goes on; once it does not, the watch is over."""
    reads = []
    timeout_s = 1.5

    def script(path: str) -> bytes | None:
        if path == "/v3/watch":
            return stream(CREATED)
        reads.append(path)
        return EMPTY if len(reads) <= 2 else None

    async with scripted_http(script, stays=True) as server:
        async with EtcdClient.open(config(server.endpoint, timeout_s=timeout_s)) as client:
            began = trio.current_time()
            async with client.changes("/", 9) as changes:
                with pytest.raises(CoordinatorUnreachableError, match="no answer to /v3/kv/range"):
                    await anext(changes)
            # The first read checks the history, the second is a sign of life, the third is none.
            assert trio.current_time() - began >= 3 * timeout_s
    assert reads == ["/v3/kv/range"] * 3


async def test_a_sign_of_life_that_is_not_needed_any_more_changes_no_endpoint() -> None:
    """A line came while it was asked for; the next request went to another endpoint."""
    is_asked, reads = trio.Event(), []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            while data := await stream.receive_some():
                if b"/v3/watch" in data:
                    await stream.send_all(OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                    await stream.send_all(b"%x\r\n%s\r\n" % (len(CREATED), CREATED))
                    await is_asked.wait()
                    await stream.send_all(b"%x\r\n%s\r\n" % (len(CHANGED), CHANGED))
                    continue
                reads.append(data)
                if len(reads) == 2:  # the first one checks the history
                    is_asked.set()
                    await trio.sleep_forever()
                await stream.send_all(EMPTY)

    async with trio.open_nursery() as nursery, scripted_http(lambda _: EMPTY) as other:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        endpoint = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        async with EtcdClient.open(config(endpoint, other.endpoint, timeout_s=1.0)) as client:
            async with client.changes("/", 9) as changes:
                assert (await anext(changes)).revision == 10
            await client.read("/")
        assert not other.asked
        nursery.cancel_scope.cancel()


async def test_a_watch_that_is_not_created_is_over() -> None:
    """The headers of an answer are no answer."""
    async with scripted_http(etcd_of_lines(), stays=True) as server:
        async with EtcdClient.open(config(server.endpoint, timeout_s=SHORT_S)) as client:
            async with client.changes("/", 9) as changes:
                with pytest.raises(CoordinatorUnreachableError, match="no answer to a watch"):
                    await anext(changes)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (b'"compact_revision": "20", "canceled": true', CompactedError),
        (
            b'"canceled": true, "cancel_reason": "etcdserver: no leader"',
            CoordinatorUnreachableError,
        ),
        (b'"canceled": true, "cancel_reason": "permission denied"', CoordinatorRefusedError),
    ],
)
async def test_a_watch_that_etcd_ends_says_why(reason: bytes, kind: type[CoordinatorError]) -> None:
    """Compacted, without a leader, or not permitted."""
    ended = b'{"result": {%s, %s}}\n' % (HEADER, reason)
    async with scripted_http(etcd_of_lines(CREATED, ended), stays=True) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            async with client.changes("/", 9) as changes:
                with pytest.raises(kind) as caught:
                    await anext(changes)
    assert type(caught.value) is kind


async def test_a_watch_that_is_cancelled_leaves_the_client_usable() -> None:
    """The connection of the watch is closed, others are not."""
    async with scripted_http(etcd_of_lines(CREATED), stays=True) as server:
        async with EtcdClient.open(config(server.endpoint)) as client:
            async with client.changes("/", 9) as changes:
                with trio.move_on_after(SHORT_S) as scope:
                    await anext(changes)
                assert scope.cancelled_caught
                with pytest.raises(StopAsyncIteration):
                    await anext(changes)
            assert (await client.read("/")).revision == 9


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:2379", "ftp://a:1", "http://", "http://a:b", "http://a:1/v3", "http://ä"],
)
async def test_what_is_no_endpoint_is_refused(text: str) -> None:
    """With what one looks like; before anything is asked."""
    with pytest.raises(ConfigError, match="no endpoint") as caught:
        async with EtcdClient.open(config(text)):
            pass
    assert "http://HOST:PORT" in str(caught.value.hint)


async def test_without_endpoints_nothing_is_opened() -> None:
    """An empty list is a mistake, too."""
    with pytest.raises(ConfigError, match="no endpoint"):
        async with EtcdClient.open(config()):
            pass


def test_the_password_is_not_shown() -> None:
    """Not by the repr that a traceback may have."""
    shown = repr(EtcdConfig(endpoints=("http://a:1",), user="root", password="secret"))
    assert "secret" not in shown


async def test_a_server_without_tls_is_named() -> None:
    """With https where it speaks http."""
    async with scripted_http(lambda _: EMPTY) as server:
        endpoint = server.endpoint.replace("http:", "https:")
        tls = attrs.evolve(config(endpoint), context=ssl.create_default_context())
        async with EtcdClient.open(tls) as client:
            with pytest.raises(CoordinatorTlsError) as caught:
                await client.read("/")
    assert "speak https" in str(caught.value.hint)
