"""Members of a group, as their node sees them."""

import trio

from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.group_membership import GroupMembership
from hastore.client.remoting_client import open_remoting_client
from hastore.env.real import real_env
from tests.support.nodes.reading import open_master, put
from tests.support.waiting import eventually


async def test_who_reads_for_a_group_is_its_member_until_it_ends(tmp_path):
    """The node lists the consumer while it reads, and nobody once its block is left."""
    async with open_master(tmp_path) as master, AdminClient.connect(master.address) as admin:
        await put(master)
        async with Consumer.connect(master.address) as consumer:
            await consumer.messages("T", group="g").__anext__()
            consumer.messages("T", group="h", tags="a || b")
            (member,) = await admin.members("g")
            assert member["clientId"].startswith("127.0.0.1:")

            async def is_in_both():
                return len(await admin.members("g")) == len(await admin.members("h")) == 1

            await eventually(is_in_both)
        assert await admin.members("g") == []
        assert await admin.members("h") == []
        async with Consumer.connect(master.address) as consumer:
            await consumer.messages("T").__anext__()
            assert not [group for group in await admin.groups() if await admin.members(group)]


async def test_a_member_says_again_that_it_is_there(tmp_path):
    """A node that forgets who is silent keeps it."""
    async with (
        open_master(tmp_path, consumer_timeout_ms=5_000) as master,
        AdminClient.connect(master.address) as admin,
        open_remoting_client(master.address) as client,
        trio.open_nursery() as nursery,
    ):
        membership = GroupMembership(client, real_env(), 0.05)
        await membership.join("g", "T", "*")
        nursery.start_soon(membership.run)
        await trio.sleep(6)
        assert len(await admin.members("g")) == 1
        nursery.cancel_scope.cancel()
