"""NOTIFY_BROKER_ROLE_CHANGED (1008): a node's role is changed by a request on its client port."""

import json
import types

import attrs
import pytest

import hastore
from hastore.broker.node.master import Master
from hastore.broker.node.slave import Slave
from hastore.broker.port.role_processor import RoleProcessor
from hastore.broker.request_target import RoleWish
from hastore.client.admin import AdminClient
from hastore.errors import ProtocolError, RequestFailedError, RoleChangedError, UnreachableError
from hastore.status import PutMessageStatus as Status
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.group_nodes import group, node_config, put
from tests.support.nodes.harness import master_config
from tests.support.nodes.in_memory_target import InMemoryTarget
from tests.support.waiting import eventually


async def tell(node, **wish):
    async with AdminClient.connect(node.address) as admin:
        await admin.change_role(**wish)


async def is_master(node, epoch):
    await eventually(
        lambda: isinstance(node.role_node, Master) and node.role_node.epoch == epoch,
        f"master of epoch {epoch}",
    )
    return node.role_node


async def test_requests_make_a_master_and_its_slave(tmp_path):
    """Each node is told who the master is; the slave asks its client port for the HA port."""
    async with group(tmp_path, 2) as (one, two):
        wish = {"epoch": 4, "master_id": 1, "master_address": one.address}
        await tell(one, **wish, members={1})
        master = await is_master(one, 4)
        await tell(two, **wish)
        await eventually(lambda: master.ha_service.sync_state_set.accepted == {1, 2})
        assert await put(master) is Status.PUT_OK
        served = two.role_node
        for node in (one, two):  # told again
            await tell(node, **wish)
        assert (one.role_node, two.role_node) == (master, served)
        await tell(one, epoch=5, master_id=2, master_address=two.address)
        await tell(two, epoch=5, master_id=2, master_address=two.address)
        master = await is_master(two, 5)
        await eventually(lambda: not master.ha_service.sync_state_set.missing())
        assert await put(master) is Status.PUT_OK
        await eventually(lambda: isinstance(one.role_node, Slave))
        await eventually(lambda: one.max_offset == two.max_offset)


async def test_a_group_without_a_master_is_no_masters(tmp_path):
    """The master steps down: it refuses puts, and says why."""
    async with hastore.open_node(node_config(tmp_path, 1, (1,))) as node:
        await tell(node, epoch=1, master_id=1, master_address=node.address)
        master = await is_master(node, 1)
        await tell(node, epoch=2)
        await eventually(lambda: isinstance(node.role_node, Slave))
        refused = master.submit(hastore.Message("orders", b"late"))
        assert refused.status is Status.SERVICE_NOT_AVAILABLE
        assert refused.result.reason == "the group has no master in epoch 2"


@pytest.mark.parametrize(
    ("wish", "code", "remark"),
    [
        (
            {"epoch": 2, "master_id": 1},
            ResponseCode.SYSTEM_ERROR,
            "cannot become master of epoch 2",
        ),
        ({"epoch": 2, "master_id": 2}, ResponseCode.SYSTEM_ERROR, "does not follow the master of"),
    ],
)
async def test_a_wish_that_cannot_be_granted_is_refused(tmp_path, wish, code, remark):
    """The master goes on."""
    async with hastore.open_node(node_config(tmp_path, 1, (1,))) as node:
        await tell(node, epoch=3, master_id=1, master_address=node.address)
        master = await is_master(node, 3)
        with pytest.raises(RequestFailedError, match=remark) as caught:
            # A port at which nothing speaks remoting.
            await tell(node, **wish, master_address=node.ha_address)
        assert caught.value.code == code
        assert node.role_node is master
        assert await put(master) is Status.PUT_OK


async def test_a_master_that_is_told_of_a_later_one_is_none_even_if_that_is_not_found(tmp_path):
    """It decides nothing more, and has seen the epoch."""
    async with hastore.open_node(node_config(tmp_path, 1, (1,))) as node:
        await tell(node, epoch=3, master_id=1, master_address=node.address)
        await is_master(node, 3)
        with pytest.raises(RequestFailedError, match="no client port of a node"):
            await tell(node, epoch=4, master_id=2, master_address=node.ha_address)
        await eventually(lambda: isinstance(node.role_node, Slave))
        with pytest.raises(RequestFailedError, match="has seen epoch 4"):
            await tell(node, epoch=4, master_id=1, master_address=node.address)


@pytest.mark.parametrize("members", [{2}, {1, 9}])
async def test_a_set_that_cannot_be_is_refused(tmp_path, members):
    """Before anything of the epoch is written; the node goes on."""
    async with hastore.open_node(node_config(tmp_path, 1, (1, 2))) as node:
        wish = {"epoch": 3, "master_id": 1, "master_address": node.address}
        with pytest.raises(RequestFailedError, match="the SyncStateSet"):
            await tell(node, **wish, members=members)
        assert node.status().state == "unassigned"
        await tell(node, **wish, members={1})
        await is_master(node, 3)


async def test_the_role_of_a_classic_node_is_fixed(tmp_path):
    """As it is for every node that was not started to change it."""
    async with hastore.open_master(master_config(tmp_path, listen=ANY_PORT)) as master:
        with pytest.raises(RequestFailedError, match="the role of hastore-a is fixed") as caught:
            await tell(master, epoch=3, master_id=1, master_address=master.address)
        assert caught.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# -- without a node --------------------------------------------------------------------------------


@attrs.define
class Control:
    """Takes wishes, or refuses them."""

    takes_remote_roles: bool = False
    error: Exception | None = None
    wishes: list = attrs.field(factory=list)

    def coordinator_clocks(self):
        return ()

    async def change_role(self, wish):
        if self.error is not None:
            raise self.error
        self.wishes.append(wish)


def client(peer, local="10.0.0.1"):
    return types.SimpleNamespace(peer=(peer, 50_000), local_address=(local, 10_911))


def request(body=b"", **fields):
    given = {"masterEpoch": "7", "masterBrokerId": "2", "masterAddress": "10.0.0.2:10911", **fields}
    return RemotingCommand(
        code=RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        ext_fields={key: value for key, value in given.items() if value is not None},
        body=body,
    )


async def process(control, command, peer="127.0.0.1"):
    target = InMemoryTarget(role_control=control)
    return await RoleProcessor(target).role_changed(command, client(peer))


@pytest.mark.parametrize(
    ("peer", "is_own"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", True),  # the address that it has connected to
        ("10.0.0.2", False),
        ("::ffff:10.0.0.2", False),
        ("fe80::1%eth0", False),
    ],
)
async def test_only_the_own_machine_may_ask(peer, is_own):
    """Until there is access control; a setting opens it to others."""
    control = Control()
    if is_own:
        assert (await process(control, request(), peer)).code == ResponseCode.SUCCESS
        return
    with pytest.raises(RequestFailedError, match=r"\[node\] remote_roles = true") as caught:
        await process(control, request(), peer)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    assert not control.wishes
    control.takes_remote_roles = True
    assert (await process(control, request(), peer)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("fields", "body", "wish"),
    [
        ({}, b"", RoleWish(epoch=7, master_id=2, master_address=("10.0.0.2", 10911))),
        (
            {},
            json.dumps({"syncStateSet": [1, 3], "syncStateSetEpoch": 2}).encode(),
            RoleWish(
                epoch=7,
                master_id=2,
                master_address=("10.0.0.2", 10911),
                members=frozenset({1, 3}),
            ),
        ),
        ({"masterAddress": None, "masterBrokerId": None}, b"", RoleWish(epoch=7)),
        ({"masterAddress": ""}, b"", RoleWish(epoch=7)),
        ({"masterAddress": "null"}, b"", RoleWish(epoch=7)),
    ],
)
async def test_what_a_request_says(fields, body, wish):
    """The fields are RocketMQ's."""
    control = Control()
    await process(control, request(body, **fields))
    assert control.wishes == [wish]


@pytest.mark.parametrize(
    ("fields", "body", "message"),
    [
        ({"masterEpoch": None}, b"", "masterEpoch"),
        ({"masterEpoch": "0"}, b"", "masterEpoch is 0: a master's epochs begin at 1"),
        ({"masterEpoch": "-1"}, b"", "masterEpoch is -1"),
        ({"masterBrokerId": "two"}, b"", "masterBrokerId"),
        ({"masterAddress": "nowhere"}, b"", "masterAddress: 'nowhere' is not an address"),
        ({}, b"{}x", "the SyncStateSet"),
        ({}, b'{"syncStateSet": 1}', "the syncStateSet is 1, not a list of node ids"),
        ({}, b'{"syncStateSet": []}', "not a list of node ids"),
        ({}, b'{"syncStateSet": [0]}', "not a list of node ids"),
        ({}, b'{"syncStateSet": ["1"]}', "not a list of node ids"),
    ],
)
async def test_a_malformed_request_is_refused(fields, body, message):
    """It changes nothing."""
    control = Control()
    with pytest.raises((ProtocolError, RequestFailedError), match=message):
        await process(control, request(body, **fields))
    assert not control.wishes


@pytest.mark.parametrize(
    "error", [RoleChangedError("this node is stopping"), UnreachableError("nobody")]
)
async def test_a_refusal_is_answered(error):
    """With its reason."""
    with pytest.raises(RequestFailedError, match=str(error)) as caught:
        await process(Control(error=error), request())
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_wish_comes_back_as_it_was_sent(tmp_path):
    """AdminClient writes what RoleProcessor reads."""
    control = Control()
    async with hastore.open_master(master_config(tmp_path, listen=ANY_PORT)) as master:
        master.role_control = control
        wish = {"epoch": 9, "master_id": 3, "master_address": ("::1", 10911), "members": {3, 1}}
        await tell(master, **wish)
        await tell(master, epoch=10)
    assert control.wishes == [
        RoleWish(**{**wish, "members": frozenset({1, 3})}),
        RoleWish(epoch=10),
    ]
