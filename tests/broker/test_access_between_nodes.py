"""Nodes ask one another with their own access key."""

from __future__ import annotations

import attrs
import pytest

import hastore
from hastore.access.permissions_file import parse_permissions
from hastore.broker.access.node_access import NodeAccess
from hastore.broker.request_target import PromiseWish
from hastore.cluster.failsafe import ask_all
from hastore.config import AccessConfig, MasterConfig, SlaveConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.ha.client_port import ask_client_port, asker_of, questions
from hastore.message import Message
from hastore.status import BrokerRole
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    SECRET,
    WRONG_KEY,
    write_key,
    write_private,
)
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.waiting import eventually


@pytest.fixture
async def master(tmp_path):
    config = MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "master"), mapped_file_size=1 << 20),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        role=BrokerRole.ASYNC_MASTER,
        access=AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS)),
    )
    async with hastore.open_master(config) as running:
        yield running


def slave_config(tmp_path, master, key):
    access = AccessConfig(file=str(tmp_path / "acl.yml"))
    if key is not None:
        access = attrs.evolve(access, key_file=write_key(tmp_path / "key.yml", key))
    return SlaveConfig(
        store=StoreConfig(data_dir=str(tmp_path / "slave"), mapped_file_size=1 << 20),
        master=master.ha_address,
        master_client=master.address,
        listen=ANY_PORT,
        ha=QUICK,
        access=access,
    )


async def test_a_slave_copies_tables_with_an_admins_key(tmp_path, master):
    """And serves its own clients by the same permissions."""
    await master.put(Message("orders", b"x"))
    config = slave_config(tmp_path, master, ADMIN_KEY)
    async with hastore.open_slave(config) as slave:
        await eventually(lambda: slave.status().table_copies.age_s is not None)
        copies = slave.status().table_copies
        assert (copies.reason, copies.refused) == (None, {})
        assert slave.status().access.accounts == 3
        assert await ask_client_port(slave.address) is not None
        assert (await ask_client_port(slave.address)).denial.startswith("access denied: ")


@pytest.mark.parametrize("key", [None, POOR_KEY])
async def test_a_slave_without_such_a_key_says_what_it_needs(tmp_path, master, key):
    """Replication goes on; its status names the reason and the next step."""
    await master.put(Message("orders", b"x"))
    async with hastore.open_slave(slave_config(tmp_path, master, key)) as slave:
        await eventually(lambda: slave.max_offset == master.max_offset)

        def reasons():
            copies = slave.status().table_copies
            return [copies.reason or "", *copies.refused.values()]

        await eventually(lambda: any("access denied: " in reason for reason in reasons()))
        if key is None:
            assert slave.status().table_copies.hint.endswith("--access-key-file FILE")
        assert not any(SECRET in reason for reason in reasons())


async def test_a_key_file_that_cannot_be_used_ends_the_start(tmp_path, master):
    """Its mode is named."""
    config = slave_config(tmp_path, master, ADMIN_KEY)
    (tmp_path / "key.yml").chmod(0o640)
    with pytest.raises(ConfigError, match="mode 0640: others may read its secrets"):
        asker_of(config.access, real_env())


async def test_a_key_that_is_replaced_signs_the_next_question(tmp_path, master):
    """And one that cannot be read does not: the former goes on."""
    config = slave_config(tmp_path, master, WRONG_KEY)
    ask = asker_of(config.access, real_env())
    assert (await ask(master.address)).denial.startswith("access denied: ")
    write_key(tmp_path / "key.yml", ADMIN_KEY)
    assert (await ask(master.address)).denial is None
    (tmp_path / "key.yml").unlink()
    assert (await ask(master.address)).denial is None


def test_signed_questions_still_end_with_padding():
    """A RocketMQ HA port that reads them takes their last bytes for the report -1."""
    assert questions(ADMIN_KEY).count(b"\xff" * 16) == 4
    assert questions(ADMIN_KEY).endswith(b"\xff" * 16)
    assert SECRET.encode() not in questions(ADMIN_KEY)


async def test_promises_are_asked_with_the_nodes_key():
    """Without one the member refuses because of it; with one it answers the question."""
    table = parse_permissions(ACCOUNTS.encode(), "acl.yml")
    access = NodeAccess(real_env(), table, None, "acl.yml")
    wish = PromiseWish(group="g", epoch=1, master_id=1, ttl_s=1.0)
    async with serving(InMemoryTarget(), access=access) as (_, address):
        for key, said in ((None, "access denied: "), (ADMIN_KEY, "is in no replica group")):
            refused = await ask_all({2: address}, wish, nonce="n", timeout_s=5.0, access_key=key)
            assert said in refused[2]
