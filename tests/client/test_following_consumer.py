"""The consumer with several addresses: it goes on at another node, where it was."""

import contextlib
import functools
import json

import attrs
import pytest
import trio

from hastore.client.admin import AdminClient
from hastore.client.consume_from import ConsumeFrom
from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.client.pull_client import PullStatus
from hastore.client.remoting_client import RemotingClient
from hastore.concurrency.tcp import bound_address, open_listener
from hastore.errors import TlsError, UnreachableError
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.group_nodes import group, promote
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.waiting import eventually


async def tell(nodes, epoch, leader):
    """Name the master of an epoch to all nodes, itself last."""
    address = nodes[leader - 1].address
    for node in sorted(nodes, key=lambda each: each is nodes[leader - 1]):
        async with AdminClient.connect(node.address) as admin:
            await admin.change_role(
                epoch=epoch, master_id=leader, master_address=address, members={1, 2, 3}
            )


async def test_a_consumer_goes_on_where_it_was_through_switchovers(tmp_path):
    """In order, nothing skipped; the group's offset is at the master that is left."""
    seen, failovers = [], []
    async with group(tmp_path) as nodes:
        await promote(nodes[0], *nodes[1:], epoch=1)
        addresses = [node.address for node in nodes]
        with trio.fail_after(WITHIN_S):
            async with (
                Producer.connect(addresses, retry="at_least_once") as producer,
                Consumer.connect(
                    *addresses, suspend_timeout_s=1, on_failover=failovers.append
                ) as consumer,
                trio.open_nursery() as nursery,
            ):
                await producer.send(Message("T", b"000000"), queue_id=0)

                async def read():
                    async for message in consumer.messages(
                        "T", group="g", start=ConsumeFrom.beginning()
                    ):
                        seen.append(int(message.body))  # noqa: PERF401 - watched meanwhile

                nursery.start_soon(read)
                leaders = {50: (2, 2), 150: (3, 3), 250: (4, 1)}  # epoch, node
                for number in range(1, 301):
                    if number in leaders:
                        await tell(nodes, *leaders[number])
                    result = await producer.send(Message("T", b"%06d" % number), queue_id=0)
                    assert result.status.stored
                await eventually(lambda: 300 in seen)
                nursery.cancel_scope.cancel()
        async with AdminClient.connect(addresses[0]) as admin:
            committed = await admin.query_offset("g", "T", 0)
            members = await admin.members("g")
    assert list(dict.fromkeys(seen)) == list(range(301))
    assert committed is not None
    assert committed >= 301
    assert members == []
    assert failovers[-1].epoch == 4


async def test_a_slave_will_do_until_there_is_a_master(tmp_path):
    """The consumer reads from it, then moves to the new master."""
    failovers = []
    async with group(tmp_path, 2) as nodes:
        one, two = nodes
        await promote(one, two, epoch=1)
        addresses = [node.address for node in nodes]
        async with Producer.connect(one.address) as producer:
            for number in range(3):
                assert (await producer.send(Message("T", b"%d" % number), queue_id=0)).ok
        with trio.fail_after(WITHIN_S):
            async with Consumer.connect(*addresses, on_failover=failovers.append) as consumer:
                stream = consumer.messages("T", queue_ids=[0])
                first = await anext(stream)
                await one.step_down("the group has no master")
                rest = [await anext(stream) for _ in range(2)]
                await eventually(lambda: failovers)
                await promote(two, epoch=2, members={2})
                await eventually(lambda: failovers[-1].is_master)
                async with Producer.connect(two.address) as producer:
                    await producer.send(Message("T", b"3"), queue_id=0)
                last = await anext(stream)
    assert [int(each.body) for each in (first, *rest, last)] == [0, 1, 2, 3]
    assert not failovers[0].is_master
    assert failovers[-1].address == addresses[1]
    assert str(failovers[0]).startswith("no master answers; going on at the slave hastore-a at ")
    assert str(failovers[-1]).startswith("master is now hastore-a at ")


async def test_a_killed_master(tmp_path, hastore_group_processes):
    """A consumer of a killed node's group reads on, nothing skipped."""
    cluster = await trio.to_thread.run_sync(functools.partial(hastore_group_processes, nodes=3))
    a, b, _ = cluster.nodes
    addresses = [node.address for node in cluster.nodes]
    bodies = []
    with trio.fail_after(WITHIN_S * 3):
        async with (
            Producer.connect(addresses, failover_timeout_s=WITHIN_S) as producer,
            Consumer.connect(addresses, failover_timeout_s=WITHIN_S) as consumer,
        ):
            for number in range(5):
                assert (await producer.send(Message("T", b"%d" % number), queue_id=0)).ok
            stream = consumer.messages("T", queue_ids=[0])
            bodies += [(await anext(stream)).body for _ in range(5)]
            await trio.to_thread.run_sync(a.kill)
            await trio.to_thread.run_sync(b.promote)
            for number in range(5, 10):
                assert (await producer.send(Message("T", b"%d" % number), queue_id=0)).ok
            while len(bodies) < 10:
                body = (await anext(stream)).body
                if body not in bodies:
                    bodies.append(body)
    assert bodies == [b"%d" % number for number in range(10)]


async def test_a_stream_ends_with_an_error_if_no_node_answers():
    """After the failover time-out; so does every later request."""
    target = InMemoryTarget(role=BrokerRole.SLAVE)

    async def serve(scope, *, task_status):
        with scope:
            async with serving(target) as (_, address):
                task_status.started(address)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        address = await nursery.start(functools.partial(serve, scope))
        with contextlib.suppress(UnreachableError):
            async with Consumer.connect([address], failover_timeout_s=0.2) as consumer:
                scope.cancel()
                with trio.fail_after(WITHIN_S), pytest.raises(UnreachableError, match="no master"):
                    await consumer.pull("T", 0, 0)


async def test_a_fault_of_tls_is_a_reason_to_search_again(monkeypatch):
    """A pull goes on at the node that is found, as after any other end of a link."""
    ask, failed = RemotingClient.ask, []

    async def fail_once(client, code, *args, **more):
        if code == RequestCode.PULL_MESSAGE and not failed:
            failed.append(client)
            raise TlsError("TLS failed: bad record mac", fault="tls")
        return await ask(client, code, *args, **more)

    monkeypatch.setattr(RemotingClient, "ask", fail_once)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        address = await nursery.start(LaggingNode(is_master=True, end=0).run, scope)
        with trio.fail_after(WITHIN_S):
            async with Consumer.connect([address], failover_timeout_s=WITHIN_S) as consumer:
                assert (await consumer.pull("T", 0, 0)).status is PullStatus.NO_NEW_MESSAGE
        scope.cancel()
    assert failed


async def test_nobody_at_the_start():
    """Within the connect time-out."""
    with pytest.raises(UnreachableError, match=r"no master found within 0\.2 s"):
        async with Consumer.connect([("127.0.0.1", 1)], connect_timeout_s=0.2):
            pass


@attrs.define(eq=False)
class LaggingNode:
    """A node whose queues end at ``end``; it answers what a consumer asks."""

    is_master: bool
    end: int
    pulls: list = attrs.field(factory=list)

    def answer(self, request):
        if request.code == RequestCode.GET_BROKER_HA_STATUS:
            role = "SYNC_MASTER" if self.is_master else "SLAVE"
            own = {"name": "n", "role": role, "state": "serving"}
            body = json.dumps({"master": self.is_master, "hastore": own}).encode()
            return request.response(0, body=body)
        if request.code != RequestCode.PULL_MESSAGE:
            return request.response(ResponseCode.TOPIC_NOT_EXIST)
        asked = int(request.ext_fields["queueOffset"])
        self.pulls.append(asked)
        code = ResponseCode.PULL_OFFSET_MOVED if asked > self.end else ResponseCode.PULL_NOT_FOUND
        fields = {
            "suggestWhichBrokerId": "0", "nextBeginOffset": str(min(asked, self.end)),
            "minOffset": "0", "maxOffset": str(self.end),
        }  # fmt: skip
        return request.response(code, ext_fields=fields)

    async def serve(self, stream):
        reader = FrameReader(1 << 24)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in stream:
                reader.feed(data)
                while (request := reader.next_command()) is not None:
                    await stream.send_all(encode_command(self.answer(request)))

    async def run(self, scope, *, task_status):
        listener = await open_listener(ANY_PORT, "clients")
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    trio.serve_listeners, self.serve, [trio.SocketListener(listener)]
                )
                task_status.started(bound_address(listener))


@pytest.mark.parametrize("failover_timeout_s", [WITHIN_S, 0.3])
async def test_an_offset_that_a_lagging_slave_lacks_is_asked_again(failover_timeout_s):
    """A consumer that came from another node waits for it, and goes back only in the end."""
    former, slave = LaggingNode(is_master=True, end=10), LaggingNode(is_master=False, end=7)
    async with trio.open_nursery() as nursery:
        scopes = trio.CancelScope(), trio.CancelScope()
        addresses = [
            await nursery.start(node.run, scope)
            for node, scope in zip((former, slave), scopes, strict=True)
        ]
        with trio.fail_after(WITHIN_S):
            async with Consumer.connect(
                addresses, failover_timeout_s=failover_timeout_s
            ) as consumer:
                assert (await consumer.pull("T", 0, 10)).status is PullStatus.NO_NEW_MESSAGE
                assert (await consumer.pull("T", 0, 11)).status is PullStatus.OFFSET_MOVED
                scopes[0].cancel()
                if failover_timeout_s < 1:
                    result = await consumer.pull("T", 0, 10)
                    assert result.status is PullStatus.OFFSET_MOVED
                    assert result.next_begin_offset == 7
                else:
                    nursery.start_soon(_catch_up, slave)
                    result = await consumer.pull("T", 0, 10)
                    assert result.status is PullStatus.NO_NEW_MESSAGE
                assert len(slave.pulls) > 2
                assert set(slave.pulls) == {10}
        scopes[1].cancel()


async def _catch_up(node):
    await eventually(lambda: len(node.pulls) > 2)
    node.end = 10
