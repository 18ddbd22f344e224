"""PULL_MESSAGE on real nodes: finding, refusing, holding, groups, slaves and parallel requests."""

from __future__ import annotations

import itertools
import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hastore.broker.pulls.pull_message_processor import merge_ranges, response_code
from hastore.status import BrokerRole, FlushDiskType, GetMessageStatus
from hastore.store.log import cold_read
from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData, Subscription
from hastore.wire.remoting_codes import ResponseCode, SerializeType
from hastore.wire.remoting_command import RemotingCommand
from tests.broker.pull_answers import bodies, offsets
from tests.patience import WITHIN_S
from tests.support.nodes.harness import SentPieces, flushed_by
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import open_master, open_slave, pull_command, put
from tests.support.waiting import eventually

# -- statuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "at_slave"),
    [
        ("FOUND", 0, 0),
        ("NO_MATCHED_MESSAGE", 20, 20),
        ("MESSAGE_WAS_REMOVING", 20, 20),
        ("OFFSET_FOUND_NULL", 19, 19),
        ("OFFSET_OVERFLOW_BADLY", 21, 20),
        ("OFFSET_OVERFLOW_ONE", 19, 19),
        ("OFFSET_TOO_SMALL", 21, 20),
        ("NO_MATCHED_LOGIC_QUEUE", 21, 20),
        ("NO_MESSAGE_IN_QUEUE", 21, 20),
        ("OFFSET_RESET", 21, 20),
    ],
)
def test_each_status_has_rocketmqs_code(status, code, at_slave):
    """The table of PullMessageProcessor: a slave without the offset names the master."""
    status = GetMessageStatus(status)
    assert response_code(status, 5, is_slave=False) == code
    assert response_code(status, 5, is_slave=True) == at_slave


@pytest.mark.parametrize("status", ["NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE"])
def test_a_pull_from_offset_0_of_an_empty_queue_waits(status):
    """The first message of the queue will have that offset."""
    assert response_code(GetMessageStatus(status), 0, is_slave=False) == 19
    assert response_code(GetMessageStatus(status), 0, is_slave=True) == 19


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=20))
def test_merged_ranges_have_the_same_bytes_and_stay_in_a_file(steps):
    """Adjacent ranges are joined, but not across a file's end."""
    records = []
    offset = 0
    for gap, size in steps:
        offset += 100 if gap else 0
        if offset // 256 != (offset + size - 1) // 256:
            offset = (offset // 256 + 1) * 256
        records.append((offset, size))
        offset += size
    merged = merge_ranges(records, 256)
    as_bytes = [n for begin, size in records for n in range(begin, begin + size)]
    assert [n for begin, size in merged for n in range(begin, begin + size)] == as_bytes
    assert all(begin // 256 == (begin + size - 1) // 256 for begin, size in merged)
    for (begin, size), (next_begin, _) in itertools.pairwise(merged):
        assert begin + size != next_begin or next_begin % 256 == 0


# -- finding -------------------------------------------------------------------------------------


SYNCED = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}  # large answers are sent by sendfile


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("size", [10, 3_000], ids=["copied", "by sendfile"])
async def test_pulled_messages_are_the_stored_bytes(tmp_path, size, serialize_type):
    """The ext fields have the next offset and the bounds of the queue."""
    async with open_master(tmp_path, SYNCED) as master, raw_client(master.address) as client:
        given_bodies = [b"%d" % n * size for n in range(10)]
        results = await put(master, bodies=given_bodies)
        response = await client.ask(pull_command(5, serialize_type=serialize_type))
        begin = results[0].physic_offset
        log = master.commit_log.read(begin, results[-1].next_offset - begin)
    assert (response.code, response.opaque) == (ResponseCode.SUCCESS, 5)
    assert response.body == log
    assert response.ext_fields["suggestWhichBrokerId"] == "0"
    assert offsets(response) == (10, 0, 10)
    assert response.remark == "FOUND"


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_only_flushed_bytes_are_shared_with_a_socket(tmp_path, flush):
    """A socket may keep pages longer than the process lives; unflushed bytes are copied."""
    shared = SentPieces()
    async with (
        open_master(tmp_path, flushed_by(flush), env=shared.env()) as shared.master,
        raw_client(shared.master.address) as client,
    ):
        await put(shared.master, bodies=[bytes(100_000)] * 3)
        response = await client.ask(pull_command())
    assert bodies(response)[0] == bytes(100_000)
    assert bool(shared.ends) is (flush is FlushDiskType.SYNC_FLUSH)
    assert not shared.unflushed


@pytest.fixture(params=[0, 1 << 30], ids=["cold", "hot"])
def _cold_distance(request, monkeypatch):
    """Make all reads cold, or none."""
    monkeypatch.setattr(cold_read, "COLD_DISTANCE", request.param)


@pytest.mark.usefixtures("_cold_distance")
async def test_topics_that_share_the_log_are_separated(tmp_path):
    """Small records lie between others, and large ones are sent by sendfile, across files."""
    async with open_master(tmp_path, SYNCED) as master, raw_client(master.address) as client:
        small, large = [], []
        for n in range(30):
            small.append(b"small %d" % n)
            large.append(b"%d" % n * 100_000)
            await put(master, "S", small[-1:])
            await put(master, "L", large[-1:])
        assert len(master.commit_log.mapped_file_queue.files) > 1
        found = bodies(await client.ask(pull_command(topic="S")))
        response = await client.ask(pull_command(topic="L"))
        found_large = bodies(response)
        while len(found_large) < 30:
            response = await client.ask(pull_command(topic="L", queue_offset=len(found_large)))
            found_large += bodies(response)
    assert found == small
    assert found_large == large


async def test_count_and_size_of_an_answer_are_limited(tmp_path):
    """By the client and by the node, but one message is always returned."""
    async with (
        open_master(tmp_path, pull_count_max=4, pull_size_max=1_000) as master,
        raw_client(master.address) as client,
    ):
        await put(master, bodies=[b""] * 6)
        await put(master, "L", bodies=[bytes(5_000)] * 2)
        counts = [
            len(bodies(await client.ask(pull_command(count_max=count)))) for count in (-1, 3, 99)
        ]
        large = await client.ask(pull_command(topic="L"))
    assert counts == [1, 3, 4]
    assert (len(bodies(large)), offsets(large)[0]) == (1, 1)


@pytest.mark.usefixtures("_cold_distance")
async def test_only_messages_with_a_wanted_tag_are_returned(tmp_path):
    """The next offset is after all messages that were checked."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for n in range(12):
            await put(master, bodies=[b"%d" % n], properties={"TAGS": "abc"[n % 3]})
        both = await client.ask(pull_command(subscription="a || c"))
        none = await client.ask(pull_command(subscription="z"))
        # "Aa" and "BB" have the same hash code.
        await put(master, "H", [b"x"], properties={"TAGS": "Aa"})
        collision = await client.ask(pull_command(topic="H", subscription="BB"))
    assert bodies(both) == [b"%d" % n for n in range(12) if n % 3 != 1]
    assert (none.code, offsets(none)[0], none.body) == (20, 12, b"")
    assert (collision.code, collision.remark) == (20, "NO_MATCHED_MESSAGE")


async def test_a_pull_without_messages_returns_a_next_offset(tmp_path):
    """At the end, after it and in an empty queue, each with its own code."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await put(master, bodies=[b""] * 3)
        asked = [
            await client.ask(pull_command(queue_id=queue_id, queue_offset=offset))
            for queue_id, offset in [(0, 3), (0, 4), (0, 99), (1, 0), (1, 5)]
        ]
    assert [(one.code, one.remark, offsets(one)[0]) for one in asked] == [
        (19, "OFFSET_OVERFLOW_ONE", 3),
        (21, "OFFSET_OVERFLOW_BADLY", 3),
        (21, "OFFSET_OVERFLOW_BADLY", 3),
        (19, "NO_MATCHED_LOGIC_QUEUE", 0),
        (21, "NO_MATCHED_LOGIC_QUEUE", 0),
    ]


# -- refusing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "named"),
    [
        ({"topic": "a b"}, 17, "topic"),
        ({"queue_id": 8}, 1, "it has 8"),
        ({"queue_id": -1}, 1, "queue -1"),
        ({"subscription": None}, 24, "no subscription"),
        ({"expression_type": "SQL92"}, 1, "SQL92"),
    ],
)
async def test_an_invalid_pull_is_refused(tmp_path, changes, code, named):
    """The answer has RocketMQ's code and names the fault, and the connection stays open."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        response = await client.ask(pull_command(3, **changes))
        assert (response.code, response.opaque) == (code, 3)
        assert named in response.remark
        broken = await client.ask(RemotingCommand(code=11, opaque=4, ext_fields={"topic": "T"}))
        assert (broken.code, broken.remark) == (1, "ext field consumerGroup is missing")
        assert (await client.ask(pull_command(5))).code == 19


async def test_permissions_are_enforced(tmp_path):
    """A topic may be unreadable or unwritable, and a group may be barred from consuming."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for topic, perm in [("W", 2), ("R", 4)]:
            fields = {"topic": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": perm}
            assert (await client.ask(RemotingCommand(code=17, ext_fields=fields))).code == 0
        group = json.dumps({"groupName": "closed", "consumeEnable": False}).encode()
        assert (await client.ask(RemotingCommand(code=200, body=group))).code == 0
        assert (await client.ask(pull_command(topic="W"))).code == 16
        assert (await client.ask(send_command(topic="W"))).code == 0
        assert (await client.ask(pull_command(topic="R"))).code == 19
        assert (await client.ask(send_command(topic="R"))).code == 16
        assert (await client.ask(pull_command(group="closed"))).code == 16


# -- holding -------------------------------------------------------------------------------------


async def test_a_held_pull_is_answered_when_a_message_arrives(tmp_path):
    """All pulls of its queue are; a pull of another queue stays held and blocks no sends."""
    async with (
        open_master(tmp_path) as master,
        raw_client(master.address) as one,
        raw_client(master.address) as two,
    ):
        held = pull_command(1, suspend_timeout_ms=50_000)
        await one.send(pull_command(2, queue_id=1, suspend_timeout_ms=50_000), held)
        await two.send(held)
        for client in (one, two):  # once this is answered, the pulls before it are held
            asked = RemotingCommand(code=30, opaque=9, ext_fields={"topic": "T", "queueId": 0})
            assert (await client.ask(asked)).opaque == 9
        await put(master, bodies=[b"new"])
        answers = [await client.receive() for client in (one, two)]
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (1, 0)]
    assert [bodies(answer) for answer in answers] == [[b"new"], [b"new"]]


@pytest.mark.parametrize("limit", ["client's", "node's", "short polling"])
async def test_a_held_pull_is_answered_at_its_time_out(tmp_path, limit, monkeypatch):
    """PULL_NOT_FOUND after the client's time-out, the node's maximum or the short polling time."""
    monkeypatch.setattr("hastore.broker.pulls.pull_message_processor.SHORT_POLLING_S", 0.3)
    remoting = {
        "client's": {},
        "node's": {"suspend_timeout_max_ms": 300},
        "short polling": {"long_polling_enable": False},
    }
    asked_ms = 300 if limit == "client's" else 50_000
    async with (
        open_master(tmp_path, **remoting[limit]) as master,
        raw_client(master.address) as client,
    ):
        began = trio.current_time()
        response = await client.ask(pull_command(suspend_timeout_ms=asked_ms))
        waited = trio.current_time() - began
    assert response.code == 19
    assert 0.29 < waited < 30  # not 50, nor the node's 60


@pytest.mark.usefixtures("_cold_distance")
async def test_a_held_pull_with_tags_waits_for_a_match(tmp_path):
    """Other messages leave it held; the next offset is after them."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await client.send(pull_command(1, subscription="b", suspend_timeout_ms=60_000))
        await client.send(pull_command(2, subscription="c", suspend_timeout_ms=5_000))
        for tag in "aaab":
            await put(master, bodies=[tag.encode()], properties={"TAGS": tag})
        found = await client.receive()
        too_late = await client.receive()
    assert (found.opaque, bodies(found), offsets(found)[0]) == (1, [b"b"], 4)
    assert (too_late.opaque, too_late.code, offsets(too_late)[0]) == (2, 19, 4)


async def test_a_closed_client_loses_its_pulls_and_memberships(tmp_path):
    """The node goes on serving others."""
    async with open_master(tmp_path) as master, raw_client(master.address) as other:
        async with raw_client(master.address) as client:
            body = json.dumps(
                HeartbeatData(client_id="c", consumers=(ConsumerData(group="g"),)).to_dict()
            ).encode()
            await client.ask(RemotingCommand(code=34, body=body))
            await client.send(pull_command(suspend_timeout_ms=20_000))
            asked = RemotingCommand(code=38, ext_fields={"consumerGroup": "g"})
            assert (await other.ask(asked)).code == 0

        async def is_forgotten():
            return (await other.ask(asked)).code != 0

        await eventually(is_forgotten)
        await put(master)
        assert bodies(await other.ask(pull_command())) == [b"body"]


async def test_held_pulls_do_not_delay_a_stop(tmp_path):
    """The node ends at once and closes the connection."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        await client.send(pull_command(suspend_timeout_ms=50_000))
        await client.ask(RemotingCommand(code=105, ext_fields={"topic": "T"}))  # it is held now
        began = trio.current_time()
    assert trio.current_time() - began < 30  # not 50


# -- groups --------------------------------------------------------------------------------------


async def test_a_pull_without_subscription_uses_its_groups(tmp_path):
    """It comes from the heartbeat; one older than the pull's version is refused."""
    subscription = Subscription(topic="T", expression="b", version=5)
    consumer = ConsumerData(group="g", subscriptions=(subscription,))
    body = json.dumps(HeartbeatData(client_id="c", consumers=(consumer,)).to_dict()).encode()
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        for tag in "ab":
            await put(master, bodies=[tag.encode()], properties={"TAGS": tag})
        await client.send(RemotingCommand(code=34, body=body))
        received = [await client.receive(), await client.receive()]
        assert {command.code for command in received} == {40, 0}
        found = await client.ask(pull_command(subscription=None, subscription_version=5))
        stale = await client.ask(pull_command(subscription=None, subscription_version=6))
        other = await client.ask(pull_command(subscription=None, topic="U"))
    assert bodies(found) == [b"b"]
    assert (stale.code, other.code) == (25, 24)


async def test_a_pull_can_commit_an_offset(tmp_path):
    """With its flag a master stores the offset for the group; a slave ignores it."""
    asked = RemotingCommand(
        code=14, ext_fields={"consumerGroup": "g", "topic": "T", "queueId": "0"}
    )
    async with open_master(tmp_path / "m") as master, raw_client(master.address) as client:
        await put(master, bodies=[b""] * 5)
        await client.ask(pull_command())
        before = await client.ask(asked)
        await client.ask(pull_command(commit_offset=3))
        after = await client.ask(asked)
        async with open_slave(tmp_path / "s", master) as slave, raw_client(slave.address) as other:
            await other.ask(pull_command(commit_offset=4))
            at_slave = await other.ask(asked)
    assert [one.ext_fields["offset"] for one in (before, after, at_slave)] == ["0", "3", "0"]


# -- slaves --------------------------------------------------------------------------------------


async def test_a_slave_answers_pulls_like_its_master(tmp_path):
    """Bytes and offsets are the same, and pulls can be held; sends are refused."""
    async with open_master(tmp_path / "m") as master, raw_client(master.address) as client:
        await put(master, bodies=[b"%d" % n for n in range(20)])
        async with open_slave(tmp_path / "s", master) as slave, raw_client(slave.address) as other:
            assert slave.role is BrokerRole.SLAVE
            for command in (pull_command(), pull_command(queue_offset=18, subscription="x")):
                there, here = await client.ask(command), await other.ask(command)
                assert (there.code, there.body, there.ext_fields) == (
                    here.code,
                    here.body,
                    here.ext_fields,
                )
            beyond_end = await other.ask(pull_command(queue_offset=99))
            assert (beyond_end.code, beyond_end.ext_fields["suggestWhichBrokerId"]) == (20, "0")
            refused = await other.ask(send_command(topic="new"))
            assert (refused.code, refused.ext_fields["putStatus"]) == (14, "SERVICE_NOT_AVAILABLE")
            await other.send(pull_command(7, queue_offset=20, suspend_timeout_ms=20_000))
            await put(master, bodies=[b"new"])
            assert bodies(await other.receive()) == [b"new"]


# -- parallel requests ---------------------------------------------------------------------------


async def test_frames_of_one_connection_never_interleave(tmp_path):
    """Sends, large pulls by sendfile and small requests run at once; each gets a whole answer."""
    async with open_master(tmp_path, SYNCED) as master, raw_client(master.address) as client:
        await put(master, "L", [bytes(100_000)] * 40)
        wanted = {}
        for opaque in range(0, 300, 3):
            wanted[opaque] = send_command(opaque, topic="S")
            wanted[opaque + 1] = pull_command(opaque + 1, topic="L", queue_offset=opaque // 10)
            fields = {"topic": "L", "queueId": 0}
            wanted[opaque + 2] = RemotingCommand(code=31, opaque=opaque + 2, ext_fields=fields)
        answers = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, *wanted.values())
            with trio.fail_after(WITHIN_S):
                while len(answers) < len(wanted):
                    answer = await client.receive()
                    answers[answer.opaque] = answer
    assert answers.keys() == wanted.keys()
    assert {answer.code for answer in answers.values()} == {0}
    for opaque in range(1, 300, 3):
        assert set(bodies(answers[opaque])) == {bytes(100_000)}
