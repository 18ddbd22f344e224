"""Contexts made of files: each fault of the files is one line with the next step."""

import datetime as dt
import ssl

import attrs
import pytest
import trio

from hastore.concurrency.watched_files import LOOK_S
from hastore.config import TlsConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.status import ClientCertificates, TlsMode, TlsVersion
from hastore.tls import contexts
from hastore.tls.client_tls import ClientTls
from hastore.tls.contexts import TlsFiles, TlsRules, ca_dates, client_context, server_context
from hastore.tls.tls_contexts import open_tls
from hastore.tls.tls_fault import TlsFault, as_tls_error
from tests.support.certificates import DAY, make_authority, make_certificates
from tests.support.env.fake_env import FakeOffload
from tests.support.planted_secrets import plant

ENV = real_env()
NONE, REQUIRED = ClientCertificates.NONE, ClientCertificates.REQUIRED


@pytest.fixture
def authority(tmp_path):
    """A CA."""
    return make_authority(tmp_path, "test")


def files_of(made, **more):
    """Return the files of a certificate."""
    return TlsFiles(**{"ca": str(made.ca), "cert": str(made.cert), "key": str(made.key), **more})


def make_server(files, client_certificates=NONE):
    """Make a server's context."""
    return server_context(files, client_certificates, ENV.disk, ENV.wall_clock.now_s())


def make_client(files):
    """Make a client's context."""
    return client_context(files, ENV.disk, ENV.wall_clock.now_s())


def shake_hands(server, client, name="127.0.0.1"):
    """Connect the two in memory; return both ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    with pytest.raises(ssl.SSLWantReadError):  # TLS 1.3: what the server says of the client
        ends[0].read(1)
    return ends


def faults_of(make, *args):
    """Return the line of the ConfigError, which has a next step."""
    with pytest.raises(ConfigError) as caught:
        make(*args)
    assert caught.value.hint
    return str(caught.value)


def test_both_contexts_meet_in_tls_1_3(authority):
    """The server's name is checked, and its certificate by the CA."""
    made = authority.issue("node")
    server, client = make_server(files_of(made)), make_client(TlsFiles(ca=str(made.ca)))
    for name in ("127.0.0.1", "::1", "localhost"):
        assert shake_hands(server, client, name)[0].version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        shake_hands(server, client, "127.0.0.2")


def test_tls_1_2_is_taken_and_1_1_is_not(authority):
    """Whatever the machine's OpenSSL would take."""
    server, client = (
        make_server(files_of(authority.issue("node"))),
        make_client(TlsFiles(ca=str(authority.ca))),
    )
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, client)[0].version() == "TLSv1.2"
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"UNSUPPORTED_PROTOCOL|NO_PROTOCOLS_AVAILABLE"):
        shake_hands(server, old)


def test_client_certificates_are_required_asked_or_not_looked_at(tmp_path, authority):
    """One that is shown must be of the CA, also where none is required."""
    node = files_of(authority.issue("node"))
    known = make_client(files_of(authority.issue("client")))
    nobody = make_client(TlsFiles(ca=node.ca))
    foreign = make_client(files_of(make_certificates(tmp_path, "foreign"), ca=node.ca))
    for kind, takes_nobody, takes_foreign in (
        (NONE, True, True),
        (ClientCertificates.ASKED, True, False),
        (REQUIRED, False, False),
    ):
        server = make_server(node, kind)
        shake_hands(server, known)
        for client, is_taken in ((nobody, takes_nobody), (foreign, takes_foreign)):
            if is_taken:
                shake_hands(server, client)
            else:
                with pytest.raises(ssl.SSLError):
                    shake_hands(server, client)


def test_a_chain_leads_from_the_certificate_to_the_ca(tmp_path, authority):
    """Its file has the certificates between them, after its own."""
    between = make_authority(tmp_path, "between", issuer=authority)
    made = between.issue("node")
    client = make_client(TlsFiles(ca=str(authority.ca)))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(make_server(files_of(made)), client)
    made.cert.write_bytes(made.cert.read_bytes() + between.ca.read_bytes())
    assert shake_hands(make_server(files_of(made)), client)
    made.cert.write_bytes(between.ca.read_bytes() + made.cert.read_bytes())
    assert "is not that of the certificate" in faults_of(make_server, files_of(made))


def test_there_are_no_tickets_and_no_renegotiation(authority):
    """A link that was resumed would outlive its certificate."""
    server = make_server(files_of(authority.issue("node")))
    assert server.num_tickets == 0
    for option in (ssl.OP_NO_TICKET, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION):
        assert server.options & option


def test_a_stream_that_was_cut_does_not_end_as_a_whole_one():
    """Python 3.11.2 sets an option with which OpenSSL takes it for that, and has no SSLEOFError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
    contexts._harden(context)
    assert not context.options & ssl.OP_IGNORE_UNEXPECTED_EOF
    error = ssl.SSLError(1, "unexpected eof while reading")
    error.reason = "UNEXPECTED_EOF_WHILE_READING"
    assert as_tls_error(error).fault == TlsFault.CUT


def test_faults_of_a_certificate_and_its_key_are_named(tmp_path, authority):
    """With the file, and what to do."""
    made = authority.issue("node")
    other = authority.issue("other")
    late = authority.issue("late", valid=(-2 * DAY, -DAY))
    early = authority.issue("early", valid=(DAY, 2 * DAY))
    text = tmp_path / "text.pem"
    text.write_text("hello")
    text.chmod(0o600)
    none = str(tmp_path / "none.pem")
    for files, fault in (
        (files_of(made, cert=none), "No such file"),
        (files_of(made, key=none), "No such file"),
        (files_of(made, ca=none), "No such file"),
        (files_of(made, cert=str(text)), f"{text} has no certificate in PEM"),
        (files_of(made, cert=str(made.key)), f"{made.key} has no certificate in PEM"),
        (files_of(made, key=str(text)), f"{text} has no private key in PEM"),
        (files_of(made, ca=str(text)), f"{text} has no certificate in PEM"),
        (
            files_of(made, key=str(other.key)),
            f"the key in {other.key} is not that of the certificate in {made.cert}",
        ),
        (files_of(late), f"the certificate in {late.cert} has expired on 2"),
        (files_of(early), f"the certificate in {early.cert} is valid only from 2"),
        (files_of(made, ca=None), "nothing says who may sign them"),
    ):
        assert fault in faults_of(make_server, files, REQUIRED)


def test_a_key_that_others_may_read_is_refused(authority):
    """With its mode."""
    made = authority.issue("node")
    made.key.chmod(0o640)
    fault = faults_of(make_server, files_of(made))
    assert fault == f"{made.key} has mode 0640: others may read its secrets"


def test_an_encrypted_key_needs_its_password(tmp_path, authority):
    """From a file, never from the terminal."""
    made = authority.issue("node", password=b"planted-secret")
    password = tmp_path / "password"

    def with_password(text, mode=0o600):
        plant(password, text, mode)
        return files_of(made, key_password=str(password))

    assert faults_of(make_server, files_of(made)) == f"the key in {made.key} is encrypted"
    assert "cannot be decrypted" in faults_of(make_server, with_password("wrong-one\n"))
    assert "has no password" in faults_of(make_server, with_password("\n"))
    assert "mode 0644" in faults_of(make_server, with_password("planted-secret", 0o644))
    fault = faults_of(make_server, with_password("p" * 1_025))
    assert fault == f"the password in {password} has 1025 bytes; at most 1024 are accepted"
    assert "cannot be decrypted" in faults_of(make_server, with_password("p" * 1_024))
    make_server(with_password("planted-secret\r\nmore"))
    for text in ("wrong-one", "planted-secret"):
        assert text not in faults_of(make_server, with_password("wrong-one", 0o640))


def test_a_ca_that_has_expired_is_named(tmp_path):
    """One of several that is valid will do."""
    late = make_authority(tmp_path, "late", valid=(-2 * DAY, -DAY))
    fault = faults_of(make_client, TlsFiles(ca=str(late.ca)))
    assert f"the certificate in {late.ca} has expired" in fault
    both = tmp_path / "both.pem"
    good = make_authority(tmp_path, "good")
    both.write_bytes(late.ca.read_bytes() + good.ca.read_bytes())
    make_client(TlsFiles(ca=str(both)))


def test_a_ca_follows_another_while_both_are_in_the_file(tmp_path):
    """The next one may be there before it is valid; the dates are those of the row's last."""
    now_s = ENV.wall_clock.now_s()
    old = make_authority(tmp_path, "old", valid=(-9 * DAY, 5 * DAY))
    following = make_authority(tmp_path, "next", valid=(DAY, 99 * DAY))
    third = make_authority(tmp_path, "third", valid=(120 * DAY, 200 * DAY))
    file = tmp_path / "cas.pem"

    def write(*authorities):
        file.write_bytes(b"".join(each.ca.read_bytes() for each in authorities))
        return TlsFiles(ca=str(file))

    def days():
        return round((ca_dates(str(file), ENV.disk, now_s).validity.not_after - now_s) / 86_400)

    for row, until in (
        ((old,), 5),
        ((following, old), 99),
        ((old, third, following), 99),  # nothing is valid between the second and the third
        ((third, old), 5),
    ):
        made = old.issue("node", valid=(-DAY, DAY))
        assert shake_hands(make_server(files_of(made)), make_client(write(*row)))
        assert days() == until
    fault = faults_of(make_client, write(third, following))
    assert f"the certificate in {file} is valid only from 2" in fault


def test_a_key_without_its_certificate_is_named(authority):
    """As a certificate without its key: nobody would be shown either."""
    made = authority.issue("node")
    for missing in ("cert", "key"):
        fault = faults_of(make_client, files_of(made, **{missing: None}))
        assert fault == "a certificate needs its key, and a key its certificate"


def test_without_a_ca_the_systems_certificates_count(monkeypatch):
    """Of a server; for clients a CA must be named."""
    loaded = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_default_certs", lambda _, purpose: loaded.append(purpose)
    )
    assert ClientTls.of_files().name_of("fe80::1%eth0") == "fe80::1"
    assert ClientTls.of_files(server_name="node").name_of("10.0.0.1") == "node"
    assert loaded == [ssl.Purpose.SERVER_AUTH] * 2


def test_half_of_a_pair_is_no_configuration():
    """Nor TLS without a certificate, nor client certificates without a CA."""
    for values in (
        {"cert_file": "c"},
        {"key_file": "k"},
        {"mode": TlsMode.PERMISSIVE},
        {"cert_file": "c", "key_file": "k", "client_certificates": REQUIRED},
        {"key_password_file": "p"},
    ):
        assert faults_of(lambda values=values: TlsConfig(**values))


# -- the contexts in force -------------------------------------------------------------------------


def config_of(made):
    """Return a node's configuration."""
    return TlsConfig(
        mode=TlsMode.ENFORCING,
        cert_file=str(made.cert),
        key_file=str(made.key),
        ca_file=str(made.ca),
    )


async def test_changed_files_are_taken_whole_or_not_at_all(tmp_path, authority, caplog):
    """A fault stays out, is named in status and once in the log, and good files end that."""
    made = authority.issue("node")
    tls = await open_tls(config_of(made), ENV)
    before = tls.current

    async def look(times=3):
        for _ in range(times):
            await tls.look()
        return tls.status().fault

    assert await look() is None
    assert tls.status().not_after == before.not_after
    authority.issue("node", valid=(-2 * DAY, -DAY))
    assert f"the certificate in {made.cert} has expired" in await look()
    assert tls.status().hint
    made.key.unlink()
    assert "No such file" in await look()
    assert tls.current is before
    lines = [r.msg for r in caplog.records if r.msg["event"] == "certificate_not_taken"]
    assert len(lines) == 2
    authority.issue("node", valid=(-DAY, 30 * DAY))
    assert await look(1)
    assert tls.current is before  # they may still be being written
    assert await look(1) is None
    assert tls.current.not_after - before.not_after == pytest.approx(29 * 86_400, abs=60)
    assert shake_hands(tls.server, tls.client.context)
    assert shake_hands(tls.current.mutual, tls.client.context)


async def test_a_certificate_whose_key_is_not_there_yet_waits_for_it(authority):
    """Somebody may write one after the other."""
    made, new = authority.issue("node"), authority.issue("new")
    tls = await open_tls(config_of(made), ENV)
    before = tls.current
    new.cert.rename(made.cert)
    assert not await tls.reload()
    assert "is not that of the certificate" in tls.status().fault
    assert tls.current is before
    new.key.rename(made.key)
    assert await tls.reload()
    assert tls.status().fault is None
    assert tls.current is not before


async def test_versions_that_are_put_back_end_the_fault(tmp_path, authority):
    """The contexts in force are then those of the files."""
    made = authority.issue("node")
    tls = await open_tls(config_of(made), ENV)
    kept = made.cert.rename(tmp_path / "kept.pem")
    await tls.look()
    assert tls.status().fault is not None
    kept.rename(made.cert)
    await tls.look()
    assert tls.status().fault is None


async def test_a_running_node_takes_changed_files(authority, autojump_clock):
    """Without being told to."""
    env = attrs.evolve(ENV, offload=FakeOffload())
    made = authority.issue("node")
    tls = await open_tls(config_of(made), env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.run)
        authority.issue("node", valid=(-DAY, dt.timedelta(days=50)))
        before = tls.current.not_after
        await trio.sleep(3 * LOOK_S)
        assert tls.current.not_after > before
        nursery.cancel_scope.cancel()


async def test_a_password_that_is_too_long_ends_no_node(tmp_path, authority):
    """``ssl`` raises ValueError for it, which no look and no reload expects."""
    made = authority.issue("node", password=b"planted-secret")
    password = tmp_path / "password"
    plant(password, "planted-secret")
    tls = await open_tls(attrs.evolve(config_of(made), key_password_file=str(password)), ENV)
    plant(password, "p" * 2_000)
    assert not await tls.reload()
    assert "has 2000 bytes" in tls.status().fault
    for _ in range(2):
        await tls.look()
    assert tls.status().fault


async def test_a_clients_ca_under_the_nodes_root_is_refused(tmp_path, authority):
    """OpenSSL would let its clients follow: they send the certificate between."""
    made = authority.issue("node")
    under = make_authority(tmp_path / "under", "under", issuer=authority)
    further = make_authority(tmp_path / "further", "further", issuer=under)
    apart = make_authority(tmp_path / "apart", "apart")
    below = make_authority(tmp_path / "below", "below", issuer=apart)
    path = tmp_path / "clients.pem"

    async def opened(*authorities):
        path.write_bytes(b"".join(each.ca.read_bytes() for each in authorities))
        return await open_tls(attrs.evolve(config_of(made), client_ca_file=str(path)), ENV)

    for authorities in ((authority,), (under,), (apart, under), (under, authority)):
        with pytest.raises(ConfigError, match="its clients could follow as nodes"):
            await opened(*authorities)
    with pytest.raises(ConfigError, match="without the certificate of under ca"):
        await opened(further)
    assert await opened(apart)
    assert await opened(below, apart)


async def test_without_a_certificate_there_is_nothing():
    """As before there was TLS."""
    assert await open_tls(TlsConfig(), ENV) is None


# -- the oldest version, and ciphers ---------------------------------------------------------------


def ruled(made, **rules):
    """Return the contexts of both sides under rules."""
    files, now_s = files_of(made), ENV.wall_clock.now_s()
    return (
        server_context(files, NONE, ENV.disk, now_s, rules=TlsRules(**rules)),
        client_context(files, ENV.disk, now_s, rules=TlsRules(**rules)),
    )


def test_only_ciphers_that_authenticate_what_they_encrypt_are_spoken_by_default(authority):
    """With fresh keys (forward secrecy); a peer that knows others only is refused."""
    made = authority.issue("n")
    for context in ruled(made):
        for cipher in context.get_ciphers():
            assert cipher["aead"], cipher
            assert cipher["kea"] in {"kx-any", "kx-ecdhe", "kx-dhe"}, cipher
    server, client = ruled(made)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with pytest.raises(ssl.SSLError, match=r"NO_SHARED_CIPHER|HANDSHAKE_FAILURE"):
        shake_hands(server, client)


def test_ciphers_of_tls_1_2_can_be_chosen_but_for_those_that_prove_nothing(authority):
    """Anonymous ones need no certificate; a list without any other is a fault."""
    made = authority.issue("n")
    server, client = ruled(made, ciphers="ECDHE-ECDSA-AES128-SHA256")
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake_hands(server, client)[0].cipher()[0] == "ECDHE-ECDSA-AES128-SHA256"
    names = [each["name"] for each in ruled(made, ciphers="ALL:eNULL")[0].get_ciphers()]
    assert not [name for name in names if name.startswith(("ADH", "AECDH")) or "NULL" in name]
    for ciphers in ("no-such-cipher", "aNULL"):
        with pytest.raises(ConfigError, match="names no cipher that may be used") as caught:
            ruled(made, ciphers=ciphers)
        assert "ECDHE+AESGCM" in caught.value.hint


def test_the_oldest_version_can_be_1_3(authority):
    """A peer that speaks 1.2 only is refused; by default it is served."""
    made = authority.issue("n")
    for version, is_taken in ((TlsVersion.V1_2, True), (TlsVersion.V1_3, False)):
        server, client = ruled(made, min_version=version)[0], ruled(made)[1]
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        if is_taken:
            assert shake_hands(server, client)[0].version() == "TLSv1.2"
        else:
            with pytest.raises(ssl.SSLError, match="PROTOCOL"):
                shake_hands(server, client)


async def test_a_nodes_contexts_have_the_rules_of_its_configuration(authority):
    """All three: of the client port, of the HA port, and of what it asks."""
    made = authority.issue("n")
    config = TlsConfig(
        cert_file=str(made.cert),
        key_file=str(made.key),
        ca_file=str(made.ca),
        min_version=TlsVersion.V1_3,
        ciphers="ECDHE+CHACHA20",
    )
    current = (await open_tls(config, ENV)).current
    for context in (current.server, current.mutual, current.client.context):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        kinds = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"}
        assert kinds == {"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"}
