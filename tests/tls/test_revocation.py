"""Withdrawn certificates: refused at the handshake, and their connections ended by a new list."""

import contextlib
import datetime as dt
import re
import ssl

import attrs
import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

import hastore
from hastore.client.admin import AdminClient
from hastore.concurrency.tcp import connect
from hastore.env.real import real_env
from hastore.errors import ConfigError, HastoreError, TlsError
from hastore.status import ClientCertificates
from hastore.tls import contexts
from hastore.tls.certificate import certificate_id, pem_certificates, pem_lists, read_list
from hastore.tls.contexts import TlsFiles, client_context, server_context
from hastore.tls.revocation import TlsLinks, Withdrawn
from hastore.tls.tls_contexts import open_tls
from hastore.tls.tls_fault import TlsFault
from hastore.tls.tls_socket import connect_tls
from tests.patience import WITHIN_S
from tests.support.certificates import DAY, make_authority
from tests.support.nodes.tls_files import make_tls_files, master_with_tls
from tests.support.tls import TIMEOUT_S, shaken_hands
from tests.support.waiting import eventually

ENV = real_env()
REQUIRED = ClientCertificates.REQUIRED


@pytest.fixture
def files(tmp_path):
    """A CA, a node's certificate, and an empty list."""
    made = make_tls_files(tmp_path)
    made.authority.withdraw()
    return made


def config(files, **changes):
    """Return the configuration of a node that heeds the CA's list."""
    changes = {"client_certificates": REQUIRED, "crl_file": str(files.authority.crl), **changes}
    return attrs.evolve(files.config(), **changes)


def read(made):
    """Return the certificate of a file (DER)."""
    (der,) = pem_certificates(made.cert.read_bytes())
    return der


# -- lists -----------------------------------------------------------------------------------------


def test_a_list_names_certificates_by_issuer_and_number(files):
    """However many; one of another CA with the same number is not meant."""
    made = [files.authority.issue(f"n{number}") for number in range(3)]
    path = files.authority.withdraw(*made[:2], others=range(1, 2_000))
    (der,) = pem_lists(b"a text before it\n" + path.read_bytes())
    found = Withdrawn.of([der])
    assert [certificate_id(read(each)) in found.ids for each in made] == [True, True, False]
    assert len(found.ids) == 2_001
    issuer, serial = certificate_id(read(made[0]))
    assert ((*issuer, (b"x", "y")), serial) not in found.ids
    assert found.validity.not_after - found.validity.not_before == 2 * DAY.total_seconds()


def test_a_list_may_be_empty_and_need_not_say_when_the_next_one_comes(files):
    """The oldest form has neither a version nor rows."""
    (der,) = pem_lists(files.authority.withdraw().read_bytes())
    assert read_list(der).serials == frozenset()
    assert Withdrawn.of([]).validity is None


def test_names_are_compared_as_openssl_compares_them():
    """Case, spaces and the kind of the text do not matter: both are the issuer's name."""
    key = ec.generate_private_key(ec.SECP256R1())
    plain = x509.NameAttribute(x509.NameOID.COMMON_NAME, "Our  CA")
    other = x509.NameAttribute(
        x509.NameOID.COMMON_NAME, "our ca", x509.name._ASN1Type.PrintableString
    )
    now = dt.datetime.now(dt.UTC)
    found = set()
    for attribute in (plain, other):
        made = x509.CertificateRevocationListBuilder(x509.Name([attribute]), now, now + DAY)
        found.add(read_list(made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)).issuer)
    assert len(found) == 1


NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a CA")])
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LIST = (
    x509.CertificateRevocationListBuilder(NAME, NOW, NOW + DAY)
    .add_revoked_certificate(
        x509.RevokedCertificateBuilder().serial_number(7).revocation_date(NOW).build()
    )
    .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    .public_bytes(Encoding.DER)
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_lists_are_an_error_or_a_list(data):
    """Never another exception."""
    broken = bytearray(LIST[: data.draw(st.integers(0, len(LIST)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        read_list(bytes(broken))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no list of withdrawn certificates"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "or a broken one"),
        (b"-----BEGIN CERTIFICATE-----\n", "has a certificate, and only lists"),
    ],
)
def test_a_file_that_is_no_list_is_refused(files, content, message):
    """A certificate in it would be trusted."""
    files.authority.crl.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        make_server(files)


@pytest.mark.parametrize("kind", ["CERTIFICATE", "TRUSTED CERTIFICATE", "X509 CERTIFICATE"])
def test_a_list_file_with_a_certificate_is_refused_whatever_its_header(
    files, tmp_path, kind, monkeypatch
):
    """OpenSSL trusts each of them; what it has loaded is counted, whatever the header says."""
    other = make_authority(tmp_path / "other", "other")
    planted = other.ca.read_bytes().replace(b"CERTIFICATE", kind.encode())
    lists = files.authority.crl.read_bytes() + other.withdraw().read_bytes()
    files.authority.crl.write_bytes(lists + planted)
    with pytest.raises(ConfigError, match="has a certificate, and only lists"):
        make_server(files)
    monkeypatch.setattr(contexts, "_ANY_CERTIFICATE", re.compile(b"no such header"))
    with pytest.raises(ConfigError, match="has a certificate, and only lists"):
        make_server(files)


def make_server(files, **more):
    """Return a context that wants certificates."""
    node = files.node
    paths = TlsFiles(
        cert=str(node.cert),
        key=str(node.key),
        ca=str(files.authority.ca),
        crl=str(files.authority.crl),
        **more,
    )
    return server_context(paths, REQUIRED, ENV.disk, ENV.wall_clock.now_s())


def test_each_ca_needs_a_list_that_is_in_force(files, tmp_path):
    """Else OpenSSL would refuse all that it has signed; it is named at the start."""
    other = make_authority(tmp_path / "other", "other")
    with pytest.raises(ConfigError, match="has no list of other ca, whose certificate is in"):
        make_server(files, client_ca=str(other.ca))
    both = files.authority.crl.read_bytes() + other.withdraw().read_bytes()
    files.authority.crl.write_bytes(both)
    make_server(files, client_ca=str(other.ca))
    files.authority.withdraw(valid=(-2 * DAY, -DAY))
    with pytest.raises(ConfigError, match="was to be replaced by") as caught:
        make_server(files)
    assert "openssl ca -gencrl" in caught.value.hint


# -- handshakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("whose", ["client", "server"])
async def test_a_withdrawn_certificate_is_refused_at_the_handshake(files, whose, version):
    """On either side, by its kind."""
    peer = files.authority.issue("peer")
    files.authority.withdraw(peer if whose == "client" else files.node)
    paths = TlsFiles(
        cert=str(peer.cert),
        key=str(peer.key),
        ca=str(files.authority.ca),
        crl=str(files.authority.crl) if whose == "server" else None,
    )
    client = client_context(paths, ENV.disk, ENV.wall_clock.now_s())
    client.maximum_version = version
    faults = []
    ends = trio.socket.socketpair()
    with ends[0], ends[1]:
        try:
            await shaken_hands(ends, make_server(files), client)
        except* TlsError as group:
            faults += [each.fault for each in leaves(group)]
    assert TlsFault.REVOKED_CERTIFICATE in faults


def leaves(group):
    """Yield the errors of a group."""
    for each in group.exceptions:
        yield from leaves(each) if isinstance(each, BaseExceptionGroup) else (each,)


# -- connections that are there --------------------------------------------------------------------


async def test_a_new_list_ends_the_connections_of_certificates_that_it_names(files):
    """Those of others stay; the next connection is refused, and told why."""
    leaving, staying = (files.authority.issue(name) for name in ("leaving", "staying"))
    async with hastore.open_master(master_with_tls(files.directory / "d", config(files))) as master:
        ours = files.client(staying)
        async with (
            AdminClient.connect(master.address, tls=files.client(leaving)) as gone,
            AdminClient.connect(master.address, tls=ours) as kept,
        ):
            assert await gone.ha_status()
            files.authority.withdraw(leaving)
            assert (await master.reload()).taken == ("certificate",)
            with pytest.raises((HastoreError, OSError)):
                await gone.ha_status()
            assert await kept.ha_status()
        with pytest.raises(TlsError, match="our certificate has been withdrawn"):
            async with AdminClient.connect(master.address, tls=files.client(leaving)) as again:
                await again.ha_status()
        status = master.status().tls
        assert status.crl_next_update - status.crl_issued_at == 2 * DAY.total_seconds()


@pytest.mark.parametrize("is_sending", [False, True])
async def test_an_idle_connection_ends_at_once(files, is_sending):
    """Also one on which nobody sends; a send that waits is ended, too."""
    leaving = files.authority.issue("leaving")
    tls = await open_tls(config(files), ENV)
    accepted, connected = await shaken_hands(
        trio.socket.socketpair(), tls.server, files.client(leaving).context, ENV
    )
    outcome = []

    async def use():
        try:
            while True:
                await (accepted.send(bytes(1 << 20)) if is_sending else accepted.recv(1))
        except OSError as error:
            outcome.append(error)

    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await trio.testing.wait_all_tasks_blocked()
            files.authority.withdraw(leaving)
            assert await tls.reload()
    (error,) = outcome
    assert is_sending or error.fault == TlsFault.REVOKED_CERTIFICATE
    with pytest.raises(TlsError):
        await accepted.send(b"x")
    connected.close()
    accepted.close()


async def test_a_handshake_that_began_before_the_list_is_ended_too(files):
    """Its context is the former one."""
    leaving = files.authority.issue("leaving")
    tls = await open_tls(config(files), ENV)
    former = tls.server
    files.authority.withdraw(leaving)
    assert await tls.reload()
    ends = trio.socket.socketpair()
    with ends[0], ends[1], pytest.raises(ExceptionGroup) as caught:
        await shaken_hands(ends, former, files.client(leaving).context, ENV)
    assert "has been withdrawn" in str(next(leaves(caught.value)))


async def test_a_ca_between_that_is_withdrawn_ends_all_that_it_has_signed(files, tmp_path):
    """The whole chain counts, as at the handshake."""
    between = make_authority(tmp_path / "between", "between", issuer=files.authority)
    made = between.issue("leaf")
    made.cert.write_bytes(made.cert.read_bytes() + between.ca.read_bytes())
    lists = files.authority.crl.read_bytes() + between.withdraw().read_bytes()
    files.authority.crl.write_bytes(lists)
    tls = await open_tls(config(files), ENV)
    accepted, connected = await shaken_hands(
        trio.socket.socketpair(), tls.server, files.client(made).context, ENV
    )
    assert len(accepted.peer_chain()) == 3
    files.authority.withdraw(attrs.evolve(made, cert=between.ca))
    both = files.authority.crl.read_bytes() + between.crl.read_bytes()
    files.authority.crl.write_bytes(both)
    assert await tls.reload()
    with pytest.raises(TlsError, match="has been withdrawn"):
        await accepted.recv(1)
    connected.close()
    accepted.close()


class TwoAuthorities:
    """A node whose file has the lists of its CA and of a clients' CA, and a link by ``leaked``."""

    def __init__(self, files, tmp_path):
        """Write the certificates and lists."""
        self.files = files
        self.clients = make_authority(tmp_path / "clients", "clients")
        self.leaked = files.authority.issue("leaked")
        self.crl = tmp_path / "crl.pem"
        self.clients.withdraw()
        self.write()

    def write(self):
        """Replace the file of both lists."""
        new = self.crl.with_name("new.pem")
        new.write_bytes(self.files.authority.crl.read_bytes() + self.clients.crl.read_bytes())
        new.rename(self.crl)

    async def open(self):
        """Return the contexts of the node, and both ends of a link of ``leaked``."""
        tls = await open_tls(
            config(self.files, crl_file=str(self.crl), client_ca_file=str(self.clients.ca)), ENV
        )
        return tls, *(await self.shaken_hands(tls))

    async def shaken_hands(self, tls):
        """Return both ends of a link of ``leaked`` with the HA port's context."""
        client = self.files.client(self.leaked).context
        ends = trio.socket.socketpair()
        try:
            return await shaken_hands(ends, tls.current.mutual, client, ENV)
        except BaseException:
            for end in ends:
                end.close()
            raise

    async def assert_leaked_is_out(self, tls, link):
        """Its link has ended, and another one is refused."""
        with pytest.raises(TlsError, match="has been withdrawn"):
            await link.recv(1)
        link.close()
        with pytest.raises(ExceptionGroup) as caught:
            await self.shaken_hands(tls)
        texts = [str(each) for each in leaves(caught.value)]
        assert any("withdrawn" in text for text in texts), texts


async def test_an_overdue_list_does_not_hold_back_an_urgent_one(files, tmp_path):
    """In a running node; a node does not start with it."""
    both = TwoAuthorities(files, tmp_path)
    tls, link, other_end = await both.open()
    files.authority.withdraw(both.leaked)
    both.clients.withdraw(valid=(-2 * DAY, -DAY))
    both.write()
    is_taken, fault = await tls.reload(), tls.status().fault
    assert (is_taken, fault) == (True, None)
    assert tls.status().crl_next_update < ENV.wall_clock.now_s()
    await both.assert_leaked_is_out(tls, link)
    other_end.close()
    with pytest.raises(ConfigError, match="was to be replaced by"):
        await both.open()


@pytest.mark.parametrize("has_list", [True, False])
async def test_an_urgent_list_counts_whatever_else_is_wrong(files, tmp_path, has_list):
    """An expired certificate, or another CA without a list, keeps the former contexts only."""
    both = TwoAuthorities(files, tmp_path)
    tls, link, other_end = await both.open()
    before = tls.current
    files.authority.withdraw(both.leaked)
    if has_list:
        files.authority.issue("node", valid=(-2 * DAY, -DAY))
        both.write()
    else:
        both.crl.write_bytes(files.authority.crl.read_bytes())
    is_taken, fault = await tls.reload(), tls.status().fault
    assert not is_taken
    assert ("has expired" if has_list else "has no list of") in fault
    assert tls.current is before
    await both.assert_leaked_is_out(tls, link)
    other_end.close()


@pytest.mark.parametrize("has_key_id", [True, False])
@pytest.mark.parametrize("valid", [(-DAY, DAY), (-2 * DAY, -DAY)])
async def test_a_list_by_another_key_is_refused(files, tmp_path, has_key_id, valid):
    """A forged one, or of a CA of the same name: it ends no link, and no handshake fails."""
    both = TwoAuthorities(files, tmp_path)
    tls, link, other_end = await both.open()
    forger = make_authority(tmp_path / "forger", "test")
    forger.withdraw(both.leaked, has_key_id=has_key_id, valid=valid)
    both.crl.write_bytes(forger.crl.read_bytes() + both.clients.crl.read_bytes())
    is_taken, fault = await tls.reload(), tls.status().fault
    assert not is_taken
    assert ("has no list of test ca" if has_key_id else "has no sound list") in fault
    if has_key_id:  # beside the CA's own list it does not count
        lists = (files.authority.crl, both.clients.crl, forger.crl)
        both.crl.write_bytes(b"".join(each.read_bytes() for each in lists))
        is_taken = await tls.reload()
        assert is_taken
    assert not link.is_ended
    for end in (link, other_end, *(await both.shaken_hands(tls))):
        end.close()


async def test_a_node_does_not_start_with_a_list_by_another_key(files, tmp_path):
    """Every handshake would fail."""
    forger = make_authority(tmp_path / "forger", "test")
    files.authority.crl.write_bytes(forger.withdraw(has_key_id=False).read_bytes())
    with pytest.raises(ConfigError, match="CRL signature failure") as caught:
        await open_tls(config(files), ENV)
    assert "from the CA whose certificate" in caught.value.hint


async def test_the_lists_of_two_keys_of_one_name_are_two(files, tmp_path):
    """While one CA follows another of its name, each needs its list."""
    following = make_authority(tmp_path / "next", "test")
    files.authority.ca.write_bytes(files.authority.ca.read_bytes() + following.ca.read_bytes())
    with pytest.raises(ConfigError, match="has no list of test ca"):
        await open_tls(config(files), ENV)
    own = files.authority.crl.read_bytes()
    files.authority.crl.write_bytes(own + following.withdraw().read_bytes())
    assert await open_tls(config(files), ENV)


async def test_a_list_that_is_taken_back_before_it_counts_as_a_whole_is_forgotten(files, tmp_path):
    """The former files are in force again, and so is what they allow."""
    both = TwoAuthorities(files, tmp_path)
    tls, link, other_end = await both.open()
    former = both.crl.rename(tmp_path / "former.pem")
    files.authority.withdraw(both.leaked)
    both.crl.write_bytes(files.authority.crl.read_bytes())
    assert not await tls.reload()
    former.rename(both.crl)
    await tls.look()
    assert tls.status().fault is None
    for end in (link, other_end, *(await both.shaken_hands(tls))):
        end.close()


async def test_a_version_of_the_lists_is_read_once(files, monkeypatch):
    """For all contexts: a list may have 80,000 entries."""
    reads = []

    def counted(data):
        reads.append(data)
        return pem_lists(data)

    monkeypatch.setattr(contexts, "pem_lists", counted)
    await open_tls(config(files), ENV)
    assert len(reads) == 1


async def test_a_list_with_a_fault_leaves_the_former_one_in_force(files):
    """It is named, as a certificate's is."""
    tls = await open_tls(config(files), ENV)
    files.authority.crl.write_bytes(b"half a li")
    assert not await tls.reload()
    assert "has no list" in tls.status().fault


@attrs.define(eq=False)
class FakeLink:
    """A connection that counts how often its peer's chain is read."""

    chain: list[bytes]
    peer: str = "the peer"
    reads: int = 0
    error: TlsError | None = None

    @property
    def is_ended(self):
        """Whether it was ended."""
        return self.error is not None

    def peer_chain(self):
        """Return the chain."""
        self.reads += 1
        return self.chain

    def end(self, error):
        """End it."""
        self.error = error


def test_a_peers_chain_is_parsed_once(files):
    """4,096 clients would hold the heartbeats up at each new list, and at each reload."""
    leaving, staying = (files.authority.issue(name) for name in ("leaving", "staying"))
    empty = Withdrawn.of(pem_lists(files.authority.crl.read_bytes()))
    lists = Withdrawn.of(pem_lists(files.authority.withdraw(leaving).read_bytes()))
    for first in (Withdrawn(), empty):
        links = TlsLinks()
        links.use(first)
        gone, kept = FakeLink([read(leaving)]), FakeLink([read(staying)])
        links.add(gone)
        links.add(kept)
        assert links.use(lists) == [gone]
        assert links.use(lists) == links.use(empty) == []
        assert links.use(lists) == []
        assert (gone.reads, kept.reads) == (1, 1)


async def test_a_client_ends_its_connection_to_a_withdrawn_node(files):
    """A slave does not follow a master whose certificate is withdrawn."""
    links, node = TlsLinks(), files.authority.issue("other-node")
    paths = TlsFiles(ca=str(files.authority.ca), crl=str(files.authority.crl))
    context = client_context(paths, ENV.disk, ENV.wall_clock.now_s(), links=links)
    master = master_with_tls(files.directory / "d", files.config(node=node))
    async with hastore.open_master(master) as served:
        sock = await connect(served.address, TIMEOUT_S)
        link = await connect_tls(sock, context, "127.0.0.1", TIMEOUT_S)
        files.authority.withdraw(node)
        lists = Withdrawn.of(pem_lists(files.authority.crl.read_bytes()))
        assert links.use(lists) == [link]
        with pytest.raises(TlsError, match="has been withdrawn"):
            await link.recv(1)
        link.close()
        await eventually(lambda: links.use(lists) == [])
