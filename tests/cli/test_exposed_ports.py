"""A node warns at its start of ports that other machines may reach, and that prove nobody."""

import attrs
import pytest

from hastore.config import AccessConfig, HAConfig, MasterConfig, SlaveConfig, StoreConfig, TlsConfig
from hastore.status import ClientCertificates, HAProtocol, TlsMode
from hastore_cli.node.runner import exposure_of
from tests.support.commands.running import node

STORE = StoreConfig(data_dir="d")
MASTER = MasterConfig(store=STORE)
SLAVE = SlaveConfig(store=STORE, master=("10.0.0.1", 10912))
ANY = ("0.0.0.0", 10911)
KEYS = AccessConfig(file="acl.yml")
OPEN = "without access keys ([access] file) they may read and write every topic"
SIGNED = "without TLS a signed request can be read, recorded and sent again"
HA = "on the HA port they may read the whole log, and acknowledge"


def tls(mode, client_certificates="none"):
    return TlsConfig(
        mode=TlsMode(mode),
        cert_file="c",
        key_file="k",
        ca_file="ca",
        client_certificates=ClientCertificates(client_certificates),
    )


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (MASTER, None),
        (SLAVE, None),
        (attrs.evolve(MASTER, listen=("localhost", 1), ha_listen=("::1", 2)), None),
        (attrs.evolve(MASTER, listen=ANY), ("0.0.0.0:10911", OPEN)),
        (attrs.evolve(MASTER, listen=ANY, access=KEYS), ("0.0.0.0:10911", SIGNED)),
        (
            attrs.evolve(MASTER, listen=ANY, access=KEYS, tls=tls("permissive")),
            ("0.0.0.0:10911", SIGNED),
        ),
        (attrs.evolve(MASTER, listen=ANY, access=KEYS, tls=tls("enforcing")), None),
        (attrs.evolve(MASTER, listen=ANY, tls=tls("enforcing")), ("0.0.0.0:10911", OPEN)),
        (attrs.evolve(MASTER, listen=ANY, tls=tls("enforcing", "asked")), ("0.0.0.0:10911", OPEN)),
        (attrs.evolve(MASTER, listen=ANY, tls=tls("enforcing", "required")), None),
        (attrs.evolve(SLAVE, listen=("n2", 10911)), ("n2:10911", OPEN)),
        (attrs.evolve(MASTER, listen=None, ha_listen=("::", 10912)), ("[::]:10912", HA)),
        (
            attrs.evolve(MASTER, listen=ANY, ha_listen=("10.0.0.7", 2)),
            ("0.0.0.0:10911 and 10.0.0.7:2", f"{OPEN}; {HA}"),
        ),
        (
            attrs.evolve(
                MASTER,
                ha_listen=("10.0.0.7", 2),
                ha=HAConfig(tls=True, tls_allowed_names=("n2",)),
                tls=tls("disabled"),
            ),
            None,
        ),
        (
            attrs.evolve(
                MASTER,
                observer_listen=("10.0.0.7", 3),
                ha=HAConfig(protocol=HAProtocol.AUTOSWITCH),
                node_id=1,
                replica_group="g1",
            ),
            ("10.0.0.7:3", "as observers they may read the whole log"),
        ),
    ],
)
def test_a_port_beyond_loopback_is_named_with_what_it_means(config, found):
    """Loopback, the default, has no such line."""
    assert exposure_of(config) == found


def test_the_warning_is_one_line_of_the_log(tmp_path):
    """The node serves all the same."""
    with node("master", tmp_path / "d", "--listen", "0.0.0.0:0") as running:
        lines = [line for line in running.log.read_text().splitlines() if "ports_exposed" in line]
    assert len(lines) == 1
    assert "0.0.0.0:0" in lines[0]
    assert "docs/security.md" in lines[0]
