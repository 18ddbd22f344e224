"""A group whose client ports need access keys, in virtual time, through failovers."""

from __future__ import annotations

import contextlib

import pytest
import trio

from hastore.access.key_file import key_text
from hastore.access.secret import Secret
from hastore.access.signature import AccessKey
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.client.remoting_client import open_remoting_client
from hastore.concurrency.watched_files import LOOK_S
from hastore.config import AccessConfig
from hastore.errors import AccessDeniedError, HastoreError, UnknownOutcomeError
from hastore.message import Message
from hastore.sim.cluster import CLIENT_PORT
from hastore.sim.sockets import HOST
from hastore.wire.remoting_codes import RequestCode
from tests.cluster.simulated import simulated
from tests.support.nodes.access_keys import ACCOUNTS, ADMIN_KEY, SECRET, USER_KEY
from tests.support.nodes.simulated_group import TTL_S

ACL, KEY = "/etc/acl.yml", "/etc/key.toml"
FILES = {ACL: ACCOUNTS.encode(), KEY: key_text(ADMIN_KEY).encode()}
WITH_KEYS = {"listens": True, "access": AccessConfig(file=ACL, key_file=KEY)}


def addresses(group):
    """All client ports."""
    return [(node.host, CLIENT_PORT) for node in group.cluster.nodes]


async def denied(group, key=None):
    """Check that no node answers without a key, or with another one; they are all up."""
    HOST.set("10.0.0.99")
    for address in addresses(group):
        async with open_remoting_client(address, access_key=key) as client:
            for code in (RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_ALL_TOPIC_CONFIG):
                answer = await client.ask(code)
                assert answer.ext_fields["accessDenied"] == "true"
                assert not answer.body
    with pytest.raises(AccessDeniedError, match="access denied: "):
        async with Producer.connect(*addresses(group), access_key=key):
            pass


def copies(group):
    """Why slaves do not copy topics, groups and offsets; None: they do."""
    statuses = [node.node.status() for node in group.cluster.nodes]
    found = [each.table_copies for each in statuses if each.table_copies is not None]
    return {each.reason for each in found if each.age_s is not None or each.reason is not None}


@simulated(**WITH_KEYS, files=FILES)
async def test_clients_with_a_key_follow_a_failover_and_others_are_never_let_in(group):
    """Nodes sign what they ask one another; the new master has topics and offsets."""
    former, _ = await group.master()
    await denied(group)
    HOST.set("10.0.0.99")
    async with (
        Producer.connect(*addresses(group), access_key=USER_KEY) as producer,
        Consumer.connect(*addresses(group), access_key=USER_KEY) as consumer,
    ):
        sent = [await producer.send(Message("orders", b"before")) for _ in range(3)]
        await group.until(lambda: copies(group) == {None}, "slaves copy with the nodes' key")
        await trio.sleep(11)  # until they have copied once more
        group.node(former).kill()
        await group.master(epoch=2, members=2)
        sent += [await producer.send(Message("orders", b"after")) for _ in range(3)]
        assert all(each.ok for each in sent)
        with pytest.raises(AccessDeniedError, match="PUB on topic other"):
            await producer.send(Message("other", b""))
        bodies = [
            message.body
            async for message in consumer.messages("orders", group="billing", until_end=True)
        ]
    assert sorted(bodies) == [b"after"] * 3 + [b"before"] * 3
    group.start(former)
    await group.master(epoch=2)
    await denied(group)
    await group.until(lambda: copies(group) == {None}, "the former master copies")


@simulated(**WITH_KEYS, files=FILES)
async def test_a_key_that_is_replaced_everywhere_goes_on_for_nodes_and_failsafe(group):
    """Each node takes the new permissions itself, and signs with its own new key."""
    new_admin = AccessKey("the-admin", Secret(f"{SECRET}-new"))
    _, master = await group.master()
    group.write(ACL, ACCOUNTS.replace(f"{SECRET}-admin", f"{SECRET}-new").encode())
    group.write(KEY, key_text(new_admin).encode())
    await trio.sleep(3 * LOOK_S)
    await denied(group, ADMIN_KEY)
    HOST.set("10.0.0.99")
    async with group.to_client_port(2, new_admin) as client:
        assert (await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0
    group.model.stop()
    await trio.sleep(3 * TTL_S)  # members promise to the key that is in force
    assert (await group.put(master)).value == "PUT_OK"
    assert master.status().coordinator.is_failsafe


@simulated(listens=True, access=AccessConfig(file=ACL), files=FILES)
async def test_a_master_whose_node_has_no_key_has_no_failsafe(group):
    """Its members refuse to promise to somebody unknown; it steps down with its lease."""
    _, master = await group.master()
    group.model.stop()
    await trio.sleep(3 * TTL_S)
    assert not master.status().coordinator.is_failsafe
    assert not [each for each in group.masters().values() if each.takes_puts]


@simulated(**WITH_KEYS, files=FILES)
async def test_clients_whose_key_is_taken_away_say_so_after_a_failover(group):
    """They do not search until their time-out: no node will know the key again."""
    former, _ = await group.master()
    HOST.set("10.0.0.99")
    async with (
        Producer.connect(*addresses(group), access_key=USER_KEY) as producer,
        Consumer.connect(*addresses(group), access_key=USER_KEY) as consumer,
    ):
        assert (await producer.send(Message("orders", b""))).ok
        group.write(ACL, ACCOUNTS.replace("the-user", "the-next").encode())
        await trio.sleep(3 * LOOK_S)
        group.node(former).kill()
        await group.master(epoch=2, members=2)
        group.start(former)
        await group.master(epoch=2)

        async def send():
            while True:  # the first ones have no answer
                with contextlib.suppress(UnknownOutcomeError):
                    await producer.send(Message("orders", b""))

        async def consume():
            return [each async for each in consumer.messages("orders", group="billing")]

        for act in (send, consume):
            with pytest.raises(HastoreError, match="access denied: "):
                await act()
