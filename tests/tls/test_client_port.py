"""The client port by TLS: one port for both, and who is closed before anything is read."""

import contextlib
import re
import shutil
import ssl

import attrs
import pytest
import trio

import hastore
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.observe.node_status import NodeStatus
from hastore.broker.port.remoting_connection import RECEIVE_SIZE
from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.errors import HastoreError, TlsError, UnreachableError
from hastore.message import Message
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.client_tls import ClientTls
from hastore.tls.tls_contexts import TlsStatus, open_tls
from hastore.tls.tls_socket import TlsSocket
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_command import RemotingCommand
from tests.patience import WITHIN_S
from tests.support.certificates import DAY, make_authority, make_certificates
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.tls_files import env_days_ago, make_tls_files, master_with_tls
from tests.support.waiting import eventually

DISABLED, PERMISSIVE, ENFORCING = TlsMode.DISABLED, TlsMode.PERMISSIVE, TlsMode.ENFORCING
NONE, ASKED, REQUIRED = ClientCertificates


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates for the tests of this module."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@contextlib.asynccontextmanager
async def port(config, remoting=None, target=None, env=None):
    """Serve a store in memory; yield the server and its address."""
    tls = await open_tls(config, env or real_env())
    async with serving(target or InMemoryTarget(), remoting, tls=tls) as served:
        yield served


def refusals(server):
    """Return why peers were closed."""
    return [reason for _, reason in server.statistics().refused]


async def refused(server, address, tls, match):
    """Check that a client cannot ask, and is told why."""
    with pytest.raises(HastoreError, match=match) as caught:
        async with AdminClient.connect(address, tls=tls, connect_timeout_s=WITHIN_S) as client:
            await client.ha_status()
    error = caught.value
    assert error.hint
    if tls is None:
        assert "takes TLS only" in error.hint
    await eventually(lambda: server.statistics().connections == 0)
    return error


# -- what is taken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", TlsMode)
async def test_each_mode_takes_what_it_says(files, mode):
    """Plain bytes, TLS, or either; the other is closed, and the log says which it was."""
    async with port(files.config(mode)) as (server, address):
        for tls, other in ((None, ENFORCING), (files.client(), DISABLED)):
            if mode is other:
                match = "did not answer" if tls is None else "in the TLS handshake|cut off"
                await refused(server, address, tls, match)
            else:
                async with AdminClient.connect(address, tls=tls) as client:
                    assert await client.ha_status()
        expected = {
            DISABLED: ["a TLS handshake, and this port takes plain bytes only ([tls] mode)"],
            PERMISSIVE: [],
            ENFORCING: ["plain bytes, and this port takes TLS only ([tls] mode)"],
        }
        assert refusals(server) == expected[mode]


@pytest.mark.parametrize("kind", ClientCertificates)
async def test_client_certificates_are_none_asked_or_required(files, tmp_path, kind):
    """A foreign or expired one is refused where one is asked for, and the client learns why."""
    foreign = files.client(make_certificates(tmp_path, "foreign"))
    late = files.authority.issue("late", valid=(-2 * DAY, -DAY))
    expired = files.client(late, env=env_days_ago(1.5))
    is_asked = kind is not NONE
    async with port(files.config(client_certificates=kind)) as (server, address):
        for tls, is_taken, reason in (
            (files.mutual(), True, None),
            (files.client(), kind is not REQUIRED, "wants a certificate"),
            (foreign, not is_asked, "does not trust the CA of our certificate"),
            (expired, not is_asked, "our certificate has expired"),
        ):
            if is_taken:
                async with AdminClient.connect(address, tls=tls) as client:
                    assert await client.ha_status()
            else:
                error = await refused(server, address, tls, reason)
                assert isinstance(error, TlsError)
                assert error.exit_code == 7
    kinds = {NONE: 0, ASKED: 2, REQUIRED: 3}
    assert len(refusals(server)) == kinds[kind]


async def test_a_client_checks_the_certificate_of_the_node(files, tmp_path):
    """Its CA, its name, and its dates; no request is sent to another."""
    other = make_authority(tmp_path, "other")
    target = InMemoryTarget()
    async with port(files.config(), target=target) as (server, address):
        await refused(server, address, ClientTls.of_files(ca=str(other.ca)), "is not trusted")
        tls = files.client(server_name="node-7")
        error = await refused(server, address, tls, "certificate is not for node-7")
        assert isinstance(error, TlsError)
        tls = files.client(server_name="localhost")
        async with AdminClient.connect(address, tls=tls) as client:
            assert await client.ha_status()
    late = files.config(node=files.authority.issue("late", valid=(-2 * DAY, -DAY)))
    async with port(late, env=env_days_ago(1.5)) as (server, address):
        await refused(server, address, files.client(), "the peer's certificate has expired")
    assert not target.messages


# -- who is closed before anything is read ---------------------------------------------------------


def hello_of_tls_1_0():
    """Return a ClientHello of a client of 2006: version 3.1, a few ciphers, no extension."""
    suites = bytes.fromhex("002f 0035 000a 0005 0004")
    body = b"\x03\x01" + bytes(32) + b"\x00" + len(suites).to_bytes(2, "big") + suites + b"\x01\x00"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def openssl_hello(files):
    """Return the first bytes of a good client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = files.client().context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("message", "plain bytes, and this port takes TLS only"),
        ("http", "plain bytes, and this port takes TLS only"),
        ("tls-1.0", "the peer's TLS is too old"),
        ("half", "no whole TLS handshake within 0.05 s"),
        ("byte", "no whole TLS handshake within 0.05 s"),
        ("message-inside", "TLS failed: |unexpected|the peer speaks no TLS"),
        ("alert", "the peer speaks no TLS|TLS failed: |plain bytes"),
        ("left", "the peer closed the connection in the TLS handshake"),
        ("huge", "TLS failed|handshake of more than"),
    ],
)
async def test_who_does_not_come_in_is_closed_and_nothing_is_stored(files, kind, reason):
    """Whatever it sends; a client beside it does not notice."""
    message = encode_command(send_command())
    hello = openssl_hello(files)
    sent = {
        "message": message,
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "tls-1.0": hello_of_tls_1_0(),
        "half": hello[:100],
        "byte": hello[:1],
        "message-inside": hello + message,
        "alert": bytes.fromhex("15030300020100") + message,
        "left": hello,
        "huge": b"\x16\x03\x01\x40\x00" + bytes(0x4000) + message * 2_000,
    }[kind]
    target = InMemoryTarget()
    remoting = RemotingConfig(header_timeout_ms=50 if kind in {"half", "byte"} else 3_600_000)
    config = files.config(client_certificates=REQUIRED)
    async with port(config, remoting, target) as (server, address):
        async with raw_client(address) as peer:
            with contextlib.suppress(OSError):
                await peer.send(sent)
                if kind == "left":
                    peer.sock.shutdown(trio.socket.SHUT_WR)
            await peer.closed()
        await eventually(lambda: server.statistics().refused_total == 1)
        assert re.search(reason, refusals(server)[0])
    assert not target.messages


async def test_openssl_s_client_is_let_in_with_a_certificate_only(files, tmp_path):
    """A client that is not ours, with the versions that it is told to speak."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    made = files.authority.issue("by-openssl")
    config = files.config(client_certificates=REQUIRED)
    async with port(config) as (server, address):

        async def s_client(*flags):
            """Return what it says of the handshake."""
            done = await trio.run_process(
                ["openssl", "s_client", "-connect", f"127.0.0.1:{address[1]}", *flags],
                stdin=encode_command(RemotingCommand(code=907)),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
            return (done.stdout + done.stderr).decode(errors="replace")

        trusted = ["-CAfile", str(made.ca), "-verify_ip", "127.0.0.1", "-verify_return_error"]
        own = ["-cert", str(made.cert), "-key", str(made.key)]
        for version in ("-tls1_2", "-tls1_3"):
            text = await s_client(*trusted, *own, version)
            assert "Verify return code: 0 (ok)" in text, text
        await eventually(lambda: server.statistics().connections == 0)
        assert server.statistics().refused_total == 0
        for flags in ([*trusted, "-tls1_2"], [*own, "-tls1", "-cipher", "ALL@SECLEVEL=0"]):
            text = await s_client(*flags)
            assert "alert" in text or "no protocols available" in text, text


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_group", [False, True])
async def test_messages_go_in_and_come_out_by_tls(files, tmp_path, is_group):
    """Large ones, which leave a plain port by sendfile, among them; to one node or to several."""
    sizes = [1, 100, 300_000, 70] * 20
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    config = master_with_tls(tmp_path, files.config(client_certificates=REQUIRED))
    async with hastore.open_master(config) as master:
        where = [master.address] if is_group else master.address
        async with Producer.connect(where, tls=files.mutual()) as producer:
            sends = [await producer.submit(Message("T", body)) for body in bodies]
            assert [(await send.wait()).ok for send in sends] == [True] * len(bodies)
        received = []
        async with Consumer.connect(where, tls=files.mutual()) as consumer:
            async for message in consumer.messages("T"):
                received.append(message.body)
                if len(received) == len(bodies):
                    break
        assert sorted(received) == sorted(bodies)
        assert master.status().tls.mode == "enforcing"
        with pytest.raises(UnreachableError):
            async with Producer.connect(master.address):
                pass


async def test_large_requests_grow_no_large_buffer(files, tmp_path, monkeypatch):
    """A client's bytes are received in the pieces of a plain port: a thousand clients may send."""
    sizes = []
    receive = TlsSocket._receive

    async def sized(self):
        if self._server_name is None:  # the node's end
            sizes.append(len(self._room))
        await receive(self)

    monkeypatch.setattr(TlsSocket, "_receive", sized)
    async with hastore.open_master(master_with_tls(tmp_path, files.config())) as master:
        async with Producer.connect(master.address, tls=files.client()) as producer:
            sends = [await producer.submit(Message("T", bytes(1_000_000))) for _ in range(4)]
            assert [(await send.wait()).ok for send in sends] == [True] * 4
    assert sizes
    assert max(sizes) <= RECEIVE_SIZE


async def test_many_answers_leave_in_one_write(files, monkeypatch):
    """As without TLS: the cost is a record's, not a message's."""
    sizes = []
    send = TlsSocket.send

    async def counted(self, data, flags=0):
        sizes.append(len(data))
        return await send(self, data, flags)

    async with port(files.config()) as (_, address):
        async with raw_client(address, tls=files.client()) as client:
            requests = b"".join(encode_command(send_command(opaque)) for opaque in range(2_000))
            monkeypatch.setattr(TlsSocket, "send", counted)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, requests)
                answers = [await client.receive() for _ in range(2_000)]
            assert [answer.opaque for answer in answers] == list(range(2_000))
    assert len(sizes) < 2_000 / 10, sizes


async def test_a_new_certificate_counts_for_new_connections_and_ends_none(files, tmp_path):
    """The old ones go on; a node that is asked for its status says what is in force."""
    made = files.authority.issue("short")
    tls = await open_tls(files.config(node=made), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        async with AdminClient.connect(address, tls=files.client()) as client:
            assert await client.ha_status()
            files.authority.issue("short", hosts=["node-7"], valid=(-DAY, 5 * DAY))
            assert await tls.reload()
            assert await client.ha_status()
            with pytest.raises(TlsError, match=r"certificate is not for 127\.0\.0\.1"):
                async with AdminClient.connect(address, tls=files.client()):
                    pass
            async with AdminClient.connect(address, tls=files.client(server_name="node-7")) as new:
                assert await new.ha_status()
            assert await client.ha_status()


def test_certificates_that_are_not_in_force_are_a_fault_everywhere():
    """In check, doctor and the status table; a node without them says nothing about them."""
    status = InMemoryTarget().status()
    assert "tls" not in {each.subject for each in findings(status, Limits())}
    far_s = 4_000_000_000
    good = TlsStatus(mode="enforcing", certificate="n.pem", not_after=far_s, fault=None, hint=None)
    bad = attrs.evolve(good, fault="the certificate in n.pem has expired", hint="make a new one")
    for tls, level in ((good, Level.OK), (bad, Level.FAULT)):
        known = NodeStatus.from_dict(attrs.evolve(status, tls=tls).to_dict())
        assert known.tls == tls
        (found,) = [each for each in findings(known, Limits()) if each.subject == "tls"]
        assert found.level is level
    assert found.sentence.endswith("earlier versions are: the certificate in n.pem has expired")
    assert found.hint == "make a new one"


async def test_a_search_for_the_master_ends_where_no_nodes_certificate_counts(files, tmp_path):
    """At once, and with the reason; not while another node may be the master."""
    other = ClientTls.of_files(ca=str(make_authority(tmp_path, "other").ca))
    async with port(files.config()) as (_, first), port(files.config()) as (_, second):
        for connect in (Producer.connect, Consumer.connect):
            with pytest.raises(TlsError, match=r"not trusted.*; .*not trusted") as caught:
                async with connect(first, second, tls=other, connect_timeout_s=WITHIN_S):
                    pass
            assert caught.value.hint
        with pytest.raises(UnreachableError, match="no master found within"):
            async with Producer.connect(first, ("127.0.0.1", 1), tls=other, connect_timeout_s=0.3):
                pass
