"""Commands that ask a node by TLS: flags, variables, the configuration file."""

import os
import shutil
import ssl

import attrs
import pytest
import rich_click as click

from hastore.errors import ConfigError
from hastore.status import BrokerRole, ClientCertificates, TlsMode
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import AskingCommand, client_tls, ha_client_tls
from hastore_cli.settings.config_file import config_option
from tests.support.certificates import make_certificates
from tests.support.commands.in_process import at, call, master_on, put
from tests.support.nodes.configs import IMPATIENT
from tests.support.nodes.tls_files import make_tls_files

ENFORCING, REQUIRED = TlsMode.ENFORCING, ClientCertificates.REQUIRED
NO_FILE = {"HASTORE_CONFIG": os.devnull}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates for the tests of this module."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


def asked_with(environ, *flags, of=client_tls):
    """Return how a command with these flags connects."""
    found = []

    @click.command(cls=AskingCommand)
    def command():
        found.append(of({**NO_FILE, **environ}))

    command.main(list(flags), standalone_mode=False)
    return found[0]


def certificates_of(tls):
    """Return the number of trusted CAs."""
    return tls.context.cert_store_stats()["x509_ca"]


def test_a_flag_a_variable_or_the_file_turns_tls_on(files, tmp_path):
    """Each value is the flag's, else the variable's, else the file's."""
    ca, own = str(files.authority.ca), files.authority.issue("own")
    config = tmp_path / "hastore.toml"
    there = {"HASTORE_CONFIG": str(config)}

    def write(mode):
        config.write_text(f'[tls]\n{mode}\nca = "{ca}"\nserver_name = "of-file"\n')

    assert asked_with({}) is None
    assert certificates_of(asked_with({}, "--tls-ca", ca)) == 1
    assert asked_with({}, "--tls-server-name", "n").server_name == "n"
    assert certificates_of(asked_with({"HASTORE_TLS_CA": ca})) == 1
    assert asked_with({"HASTORE_TLS_CA": ca, "HASTORE_TLS_MODE": "disabled"}) is None
    assert asked_with({"HASTORE_TLS_MODE": "disabled"}, "--tls-ca", ca) is not None
    asked_with({}, "--tls-ca", ca, "--tls-cert", str(own.cert), "--tls-key", str(own.key))
    for mode, is_on in (("", False), ('mode = "disabled"', False), ('mode = "permissive"', True)):
        write(mode)
        found = asked_with(there)
        assert (found is not None and found.server_name == "of-file") is is_on
    variable = {**there, "HASTORE_TLS_SERVER_NAME": "of-variable"}
    assert asked_with(variable).server_name == "of-variable"
    assert asked_with(variable, "--tls-server-name", "of-flag").server_name == "of-flag"


def test_a_configuration_that_cannot_be_read_sends_nothing_in_the_clear(files, tmp_path):
    """It may turn TLS on, and name the key that signs."""
    config = tmp_path / "hastore.toml"
    flags = ("--tls-ca", str(files.authority.ca))
    for path, text, fault in (
        (config, '[tls]\nmode = "enforcing"\nca = \n', "is not TOML: .*line 3"),
        (tmp_path / "none.toml", None, "cannot read .*none.toml: No such file"),
        (tmp_path, None, "cannot read .*: Is a directory"),
    ):
        if text is not None:
            path.write_text(text)
        for of in (client_tls, ha_client_tls, access_key):
            for given in ((), flags):
                with pytest.raises(ConfigError, match=fault) as caught:
                    asked_with({"HASTORE_CONFIG": str(path)}, *given, of=of)
                assert caught.value.hint


def test_the_file_of_a_commands_own_flag_counts(files, tmp_path):
    """As for everything else that the command reads of it."""
    config = tmp_path / "hastore.toml"
    config.write_text(f'[tls]\nmode = "enforcing"\nca = "{files.authority.ca}"\n')
    found = []

    @click.command(cls=AskingCommand)
    @config_option
    def command(config_flag):
        found.append(client_tls({}))

    command.main(["-c", str(config)], standalone_mode=False)
    assert certificates_of(found[0]) == 1


def test_files_that_cannot_be_used_are_named(files, tmp_path, monkeypatch):
    """A node's key in the configuration file may be another user's: none is shown then."""
    own = files.authority.issue("own")
    ca = str(files.authority.ca)
    with pytest.raises(ConfigError, match="No such file"):
        asked_with({}, "--tls-ca", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="needs its key"):
        asked_with({}, "--tls-ca", ca, "--tls-cert", str(own.cert))
    config = tmp_path / "hastore.toml"
    key = tmp_path / "not-there.pem"
    text = f'[tls]\nmode = "enforcing"\nca = "{ca}"\ncert = "{own.cert}"\nkey = "{key}"\n'
    config.write_text(text)
    assert certificates_of(asked_with({"HASTORE_CONFIG": str(config)})) == 1


def test_a_command_has_the_lists_and_the_rules_of_the_configuration(files, tmp_path):
    """Of the file, or by a variable: it checks a node as nodes do."""
    crl = files.authority.withdraw()
    config = tmp_path / "hastore.toml"
    text = f'[tls]\nmode = "enforcing"\nca = "{files.authority.ca}"\ncrl = "{crl}"\n'
    config.write_text(text + 'min_version = "1.3"\nciphers = "ECDHE+CHACHA20"\n')
    there = {"HASTORE_CONFIG": str(config)}
    found = asked_with(there).context
    assert found.verify_flags & ssl.VERIFY_CRL_CHECK_CHAIN == ssl.VERIFY_CRL_CHECK_CHAIN
    assert found.minimum_version is ssl.TLSVersion.TLSv1_3
    assert {each["strength_bits"] for each in found.get_ciphers()[3:]} == {256}
    found = asked_with({**there, "HASTORE_TLS_MIN_VERSION": "1.2"}).context
    assert found.minimum_version is ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match="no list of withdrawn certificates"):
        asked_with({**there, "HASTORE_TLS_CRL": str(config)})


def test_a_command_with_lists_and_no_ca_says_so(files):
    """Nothing would be checked by the lists, as a node says, too."""
    there = {"HASTORE_TLS_CRL": str(files.authority.withdraw())}
    with pytest.raises(ConfigError, match="no CA is named for them") as caught:
        asked_with(there, "--tls-server-name", "n1")
    assert "--tls-ca" in caught.value.hint


async def test_a_command_asks_by_tls_or_says_why_it_cannot(files, tmp_path):
    """Exit code 7 for what TLS refuses, 3 for a plain question to a port that takes TLS only."""
    own, foreign = files.authority.issue("own"), make_certificates(tmp_path, "foreign")
    tls = files.config(ENFORCING, REQUIRED)
    async with master_on(tmp_path / "d", tls=tls) as master:

        async def status(*flags):
            code, shown, told = await call("status", at(master), *flags)
            assert code == 0 or "next" in told, told
            return code, " ".join((shown + told).split())

        ca = ("--tls-ca", files.authority.ca)
        code, said = await status(*ca, "--tls-cert", own.cert, "--tls-key", own.key)
        assert (code, "SYNC_MASTER" in said) == (0, True)
        code, said = await status()
        assert (code, "TLS only needs --tls-ca" in said) == (3, True)
        code, said = await status(*ca)
        assert (code, "wants a certificate" in said) == (7, True)
        code, said = await status("--tls-ca", foreign.ca)
        assert (code, "is not trusted" in said) == (7, True)
        code, said = await status(*ca, "--tls-cert", foreign.cert, "--tls-key", foreign.key)
        assert (code, "does not trust the CA" in said) == (7, True)
        code, said = await status(*ca, "--tls-server-name", "node-7")
        assert (code, "is not for node-7" in said) == (7, True)


def test_an_ha_port_is_asked_by_tls_where_the_configuration_says_so(files, tmp_path):
    """[ha] tls stands for [tls] mode there."""
    ca = str(files.authority.ca)
    config = tmp_path / "hastore.toml"
    there = {"HASTORE_CONFIG": str(config)}
    for ha, mode, is_on in (("true", "disabled", True), ("false", "enforcing", False)):
        config.write_text(f'[ha]\ntls = {ha}\n[tls]\nmode = "{mode}"\nca = "{ca}"\n')
        assert (asked_with(there, of=ha_client_tls) is not None) is is_on
        assert (asked_with(there) is not None) is not is_on
        assert asked_with({**there, "HASTORE_HA_TLS": "true"}, of=ha_client_tls) is not None
        assert asked_with({**there, "HASTORE_HA_TLS": "false"}, of=ha_client_tls) is None
    assert asked_with({}, "--tls-ca", ca, of=ha_client_tls) is not None
    assert asked_with({"HASTORE_TLS_CA": ca}, of=ha_client_tls) is not None
    off = {"HASTORE_TLS_CA": ca, "HASTORE_HA_TLS": "false"}
    assert asked_with(off, of=ha_client_tls) is None


async def test_a_log_is_repaired_from_a_master_with_tls(files, tmp_path):
    """With a certificate that may follow; without one the next step is named."""
    own = files.authority.issue("own")
    ha = attrs.evolve(IMPATIENT, tls=True, tls_allowed_names=("own",))
    tls = files.config(TlsMode.DISABLED)
    async with master_on(tmp_path / "d", tls=tls, ha=ha, role=BrokerRole.ASYNC_MASTER) as master:
        await put(master, 20)
        copied = shutil.copytree(tmp_path / "d", tmp_path / "copy")
        (file,) = (copied / "commitlog").iterdir()
        with file.open("r+b") as log:
            log.seek(1_000)
            log.write(b"\xff" * 3)
        host, port = master.ha_address
        repair = ("log", "repair", copied, "--from-replica", f"{host}:{port}")
        code, shown, told = await call(*repair, "--tls-ca", files.authority.ca)
        assert code == 7, shown + told
        assert "next" in told
        assert (await call(*repair))[0] == 3
        flags = ("--tls-ca", files.authority.ca, "--tls-cert", own.cert, "--tls-key", own.key)
        code, shown, told = await call(*repair, *flags)
        assert code == 0, shown + told
        assert (await call("log", "diff", tmp_path / "d", copied))[0] == 0
