"""The client and real etcd servers: killed, frozen, restored, with users, with TLS, without."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from hastore.cluster.etcd_client import EtcdClient, EtcdConfig, EtcdHealth
from hastore.cluster.key_value_store import Absent, Changes, Delete, Put, Unchanged, follow
from hastore.cluster.server_clocks import server_clocks
from hastore.env.real import real_env
from hastore.errors import (
    CompactedError,
    CoordinatorRefusedError,
    CoordinatorTlsError,
    CoordinatorUnreachableError,
)
from hastore.tls.contexts import TlsFiles, client_context
from tests.patience import WITHIN_S
from tests.support.certificates import Certificates, make_certificates
from tests.support.etcd import (
    KINDS,
    EtcdServer,
    etcd_of_kind,
    preferred_kind,
    start_cluster,
)

# For calls that must fail: what they wait for never comes.
SHORT_S = 1.0


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdServer]:
    """Run a server of each kind."""
    with etcd_of_kind(request.param, tmp_path / "etcd") as server:
        yield server


def config(*servers: EtcdServer, timeout_s: float = WITHIN_S, **more: object) -> EtcdConfig:
    """Return how to reach servers."""
    endpoints = tuple(server.endpoint for server in servers)
    return EtcdConfig(endpoints=endpoints, timeout_s=timeout_s, **more)


def post(server: EtcdServer, path: str, body: dict[str, object], token: str = "") -> dict:
    """Ask for what the client never asks for."""
    headers = {"Authorization": token} if token else {}
    request = urllib.request.Request(
        server.endpoint + path, data=json.dumps(body).encode(), headers=headers
    )
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        return json.load(answer)


async def test_a_killed_server_is_unreachable_until_it_starts_again(server: EtcdServer) -> None:
    """A watch ends at once; what was written is there afterwards."""
    async with EtcdClient.open(config(server)) as client:
        put = await client.commit([], [Put("/k", b"1")])
        async with client.changes("/", put.revision - 1) as changes:
            await anext(changes)
            server.kill()
            with pytest.raises(CoordinatorUnreachableError, match=server.endpoint):
                await anext(changes)
        with pytest.raises(CoordinatorUnreachableError, match="no connection"):
            await client.read("/")
        with pytest.raises(CoordinatorUnreachableError, match="no connection"):
            await client.commit([], [Put("/k", b"2")])
        server.start()
        assert (await client.read("/")).items["/k"].value == b"1"
        again = await client.commit([Unchanged("/k", put.revision)], [Put("/k", b"2")])
        assert again.succeeded


async def test_a_frozen_server_may_do_later_what_it_was_asked_for(server: EtcdServer) -> None:
    """Its kernel has the request: only a compare-and-swap settles what became of it."""
    async with EtcdClient.open(config(server, timeout_s=SHORT_S)) as client:
        await client.read("/")
        server.freeze()
        for call in (client.read("/"), client.commit([Absent("/k")], [Put("/k", b"1")])):
            with pytest.raises(CoordinatorUnreachableError, match="no answer to"):
                await call
        server.thaw()
    async with EtcdClient.open(config(server)) as client:
        again = await client.commit([Absent("/k")], [Put("/k", b"2")])
        value = (await client.read("/")).items["/k"].value
        assert value == (b"2" if again.succeeded else b"1")


async def test_a_watch_at_a_frozen_server_is_over(server: EtcdServer) -> None:
    """It has no line to send, and the kernel keeps the connection: only a read shows it."""
    async with EtcdClient.open(config(server, timeout_s=SHORT_S)) as client:
        revision = (await client.read("/")).revision
        async with trio.open_nursery() as nursery, client.changes("/", revision) as changes:
            await client.commit([], [Put("/k", b"")])
            await anext(changes)

            async def freeze() -> None:
                server.freeze()

            nursery.start_soon(freeze)
            with pytest.raises(CoordinatorUnreachableError, match="no answer to"):
                await anext(changes)


async def test_an_etcd_restored_from_a_backup_is_recognised(
    server: EtcdServer, tmp_path: Path
) -> None:
    """It has a smaller revision; a watch from a later one is refused, not silent."""
    async with EtcdClient.open(config(server)) as client:
        await client.commit([], [Put("/old", b"")])
        server.kill()
        shutil.copytree(server.directory / "data", tmp_path / "backup")
        server.start()
        latest = await client.commit([], [Put("/new", b"")])
        server.kill()
        shutil.rmtree(server.directory / "data")
        shutil.copytree(tmp_path / "backup", server.directory / "data")
        server.start()
        snapshot = await client.read("/")
        assert list(snapshot.items) == ["/old"]
        assert (snapshot.cluster_id, snapshot.revision) == (latest.cluster_id, latest.revision - 1)
        async with client.changes("/", latest.revision) as changes:
            with trio.fail_after(WITHIN_S), pytest.raises(CompactedError, match="future revision"):
                await anext(changes)


async def test_a_compaction_hides_no_deletion(server: EtcdServer) -> None:
    """One at the very revision that deleted a key: 3.4.23 and 3.5.1 forget the deletion."""
    async with EtcdClient.open(config(server)) as client:
        put = await client.commit([], [Put("/k", b"1")])
        deleted = await client.commit([], [Delete("/k")])
        await client.commit([], [Put("/l", b"1")])
        body = {"revision": str(deleted.revision), "physical": True}
        post(server, "/v3/kv/compaction", body)
        async with client.changes("/", put.revision) as changes:
            with pytest.raises(CompactedError, match="compacted"):
                await anext(changes)
        async with client.changes("/", deleted.revision) as changes:
            assert [item.key for item in (await anext(changes)).puts] == ["/l"]
        async with follow(client, "/") as snapshots:
            assert list((await anext(snapshots)).items) == ["/l"]


async def test_health_has_what_a_doctor_asks_for(server: EtcdServer) -> None:
    """Version, cluster, leader, latency and clock; an endpoint that is dead has its error."""
    dead = EtcdServer(server.binary, server.directory)
    async with EtcdClient.open(config(server, dead)) as client:
        snapshot = await client.read("/")
        heard = dict(client.clocks())
        healthy, error = await client.health("/")
    dead.close()
    assert isinstance(healthy, EtcdHealth)
    assert healthy.endpoint == server.endpoint
    assert healthy.version.startswith(("3.4.", "3.5."))
    assert (healthy.cluster_id, healthy.revision) == (snapshot.cluster_id, snapshot.revision)
    assert healthy.leader_id == healthy.member_id != 0
    assert 0 < healthy.latency_s < WITHIN_S
    assert healthy.server_time_s is not None
    assert server.endpoint in heard  # by the read alone
    (clock,) = server_clocks(heard)
    lead_ms = dt.datetime.now(dt.UTC).timestamp() * 1000 - clock.boot_ms - clock.offset_ms
    assert abs(lead_ms) < 1_000 * (WITHIN_S + 1)
    assert clock.is_own_machine
    now_s = dt.datetime.now(dt.UTC).timestamp()
    assert abs(healthy.server_time_s - now_s) < WITHIN_S + 1
    assert isinstance(error, CoordinatorUnreachableError)
    assert dead.endpoint in str(error)


# -- several members -------------------------------------------------------------------------------


async def test_a_cluster_survives_a_member(tmp_path: Path) -> None:
    """Calls and watches go on at others after one is killed, another one after it is frozen."""
    with start_cluster(preferred_kind(), tmp_path / "etcd") as servers:
        first, second, third = servers
        async with EtcdClient.open(config(*servers, timeout_s=WITHIN_S / 4)) as client:
            revision = (await client.commit([], [Put("/k", b"0")])).revision
            first.kill()
            while True:  # until there is a leader
                try:
                    revision = (await client.commit([], [Put("/k", b"1")])).revision
                    break
                except CoordinatorUnreachableError:
                    continue
            first.start()
            second.freeze()
            snapshot = await client.read("/")
            assert snapshot.items["/k"].value == b"1"
            async with follow(client, "/") as snapshots:
                with trio.fail_after(WITHIN_S):
                    assert (await anext(snapshots)).revision >= revision
            second.thaw()
            third.wait_ready()


async def test_a_member_without_a_majority_answers_nothing(tmp_path: Path) -> None:
    """Reads and transactions have no answer, and a watch is over, although the member lives."""
    with start_cluster(preferred_kind(), tmp_path / "etcd") as servers:
        alone = servers[0]
        async with EtcdClient.open(config(alone)) as client:
            revision = (await client.commit([], [Put("/k", b"")])).revision
            async with client.changes("/", revision - 1) as changes:
                await anext(changes)
                for server in servers[1:]:
                    server.kill()
                with trio.fail_after(2 * WITHIN_S), pytest.raises(CoordinatorUnreachableError):
                    await anext(changes)
        async with EtcdClient.open(config(alone, timeout_s=SHORT_S)) as client:
            with pytest.raises(CoordinatorUnreachableError):
                await client.read("/")
            with pytest.raises(CoordinatorUnreachableError):
                await client.commit([], [Put("/k", b"")])


# -- users -----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(server: EtcdServer) -> EtcdServer:
    """Return a server with the users root and node; node may use what is below /g/ only."""
    for role in ("root", "node"):
        post(server, "/v3/auth/role/add", {"name": role})
        post(server, "/v3/auth/user/add", {"name": role, "password": f"{role}-password"})
        post(server, "/v3/auth/user/grant", {"user": role, "role": role})
    permission = {"permType": "READWRITE", "key": "L2cv", "range_end": "L2cw"}
    post(server, "/v3/auth/role/grant", {"name": "node", "perm": permission})
    post(server, "/v3/auth/enable", {})
    return server


NODE = {"user": "node", "password": "node-password"}


async def test_a_user_with_the_right_password_is_served(guarded: EtcdServer) -> None:
    """Below its prefix: reads, transactions, leases and watches."""
    async with EtcdClient.open(config(guarded, **NODE)) as client:
        lease = await client.grant(30)
        put = await client.commit([Absent("/g/k")], [Put("/g/k", b"1", lease.lease_id)])
        assert put.succeeded
        assert await client.renew(lease.lease_id) == lease.ttl_s
        async with client.changes("/g/", put.revision - 1) as changes:
            assert isinstance(await anext(changes), Changes)
        (health,) = await client.health("/g/")
        assert isinstance(health, EtcdHealth)


@pytest.mark.parametrize(
    ("user", "hint"),
    [
        ({"user": "node", "password": "wrong"}, "check the user and the password"),
        ({"user": "nobody", "password": "node-password"}, "check the user and the password"),
        ({}, "set a user"),
    ],
)
async def test_a_wrong_password_is_refused(
    guarded: EtcdServer, user: dict[str, str], hint: str
) -> None:
    """So are an unknown user and none; an answer that refuses is not silence."""
    async with EtcdClient.open(config(guarded, **user)) as client:
        with pytest.raises(CoordinatorRefusedError) as caught:
            await client.read("/g/")
        assert hint in str(caught.value.hint)
        with pytest.raises(CoordinatorRefusedError):
            await client.commit([], [Put("/g/k", b"")])
        async with client.changes("/g/", 1) as changes:
            with pytest.raises(CoordinatorRefusedError):
                await anext(changes)


async def test_a_prefix_of_others_is_refused(guarded: EtcdServer) -> None:
    """The hint is to grant the role; nothing is written."""
    async with EtcdClient.open(config(guarded, **NODE)) as client:
        for call in (client.read("/h/"), client.commit([], [Put("/h/k", b"")])):
            with pytest.raises(CoordinatorRefusedError, match="permission denied") as caught:
                await call
            assert "etcdctl role" in str(caught.value.hint)
        async with client.changes("/h/", 1) as changes:
            with pytest.raises(CoordinatorRefusedError, match="permission denied"):
                await anext(changes)


async def test_a_token_that_a_restart_has_lost_is_renewed(guarded: EtcdServer) -> None:
    """For a call, and for a watch, each of which is the first to find out."""
    async with EtcdClient.open(config(guarded, **NODE)) as client:
        put = await client.commit([], [Put("/g/k", b"1")])
        guarded.kill()
        guarded.start()
        assert (await client.commit([], [Put("/g/k", b"2")])).succeeded
        guarded.kill()
        guarded.start()
        async with client.changes("/g/", put.revision) as changes:
            assert (await anext(changes)).puts[0].value == b"2"


async def test_a_user_does_no_harm_where_there_are_none(server: EtcdServer) -> None:
    """Users may be added while nodes run: their first call that is refused authenticates."""
    root = {"user": "root", "password": "root-password"}
    async with EtcdClient.open(config(server, **root)) as client:
        await client.commit([], [Put("/k", b"1")])
        post(server, "/v3/auth/user/add", {"name": "root", "password": "root-password"})
        post(server, "/v3/auth/role/add", {"name": "root"})
        post(server, "/v3/auth/user/grant", {"user": "root", "role": "root"})
        post(server, "/v3/auth/enable", {})
        assert (await client.read("/")).items["/k"].value == b"1"


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def tls_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdServer]:
    """Run a server that wants a certificate of its CA."""
    certificates = make_certificates(tmp_path / "tls", "ours")
    with etcd_of_kind(request.param, tmp_path / "etcd", certificates=certificates) as server:
        yield server


def files(certificates: Certificates) -> TlsFiles:
    """Return the paths as a configuration has them."""
    return TlsFiles(
        ca=str(certificates.ca),
        cert=str(certificates.cert),
        key=str(certificates.key),
        section="cluster",
    )


def context(paths: TlsFiles) -> ssl.SSLContext:
    """Return what a node makes of them."""
    return client_context(paths, real_env().disk, real_env().wall_clock.now_s())


async def test_tls_with_the_right_certificates(tls_server: EtcdServer) -> None:
    """Calls and watches; a later call uses the connection of the first."""
    assert tls_server.certificates is not None
    async with EtcdClient.open(
        config(tls_server, context=context(files(tls_server.certificates)))
    ) as client:
        put = await client.commit([Absent("/k")], [Put("/k", b"1")])
        async with client.changes("/", put.revision - 1) as changes:
            assert (await anext(changes)).puts[0].value == b"1"
            await client.commit([], [Put("/k", b"2")])
            assert (await anext(changes)).puts[0].value == b"2"


async def test_tls_with_wrong_certificates_is_named(tls_server: EtcdServer, tmp_path: Path) -> None:
    """Another CA, no certificate of our own, one of another CA; and http to that port."""
    ours, others = tls_server.certificates, make_certificates(tmp_path / "tls", "others")
    assert ours is not None
    wrong_ca = attrs.evolve(files(ours), ca=str(others.ca))
    no_cert = TlsFiles(ca=str(ours.ca))
    other_cert = attrs.evolve(files(others), ca=str(ours.ca))
    for paths, hint in (
        (wrong_ca, "signed by the configured CA"),
        (no_cert, "client certificate"),
        (other_cert, "client certificate"),
    ):
        async with EtcdClient.open(config(tls_server, context=context(paths))) as client:
            with pytest.raises(CoordinatorUnreachableError, match=tls_server.endpoint) as caught:
                await client.read("/")
            # The server's reset may overtake what it says of our certificate.
            assert isinstance(caught.value, CoordinatorTlsError) or "broke" in str(caught.value)
            assert hint in str(caught.value.hint)
    plain = tls_server.endpoint.replace("https:", "http:")
    async with EtcdClient.open(EtcdConfig(endpoints=(plain,), timeout_s=WITHIN_S)) as client:
        with pytest.raises(CoordinatorUnreachableError) as unreachable:
            await client.read("/")
        assert "http or https" in str(unreachable.value.hint)


async def test_a_new_certificate_and_a_new_password_are_used(
    tls_server: EtcdServer, tmp_path: Path
) -> None:
    """By the next connection; one that waits for a request is not used again."""
    ours, others = tls_server.certificates, make_certificates(tmp_path / "tls", "others")
    assert ours is not None
    wrong = context(attrs.evolve(files(others), ca=str(ours.ca)))
    async with EtcdClient.open(config(tls_server, context=context(files(ours)))) as client:
        await client.read("/")
        client.use(context=wrong, password=None)
        with pytest.raises(CoordinatorUnreachableError):
            await client.read("/")
        client.use(context=context(files(ours)), password=None)
        await client.read("/")


# -- the fixture -----------------------------------------------------------------------------------


def test_a_server_that_cannot_start_is_named(tmp_path: Path) -> None:
    """With its last lines of output."""
    server = EtcdServer(
        Path(shutil.which("sh") or "sh"), tmp_path / "etcd", options=("--no-such-option",)
    )
    try:
        with pytest.raises(AssertionError, match=r"e1, .*sh: exit code"):
            server.start()
    finally:
        server.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_keeps_its_ports(kind: str, tmp_path: Path) -> None:
    """Killed and started again it answers at the same address, with what it had."""
    with etcd_of_kind(kind, tmp_path / "etcd") as server:
        endpoint = server.endpoint
        async with EtcdClient.open(config(server)) as client:
            await client.commit([], [Put("/k", b"1")])
            server.kill()
            server.start()
            assert "/k" in (await client.read("/")).items
    assert server.endpoint == endpoint
    assert server.process is None
