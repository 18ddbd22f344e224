"""Nodes ask one another's client ports by TLS."""

from functools import partial

import attrs
import pytest

import hastore
from hastore.broker.request_target import PromiseWish
from hastore.cluster.failsafe import ask_all
from hastore.config import AccessConfig, SlaveConfig, StoreConfig, TlsConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.ha.client_port import PortKind, ask_client_port, asker_of
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
    """What a slave asks before it has a link, with its files as they are at its start."""
    tls = await open_tls(files.config(), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        for mode, is_answered in ((DISABLED, False), (PERMISSIVE, True), (ENFORCING, True)):
            ask = asker_of(AccessConfig(), files.config(mode), real_env())
            found = await ask(address)
            assert (found is not None and found.kind is PortKind.NODE) is is_answered
    assert asker_of(AccessConfig(), TlsConfig(), real_env()) is ask_client_port
    bad = attrs.evolve(files.config(), ca_file="/no/such/file")
    with pytest.raises(ConfigError, match="No such file"):
        asker_of(AccessConfig(), bad, real_env())


async def test_promises_are_asked_by_tls(files):
    """A master whose coordinator is silent asks the members of its set."""
    wish = PromiseWish(group="g", epoch=1, master_id=1, ttl_s=1.0)
    tls = await open_tls(files.config(), real_env())
    async with serving(InMemoryTarget(), tls=tls) as (_, address):
        ask = partial(ask_all, {2: address}, wish, nonce="n", timeout_s=60.0)
        assert "did not answer" in (await ask())[2]
        assert "is in no replica group" in (await ask(tls=tls.client))[2]
