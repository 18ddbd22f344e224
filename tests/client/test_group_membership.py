"""Members of a group, as their node lists them."""

import trio

from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.group_membership import GroupMembership
from hastore.client.remoting_client import open_remoting_client
from hastore.env.real import real_env
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.reading import open_master, put
from tests.support.waiting import eventually


async def test_a_consumer_is_a_member_of_its_groups_until_it_ends(tmp_path):
    """The node lists it until its block is left; without a group it is no member of any."""
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


async def test_a_member_repeats_its_heartbeat(tmp_path, autojump_clock):
    """So the node keeps it, although it forgets silent members."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    async with (
        open_master(tmp_path, env=RealFiles().env, consumer_timeout_ms=5_000) as master,
        AdminClient.connect(master.address) as admin,
        open_remoting_client(master.address) as client,
        trio.open_nursery() as nursery,
    ):
        membership = GroupMembership(client, real_env(), 1)
        await membership.join("g", "T", "*")
        nursery.start_soon(membership.run)
        await trio.sleep(12)
        assert len(await admin.members("g")) == 1
        nursery.cancel_scope.cancel()
