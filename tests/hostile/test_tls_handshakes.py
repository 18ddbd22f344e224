"""The client port under hostile and mutated handshakes: closed, and nothing is read from inside.

Every stream goes to a port that takes TLS with client certificates only, on its own connection,
whole or in pieces.  Meanwhile another client, with a certificate, is served.
"""

import contextlib
import random

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.client.admin import AdminClient
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.status import ClientCertificates
from hastore.tls.tls_contexts import open_tls
from tests.hostile.corpus_files import mutated, mutations, recorded
from tests.hostile.hosted import hosted
from tests.patience import WITHIN_S
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.tls_files import make_tls_files
from tests.support.waiting import eventually

STREAMS = recorded("tls")
MUTATIONS = 600


@attrs.frozen
class Port:
    """A port, its store, and a client that it lets in."""

    server: object
    address: tuple
    target: object
    good: AdminClient

    async def check(self, stream, piece=None):
        """Send a stream and no more: the port closes, and has stored nothing."""
        with trio.fail_after(WITHIN_S):
            async with raw_client(self.address) as peer:
                with contextlib.suppress(OSError):
                    step = piece or max(len(stream), 1)
                    for at in range(0, len(stream), step):
                        await peer.send(stream[at : at + step])
                    peer.sock.shutdown(trio.socket.SHUT_WR)
                await peer.closed()
        assert not self.target.messages
        assert await self.good.ha_status()


@contextlib.asynccontextmanager
async def open_port(files):
    """Serve, and connect the good client."""
    tls = await open_tls(files.config(client_certificates=ClientCertificates.REQUIRED), real_env())
    target = InMemoryTarget()
    async with (
        serving(target, tls=tls) as (server, address),
        AdminClient.connect(address, tls=files.mutual()) as good,
    ):
        yield Port(server, address, target, good)
        await eventually(lambda: server.statistics().connections == 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates for the tests of this module."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


async def test_recorded_handshakes_do_not_come_in_again(files):
    """Also whole sessions with a message inside, of a client that had been let in."""
    async with open_port(files) as port:
        for stream in STREAMS.values():
            for piece in (None, 1 + len(stream) // 7):
                await port.check(stream, piece)
        assert port.server.statistics().refused_total == 2 * len(STREAMS)


async def test_mutated_handshakes_are_closed(files):
    """Hundreds of mutations; the port serves on."""
    async with open_port(files) as port:
        for name, stream in mutations(STREAMS, MUTATIONS, 1):
            try:
                await port.check(stream)
            except BaseException as error:
                error.add_note(f"stream: {name}: {stream[:200].hex()}")
                raise


@st.composite
def wild_handshakes(draw):
    """TLS records of any kind and size, some of them real, some mutated."""
    choose = random.Random(draw(st.integers(0, 2**32)))
    known = sorted(STREAMS.values())
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            parts.append(mutated(draw(st.sampled_from(known)), known, choose))
            continue
        kind = draw(st.sampled_from([0x14, 0x15, 0x16, 0x17, 0x18, 0x80]))
        body = draw(st.binary(max_size=300))
        size = draw(st.one_of(st.just(len(body)), st.integers(0, 0xFFFF)))
        parts.append(bytes([kind, 3, draw(st.integers(0, 4))]) + size.to_bytes(2, "big") + body)
    return b"".join(parts)


def test_random_records_are_closed(files):
    """One port meets all of them."""
    with hosted(lambda: open_port(files)) as run:

        @settings(max_examples=settings.default.max_examples, deadline=None)
        @given(wild_handshakes(), st.sampled_from([None, None, 100, 1]))
        def run_example(stream, piece):
            run.call(run.value.check, stream, piece if len(stream) < 2_000 else None)

        run_example()


async def test_an_unfinished_handshake_makes_room_for_a_client(files):
    """It has proven nothing, and is the oldest that has not; a client that has asked stays."""
    hello = STREAMS["own_client_hello"]
    config = RemotingConfig(connections_max=2, header_timeout_ms=3_600_000)
    tls = await open_tls(files.config(), real_env())
    async with serving(InMemoryTarget(), config, tls=tls) as (server, address):
        async with AdminClient.connect(address, tls=files.client()) as first:
            assert await first.ha_status()
            async with raw_client(address) as peer:
                await peer.send(hello[:-1])
                await eventually(lambda: server.statistics().connections == 2)
                async with AdminClient.connect(address, tls=files.client()) as second:
                    assert await second.ha_status()
                    await peer.closed()
                    assert await first.ha_status()
        assert [reason for _, reason in server.statistics().refused] == [
            "evicted without a request: 2 clients are connected already"
        ]


async def test_a_handshake_of_records_that_mean_nothing_comes_to_an_end(files):
    """OpenSSL counts them; whatever it would take, 128 KiB are the end."""
    tls = await open_tls(files.config(client_certificates=ClientCertificates.REQUIRED), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (server, address):
        async with raw_client(address) as peer:
            with contextlib.suppress(OSError):
                await peer.send(STREAMS["own_client_hello"])
                # Empty records of a change of cipher, which TLS 1.3 ignores.
                while True:
                    await peer.send(bytes.fromhex("140303000101") * 1_000)
            await peer.closed()
        await eventually(lambda: server.statistics().connections == 0)
        assert len(server.statistics().refused) == 1
