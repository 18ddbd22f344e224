"""The proxy: what each of its modes lets through, tested with a plain echo server."""

from __future__ import annotations

import contextlib

import pytest
import trio

from hastore_scenarios.story.world import LinkMode
from hastore_scenarios.worlds.process.proxy import Proxy
from hastore_scenarios.worlds.staged_world import TcpPeer
from tests.patience import WITHIN_S


@contextlib.asynccontextmanager
async def echo_behind_proxy():
    """Run an echo server with a proxy in front of it."""
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    modes = []
    proxy = Proxy(listener.getsockname(), lambda mode, detail: modes.append((mode, detail)))
    proxy.listen()

    async def echo(sock) -> None:
        with sock, contextlib.suppress(OSError):
            while data := await sock.recv(65536):
                while data:
                    data = data[await sock.send(data) :]

    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            while True:
                sock, _ = await listener.accept()
                nursery.start_soon(echo, sock)

        nursery.start_soon(accept)
        nursery.start_soon(proxy.run)
        try:
            yield proxy, modes
        finally:
            nursery.cancel_scope.cancel()
            listener.close()


async def receive(client: TcpPeer, size: int, within_s: float) -> bytes:
    """Return what arrives within the time, up to ``size`` bytes."""
    received = bytearray()
    with trio.move_on_after(within_s):
        while len(received) < size:
            data = await client.sock.recv(65536)
            if not data:
                break
            received += data
    return bytes(received)


async def test_an_open_link_passes_everything() -> None:
    """A megabyte goes there and back unchanged."""
    body = bytes(range(256)) * 4096
    async with echo_behind_proxy() as (proxy, _), trio.open_nursery() as nursery:
        client = await TcpPeer.connect(proxy.address)
        nursery.start_soon(client.send, body)
        assert await receive(client, len(body), WITHIN_S) == body
        await client.close()


@pytest.mark.parametrize("mode", [LinkMode.CUT, LinkMode.CUT_TO_SLAVE, LinkMode.CUT_TO_MASTER])
async def test_a_cut_link_passes_nothing_and_loses_nothing(mode: LinkMode) -> None:
    """Bytes sent during a cut arrive after it, in order, over the same connection."""
    async with echo_behind_proxy() as (proxy, modes):
        client = await TcpPeer.connect(proxy.address)
        await client.send(b"before ")
        assert await receive(client, 7, WITHIN_S) == b"before "
        proxy.cut(mode)
        assert not proxy.is_untouched
        await client.send(b"during")
        assert await receive(client, 6, 0.1) == b""
        proxy.heal()
        assert await receive(client, 6, WITHIN_S) == b"during"
        assert modes == [(mode, ""), (LinkMode.OPEN, "")]
        await client.close()


async def test_one_way_cuts_stop_one_direction_only() -> None:
    """CUT_TO_SLAVE still passes bytes to the master, and CUT_TO_MASTER to the slave."""
    heard = []
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    proxy = Proxy(listener.getsockname())
    proxy.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        client = await TcpPeer.connect(proxy.address)
        master, _ = await listener.accept()
        for mode in (LinkMode.CUT_TO_SLAVE, LinkMode.CUT_TO_MASTER):
            proxy.cut(mode)
            await client.send(b"report")
            await master.send(b"frame")
            is_cut_to_slave = mode is LinkMode.CUT_TO_SLAVE
            to_slave, to_master = b"", b""
            with trio.move_on_after(0.1 if is_cut_to_slave else WITHIN_S):
                to_slave = await client.sock.recv(100)
            with trio.move_on_after(WITHIN_S if is_cut_to_slave else 0.1):
                to_master = await master.recv(100)
            heard.append((mode, to_slave, to_master))
            proxy.heal()
            await (client.sock.recv(100) if not to_slave else master.recv(100))
        assert heard == [
            (LinkMode.CUT_TO_SLAVE, b"", b"report"),
            (LinkMode.CUT_TO_MASTER, b"frame", b""),
        ]
        nursery.cancel_scope.cancel()
    for sock in (client.sock, master, listener):
        sock.close()


async def test_a_connection_made_during_a_cut_is_half_open() -> None:
    """It is accepted, carries nothing, and works after the cut."""
    async with echo_behind_proxy() as (proxy, _):
        proxy.cut()
        client = await TcpPeer.connect(proxy.address)
        await client.send(b"hello")
        assert await receive(client, 5, 0.1) == b""
        proxy.heal()
        assert await receive(client, 5, WITHIN_S) == b"hello"
        await client.close()


async def test_a_refusing_link_resets_and_refuses_until_healed() -> None:
    """Old connections are reset and new ones refused; heal() serves the same port again."""
    async with echo_behind_proxy() as (proxy, _):
        address = proxy.address
        client = await TcpPeer.connect(address)
        await client.send(b"x")
        assert await receive(client, 1, WITHIN_S) == b"x"
        proxy.cut(LinkMode.REFUSE)
        with trio.fail_after(WITHIN_S), pytest.raises(ConnectionResetError):
            await client.sock.recv(1)
        with pytest.raises(ConnectionRefusedError):
            await TcpPeer.connect(address)
        proxy.heal()
        assert proxy.address == address
        again = await TcpPeer.connect(address)
        await again.send(b"y")
        assert await receive(again, 1, WITHIN_S) == b"y"
        for each in (client, again):
            await each.close()


async def test_a_reset_link_takes_new_connections_at_once() -> None:
    """reset() ends the existing connections and nothing else."""
    async with echo_behind_proxy() as (proxy, _):
        client = await TcpPeer.connect(proxy.address)
        await client.send(b"x")
        assert await receive(client, 1, WITHIN_S) == b"x"
        proxy.reset()
        with trio.fail_after(WITHIN_S), pytest.raises(ConnectionResetError):
            await client.sock.recv(1)
        again = await TcpPeer.connect(proxy.address)
        await again.send(b"y")
        assert await receive(again, 1, WITHIN_S) == b"y"
        for each in (client, again):
            await each.close()


async def test_a_slow_link_keeps_its_rate() -> None:
    """At ten bytes a second, five bytes take half a second; heal() lets the rest pass."""
    async with echo_behind_proxy() as (proxy, _):
        client = await TcpPeer.connect(proxy.address)
        proxy.slow(10)
        began = trio.current_time()
        await client.send(bytes(1000))
        slow = await receive(client, 5, WITHIN_S)
        assert trio.current_time() - began > 0.3
        proxy.heal()
        assert len(await receive(client, 1000 - len(slow), WITHIN_S)) == 1000 - len(slow)
        await client.close()


async def test_a_splitting_link_hands_over_small_pieces() -> None:
    """All bytes arrive, in order, and not more than three at once."""
    async with echo_behind_proxy() as (proxy, _):
        client = await TcpPeer.connect(proxy.address)
        proxy.split(3)
        proxy.slow(500)  # ten bytes at once without the split; the client reads in each pause
        await client.send(b"0123456789")
        pieces = []
        with trio.fail_after(WITHIN_S):
            while sum(map(len, pieces)) < 10:
                pieces.append(await client.sock.recv(100))
        assert pieces == [b"012", b"345", b"678", b"9"]
        await client.close()


async def test_the_end_of_a_connection_is_passed_on() -> None:
    """When one side closes its connection, the proxy closes the other side's."""
    async with echo_behind_proxy() as (proxy, _):
        client = await TcpPeer.connect(proxy.address)
        client.sock.shutdown(trio.socket.SHUT_WR)
        with trio.fail_after(WITHIN_S):
            assert await client.sock.recv(1) == b""
        assert proxy.master_side == set()
        await client.close()


async def test_a_link_without_a_master_closes_at_once() -> None:
    """A connection ends as soon as it is accepted."""
    proxy = Proxy(None)
    proxy.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(proxy.run)
        client = await TcpPeer.connect(proxy.address)
        with trio.fail_after(WITHIN_S):
            assert await client.read_to_end() == b""
        await client.close()
        nursery.cancel_scope.cancel()


async def test_a_refusing_link_keeps_its_port() -> None:
    """No other proxy can take it meanwhile, and old connections do not block its reuse."""
    async with echo_behind_proxy() as (proxy, _):
        for _ in range(3):
            client = await TcpPeer.connect(proxy.address)
            await client.send(b"x")
            assert await receive(client, 1, WITHIN_S) == b"x"
            client.sock.shutdown(trio.socket.SHUT_WR)
            with trio.fail_after(WITHIN_S):
                assert await client.sock.recv(1) == b""
            await client.close()
            proxy.cut(LinkMode.REFUSE)
            other = Proxy(None)
            other.listen()
            assert other.address != proxy.address
            other.close()
            proxy.heal()
