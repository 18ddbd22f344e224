"""What decides whether a node takes a message: RocketMQ's rules about properties, topics, queues.

Source: RocketMQ 4.9.8 and 5.3.3 (``AbstractSendMessageProcessor``, ``SendMessageProcessor``,
``TopicValidator``).
"""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from hastore.client.producer import Producer
from hastore.config import RemotingConfig
from hastore.message import Message
from hastore.status import BrokerRole, PutMessageStatus
from hastore.store.record import layout
from hastore.wire.config_tables import TopicConfig
from hastore.wire.frame_reader import encode_command
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.send_message import write_batch
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.nodes.reading import dispatched, open_master

HALF = {"TRAN_MSG": "true", "PGROUP": "p"}
CLOSED = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
]
OPEN = [
    "RMQ_SYS_TRACE_TOPIC",
    "BenchmarkTest",
    "TBW102",
    "DefaultCluster_REPLY_TOPIC",
    "rmq_sys_SYNC_BROKER_MEMBER_a",
]


async def answer_to(*commands, config=None, topics=()):
    """Send requests to a node that has ``topics``; return the answers and what was stored."""
    target = InMemoryTarget()
    async with (
        serving(target, config or RemotingConfig()) as (server, address),
        raw_client(address) as client,
    ):
        for topic in topics:
            server.data.topics.put(topic)
        answers = [await client.ask(command) for command in commands]
    return answers, target.messages


def batch_command(topic, queue_id, *messages):
    command = send_command(topic=topic, queue_id=queue_id, body=write_batch(messages))
    return attrs.evolve(command, code=320)


# -- half messages -------------------------------------------------------------------------------


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("value", ["true", "TRUE", "True"])
async def test_the_property_alone_makes_a_half_message(value, serialize_type):
    """It is refused with 16, whatever its sysFlag says, in the fast and in the general form."""
    half = HALF | {"TRAN_MSG": value}
    (plain, flagged, good), stored = await answer_to(
        send_command(1, properties=half, serialize_type=serialize_type),
        send_command(2, properties=half, ext_fields={"f": "4"}, serialize_type=serialize_type),
        send_command(3, properties=HALF | {"TRAN_MSG": "false"}, serialize_type=serialize_type),
    )
    assert (plain.code, flagged.code, good.code) == (16, 16, 0)
    assert "transactional" in plain.remark
    assert len(stored) == 1


@pytest.mark.parametrize(
    ("reconsume_times", "delay", "code"),
    [("2", "3", 0), ("0", "3", 16), ("2", "0", 16), ("2", None, 16), ("2", "x", 16)],
)
async def test_the_retry_of_an_old_client_is_not_a_half_message(reconsume_times, delay, code):
    """It keeps the property of the message, and has a delay and a count of retries."""
    properties = HALF if delay is None else HALF | {"DELAY": delay}
    (answer,), _ = await answer_to(
        send_command(properties=properties, ext_fields={"j": reconsume_times})
    )
    assert answer.code == code


@pytest.mark.parametrize("sys_flag", [0, 4])
async def test_the_retry_of_an_old_client_waits_for_its_delay(tmp_path, sys_flag):
    """Clients before 4.6.1 set the bits as well, as the property says: it was in no queue."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        command = send_command(
            topic="%RETRY%g",
            properties=HALF | {"DELAY": "3"},
            ext_fields={"j": "2", "f": str(sys_flag)},
        )
        assert (await client.ask(command)).code == 0
        await dispatched(master, master.message_store.commit_log.max_offset)
        queues = master.message_store.consume_queues
        assert [(queue.topic, queue.max_offset) for queue in queues] == [("SCHEDULE_TOPIC_XXXX", 1)]


async def test_a_batch_is_not_examined_for_half_messages():
    """As RocketMQ does not; a batch whose sysFlag says so is refused, as there."""
    (answer,), stored = await answer_to(batch_command("T", 0, Message("T", b"1", properties=HALF)))
    assert answer.code == 0
    assert len(stored) == 1


@pytest.mark.parametrize("sys_flag", [4, 12])
async def test_a_transactions_bits_alone_are_stored_in_no_queue(tmp_path, sys_flag):
    """The answer says stored; the next message has the queue offset."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        marked = await client.ask(send_command(1, ext_fields={"f": str(sys_flag)}))
        plain = await client.ask(send_command(2))
        assert (marked.code, plain.code) == (0, 0)
        assert plain.ext_fields["queueOffset"] == "0"
        await dispatched(master, master.message_store.commit_log.max_offset)
        assert master.message_store.consume_queues.find("T", 0).max_offset == 1


async def test_a_batch_with_a_transactions_bits_is_illegal(tmp_path):
    """Nothing of it is stored."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        command = batch_command("T", 0, Message("T", b"1"))
        command.ext_fields["f"] = str(layout.TRANSACTION_PREPARED_TYPE)
        answer = await client.ask(command)
        assert answer.code == 13
        assert master.message_store.commit_log.max_offset == 0


# -- topics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", CLOSED)
async def test_six_system_topics_take_no_producers(topic):
    """Single messages and batches are answered 16 with RocketMQ's remark, rows or not."""
    answers, stored = await answer_to(
        send_command(1, topic=topic),
        batch_command(topic, 0, Message(topic, b"1")),
        topics=[TopicConfig(topic=topic, read_queue_nums=4, write_queue_nums=4)],
    )
    remark = f"Sending message to topic[{topic}] is forbidden."
    assert [(answer.code, answer.remark) for answer in answers] == [(16, remark)] * 2
    assert not stored


@pytest.mark.parametrize("topic", OPEN)
async def test_other_topics_of_the_broker_take_producers(topic):
    """Traces, benchmarks, the default topic, replies."""
    (answer, beyond), stored = await answer_to(
        send_command(1, topic=topic), send_command(2, topic=topic, queue_id=99)
    )
    assert (answer.code, beyond.code) == (0, 1)
    assert [message.topic for message in stored] == [topic]


async def test_the_default_topic_gets_no_row():
    """A row would change the route of topics that do not exist."""
    target = InMemoryTarget()
    async with serving(target) as (server, address), raw_client(address) as client:
        assert (await client.ask(send_command(topic="TBW102"))).code == 0
        assert "TBW102" not in server.data.topics.topics


async def test_the_default_topic_is_not_there_without_new_topics():
    """As in RocketMQ with ``autoCreateTopicEnable`` off."""
    config = RemotingConfig(auto_create_topic_enable=False)
    (answer,), stored = await answer_to(send_command(topic="TBW102"), config=config)
    assert answer.code == 17
    assert not stored


# -- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(
    ("write", "read", "queue_id", "code"),
    [
        (8, 8, 7, 0),
        (8, 8, 8, 1),
        (8, 8, 99, 1),
        (2, 4, 3, 0),  # between the two
        (2, 4, 4, 1),
        (4, 2, 3, 0),
    ],
)
async def test_a_queue_beyond_the_topics_is_illegal(write, read, queue_id, code, serialize_type):
    """The message goes to no other queue; single messages and batches are treated alike."""
    topic = TopicConfig(topic="T", read_queue_nums=read, write_queue_nums=write)
    answers, stored = await answer_to(
        send_command(1, queue_id=queue_id, serialize_type=serialize_type),
        batch_command("T", queue_id, Message("T", b"1")),
        topics=[topic],
    )
    assert [answer.code for answer in answers] == [code] * 2
    if code:
        queues = max(write, read)
        remark = f"request queueId[{queue_id}] is illegal: topic T has {queues} queues"
        assert {answer.remark for answer in answers} == {remark}
        assert not stored
    else:
        assert [message.queue_id for message in stored] == [queue_id] * 2


@pytest.mark.parametrize(("perm", "queue_id"), [(6, 99), (4, 0)])
async def test_a_slave_with_old_topics_names_its_role(perm, queue_id):
    """The topic may have more queues, or be writable, on the master: the message belongs there."""
    refusal = PutMessageStatus.SERVICE_NOT_AVAILABLE
    target = InMemoryTarget(role=BrokerRole.SLAVE, answer=refusal)
    async with serving(target) as (server, address), raw_client(address) as client:
        server.data.topics.put(
            TopicConfig(topic="T", read_queue_nums=8, write_queue_nums=8, perm=perm)
        )
        answer = await client.ask(send_command(queue_id=queue_id))
    assert answer.code == 14
    assert answer.ext_fields == {"putStatus": "SERVICE_NOT_AVAILABLE", "notMaster": "true"}


async def test_a_producer_knows_that_such_a_message_is_not_stored():
    """Code 1 alone would leave the outcome unknown."""
    async with serving(InMemoryTarget()) as (_, address), Producer.connect(address) as producer:
        result = await producer.send(Message("T", b""), queue_id=8)
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert "queueId[8] is illegal" in result.reason


async def test_a_producer_without_a_queue_needs_not_know_their_number():
    """A topic with fewer queues than a new topic would get takes all its messages."""
    target = InMemoryTarget()
    async with serving(target) as (server, address), Producer.connect(address) as producer:
        server.data.topics.put(TopicConfig(topic="T", read_queue_nums=3, write_queue_nums=3))
        single = [await producer.send(Message("T", b"")) for _ in range(6)]
        pending = await producer.submit_many([Message("T", b"")] * 24)
        many = [await one.wait() for one in pending]
        together = await producer.send_batch([Message("T", b"")] * 2)
    assert all(result.ok for result in [*single, *many, together])
    assert sorted(result.queue_id for result in single) == [0, 0, 1, 1, 2, 2]
    assert {result.queue_id for result in many} == {0, 1, 2}


@pytest.mark.parametrize(
    ("count", "size"), [(5, 1), (9, 1), (12, 1), (15, 1), (520, 1), (500, 1_000), (20, 17_000)]
)
async def test_messages_without_a_queue_are_shared_out_evenly(count, size):
    """Also those of many equal calls: the same queues had the larger runs each time."""
    target = InMemoryTarget()
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=2_048) as producer,
    ):
        for _ in range(8):
            assert len(await producer.submit_many([Message("T", b"x" * size)] * count)) == count
            await producer.drain()
    counts = Counter(message.queue_id for message in target.messages)
    assert counts.total() == 8 * count
    assert sorted(counts) == list(range(8))
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(("own", "queue_nums", "delay"), [(1, 8, {}), (0, 1, {"DELAY": "0"})])
async def test_a_queue_keeps_the_order_of_all_messages(own, queue_nums, delay):
    """The node may choose for some of them the queue that others name."""
    target = InMemoryTarget()
    async with serving(target) as (server, address), Producer.connect(address) as producer:
        server.data.topics.put(
            TopicConfig(topic="T", read_queue_nums=queue_nums, write_queue_nums=queue_nums)
        )
        messages = [
            Message("T", b"%02d" % n, queue_id=own * (n % 2), properties=delay if n % 5 else None)
            for n in range(64)
        ]
        for one in await producer.submit_many(messages):
            assert (await one.wait()).ok
    bodies = {queue_id: [] for queue_id in range(queue_nums)}
    for message in target.messages:
        bodies[message.queue_id].append(message.body)
    assert all(queue == sorted(queue) for queue in bodies.values())


async def test_a_batch_for_a_queue_that_is_not_there_is_sent_once():
    """Its messages were sent again, all in vain, and all later batches were small."""
    async with serving(InMemoryTarget()) as (_, address), Producer.connect(address) as producer:
        refused = await producer.submit_many([Message("T", b"x" * 50)] * 2, queue_id=9)
        for one in refused:
            result = await one.wait()
            assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
            assert "queueId[9] is illegal" in result.reason
        assert len({one.opaque for one in refused}) == 1
        stored = await producer.submit_many([Message("T", b"x" * 50)] * 64, queue_id=0)
        assert all([(await one.wait()).ok for one in stored])
        assert len({one.opaque for one in stored}) == 1


# -- headers that are not UTF-8 -------------------------------------------------------------------


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_a_header_byte_that_is_not_utf_8_costs_no_other_request(serialize_type):
    """It becomes U+FFFD, and every request has its answer."""

    def frame_of(opaque, **changes):
        command = send_command(opaque, serialize_type=serialize_type, **changes)
        return encode_command(command)

    def with_bytes(opaque, text, found, **changes):
        """Return a request in which the ASCII text ``found`` is replaced, in its size."""
        assert len(text) == len(found)
        return frame_of(opaque, **changes).replace(found, text)

    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        await client.send(
            frame_of(1),
            with_bytes(2, b"caf\xe9", b"cafe", properties={"KEYS": "cafe"}),
            frame_of(3),
            with_bytes(4, b"T\xff", b"TT", topic="TT"),
            frame_of(5),
        )
        answers = {a.opaque: a.code for a in [await client.receive() for _ in range(5)]}
    assert {n: answers[n] for n in (1, 2, 3, 5)} == dict.fromkeys((1, 2, 3, 5), 0)
    found = [message.properties.get("KEYS") for message in target.messages]
    assert [keys for keys in found if keys] == ["caf\ufffd"]
    assert "T\ufffd" in {message.topic for message in target.messages}  # the store refuses it


async def test_the_store_refuses_a_topic_with_a_replaced_byte(tmp_path):
    """The answer is 13; the next request of the connection is stored."""
    async with open_master(tmp_path) as master, raw_client(master.address) as client:
        bad = encode_command(send_command(1, topic="TT")).replace(b'"TT"', b'"T\xff"')
        await client.send(bad, send_command(2))
        answers = {a.opaque: a.code for a in [await client.receive() for _ in range(2)]}
        assert answers == {1: 13, 2: 0}
