"""The producer with several addresses: what it sends again, what it reports, in which order."""

import contextlib
import functools

import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.client.consumer import Consumer
from hastore.client.master_search import MasterSearch
from hastore.client.producer import Producer
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.errors import RequestFailedError, UnknownOutcomeError, UnreachableError
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.status import PutMessageStatus as Status
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.group_nodes import group, promote
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.reading import all_dispatched
from tests.support.nodes.tls_files import make_tls_files
from tests.support.waiting import eventually

MASTER, SLAVE = BrokerRole.SYNC_MASTER, BrokerRole.SLAVE


@contextlib.asynccontextmanager
async def pair(**settings):
    """A master that holds its puts, a slave, and a producer for both; ``failovers`` it has seen."""
    a = InMemoryTarget(answer=None, replica_group="G", epoch=1)
    b = InMemoryTarget(role=SLAVE, replica_group="G", epoch=1)
    failovers = []
    async with (
        serving(a) as (_, first),
        serving(b) as (_, second),
        Producer.connect(second, first, on_failover=failovers.append, **settings) as producer,
    ):
        yield a, b, producer, failovers


def switch(a, b):
    """Make b the master; a refuses what comes from now on."""
    a.role, b.role = SLAVE, MASTER
    a.answer = Status.SERVICE_NOT_AVAILABLE


async def is_searching(producer):
    await eventually(lambda: not producer._client.has_room, "the link is left")


async def held_by(target, count):
    await eventually(lambda: len(target.held) == count, f"{count} held")


@pytest.mark.parametrize("retry", ["refused", "at_least_once"])
async def test_refused_messages_are_sent_again_in_order(retry):
    """With the same keys, before later ones; the caller sees the second answer only."""
    async with pair(retry=retry) as (a, b, producer, failovers):
        pending = [await producer.submit(Message("T", b"%d" % n), queue_id=1) for n in range(5)]
        await held_by(a, 5)
        switch(a, b)
        a.reason = "the master of epoch 4 is node 2"
        a.release(Status.SERVICE_NOT_AVAILABLE)
        later = await producer.send(Message("T", b"later"), queue_id=1)
        results = [await one.wait() for one in pending]
        assert producer.in_flight == 0
    assert all(result.ok for result in [*results, later])
    assert [message.body for message in b.messages] == [b"0", b"1", b"2", b"3", b"4", b"later"]
    keys = [message.properties["UNIQ_KEY"] for message in b.messages]
    assert keys[:5] == [message.properties["UNIQ_KEY"] for message in a.messages][:5]
    assert keys[:5] == [result.unique_key for result in results]
    (failover,) = failovers
    assert (failover.sent_again, failover.name, failover.epoch) == (6, "hastore-a", 1)
    assert failover.address == b.address
    assert failover.reason.endswith("the master of epoch 4 is node 2")


async def test_a_batch_is_sent_again_as_the_same_batch():
    """Each of its messages has its own outcome."""
    async with pair() as (a, b, producer, failovers):
        pending = await producer.submit_many(
            [Message("T", b"%d" % n) for n in range(8)], queue_id=0
        )
        await held_by(a, 1)
        switch(a, b)
        a.release(Status.SERVICE_NOT_AVAILABLE)
        results = [await one.wait() for one in pending]
    assert [result.queue_offset for result in results] == list(range(8))
    assert b.batches == [8]
    assert failovers[0].sent_again == 8


@pytest.mark.parametrize("status", [Status.FLUSH_SLAVE_TIMEOUT, Status.UNKNOWN_ERROR])
async def test_what_a_master_stored_and_then_gave_up_is_unknown(status):
    """Whatever its status says; it is not sent again."""
    async with pair() as (a, b, producer, failovers):
        pending = await producer.submit(Message("T", b"one"))
        await held_by(a, 1)
        switch(a, b)
        a.reason = "the master of epoch 4 is node 2"
        a.release(status)
        with pytest.raises(UnknownOutcomeError, match="the master of epoch 4 is node 2") as caught:
            await pending.wait()
        assert caught.value.unique_key == a.messages[0].properties["UNIQ_KEY"]
        assert (await producer.send(Message("T", b"two"))).ok
    assert [message.body for message in b.messages] == [b"two"]
    assert failovers[0].sent_again == 0


async def test_at_least_once_sends_what_is_unknown_again_in_order():
    """With what was refused, in the order of the first sending."""
    async with pair(retry="at_least_once") as (a, b, producer, failovers):
        pending = [await producer.submit(Message("T", b"%d" % n), queue_id=1) for n in range(3)]
        await held_by(a, 3)
        switch(a, b)
        first, second, third = a.held
        second.decide(Status.SERVICE_NOT_AVAILABLE)
        first.decide(Status.FLUSH_SLAVE_TIMEOUT)
        third.decide(Status.FLUSH_SLAVE_TIMEOUT)
        assert [(await one.wait()).ok for one in pending] == [True] * 3
        # The second was refused, so there is one copy of it at most.
        assert [one.sent_count for one in pending] == [2, 1, 2]
    assert [message.body for message in b.messages] == [b"0", b"1", b"2"]
    assert failovers[0].sent_again == 3


@pytest.mark.parametrize("retry", ["refused", "at_least_once"])
async def test_a_lost_connection(retry):
    """Unknown, or sent again with the same key."""
    b = InMemoryTarget(role=SLAVE)
    a = InMemoryTarget(answer=None)

    async def serve_a(scope, *, task_status):
        with scope:
            async with serving(a) as (_, address):
                task_status.started(address)
                await trio.sleep_forever()

    async with serving(b) as (_, second), trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        first = await nursery.start(functools.partial(serve_a, scope))
        async with Producer.connect([first, second], retry=retry) as producer:
            pending = await producer.submit(Message("T", b"one"))
            await held_by(a, 1)
            b.role = MASTER
            scope.cancel()
            if retry == "refused":
                with pytest.raises(UnknownOutcomeError):
                    await pending.wait()
            else:
                assert (await pending.wait()).ok
            assert (await producer.send(Message("T", b"two"))).ok
    wanted = [b"two"] if retry == "refused" else [b"one", b"two"]
    assert [message.body for message in b.messages] == wanted
    key = b.messages[0].properties["UNIQ_KEY"]
    assert (key == a.messages[0].properties["UNIQ_KEY"]) is (retry == "at_least_once")


async def test_a_node_that_does_not_answer_is_left():
    """One request without an answer is enough; the others are not waited for."""
    async with pair(request_timeout_s=3, retry="at_least_once") as (a, b, producer, failovers):
        first = await producer.submit(Message("T", b"one"))
        await held_by(a, 1)
        await trio.sleep(2)  # so that the second has as long left
        second = await producer.submit(Message("T", b"two"))
        await held_by(a, 2)
        a.role, b.role = SLAVE, MASTER
        assert (await first.wait()).ok
        assert (await second.wait()).ok
    (failover,) = failovers
    assert failover.reason.endswith("no answer within 3 s")
    assert failover.sent_again == 2
    assert failover.seconds < 1.9


@pytest.mark.parametrize("retry", ["refused", "at_least_once"])
async def test_a_silent_master_is_left_once_another_one_is_known(retry):
    """Long before a request's time is up: a frozen node, or one that is cut off."""
    async with pair(request_timeout_s=600, retry=retry) as (a, b, producer, failovers):
        pending = await producer.submit(Message("T", b"one"))
        await held_by(a, 1)
        b.role, b.epoch = MASTER, 2
        if retry == "refused":
            with pytest.raises(UnknownOutcomeError, match="it does not answer"):
                await pending.wait()
        else:
            assert (await pending.wait()).ok
        assert (await producer.send(Message("T", b"two"))).ok
    (failover,) = failovers
    assert failover.epoch == 2
    assert failover.reason.endswith(
        f"it does not answer, and hastore-a at {describe(b.address)} is master of epoch 2"
    )


async def test_a_slow_master_without_a_successor_is_not_left(monkeypatch):
    """It is asked about again and again; its answer counts."""
    searches = []
    find_now = MasterSearch.find_now

    async def counted(search):
        found = await find_now(search)
        searches.append(found)
        return found

    async with pair(request_timeout_s=600) as (a, b, producer, failovers):
        b.epoch = 1
        pending = await producer.submit(Message("T", b"one"))
        await held_by(a, 1)
        monkeypatch.setattr(MasterSearch, "find_now", counted)
        await eventually(lambda: len(searches) >= 2, "it was asked about twice")
        a.release()
        assert (await pending.wait()).ok
        assert not b.messages
    assert not failovers


async def test_without_a_new_master_what_was_refused_stays_refused():
    """And what was lost is unknown; later messages are not sent."""
    async with pair(failover_timeout_s=0.2, retry="at_least_once") as (a, _, producer, failovers):
        pending = [await producer.submit(Message("T", b"")) for _ in range(2)]
        await held_by(a, 2)
        a.role = SLAVE
        a.held[0].decide(Status.SERVICE_NOT_AVAILABLE, "stepping down")
        a.held[1].decide(Status.FLUSH_SLAVE_TIMEOUT, "stepping down")
        refused = await pending[0].wait()
        with pytest.raises(UnknownOutcomeError):
            await pending[1].wait()
        with pytest.raises(UnreachableError, match=r"no master found within 0\.2 s"):
            await producer.submit(Message("T", b""))
        assert producer.broken_because is not None
    assert (refused.status, refused.reason) == (Status.SERVICE_NOT_AVAILABLE, "stepping down")
    assert not failovers


async def refuse_all(stream):
    """Be a RocketMQ slave: it says nowhere what it is, but refuses messages."""
    reader = FrameReader(1 << 24)
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for data in stream:
            reader.feed(data)
            while (request := reader.next_command()) is not None:
                is_message = request.code == RequestCode.SEND_MESSAGE_V2
                code = 14 if is_message else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                await stream.send_all(encode_command(request.response(code, remark="a slave")))


async def test_a_message_is_not_sent_again_for_ever():
    """Each try at a node that does not say what it is costs a pause, and all have an end."""
    listener = await open_listener(ANY_PORT, "clients")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, refuse_all, [trio.SocketListener(listener)])
        tries = []
        with trio.fail_after(WITHIN_S):
            async with Producer.connect(
                [bound_address(listener)], failover_timeout_s=0.5, on_failover=tries.append
            ) as producer:
                result = await producer.send(Message("T", b""))
        nursery.cancel_scope.cancel()
    assert (result.status, result.reason) == (Status.SERVICE_NOT_AVAILABLE, "a slave")
    assert 2 <= len(tries) <= 8


async def test_a_refusal_of_a_master_is_an_outcome():
    """A full disk is no reason to look for another node."""
    async with pair() as (a, _, producer, failovers):
        pending = await producer.submit(Message("T", b""))
        await held_by(a, 1)
        a.release(Status.SERVICE_NOT_AVAILABLE)
        assert (await pending.wait()).status is Status.SERVICE_NOT_AVAILABLE
    assert not failovers


async def test_leaving_the_block_by_an_exception_decides_everything():
    """Held messages, too."""
    a = InMemoryTarget(answer=None)
    async with serving(a) as (_, address):

        async def run():
            async with Producer.connect([address], retry="at_least_once") as producer:
                pending.append(await producer.submit(Message("T", b"")))
                await held_by(a, 1)
                a.role = SLAVE
                a.release(Status.FLUSH_SLAVE_TIMEOUT)
                await is_searching(producer)
                raise RuntimeError

        pending = []
        with pytest.raises(RuntimeError):
            await run()
    with pytest.raises(UnknownOutcomeError):
        pending[0].result()


async def test_room_is_waited_for_while_there_is_no_master():
    """``send_nowait`` raises instead."""
    async with pair() as (a, b, producer, _):
        pending = await producer.submit(Message("T", b"one"))
        await held_by(a, 1)
        a.role = SLAVE
        a.release(Status.SERVICE_NOT_AVAILABLE)
        await is_searching(producer)
        assert producer.in_flight == 1
        with pytest.raises(trio.WouldBlock):
            producer.send_nowait(Message("T", b""))
        b.role = MASTER
        assert (await producer.send(Message("T", b"two"))).ok
        assert (await pending.wait()).ok
        assert producer.send_nowait(Message("T", b"three"))
    assert [message.body for message in b.messages] == [b"one", b"two", b"three"]


async def test_one_address_stays_with_its_node():
    """A slave is refused at once, as ever."""
    async with serving(InMemoryTarget(role=SLAVE)) as (_, address):
        with pytest.raises(RequestFailedError, match="is a slave"):
            async with Producer.connect(address):
                pass


async def test_no_master_at_the_start():
    """Within the connect time-out."""
    async with serving(InMemoryTarget(role=SLAVE)) as (_, address):
        with pytest.raises(UnreachableError, match="no master"):
            async with Producer.connect([address], connect_timeout_s=0.2):
                pass


# -- a real group --------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["plain", "mutual TLS"])
async def test_a_switchover_under_load_loses_and_doubles_nothing(tmp_path, transport):
    """Role changes by 1008 while 64 messages are in flight; every PUT_OK is in the log, once."""
    outcomes = {}
    failovers = []
    files = make_tls_files(tmp_path / "tls")
    tls = files.client_of_transport(transport)
    async with group(tmp_path, tls=files.of_transport(transport)) as nodes:
        await promote(nodes[0], *nodes[1:], epoch=1)
        addresses = [node.address for node in nodes]

        async def tell(epoch, leader):
            wish = {"epoch": epoch, "master_id": leader, "master_address": addresses[leader - 1]}
            for node_id in sorted((1, 2, 3), key=lambda each: each == leader):
                async with AdminClient.connect(addresses[node_id - 1], tls=tls) as admin:
                    members = {"members": {1, 2, 3}} if node_id == leader else {}
                    await admin.change_role(**wish, **members)

        with trio.fail_after(WITHIN_S):
            async with (
                Producer.connect(
                    *reversed(addresses),
                    in_flight_max=64,
                    on_failover=failovers.append,
                    tls=tls,
                ) as producer,
                trio.open_nursery() as nursery,
            ):
                is_over = False

                async def load():
                    number = 0
                    while not is_over:
                        body = b"%06d" % number
                        outcomes[body] = await producer.submit(Message("T", body), queue_id=0)
                        number += 1

                nursery.start_soon(load)
                for epoch, leader in ((2, 2), (3, 3), (4, 1)):
                    before = len(outcomes)
                    await eventually(lambda before=before: len(outcomes) > before + 200)
                    await tell(epoch, leader)
                    await eventually(lambda epoch=epoch: len(failovers) >= epoch - 1)
                before = len(outcomes)
                await eventually(lambda: len(outcomes) > before + 200)
                is_over = True
        ok = []
        for body, pending in outcomes.items():
            with contextlib.suppress(UnknownOutcomeError):
                result = pending.result()
                assert result.status in {Status.PUT_OK, Status.SLAVE_NOT_AVAILABLE}
                ok.append(body)
        await all_dispatched(nodes[0])
        async with Consumer.connect(addresses[0], tls=tls) as consumer:
            stream = consumer.messages("T", until_end=True)
            stored = [message.body async for message in stream]
    assert len(ok) > 800
    assert len(set(stored)) == len(stored)
    assert set(ok) <= set(stored)
    assert stored == sorted(stored)
    assert [failover.epoch for failover in failovers] == [2, 3, 4]


async def test_a_killed_master(tmp_path, hastore_group_processes):
    """The producer goes on at the node that a person promotes; what was PUT_OK is there."""
    cluster = await trio.to_thread.run_sync(functools.partial(hastore_group_processes, nodes=3))
    a, b, _ = cluster.nodes
    addresses = [node.address for node in cluster.nodes]
    with trio.fail_after(WITHIN_S * 3):
        async with Producer.connect(addresses, failover_timeout_s=WITHIN_S) as producer:
            ok = [(await producer.send(Message("T", b"%d" % n))).ok for n in range(10)]
            await trio.to_thread.run_sync(a.kill)
            await trio.to_thread.run_sync(b.promote)
            ok += [(await producer.send(Message("T", b"%d" % n))).ok for n in range(10, 20)]
    stored = await trio.to_thread.run_sync(b.consume, "T")
    assert ok == [True] * 20
    assert sorted(int(message.body) for message in stored) == list(range(20))
