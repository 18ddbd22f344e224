"""The simulated network treats connections as a real one may, and keeps each one's order."""

import random

import pytest
import trio
import trio.testing

from hastore.concurrency.tcp import accept, connect, open_listener
from hastore.errors import UnreachableError
from hastore.sim.network import WINDOW_SIZE, Network
from hastore.sim.sockets import HOST, SimResolver, SimSocketFactory, sim_send_now

A, B = "10.0.0.1", "10.0.0.2"
PORT = 77


@pytest.fixture
async def network():
    network = Network(random.Random(3))
    kept = trio.socket.set_custom_socket_factory(SimSocketFactory(network))
    resolver = trio.socket.set_custom_hostname_resolver(SimResolver())
    for host in (A, B):
        network.boot(host, 1)
    HOST.set(A)
    yield network
    trio.socket.set_custom_socket_factory(kept)
    trio.socket.set_custom_hostname_resolver(resolver)


async def pair(network):
    """Connect A to B; return both ends."""
    HOST.set(B)
    listener = network.listeners.get((B, PORT)) or await open_listener((B, PORT), "tests")
    HOST.set(A)
    client = await connect((B, PORT), 5)
    server, peer = await accept(listener)
    assert peer == client.getsockname()
    assert client.getpeername() == (B, PORT) == server.getsockname()
    return client, server


async def receive(sock, size):
    data = b""
    while len(data) < size:
        more = await sock.recv(size - len(data))
        assert more
        data += more
    return data


async def send(sock, data):
    while data:
        data = data[await sock.send(data) :]


async def test_bytes_arrive_in_order_however_they_are_split(network, autojump_clock):
    """This includes single bytes, and more bytes than a window holds."""
    client, server = await pair(network)
    data = random.Random(1).randbytes(3 * WINDOW_SIZE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, client, data)
        assert await receive(server, len(data)) == data
    network.one_byte = True
    await send(server, b"hello")
    assert [await client.recv(100) for _ in range(5)] == [b"h", b"e", b"l", b"l", b"o"]


async def test_a_link_records_its_last_delivery_and_its_open_ends(network, autojump_clock):
    """A cut link delivers nothing, and is open until both ends are closed."""
    client, server = await pair(network)
    await send(server, b"x")
    await client.recv(1)
    (link,) = network.open_links(A, B, PORT)
    taken_at = trio.current_time()
    network.cut(B, A)
    await send(server, b"y")
    await trio.sleep(30)
    server.close()
    assert network.open_links(A, B, PORT) == [link]
    assert link.back.taken_at == taken_at
    client.close()
    assert network.open_links(A, B, PORT) == []


async def test_a_network_is_disturbed_while_a_fault_lasts(network, autojump_clock):
    """A reset is over at once; only its time is recorded."""
    await pair(network)
    assert not network.is_disturbed
    network.slow(A, B, 1.0)
    assert network.is_disturbed
    network.slow(A, B, 0.0)
    network.cut(A, B)
    assert network.is_disturbed
    network.heal()
    network.one_byte = True
    assert network.is_disturbed
    network.one_byte = False
    await trio.sleep(3)
    assert network.reset_between(A, B) == 1
    assert (network.is_disturbed, network.last_reset_at) == (False, trio.current_time())


async def test_bytes_arrive_after_the_latency(network, autojump_clock):
    """slow() sets the latency of one direction of a link."""
    client, server = await pair(network)
    before = trio.current_time()
    network.slow(A, B, 3.0)
    await send(client, b"x")
    assert await server.recv(1) == b"x"
    assert 3.0 <= trio.current_time() - before < 3.1
    network.slow(A, B, 0.0)
    await send(client, b"y")
    await server.recv(1)
    assert trio.current_time() - before < 3.2


async def test_bytes_sent_into_a_cut_arrive_after_its_repair(network, autojump_clock):
    """TCP sends them again; the other direction is not affected."""
    client, server = await pair(network)
    network.cut(A, B)
    await send(client, b"held")
    await send(server, b"free")
    assert await receive(client, 4) == b"free"
    with trio.move_on_after(60) as scope:
        await server.recv(1)
    assert scope.cancelled_caught
    network.repair(A, B)
    assert await receive(server, 4) == b"held"


async def test_a_full_window_stops_the_sender(network, autojump_clock):
    """The receiver makes room by reading."""
    client, server = await pair(network)
    sent = 0
    with trio.move_on_after(5):
        while True:
            sent += await client.send(bytes(10_000))
    assert sent == WINDOW_SIZE
    assert sim_send_now(client, [b"x"]) == 0
    await receive(server, 10)
    assert 0 < sim_send_now(client, [b"x" * 10]) <= 10


async def test_a_kill_ends_connections_and_a_power_cut_is_silent(network, autojump_clock):
    """A kill sends FIN, or RST after unread bytes; after a power cut only the next boot answers."""
    client, server = await pair(network)
    network.shut_down(B, silently=False)
    assert await client.recv(1) == b""
    client, server = await pair(network)
    await send(client, b"unread")
    network.shut_down(B, silently=False)
    with pytest.raises(ConnectionResetError):
        await client.recv(1)
    client, server = await pair(network)
    network.shut_down(B, silently=True)
    with trio.move_on_after(600) as scope:
        await client.recv(1)
    assert scope.cancelled_caught
    network.boot(B, 2)
    await send(client, b"anybody?")
    with pytest.raises(ConnectionResetError):
        await client.recv(1)
    assert not server.is_open


async def test_connecting_to_an_unreachable_host_fails(network, autojump_clock):
    """Without a listener it is refused; a cut link or a host that is down does not answer."""
    with pytest.raises(UnreachableError, match="refused"):
        await connect((B, PORT), 5)
    await pair(network)
    network.cut(B, A)
    with pytest.raises(UnreachableError, match="no answer"):
        await connect((B, PORT), 5)
    network.repair(B, A)
    (await connect((B, PORT), 5)).close()
    network.shut_down(B, silently=True)
    with pytest.raises(UnreachableError, match="no answer"):
        await connect((B, PORT), 5)


async def test_a_reset_is_seen_by_both_ends(network, autojump_clock):
    """Bytes in flight are lost."""
    client, server = await pair(network)
    await send(client, b"lost")
    assert network.reset_between(A, B) == 1
    for sock in (client, server):
        with pytest.raises(ConnectionResetError):
            await sock.recv(1)
        with pytest.raises(ConnectionResetError):
            await sock.send(b"x")


async def test_a_closed_socket_is_closed_for_both_ends(network, autojump_clock):
    """The peer gets FIN after the sent bytes; bytes it still sends are answered with RST."""
    client, server = await pair(network)
    await send(server, b"bye")
    server.close()
    server.close()
    with pytest.raises(trio.ClosedResourceError):
        await server.recv(1)
    assert await receive(client, 3) == b"bye"
    assert await client.recv(1) == b""
    await send(client, b"x")
    await trio.sleep(1)
    with pytest.raises(ConnectionResetError):
        await client.recv(1)
    client.close()
    assert not network.connections


async def test_a_host_that_is_down_sends_nothing(network, autojump_clock):
    """Calls on its sockets after a power cut have no effect."""
    client, server = await pair(network)
    network.shut_down(A, silently=True)
    await send(client, b"from the grave")
    client.close()
    with trio.move_on_after(600) as scope:
        await server.recv(1)
    assert scope.cancelled_caught
