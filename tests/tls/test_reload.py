"""A reload takes certificates, too, and ends no connection."""

import attrs
import pytest
import trio

import hastore
from hastore.broker.node.group_node import GroupNode, run_group_node
from hastore.broker.node.reload import Reloaded
from hastore.client.admin import AdminClient
from hastore.concurrency import watched_files
from hastore.config import AccessConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, TlsError
from hastore.status import ClientCertificates, TlsMode
from hastore.tls.tls_contexts import TlsContexts
from tests.support.certificates import DAY
from tests.support.nodes.access_keys import ACCOUNTS, ADMIN_KEY, write_private
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.group_nodes import group, node_config, promote
from tests.support.nodes.harness import master_config
from tests.support.nodes.tls_files import make_tls_files, master_with_tls
from tests.support.waiting import eventually

NONE = ClientCertificates.NONE


async def test_a_reload_takes_permissions_and_certificate_each_by_itself(tmp_path):
    """One with a fault does not keep the other out."""
    files = make_tls_files(tmp_path)
    made = files.authority.issue("short")
    access = AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS))
    config = attrs.evolve(master_with_tls(tmp_path / "d", files.config(node=made)), access=access)
    async with hastore.open_master(config) as master:
        address, tls = master.address, files.client()
        async with AdminClient.connect(address, tls=tls, access_key=ADMIN_KEY) as admin:
            assert await master.reload() == Reloaded(("permissions", "certificate"), {})
            files.authority.issue("short", hosts=["node-7"])
            write_private(tmp_path / "acl.yml", "accounts: []")
            reloaded = await master.reload()
            assert reloaded.taken == ("certificate",)
            assert "there is no account" in reloaded.not_taken["permissions"]
            with pytest.raises(TlsError, match="certificate is not for"):
                async with AdminClient.connect(address, tls=tls, access_key=ADMIN_KEY):
                    pass
            files.authority.issue("short", valid=(-2 * DAY, -DAY))
            write_private(tmp_path / "acl.yml", ACCOUNTS)
            reloaded = await master.reload()
            assert reloaded.taken == ("permissions",)
            assert "has expired" in reloaded.not_taken["certificate"]
            assert await admin.topics() is not None  # on the connection of before


async def test_a_node_of_a_group_looks_at_its_files_once_in_all_roles(tmp_path, monkeypatch):
    """One task for its whole life."""
    looking = []

    async def look_for_ever(contexts):
        looking.append(contexts)
        await trio.sleep_forever()

    monkeypatch.setattr(TlsContexts, "run", look_for_ever)
    async with group(tmp_path / "nodes", 1, tls=make_tls_files(tmp_path).config()) as (node,):
        await promote(node)
        assert node.role_node.tls is node.tls
        assert looking == [node.tls]


async def test_a_node_without_a_role_looks_at_its_files(tmp_path, monkeypatch):
    """It serves metrics over HTTPS meanwhile."""
    files = make_tls_files(tmp_path)
    made = files.authority.issue("short")
    nodes = []

    async def wait_for_a_role(node):
        nodes.append(node)
        await trio.sleep_forever()

    monkeypatch.setattr(GroupNode, "run", wait_for_a_role)
    monkeypatch.setattr(watched_files, "LOOK_S", 0.01)
    config = node_config(tmp_path / "d", 1, tls=files.config(node=made))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_group_node, config, real_env())
        await eventually(lambda: nodes)
        before = nodes[0].tls.current
        files.authority.issue("short", valid=(-DAY, 50 * DAY))
        await eventually(lambda: nodes[0].tls.current.not_after > before.not_after)
        nursery.cancel_scope.cancel()


async def test_a_certificate_that_no_port_uses_is_not_taken(tmp_path):
    """The reload says nothing of it, nor does the status; its faults are errors at the start."""
    files = make_tls_files(tmp_path)
    unused = attrs.evolve(files.config(), mode=TlsMode.DISABLED, client_certificates=NONE)
    config = attrs.evolve(master_config(tmp_path / "d", listen=ANY_PORT), tls=unused)
    async with hastore.open_master(config) as master:
        assert await master.reload() == Reloaded((), {})
        assert master.status().tls is None
    broken = attrs.evolve(unused, key_file=unused.cert_file)
    with pytest.raises(ConfigError):
        async with hastore.open_master(attrs.evolve(config, tls=broken)):
            pass
