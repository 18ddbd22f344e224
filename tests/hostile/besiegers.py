"""The besiegers, in their own process: ``python -m tests.hostile.besiegers NAME CLIENT HA N``.

It prints ``ready`` when all of them are connected, and exits when its stdin ends.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable

import attrs
import trio

from hastore.tls.tls_socket import connect_tls
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_command import RemotingCommand, frame
from tests.hostile.handmade import CLIENT_PORT, HA_PORT, NOT_OURS
from tests.support.nodes.raw_client import send_command
from tests.support.nodes.reading import pull_command

Address = tuple[str, int]
HANDSHAKE_S = 60.0
HOSTS = 8  # several addresses, so that the limit of one does not stop them


@attrs.frozen(kw_only=True)
class Kind:
    """One kind of peer: what each one does, how many there are, and the node's settings."""

    run: Callable[[Peer], Awaitable[None]]
    peers: int
    settings: dict[str, str] = attrs.field(factory=dict)
    has_tls: bool = False  # the node takes both


@attrs.define
class Peer:
    """One besieger."""

    number: int
    client: Address
    ha: Address
    started: trio.TaskStatus[None]

    @contextlib.asynccontextmanager
    async def connected(self, address: Address, *, receive_size: int | None = None):
        """Connect from one of several hosts."""
        with trio.socket.socket() as sock:
            if receive_size is not None:
                sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_size)
            await sock.bind((f"127.0.1.{self.number % HOSTS + 1}", 0))
            await sock.connect(address)
            yield sock

    def is_there(self) -> None:
        """Count this peer as present, once."""
        if self.started is not trio.TASK_STATUS_IGNORED:
            self.started.started()
            self.started = trio.TASK_STATUS_IGNORED


async def until_closed(sock: trio.socket.SocketType) -> None:
    with contextlib.suppress(OSError):
        while await sock.recv(65_536):
            pass


async def idle(peer: Peer) -> None:
    """Ask once, then stay connected."""
    async with peer.connected(peer.client) as sock:
        await sock.send(encode_command(RemotingCommand(code=35, opaque=1)))
        await sock.recv(1000)
        peer.is_there()
        await until_closed(sock)


async def silent(peer: Peer) -> None:
    """Never ask anything, and connect again when closed."""
    while True:
        with contextlib.suppress(OSError):
            async with peer.connected(peer.client) as sock:
                await trio.sleep(0.05)
                peer.is_there()
                await until_closed(sock)
        await trio.sleep(0.5)


async def slowloris(peer: Peer) -> None:
    """Send a request at one byte a second; start again when closed."""
    request = encode_command(send_command(1))
    while True:
        with contextlib.suppress(OSError):
            async with peer.connected(peer.client) as sock:
                for byte in request:
                    await sock.send(bytes([byte]))
                    peer.is_there()
                    await trio.sleep(1)
        await trio.sleep(0.1)


async def deaf(peer: Peer) -> None:
    """Pull megabytes as fast as possible, and read nothing."""
    pull = pull_command(topic="Large", count_max=1_000)
    async with peer.connected(peer.client, receive_size=4096) as sock:
        with contextlib.suppress(OSError):
            while True:
                with trio.move_on_after(0.2) as scope:
                    await sock.send(encode_command(pull) * 10)
                if scope.cancelled_caught:
                    peer.is_there()
                    await trio.sleep(1)
    peer.is_there()
    await trio.sleep_forever()


async def deaf_producer(peer: Peer) -> None:
    """Send messages, and read no answer."""
    request = encode_command(send_command(1, flag=0, topic="Deaf", body=b""))
    async with peer.connected(peer.client, receive_size=4096) as sock:
        with contextlib.suppress(OSError):
            while True:
                with trio.move_on_after(5) as scope:
                    await sock.send(request * 50)
                if scope.cancelled_caught:
                    peer.is_there()
                    await trio.sleep(1)
    peer.is_there()
    await trio.sleep_forever()


async def half_requests(peer: Peer) -> None:
    """Send a request of 4 MiB except for its last byte: a send may have no more."""
    with contextlib.suppress(OSError):
        async with peer.connected(peer.client) as sock:
            header = b'{"code":310,"opaque":1}'
            size = 4 * 1024 * 1024
            await sock.send(struct.pack("!II", size, len(header)) + header)
            body = memoryview(bytes(size - 5 - len(header)))
            while body:
                body = body[await sock.send(body) :]
            peer.is_there()
            await until_closed(sock)
    peer.is_there()
    await trio.sleep_forever()


def again_and_again(streams: list[bytes], *, at_ha: bool) -> Callable[[Peer], Awaitable[None]]:
    """Return a peer that connects, sends an invalid stream and is closed, ten times a second."""

    async def run(peer: Peer) -> None:
        number = peer.number
        while True:
            number += 1
            with contextlib.suppress(OSError):
                async with peer.connected(peer.ha if at_ha else peer.client) as sock:
                    await sock.send(streams[number % len(streams)])
                    with trio.move_on_after(1):
                        await until_closed(sock)
            peer.is_there()
            await trio.sleep(0.1)

    return run


async def deaf_slave(peer: Peer) -> None:
    """Ask for the whole log as a slave does, and read nothing of it."""
    async with peer.connected(peer.ha, receive_size=4096) as sock:
        with contextlib.suppress(OSError):
            await sock.send(struct.pack("!q", 0))
            peer.is_there()
            while True:
                await trio.sleep(5)
                await sock.send(struct.pack("!q", 0))
    await trio.sleep_forever()


# -- TLS -----------------------------------------------------------------------------------------


def trusting() -> ssl.SSLContext:
    """Return the context of a client that does not care who the node is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def client_hello() -> bytes:
    """Return the first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(incoming, outgoing, server_hostname="n").do_handshake()
    return outgoing.read()


async def half_a_handshake(peer: Peer) -> None:
    """Send all but the last byte of a ClientHello, and connect again when closed."""
    hello = client_hello()
    while True:
        with contextlib.suppress(OSError):
            async with peer.connected(peer.client) as sock:
                await sock.send(hello[:-1])
                peer.is_there()
                await until_closed(sock)
        await trio.sleep(0.5)


async def handshakes(peer: Peer) -> None:
    """Shake hands, ask nothing, and leave, ten times a second."""
    context = trusting()
    while True:
        with contextlib.suppress(OSError):
            async with peer.connected(peer.client) as sock:
                (await connect_tls(sock, context, "n", HANDSHAKE_S)).close()
        peer.is_there()
        await trio.sleep(0.1)


async def idle_by_tls(peer: Peer) -> None:
    """Ask once, then stay connected."""
    context = trusting()
    async with peer.connected(peer.client) as sock:
        with await connect_tls(sock, context, "n", HANDSHAKE_S) as encrypted:
            await encrypted.send(encode_command(RemotingCommand(code=35, opaque=1)))
            await encrypted.recv(1000)
            peer.is_there()
            await until_closed(encrypted)


def over_and_over(request: bytes) -> Callable[[Peer], Awaitable[None]]:
    """Send one request, wait for its answer, and send it again."""

    async def run(peer: Peer) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with peer.connected(peer.client) as sock:
                    peer.is_there()
                    while True:
                        left = memoryview(request)
                        while left:
                            left = left[await sock.send(left) :]
                        if not await sock.recv(65_536):
                            break
            await trio.sleep(0.1)

    return run


def lists(size: int) -> bytes:
    """Return JSON that makes many objects of few bytes."""
    return b'{"mqSet":[' + b"[]," * ((size - 16) // 3) + b"[]]}"


JSON_16_MIB = encode_command(RemotingCommand(code=41, body=lists((16 << 20) - 3000)))
JSON_1_MIB = encode_command(RemotingCommand(code=41, body=lists(1 << 20)))
JSON_64_KIB = encode_command(RemotingCommand(code=41, body=lists(64 << 10)))
LOCKED = b",".join(b'{"topic":"T%d","brokerName":"b","queueId":0}' % n for n in range(16_000))
LOCKS = encode_command(
    RemotingCommand(code=41, body=b'{"consumerGroup":"g","clientId":"c","mqSet":[%b]}' % LOCKED)
)
HEADER = frame(0, b'{"code":907,"extFields":{"a":[' + b"[]," * 21_000 + b"[]]}}")
BRACKETS = frame(0, b'{"code":907,"extFields":{' + b'"a":"[",' * 7_900 + b'"a":""}}')

PULLS = [stream for name, stream in CLIENT_PORT.items() if name.startswith("pull ")]
CLAIMS = [stream for name, stream in CLIENT_PORT.items() if name.startswith("claims")]
# The others begin like a new slave's reports, so their peer would be sent the log.
REPORTS = [HA_PORT[name] for name in ("-1 first", "-2^63 first", "2^63-1 first", "past the end")]

SIEGES = {
    "1000 idle clients": Kind(run=idle, peers=1_000, settings={"REMOTING_CONNECTIONS_MAX": "2000"}),
    "1000 silent peers": Kind(run=silent, peers=1_000),
    "slowloris": Kind(run=slowloris, peers=200),
    "pulls and never reads": Kind(run=deaf, peers=100),
    "sends and never reads": Kind(run=deaf_producer, peers=4),
    "requests but for a byte": Kind(run=half_requests, peers=160),
    "16 MiB of JSON": Kind(run=over_and_over(JSON_16_MIB), peers=8),
    "1 MiB of JSON": Kind(run=over_and_over(JSON_1_MIB), peers=8),
    "1 MiB of locks": Kind(run=over_and_over(LOCKS), peers=8),
    "64 KiB of JSON": Kind(run=over_and_over(JSON_64_KIB), peers=8),
    "headers of 64 KiB": Kind(run=over_and_over(HEADER), peers=8),
    "brackets in headers": Kind(run=over_and_over(BRACKETS), peers=8),
    "headers that claim 4 GiB": Kind(run=again_and_again(CLAIMS, at_ha=False), peers=20),
    "wild offsets in pulls": Kind(run=again_and_again(PULLS, at_ha=False), peers=20),
    "http at the HA port": Kind(run=again_and_again([NOT_OURS["http"]], at_ha=True), peers=20),
    "wild offsets in reports": Kind(run=again_and_again(REPORTS, at_ha=True), peers=20),
    "slaves that never read": Kind(run=deaf_slave, peers=60),
    "1000 idle clients by TLS": Kind(
        run=idle_by_tls, peers=1_000, settings={"REMOTING_CONNECTIONS_MAX": "2000"}, has_tls=True
    ),
    "all but a byte of a ClientHello": Kind(run=half_a_handshake, peers=1_000, has_tls=True),
    "TLS handshakes": Kind(run=handshakes, peers=20, has_tls=True),
}


async def main(name: str, client: Address, ha: Address, peers: int) -> None:
    """Besiege until stdin ends."""
    kind = SIEGES[name]
    async with trio.open_nursery() as nursery:

        async def one(number: int, task_status: trio.TaskStatus[None]) -> None:
            await kind.run(Peer(number, client, ha, task_status))

        async def come(number: int) -> None:
            async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                await one(number, task_status)

            await nursery.start(run)

        async with trio.open_nursery() as coming:
            for number in range(peers):
                coming.start_soon(come, number)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


def parsed(address: str) -> Address:
    """Parse HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    _, given_name, client_address, ha_address, count = sys.argv
    trio.run(main, given_name, parsed(client_address), parsed(ha_address), int(count))
