"""What one owner can make a node keep: each table has room for others, and forgets."""

import contextlib
import itertools
import json
import time
from types import SimpleNamespace

import attrs
import pytest

import hastore
from hastore.access.permissions_file import parse_permissions
from hastore.broker.access.node_access import NodeAccess
from hastore.broker.groups import (
    consumer_manager,
    rebalance_lock_manager,
    slave_synchronize,
    topic_config_manager,
)
from hastore.broker.groups.topic_config_manager import TopicConfigManager, new_topic_config
from hastore.broker.observe.metrics_text import metrics_text
from hastore.broker.pulls import pull_request_hold_service
from hastore.broker.quotas import MINUTE_S, OWNERS_MAX, Quota
from hastore.config import AccessConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import RequestFailedError
from hastore.status import AppendMessageStatus, BrokerRole
from hastore.topic import SCHEDULE_TOPIC
from hastore.wire.heartbeat_data import GROUPS_MAX
from hastore.wire.remoting_codes import FLAG_ONE_WAY, ResponseCode
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.access_keys import ADMIN_KEY, SECRET, USER_KEY, signed, write_private
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import of_users, pull_command
from tests.support.waiting import eventually

# The user's key may have any group and topic.
ACCOUNTS = f"""\
accounts:
- accessKey: the-admin
  secretKey: {SECRET}-admin
  admin: true
- accessKey: the-user
  secretKey: {SECRET}-user
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""
ACCESS = NodeAccess(real_env(), parse_permissions(ACCOUNTS.encode(), "acl.yml"), None, "acl.yml")
GREEDY, HONEST = USER_KEY, ADMIN_KEY
QUOTAS = RemotingConfig(
    groups_per_owner_max=3,
    new_groups_per_minute_max=2,
    topics_per_owner_max=3,
    new_topics_per_minute_max=2,
    # Clients stay while minutes pass at once.
    idle_timeout_ms=10**9,
    consumer_timeout_ms=10**9,
)


def make_quota(table, **changes):
    fields = {"what": "rows", "name": "rows_max", "rows_max": 2}
    return Quota(**fields | {"has_row": table.__contains__} | changes)


# -- counting --------------------------------------------------------------------------------------


def test_an_owner_has_its_own_part_and_gets_it_back():
    """A row counts while the table has it; the error names the quota and the owner."""
    table = {"a", "b"}
    quota = make_quota(table)
    quota.take("key x", "a", 0)
    quota.take("key x", "b", 0)
    quota.take("key x", "b", 0)
    with pytest.raises(
        RequestFailedError, match=r"quota \[remoting\] rows_max: key x has made 2 rows, the most"
    ):
        quota.take("key x", "c", 0)
    quota.take("key y", "c", 0)
    table.remove("a")
    assert quota.takes("key x", "d", 0)
    assert quota.count("key x") == 2
    quota.release("d")
    quota.release("b")
    assert quota.count("key x") == 0


def test_new_rows_are_counted_by_the_minute():
    """Also of rows that are gone by then; the minute begins with the first."""
    quota = make_quota({}, rows_max=100, new_name="new_max", new_max=2)
    assert [quota.takes("x", row, 5) for row in range(3)] == [True, True, False]
    with pytest.raises(
        RequestFailedError, match=r"quota \[remoting\] new_max: x has made 2 rows within a min"
    ):
        quota.take("x", 3, 5 + MINUTE_S - 1)
    assert quota.takes("y", 4, 5)
    assert quota.takes("x", 5, 5 + MINUTE_S)


def test_what_is_kept_of_owners_and_of_rows_that_are_gone_is_bounded():
    """However many owners come and go."""
    quota = make_quota({}, new_max=1)
    for number in range(OWNERS_MAX + 100):
        quota.take(f"address {number}", number, 0)
    assert len(quota._minutes) == OWNERS_MAX
    assert len(quota._owner_of) == len(quota._rows) <= 2


def test_a_row_that_changes_hands_counts_for_the_last_that_made_it():
    """However often it does, no request looks at more than a few rows."""
    looked_at = []

    def has_row(row):
        looked_at.append(row)
        return True

    quota = Quota("rows", "rows_max", 1_000, has_row)
    for number in range(50):
        for row in range(1_000):
            quota.take(f"address {number % 9}", row, 0)
    assert len(looked_at) == 2 * 50 * 1_000 - 3  # the first two find none and one
    assert [quota.count(f"address {number}") for number in range(9)] == [0] * 4 + [1_000] + [0] * 4


@pytest.mark.parametrize(
    ("setting", "table_max"),
    [
        ("groups_per_owner_max", RemotingConfig().groups_max),
        ("groups_per_owner_max", consumer_manager.CONNECTED_MAX),
        ("topics_per_owner_max", RemotingConfig().topics_max),
        ("offset_keys_per_owner_max", RemotingConfig().offset_keys_max),
        ("offsets_per_owner_max", RemotingConfig().offsets_max),
        ("locks_per_owner_max", rebalance_lock_manager.LOCKS_MAX),
        ("held_pulls_per_owner_max", pull_request_hold_service.HELD_TOTAL_MAX),
    ],
)
def test_an_owner_has_a_sixteenth_of_each_table_by_default(setting, table_max):
    """So it takes many of them to keep others out."""
    assert getattr(RemotingConfig(), setting) * 16 <= table_max


def test_rows_that_are_gone_never_outnumber_the_table():
    """Also if the same owner makes them without end, or rows that stay are always the oldest."""
    table = set(range(100))
    quota = Quota("rows", "rows_max", 10**9, table.__contains__)
    for row in range(100):
        quota.take("x", row, 0)
    for row in range(100, 10_000):
        quota.take("y", row, 0)  # gone at once
        assert len(quota._owner_of) <= 200 + 2
    assert quota.count("x") == 100


def test_an_owner_with_too_many_finds_those_that_are_gone_in_a_few_requests():
    """Each looks at some of its rows only."""
    table = set(range(1_000))
    quota = Quota("rows", "rows_max", 1_000, table.__contains__)
    for row in range(1_000):
        quota.take("x", row, 0)
    assert [quota.takes("x", 1_000, 0) for _ in range(8)] == [False] * 8
    table.remove(999)
    assert sum(quota.takes("x", 1_000 + number, 0) for number in range(4)) == 1


def test_a_used_up_quota_of_locks_lets_those_that_are_held_be_renewed():
    """In whatever order a request names them; a minute later nobody else has one of them."""
    locks = rebalance_lock_manager.RebalanceLockManager(3)
    queues = [rebalance_lock_manager.MessageQueue("T", "b", number) for number in range(5)]
    assert locks.lock("g", queues[1:4], "c", 0, "x") == (queues[1:4], None)
    held, refusal = locks.lock("g", queues, "c", 50, "x")
    assert (held, refusal.quota) == (queues[1:4], "locks_per_owner_max")
    assert locks.lock("g", queues[1:4], "d", 70, "y") == ([], None)
    assert locks.lock("g", queues[:1], "c", 70, "x")[0] == []
    locks.unlock("g", queues[2:4], "c")
    assert locks._quota.count("x") == 1


def test_a_quota_is_as_quick_with_many_rows_as_with_few():
    """Rows that are looked at move to the end: what a request costs must not grow with them."""

    def seconds(rows):
        quota = Quota("rows", "rows_max", 10**9, lambda _row: True)
        for row in range(rows):
            quota.take("x", row, 0)
        begun = time.process_time()
        for row in range(2_000):
            quota.take("x", rows + row, 0)
        return time.process_time() - begun

    assert min(seconds(100_000) for _ in range(3)) < 8 * min(seconds(1_000) for _ in range(3))


# -- over sockets ----------------------------------------------------------------------------------


def master_config(tmp_path):
    return MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "m"), mapped_file_size=1 << 20),
        role=BrokerRole.ASYNC_MASTER,
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        access=AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS)),
    )


def heartbeat(*groups, client_id="c"):
    rows = [{"groupName": group} for group in groups]
    body = {"clientID": client_id, "consumerDataSet": rows}
    return RemotingCommand(code=34, body=json.dumps(body).encode())


def commit(group, *, topic="orders", queue_id=0):
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    return RemotingCommand(code=15, ext_fields=fields | {"commitOffset": "0"})


def route(topic):
    return RemotingCommand(code=105, ext_fields={"topic": topic})


async def ask(client, request, key):
    """Return code and text of an answer."""
    await client.send(signed(request, key))
    while not (response := await client.receive()).is_response:
        pass  # a notification of changed members
    return response.code, response.remark or ""


@contextlib.asynccontextmanager
async def served(config=QUOTAS, *, access=ACCESS, target=None):
    """Serve the tables, and connect two clients."""
    async with (
        serving(target or InMemoryTarget(), config, access=access) as (server, address),
        raw_client(address) as one,
        raw_client(address) as two,
    ):
        yield server.data, one, two


async def test_groups_of_heartbeats_stay_in_memory_until_they_commit(mock_clock):
    """Their retry topics have routes meanwhile; a quota refuses the groups above it only."""
    config = attrs.evolve(QUOTAS, auto_create_topic_enable=False)
    async with served(config) as (data, greedy, honest):
        code, text = await ask(greedy, heartbeat("a", "b", "c"), GREEDY)
        assert code == 1
        assert text == (
            "quota [remoting] new_groups_per_minute_max: access key the-user has made 2 consumer"
            " groups without an offset within a minute, the most that one may: try again later"
        )
        members = RemotingCommand(code=38, ext_fields={"consumerGroup": "b"})
        assert (await ask(greedy, members, GREEDY))[0] == 0, "the others are registered"
        assert (await ask(greedy, heartbeat("a", "b"), GREEDY))[0] == 0
        assert (await ask(honest, heartbeat("honest"), HONEST))[0] == 0
        assert (await ask(honest, route("%RETRY%honest"), HONEST))[0] == 0
        assert not data.groups.groups
        assert not of_users(data.topics.topics)
        data.topics.put(new_topic_config("orders", read_queue_nums=1, write_queue_nums=1))
        assert (await ask(honest, commit("honest"), HONEST))[0] == 0
        assert list(data.groups.groups) == ["honest"]
        assert of_users(data.topics.topics) == ["orders", "%RETRY%honest"]
        mock_clock.jump(MINUTE_S)
        code, text = await ask(greedy, heartbeat("a", "b", "c", "d"), GREEDY)
        assert code == 1
        assert text.startswith("quota [remoting] groups_per_owner_max: access key the-user has")
        # Who leaves groups may join others: those that nobody is in are forgotten.
        assert (await ask(greedy, heartbeat("a"), GREEDY))[0] == 0
        mock_clock.jump(MINUTE_S)
        assert (await ask(greedy, heartbeat("e", "a"), GREEDY))[0] == 0


async def test_groups_that_commit_have_a_quota_too(mock_clock):
    """One commit each would fill the table as well; what was committed goes on."""
    config = attrs.evolve(QUOTAS, topics_per_owner_max=10)  # retry topics count, too
    async with served(config) as (data, greedy, honest):
        assert (await ask(honest, send_command(topic="orders"), HONEST))[0] == 0
        for group in ("a", "b", "c"):
            mock_clock.jump(MINUTE_S)
            assert (await ask(greedy, commit(group), GREEDY))[0] == 0
        mock_clock.jump(MINUTE_S)
        code, text = await ask(greedy, commit("d"), GREEDY)
        assert (code, "quota [remoting] groups_per_owner_max" in text) == (1, True)
        assert (await ask(greedy, commit("a"), GREEDY))[0] == 0
        assert (await ask(honest, commit("honest"), HONEST))[0] == 0
        assert sorted(data.groups.groups) == ["a", "b", "c", "honest"]
        del data.groups.groups["a"]  # as a deletion does
        mock_clock.jump(MINUTE_S)
        assert (await ask(greedy, commit("d"), GREEDY))[0] == 0


@pytest.mark.parametrize("names", ["t{}", "%RETRY%t{}", "%DLQ%t{}"])
async def test_topics_that_messages_make_have_a_quota(mock_clock, names):
    """A message to an existing topic is stored, and an admin makes any number."""
    async with served() as (data, greedy, honest):
        sent = [
            await ask(greedy, send_command(topic=names.format(number)), GREEDY)
            for number in range(3)
        ]
        assert [code for code, _ in sent] == [0, 0, 1]
        assert "quota [remoting] new_topics_per_minute_max: access key the-user" in sent[2][1]
        mock_clock.jump(MINUTE_S)
        sent = [
            await ask(greedy, send_command(topic=names.format(number)), GREEDY)
            for number in range(4)
        ]
        assert [code for code, _ in sent] == [0, 0, 0, 1]
        assert "quota [remoting] topics_per_owner_max: access key the-user" in sent[3][1]
        assert (await ask(honest, send_command(topic="honest"), HONEST))[0] == 0
        for number in range(5):
            fields = {"topic": f"made{number}", "readQueueNums": "1", "writeQueueNums": "1"}
            request = RemotingCommand(code=17, ext_fields=fields)
            assert (await ask(honest, request, HONEST))[0] == 0
        assert len(of_users(data.topics.topics)) == 9


async def test_without_keys_an_address_has_the_quota(mock_clock):
    """All connections of it together, whatever key they name."""
    async with served(access=None) as (data, one, two):
        assert (await ask(one, send_command(topic="a"), None))[0] == 0
        assert (await ask(two, send_command(topic="b"), USER_KEY))[0] == 0
        code, text = await ask(two, send_command(topic="c"), ADMIN_KEY)
        assert (code, "address 127.0.0.1 has made 2 topics" in text) == (1, True)
        assert of_users(data.topics.topics) == ["a", "b"]


async def test_offsets_have_a_quota(mock_clock):
    """Pairs of topic and group, and queues; known ones are still committed."""
    config = attrs.evolve(QUOTAS, offset_keys_per_owner_max=2, offsets_per_owner_max=4)
    async with served(config) as (_, greedy, honest):
        requests = [commit("g", topic=topic) for topic in ("a", "b", "c", "a")]
        requests += [commit("g", topic="a", queue_id=number) for number in range(1, 4)]
        answers = [await ask(greedy, request, GREEDY) for request in requests]
        assert [code for code, _ in answers] == [0, 0, 1, 0, 0, 0, 1]
        assert (
            "quota [remoting] offset_keys_per_owner_max: access key the-user has made 2 pairs"
            in answers[2][1]
        )
        assert "quota [remoting] offsets_per_owner_max: access key the-user" in answers[6][1]
        assert (await ask(honest, commit("g", topic="c"), HONEST))[0] == 0


@pytest.mark.parametrize(
    ("changes", "request_", "named"),
    [
        ({}, commit("ghost", queue_id=70_000), "queue 70000 is not in 0 to"),
        ({"offset_keys_per_owner_max": 1}, commit("ghost"), "offset_keys_per_owner_max"),
        ({"offsets_per_owner_max": 1}, commit("ghost"), "offsets_per_owner_max"),
        ({"groups_per_owner_max": 1}, commit("ghost"), "groups_per_owner_max"),
        ({"topics_per_owner_max": 2}, commit("ghost"), "topics_per_owner_max"),
        ({"new_groups_per_minute_max": 1}, commit("ghost"), "new_groups_per_minute_max"),
        ({"new_topics_per_minute_max": 2}, commit("ghost"), "new_topics_per_minute_max"),
    ],
)
async def test_a_refused_commit_makes_nothing(changes, request_, named):
    """No pair, no offset, no group and no retry topic; nor do they count."""
    config = attrs.evolve(RemotingConfig(), **changes)
    async with served(config) as (data, greedy, _):
        assert (await ask(greedy, send_command(topic="orders"), GREEDY))[0] == 0
        assert (await ask(greedy, commit("g"), GREEDY))[0] == 0
        for _ in range(2):
            code, text = await ask(greedy, request_, GREEDY)
            assert (code, named in text) == (1, True), text
            assert data.offsets.offsets == {"orders@g": {0: 0}}
            assert list(data.groups.groups) == ["g"]
            assert of_users(data.topics.topics) == ["orders", "%RETRY%g"]
            quotas = (data.offsets.key_quota, data.offsets.offset_quota, data.groups.quota)
            assert [quota.count("access key the-user") for quota in quotas] == [1, 1, 1]
            assert data.topics.quota.count("access key the-user") == 2


async def test_an_admins_commits_count_for_no_quota():
    """Whoever restores many groups' offsets is not refused half-way; others' quotas stay whole."""
    config = RemotingConfig(
        groups_per_owner_max=1,
        topics_per_owner_max=2,
        offset_keys_per_owner_max=1,
        offsets_per_owner_max=1,
    )
    async with served(config) as (data, greedy, admin):
        assert (await ask(greedy, send_command(topic="orders"), GREEDY))[0] == 0
        for number in range(4):
            request = commit(f"g{number % 2}", queue_id=number)
            assert (await ask(admin, request, ADMIN_KEY))[0] == 0
        # On one connection the key of each request counts.
        assert (await ask(greedy, commit("mine"), GREEDY))[0] == 0
        assert (await ask(greedy, commit("g0", queue_id=7), GREEDY))[0] == 1
        assert (await ask(greedy, commit("g0", queue_id=7), ADMIN_KEY))[0] == 0
        assert (await ask(greedy, commit("g0", queue_id=8), GREEDY))[0] == 1
        assert list(data.groups.groups) == ["g0", "g1", "mine"]
        assert data.groups.quota.count("access key the-admin") == 0


async def test_a_refused_commit_without_an_answer_is_logged_and_counted(tmp_path, caplog):
    """One line a minute names the owner and the quota; status and metrics count each of them."""
    remoting = RemotingConfig(offsets_per_owner_max=2, topics_per_owner_max=2)
    config = attrs.evolve(master_config(tmp_path), remoting=remoting)
    async with hastore.open_master(config) as master, raw_client(master.address) as client:
        assert (await ask(client, send_command(topic="orders"), GREEDY))[0] == 0
        assert master.status().quota_refusals == {}
        for number in range(6):
            request = attrs.evolve(commit("g", queue_id=number), flag=FLAG_ONE_WAY)
            await client.send(signed(request, GREEDY))
        assert (await ask(client, send_command(topic="one-more"), GREEDY))[0] == 1
        status = master.status()
    assert status.quota_refusals == {"offsets_per_owner_max": 4, "topics_per_owner_max": 1}
    page = metrics_text(status).decode()
    assert 'hastore_quota_refusals_total{quota="offsets_per_owner_max"} 4.0' in page
    events = [each.msg for each in caplog.records if each.msg["event"] == "quota_used_up"]
    assert [event["kind"] for event in events] == [
        "offsets_per_owner_max of access key the-user",
        "topics_per_owner_max of access key the-user",
    ]
    assert events[0]["reason"] == (
        "quota [remoting] offsets_per_owner_max: access key the-user has made 2 consumer offsets,"
        " the most that one may have"
    )


async def test_locks_have_a_quota(mock_clock):
    """Renewals do not count, lapsed and released ones no longer do."""

    def lock(*queues, code=41, group="g"):
        rows = [{"topic": "T", "brokerName": "b", "queueId": queue} for queue in queues]
        body = {"consumerGroup": group, "clientId": "c", "mqSet": rows}
        return RemotingCommand(code=code, body=json.dumps(body).encode())

    async def locked(client, request, key):
        response = await client.ask(signed(request, key))
        if response.code:
            return response.remark
        return len(json.loads(response.body)["lockOKMQSet"])

    target = InMemoryTarget()
    config = attrs.evolve(QUOTAS, locks_per_owner_max=2)
    async with served(config, target=target) as (_, greedy, honest):
        assert await locked(greedy, lock(0, 1, 2), GREEDY) == 2
        assert await locked(greedy, lock(0, 1), GREEDY) == 2
        assert target.quota_refusals.counts == {"locks_per_owner_max": 1}, "beside those renewed"
        assert await locked(greedy, lock(3), GREEDY) == (
            "quota [remoting] locks_per_owner_max: access key the-user has made 2 locks of queues,"
            " the most that one may have"
        )
        assert await locked(honest, lock(3, group="honest"), HONEST) == 1
        assert (await ask(greedy, lock(0, code=42), GREEDY))[0] == 0
        mock_clock.jump(2)
        assert await locked(greedy, lock(3), GREEDY) == 1
        mock_clock.jump(rebalance_lock_manager.LOCK_LAPSE_S + 1)
        assert await locked(greedy, lock(4, 5), GREEDY) == 2


@pytest.mark.parametrize(
    ("limit", "value", "has_other_group"),
    [
        ("offsets_per_owner_max", 1, True),
        ("topics_per_owner_max", 1, False),
        ("offset_keys_max", 1, True),
        ("offsets_max", 1, True),
        ("groups_max", 1, True),
        ("topics_max", 2, False),  # with the reply topic
    ],
)
async def test_a_pull_is_answered_though_its_commit_is_refused(
    tmp_path, limit, value, has_other_group
):
    """By a quota, or by a full table: the messages come, and the refusal is counted and logged."""
    config = attrs.evolve(master_config(tmp_path), remoting=RemotingConfig(**{limit: value}))
    async with hastore.open_master(config) as master, raw_client(master.address) as client:
        assert (await ask(client, send_command(topic="orders"), GREEDY))[0] == 0
        if has_other_group:
            assert (await ask(client, commit("known"), GREEDY))[0] == 0
        pull = pull_command(
            7, topic="orders", group="g", commit_offset=0, suspend_timeout_ms=60_000
        )
        answer = await client.ask(signed(pull, GREEDY))
        assert (answer.code, b"body" in answer.body) == (0, True), answer.remark
        offset = RemotingCommand(
            code=14, ext_fields={"consumerGroup": "g", "topic": "orders", "queueId": "0"}
        )
        assert (await client.ask(signed(offset, GREEDY))).ext_fields == {"offset": "0"}
        groups = await client.ask(signed(RemotingCommand(code=201), ADMIN_KEY))
        assert "g" not in json.loads(groups.body)["subscriptionGroupTable"]
        assert master.status().quota_refusals == {limit: 1}


async def test_a_refused_send_back_makes_nothing(tmp_path):
    """Not the group whose retry topic finds no room; and the group keeps its member."""
    remoting = RemotingConfig(topics_per_owner_max=1)
    config = attrs.evolve(master_config(tmp_path), remoting=remoting)
    async with hastore.open_master(config) as master, raw_client(master.address) as client:
        sent = await client.ask(signed(send_command(topic="orders"), GREEDY))
        offset = int(sent.ext_fields["msgId"][16:], 16)
        assert (await ask(client, heartbeat("g"), GREEDY))[0] == 0
        for delay_level in ("0", "-1"):
            fields = {"group": "g", "offset": str(offset), "originTopic": "orders"}
            back = RemotingCommand(code=36, ext_fields=fields | {"delayLevel": delay_level})
            code, text = await ask(client, back, GREEDY)
            assert (code, "topics_per_owner_max" in text) == (1, True), text
            groups = await client.ask(signed(RemotingCommand(code=201), ADMIN_KEY))
            assert json.loads(groups.body)["subscriptionGroupTable"] == {}
            assert (await ask(client, heartbeat("g"), GREEDY))[0] == 0
            members = RemotingCommand(code=38, ext_fields={"consumerGroup": "g"})
            answer = await client.ask(signed(members, GREEDY))
            assert json.loads(answer.body) == {"consumerIdList": ["c"]}
        assert master.status().quota_refusals == {"topics_per_owner_max": 2}


async def test_held_pulls_have_a_quota(tmp_path):
    """One too many is answered at once, and other owners' pulls are held."""
    config = attrs.evolve(
        master_config(tmp_path), remoting=RemotingConfig(held_pulls_per_owner_max=2)
    )
    async with (
        hastore.open_master(config) as master,
        raw_client(master.address) as one,
        raw_client(master.address) as two,
        raw_client(master.address) as honest,
    ):
        pulls = [
            pull_command(number, topic="orders", suspend_timeout_ms=60_000) for number in range(5)
        ]
        await one.send(*(signed(pull, GREEDY) for pull in pulls[:3]))
        response = await one.receive()
        assert (response.opaque, response.code) == (2, ResponseCode.PULL_NOT_FOUND)
        assert (await ask(two, pulls[3], GREEDY))[0] == ResponseCode.PULL_NOT_FOUND
        await honest.send(signed(pulls[4], HONEST))
        assert (await ask(two, send_command(topic="orders"), HONEST))[0] == 0
        assert [(await one.receive()).code for _ in range(2)] == [0, 0]
        assert (await honest.receive()).code == 0, "it was held, or came late"


async def test_a_key_that_fills_the_tables_keeps_no_one_out(tmp_path):
    """Neither before a restart nor after it: what heartbeats named is not kept on the disk."""
    for _ in range(2):
        async with (
            hastore.open_master(master_config(tmp_path)) as master,
            raw_client(master.address) as greedy,
            raw_client(master.address) as honest,
        ):
            for number in range(33):
                groups = [f"x{number}-{n}" for n in range(GROUPS_MAX)]
                code, text = await ask(greedy, heartbeat(*groups), GREEDY)
            assert code == 1
            assert "quota [remoting] new_groups_per_minute_max" in text
            assert (await ask(honest, send_command(topic="orders"), HONEST))[0] == 0
            assert (await ask(honest, heartbeat("billing"), HONEST))[0] == 0
            assert (await ask(honest, commit("billing"), HONEST))[0] == 0
            groups = await honest.ask(signed(RemotingCommand(code=201), HONEST))
            assert list(json.loads(groups.body)["subscriptionGroupTable"]) == ["billing"]


# -- topics that are not used ----------------------------------------------------------------------

FULL = 6  # topics
EMPTY_STORE = SimpleNamespace(
    consume_queues=(),
    config=StoreConfig(data_dir="unused"),
    commit_log=SimpleNamespace(next_queue_offsets=lambda _topic: {}),
)


def without_message(topic, **properties):
    """Return a message that makes its topic and is refused then."""
    return send_command(topic=topic, properties={"long": "x" * 40_000, **properties})


def delayed(topic):
    return send_command(topic=topic, properties={"DELAY": "18"})


@pytest.fixture
def small_table(monkeypatch):
    """Make a minute short, for a small table of topics."""
    monkeypatch.setattr(topic_config_manager, "FORGOTTEN_AFTER_S", 0.0)
    monkeypatch.setattr(topic_config_manager, "_LOOK_AGAIN_S", 0.0)


@contextlib.asynccontextmanager
async def node_with_client(tmp_path, **remoting):
    remoting.setdefault("topics_max", FULL + 1)  # with the reply topic
    store = StoreConfig(data_dir=str(tmp_path / "m"), mapped_file_size=1 << 20)
    config = MasterConfig(
        store=store,
        role=BrokerRole.ASYNC_MASTER,
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        remoting=RemotingConfig(**remoting),
    )
    async with hastore.open_master(config) as master, raw_client(master.address) as client:
        yield master, client


async def topics_of(client):
    answer = await client.ask(RemotingCommand(code=21))
    return set(of_users(json.loads(answer.body)["topicConfigTable"]))


@pytest.mark.usefixtures("small_table")
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_full_table_forgets_topics_that_were_never_used(tmp_path, restarts):
    """A topic stays that has a message, an offset or a consumer, or that an operator has made."""
    used = {"message", "delayed", "offset", "operator"}
    if not restarts:
        used.add("consumer")
    async with contextlib.AsyncExitStack() as stack:
        master, client = await stack.enter_async_context(node_with_client(tmp_path))
        for topic in sorted(used - {"operator"}):
            assert (await client.ask(without_message(topic))).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await client.ask(send_command(topic="message"))).code == 0
        assert (await client.ask(delayed("delayed"))).code == 0
        # Without a retry topic: an administrator has made the group so.
        group = {"groupName": "g", "retryQueueNums": 0}
        assert (
            await client.ask(RemotingCommand(code=200, body=json.dumps(group).encode()))
        ).code == 0
        assert (await client.ask(commit("g", topic="offset"))).code == 0
        fields = {"topic": "operator", "readQueueNums": "4", "writeQueueNums": "4"}
        assert (await client.ask(RemotingCommand(code=17, ext_fields=fields))).code == 0
        if restarts:
            await stack.aclose()
            master, client = await stack.enter_async_context(node_with_client(tmp_path))
        else:
            rows = [{"groupName": "h", "subscriptionDataSet": [{"topic": "consumer"}]}]
            body = {"clientID": "c", "consumerDataSet": rows}
            beat = RemotingCommand(code=34, body=json.dumps(body).encode())
            assert (await ask(client, beat, None))[0] == 0
        for number in range(20):
            answer = await client.ask(without_message(f"junk{number}"))
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL, answer.remark
            assert used < await topics_of(client)
        log = master.message_store.commit_log
        assert set(log._topics) == {"message", SCHEDULE_TOPIC}, "refused messages leave no row"
        assert (await client.ask(route("junk0"))).code == 0, "as before its first message"
        assert (await client.ask(send_command(topic="honest"))).code == 0
        assert await topics_of(client) >= used | {"honest"}
        assert master.status().quota_refusals == {}


async def test_a_topic_has_a_minute_for_its_first_message(mock_clock):
    """Then it is forgotten, if the table is full; a look that finds none is not made again soon."""
    target = InMemoryTarget(message_store=EMPTY_STORE)
    config = RemotingConfig(topics_max=3)  # with the reply topic
    async with served(config, target=target) as (data, client, _):
        for topic, code in (("a", 0), ("b", 0), ("c", 1)):
            assert (await ask(client, send_command(topic=topic), GREEDY))[0] == code
            mock_clock.jump(30 if topic == "a" else 0)
        assert target.quota_refusals.counts == {"topics_max": 1}
        mock_clock.jump(topic_config_manager.FORGOTTEN_AFTER_S - 30 - 0.5)
        assert (await ask(client, send_command(topic="c"), GREEDY))[0] == 1
        mock_clock.jump(0.6)
        assert (await ask(client, send_command(topic="c"), GREEDY))[0] == 1, "looked just now"
        mock_clock.jump(1)
        assert (await ask(client, send_command(topic="c"), GREEDY))[0] == 0
        assert of_users(data.topics.topics) == ["b", "c"]
        assert data.topics.quota.count("access key the-user") == 2


def wait_for_a_file(master):
    """Have each message find its file full once, as if it were."""
    puts, waited = master.put_message, set()
    append, full = puts._append_message, AppendMessageStatus.END_OF_FILE

    def first_full(message):
        if id(message) in waited:
            return append(message)
        waited.add(id(message))
        return puts.commit_log._refuse(full)

    puts._append_message = first_full


@pytest.mark.usefixtures("small_table")
@pytest.mark.parametrize("waits", [False, True], ids=["at-once", "after-a-wait"])
async def test_only_delayed_messages_that_are_stored_keep_their_topics(tmp_path, waits):
    """A refused one, or one with a level that is no delay, does not."""
    async with node_with_client(tmp_path) as (master, client):
        if waits:
            wait_for_a_file(master)
        for number in range(FULL):
            request = without_message(f"refused{number}", DELAY="1")
            assert (await client.ask(request)).code == ResponseCode.MESSAGE_ILLEGAL
        for topic, level in (("none", "0"), ("negative", "-1"), ("delayed", "1")):
            request = send_command(topic=topic, properties={"DELAY": level})
            assert (await client.ask(request)).code == 0
        rows = json.loads((await client.ask(RemotingCommand(code=21))).body)["topicConfigTable"]
        kept = [name for name in rows if not rows[name].get("autoCreated")]
        assert of_users(kept) == ["delayed"]


async def test_a_look_for_unused_topics_covers_the_table(mock_clock):
    """The oldest are forgotten first.  A look that has seen all topics is not made again soon."""
    topics_max = RemotingConfig().topics_max
    manager = TopicConfigManager(4, True, lambda: 0, topics_max)
    names = [f"t{number}" for number in range(topics_max)]
    row = {"readQueueNums": 4, "writeQueueNums": 4, "autoCreated": True}
    manager.load({"topicConfigTable": dict.fromkeys(names, row)})
    unused, looks = set(names[-1_030:]), []
    manager.users.append(lambda topic: looks.append(topic) or topic not in unused)

    numbers = itertools.count()

    def make(count):
        for _ in range(count):
            manager.find_for_send(f"new{next(numbers)}", "owner")

    make(1)
    assert [name for name in names if name in manager.topics and name in unused] == names[-6:]
    make(1_023)
    assert len(looks) == len(names) - 6, "one look"
    make(6)
    assert not unused & manager.topics.keys()
    for wait_s, looks_again in ((0, False), (1, True), (0, False)):
        mock_clock.jump(wait_s)
        looks.clear()
        with pytest.raises(RequestFailedError, match="already has 16384 topics"):
            make(1)
        assert bool(looks) is looks_again


@pytest.mark.usefixtures("small_table")
async def test_a_slave_without_its_master_forgets_no_topic(tmp_path, monkeypatch):
    """Also where its table is full: all of these have messages."""
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.02)
    topics = {f"t{number}" for number in range(FULL)}
    async with node_with_client(tmp_path) as (master, client):
        slave_config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "s"), mapped_file_size=1 << 20),
            master=master.ha_address,
            master_client=master.address,
            listen=ANY_PORT,
        )
        async with hastore.open_slave(slave_config) as slave:
            for topic in sorted(topics):
                assert (await client.ask(send_command(topic=topic))).code == 0
            copied = slave.slave_synchronize.data.topics
            await eventually(lambda: set(of_users(copied.topics)) == topics)
            queues = slave.message_store.consume_queues
            await eventually(lambda: {queue.topic for queue in queues} == topics)
    small = attrs.evolve(slave_config, remoting=RemotingConfig(topics_max=1))
    async with hastore.open_slave(small) as slave, raw_client(slave.address) as reader:
        assert await topics_of(reader) == topics


@pytest.mark.usefixtures("small_table")
async def test_topics_that_would_not_come_back_are_not_forgotten(tmp_path):
    """The node that has made them makes none any more."""
    async with node_with_client(tmp_path) as (_, client):
        for number in range(FULL):
            await client.ask(without_message(f"t{number}"))
    async with node_with_client(tmp_path, auto_create_topic_enable=False) as (_, client):
        fields = {"topic": "operator", "readQueueNums": "4", "writeQueueNums": "4"}
        answer = await client.ask(RemotingCommand(code=17, ext_fields=fields))
        assert (answer.code, f"already has {FULL + 1} topics" in (answer.remark or "")) == (1, True)
        assert await topics_of(client) == {f"t{number}" for number in range(FULL)}


@pytest.mark.usefixtures("small_table")
async def test_slaves_forget_unused_topics_with_their_master(tmp_path, monkeypatch):
    """A pull that waits there goes on waiting; a promoted slave forgets topics, too."""
    monkeypatch.setattr(slave_synchronize, "INTERVAL_S", 0.02)
    async with node_with_client(tmp_path) as (master, client):
        slave_config = SlaveConfig(
            store=StoreConfig(data_dir=str(tmp_path / "s"), mapped_file_size=1 << 20),
            master=master.ha_address,
            master_client=master.address,
            listen=ANY_PORT,
        )
        async with (
            hastore.open_slave(slave_config) as slave,
            raw_client(slave.address) as reader,
        ):
            assert (await client.ask(send_command(topic="used"))).code == 0
            copied = slave.slave_synchronize.data.topics
            for number in range(FULL - 1):
                await client.ask(without_message(f"t{number}"))
            await eventually(lambda: len(of_users(copied.topics)) == FULL)
            assert (await reader.ask(delayed("t0"))).code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert copied.topics["t0"].auto_created, "as on the master"
            await reader.send(pull_command(7, topic="t0", suspend_timeout_ms=60_000))
            await client.ask(without_message("new"))
            left = await topics_of(client)
            assert left == {"used", "new"}
            await eventually(lambda: set(of_users(copied.topics)) == left)
            answer = await reader.ask(RemotingCommand(code=28, opaque=8))
            assert (answer.opaque, answer.code) == (8, 0), "and not that of the pull"
            await eventually(lambda: slave.message_store.max_offset_in_queue("used", 0) == 1)
    (tmp_path / "m").rename(tmp_path / "old")
    (tmp_path / "s").rename(tmp_path / "m")
    async with node_with_client(tmp_path) as (_, client):
        for number in range(FULL):
            await client.ask(without_message(f"again{number}"))
        left = await topics_of(client)
        assert ("used" in left, "new" in left, len(left) <= FULL) == (True, False, True)
