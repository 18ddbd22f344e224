"""The producer against the real server: outcomes, pipelining, limits, broken links."""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio

from hastore.client.pending_request import PendingRequest
from hastore.client.producer import Producer
from hastore.config import RemotingConfig
from hastore.env.real import real_env
from hastore.errors import (
    ConfigError,
    ProtocolError,
    RequestFailedError,
    UnknownOutcomeError,
    UnreachableError,
)
from hastore.message import Message
from hastore.status import BrokerRole, PutMessageStatus
from hastore.wire.remoting_codes import SerializeType
from tests.patience import WITHIN_S
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.scripted_node import scripted_node


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_send_stores_all_fields_and_returns_the_offsets(serialize_type):
    """The stored message also has a UNIQ_KEY, which the result names."""
    target = InMemoryTarget()
    message = Message(
        "orders",
        b"body",
        properties={"KEYS": "ü1", "WAIT": "false"},
        flag=3,
        born_timestamp_ms=1_700_000_000_123,
        reconsume_times=1,
    )
    async with (
        serving(target) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        await producer.send(Message("orders", b"first"))
        result = await producer.send(message, queue_id=5)
    assert result.ok
    assert (result.topic, result.queue_id, result.queue_offset) == ("orders", 5, 1)
    assert result.message_id == "7F00000100002A9F0000000000000064"
    assert result.physic_offset == 100
    stored = target.messages[1]
    assert stored.born_host[0] == "127.0.0.1"
    assert attrs.evolve(stored, born_host=None) == attrs.evolve(
        message,
        queue_id=5,
        properties={
            "KEYS": "ü1",
            "WAIT": "false",
            "UNIQ_KEY": result.unique_key,
            "CLUSTER": "DefaultCluster",
        },
    )


async def test_each_message_gets_a_unique_key_unless_it_has_one():
    """UNIQ_KEY is 32 upper-case hex digits, different for each message; an existing one stays."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        results = [await producer.send(Message("T", b"")) for _ in range(3)]
        results.append(await producer.send(Message("T", b"", properties={"UNIQ_KEY": "mine"})))
    keys = [result.unique_key for result in results]
    assert len(set(keys)) == 4
    assert keys[3] == "mine"
    assert all(len(key) == 32 and set(key) <= set("0123456789ABCDEF") for key in keys[:3])
    assert [message.properties["UNIQ_KEY"] for message in target.messages] == keys


async def test_messages_without_a_queue_rotate_over_the_routes_queues():
    """A queue chosen in the message or in the call is used."""
    target = InMemoryTarget()
    config = RemotingConfig(default_topic_queue_nums=3)
    async with serving(target, config) as (_, address), Producer.connect(address) as producer:
        assert producer.queue_nums == 3
        turns = [(await producer.send(Message("T", b""))).queue_id for _ in range(6)]
        chosen = await producer.send(Message("T", b"", queue_id=2))
        pinned = await producer.send(Message("T", b""), queue_id=0)
    assert sorted(turns) == [0, 0, 1, 1, 2, 2]
    assert turns[:3] == turns[3:]
    assert (chosen.queue_id, pinned.queue_id) == (2, 0)


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("status", PutMessageStatus)
async def test_the_producer_gets_the_nodes_status(status, serialize_type):
    """It also gets the reason, and the offsets only if the message is stored."""
    target = InMemoryTarget(answer=status, reason="because")
    async with (
        serving(target) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        result = await producer.send(Message("T", b""))
    assert result.status is status
    assert result.ok is (status is PutMessageStatus.PUT_OK)
    assert (result.message_id is not None) is status.stored
    assert (result.queue_offset is not None) is status.stored
    assert (result.physic_offset is not None) is status.stored
    if not result.ok:
        assert result.reason == "because"


async def test_a_thousand_messages_in_flight_each_get_their_own_answer():
    """The answers come in reverse order."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        pending = [await producer.submit(Message("T", b"%d" % n)) for n in range(1000)]
        while len(target.held) < 1000:
            await trio.testing.wait_all_tasks_blocked()
        assert producer.in_flight == 1000
        assert not any(one.is_done for one in pending)
        target.held.reverse()
        target.release()
        results = [await one.wait() for one in pending]
    assert [result.queue_offset for result in results] == list(range(1000))
    assert [message.body for message in target.messages] == [b"%d" % n for n in range(1000)]


async def test_several_tasks_may_wait_for_one_outcome():
    """Each of them gets it; one that is cancelled changes nothing for the others."""
    target = InMemoryTarget(answer=None)
    results = []
    async with (
        serving(target) as (_, address),
        Producer.connect(address) as producer,
        trio.open_nursery() as nursery,
    ):
        pending = await producer.submit(Message("T", b""))

        async def wait(scope):
            with scope:
                results.append(await pending.wait())

        scopes = [trio.CancelScope() for _ in range(3)]
        for scope in scopes:
            nursery.start_soon(wait, scope)
        while not target.held:
            await trio.testing.wait_all_tasks_blocked()
        scopes[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        target.release()
    assert [result.ok for result in results] == [True, True]


async def test_messages_in_flight_are_bounded():
    """Above ``in_flight_max``, submit waits and send_nowait raises WouldBlock."""
    target = InMemoryTarget(answer=None)
    log = []
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=2) as producer,
        trio.open_nursery() as nursery,
    ):
        producer.send_nowait(Message("T", b"1"))
        producer.send_nowait(Message("T", b"2"))
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait(Message("T", b"3"))

        async def submit(body):
            await producer.submit(Message("T", body))
            log.append(body)

        nursery.start_soon(submit, b"4")
        nursery.start_soon(submit, b"5")
        nursery.start_soon(submit, b"6")
        while len(target.held) < 2:
            await trio.testing.wait_all_tasks_blocked()
        assert log == []
        target.release()
        while len(target.held) < 2:
            await trio.testing.wait_all_tasks_blocked()
        assert len(log) == 2
        while target.held or producer.in_flight:
            target.release()
            await trio.testing.wait_all_tasks_blocked()
    assert sorted(log) == [b"4", b"5", b"6"]


async def test_a_cancelled_wait_for_room_sends_nothing():
    """Cancelling is safe there: the message was not accepted."""
    target = InMemoryTarget(answer=None)
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=1) as producer,
    ):
        first = await producer.submit(Message("T", b"1"))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.submit, Message("T", b"2"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        target.release()
        assert (await first.wait()).ok
    assert len(target.messages) == 1


async def test_a_cancelled_send_does_not_affect_other_messages():
    """The cancelled message is stored all the same."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, Message("T", b"1"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        pending = await producer.submit(Message("T", b"2"))
        while len(target.held) < 2:
            await trio.testing.wait_all_tasks_blocked()
        target.release()
        assert (await pending.wait()).ok
    assert len(target.messages) == 2


async def test_leaving_the_block_waits_for_messages_in_flight():
    """Each has its outcome when the block has ended."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address):
        async with trio.open_nursery() as nursery:

            async def produce():
                async with Producer.connect(address) as producer:
                    pending.append(await producer.submit(Message("T", b"")))

            pending = []
            nursery.start_soon(produce)
            while not target.held:
                await trio.testing.wait_all_tasks_blocked()
            await trio.testing.wait_all_tasks_blocked()
            assert not pending[0].is_done
            target.release()
        assert pending[0].result().ok


async def test_an_exception_leaves_the_block_unwrapped():
    """It is in no ExceptionGroup, and the outcome of messages in flight is unknown."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address):
        pending = []

        async def fail():
            async with Producer.connect(address) as producer:
                pending.append(await producer.submit(Message("T", b"")))
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await fail()
    with pytest.raises(UnknownOutcomeError, match="closed here"):
        pending[0].result()


async def test_a_cancelled_block_ends():
    """It does not wait for messages in flight."""
    target = InMemoryTarget(answer=None)
    async with serving(target) as (_, address):
        with trio.CancelScope() as scope:
            async with Producer.connect(address) as producer:
                await producer.submit(Message("T", b""))
                scope.cancel()
                await producer.drain()
        assert scope.cancelled_caught


async def test_a_broken_link_leaves_every_outcome_unknown():
    """Each error has its message's UNIQ_KEY; later messages are refused as not sent."""
    async with scripted_node() as (node, address):
        async with Producer.connect(address) as producer:
            pending = [await producer.submit(Message("orders", b"")) for _ in range(3)]
            await node.receive(3)
            node.drop()
            for one in pending:
                with pytest.raises(UnknownOutcomeError, match=r"unknown .* to orders") as caught:
                    await one.wait()
                assert caught.value.unique_key == one.unique_key
                assert one.status is None
                assert "UNIQ_KEY" in caught.value.hint
            assert producer.broken_because is not None
            for attempt in (producer.submit, producer.send):
                with pytest.raises(UnreachableError, match="not sent: the link to 127") as refused:
                    await attempt(Message("orders", b""))
                assert refused.value.hint == "connect again"
            with pytest.raises(UnreachableError):
                producer.send_nowait(Message("orders", b""))


async def test_a_broken_link_wakes_tasks_that_wait_for_room():
    """They get UnreachableError instead of waiting for ever."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address, in_flight_max=1) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.submit(Message("T", b"1"))

        async def submit():
            with pytest.raises(UnreachableError):
                await producer.submit(Message("T", b"2"))

        nursery.start_soon(submit)
        await trio.testing.wait_all_tasks_blocked()
        node.drop()


async def test_no_answer_in_time_leaves_the_outcome_unknown(autojump_clock):
    """Each message has its own deadline; a late answer is only counted."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address, request_timeout_s=10, heartbeat_interval_s=1000) as producer,
    ):
        begin = trio.current_time()
        first = await producer.submit(Message("T", b"1"))
        await trio.sleep(4)
        second = await producer.submit(Message("T", b"2"))
        (request, _) = await node.receive(2)
        with pytest.raises(UnknownOutcomeError, match="no answer within 10 s"):
            await first.wait()
        assert trio.current_time() - begin == pytest.approx(10, abs=0.1)
        with pytest.raises(UnknownOutcomeError):
            await second.wait()
        assert trio.current_time() - begin == pytest.approx(14, abs=0.1)
        await node.send(request.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        third = await producer.submit(Message("T", b"3"))
        (request,) = await node.receive(1)
        await node.send(request.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        assert (await third.wait()).ok
        assert producer._client.late_responses == 1


async def test_heartbeats_keep_an_idle_link_alive(autojump_clock):
    """A producer that has nothing to send for minutes stays connected."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        await trio.sleep(1000)
        assert (await producer.send(Message("T", b""))).ok


async def test_an_unanswered_heartbeat_breaks_the_link(autojump_clock):
    """A producer that sends nothing notices that its node has stopped."""
    async with (
        scripted_node() as (_node, address),
        Producer.connect(address) as producer,
    ):
        await trio.sleep(41)
        assert "a heartbeat failed" in producer.broken_because


async def test_a_heartbeat_answered_with_an_error_keeps_the_link(autojump_clock):
    """A node that does not support heartbeats has answered, and still accepts messages."""
    async with scripted_node() as (node, address), Producer.connect(address) as producer:
        for _ in range(2):
            (heartbeat,) = await node.receive(1)
            assert heartbeat.code == 34
            await node.send(heartbeat.response(3, remark="request code 34 is not supported"))
        pending = await producer.submit(Message("T", b""))
        (request,) = await node.receive(1)
        await node.send(request.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        assert (await pending.wait()).ok
        assert producer.broken_because is None


async def test_a_protocol_error_of_the_node_breaks_the_link():
    """The reason names the invalid frame."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address) as producer,
    ):
        pending = await producer.submit(Message("T", b""))
        await node.receive(1)
        await node.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(UnknownOutcomeError, match="the node broke the protocol: a frame of"):
            await pending.wait()


async def test_requests_from_the_node_are_ignored():
    """A broker may notify its clients; such a frame is no answer."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address) as producer,
    ):
        pending = await producer.submit(Message("T", b""))
        (request,) = await node.receive(1)
        notice = request.response(0)
        notice.flag = 0
        await node.send(notice)
        await node.send(request.response(0, ext_fields={"msgId": "0" * 32, "queueOffset": "1"}))
        assert (await pending.wait()).ok


async def test_a_refusal_with_another_code_raises_request_failed_error():
    """The code is no put status; the error has it."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address) as producer,
    ):
        pending = await producer.submit(Message("T", b""))
        (request,) = await node.receive(1)
        await node.send(request.response(16, remark="no permission"))
        with pytest.raises(RequestFailedError, match="refused with code 16: no perm") as caught:
            await pending.wait()
        assert caught.value.code == 16


async def test_an_ok_without_offset_or_id_raises_protocol_error():
    """A success must say where the message is stored."""
    async with (
        scripted_node() as (node, address),
        Producer.connect(address) as producer,
    ):
        for fields, reason in [({}, "queueOffset is missing"), ({"queueOffset": 1}, "without msg")]:
            pending = await producer.submit(Message("T", b""))
            (request,) = await node.receive(1)
            await node.send(request.response(0, ext_fields=fields))
            with pytest.raises(ProtocolError, match=reason):
                await pending.wait()


async def test_a_stock_brokers_codes_become_statuses():
    """Without hastore's ``putStatus`` the code alone decides."""
    expected = {1: "UNKNOWN_ERROR", 2: "OS_PAGE_CACHE_BUSY", 13: "MESSAGE_ILLEGAL"} | {
        14: "SERVICE_NOT_AVAILABLE"
    }
    async with (
        scripted_node() as (node, address),
        Producer.connect(address) as producer,
    ):
        for code, name in expected.items():
            pending = await producer.submit(Message("T", b""))
            (request,) = await node.receive(1)
            await node.send(request.response(code, remark="r"))
            assert (await pending.wait()).status.value == name


async def test_a_broker_without_routes_is_assumed_to_have_four_queues():
    """A stock broker answers 105 with "not supported"; messages are sent to it all the same."""
    async with scripted_node(route_code=3) as (_, address), Producer.connect(address) as producer:
        assert producer.queue_nums == 4


async def test_connecting_to_a_slave_fails_with_a_hint():
    """The error says that it is a slave, the hint where to look for the master."""
    target = InMemoryTarget(role=BrokerRole.SLAVE)
    async with serving(target) as (_, address):
        with pytest.raises(RequestFailedError, match="is a slave and takes no messages") as caught:
            async with Producer.connect(address):
                pass
    assert f"hastore status 127.0.0.1:{address[1]}" in caught.value.hint


async def test_a_refused_connection_names_the_address_and_has_a_hint():
    """The hint names the commands that start a node."""
    async with serving(InMemoryTarget()) as (_, address):
        pass
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{address[1]}: Connection ref") as caught:
        async with Producer.connect(address):
            pass
    assert "hastore master" in caught.value.hint
    assert "hastore slave if it was one" in caught.value.hint


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_a_batch_is_sent_as_one(serialize_type):
    """Its messages are stored in a row, and the result has all their ids."""
    target = InMemoryTarget()
    messages = [
        Message("T", b"1", properties={"KEYS": "a", "WAIT": "false"}),
        Message("T", b"2", flag=4),
    ]
    async with (
        serving(target) as (_, address),
        Producer.connect(address, serialize_type=serialize_type) as producer,
    ):
        result = await producer.send_batch(messages, queue_id=3)
    assert result.ok
    assert result.message_id.count(",") == 1
    assert (result.queue_id, result.physic_offset, result.unique_key) == (3, 0, None)
    assert target.batches == [2]
    first, second = target.messages
    assert (first.body, first.properties["KEYS"], second.body, second.flag) == (b"1", "a", b"2", 4)
    assert len({message.properties["UNIQ_KEY"] for message in target.messages}) == 2
    assert not any(message.wait_store_msg_ok for message in target.messages)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "one or more messages"),
        ([Message("A", b""), Message("B", b"")], "of one topic"),
        ([Message("A", bytes(8 << 20))] * 2, "does not fit a frame"),
    ],
)
async def test_an_invalid_batch_is_refused_before_it_is_sent(messages, reason):
    """The caller gets a ConfigError."""
    async with serving(InMemoryTarget()) as (_, address), Producer.connect(address) as producer:
        with pytest.raises(ConfigError, match=reason):
            await producer.send_batch(messages)
        assert producer.in_flight == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("T", bytes(16 << 20)), "a body of 16777216 bytes"),
        (Message("T", b"", properties={"k": "v" * 70_000}), "characters do not fit"),
        (Message("T", b"", properties={"k": "\x07" * 32_000}), "bytes in JSON"),
        (Message("T", b"", properties={"k": "\x01"}), "holds U"),
    ],
)
async def test_a_message_that_fits_no_frame_is_refused_before_it_is_sent(message, reason):
    """The caller gets a ConfigError, where the node would only close the connection."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        with pytest.raises(ConfigError, match=reason):
            await producer.send(message)
        largest = Message("T", b"", properties={"k": "\u00e9" * 16_000})
        assert (await producer.send(largest)).ok
    assert len(target.messages) == 1


async def test_unsent_bytes_are_bounded():
    """Above 8 MiB there is no room, however few messages they are."""
    target = InMemoryTarget(keep=False)
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        sent = 0
        with contextlib.suppress(trio.WouldBlock):
            while True:
                producer.send_nowait(Message("T", bytes(4 << 20)))
                sent += 1
        assert sent == 2
        for _ in range(4):
            await producer.submit(Message("T", bytes(4 << 20)))
    assert target.counts[PutMessageStatus.PUT_OK] == 6


async def test_on_done_is_called_once_for_each_message():
    """The status is known by then, and no task per message is needed."""
    target = InMemoryTarget(answer=PutMessageStatus.SLAVE_NOT_AVAILABLE)
    seen = []
    async with serving(target) as (_, address), Producer.connect(address) as producer:
        for _ in range(5):
            pending = await producer.submit(Message("T", b""))
            pending.on_done = lambda done: seen.append(done.status)
        await producer.drain()
    assert seen == [PutMessageStatus.SLAVE_NOT_AVAILABLE] * 5


async def test_the_producer_uses_the_given_environment():
    """Its clock sets the born timestamp."""

    class Clock:
        def now_ms(self):
            return 1_700_000_000_000

    target = InMemoryTarget()
    env = attrs.evolve(real_env(), wall_clock=Clock())
    async with serving(target) as (_, address), Producer.connect(address, env=env) as producer:
        await producer.send(Message("T", b""))
    assert target.messages[0].born_timestamp_ms == 1_700_000_000_000


async def test_requests_posted_behind_a_stuck_send_time_out():
    """A peer that reads nothing: the watcher of deadlines once slept for ever."""
    async with scripted_node() as (_node, address):
        with trio.fail_after(WITHIN_S):
            async with Producer.connect(
                address, request_timeout_s=0.1, heartbeat_interval_s=1_000
            ) as producer:
                sizes = 7 << 20, 15 << 20  # sockets take less
                stuck = [await producer.submit(Message("T", bytes(size))) for size in sizes]
                for pending in stuck:
                    await pending.done()
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(2):
                    request = PendingRequest(producer._client.next_opaque())
                    producer._client.post(request, b"behind")
                    await request.done()
                    assert "no answer within" in request.failure
                producer._client.break_link("the test has ended")


async def test_a_frozen_peer_fails_the_heartbeat():
    """Also behind a message that it does not read; tasks that wait for room go on."""
    async with scripted_node() as (_node, address):
        with trio.fail_after(WITHIN_S):
            async with Producer.connect(
                address, request_timeout_s=0.1, heartbeat_interval_s=0.3
            ) as producer:
                await producer.submit(Message("T", bytes(7 << 20)))
                await producer.submit(Message("T", bytes(15 << 20)))
                with pytest.raises(UnreachableError, match="a heartbeat failed"):
                    await producer.send(Message("T", b""))


async def test_tasks_get_room_in_the_order_in_which_they_wait():
    """Many messages at once do not starve beside single ones."""
    target = InMemoryTarget(answer=None)
    log = []
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=4) as producer,
        trio.open_nursery() as nursery,
    ):

        async def submit_many():
            log.append(len(await producer.submit_many([Message("T", b"many")] * 3, queue_id=0)))

        async def submit():
            await producer.submit(Message("T", b"one"))
            log.append("one")

        for _ in range(4):
            producer.send_nowait(Message("T", b""))
        nursery.start_soon(submit_many)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(2):
            nursery.start_soon(submit)
        while len(target.held) < 4:
            await trio.testing.wait_all_tasks_blocked()
        for left, expected in (3, []), (4, [2]), (4, [2, "one"]):
            target.held.pop(0).decide(PutMessageStatus.PUT_OK)
            with trio.fail_after(WITHIN_S):
                while producer.in_flight != left or log != expected:
                    await trio.lowlevel.checkpoint()
        while len(log) < 3:
            target.release()
            await trio.lowlevel.checkpoint()
        while producer.in_flight:
            target.release()
            await trio.lowlevel.checkpoint()


async def test_one_that_waits_for_more_room_does_not_keep_others_asleep():
    """The next task gets the room if the first is cancelled or sends nothing."""
    target = InMemoryTarget(answer=None)
    log = []
    async with (
        serving(target) as (_, address),
        Producer.connect(address, in_flight_max=4) as producer,
        trio.open_nursery() as nursery,
    ):

        async def many(messages, scope):
            with scope:
                try:
                    log.append(len(await producer.submit_many(messages)))
                except ConfigError:
                    log.append("bad")

        async def one():
            await producer.submit(Message("T", b""))
            log.append("one")

        async def held(count):
            while len(target.held) < count:
                await trio.testing.wait_all_tasks_blocked()

        bad = Message("T", b"", properties={"": "b"})
        for messages, end in (([bad] * 2, "bad"), ([Message("T", b"")] * 2, "cancelled")):
            scope = trio.CancelScope()
            for _ in range(3):
                producer.send_nowait(Message("T", b""))
            await held(3)
            nursery.start_soon(many, messages, scope)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(one)
            await trio.testing.wait_all_tasks_blocked()
            assert log == []
            with pytest.raises(trio.WouldBlock):
                producer.send_nowait(Message("T", b""))
            if end == "cancelled":
                scope.cancel()
            else:
                target.held.pop().decide(PutMessageStatus.PUT_OK)
            while "one" not in log:
                await trio.testing.wait_all_tasks_blocked()
            assert log == [*([end] if end == "bad" else []), "one"]
            log.clear()
            while producer.in_flight:
                target.release()
                await trio.testing.wait_all_tasks_blocked()
