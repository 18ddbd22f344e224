"""A node warns at its start of ports that other machines may reach, and that prove nobody."""

import json

import attrs
import pytest

from hastore import open_master
from hastore.broker.observe.node_status import AccessStatus, NodeStatus
from hastore.config import AccessConfig, HAConfig, MasterConfig, SlaveConfig, StoreConfig, TlsConfig
from hastore.status import ClientCertificates, HAProtocol, TlsMode
from hastore.tls.tls_contexts import TlsStatus
from hastore_cli.node.exposure import Listening
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import node
from tests.support.nodes.statuses import MASTER as STATUS
from tests.support.nodes.tls_files import make_tls_files, master_with_tls

STORE = StoreConfig(data_dir="d")
MASTER = MasterConfig(store=STORE)
SLAVE = SlaveConfig(store=STORE, master=("10.0.0.1", 10912))
ANY = ("0.0.0.0", 10911)
ACCESS = AccessStatus(file="f", accounts=1, failed_attempts=0, fault=None, hint=None)
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
    exposure = Listening.by_config(config).exposure()
    assert (None if exposure is None else (exposure.ports, exposure.reason)) == found


def test_the_warning_is_one_line_of_the_log_and_doctor_repeats_it(tmp_path):
    """The node serves all the same."""
    with node("master", tmp_path / "d", "--listen", "0.0.0.0:0") as running:
        lines = [line for line in running.log.read_text().splitlines() if "ports_exposed" in line]
        shown = json.loads(hastore_here("doctor", tmp_path / "d", "-o", "json").stdout)
    assert len(lines) == 1
    assert "0.0.0.0:0" in lines[0]
    assert "docs/security.md" in lines[0]
    (found,) = [each for each in shown["findings"] if each["check"] == "exposed ports"]
    assert found["result"] == "warn"
    assert found["what"] == f"other machines may reach {running.address}: {OPEN}"
    assert "docs/security.md" in found["next"]


@pytest.mark.parametrize(
    ("changes", "tls_changes", "found"),
    [
        ({}, None, None),
        ({"address": "10.0.0.1:1", "ha_address": "10.0.0.1:2"}, None, f"{OPEN}; {HA}"),
        ({"address": "10.0.0.1:1"}, {"mode": "enforcing"}, OPEN),
        ({"address": "10.0.0.1:1"}, {"mode": "enforcing", "client_certificates": "required"}, None),
        ({"address": "10.0.0.1:1", "access": ACCESS}, {"mode": "permissive"}, SIGNED),
        ({"address": "10.0.0.1:1", "access": ACCESS}, {"mode": "enforcing"}, None),
        ({"ha_address": "[2001:db8::1]:2"}, {"is_on_ha_port": True}, None),
        ({"ha_address": "[2001:db8::1]:2"}, {}, HA),
    ],
)
def test_a_nodes_status_says_the_same(changes, tls_changes, found):
    """So a doctor knows it without the configuration, also through JSON."""
    if tls_changes is not None:
        plain = TlsStatus(mode="disabled", certificate="c", not_after=1, fault=None, hint=None)
        changes["tls"] = attrs.evolve(plain, **tls_changes)
    status = NodeStatus.from_dict(attrs.evolve(STATUS, **changes).to_dict())
    exposure = Listening.by_status(status).exposure()
    assert (None if exposure is None else exposure.reason) == found


async def test_a_node_says_what_it_proves_by_certificates(tmp_path):
    """Of its clients, and of its slaves."""
    files = make_tls_files(tmp_path)
    config = master_with_tls(
        tmp_path / "d", files.config(client_certificates=ClientCertificates.REQUIRED)
    )
    config = attrs.evolve(config, ha=HAConfig(tls=True, tls_allowed_names=("n2",)))
    async with open_master(config) as master:
        tls = master.status().tls
        assert (tls.mode, tls.client_certificates, tls.is_on_ha_port) == (
            "enforcing",
            "required",
            True,
        )


def test_names_without_a_node_id_are_a_note_of_the_log_and_doctor_repeats_it(tmp_path):
    """Only in a replica group; a bound name has no such line."""
    files = make_tls_files(tmp_path)
    group = ("--node-id", "1", "--node-group", "g1", "--group-ids", "1")
    own = ("--tls-cert", files.node.cert, "--tls-key", files.node.key)
    tls = ("--ha-tls", "--ha-tls-allowed-names", "n2,n3=3", "--tls-ca", files.authority.ca, *own)
    with node("node", tmp_path / "d", *group, *tls) as running:
        lines = running.log.read_text().splitlines()
        shown = json.loads(hastore_here("doctor", tmp_path / "d", "-o", "json").stdout)
    (line,) = [line for line in lines if "ha_names_without_ids" in line]
    assert "a certificate for n2 may claim another node's id" in line
    (found,) = [each for each in shown["findings"] if each["check"] == "node ids"]
    assert found["result"] == "warn"
    assert "n2=2" in found["next"]
