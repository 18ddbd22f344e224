"""Access keys at the client port: every request code, over real sockets, with every kind of key."""

from __future__ import annotations

import contextlib
import json
import logging
from functools import partial

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import hastore
from hastore.access.permissions import PUB, SUB
from hastore.access.permissions_file import parse_permissions
from hastore.access.signature import DENIED_FIELD
from hastore.broker.access.access_guard import AccessGuard
from hastore.broker.access.audit import CHANGES, READS
from hastore.broker.access.failed_attempts import (
    PEERS_MAX,
    PERIOD_S,
    UNDELAYED_MAX,
    FailedAttempts,
)
from hastore.broker.access.node_access import NodeAccess, open_access
from hastore.broker.access.rules import RULES
from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.node.reload import Reloaded, reload_files
from hastore.broker.observe.findings import Level, Limits, findings
from hastore.broker.observe.node_status import AccessStatus, NodeStatus
from hastore.broker.port.request_processors import RequestProcessors
from hastore.broker.pulls.message_by_offset import NOT_FOUND
from hastore.broker.puts.send_message_processor import SEND_CODES
from hastore.broker.reply import Later
from hastore.concurrency.port_limits import PROOF_S, RESERVED_MAX
from hastore.concurrency.turns import Turns
from hastore.concurrency.watched_files import LOOK_S
from hastore.config import AccessConfig, MasterConfig, RemotingConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import AccessDeniedError, ConfigError
from hastore.ha.client_port import ask_client_port
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.trace import AUDIT_LOGGER
from hastore.wire.remoting_codes import (
    ADMIN_REQUESTS,
    FLAG_ONE_WAY,
    OWN_REQUESTS,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from hastore.wire.remoting_command import RemotingCommand
from hastore.wire.request_sizes import BODY_KINDS, BodyKind
from hastore.wire.send_message import write_batch
from hastore_cli.status.check import check_status
from tests.support.env.fake_env import FakeOffload
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    SECRET,
    UNKNOWN_KEY,
    USER_KEY,
    WRONG_KEY,
    own_signed,
    signed,
    signer_on,
    write_private,
)
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import pull_command
from tests.support.nodes.tls_files import TRANSPORTS, make_tls_files
from tests.support.repository import REPO_ROOT
from tests.support.waiting import eventually

ACCESS = NodeAccess(real_env(), parse_permissions(ACCOUNTS.encode(), "acl.yml"), None, "acl.yml")
NOT_PROVEN = "access denied: unknown access key, or wrong signature"
PEER = ("127.0.0.1", 1)
NO_KEY = "access denied: the request has no access key, and this node needs one"
HEARTBEAT = {
    "clientID": "c",
    "consumerDataSet": [
        {
            "groupName": "billing",
            "subscriptionDataSet": [{"topic": "orders"}, {"topic": "%RETRY%billing"}],
        }
    ],
    "producerDataSet": [],
}
LOCK = {
    "consumerGroup": "billing",
    "clientId": "c",
    "mqSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}],
}
QUEUE = {"topic": "orders", "queueId": "0"}
OFFSET = {**QUEUE, "consumerGroup": "billing"}


def long_send():
    """The fields of code 10 in their long form."""
    names = {"a": "producerGroup", "b": "topic", "e": "queueId", "f": "sysFlag"}
    names |= {"g": "bornTimestamp", "h": "flag", "i": "properties"}
    short = send_command(topic="orders").ext_fields
    return {names[name]: value for name, value in short.items() if name in names}


# Each request that the port serves, on topic orders and group billing.
REQUESTS = {
    10: (long_send(), b"x"),
    11: ({**OFFSET, "queueOffset": "0", "maxMsgNums": "1"}, b""),
    12: ({"topic": "orders", "key": "k"}, b""),
    14: (OFFSET, b""),
    15: ({**OFFSET, "commitOffset": "0"}, b""),
    17: ({"topic": "new", "readQueueNums": "1", "writeQueueNums": "1"}, b""),
    21: ({}, b""),
    25: ({}, b"autoCreateTopicEnable=true\n"),
    26: ({}, b""),
    28: ({}, b""),
    29: ({**QUEUE, "timestamp": "0"}, b""),
    30: (QUEUE, b""),
    31: (QUEUE, b""),
    32: (QUEUE, b""),
    33: ({"offset": "0"}, b""),
    34: ({}, json.dumps(HEARTBEAT).encode()),
    35: ({"clientID": "c", "consumerGroup": "billing"}, b""),
    36: ({"group": "billing", "offset": "0"}, b""),
    38: ({"consumerGroup": "billing"}, b""),
    41: ({}, json.dumps(LOCK).encode()),
    42: ({}, json.dumps(LOCK).encode()),
    43: ({}, b""),
    45: ({}, b""),
    105: ({"topic": "orders"}, b""),
    200: ({}, b'{"groupName": "new"}'),
    201: ({}, b""),
    202: ({"topic": "orders"}, b""),
    203: ({"consumerGroup": "billing"}, b""),
    204: ({"producerGroup": "p"}, b""),
    207: ({"groupName": "new"}, b""),
    208: ({"consumerGroup": "billing", "topic": "orders"}, b""),
    215: ({"topic": "new"}, b""),
    222: ({"topic": "new", "group": "new", "timestamp": "-1"}, b""),
    300: ({"topic": "orders"}, b""),
    303: ({"topic": "orders", "group": "billing"}, b""),
    305: ({}, b""),
    307: ({"consumerGroup": "billing", "clientId": "c"}, b""),
    309: ({"consumerGroup": "billing", "clientId": "c", "msgId": "0" * 32}, b""),
    310: (send_command(topic="orders").ext_fields, b"x"),
    315: ({"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}, b""),
    316: ({}, b""),
    317: ({}, b""),
    320: (
        {**send_command(topic="orders").ext_fields, "m": "true"},
        write_batch([Message("orders", b"x")]),
    ),
    324: (long_send(), b"x"),
    325: (send_command(topic="orders").ext_fields, b"x"),
    907: ({}, b""),
    1007: ({}, b""),
    1008: ({"masterEpoch": "1"}, b""),
    28101: ({}, b""),
    28102: ({"from": "0", "to": "0"}, b""),
    28103: ({"nonce": "n", "ttlMs": "1", "group": "g", "epoch": "1", "masterId": "1"}, b""),
    28104: ({}, b""),
    28105: ({"from": "0", "to": "0"}, b""),
    28106: ({"from": "0", "to": "0", "epoch": "1"}, b""),
}


def request_of(code, **changes):
    fields, body = REQUESTS[code]
    return RemotingCommand(code=code, opaque=9, ext_fields={**fields, **changes}, body=body)


def access_config(tmp_path, accounts=ACCOUNTS):
    return AccessConfig(file=write_private(tmp_path / "acl.yml", accounts))


def master_config(tmp_path, accounts=ACCOUNTS):
    return MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "data"), mapped_file_size=1 << 20),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        role=BrokerRole.ASYNC_MASTER,
        access=access_config(tmp_path, accounts),
    )


async def put(master, topic, **properties):
    """Store a message, wait until consumers see it; return its offset."""
    offset = master.max_offset
    await master.put(Message(topic, b"x", properties=properties))
    await eventually(lambda: master.message_store.consume_queues.max_physic_offset > offset)
    return offset


def is_denied(response):
    denied = response.ext_fields.get(DENIED_FIELD) == "true"
    assert denied is (response.remark or "").startswith("access denied: ")
    assert not denied or response.code == 1
    return denied


def served_codes():
    config = RemotingConfig()
    processors = RequestProcessors(
        real_env(), InMemoryTarget(), config, BrokerData.make(real_env(), config, None)
    )
    tables = (processors._in_order, processors._of_group, processors._now, processors._in_turn)
    return {*SEND_CODES}.union(*tables)


def test_what_an_admins_key_needs_is_known_to_those_who_sign():
    """They ask for a nonce first, and sign these in hastore's own way."""
    assert {code for code, rule in RULES.items() if rule.is_admins} == ADMIN_REQUESTS
    assert OWN_REQUESTS < ADMIN_REQUESTS
    assert all(code == 1008 or code > 28_100 for code in OWN_REQUESTS)


def test_every_code_that_the_port_serves_has_a_rule_a_test_and_a_row_in_the_docs():
    """And no other has: what is denied without a rule is denied on purpose."""
    assert served_codes() == set(RULES) == set(REQUESTS)
    assert served_codes() == set(BODY_KINDS)
    page = (REPO_ROOT / "docs/security.md").read_text()
    for code, rule in RULES.items():
        assert f"| {int(code)} | {RequestCode(code).name} | {rule.text} |\n" in page


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_request_with_every_kind_of_key(tmp_path, transport):
    """None, unknown and wrong keys are refused in the same way, others by the rule.

    However the connection is made: a client certificate lets in, the key says what for.
    """
    files = make_tls_files(tmp_path / "tls")
    config = attrs.evolve(master_config(tmp_path), tls=files.of_transport(transport))
    connect = partial(raw_client, tls=files.client_of_transport(transport))
    async with hastore.open_master(config) as master:
        await put(master, "orders")
        end, topics = master.max_offset, None
        for code, rule in RULES.items():
            request = request_of(int(code))
            for key, remark in ((None, NO_KEY), (UNKNOWN_KEY, NOT_PROVEN), (WRONG_KEY, NOT_PROVEN)):
                master.access.attempts._recent.clear()
                async with connect(master.address) as client:
                    response = await client.ask(signed(request, key))
                assert is_denied(response), (code, key)
                assert response.remark == remark
                assert response.opaque == request.opaque
            async with connect(master.address) as client:
                response = await client.ask(signed(request, POOR_KEY))
                if code == RequestCode.VIEW_MESSAGE_BY_ID:  # the answer does not say why
                    assert (response.code, response.remark) == (1, NOT_FOUND)
                    assert not is_denied(response)
                else:
                    assert is_denied(response) is (rule.text != "any key"), (code, response)
                if is_denied(response):
                    assert "access key the-poor needs " in response.remark
                if rule.is_admins:
                    assert is_denied(await client.ask(signed(request, USER_KEY))), code
            assert master.max_offset == end, code
            assert topics in (None, topics := set(await topics_of(master, connect))), code
        for code, rule in RULES.items():
            async with connect(master.address) as client:
                if not rule.is_admins:
                    assert not is_denied(await client.ask(signed(request_of(int(code)), USER_KEY)))
                response = await client.ask(signed(request_of(int(code)), ADMIN_KEY))
                assert is_denied(response) is (code in OWN_REQUESTS), (code, response)
                signer = await signer_on(client, ADMIN_KEY)
                response = await client.ask(own_signed(request_of(int(code)), signer))
                assert not is_denied(response), (code, response)
        assert master.max_offset > end


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_request_with_too_large_a_body(tmp_path, transport):
    """The reader refuses it by its code, with any key or none, and the connection lasts."""
    files = make_tls_files(tmp_path / "tls")
    config = attrs.evolve(
        master_config(tmp_path),
        tls=files.of_transport(transport),
        store=StoreConfig(data_dir=str(tmp_path / "data"), max_message_size=256 * 1024),
    )
    connect = partial(raw_client, tls=files.client_of_transport(transport))
    size_max = {BodyKind.SMALL: 64 * 1024, BodyKind.LIST: 1 << 20, BodyKind.MESSAGE: 256 * 1024}
    async with hastore.open_master(config) as master:
        for key in (None, UNKNOWN_KEY, WRONG_KEY, POOR_KEY, USER_KEY, ADMIN_KEY):
            async with connect(master.address) as client:
                for code in RULES:
                    size = size_max[BODY_KINDS[code]] * (2 if code == 320 else 1) + 1
                    request = attrs.evolve(request_of(int(code)), body=bytes(size))
                    response = await client.ask(signed(request, key))
                    assert f"{size} bytes" in response.remark
                    assert not is_denied(response)
        assert master.max_offset == 0


async def topics_of(master, connect):
    async with connect(master.address) as client:
        answer = await client.ask(signed(request_of(21), ADMIN_KEY))
    return json.loads(answer.body)["topicConfigTable"]


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize("is_one_way", [False, True])
async def test_messages_reach_the_log_by_permission_only(tmp_path, kind, is_one_way):
    """Refused ones are not stored, also among allowed ones of one send, and one-way."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        flag = 2 if is_one_way else 0
        requests = [
            signed(send_command(n, topic=topic, flag=flag, serialize_type=kind), key)
            for n, (topic, key) in enumerate(
                [("orders", USER_KEY), ("other", USER_KEY), ("orders", None), ("orders", USER_KEY)]
            )
        ]
        async with raw_client(master.address) as client:
            await client.send(*requests, signed(request_of(907), USER_KEY))
            responses = [await client.receive() for _ in range(1 if is_one_way else 5)]
        assert responses[-1].code == 0
        assert [is_denied(each) for each in responses[:-1]] == (
            [] if is_one_way else [False, True, True, False]
        )
        assert responses[0].serialize_type is (SerializeType.JSON if is_one_way else kind)
        queues = master.message_store
        assert sum(queues.max_offset_in_queue("orders", n) for n in range(8)) in (0, 2)
        await eventually(
            lambda: sum(queues.max_offset_in_queue("orders", n) for n in range(8)) == 2
        )
        assert not any(queues.max_offset_in_queue("other", n) for n in range(8))


async def test_a_batch_is_checked_by_its_header_and_its_form_by_what_is_read(tmp_path):
    """A field of the other form cannot pass one topic off as another."""
    accounts = ACCOUNTS
    async with hastore.open_master(master_config(tmp_path, accounts)) as master:
        async with raw_client(master.address) as client:
            for code in (10, 310, 320):
                short = {**REQUESTS[320][0], "b": "other", "topic": "orders"}
                request = RemotingCommand(code=code, ext_fields=short, body=REQUESTS[320][1])
                response = await client.ask(signed(request, USER_KEY))
                assert response.remark == (
                    "access denied: access key the-user needs PUB on topic other"
                )


async def test_a_heartbeat_needs_each_subscription_and_a_lock_each_queue(tmp_path):
    """One topic without permission among others refuses the whole."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        async with raw_client(master.address) as client:
            heartbeat = json.loads(json.dumps(HEARTBEAT))
            heartbeat["consumerDataSet"][0]["subscriptionDataSet"].append({"topic": "other"})
            request = RemotingCommand(code=34, body=json.dumps(heartbeat).encode())
            assert is_denied(await client.ask(signed(request, USER_KEY)))
            lock = {**LOCK, "mqSet": [*LOCK["mqSet"], {**LOCK["mqSet"][0], "topic": "other"}]}
            for code in (41, 42):
                request = RemotingCommand(code=code, body=json.dumps(lock).encode())
                response = await client.ask(signed(request, USER_KEY))
                assert "needs SUB on topic other" in response.remark
            broken = RemotingCommand(code=34, body=b"{")
            assert (
                "not clear what the request is about"
                in (await client.ask(signed(broken, USER_KEY))).remark
            )


async def test_messages_by_offset_are_checked_by_the_topic_that_they_have(tmp_path):
    """33 and 36 name a place in the log: neither shows another topic's message, nor copies it."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        own = await put(master, "orders")
        others = await put(master, "other")
        delayed = await put(master, "other", DELAY="3")
        end = master.max_offset
        async with raw_client(master.address) as client:
            for offset in (others, delayed):
                for code in (33, 36):
                    request = request_of(code, offset=str(offset))
                    response = await client.ask(signed(request, USER_KEY))
                    missing = await client.ask(signed(request_of(code, offset="1"), USER_KEY))
                    assert (response.code, response.remark) == (1, NOT_FOUND)
                    assert response == missing
            assert master.max_offset == end
            response = await client.ask(signed(request_of(33, offset=str(own)), USER_KEY))
            assert response.code == 0
            assert response.body
            response = await client.ask(signed(request_of(33, offset=str(others)), ADMIN_KEY))
            assert response.code == 0


async def test_what_an_index_finds_is_checked_too(tmp_path, monkeypatch):
    """A query whose answer had another topic's message would be refused."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        await put(master, "other", KEYS="k")
        await put(master, "orders", KEYS="k")
        store = master.message_store
        async with raw_client(master.address) as client:
            response = await client.ask(signed(request_of(12), USER_KEY))
            assert response.code == 0
            query = store.query_message
            monkeypatch.setattr(
                type(store), "query_message", lambda _self, _topic, *a, **k: query("other", *a, **k)
            )
            response = await client.ask(signed(request_of(12), USER_KEY))
            assert response.remark.endswith("needs SUB on topic other")
            assert not response.body


USERS = f"""\
- accessKey: the-user
  secretKey: {SECRET}-user
  topicPerms: [orders=PUB|SUB]
  groupPerms: [billing=SUB]
"""


@pytest.mark.parametrize(
    ("then", "remark"),
    [
        (USERS + "  defaultTopicPerm: SUB\n", None),
        ("", "access key the-user is not in force any more"),
        (
            USERS.replace(f"{SECRET}-user", f"{SECRET}-new"),
            "access key the-user is not in force any more",
        ),
        (USERS.replace("orders=PUB|SUB", "orders=PUB"), "needs SUB on topic orders"),
        (USERS.replace("billing=SUB", "billing=DENY"), "needs SUB on group billing"),
        (USERS + "  allowedRemoteAddresses: [10.0.0.0/8]\n", "does not count from 127.0.0.1"),
    ],
    ids=["it still may", "key gone", "secret changed", "topic denied", "group denied", "elsewhere"],
)
async def test_a_pull_that_waited_is_answered_by_the_permissions_of_then(
    tmp_path, caplog, then, remark
):
    """It has no message that its key may not read any more, and does not wait on without one."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        await put(master, "orders")
        held = pull_command(
            topic="orders", group="billing", queue_offset=1, suspend_timeout_ms=600_000
        )
        async with raw_client(master.address) as client:
            await client.send(signed(held, USER_KEY))
            # Answered in their order: the pull is held once this one has its answer.
            assert (await client.ask(signed(request_of(33), USER_KEY))).opaque != held.opaque
            assert ACCOUNTS.count(USERS) == 1
            write_private(tmp_path / "acl.yml", ACCOUNTS.replace(USERS, then))
            assert await master.access.reload()
            await master.put(Message("orders", b"second"))
            response = await client.receive()
        assert response.opaque == held.opaque
        assert is_denied(response) is (remark is not None)
        assert (b"second" in response.body) is (remark is None)
        if remark is not None:
            assert response.remark.endswith(remark)
            (line,) = [each.msg for each in caplog.records if each.msg["event"] == "access_denied"]
            assert (line["kind"], line["code"]) == ("key the-user", 11)
            assert SECRET not in caplog.text


@pytest.mark.parametrize("code", sorted(RULES.keys() - OWN_REQUESTS))
async def test_a_request_whose_key_goes_before_its_turn_is_refused(tmp_path, code):
    """It was admitted, and others were to be answered first: its client decides how long."""
    access = await open_access(access_config(tmp_path), real_env())
    guard = AccessGuard(access, InMemoryTarget())
    request = signed(request_of(code), ADMIN_KEY)
    account = await guard.admit(request, PEER, turns=Turns())

    async def make():
        raise AssertionError("not reached")

    write_private(tmp_path / "acl.yml", ACCOUNTS.replace("the-admin", "the-next"))
    assert await access.reload()
    answer = await guard.checked(Later(make), request, account, PEER).make()
    assert is_denied(answer)
    with pytest.raises(AccessDeniedError, match="unknown access key"):
        await guard.admit(request, PEER, turns=Turns())


async def test_a_key_that_goes_while_a_long_body_is_read_admits_nothing(tmp_path):
    """Bodies are read in turns, and those of others may come first."""
    access = await open_access(access_config(tmp_path), real_env())
    guard, turns = AccessGuard(access, InMemoryTarget()), Turns()
    rows = [{"topic": "orders", "brokerName": "b", "queueId": each} for each in range(4_000)]
    body = json.dumps({"consumerGroup": "billing", "clientId": "c", "mqSet": rows}).encode()
    request = signed(RemotingCommand(code=41, body=body), ADMIN_KEY)
    async with trio.open_nursery() as nursery:
        async with turns._turn:

            async def admit():
                with pytest.raises(AccessDeniedError, match="not in force any more"):
                    await guard.admit(request, PEER, turns=turns)

            nursery.start_soon(admit)
            await trio.testing.wait_all_tasks_blocked()
            write_private(tmp_path / "acl.yml", ACCOUNTS.replace("the-admin", "the-next"))
            assert await access.reload()


async def test_a_key_counts_from_its_addresses_only(tmp_path):
    """A right signature from elsewhere is refused, by name."""
    accounts = ACCOUNTS.replace(
        "topicPerms: [orders=PUB|SUB]", "allowedRemoteAddresses: [10.0.0.0/8]"
    )
    async with hastore.open_master(master_config(tmp_path, accounts)) as master:
        async with raw_client(master.address) as client:
            response = await client.ask(signed(request_of(907), USER_KEY))
            assert response.remark == (
                "access denied: access key the-user does not count from 127.0.0.1"
            )


async def test_a_code_without_a_rule_is_denied_to_an_admin(tmp_path):
    """Also one that the port does not serve."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        async with raw_client(master.address) as client:
            response = await client.ask(signed(RemotingCommand(code=1005), ADMIN_KEY))
            assert response.remark == "access denied: no rule allows request type 1005"


# -- failed attempts -------------------------------------------------------------------------------


async def test_wrong_keys_are_slowed_and_a_right_one_never_waits(tmp_path, caplog, autojump_clock):
    """However many failed from its address.  The log names keys once a minute, and no secret."""
    autojump_clock.autojump_threshold = 0.02  # loopback traffic arrives before time jumps
    async with hastore.open_master(master_config(tmp_path)) as master:
        async with raw_client(master.address) as client:
            for _ in range(UNDELAYED_MAX):
                response = await client.ask(signed(request_of(907), WRONG_KEY))
                assert response.remark == NOT_PROVEN
            assert not is_denied(await client.ask(signed(request_of(907), USER_KEY)))
        for delay_s, key in ((1, WRONG_KEY), (2, UNKNOWN_KEY), (4, WRONG_KEY)):
            async with raw_client(master.address) as wrong, raw_client(master.address) as right:
                began = trio.current_time()
                await wrong.send(signed(request_of(907), key), signed(request_of(907), USER_KEY))
                assert not is_denied(await right.ask(signed(request_of(907), USER_KEY)))
                assert trio.current_time() - began < delay_s
                response = await wrong.receive()
                assert response.remark.startswith(f"{NOT_PROVEN}; too many failed attempts from")
                assert trio.current_time() - began >= delay_s
                assert await wrong.receive() is None, "the connection ends, and takes no more"
        assert master.status().access.failed_attempts == UNDELAYED_MAX + 3
    lines = [record.msg for record in caplog.records if record.msg["event"] == "access_denied"]
    assert [line["kind"] for line in lines] == ["key the-user", "key unknown-key"]
    assert SECRET not in caplog.text


async def test_a_slowed_one_way_request_gets_no_answer(autojump_clock):
    """Its connection ends all the same."""
    autojump_clock.autojump_threshold = 0.02
    ACCESS.attempts._recent.clear()
    for _ in range(UNDELAYED_MAX):
        ACCESS.attempts.record("127.0.0.1", trio.current_time())
    async with serving(InMemoryTarget(), access=ACCESS) as (_, address):
        async with raw_client(address) as client:
            request = attrs.evolve(request_of(907), flag=FLAG_ONE_WAY)
            await client.send(signed(request, WRONG_KEY))
            assert await client.receive() is None


async def test_an_admin_comes_in_above_the_limits_and_nobody_else_does(autojump_clock):
    """Who takes all connections, also by a right key, keeps no admin out."""
    autojump_clock.autojump_threshold = 0.02
    ACCESS.attempts._recent.clear()
    config = RemotingConfig(connections_max=1)
    async with (
        serving(InMemoryTarget(), config, access=ACCESS) as (server, address),
        raw_client(address) as client,
    ):
        assert not is_denied(await client.ask(signed(request_of(907), USER_KEY)))
        for key, code in ((None, 1), (WRONG_KEY, 1), (USER_KEY, ResponseCode.SYSTEM_BUSY)):
            async with raw_client(address) as other:
                response = await other.ask(signed(request_of(907), key))
                assert response.code == code
                assert await other.receive() is None
        assert response.remark == (
            "1 clients are connected already; one more needs an admin's access key"
        )
        async with contextlib.AsyncExitStack() as stack:
            silent = [
                await stack.enter_async_context(raw_client(address)) for _ in range(RESERVED_MAX)
            ]
            await eventually(lambda: server.statistics().connections == 1 + RESERVED_MAX)
            async with raw_client(address) as admin:
                began = trio.current_time()
                assert not is_denied(await admin.ask(signed(request_of(907), ADMIN_KEY)))
                assert trio.current_time() - began < PROOF_S
                for peer in silent:
                    await peer.closed()
                assert trio.current_time() - began <= PROOF_S + 1
                await trio.sleep(10)
                assert not is_denied(await admin.ask(signed(request_of(907), ADMIN_KEY)))
                assert not is_denied(await client.ask(signed(request_of(907), USER_KEY)))
                assert server.statistics().connections == 2


async def test_who_has_proven_no_key_makes_room_for_others():
    """A refused request does not make a connection one of a client."""
    config = RemotingConfig(connections_max=1)
    ACCESS.attempts._recent.clear()
    async with serving(InMemoryTarget(), config, access=ACCESS) as (_, address):
        async with raw_client(address) as unproven:
            assert is_denied(await unproven.ask(request_of(907)))
            async with raw_client(address) as client:
                assert not is_denied(await client.ask(signed(request_of(907), USER_KEY)))
                await unproven.closed()
                async with raw_client(address) as third:  # the proven one stays
                    response = await third.ask(signed(request_of(907), USER_KEY))
                    assert response.code == ResponseCode.SYSTEM_BUSY
                    await third.closed()
                assert not is_denied(await client.ask(signed(request_of(907), USER_KEY)))


def test_attempts_are_counted_by_address_for_a_minute():
    """An IPv6 network is one address; the table does not grow beyond its limit."""
    attempts = FailedAttempts()
    delays_s = [attempts.record(f"2001:db8::{number}", number) for number in range(20)]
    assert delays_s[: UNDELAYED_MAX + 6] == [*[0] * UNDELAYED_MAX, 1, 2, 4, 8, 16, 30]
    assert set(delays_s[UNDELAYED_MAX + 6 :]) == {30}
    assert attempts.record("2001:db9::1", 20) == 0
    assert attempts.record("2001:db8::1", PERIOD_S) == 0
    for _ in range(5_000):
        delay_s = attempts.record("2001:db8::1", PERIOD_S)
    assert delay_s == 30
    for number in range(PEERS_MAX + 5):
        attempts.record(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", PERIOD_S)
    assert len(attempts._recent) == PEERS_MAX
    assert attempts.total == 5_022 + PEERS_MAX + 5


# -- the file --------------------------------------------------------------------------------------


async def test_a_changed_file_is_swapped_whole_or_not_at_all(tmp_path, caplog):
    """A bad version stays out, is named in status and once in the log, and a good one ends that."""
    access = await open_access(access_config(tmp_path), real_env())
    before, path = access.table, tmp_path / "acl.yml"

    async def look(times=3):
        for _ in range(times):
            await access.look()
        return access.status().fault

    assert await look() is None
    write_private(path, ACCOUNTS + "- accessKey: the-fourth\n")
    assert await look() == f"{path}, line 11: secretKey is missing"
    assert access.status().hint
    write_private(path, ACCOUNTS)
    path.chmod(0o644)
    assert "has mode 0644: others may read" in await look()
    path.unlink()
    assert "No such file" in await look()
    assert access.table is before
    assert len([r for r in caplog.records if r.msg["event"] == "permissions_not_taken"]) == 3
    write_private(path, ACCOUNTS + f"- accessKey: the-fourth\n  secretKey: {SECRET}\n")
    assert await look(1)
    assert access.table is before  # it may still be being written
    assert await look(1) is None
    assert set(access.table.accounts) == {*before.accounts, "the-fourth"}
    assert SECRET not in f"{access!r} {access.status()} {caplog.text}"


async def test_a_reload_takes_the_file_at_once_or_not_at_all(tmp_path, caplog):
    """Whatever the node's own looks have seen; one line says what came of it."""
    caplog.set_level(logging.INFO, "hastore")
    access = await open_access(access_config(tmp_path), real_env())
    path = tmp_path / "acl.yml"
    write_private(path, ACCOUNTS.replace("the-poor", "the-rich"))
    assert await reload_files(access, None) == Reloaded(("permissions",), {})
    assert "the-rich" in access.table.accounts
    write_private(path, "accounts: []")
    fault = f"{path}, accounts: there is no account"
    assert await reload_files(access, None) == Reloaded((), {"permissions": fault})
    assert "the-rich" in access.table.accounts
    assert access.status().fault == fault
    for _ in range(3):
        await access.look()
    assert await reload_files(None, None) == Reloaded((), {})
    said = [record.msg["event"] for record in caplog.records if record.name != AUDIT_LOGGER]
    assert said == [
        "permissions_taken",
        "reloaded",
        "permissions_not_taken",
        "reloaded",
        "reloaded",
    ]
    assert SECRET not in caplog.text


async def test_a_running_node_takes_a_changed_file(tmp_path, autojump_clock):
    """Without a restart, and without losing a connection."""
    env = attrs.evolve(real_env(), offload=FakeOffload())
    access = await open_access(access_config(tmp_path), env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(access.run)
        write_private(tmp_path / "acl.yml", ACCOUNTS.replace("the-poor", "the-rich"))
        await trio.sleep(3 * LOOK_S)
        assert "the-rich" in access.table.accounts
        nursery.cancel_scope.cancel()


def test_a_file_that_is_not_in_force_is_a_fault_everywhere():
    """In check, doctor and the status table; a node without keys says nothing about them."""
    status = InMemoryTarget().status()
    assert "access" not in {each.subject for each in findings(status, Limits())}
    good = AccessStatus(file="acl.yml", accounts=3, failed_attempts=0, fault=None, hint=None)
    bad = attrs.evolve(good, fault="acl.yml, line 3: no such key: x", hint="remove it")
    tried = attrs.evolve(status, access=attrs.evolve(good, failed_attempts=4))
    said = [each.what for each in findings(tried, Limits()) if each.subject == "access"]
    assert said == ["3 access keys of acl.yml are in force; 4 failed attempts since the start"]
    for access, level in ((good, Level.OK), (bad, Level.FAULT)):
        known = NodeStatus.from_dict(attrs.evolve(status, access=access).to_dict())
        assert known.access == access
        (found,) = [each for each in findings(known, Limits()) if each.subject == "access"]
        assert found.level is level
    assert found.sentence.endswith("an earlier version is: acl.yml, line 3: no such key: x")
    assert found.hint == "remove it"
    text = check_status(known, Limits()).line
    assert text.startswith("WARNING hastore-a its present permissions file is not in force")


async def test_a_version_that_is_put_back_ends_the_fault(tmp_path):
    """The table in force is then what the file says."""
    config = access_config(tmp_path)
    access = await open_access(config, real_env())
    path = tmp_path / "acl.yml"
    kept = path.rename(tmp_path / "kept.yml")
    await access.look()
    assert access.status().fault is not None
    kept.rename(path)
    await access.look()
    assert access.status().fault is None


async def test_a_bad_file_is_an_error_at_the_start(tmp_path):
    """The node does not run without permissions that somebody wanted."""
    config = master_config(tmp_path, "accounts: []")
    with pytest.raises(ConfigError, match="there is no account"):
        async with hastore.open_master(config):
            pass
    config = attrs.evolve(config, access=AccessConfig(file=str(tmp_path / "none.yml")))
    with pytest.raises(ConfigError, match="No such file"):
        async with hastore.open_master(config):
            pass


def test_the_words_of_a_rule_say_what_it_needs():
    """The texts of the docs' table come from the rules themselves."""
    assert RULES[RequestCode.PULL_MESSAGE].text == "SUB on the topic, SUB on the group"
    assert RULES[RequestCode.GET_ROUTEINFO_BY_TOPIC].topic == PUB | SUB
    assert RULES[RequestCode.CONSUMER_SEND_MSG_BACK].text == (
        "SUB on the group, SUB on the topic of the message at the request's offset"
    )
    assert RULES[RequestCode.GET_BROKER_HA_STATUS].text == "any key"


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["AccessKey", "Signature", "topic", "b", "x"]),
        st.text(max_size=12) | st.integers() | st.booleans() | st.none() | st.lists(st.integers()),
        max_size=5,
    ),
    st.sampled_from(sorted(RULES)),
)
def test_no_made_up_fields_are_admitted(fields, code):
    """Whatever a peer sends without the secret is refused, and nothing but that happens."""

    async def ask():
        target = InMemoryTarget()
        async with serving(target, access=ACCESS) as (_, address), raw_client(address) as client:
            ACCESS.attempts._recent.clear()
            request = RemotingCommand(code=int(code), ext_fields=fields)
            response = await client.ask(request)
            assert is_denied(response)
        assert not target.messages

    trio.run(ask)


# -- the audit log -------------------------------------------------------------------------------


@pytest.fixture
def audit_events(monkeypatch):
    """The events of the audit log, as pairs; whatever the level of the other loggers."""
    events = []

    class Kept(logging.Handler):
        def emit(self, record):
            events.append({name: record.msg.get(name) for name in AUDIT_FIELDS})

    log, kept = logging.getLogger(AUDIT_LOGGER), Kept()
    log.addHandler(kept)
    monkeypatch.setattr(log, "level", logging.INFO)
    log.manager._clear_cache()
    yield events
    log.removeHandler(kept)
    log.manager._clear_cache()


AUDIT_FIELDS = ("action", "who", "peer", "what", "outcome", "reason")


def test_every_code_of_an_admin_is_a_change_or_a_read():
    """A code that is in neither table would leave no trace."""
    admins = {code for code, rule in RULES.items() if rule.is_admins}
    assert admins == (set(CHANGES) | set(READS)) - {RequestCode.UPDATE_CONSUMER_OFFSET}
    assert not set(CHANGES) & set(READS)


async def test_every_code_of_an_admin_leaves_an_audit_event(tmp_path, audit_events):
    """Refused ones all do, and those that are carried out do if they change something."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        await put(master, "orders")
        for code, rule in RULES.items():
            for key, who in ((None, "none"), (USER_KEY, USER_KEY.name), (ADMIN_KEY, None)):
                master.access.attempts._recent.clear()
                audit_events.clear()
                async with raw_client(master.address) as client:
                    response = await client.ask(signed(request_of(int(code)), key))
                seen = [(event["who"], event["outcome"]) for event in audit_events]
                if key is not ADMIN_KEY:
                    assert seen == [(who, "refused")] * rule.is_admins, code
                elif code in OWN_REQUESTS:  # RocketMQ's signature does not count for them
                    assert seen == [(ADMIN_KEY.name, "refused")], code
                elif code in CHANGES:
                    outcome = "done" if response.code == 0 else "failed"
                    assert seen == [(ADMIN_KEY.name, outcome)], code
                    assert audit_events[0]["action"] == CHANGES[code][0]
                    assert audit_events[0]["peer"].startswith("127.0.0.1:")
                else:
                    assert not seen, code


async def test_an_audit_event_names_what_changes(tmp_path, audit_events):
    """And a text of a peer is cut, and never fills the log."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        async with raw_client(master.address) as client:
            topic = {"topic": "T" * 9_000, "readQueueNums": "1", "writeQueueNums": "1"}
            await client.ask(signed(request_of(17, **topic), ADMIN_KEY))
            await client.ask(signed(request_of(17, topic="T", readQueueNums="3"), ADMIN_KEY))
        write_private(tmp_path / "acl.yml", "accounts: 7\n")
        await master.access.reload()
    failed, done, reload = audit_events
    assert failed["outcome"] == "failed"
    assert len(failed["what"]["topic"]) < 400 > len(failed["reason"])
    assert (done["outcome"], done["what"]["topic"], done["what"]["readQueueNums"]) == (
        "done", "T", "3",
    )  # fmt: skip
    assert (reload["action"], reload["who"]) == ("reload-permissions", "this node")
    assert (reload["outcome"], reload["what"]) == ("refused", str(tmp_path / "acl.yml"))
    assert "accounts is not a list" in reload["reason"]


async def test_an_unidentified_peer_cannot_fill_the_audit_log_with_a_body(tmp_path, audit_events):
    """What no right signature proves is recorded without its body, and slowed like a wrong key."""
    body = json.dumps({f"n{number}": "x" * 100 for number in range(20)}).encode()
    async with hastore.open_master(master_config(tmp_path)) as master:
        for key in None, attrs.evolve(ADMIN_KEY, secret=USER_KEY.secret), USER_KEY:
            async with raw_client(master.address) as client:
                await client.ask(signed(RemotingCommand(code=200, body=body), key))
        failed = master.access.attempts.total
    unsigned, wrong, user = audit_events
    assert (unsigned["who"], unsigned["what"], wrong["what"]) == ("none", {}, {})
    assert (user["who"], len(user["what"])) == (USER_KEY.name, 20)
    assert failed == 2


async def test_names_in_a_body_are_cut_in_the_audit_log(tmp_path, audit_events):
    """As values are."""
    body = json.dumps({"groupName": "g", "n" * 4_000: 1}).encode()
    async with hastore.open_master(master_config(tmp_path)) as master:
        async with raw_client(master.address) as client:
            await client.ask(signed(RemotingCommand(code=200, body=body), ADMIN_KEY))
    (event,) = audit_events
    assert max(len(name) for name in event["what"]) < 400


async def test_the_first_requests_without_a_key_of_a_connection_are_one_failure(tmp_path):
    """A slave without a key asks four questions in each round, and must go on seeing why."""
    async with hastore.open_master(master_config(tmp_path)) as master:
        for _ in range(5):
            found = await ask_client_port(master.address)
            assert "has no access key" in found.denial
        assert master.access.attempts.total == 5
        async with raw_client(master.address) as client:
            for _ in range(11):
                await client.ask(request_of(907))
        assert master.access.attempts.total == 5 + 4
