"""Which of several nodes is the master: the decision, and the question to real nodes."""

import pytest
import trio

from hastore.access.permissions_file import parse_permissions
from hastore.broker.access.node_access import NodeAccess
from hastore.client.master_search import (
    MasterSearch,
    NodeAnswer,
    addresses_in,
    ask_node,
    choose_master,
)
from hastore.client.remoting_client import open_remoting_client
from hastore.env.real import real_env
from hastore.errors import AccessDeniedError, ConfigError, UnreachableError
from hastore.status import BrokerRole
from tests.patience import WITHIN_S
from tests.support.nodes.access_keys import ACCOUNTS, UNKNOWN_KEY
from tests.support.nodes.group_nodes import group, promote
from tests.support.nodes.in_memory_target import InMemoryTarget, serving

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def node(address, **what):
    return NodeAnswer(address=address, **what)


def member(address, *, epoch, seen=None, is_master=False, group="g1"):
    return node(address, is_master=is_master, group=group, epoch=epoch, seen_epoch=seen or epoch)


@pytest.mark.parametrize(
    ("answers", "tried", "chosen"),
    [
        ([], None, None),
        ([node(A, is_master=False), node(B, is_master=True)], None, B),
        ([node(A, is_master=True), node(B, is_master=True)], None, A),  # of no group
        # The highest epoch, wherever it is.
        ([member(A, epoch=3, is_master=True), member(B, epoch=4, is_master=True)], None, B),
        ([member(B, epoch=4, is_master=True), member(A, epoch=3, is_master=True)], None, B),
        # A former master that has not heard of its successor, which is not there yet.
        ([member(A, epoch=3, is_master=True), member(B, epoch=3, seen=4)], None, None),
        # Epochs of another group do not count, nor does its master.
        ([member(A, epoch=3, is_master=True), member(B, epoch=9, group="g2")], None, A),
        (
            [
                member(A, epoch=3, is_master=True),
                member(B, epoch=9, is_master=True, group="g2"),
                member(C, epoch=4, is_master=True),
            ],
            None,
            C,
        ),
        # Brokers that do not say what they are, in turn; but a master comes first.
        ([node(A), node(B)], None, A),
        ([node(A), node(B)], A, B),
        ([node(A), node(B)], B, A),
        ([node(A), node(B)], C, A),
        ([node(A), node(B, is_master=True)], None, B),
        ([node(A, is_master=False)], None, None),
    ],
)
def test_the_master_is_chosen_by_epoch(answers, tried, chosen):
    """Each rule of the module's docstring."""
    found = choose_master(answers, tried)
    assert (None if found is None else found.address) == chosen


def test_one_address_is_one_node_and_several_are_a_group():
    """A sequence is a group, too, even of one; each address counts once."""
    assert addresses_in(A, ()) == A
    assert addresses_in([A], ()) == [A]
    assert addresses_in(A, (B, A)) == [A, B]
    assert addresses_in((A, B), (C,)) == [A, B, C]
    with pytest.raises(ConfigError, match="no address"):
        addresses_in([], ())


async def test_nodes_say_what_they_are(tmp_path):
    """A master, its slave, and a node that stands in the way of none."""
    async with group(tmp_path, 2) as (one, two):
        await promote(one, two, epoch=3)
        found = []
        for each in (one, two):
            async with open_remoting_client(each.address) as client:
                found.append(await ask_node(client))
        assert found[0].title == f"hastore-a at 127.0.0.1:{one.address[1]}"
    assert [(each.is_master, each.group) for each in found] == [(True, "g1"), (False, "g1")]
    assert found[0].epoch == found[1].seen_epoch == 3
    assert found[0].queue_nums == 8


async def test_a_search_waits_for_a_master():
    """It asks again until somebody is."""
    a, b = InMemoryTarget(role=BrokerRole.SLAVE), InMemoryTarget(role=BrokerRole.SLAVE)
    async with serving(a) as (_, first), serving(b) as (_, second), trio.open_nursery() as nursery:
        search = MasterSearch([first, second])
        assert await search.find_now() is None

        async def promote_b():
            await trio.testing.wait_all_tasks_blocked(0.02)
            b.role = BrokerRole.SYNC_MASTER

        nursery.start_soon(promote_b)
        with trio.fail_after(WITHIN_S):
            found = await search.find(WITHIN_S)
    assert found.address == second


async def test_a_search_that_finds_nobody_says_what_each_node_is():
    """A slave, and one at which nothing listens."""
    async with serving(InMemoryTarget(role=BrokerRole.SLAVE)) as (_, address):
        search = MasterSearch([address, ("127.0.0.1", 1)])
        with pytest.raises(
            UnreachableError, match=r"no master .*hastore-a at .*is no master; .*:1"
        ):
            await search.find(0.3)


async def test_a_search_ends_once_all_nodes_deny_access():
    """While another node does not answer, it goes on: that one could be the master."""
    access = NodeAccess(
        real_env(), parse_permissions(ACCOUNTS.encode(), "acl.yml"), None, "acl.yml"
    )
    async with (
        serving(InMemoryTarget(), access=access) as (_, first),
        serving(InMemoryTarget(), access=access) as (_, second),
    ):
        search = MasterSearch([first, second], access_key=UNKNOWN_KEY)
        with pytest.raises(AccessDeniedError, match=r"denied: .*; .* denied: ") as caught:
            await search.find(WITHIN_S)
        assert "HASTORE_ACCESS_KEY_FILE" in caught.value.hint
        search = MasterSearch([first, ("127.0.0.1", 1)], access_key=UNKNOWN_KEY)
        with pytest.raises(UnreachableError, match="no master found within"):
            await search.find(0.3)


async def test_a_node_that_hangs_does_not_hold_the_others_up():
    """The search ends soon after the first master has answered."""
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    async with serving(InMemoryTarget()) as (_, address):
        search = MasterSearch([listener.getsockname(), address], ask_timeout_s=WITHIN_S)
        with trio.fail_after(WITHIN_S / 2):
            found = await search.find_now()
    listener.close()
    assert found is not None
    assert found.address == address
