"""Nodes ask one another's client ports by TLS."""

from functools import partial

import attrs
import pytest
import trio

import hastore
from hastore.broker.node.slave import run_slave
from hastore.broker.request_target import PromiseWish
from hastore.cluster.failsafe import ask_all
from hastore.config import AccessConfig, SlaveConfig, StoreConfig, TlsConfig
from hastore.env.real import real_env
from hastore.ha.client_port import PortKind, ask_client_port, asker_of, with_contexts
from hastore.message import Message
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.tls_contexts import open_tls
from tests.support.certificates import make_certificates
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.tls_files import make_tls_files, master_with_tls
from tests.support.waiting import eventually

DISABLED, PERMISSIVE, ENFORCING = TlsMode.DISABLED, TlsMode.PERMISSIVE, TlsMode.ENFORCING


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates for the tests of this module."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("masters", "slaves"), [(ENFORCING, ENFORCING), (PERMISSIVE, ENFORCING), (DISABLED, PERMISSIVE)]
)
async def test_a_slave_copies_its_masters_tables_by_tls(files, tmp_path, masters, slaves):
    """A permissive slave takes a master without TLS, too: a cluster changes over node by node."""
    required = ClientCertificates.REQUIRED
    config = master_with_tls(tmp_path / "master", files.config(masters, required))
    async with hastore.open_master(config) as master:
        await master.put(Message("orders", b"x"))
        config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "slave")),
            master=master.ha_address,
            master_client=master.address,
            listen=ANY_PORT,
            ha=QUICK,
            tls=files.config(slaves, required),
        )
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().table_copies.age_s is not None)
            copies = slave.status().table_copies
            assert (copies.reason, copies.refused) == (None, {})
            assert slave.status().tls.mode == slaves.value


async def test_a_slave_of_a_foreign_ca_says_why_nothing_is_copied(files, tmp_path):
    """Its own certificate is fine, and its master's client port takes others only."""
    made = make_certificates(tmp_path / "foreign", "foreign")
    foreign = TlsConfig(mode=ENFORCING, cert_file=str(made.cert), key_file=str(made.key))
    foreign = attrs.evolve(foreign, ca_file=str(files.authority.ca))
    own = files.config(client_certificates=ClientCertificates.REQUIRED)
    async with hastore.open_master(master_with_tls(tmp_path / "master", own)) as master:
        config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "slave"), mapped_file_size=1 << 20),
            master=master.ha_address,
            master_client=master.address,
            listen=ANY_PORT,
            ha=QUICK,
            tls=foreign,
        )
        async with hastore.open_slave(config) as slave:
            said = "does not trust the CA of our certificate"
            await eventually(lambda: said in (slave.status().table_copies.reason or ""))
            assert slave.status().table_copies.hint


async def test_questions_to_a_client_port_are_asked_by_tls_too(files):
    """What a slave asks before it has a link."""
    tls = await open_tls(files.config(), real_env())
    plain = asker_of(AccessConfig(), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        for mode, is_answered in ((DISABLED, False), (PERMISSIVE, True), (ENFORCING, True)):
            ask = with_contexts(plain, await open_tls(files.config(mode), real_env()))
            found = await ask(address)
            assert (found is not None and found.kind is PortKind.NODE) is is_answered
        assert await with_contexts(plain, None)(address) is None
    assert with_contexts(ask_client_port, tls) is ask_client_port
    assert with_contexts(None, tls) is None


async def test_questions_are_asked_with_the_contexts_in_force(files, tmp_path):
    """Not with files that the node has not taken, or has refused."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(files.authority.ca.read_bytes())
    own = await open_tls(attrs.evolve(files.config(), ca_file=str(ca)), real_env())
    ask = with_contexts(asker_of(AccessConfig(), real_env()), own)
    tls = await open_tls(files.config(), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        ca.write_bytes(make_certificates(tmp_path, "foreign").ca.read_bytes())
        assert (await ask(address)).kind is PortKind.NODE
        assert await own.reload()
        assert await ask(address) is None


async def test_a_slave_asks_with_its_nodes_contexts(files, tmp_path, monkeypatch):
    """They are the same that its client port and its metrics have."""
    asked = []

    async def ask(address, *, access_key, tls):
        asked.append(tls)

    monkeypatch.setattr("hastore.ha.client_port.ask_client_port", ask)
    made = master_with_tls(tmp_path / "master", files.config())
    async with hastore.open_master(made) as master, trio.open_nursery() as nursery:
        config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "slave")),
            master=master.ha_address,
            listen=ANY_PORT,
            ha=QUICK,
            tls=files.config(),
        )
        run = partial(run_slave, ask_client_port=asker_of(AccessConfig(), real_env()))
        slave = await nursery.start(run, config, real_env())
        await eventually(lambda: asked)
        assert asked[0] is slave.tls.client
        slave.stop()


async def test_promises_are_asked_by_tls(files):
    """A master whose coordinator is silent asks the members of its set."""
    wish = PromiseWish(group="g", epoch=1, master_id=1, ttl_s=1.0)
    tls = await open_tls(files.config(), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        ask = partial(ask_all, {2: address}, wish, nonce="n", timeout_s=60.0)
        assert "did not answer" in (await ask())[2]
        assert "is in no replica group" in (await ask(tls=tls.client))[2]
