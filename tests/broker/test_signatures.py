"""Requests that cannot be replayed: hastore's own signature, on real connections."""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio

import hastore
from hastore.access.permissions_file import parse_permissions
from hastore.access.signature import own_signature
from hastore.broker.access.node_access import NodeAccess
from hastore.broker.node.master import Master
from hastore.client.admin import AdminClient
from hastore.client.remoting_client import open_remoting_client
from hastore.config import AccessConfig, MasterConfig, SlaveConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import AccessDeniedError
from hastore.ha.client_port_link import open_client_port_link
from hastore.message import Message
from hastore.status import BrokerRole, OwnSignatures
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import (
    ADMIN_REQUESTS,
    OWN_REQUESTS,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    USER_KEY,
    WRONG_KEY,
    own_signed,
    signed,
    signer_on,
    write_key,
    write_private,
)
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.group_nodes import node_config
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client
from tests.support.nodes.scripted_node import scripted_node
from tests.support.waiting import eventually

NOT_PROVEN = "access denied: unknown access key, or wrong signature"
REQUIRED, PREFERRED = OwnSignatures.REQUIRED, OwnSignatures.PREFERRED
DEMOTION = RemotingCommand(code=1008, opaque=7, ext_fields={"masterEpoch": "8"})

# What commands and nodes of the last release (2fc5029e) send, byte by byte, with ADMIN_KEY's
# signature: RocketMQ's.  Their node is 10.0.0.1:10911, node 1 of group g1.
LAST_RELEASE = {
    "poll": (
        b'\x00\x00\x00\xcb\x00\x00\x00\xc7{"code":21,"extFields":{"tableTag":"8","AccessKey":'
        b'"the-admin","Signature":"cVfIsKhsBihRQCwCY/jkI6Qs/Ko="},"flag":0,"language":"PYTHON",'
        b'"opaque":100001,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "promotion": (
        b'\x00\x00\x01\x19\x00\x00\x00\xfd{"code":1008,"extFields":{"masterEpoch":"8",'
        b'"masterBrokerId":"1","masterAddress":"10.0.0.1:10911","AccessKey":"the-admin",'
        b'"Signature":"ANUMyUcoWY0eRhlhunpQnHA0AcE="},"flag":0,"language":"PYTHON","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}{"syncStateSet": [1, 2]}'
    ),
    "demotion": (
        b'\x00\x00\x00\xcb\x00\x00\x00\xc7{"code":1008,"extFields":{"masterEpoch":"8","AccessKey":'
        b'"the-admin","Signature":"cVfIsKhsBihRQCwCY/jkI6Qs/Ko="},"flag":0,"language":"PYTHON",'
        b'"opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "another master": (
        b'\x00\x00\x01\x01\x00\x00\x00\xfd{"code":1008,"extFields":{"masterEpoch":"8",'
        b'"masterBrokerId":"2","masterAddress":"10.0.0.2:10911","AccessKey":"the-admin",'
        b'"Signature":"c/NQ8qoZw/GpkbrVobdAZHvA93U="},"flag":0,"language":"PYTHON","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "promise": (
        b'\x00\x00\x01\x10\x00\x00\x01\x0c{"code":28103,"extFields":{"group":"g1","epoch":"8",'
        b'"masterId":"1","ttlMs":"30000","nonce":"0.52345678901234567","AccessKey":"the-admin",'
        b'"Signature":"JKvUIhKAmngyJohMcqqvlRK+40c="},"flag":0,"language":"PYTHON","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "explain": (
        b'\x00\x00\x00\xc5\x00\x00\x00\xc1{"code":28101,"extFields":{"last":"8","AccessKey":'
        b'"the-admin","Signature":"cVfIsKhsBihRQCwCY/jkI6Qs/Ko="},"flag":0,"language":"PYTHON",'
        b'"opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "digest": (
        b'\x00\x00\x00\xce\x00\x00\x00\xca{"code":28102,"extFields":{"from":"2","to":"5","AccessKey'
        b'":"the-admin","Signature":"15gqmPwOwFSOTt+3W17vPdxweA4="},"flag":0,"language":"PYTHON",'
        b'"opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "group log": (
        b'\x00\x00\x00\xd8\x00\x00\x00\xd4{"code":28104,"extFields":{"group":"g1","epoch":"8",'
        b'"AccessKey":"the-admin","Signature":"Qo41lTCAFnUTAkLn6lOHF88JKww="},"flag":0,"language":'
        b'"PYTHON","opaque":100002,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "counts": (
        b'\x00\x00\x00\xce\x00\x00\x00\xca{"code":28105,"extFields":{"from":"2","to":"5","AccessKey'
        b'":"the-admin","Signature":"15gqmPwOwFSOTt+3W17vPdxweA4="},"flag":0,"language":"PYTHON",'
        b'"opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
    "log bytes": (
        b'\x00\x00\x00\xda\x00\x00\x00\xd6{"code":28106,"extFields":{"from":"2","to":"5","epoch":'
        b'"1","AccessKey":"the-admin","Signature":"y8NsVAR0wnTl1U4xrSFt6ncMoHg="},"flag":0,'
        b'"language":"PYTHON","opaque":1,"serializeTypeCurrentRPC":"JSON","version":409}'
    ),
}
# What a newer node still accepts of these, unless ``own_signatures`` is "required".
STILL_ACCEPTED = {"poll", "promotion", "promise"}


@attrs.define
class Control:
    """Counts the wishes of admitted requests."""

    takes_remote_roles: bool = True
    wishes: list = attrs.field(factory=list)

    async def change_role(self, wish):
        self.wishes.append(wish)

    def promise(self, wish):
        self.wishes.append(wish)


@contextlib.asynccontextmanager
async def guarded(**settings):
    """Serve node 1 of g1 at 10.0.0.1:10911, as it says, with access keys."""
    table = parse_permissions(ACCOUNTS.encode(), "acl.yml")
    access = NodeAccess(real_env(), table, None, "acl.yml", **settings)
    control = Control()
    target = InMemoryTarget(node_id=1, replica_group="g1", role_control=control)
    async with serving(target, access=access) as (_, address):
        target.address = ("10.0.0.1", 10911)
        yield address, control


def is_denied(response):
    return response.ext_fields.get("accessDenied") == "true"


def command_of(frame):
    reader = FrameReader(1 << 20)
    reader.feed(frame)
    command = reader.next_command()
    assert command is not None
    return command


# -- a recorded request ----------------------------------------------------------------------------


async def test_a_recorded_poll_does_not_demote_the_master(tmp_path):
    """21 with tableTag=8 has the RocketMQ signature of 1008 with masterEpoch=8."""
    access = AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS))
    config = node_config(tmp_path / "d", 1, (1,), access=access)
    async with hastore.open_node(config) as node:
        async with AdminClient.connect(node.address, access_key=ADMIN_KEY) as admin:
            await admin.change_role(epoch=1, master_id=1, master_address=node.address)
        await eventually(lambda: isinstance(node.role_node, Master))
        poll = command_of(LAST_RELEASE["poll"])
        async with raw_client(node.address) as client:
            assert (await client.ask(poll)).code == ResponseCode.SUCCESS
            fields = {**poll.ext_fields, "masterEpoch": "8"}
            del fields["tableTag"]
            response = await client.ask(RemotingCommand(code=1008, opaque=9, ext_fields=fields))
            assert is_denied(response)
            assert "request type 1008 needs hastore's own signature" in response.remark
        assert isinstance(node.role_node, Master)
        assert node.status().role == "SYNC_MASTER"
        async with AdminClient.connect(node.address, access_key=ADMIN_KEY) as admin:
            await admin.change_role(epoch=8)
        await eventually(lambda: not isinstance(node.role_node, Master))


@pytest.mark.parametrize("kind", SerializeType)
async def test_a_request_counts_once_and_on_its_own_connection(kind):
    """Recorded frames are refused beside it, after it, and with a later counter."""
    async with guarded() as (address, control), raw_client(address) as client:
        signer = await signer_on(client, ADMIN_KEY)
        recorded = own_signed(attrs.evolve(DEMOTION, serialize_type=kind), signer)
        assert (await client.ask(recorded)).code == ResponseCode.SUCCESS
        assert len(control.wishes) == 1
        later = {**recorded.ext_fields, "signatureCounter": "2"}
        for again in (recorded, attrs.evolve(recorded, ext_fields=later)):
            assert (await client.ask(again)).remark == NOT_PROVEN
        async with raw_client(address) as other:
            assert (await other.ask(recorded)).remark == NOT_PROVEN  # it has no nonce
            await signer_on(other, ADMIN_KEY)
            assert (await other.ask(recorded)).remark == NOT_PROVEN
        assert len(control.wishes) == 1
        response = await client.ask(own_signed(attrs.evolve(DEMOTION, serialize_type=kind), signer))
        assert response.code == ResponseCode.SUCCESS
        assert len(control.wishes) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"code": 28101},
        {"body": b'{"syncStateSet": [1]}'},
        {"ext_fields": {"masterEpoch": "9"}},
        {"ext_fields": {"tableTag": "8"}},
        {"ext_fields": {"masterEpoch": "", "tableTag": "8"}},
        {"ext_fields": {"masterEpoch": "8", "masterAddress": ""}},
        {"ext_fields": {"masterEpoch": 8}},  # a number, not the text of the same digits
        {"ext_fields": {"masterEpoch": ["8"]}},
        {"ext_fields": {"masterEpoch": "8", "x": "\ud800"}},
        {"ext_fields": {"masterEpoch": "8", "x": None}},
    ],
    ids=str,
)
async def test_hastores_signature_covers_code_names_values_and_body(change):
    """Whatever is changed, the request is refused, and counts as a failed attempt."""
    async with guarded() as (address, control), raw_client(address) as client:
        good = own_signed(DEMOTION, await signer_on(client, ADMIN_KEY))
        signature = {
            name: good.ext_fields[name] for name in good.ext_fields if name != "masterEpoch"
        }
        changed = attrs.evolve(good, **change)
        if "ext_fields" in change:
            changed.ext_fields = {**change["ext_fields"], **signature}
        assert (await client.ask(changed)).remark == NOT_PROVEN
        assert not control.wishes
        assert (await client.ask(good)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("counter", ["", "0", "-1", "1_0", "\u0661", "9" * 19])
async def test_a_counter_is_a_number_above_the_last(counter):
    """Other spellings are refused, however well they are signed."""
    async with guarded() as (address, control), raw_client(address) as client:
        status = await client.ask(signed(RemotingCommand(code=907), ADMIN_KEY))
        nonce = status.ext_fields["signatureNonce"]
        for given, is_good in ((counter, False), ("5", True), ("4", False), ("6", True)):
            fields = {"masterEpoch": "8", "AccessKey": "the-admin", "signatureCounter": given}
            signature = own_signature(ADMIN_KEY.secret, nonce, 1008, fields, b"")
            fields["ownSignature"] = signature
            response = await client.ask(attrs.evolve(DEMOTION, ext_fields=fields))
            assert is_denied(response) is not is_good
        assert len(control.wishes) == 2


async def test_without_access_keys_there_is_no_nonce():
    """And nothing is signed or checked."""
    target = InMemoryTarget(role_control=(control := Control()))
    async with serving(target) as (_, address):
        async with raw_client(address) as client:
            assert not (await client.ask(RemotingCommand(code=907))).ext_fields
        for key in (None, ADMIN_KEY):
            async with AdminClient.connect(address, access_key=key) as admin:
                await admin.change_role(epoch=8)
    assert len(control.wishes) == 2


async def test_each_connection_has_another_nonce_and_keeps_it():
    """128 bits in hexadecimal digits; another key's failures do not change it."""
    seen = set()
    async with guarded() as (address, _):
        for _ in range(3):
            async with raw_client(address) as client:
                asked = signed(RemotingCommand(code=907), USER_KEY)
                nonces = {(await client.ask(asked)).ext_fields["signatureNonce"] for _ in range(2)}
                refused = await client.ask(signed(RemotingCommand(code=907), WRONG_KEY))
                assert "signatureNonce" not in refused.ext_fields
                assert len(nonces) == 1
                seen |= nonces
    assert len(seen) == 3
    assert {len(bytes.fromhex(nonce)) for nonce in seen} == {16}


async def test_an_own_signature_is_not_replaced_by_rocketmqs():
    """A request that has both is refused for the first."""
    async with guarded() as (address, control), raw_client(address) as client:
        fields = {"masterEpoch": "8", "signatureCounter": "1", "ownSignature": "x"}
        both = signed(attrs.evolve(DEMOTION, ext_fields=fields), ADMIN_KEY)
        assert (await client.ask(both)).remark == NOT_PROVEN
        poll = attrs.evolve(both, code=21)
        assert (await client.ask(poll)).remark == NOT_PROVEN
    assert not control.wishes


async def test_an_own_signature_needs_permission_all_the_same():
    """It proves the key, and the account says what the key may do."""
    async with guarded() as (address, control), raw_client(address) as client:
        response = await client.ask(own_signed(DEMOTION, await signer_on(client, USER_KEY)))
        assert response.remark == "access denied: access key the-user needs admin"
    assert not control.wishes


# -- a rolling upgrade -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", OwnSignatures)
@pytest.mark.parametrize("name", LAST_RELEASE)
async def test_what_the_last_release_sends_to_a_newer_node(name, setting):
    """A node accepts what fits no other request, until own signatures are required."""
    async with guarded(own_signatures=setting) as (address, control):
        async with raw_client(address) as client:
            await client.send(LAST_RELEASE[name])
            response = await client.receive()
    is_accepted = name == "poll" or (name in STILL_ACCEPTED and setting is PREFERRED)
    assert is_denied(response) is not is_accepted
    if not is_accepted:
        assert "needs hastore's own signature" in response.remark
    assert len(control.wishes) == (is_accepted and name != "poll")


@pytest.mark.parametrize(
    ("name", "fields", "body"),
    [
        # The digits of address, id and epoch are split at another place.
        ("promotion", {"masterAddress": "10.0.0.1:1091", "masterEpoch": "118"}, None),
        ("promotion", {"masterAddress": "10.0.0.1:109", "masterEpoch": "1118"}, None),
        ("promotion", {"masterAddress": "", "masterBrokerId": "", "masterEpoch": ""}, None),
        ("promotion", {"masterBrokerId": "11"}, None),
        ("promotion", {"masterBrokerId": None, "masterEpoch": "18"}, None),
        ("promotion", {"masterEpoch": "08"}, None),
        ("promotion", {"masterEpoch": "", "zz": "8"}, None),
        ("promotion", {"masterEpoch": 8}, None),
        ("promise", {"nonce": "0.5234567890123456", "ttlMs": "730000"}, None),
        ("promise", {"nonce": ".52345678901234567", "masterId": "10"}, None),
        ("promise", {"ttlMs": "3000", "zz": "0"}, None),
        ("promise", {"epoch": "", "Z": "8"}, None),
        ("promise", {"ttlMs": ""}, b"30000"),
    ],
)
async def test_a_request_of_the_last_release_is_not_split_otherwise(name, fields, body):
    """Its RocketMQ signature would be right: the same values in the same order."""
    recorded = command_of(LAST_RELEASE[name])
    given = {**recorded.ext_fields, **fields}
    given = {field: value for field, value in given.items() if value is not None}
    request = attrs.evolve(recorded, ext_fields=given, body=recorded.body if body is None else body)
    # Signed, so that the signature is never the reason, whether or not the values are shifted well.
    del given["Signature"]
    async with guarded() as (address, control), raw_client(address) as client:
        response = await client.ask(signed(request, ADMIN_KEY))
        assert "needs hastore's own signature" in response.remark
    assert not control.wishes


async def test_a_poll_is_not_replayed_as_any_request_of_hastores_own():
    """Its digits would be offsets, epochs or lists of puts."""
    values = {
        1008: {"masterEpoch": "8"},
        28101: {"last": "8"},
        28102: {"from": "", "to": "8"},
        28103: {"epoch": "8", "group": "", "masterId": "", "nonce": "", "ttlMs": ""},
        28104: {"epoch": "8"},
        28105: {"from": "", "to": "8"},
        28106: {"epoch": "8", "from": "", "to": ""},
    }
    assert values.keys() == OWN_REQUESTS
    poll = command_of(LAST_RELEASE["poll"]).ext_fields
    proof = {name: poll[name] for name in ("AccessKey", "Signature")}
    async with guarded() as (address, control), raw_client(address) as client:
        for code, fields in values.items():
            request = RemotingCommand(code=code, opaque=code, ext_fields={**fields, **proof})
            assert "needs hastore's own signature" in (await client.ask(request)).remark
    assert not control.wishes


@pytest.mark.parametrize("name", ["promotion", "demotion", "another master"])
async def test_a_node_of_the_last_release_gets_what_its_own_commands_send(name):
    """It has no nonce in its answer to 907: the same bytes follow, but for the opaque."""
    wishes = {
        "promotion": {"master_id": 1, "master_address": ("10.0.0.1", 10911), "members": [1, 2]},
        "demotion": {},
        "another master": {"master_id": 2, "master_address": ("10.0.0.2", 10911)},
    }
    async with scripted_node(route_code=None) as (node, address):

        async def tell():
            async with AdminClient.connect(address, access_key=ADMIN_KEY) as admin:
                await admin.change_role(epoch=8, **wishes[name])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            (status,) = await node.receive(1)
            assert status.code == 907
            await node.send(status.response(0, body=b"{}"))
            (request,) = await node.receive(1)
            await node.send(request.response(0))
    assert encode_command(attrs.evolve(request, opaque=1)) == LAST_RELEASE[name]


async def test_a_client_that_has_a_nonce_sends_one_signature_only():
    """RocketMQ's beside it could be cut out and sent again; one round trip a connection."""
    async with scripted_node(route_code=None) as (node, address):

        async def ask():
            async with open_remoting_client(address, access_key=ADMIN_KEY) as client:
                for code in (21, 1008, 28103, 12):
                    await client.ask(code, {"a": "b"})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            (status,) = await node.receive(1)
            assert status.code == 907
            await node.send(status.response(0, ext_fields={"signatureNonce": "ab" * 16}))
            for number, code in enumerate((21, 1008, 28103), 1):
                (request,) = await node.receive(1)
                assert request.code == code
                names = {"a", "AccessKey", "signatureCounter", "ownSignature"}
                assert request.ext_fields.keys() == names
                assert request.ext_fields["signatureCounter"] == str(number)
                await node.send(request.response(0))
            (request,) = await node.receive(1)
            assert request.ext_fields.keys() == {"a", "AccessKey", "Signature"}
            await node.send(request.response(0))


@pytest.mark.parametrize("nonce", ["", "AB" * 16, "ab" * 17, "\ud800" * 32, 5, None, ["ab" * 16]])
async def test_a_nonce_that_is_none_is_passed_over(nonce):
    """The peer is taken for one that knows RocketMQ's signature only."""
    async with scripted_node(route_code=None) as (node, address):

        async def ask():
            async with open_remoting_client(address, access_key=ADMIN_KEY) as client:
                await client.ask(21)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            (status,) = await node.receive(1)
            await node.send(status.response(0, ext_fields={"signatureNonce": nonce}))
            (request,) = await node.receive(1)
            assert request.ext_fields.keys() == {"AccessKey", "Signature"}
            await node.send(request.response(0))


# -- table reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accepts_stock", [True, False])
async def test_stock_signatures_of_administrators_can_be_refused(accepts_stock):
    """Stock slaves' and mqadmin's polls; hastore's own nodes and commands ask all the same."""
    async with guarded(stock_signatures=accepts_stock) as (address, _):
        async with raw_client(address) as client:
            for code in sorted(ADMIN_REQUESTS - OWN_REQUESTS):
                response = await client.ask(signed(RemotingCommand(code=code), ADMIN_KEY))
                assert is_denied(response) is not accepts_stock
                assert accepts_stock or "[access] stock_signatures" in response.remark
            assert not is_denied(await client.ask(signed(RemotingCommand(code=907), USER_KEY)))
        async with AdminClient.connect(address, access_key=ADMIN_KEY) as admin:
            assert await admin.topics() is not None
            assert await admin.runtime_info()
        async with open_client_port_link(address, ADMIN_KEY) as port:
            assert (await port.identify()).denial is None
            assert (await port.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == 0


async def test_a_slave_copies_tables_where_only_own_signatures_count(tmp_path):
    """Its polls are signed with the nonce of each connection."""
    access = AccessConfig(
        file=write_private(tmp_path / "acl.yml", ACCOUNTS),
        key_file=write_key(tmp_path / "key.toml", ADMIN_KEY),
        own_signatures=REQUIRED,
        stock_signatures=False,
    )
    config = MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "master"), mapped_file_size=1 << 20),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        role=BrokerRole.ASYNC_MASTER,
        access=access,
    )
    async with hastore.open_master(config) as master:
        await master.put(Message("orders", b"x"))
        config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "slave"), mapped_file_size=1 << 20),
            master=master.ha_address,
            master_client=master.address,
            listen=ANY_PORT,
            ha=QUICK,
            access=access,
        )
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().table_copies.age_s is not None)
            copies = slave.status().table_copies
            assert (copies.reason, copies.refused) == (None, {})


async def test_a_refused_command_says_what_to_do(tmp_path):
    """An own request whose caller has another key fails as before."""
    async with guarded() as (address, _):
        async with AdminClient.connect(address, access_key=USER_KEY) as admin:
            with pytest.raises(AccessDeniedError, match="access key the-user needs admin"):
                await admin.change_role(epoch=8)
        async with AdminClient.connect(address, access_key=WRONG_KEY) as admin:
            with pytest.raises(AccessDeniedError, match=NOT_PROVEN):
                await admin.change_role(epoch=8)
