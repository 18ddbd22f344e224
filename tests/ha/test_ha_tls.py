"""Mutual TLS on the HA port: nobody else reads the log, or acknowledges a byte of it."""

from __future__ import annotations

import contextlib
import logging
import ssl

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.client.admin import AdminClient
from hastore.concurrency.tcp import connect
from hastore.config import HAConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, TlsError
from hastore.ha import ha_tls
from hastore.ha.client_port import ask_client_port
from hastore.ha.copy_progress import FrameSizes
from hastore.ha.ha_link import HALink
from hastore.ha.ha_tls import AllowedNames, names_of
from hastore.ha.log_fetch import fetch_range
from hastore.status import BrokerRole, ClientCertificates, FlushDiskType, HAProtocol, TlsMode
from hastore.status import PutMessageStatus as Status
from hastore.tls.client_tls import ClientTls
from hastore.tls.tls_calls import tls_calls
from hastore.tls.tls_contexts import open_tls
from hastore.tls.tls_fault import TlsFault
from hastore.tls.tls_socket import accept_tls, connect_tls
from hastore.wire.autoswitch_frames import READER_ID_MAX, READER_IDS, Handshake
from hastore.wire.autoswitch_frames import encode_report as encode_autoswitch_report
from hastore.wire.ha_frames import encode_report
from tests.golden import streams
from tests.ha.asking import slave_that_asks
from tests.ha.recorded_session import END, mark_all_delivered, recorded_reports
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.group_nodes import group, promote, put
from tests.support.nodes.harness import (
    FILE_SIZE,
    RawSlave,
    flushed_by,
    log_bytes,
    master_config,
    messages,
    raw_master,
    raw_slave,
    read_report,
    slave_config,
)
from tests.support.tls import TIMEOUT_S, OwnCa, shaken_hands
from tests.support.waiting import eventually

CA, FOREIGN = OwnCa(), OwnCa()
MASTER, SLAVE = CA.cert(name="master"), CA.cert(name="slave")
OTHER = CA.cert("127.0.0.1", name="a-producer")  # of the same CA, and may not follow
EXPIRED = CA.cert(name="slave", expired=True)
NAMES = ("SLAVE", "n2.example")
TLS = attrs.evolve(QUICK, tls=True, tls_allowed_names=NAMES)
NO_HEARTBEATS = attrs.evolve(
    TLS, ha_send_heartbeat_interval_ms=900_000, ha_housekeeping_interval_ms=1_000_000
)


def tls_master(data_dir, **changes):
    """Return a master's configuration."""
    return master_config(data_dir, **{"ha": TLS, "tls": CA.config(MASTER), **changes})


def tls_slave(data_dir, master, cert=SLAVE, **changes):
    """Return the configuration of a slave with a certificate."""
    address = master if isinstance(master, tuple) else master.ha_address
    return slave_config(data_dir, address, **{"ha": TLS, "tls": CA.config(cert), **changes})


@contextlib.asynccontextmanager
async def tls_peer(address, context=None):
    """Connect as a slave with TLS; ``frame`` and ``report`` are as with a plain one."""
    sock = await connect(address, TIMEOUT_S)
    link = await connect_tls(sock, context or CA.client(SLAVE), "127.0.0.1", TIMEOUT_S)
    with link:
        yield RawSlave(link)


async def in_step(master):
    await eventually(lambda: master.ha_service.is_slave_ok(0), "a slave in step")


# -- those who may follow ----------------------------------------------------------------------


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_slave_with_a_certificate_replicates_and_acknowledges(tmp_path, flush):
    """SYNC_MASTER puts wait for it, as without TLS; the logs are equal."""
    store = flushed_by(flush)
    async with hastore.open_master(tls_master(tmp_path / "m", store=store)) as master:
        async with hastore.open_slave(tls_slave(tmp_path / "s", master, store=store)) as slave:
            await in_step(master)
            for message in messages(400):
                result = await master.put(message)
                assert result.status is Status.PUT_OK
                assert slave.max_offset >= result.next_offset
        end = master.max_offset
        assert end > FILE_SIZE
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_no_put_reads_its_report_from_the_socket(tmp_path):
    """What arrives there is encrypted, and the link's own task reads it."""

    def second_receiver(_sock):
        raise AssertionError("a put may read")

    env = attrs.evolve(real_env(), second_receiver=second_receiver)
    async with hastore.open_master(tls_master(tmp_path / "m"), env=env) as master:
        async with hastore.open_slave(tls_slave(tmp_path / "s", master)):
            await in_step(master)
            for message in messages(20):
                assert (await master.put(message)).status is Status.PUT_OK


async def test_a_new_slave_catches_up_from_files(tmp_path):
    """Bytes that are neither near the end nor in memory are read and encrypted in pieces."""
    size = 4 * 1024 * 1024
    config = tls_master(tmp_path / "m", file_size=size, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(40, size=200_000):
            await master.put(message)
        await master.flush_manager.flush_all()
        async with hastore.open_slave(tls_slave(tmp_path / "s", master, file_size=size)) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
        end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "s", end)


async def test_a_replica_group_s_nodes_follow_with_tls(tmp_path):
    """Autoswitch, handshake and epochs included; then another node is master."""
    ha = attrs.evolve(TLS, protocol=HAProtocol.AUTOSWITCH, tls_allowed_names=("*",))
    async with group(tmp_path, ha=ha, tls=CA.config(MASTER)) as nodes:
        master = await promote(nodes[0], *nodes[1:])
        for _ in range(20):
            assert await put(master) is Status.PUT_OK
        master = await promote(nodes[1], nodes[0], nodes[2])
        for _ in range(20):
            assert await put(master) is Status.PUT_OK
        await eventually(lambda: len({node.status().max_offset for node in nodes}) == 1)


async def test_an_observer_reads_with_tls(tmp_path):
    """Its port takes the same certificates, and no other."""
    ha = attrs.evolve(TLS, protocol=HAProtocol.AUTOSWITCH, sync_state_timeout_ms=1_000_000)
    config = tls_master(
        tmp_path / "m",
        ha=ha,
        node_id=1,
        replica_group="g1",
        group_ids=(1,),
        observer_listen=ANY_PORT,
    )
    async with hastore.open_master(config) as master:
        for message in messages(50):
            assert (await master.put(message)).status is Status.PUT_OK
        async with hastore.open_slave(tls_slave(tmp_path / "o", master.observer_address)) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset)
        async with tls_peer(master.observer_address, CA.client(OTHER)) as peer:
            await peer.closed_by_master()
        await eventually(lambda: master.status().refused)
        assert "for 127.0.0.1, a-producer: no such name" in master.status().refused[0].reason
        end = master.max_offset
    assert log_bytes(tmp_path / "m", end) == log_bytes(tmp_path / "o", end)


async def test_the_recorded_stream_is_the_same_through_tls(golden_copy, golden):
    """The plain text of a link with TLS is what a RocketMQ slave has been sent."""
    config = tls_master(
        mark_all_delivered(golden_copy("replica_master")), role=BrokerRole.ASYNC_MASTER
    )
    frames = {}
    for name, ha in {"plain": QUICK, "tls": TLS}.items():
        async with (
            hastore.open_master(attrs.evolve(config, ha=ha)) as master,
            tls_peer(master.ha_address) if ha.tls else raw_slave(master) as peer,
        ):
            pending, end = recorded_reports(golden), 0
            await peer.report(0)
            frames[name] = []
            while end < END:
                frames[name].append(await peer.frame())
                end += len(frames[name][-1][1])
                while pending and pending[0] <= end:
                    await peer.report(pending.pop(0))
            await eventually(lambda: master.status().slaves[0].ack_offset == END)
    assert frames["tls"] == frames["plain"]
    received = b"".join(body for _, body in frames["tls"])
    assert received == log_bytes(golden / "replica", END)


async def test_a_recorded_master_is_followed_through_tls(golden, tmp_path):
    """Its bytes come in the recorded pieces; the reports are among the recorded ones."""
    data = (golden / "ha_stream_m2s.bin").read_bytes()
    ha = attrs.evolve(NO_HEARTBEATS, ha_connect_timeout_ms=600_000)
    async with raw_master() as master:
        config = tls_slave(tmp_path / "s", master.address, ha=ha)
        async with hastore.open_slave(config) as slave:
            link = await accept_tls(await master.accept(), CA.server(MASTER), TIMEOUT_S)
            assert await read_report(link) == 1
            for size in streams.pieces():
                piece, data = data[:size], data[size:]
                sent = memoryview(piece)
                while sent:
                    sent = sent[await link.send(sent) :]
            await eventually(lambda: slave.max_offset == END)
            reports = []
            while not reports or reports[-1] != END:
                reports.append(await read_report(link))
            assert set(reports) <= set(recorded_reports(golden))
    assert log_bytes(tmp_path / "s", END) == log_bytes(golden / "replica", END)


async def test_ranges_of_the_log_are_fetched_with_tls(tmp_path):
    """As a slave compares a damaged record."""
    async with hastore.open_master(tls_master(tmp_path / "m")) as master:
        for message in messages(50):
            master.submit(message)
        end = master.max_offset
        contexts = await open_tls(CA.config(SLAVE), real_env())
        tls = contexts.current.client
        data = await fetch_range(master.ha_address, 100, end - 200, tls=tls)
        assert data == log_bytes(tmp_path / "m")[100 : end - 100]
        contexts = await open_tls(FOREIGN.config(FOREIGN.cert()), real_env())
        tls = contexts.current.client
        with pytest.raises(TlsError, match="the master's certificate is not trusted"):
            await fetch_range(master.ha_address, 100, 200, tls=tls)


async def test_the_next_link_has_the_new_certificate(tmp_path):
    """A reload ends no link."""
    files = OwnCa()
    config = tls_master(tmp_path / "m", tls=files.config(files.authority.issue("m")))
    async with (
        hastore.open_master(config) as master,
        tls_peer(master.ha_address, files.client(files.cert(name="slave"))) as old,
    ):
        await old.report(1)
        await in_step(master)
        before = old.sock.peer_certificate["serialNumber"]
        files.authority.issue("m")
        assert await master.tls.reload()
        async with tls_peer(master.ha_address, files.client(files.cert(name="slave"))) as new:
            assert new.sock.peer_certificate["serialNumber"] != before
        request = master.submit(messages(1)[0])
        offset, body = await old.frame()
        while not body:
            offset, body = await old.frame()
        await old.report(offset + len(body))
        await eventually(lambda: request.status is not None)
        assert request.status is Status.PUT_OK


# -- all others --------------------------------------------------------------------------------


def client_hello_of_tls_1_0():
    """Return the bytes: version 3.1, one cipher, no extensions."""
    body = b"\x03\x01" + bytes(32) + b"\0" + b"\0\x02\x00\x2f" + b"\x01\0"
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def of_tls_1_2(context):
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@attrs.frozen
class Intruder:
    """A peer that must not come in: by a context of its own, or by raw bytes."""

    reason: str
    context: object = None
    data: bytes = b""

    async def try_to_come_in(self, address):
        """Connect, report the log's beginning, and acknowledge a lot; return what was read."""
        sock = await connect(address, TIMEOUT_S)
        with sock:
            got = b""
            with contextlib.suppress(OSError):
                if self.context is not None:
                    sock = await connect_tls(sock, self.context(), "127.0.0.1", TIMEOUT_S)
                    await sock.send(encode_report(1) + encode_report(1 << 20))
                else:
                    await sock.send(self.data)
                with trio.fail_after(WITHIN_S):
                    while data := await sock.recv(65536):
                        got += data
            sock.close()
        return got


ALERT_OF_VERSION = b"\x15\x03\x01\0\x02\x02\x46"

INTRUDERS = {
    "no certificate": Intruder("has sent no certificate", lambda: CA.client(has_cert=False)),
    "no certificate, TLS 1.2": Intruder(
        "has sent no certificate", lambda: of_tls_1_2(CA.client(has_cert=False))
    ),
    "foreign": Intruder("is not trusted", lambda: CA.client(FOREIGN.cert(name="slave"))),
    "expired": Intruder("has expired", lambda: CA.client(EXPIRED)),
    "wrong name": Intruder("no such name may follow", lambda: CA.client(OTHER)),
    "plain report": Intruder("speaks no TLS", data=encode_report(1) * 3),
    "plain handshake": Intruder(
        "speaks no TLS", data=Handshake(node_id=7, is_learner=False).encode()
    ),
    "TLS 1.0": Intruder("TLS is too old", data=client_hello_of_tls_1_0()),
    "half a handshake": Intruder(
        "no whole TLS handshake within 0.5 s", data=client_hello_of_tls_1_0()[:20]
    ),
}


@pytest.mark.parametrize("protocol", HAProtocol)
@pytest.mark.parametrize("who", INTRUDERS)
async def test_who_does_not_come_in_reads_and_acknowledges_nothing(tmp_path, who, protocol, caplog):
    """It is closed, named in the log once and in the status; a slave is served meanwhile."""
    ha = attrs.evolve(TLS, protocol=protocol, sync_state_timeout_ms=1_000_000)
    intruder = INTRUDERS[who]
    if "silence" in intruder.reason or "within" in intruder.reason:
        ha = attrs.evolve(ha, ha_first_report_timeout_ms=500)
    ids = {"node_id": 1, "replica_group": "g1", "group_ids": (1,)}
    member = {"node_id": 2, "replica_group": "g1"}
    if protocol is HAProtocol.CLASSIC:
        ids, member = {}, {}
    config = tls_master(tmp_path / "m", ha=ha, role=BrokerRole.ASYNC_MASTER, **ids)
    async with hastore.open_master(config) as master:
        for message in messages(20):
            await master.put(message)
        caplog.set_level(logging.WARNING, "hastore")
        assert await intruder.try_to_come_in(master.ha_address) in {
            b"",
            b"\x15\x03\x01\0\x02\x02\x46",
        }
        await eventually(lambda: master.status().refused, "the refusal in the status")
        (row,) = master.status().refused
        assert intruder.reason in row.reason
        assert row.hint or "within" in row.reason
        assert master.status().slaves == ()
        assert not master.ha_service.unproven
        lines = [line for line in caplog.text.splitlines() if "ha_slave_refused" in line]
        assert len(lines) == 1
        config = tls_slave(tmp_path / "s", master, ha=ha, **member)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.max_offset == master.max_offset, "a copy")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tls": CA.config(OTHER)}, "no such name may follow"),
        (
            {"tls": attrs.evolve(FOREIGN.config(FOREIGN.cert()), ca_file=str(CA.authority.ca))},
            "does not trust the CA of our certificate",
        ),
        ({"ha": QUICK}, "the slave speaks no TLS"),
    ],
    ids=["wrong name", "foreign", "plain"],
)
async def test_a_slave_that_is_refused_says_why(tmp_path, changes, reason):
    """By the alert, or as the master's client port tells it; with the next step."""
    async with hastore.open_master(tls_master(tmp_path / "m", listen=ANY_PORT)) as master:

        async def ask(address):
            if address == master.ha_address:
                assert not config.ha.tls, "such a port takes no question"
                return await ask_client_port(address)
            found = await ask_client_port(master.address)
            return None if found is None else attrs.evolve(found, ha_port=master.ha_address[1])

        config = tls_slave(tmp_path / "s", master, **changes)
        async with slave_that_asks(config, ask) as slave:
            await eventually(lambda: reason in (slave.status().master_link.reason or ""), reason)
            error = slave.ha_client.error
            assert error is not None
            assert error.hint is not None
            assert slave.max_offset == 0


@pytest.mark.parametrize(
    ("cert", "authority", "reason"),
    [
        (FOREIGN.cert(name="m"), FOREIGN, "the master's certificate is not trusted"),
        (CA.cert("n9.example", name="m"), CA, "certificate is not for 127.0.0.1"),
    ],
)
async def test_a_slave_does_not_follow_a_master_that_it_cannot_trust(
    tmp_path, cert, authority, reason
):
    """A foreign certificate, and one for another host."""
    config = tls_master(tmp_path / "m", tls=authority.config(cert))
    async with hastore.open_master(config) as master:
        async with hastore.open_slave(tls_slave(tmp_path / "s", master)) as slave:
            await eventually(lambda: reason in (slave.status().master_link.reason or ""))
            assert slave.ha_client.error.hint
            assert slave.max_offset == 0


async def test_a_slave_with_tls_does_not_follow_a_plain_master(tmp_path):
    """It does not fall back."""
    async with hastore.open_master(master_config(tmp_path / "plain")) as master:
        master.submit(messages(1)[0])
        async with hastore.open_slave(tls_slave(tmp_path / "s", master)) as slave:
            await eventually(lambda: slave.status().master_link.reason is not None)
            assert slave.max_offset == 0


# -- whose node id a certificate may claim -------------------------------------------------------

N2, N3, HELPER = (CA.cert(name=name) for name in ("n2", "n3", "helper"))
BOUND = attrs.evolve(
    TLS, protocol=HAProtocol.AUTOSWITCH, tls_allowed_names=("n2=2", "n3=3", "helper")
)
GROUP = {"node_id": 1, "replica_group": "g1", "group_ids": (1, 2, 3)}


@pytest.mark.parametrize("is_learner", [False, True])
@pytest.mark.parametrize("who", ["n2", "helper"])
async def test_a_certificate_cannot_claim_another_nodes_id(tmp_path, who, is_learner):
    """It is closed at its handshake, and named; the node whose id that is joins the set."""
    config = tls_master(tmp_path / "m", ha=BOUND, **GROUP)
    async with hastore.open_master(config) as master:
        context = CA.client({"n2": N2, "helper": HELPER}[who])
        async with tls_peer(master.ha_address, context) as peer:
            await peer.sock.send(Handshake(node_id=3, is_learner=is_learner).encode())
            await peer.closed_by_master()
            assert not peer.received
        await eventually(lambda: master.status().refused, "the refusal in the status")
        (row,) = master.status().refused
        assert "says that it is node 3, and its certificate is for" in row.reason
        assert who in row.reason
        assert "tls_allowed_names" in row.hint
        members = {"replica_group": "g1", "ha": BOUND}
        async with (
            hastore.open_slave(tls_slave(tmp_path / "2", master, N2, node_id=2, **members)),
            hastore.open_slave(tls_slave(tmp_path / "3", master, N3, node_id=3, **members)),
        ):
            await eventually(lambda: master.status().sync_state.members == (1, 2, 3))
            assert (await master.put(messages(1)[0])).status is Status.PUT_OK


async def test_every_certificate_that_may_follow_may_read_the_groups_log(tmp_path):
    """A reader draws an id that no node has: a slave compares a damaged record so."""
    config = tls_master(tmp_path / "m", ha=BOUND, role=BrokerRole.ASYNC_MASTER, **GROUP)
    async with hastore.open_master(config) as master:
        await master.put(messages(1)[0])
        for cert in (N2, HELPER):
            async with tls_peer(master.ha_address, CA.client(cert)) as peer:
                lowest = READER_ID_MAX - READER_IDS + 1
                await peer.sock.send(Handshake(node_id=lowest, is_learner=True).encode())
                assert await peer.sock.recv(1)
        assert master.status().refused == ()


async def test_names_without_ids_are_named_by_the_status(tmp_path):
    """Those of a group's node: only there links have ids."""
    config = tls_master(tmp_path / "m", ha=BOUND, **GROUP)
    async with hastore.open_master(config) as master:
        assert master.status().tls.ha_names_without_ids == ("helper",)
    async with hastore.open_master(tls_master(tmp_path / "classic")) as master:
        assert master.status().tls.ha_names_without_ids == ()


# -- who is withdrawn, and who is only a client ------------------------------------------------


async def test_a_new_list_ends_the_links_of_certificates_that_it_names(tmp_path):
    """No ack of such a slave counts any more, and it says why; the other slave's do."""
    own = OwnCa()
    own.authority.withdraw()
    leaving, staying = own.cert(name="leaving"), own.cert(name="staying")
    ha = attrs.evolve(TLS, tls_allowed_names=("*",), slave_timeout_ms=300)
    tls = attrs.evolve(own.config(own.cert(name="m")), crl_file=str(own.authority.crl))
    config = tls_master(tmp_path / "m", ha=ha, tls=tls)
    async with (
        hastore.open_master(config) as master,
        hastore.open_slave(tls_slave(tmp_path / "1", master, tls=own.config(leaving))) as gone,
    ):
        await in_step(master)
        assert (await master.put(messages(1)[0])).status is Status.PUT_OK
        own.authority.withdraw(leaving)
        assert await master.tls.reload()
        assert (await master.put(messages(1)[0])).status is not Status.PUT_OK
        reason = "certificate has been withdrawn"
        await eventually(lambda: reason in (gone.status().master_link.reason or ""), reason)
        assert any(reason in row.reason for row in master.status().refused)
        tls = own.config(staying)
        async with hastore.open_slave(tls_slave(tmp_path / "2", master, tls=tls)) as slave:
            await in_step(master)
            assert (await master.put(messages(1)[0])).status is Status.PUT_OK
            assert slave.max_offset == master.max_offset > gone.max_offset


async def test_a_certificate_of_the_clients_ca_cannot_follow(tmp_path):
    """Whatever its name, and though all names may; at the client port it is served."""
    clients = OwnCa()
    ha = attrs.evolve(TLS, tls_allowed_names=("*",))
    tls = attrs.evolve(
        CA.config(MASTER),
        mode=TlsMode.ENFORCING,
        client_certificates=ClientCertificates.REQUIRED,
        client_ca_file=str(clients.authority.ca),
    )
    config = tls_master(tmp_path / "m", ha=ha, tls=tls, listen=ANY_PORT)
    async with hastore.open_master(config) as master:
        client = clients.cert(name="slave")
        for cert in (client, SLAVE):  # a node asks other nodes' client ports, too
            paths = {"ca": str(CA.authority.ca), "cert": str(cert.cert), "key": str(cert.key)}
            found = ClientTls.of_files(**paths)
            async with AdminClient.connect(master.address, tls=found) as admin:
                assert await admin.ha_status()
        intruder = Intruder("is not trusted", lambda: CA.client(client))
        assert await intruder.try_to_come_in(master.ha_address) == b""
        await eventually(lambda: master.status().refused, "the refusal in the status")
        assert "is not trusted" in master.status().refused[0].reason
        async with hastore.open_slave(tls_slave(tmp_path / "s", master)):
            await in_step(master)
        assert master.status().tls.client_ca_not_after is not None


# -- links that never begin ----------------------------------------------------------------------


async def test_unproven_peers_make_room_for_a_slave(tmp_path):
    """Handshakes count as connections, wait beside one another, and the oldest is evicted."""
    ha = attrs.evolve(TLS, ha_connections_max=8, ha_first_report_timeout_ms=600_000)
    async with (
        hastore.open_master(tls_master(tmp_path / "m", ha=ha)) as master,
        hastore.open_slave(tls_slave(tmp_path / "s", master, ha=ha)) as slave,
    ):
        await in_step(master)
        async with contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(raw_slave(master)) for _ in range(30)]
            await peers[0].closed_by_master()
            await eventually(lambda: len(master.ha_service.unproven) == 7)
            assert "evicted: 8 connections" in master.status().refused[-1].reason
            assert (await master.put(messages(1)[0])).status is Status.PUT_OK
            assert slave.max_offset == master.max_offset
            master.ha_service.disconnect_all("over")
            await eventually(lambda: not master.ha_service.unproven)


async def test_a_peer_that_only_looks_is_not_refused(tmp_path):
    """A check whether the port is open sends nothing."""
    async with hastore.open_master(tls_master(tmp_path / "m")) as master:
        async with raw_slave(master):
            await eventually(lambda: master.ha_service.unproven)
        await eventually(lambda: not master.ha_service.unproven)
        assert master.status().refused == ()


async def test_a_handshake_and_an_illegal_report_in_one_record_end_their_link_only(tmp_path):
    """The answer and the last word are sent by two tasks: the master goes on."""
    ha = attrs.evolve(TLS, protocol=HAProtocol.AUTOSWITCH, sync_state_timeout_ms=1_000_000)
    ids = {"node_id": 1, "replica_group": "g1", "group_ids": (1,)}
    async with hastore.open_master(tls_master(tmp_path / "m", ha=ha, **ids)) as master:
        request = Handshake(node_id=2, is_learner=False).encode()
        for _ in range(12):  # which of the two is the first is trio's choice
            async with tls_peer(master.ha_address) as peer:
                await peer.sock.send(request + encode_autoswitch_report(1 << 40))
                await peer.closed_by_master()
            await eventually(lambda: not master.ha_service.connections, "the end of its link")
        assert str(1 << 40) in master.status().refused[0].reason
        assert (await master.put(messages(1)[0])).status is Status.PUT_OK


@pytest.mark.parametrize("how", ["over", "evicted"])
async def test_a_link_that_is_ended_as_its_handshake_ends_is_not_served(tmp_path, how, monkeypatch):
    """A master that is over sends nothing more; no place is taken twice."""
    async with hastore.open_master(tls_master(tmp_path / "m", ha=NO_HEARTBEATS)) as master:
        service, served = master.ha_service, []

        async def accept_and_end(*args, **kwargs):
            link = await accept_tls(*args, **kwargs)
            if how == "over":
                service.disconnect_all("over")
            else:
                next(iter(service.unproven.values())).finish("evicted")
            return link

        async def serve_link(*args):
            served.append(args)

        monkeypatch.setattr(ha_tls, "accept_tls", accept_and_end)
        monkeypatch.setattr(type(service), "_serve_link", serve_link)
        async with tls_peer(master.ha_address) as peer:
            await peer.closed_by_master()
            await eventually(lambda: not service.unproven)
            assert not peer.received
        assert served == []


async def test_a_silenced_slave_reports_nothing_that_was_encrypted():
    """Its master is deposed: what waits in TLS must not leave with TLS's end, either."""
    server, client = await shaken_hands(
        trio.socket.socketpair(), CA.server(MASTER), CA.client(SLAVE), real_env()
    )
    calls = tls_calls(real_env())
    link = HALink(client, FrameSizes(32_768, 1 << 20), None, 0.0, calls.send_now)
    while calls.send_now(client, (bytes(100_000),)) == 100_000:
        pass
    assert client._unsent
    async with trio.open_nursery() as nursery:
        link.queue_report(8)
        nursery.start_soon(link.send_reports)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    left_late = []
    client._try_send = lambda _sock, buffers: left_late.append(b"".join(buffers)) or 0
    link.silence()
    assert left_late == []
    fault = None
    while fault is None:
        try:
            assert await server.recv(1 << 20)
        except TlsError as error:
            fault = error.fault
    assert fault == TlsFault.CUT
    client.close()
    server.close()


# -- names and configuration -------------------------------------------------------------------


NAMED = {
    "subject": ((("organizationName", "evil"),), (("commonName", "n2"),)),
    "subjectAltName": (
        ("DNS", "n2.example"),
        ("IP Address", "10.0.0.7"),
        ("URI", "spiffe://a/b"),
        ("email", "n3"),
        ("DirName", ((("commonName", "n4"),),)),
    ),
}


def test_dns_names_and_addresses_decide():
    """The common name only where there is no DNS name; e-mail addresses and URIs never."""
    assert names_of(NAMED) == ("n2.example", "10.0.0.7")
    no_dns = {**NAMED, "subjectAltName": NAMED["subjectAltName"][1:]}
    assert names_of(no_dns) == ("10.0.0.7", "n2")
    assert names_of({"subject": NAMED["subject"]}) == ("n2",)
    assert names_of({}) == ()


def test_names_are_compared_whole():
    """Upper and lower case are alike."""
    names = names_of(NAMED)
    for allowed in (["N2.Example"], ["10.0.0.7"], ["x", "n2.example"], ["*"], ["n2.EXAMPLE=2"]):
        assert AllowedNames.of(allowed).may_follow(names)
    for allowed in ([], ["evil"], ["example"], ["*.example"], ["n2"], ["n3"], ["spiffe://a/b"]):
        assert not AllowedNames.of(allowed).may_follow(names)


@pytest.mark.parametrize(
    ("names", "node_id", "may_be"),
    [
        (["n2"], 2, True),
        (["n2"], 3, False),
        (["n2"], 7, False),
        (["twice"], 2, True),
        (["twice"], 4, True),
        (["twice"], 3, False),
        (["n2", "N3"], 3, True),  # a certificate for both
        (["free"], 7, True),
        (["free"], 2, False),  # it is another's
        (["n2", "free"], 7, False),
    ],
)
def test_a_name_with_an_id_is_of_that_node_only(names, node_id, may_be):
    """And an id that a name has is no other's."""
    allowed = AllowedNames.of(["n2=2", "n3=3", "twice=2", "twice=4", "free", "*"])
    assert allowed.may_be(names, node_id) is may_be


@pytest.mark.parametrize("entry", ["n2=", "=2", "*=2", "n2=two", "n2=0", "n2=-1", "n2=\u0662"])
def test_a_name_with_an_id_that_is_none_is_refused(entry):
    """By one sentence, with the form that is right."""
    with pytest.raises(ConfigError, match="write n2=2"):
        attrs.evolve(TLS, tls_allowed_names=("n1=1", entry))


def test_what_tls_needs_is_named():
    """A certificate, its key, a CA, and on a master who may follow."""
    with pytest.raises(ConfigError, match="needs a certificate, its key and the CA's"):
        master_config("m", ha=TLS)
    with pytest.raises(ConfigError, match="names of the certificates that may follow"):
        tls_master("m", ha=attrs.evolve(TLS, tls_allowed_names=()))
    tls_slave("s", ("n1", 1), ha=attrs.evolve(QUICK, tls=True))
    assert HAConfig().tls is False
