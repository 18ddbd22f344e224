"""A reload takes certificates, too, and ends no connection."""

import attrs
import pytest

import hastore
from hastore.broker.node.reload import Reloaded
from hastore.client.admin import AdminClient
from hastore.config import AccessConfig
from hastore.errors import TlsError
from tests.support.certificates import DAY
from tests.support.nodes.access_keys import ACCOUNTS, ADMIN_KEY, write_private
from tests.support.nodes.tls_files import make_tls_files, master_with_tls


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
