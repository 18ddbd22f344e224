"""Many messages in batches: which go together, and that each has its own outcome."""

from __future__ import annotations

import itertools

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from hastore.client.batches import (
    BATCH_COUNT_MAX,
    BATCH_SIZE_MAX,
    BATCHED_SIZE_MAX,
    Batches,
    Outgoing,
)
from hastore.client.producer import Producer
from hastore.client.remoting_client import OUT_SIZE_MAX
from hastore.client.send_result import PendingSend
from hastore.config import RemotingConfig
from hastore.errors import ConfigError, ProtocolError, UnknownOutcomeError, UnreachableError
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore.wire.remoting_codes import SerializeType
from tests.patience import WITHIN_S
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.scripted_node import scripted_node

# -- which go together ---------------------------------------------------------------------------


def gathered(messages):
    """Return the requests, each as a list of bodies."""
    batches = Batches()
    for message in messages:
        pending = PendingSend(0, message.topic, message.queue_id, "key")
        batches.add(Outgoing(message, pending, None, b"UNIQ_KEY\x01key\x02"))
    return [[one.message.body for one in request] for request in batches.requests]


def test_messages_of_one_queue_go_together():
    """Each queue has a batch, in the order of their first messages."""
    messages = [Message("T", b"%d" % n, queue_id=n % 3) for n in range(7)]
    assert gathered(messages) == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]
    two = [Message("T", b"a"), Message("U", b"b"), Message("T", b"c")]
    assert gathered(two) == [[b"a", b"c"], [b"b"]]


@pytest.mark.parametrize(
    "special",
    [
        Message("T", b"x", properties={"DELAY": "3"}),
        Message("T", b"x", properties={"INNER_NUM": "3"}),
        Message("T", b"x", properties={"TRAN_MSG": "true"}),
        Message("T", b"x", properties={"TIMER_DELAY_SEC": "3"}),
        Message("T", b"x", properties={"TIMER_DELAY_MS": "3"}),
        Message("T", b"x", properties={"TIMER_DELIVER_MS": "3"}),
        Message("T", b"x", sys_flag=1),
        Message("T", b"x", sys_flag=8),
        Message("T", b"x", born_timestamp_ms=5),
        Message("T", b"x", reconsume_times=1),
        Message("T", b"x" * BATCHED_SIZE_MAX),
        Message("T", b"x", flag=2**31),
        Message("T", b"x", flag=-(2**31) - 1),
    ],
    ids=range(13),
)
def test_a_special_message_goes_by_itself(special):
    """Those after it in the queue leave after it."""
    plain = [Message("T", b"%d" % n) for n in range(4)]
    requests = gathered([*plain[:2], special, *plain[2:]])
    assert requests == [[b"0", b"1"], [special.body], [b"2", b"3"]]


def test_retries_and_others_that_wait_otherwise_are_not_mixed():
    """A broker takes no batch for a retry topic, and waits for a batch as for its first message."""
    retries = [Message("%RETRY%g", b"%d" % n) for n in range(2)]
    assert gathered(retries) == [[b"0"], [b"1"]]
    waits = [Message("T", b"%d" % n, properties={"WAIT": str(n > 1).lower()}) for n in range(4)]
    assert gathered(waits) == [[b"0", b"1"], [b"2", b"3"]]


@given(
    st.lists(
        st.builds(
            Message,
            st.sampled_from("TU"),
            st.integers(0, 20_000).map(bytes),
            queue_id=st.integers(0, 1),
            sys_flag=st.sampled_from([0, 0, 0, 1]),
            properties=st.sampled_from([None, {"WAIT": "false"}]),
        ),
        max_size=200,
    )
)
def test_each_queue_keeps_its_order_within_the_limits(messages):
    """Nothing is lost, and no batch is too large."""
    numbered = [
        Message(m.topic, m.body + b"%d" % n, queue_id=m.queue_id, sys_flag=m.sys_flag)
        for n, m in enumerate(messages)
    ]
    queue_of = {m.body: (m.topic, m.queue_id) for m in numbered}
    requests = gathered(numbered)
    left = list(itertools.chain.from_iterable(requests))
    for queue in set(queue_of.values()):
        expected = [m.body for m in numbered if queue_of[m.body] == queue]
        assert [body for body in left if queue_of[body] == queue] == expected
    for request in requests:
        assert 1 <= len(request) <= BATCH_COUNT_MAX
        assert len(request) == 1 or sum(map(len, request)) <= BATCH_SIZE_MAX
        assert len({queue_of[body] for body in request}) == 1


# -- outcomes ------------------------------------------------------------------------------------


async def submit_all(producer, messages, **where):
    """Submit all; return their PendingSends."""
    pendings = []
    while len(pendings) < len(messages):
        pendings += await producer.submit_many(messages[len(pendings) :], **where)
    return pendings


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_each_message_of_a_batch_has_its_own_result(serialize_type):
    """A run of messages for each queue, stored in their order; offsets, ids and keys of its own."""
    target = InMemoryTarget()
    config = RemotingConfig(default_topic_queue_nums=2)
    messages = [Message("T", b"%d" % n, properties={"KEYS": "ü"}, flag=n) for n in range(6)]
    async with (
        serving(target, config) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        pendings = await submit_all(producer, messages)
        results = [await one.wait() for one in pendings]
    assert target.batches == [3, 3]
    turns = [result.queue_id for result in results]
    assert turns in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    assert [message.body for message in target.messages] == [b"%d" % n for n in range(6)]
    assert all(result.ok for result in results)
    stored = {message.body: message for message in target.messages}
    for number, (pending, result) in enumerate(zip(pendings, results, strict=True)):
        message = target.messages[result.queue_offset]
        assert (message.body, message.flag) == (b"%d" % number, number)
        assert message.queue_id == result.queue_id
        assert result.message_id == f"7F00000100002A9F{result.queue_offset * 100:016X}"
        assert result.unique_key == pending.unique_key == message.properties["UNIQ_KEY"]
        assert message.properties["KEYS"] == "ü"
    assert len(stored) == len({result.unique_key for result in results}) == 6


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("status", PutMessageStatus)
async def test_each_message_gets_the_status_of_its_batch(status, serialize_type):
    """Also the reason, and offsets of its own if it is stored."""
    target = InMemoryTarget(answer=status, reason="because")
    async with (
        serving(target) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        pendings = await submit_all(producer, [Message("T", b"%d" % n) for n in range(3)])
        pendings = await submit_all(producer, [Message("T", b"")] * 3, queue_id=1)
        results = [await one.wait() for one in pendings]
    assert [result.status for result in results] == [status] * 3
    if status.stored:
        first = results[0].queue_offset
        assert [result.queue_offset - first for result in results] == [0, 1, 2]
        assert len({result.message_id for result in results}) == 3
    else:
        assert {(result.queue_offset, result.message_id) for result in results} == {(None, None)}
    assert {result.reason for result in results} == {
        None if status is PutMessageStatus.PUT_OK else "because"
    }


async def test_messages_of_a_refused_batch_are_sent_singly():
    """A batch may be too large where each message is not; none is stored twice."""

    class NoBatches(InMemoryTarget):
        def submit_batch(self, messages):
            self.batches.append(len(messages))
            self.answer = PutMessageStatus.MESSAGE_ILLEGAL
            request = self._append(messages[0], (self._next_offset,))
            self.answer = PutMessageStatus.PUT_OK
            return request

    target = NoBatches()
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        messages = [Message("T", b"%d" % n) for n in range(5)]
        pendings = await submit_all(producer, messages, queue_id=0)
        assert producer.in_flight == 5
        results = [await one.wait() for one in pendings]
        assert producer.in_flight == 0
    assert target.batches == [5]
    assert [result.status for result in results] == [PutMessageStatus.PUT_OK] * 5
    assert [message.body for message in target.messages] == [b"%d" % n for n in range(5)]
    keys = [message.properties["UNIQ_KEY"] for message in target.messages]
    assert [one.unique_key for one in pendings] == keys


async def test_batches_are_smaller_once_one_was_too_large():
    """So few are refused, and from then on a queue keeps the order of its messages."""

    class Small(InMemoryTarget):
        refused = 0

        def submit_batch(self, messages):
            if sum(len(message.body) for message in messages) <= 16_000:
                return super().submit_batch(messages)
            self.refused += 1
            self.answer = PutMessageStatus.MESSAGE_ILLEGAL
            request = self._append(messages[0], (self._next_offset,))
            self.answer = PutMessageStatus.PUT_OK
            return request

    target = Small()
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        for number in range(6):
            messages = [Message("T", b"%3d" % n + bytes(997)) for n in range(64)]
            pendings = await submit_all(producer, messages, queue_id=0)
            await producer.drain()
            assert all(one.result().ok for one in pendings)
            stored = [message.body for message in target.messages[number * 64 :]]
            assert number < 3 or stored == [message.body for message in messages]
    assert 1 <= target.refused <= 4
    assert sum(target.batches) >= 3 * 64


async def test_messages_of_batches_in_flight_are_bounded():
    """``in_flight_max`` counts messages; the first of them are sent when there is room."""
    target = InMemoryTarget(answer=None)
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=8) as producer,
        trio.open_nursery() as nursery,
    ):
        messages = [Message("T", b"%d" % n) for n in range(20)]
        assert len(await producer.submit_many(messages, queue_id=0)) == 8
        assert producer.in_flight == 8
        log = []

        async def submit():
            log.extend(await producer.submit_many(messages[8:], queue_id=0))

        nursery.start_soon(submit)
        while not target.held:
            await trio.testing.wait_all_tasks_blocked()
        assert log == []
        target.release()
        while not log:
            await trio.testing.wait_all_tasks_blocked()
        while producer.in_flight:
            target.release()
            await trio.testing.wait_all_tasks_blocked()
        assert await producer.submit_many([]) == []
    assert target.batches == [8, 8]


async def test_a_bad_message_ends_those_that_are_sent():
    """Those before it are sent; it raises when it is the first."""
    target = InMemoryTarget()
    bad = Message("T", b"", properties={"a\x01": "b"})
    large = Message("T", bytes(16 << 20))
    good = Message("T", b"good")
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        for one in (bad, large):
            (pending,) = await producer.submit_many([good, one, good])
            assert (await pending.wait()).ok
            with pytest.raises(ConfigError):
                await producer.submit_many([one, good])
    assert len(target.messages) == 2


async def test_unsent_bytes_of_many_messages_are_bounded():
    """As those of single ones; the queues get their shares all the same."""
    target = InMemoryTarget(keep=False)
    config = RemotingConfig(default_topic_queue_nums=4)
    async with serving(target, config) as (_, address), Producer.connect(address) as producer:
        messages = [Message("T", bytes(3 << 20))] * 20
        pendings = await producer.submit_many(messages)
        assert len(pendings) == 3
        assert producer._client.out_room > -(1 << 20) - 4096
        while len(pendings) < 20:
            more = await producer.submit_many(messages[len(pendings) :])
            assert 1 <= len(more) <= 3
            pendings += more
        queues = [(await pending.wait()).queue_id for pending in pendings]
        assert len(await producer.submit_many([Message("T", bytes(OUT_SIZE_MAX))] * 2)) == 1
    assert sorted(queues) == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(
    "odd",
    [
        Message("T", b"", flag=2**31),
        Message("T", b"", flag=2**70),
        Message("T", b"", properties={"k": "\ud800"}),
    ],
    ids=["flag", "long flag", "surrogate"],
)
async def test_a_message_that_no_batch_holds_ends_as_if_submitted(odd, serialize_type):
    """With the node's answer, and those around it are stored."""
    target = InMemoryTarget()
    good = Message("T", b"")
    async with (
        serving(target) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        expected = (await producer.send(odd)).status
        pendings = await submit_all(producer, [good, good, odd, good, good], queue_id=0)
        results = [await one.wait() for one in pendings]
    ok = PutMessageStatus.PUT_OK
    assert [result.status for result in results] == [ok, ok, expected, ok, ok]
    assert target.batches == [2, 2]


async def test_what_raises_does_so_before_anything_is_sent():
    """Also an error of the caller in a message far behind."""
    target = InMemoryTarget()
    good = Message("T", b"")
    wrong = Message("U", b"")
    wrong.body = "no bytes"
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        with pytest.raises(TypeError):
            await producer.submit_many([good, good, wrong, wrong], queue_id=0)
        assert producer.in_flight == 0
    assert target.messages == []


async def test_a_broken_link_leaves_each_outcome_of_a_batch_unknown():
    """Each error has its message's UNIQ_KEY; later messages are refused as not sent."""
    async with scripted_node() as (node, address), Producer.connect(address) as producer:
        pendings = await producer.submit_many([Message("T", b"")] * 3, queue_id=0)
        (request,) = await node.receive(1)
        assert request.code == 320
        node.drop()
        for one in pendings:
            with pytest.raises(UnknownOutcomeError) as caught:
                await one.wait()
            assert caught.value.unique_key == one.unique_key
        with pytest.raises(UnreachableError, match="not sent"):
            await producer.submit_many([Message("T", b"")])
        assert producer.in_flight == 0


async def test_an_answer_with_other_message_ids_is_malformed():
    """No id is made up: a message's place in the log is known, or it is not."""
    async with scripted_node() as (node, address), Producer.connect(address) as producer:
        pendings = await producer.submit_many([Message("T", b"")] * 3, queue_id=0)
        (request,) = await node.receive(1)
        fields = {"msgId": "A,B", "queueOffset": "5", "queueId": "0"}
        await node.send(request.response(0, ext_fields=fields))
        for one in pendings:
            with pytest.raises(ProtocolError, match="2 message ids to a batch of 3"):
                await one.wait()
            assert one.status is PutMessageStatus.PUT_OK


async def test_a_batch_without_an_answer_in_time_leaves_each_outcome_unknown(autojump_clock):
    """All at its deadline, which is that of each message; a late answer changes nothing."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address, request_timeout_s=10, heartbeat_interval_s=1000) as producer,
    ):
        begin = trio.current_time()
        pendings = await producer.submit_many([Message("T", b"")] * 3, queue_id=0)
        (request,) = await node.receive(1)
        for one in pendings:
            assert begin + 10 <= one.deadline <= begin + 10.1
            with pytest.raises(UnknownOutcomeError, match="no answer within 10 s") as caught:
                await one.wait()
            assert caught.value.unique_key == one.unique_key
        assert trio.current_time() - begin == pytest.approx(10, abs=0.1)
        assert producer.in_flight == 0
        fields = {"msgId": "A,B,C", "queueOffset": "5", "queueId": "0"}
        await node.send(request.response(0, ext_fields=fields))
        (pending,) = await producer.submit_many([Message("T", b"")])
        (request,) = await node.receive(1)
        await node.send(request.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        assert (await pending.wait()).ok
        assert producer._client.late_responses == 1
        assert all(one.response is None for one in pendings)


async def test_a_link_that_breaks_after_a_refused_batch_leaves_outcomes_unknown():
    """Those of the messages that were sent again and are not answered."""
    async with scripted_node() as (node, address), Producer.connect(address) as producer:
        pendings = await producer.submit_many([Message("T", b"")] * 3, queue_id=0)
        (request,) = await node.receive(1)
        await node.send(request.response(13, remark="too large"))
        first, *_ = await node.receive(3)
        assert first.code == 310
        assert producer.in_flight == 3
        await node.send(first.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        assert (await pendings[0].wait()).ok
        node.drop()
        for one in pendings[1:]:
            with pytest.raises(UnknownOutcomeError) as caught:
                await one.wait()
            assert caught.value.unique_key == one.unique_key
        assert producer.in_flight == 0


async def test_a_batch_refused_on_a_broken_link_leaves_outcomes_unknown():
    """The messages cannot be sent again; none waits for ever."""
    async with scripted_node() as (node, address), Producer.connect(address) as producer:
        pendings = await producer.submit_many([Message("T", b"")] * 3, queue_id=0)
        (request,) = await node.receive(1)
        batch = producer._client._answered(request.opaque)
        producer._client.break_link("the test broke it")
        batch.answer(request.response(13, remark="too large"))
        for one in pendings:
            with pytest.raises(UnknownOutcomeError, match="the test broke it"):
                await one.wait()
        assert producer.in_flight == 0


async def test_many_messages_and_single_ones_are_sent_side_by_side():
    """By several tasks within a few places; each message is stored once, with its own result."""
    target = InMemoryTarget()
    pendings = []
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=8) as producer,
    ):

        async def many(task):
            messages = [Message("T", b"many %d %d" % (task, n)) for n in range(50)]
            pendings.extend(
                zip(messages, await submit_all(producer, messages, queue_id=0), strict=True)
            )

        async def singly(task):
            for n in range(50):
                message = Message("T", b"one %d %d" % (task, n))
                pendings.append((message, await producer.submit(message)))

        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                for task in range(3):
                    nursery.start_soon(many, task)
                    nursery.start_soon(singly, task)
            await producer.drain()
    assert len(target.messages) == 300
    assert target.batches
    by_key = {message.properties["UNIQ_KEY"]: message.body for message in target.messages}
    assert all(by_key[one.result().unique_key] == message.body for message, one in pendings)
    assert len({one.result().message_id for _, one in pendings}) == 300
