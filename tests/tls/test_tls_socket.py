"""A TlsSocket carries bytes as a plain socket does, and says what is wrong with its peer.

Over real sockets, and over the simulator's, which split and delay as the seed decides.
"""

import _ssl
import ctypes
import random
import ssl
import sys
import sysconfig

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.concurrency.tcp import accept, connect, open_listener
from hastore.env.real import real_env
from hastore.errors import DiskError, TlsError
from hastore.sim.network import Network
from hastore.sim.sockets import (
    HOST,
    SimResolver,
    SimSocketFactory,
    sim_receive,
    sim_send_now,
    sim_send_while,
)
from hastore.tls import tls_socket
from hastore.tls.tls_calls import STEP_SIZE, TlsSendFile, tls_calls
from hastore.tls.tls_fault import TlsFault
from hastore.tls.tls_socket import PIECE_SIZE, accept_tls, connect_tls
from tests.support.tls import TIMEOUT_S, OwnCa, shaken_hands

A, B = "10.0.0.1", "10.0.0.2"
CA = OwnCa()
CERT = CA.cert("127.0.0.1", A, B)
SERVER, CLIENT = CA.server(CERT), CA.client(CERT)
DATA = random.Random(5).randbytes(3 * PIECE_SIZE + 12_345)
ENV = real_env()


def sim_env():
    """Return an environment whose socket calls are the simulator's."""
    return attrs.evolve(ENV, send_now=sim_send_now, send_while=sim_send_while, receive=sim_receive)


class SimNet:
    """Sockets of the simulated network, while the block runs."""

    def __init__(self, seed):
        self.network = Network(random.Random(seed))

    def __enter__(self):
        self.kept = trio.socket.set_custom_socket_factory(SimSocketFactory(self.network))
        self.resolver = trio.socket.set_custom_hostname_resolver(SimResolver())
        for host in (A, B):
            self.network.boot(host, 1)
        return self

    def __exit__(self, *_error):
        trio.socket.set_custom_socket_factory(self.kept)
        trio.socket.set_custom_hostname_resolver(self.resolver)

    async def ends(self):
        HOST.set(B)
        listener = await open_listener((B, 77), "tests")
        HOST.set(A)
        client = await connect((B, 77), 5)
        server, _ = await accept(listener)
        listener.close()
        return server, client


@pytest.fixture
async def real_ends():
    """Return what makes both ends of a TCP connection with small buffers."""
    opened = []

    async def make():
        listener = await open_listener(("127.0.0.1", 0), "tests")
        client = await connect(listener.getsockname(), TIMEOUT_S)
        server, _ = await accept(listener)
        listener.close()
        for sock in (server, client):
            opened.append(sock)
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 8192)
        return server, client

    yield make
    for sock in opened:
        sock.close()


async def send_all(sock, data, flags=0):
    left = memoryview(data)
    while left:
        left = left[await sock.send(left, flags) :]


async def receive(sock, size, piece=10_000):
    data = b""
    while len(data) < size:
        more = await sock.recv(min(piece, size - len(data)))
        assert more
        data += more
    return data


# -- as a plain socket -------------------------------------------------------------------------


@pytest.mark.parametrize("env", [None, ENV], ids=["trio's calls", "the environment's"])
async def test_bytes_arrive_in_order_over_real_sockets(real_ends, env):
    """Both ways at the same time, more than the sockets' buffers hold; then TLS's end."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, server, DATA)
        nursery.start_soon(send_all, client, DATA[::-1])

        async def read_at_server():
            assert await receive(server, len(DATA)) == DATA[::-1]

        nursery.start_soon(read_at_server)
        assert await receive(client, len(DATA)) == DATA
    assert server.tls_version == client.tls_version == "TLSv1.3"
    client.close()
    assert await server.recv(1) == b""
    assert await server.recv(1) == b""
    server.close()
    server.close()


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 50_000), min_size=1, max_size=4),
    piece=st.integers(1, 70_000),
    one_byte=st.booleans(),
    has_env=st.booleans(),
)
@settings(max_examples=25)
def test_bytes_arrive_in_order_however_the_network_splits_them(
    seed, sizes, piece, one_byte, has_env
):
    """Over the simulator's sockets; ``one_byte``: each call moves one."""
    if one_byte:
        sizes, piece = [min(size, 300) for size in sizes[:2]], 300
    messages = [random.Random(size).randbytes(size) for size in sizes]
    whole = b"".join(messages)

    async def main():
        with SimNet(seed) as net:
            ends = await net.ends()
            net.network.one_byte = one_byte
            server, client = await shaken_hands(
                ends, SERVER, CLIENT, sim_env() if has_env else None, name=B
            )

            async def send_messages():
                for message in messages:
                    await send_all(client, message)
                client.shutdown(trio.socket.SHUT_WR)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_messages)
                assert await receive(server, len(whole), piece) == whole
            await send_all(server, b"back")  # the other half is open
            assert await receive(client, 4) == b"back"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    seed=st.integers(0, 2**32),
    delays=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    has_env=st.booleans(),
)
@settings(max_examples=25)
def test_cancelled_sends_and_receives_lose_and_tear_nothing(seed, delays, has_env):
    """A cancelled send is repeated from what was counted; the stream is whole."""

    async def main():
        with SimNet(seed) as net:
            server, client = await shaken_hands(
                await net.ends(), SERVER, CLIENT, sim_env() if has_env else None, name=B
            )
            sent, got = 0, b""

            async def send_with_cancels():
                nonlocal sent
                for delay in [*delays, None]:
                    timeout = (
                        trio.CancelScope() if delay is None else trio.move_on_after(delay / 1000)
                    )
                    with timeout:
                        while sent < len(DATA):
                            sent += await client.send(memoryview(DATA)[sent:])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_with_cancels)
                for delay in [*delays[::-1], None]:
                    timeout = (
                        trio.CancelScope() if delay is None else trio.move_on_after(delay / 1000)
                    )
                    with timeout:
                        while len(got) < len(DATA):
                            got += await server.recv(50_000)
            assert got == DATA

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("env", [None, ENV], ids=["trio's calls", "the environment's"])
async def test_a_send_that_is_cancelled_while_it_waits_is_repeated(real_ends, env):
    """Its ciphertext is kept: the peer gets the bytes once."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, env)
    sent = 0
    for _ in range(3):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def fill():
                    nonlocal sent
                    while sent < len(DATA):
                        sent += await client.send(memoryview(DATA)[sent:])

                nursery.start_soon(fill)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
    assert 0 <= sent < len(DATA)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, client, DATA[sent:])
        assert await receive(server, len(DATA)) == DATA


async def test_other_bytes_after_a_cancelled_send_end_the_stream(real_ends):
    """They would be taken for those whose ciphertext is there already: the link is broken."""
    _server, client = await shaken_hands(await real_ends(), SERVER, CLIENT)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, client, DATA)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert client._uncounted
    client._uncounted = b"\0" + client._uncounted[1:]
    client._unsent = memoryview(b"")
    for _ in range(2):
        with pytest.raises(TlsError, match="cut off"):
            await client.send(b"\1")


async def test_send_now_counts_what_has_left_and_the_rest_follows(real_ends):
    """A call that cannot wait takes a piece at most; what does not leave is sent by the next."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    assert client.send_now((b"head", b"body")) == 8
    assert await receive(server, 8) == b"headbody"
    assert client.send_now((b"x",)) == 0  # a single byte may not be counted: nothing was taken
    sent = 0
    while True:
        counted = client.send_now(
            (memoryview(DATA)[sent : sent + 12], memoryview(DATA)[sent + 12 :])
        )
        sent += counted
        if not counted or client._unsent:
            break
    assert 0 < sent < len(DATA)
    assert client.send_now((DATA[sent:],)) == 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, client, DATA[sent:])
        assert await receive(server, len(DATA)) == DATA


async def test_corked_bytes_leave_with_those_that_follow(real_ends):
    """MSG_MORE: a head waits for its body."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    await send_all(client, b"head", trio.socket.MSG_MORE)
    await send_all(client, b"line", trio.socket.MSG_MORE)
    sends, try_send = [], client._try_send
    client._try_send = lambda sock, buffers: sends.append(buffers) or try_send(sock, buffers)
    await send_all(client, b"body")
    assert len(sends) == 1
    assert await receive(server, 12) == b"headlinebody"


async def test_corked_bytes_survive_a_cancelled_send(real_ends):
    """They leave once, before the bytes of the send that is repeated."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    await send_all(client, b"head", trio.socket.MSG_MORE)
    sent = 0

    async def send():
        nonlocal sent
        while sent < len(DATA):
            sent += await client.send(memoryview(DATA)[sent:])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        assert await receive(server, 4 + len(DATA)) == b"head" + DATA


async def test_a_receive_takes_no_more_than_its_caller_allows():
    """The buffer begins small, and grows up to that while receives fill it."""
    ends = trio.socket.socketpair()  # takes all of a receive at once
    arrived = bytearray()

    async def serve():
        with await accept_tls(
            ends[0], SERVER, TIMEOUT_S, env=ENV, receive_size_max=40_000
        ) as server:
            assert len(server._room) == tls_socket.RECEIVE_SIZE_MIN
            while len(arrived) < len(DATA):
                await trio.testing.wait_all_tasks_blocked()  # the client has filled the socket
                arrived.extend(await server.recv(1 << 20))
            assert len(server._room) == 40_000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        client = await connect_tls(ends[1], CLIENT, "127.0.0.1", TIMEOUT_S, env=ENV)
        await send_all(client, DATA)
    client.close()
    assert arrived == DATA


async def test_nothing_leaves_once_it_may_not(real_ends):
    """A record that has left in part is not completed, and the connection takes nothing more."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    calls = tls_calls(ENV)
    assert await calls.send_while(client, memoryview(b"early"), lambda: True) == 5
    assert await receive(server, 5) == b"early"
    asked = 0

    def may_leave():
        nonlocal asked
        asked += 1
        return asked < 4

    async with trio.open_nursery() as nursery:

        async def send():
            sent = 0
            while True:
                counted = await calls.send_while(client, memoryview(DATA)[sent:], may_leave)
                if counted is None:
                    break
                sent += counted
            with pytest.raises(TlsError, match="cut off"):
                await client.send(b"more")
            client.close()

        nursery.start_soon(send)
        got = b""
        fault = None
        while fault is None:
            try:
                got += await server.recv(1 << 20)
            except TlsError as error:
                fault = error.fault
    assert DATA.startswith(got)
    assert len(got) < len(DATA)
    assert fault == TlsFault.CUT


@pytest.mark.parametrize("is_fenced", [True, False], ids=["send_while", "send"])
@pytest.mark.parametrize("end", ["close", "shutdown"])
async def test_what_a_cancelled_send_has_kept_does_not_leave_at_the_end(real_ends, end, is_fenced):
    """A lease may be over by then: TLS's end completes no record, and the peer finds a cut."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    calls = tls_calls(ENV)
    counted = 0

    async def send():
        nonlocal counted
        left = memoryview(DATA)
        while True:
            if is_fenced:
                sent = await calls.send_while(server, left[counted:], lambda: True)
            else:
                sent = await server.send(left[counted:])
            counted += sent

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert server._unsent
    if is_fenced:
        with pytest.raises(TlsError, match="cut off"):
            await server.send(DATA[counted:])
    left_late = []
    server._try_send = lambda _sock, buffers: left_late.append(b"".join(buffers)) or 0
    if end == "close":
        server.close()
    else:
        server.shutdown(trio.socket.SHUT_RDWR)
    assert left_late == []
    got, fault = b"", None
    while fault is None:
        try:
            got += await client.recv(1 << 20)
        except TlsError as error:
            fault = error.fault
    assert fault == TlsFault.CUT
    assert DATA.startswith(got)
    assert len(got) < counted + PIECE_SIZE


async def test_one_task_sends_at_a_time(real_ends):
    """Two would mix their records."""
    _server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all, client, DATA)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await client.send(b"x")
        assert client.send_now((b"xy",)) == 0
        nursery.cancel_scope.cancel()


async def test_the_plain_calls_cannot_write_past_the_encryption(real_ends):
    """There is no descriptor to be had."""
    _server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    assert client.fileno() == -1
    assert ENV.send_now(client, (b"secret",)) == 0
    with pytest.raises((OSError, ValueError)):
        await ENV.receive(client, memoryview(bytearray(1)))


async def test_files_are_read_and_encrypted(real_ends, tmp_path):
    """From the page cache, or by a worker thread where it does not have them."""
    path = tmp_path / "log"
    path.write_bytes(DATA)
    file = ENV.disk.open_file(str(path), writable=False)
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)

    class Uncached:
        path = str(tmp_path)
        pread = staticmethod(file.pread)

        def read_now(self, _buffer, _position):
            return 0

    async with trio.open_nursery() as nursery:

        async def send():
            await tls_calls(ENV).send_file(client, file, 100, len(DATA) - 100)
            await TlsSendFile(ENV)(client, Uncached(), 7, STEP_SIZE // 2)
            with pytest.raises(DiskError, match="ended at"):
                await TlsSendFile(ENV)(client, file, 0, len(DATA) + 1)

        nursery.start_soon(send)
        wanted = DATA[100:] + DATA[7 : 7 + STEP_SIZE // 2] + DATA
        assert await receive(server, len(wanted)) == wanted
    file.close()


async def test_the_end_of_a_killed_peer_is_not_tls_s(real_ends):
    """A truncated stream is a broken one: a part of it may be missing."""
    ends = await real_ends()
    server, client = await shaken_hands(ends, SERVER, CLIENT)
    await send_all(client, b"some")
    ends[1].close()
    assert await receive(server, 4) == b"some"
    for _ in range(2):
        with pytest.raises(TlsError, match="cut off") as caught:
            await server.recv(1)
    assert isinstance(caught.value, OSError)
    assert caught.value.fault == TlsFault.CUT


async def test_changed_ciphertext_is_not_read(real_ends):
    """What was good before it is; nothing behind it."""
    ends = await real_ends()
    server, client = await shaken_hands(ends, SERVER, CLIENT)
    await send_all(client, b"good")
    client._encrypt((b"changed",))
    record = bytearray(client._unsent)
    record[-1] ^= 1
    await send_all(ends[1], bytes(record))
    assert await receive(server, 4) == b"good"
    for _ in range(2):
        with pytest.raises(TlsError, match="TLS failed"):
            await server.recv(1)


async def test_all_that_has_arrived_comes_in_one_receive(real_ends):
    """More than one receive of the socket below; a fault or an end behind it is the next call's."""
    for has_fault in (False, True):
        ends = await real_ends()
        server, client = await shaken_hands(ends, SERVER, CLIENT, ENV)
        good, arrived = DATA[:100_000], b""
        client._encrypt((good,))
        ciphertext, client._unsent = bytes(client._unsent), b""
        if has_fault:
            client._encrypt((b"changed",))
            ciphertext += bytes(client._unsent[:-1]) + b"\0\0"
        calls, buffer = 0, bytearray(1 << 20)
        async with trio.open_nursery() as nursery:

            async def send(data=ciphertext, sock=ends[1]):
                await send_all(sock, data)
                sock.shutdown(trio.socket.SHUT_WR)

            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            while len(arrived) < len(good):
                count = await server.recv_into(buffer)
                arrived += buffer[:count]
                calls += 1
        assert arrived == good
        assert calls < 6
        for _ in range(2):
            with pytest.raises(TlsError):
                await server.recv_into(buffer)


# -- who is there ------------------------------------------------------------------------------


async def attempt(real_ends, server, client, name="127.0.0.1"):
    """Shake hands; return the errors of both ends, None for an end without one."""
    ends = await real_ends()
    errors = [None, None]

    async def at_server():
        try:
            with await accept_tls(ends[0], server, TIMEOUT_S) as sock:
                await sock.recv(1)
        except TlsError as error:
            errors[0] = error

    async def at_client():
        try:
            with await connect_tls(ends[1], client, name, TIMEOUT_S) as sock:
                await send_all(sock, b"x")
                await sock.recv(1)
        except TlsError as error:
            errors[1] = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(at_server)
        nursery.start_soon(at_client)
    for sock in ends:
        assert sock.fileno() == -1, "closed"
    return errors


def no_13(context):
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


FOREIGN = OwnCa()


@pytest.mark.parametrize("old", [False, True], ids=["TLS 1.3", "TLS 1.2"])
@pytest.mark.parametrize(
    ("client", "at_server", "at_client"),
    [
        pytest.param(
            lambda: CA.client(has_cert=False),
            (TlsFault.NO_CERTIFICATE, "sent no certificate"),
            (TlsFault.NO_CERTIFICATE, "certificate"),
            id="no certificate",
        ),
        pytest.param(
            lambda: CA.client(FOREIGN.cert()),
            (TlsFault.FOREIGN_CERTIFICATE, "is not trusted"),
            (TlsFault.FOREIGN_CERTIFICATE, "does not trust"),
            id="foreign",
        ),
        pytest.param(
            lambda: CA.client(CA.cert(expired=True)),
            (TlsFault.EXPIRED_CERTIFICATE, "has expired"),
            (TlsFault.EXPIRED_CERTIFICATE, "has expired"),
            id="expired",
        ),
        pytest.param(
            lambda: FOREIGN.client(CERT),
            (TlsFault.FOREIGN_CERTIFICATE, "does not trust"),
            (TlsFault.FOREIGN_CERTIFICATE, "is not trusted"),
            id="foreign server",
        ),
    ],
)
async def test_both_ends_say_what_is_wrong_with_a_certificate(
    real_ends, old, client, at_server, at_client
):
    """So does the end that finds it, and the end that is told by an alert."""
    context = no_13(client()) if old else client()
    errors = await attempt(real_ends, SERVER, context)
    for error, (fault, text) in zip(errors, (at_server, at_client), strict=True):
        assert error.fault == fault
        assert text in str(error)
        assert error.hint


async def test_a_server_s_certificate_must_be_valid_and_for_its_name(real_ends):
    """The client says what is wrong with it."""
    errors = await attempt(real_ends, CA.server(CA.cert(expired=True)), CLIENT)
    assert (errors[1].fault, errors[0].fault) == (TlsFault.EXPIRED_CERTIFICATE,) * 2
    errors = await attempt(real_ends, SERVER, CLIENT, "elsewhere.example")
    assert errors[1].fault == TlsFault.WRONG_NAME
    assert "not for elsewhere.example" in str(errors[1])
    ends = await real_ends()
    with pytest.raises(TlsError, match="no name"):
        await connect_tls(ends[1], CLIENT, "a..b", TIMEOUT_S)


def client_hello_of_tls_1_0():
    """Return the bytes: version 3.1, one cipher, no extensions."""
    body = b"\x03\x01" + bytes(32) + b"\0" + b"\0\x02\x00\x2f" + b"\x01\0"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


@pytest.mark.parametrize(
    ("data", "fault", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", TlsFault.PLAIN_TEXT, "speaks no TLS"),
        (bytes(8), TlsFault.PLAIN_TEXT, "speaks no TLS"),
        (client_hello_of_tls_1_0(), TlsFault.VERSION, "too old"),
        (b"", TlsFault.CUT, "closed the connection in the TLS handshake"),
        (b"\x16\x03\x01\x02\x00\x01", TlsFault.CUT, "closed the connection in the TLS handshake"),
        (b"\x15\x03\x01\x00\x02\x02\x28", TlsFault.OTHER, "unexpected message"),
    ],
)
async def test_a_peer_that_speaks_no_tls_is_closed(real_ends, data, fault, text):
    """Plain text of either protocol, TLS 1.0, an end in the middle."""
    server, client = await real_ends()
    await client.send(data) if data else None
    client.shutdown(trio.socket.SHUT_WR)
    with pytest.raises(TlsError, match=text) as caught:
        await accept_tls(server, SERVER, TIMEOUT_S)
    assert caught.value.fault == fault
    assert server.fileno() == -1
    try:
        answer = await client.recv(100)
    except ConnectionResetError:
        answer = b""
    assert len(answer) in {0, 7}, "an alert at most"


async def test_a_server_that_speaks_no_tls_is_closed(real_ends):
    """The client says so."""
    server, client = await real_ends()
    await server.send(b"\0\0\0\x08 hello")
    with pytest.raises(TlsError, match="speaks no TLS"):
        await connect_tls(client, CLIENT, "127.0.0.1", TIMEOUT_S)


def test_half_a_handshake_then_silence_ends_in_time():
    """So does one that trickles."""

    async def main():
        with SimNet(1) as net:
            server, client = await net.ends()
            hello = client_hello_of_tls_1_0()

            async def trickle():
                for byte in hello[:-1]:
                    await client.send(bytes([byte]))
                    await trio.sleep(1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(trickle)
                began = trio.current_time()
                with pytest.raises(TlsError, match="no whole TLS handshake within 10 s") as caught:
                    await accept_tls(server, SERVER, 10)
                assert trio.current_time() - began == 10
                nursery.cancel_scope.cancel()
            assert caught.value.fault == TlsFault.TIMEOUT
            assert not server.is_open

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_an_endless_handshake_is_closed(real_ends, monkeypatch):
    """It is bounded in bytes, too."""
    monkeypatch.setattr(tls_socket, "HANDSHAKE_SIZE_MAX", 100)
    errors = await attempt(real_ends, SERVER, CLIENT)
    assert errors[0].fault == TlsFault.SIZE
    assert "more than 100 bytes" in str(errors[0])


async def test_a_cancelled_handshake_closes_its_socket(real_ends):
    """Nobody else has it."""
    server, _client = await real_ends()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept_tls, server, SERVER, TIMEOUT_S)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert server.fileno() == -1


# -- hostile bytes -----------------------------------------------------------------------------


def recorded_hello():
    """Return what a client begins with."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = CLIENT.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


HELLO = recorded_hello()


@given(
    data=st.one_of(
        st.binary(max_size=400),
        st.binary(max_size=400).map(lambda data: b"\x16\x03\x01" + data),
        st.tuples(st.integers(0, len(HELLO) - 1), st.binary(min_size=1, max_size=8)).map(
            lambda change: HELLO[: change[0]] + change[1] + HELLO[change[0] + len(change[1]) :]
        ),
        st.tuples(st.integers(0, len(HELLO)), st.binary(max_size=300)).map(
            lambda cut: HELLO[: cut[0]] + cut[1]
        ),
    )
)
def test_fuzzed_handshakes_are_closed(data):
    """And say what was wrong; no other kind of error leaves."""

    async def main():
        ends = trio.socket.socketpair()
        await send_all(ends[1], data) if data else None
        ends[1].shutdown(trio.socket.SHUT_WR)
        with pytest.raises(TlsError):
            await accept_tls(ends[0], SERVER, TIMEOUT_S)
        assert ends[0].fileno() == -1
        ends[1].close()

    trio.run(main)


@given(data=st.binary(min_size=1, max_size=400), is_record=st.booleans())
def test_fuzzed_servers_are_closed(data, is_record):
    """A client is as careful."""

    async def main():
        ends = trio.socket.socketpair()
        head = b"\x16\x03\x03" + len(data).to_bytes(2, "big") if is_record else b""
        await send_all(ends[0], head + data)
        ends[0].shutdown(trio.socket.SHUT_WR)
        with pytest.raises((TlsError, OSError)):
            await connect_tls(ends[1], CLIENT, "127.0.0.1", TIMEOUT_S)
        ends[0].close()

    trio.run(main)


async def test_unfinished_handshakes_harm_nobody(real_ends):
    """While a hundred of them wait, another client is served."""
    async with trio.open_nursery() as nursery:
        clients = []
        for _ in range(100):
            server, client = trio.socket.socketpair()
            clients.append(client)

            async def take(sock=server):
                with pytest.raises(TlsError):
                    await accept_tls(sock, SERVER, TIMEOUT_S)

            nursery.start_soon(take)
            await client.send(HELLO[:-1])
        await trio.testing.wait_all_tasks_blocked()
        ends = await shaken_hands(await real_ends(), SERVER, CLIENT)
        await send_all(ends[1], DATA[:1000])
        assert await receive(ends[0], 1000) == DATA[:1000]
        for client in clients:
            client.close()


async def test_a_peer_cannot_make_tls_pile_up_answers(real_ends, monkeypatch):
    """Answers of TLS's own wait for the next send; more than a few are a fault."""
    monkeypatch.setattr(tls_socket, "_ANSWERS_SIZE_MAX", 0)
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT)
    server._ssl.write(b"answer")  # stands for one: it stays in OpenSSL's buffer
    await send_all(client, b"some")
    assert await receive(server, 4) == b"some"
    with pytest.raises(TlsError, match="makes TLS answer"):
        await server.recv(1)


@pytest.mark.parametrize("has_data", [False, True], ids=["alone", "behind data"])
@pytest.mark.parametrize("into", [False, True], ids=["recv", "recv_into"])
async def test_key_updates_pile_up_no_answers(real_ends, has_data, into):
    """OpenSSL answers each at once, and hands out no byte in between."""
    server, client = await shaken_hands(await real_ends(), SERVER, CLIENT, ENV)
    if has_data:
        client._encrypt((b"some",))
    for _ in range(2 * tls_socket._ANSWERS_SIZE_MAX // 27):  # bytes of an answer
        ask_for_key_update(client)
    client._collect()

    async def send():
        await client._send_unsent()
        client.shutdown(trio.socket.SHUT_WR)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        if has_data:
            assert await receive(server, 4) == b"some"
        for _ in range(2):
            with pytest.raises(TlsError, match="makes TLS answer"):
                await (server.recv_into(bytearray(9)) if into else server.recv(9))
    assert server._outgoing.pending < 3 * tls_socket._ANSWERS_SIZE_MAX


def ask_for_key_update(sock):
    """Let OpenSSL write a KeyUpdate that wants an answer; ``ssl`` has no call for it.

    The test is skipped where the place of CPython's pointer to it is not known.
    """
    if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 14):
        pytest.skip(f"where {sys.version} keeps its SSL* is not known")
    if sysconfig.get_config_var("Py_GIL_DISABLED") or hasattr(sys, "gettotalrefcount"):
        pytest.skip("objects of this build have another head")
    try:
        library = ctypes.CDLL(_ssl.__file__)
        key_update, do_handshake = library.SSL_key_update, library.SSL_do_handshake
    except (AttributeError, OSError) as error:  # built in, or its names are hidden
        pytest.skip(f"OpenSSL's own calls cannot be reached: {error}")
    key_update.argtypes = (ctypes.c_void_p, ctypes.c_int)
    do_handshake.argtypes = (ctypes.c_void_p,)
    head, _weak_reference = object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)
    pointer = ctypes.c_void_p.from_address(id(sock._ssl._sslobj) + head + _weak_reference)
    is_asked = 1
    assert key_update(pointer, is_asked) == 1
    assert do_handshake(pointer) == 1
