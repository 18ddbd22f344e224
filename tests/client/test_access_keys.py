"""Our clients with access keys, against real nodes."""

from __future__ import annotations

import pytest

import hastore
from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.config import AccessConfig, MasterConfig, StoreConfig
from hastore.errors import AccessDeniedError
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.wire.remoting_codes import SerializeType
from tests.patience import WITHIN_S
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    SECRET,
    UNKNOWN_KEY,
    USER_KEY,
    write_private,
)
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.reading import all_dispatched


@pytest.fixture
async def master(tmp_path):
    config = MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "data"), mapped_file_size=1 << 20),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        role=BrokerRole.ASYNC_MASTER,
        access=AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS)),
    )
    async with hastore.open_master(config) as running:
        yield running


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize("is_one", [True, False])
async def test_a_producer_and_a_consumer_sign_all_that_they_send(master, kind, is_one):
    """Single messages, batches, heartbeats, pulls and offsets; texts and bodies of any kind."""
    addresses = master.address if is_one else [master.address]
    odd = {"KEYS": "k 1", "name": "é\u4e2d\U0001f600", "quote": '"\\\n'}
    async with Producer.connect(
        addresses, access_key=USER_KEY, serialize_type=kind, heartbeat_interval_s=0.01
    ) as producer:
        result = await producer.send(Message("orders", b"\x00\xff", properties=odd))
        assert result.ok
        assert (await producer.send_batch([Message("orders", b"b"), Message("orders", b"c")])).ok
        pendings = await producer.submit_many([Message("orders", b"%d" % n) for n in range(8)])
        assert all([(await pending.wait()).ok for pending in pendings])
    await all_dispatched(master)
    async with Consumer.connect(addresses, access_key=USER_KEY) as consumer:
        stream = consumer.messages("orders", group="billing", until_end=True)
        messages = [message async for message in stream]
    assert len(messages) == 11
    assert odd.items() <= next(m for m in messages if m.body == b"\x00\xff").properties.items()
    async with AdminClient.connect(master.address, access_key=ADMIN_KEY) as admin:
        assert "orders" in await admin.topics()
        assert await admin.query_offset("billing", "orders", 0) is not None


async def test_without_a_key_that_counts_a_client_says_so(master):
    """At the connection, or in the search for a master; nothing of the secret is said."""
    for key in (None, UNKNOWN_KEY):
        for addresses in (master.address, [master.address]):
            with pytest.raises(AccessDeniedError, match="access denied: ") as caught:
                async with Producer.connect(addresses, access_key=key, connect_timeout_s=WITHIN_S):
                    pass
            assert caught.value.exit_code == 7
            assert "HASTORE_ACCESS_KEY_FILE" in caught.value.hint
            assert SECRET not in f"{caught.value!r}"
        with pytest.raises(AccessDeniedError, match="access denied: "):
            async with Consumer.connect(
                [master.address], access_key=key, connect_timeout_s=WITHIN_S
            ):
                pass


async def test_without_permission_each_message_is_refused(master):
    """Its outcome is certain: it is not stored."""
    async with Producer.connect(master.address, access_key=USER_KEY) as producer:
        with pytest.raises(AccessDeniedError, match=r"not stored: access denied: .*PUB on topic x"):
            await producer.send(Message("x", b""))
        pendings = await producer.submit_many([Message("x", b"")] * 9)
        for pending in pendings:
            with pytest.raises(AccessDeniedError, match="PUB on topic x"):
                await pending.wait()
    async with AdminClient.connect(master.address, access_key=USER_KEY) as admin:
        with pytest.raises(AccessDeniedError, match="access key the-user needs admin"):
            await admin.topics()
    assert master.max_offset == 0
