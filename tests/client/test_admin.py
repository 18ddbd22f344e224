"""AdminClient's requests, and lenient reading of routes."""

from __future__ import annotations

import pytest
import trio

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.client.route import read_queue_nums
from hastore.errors import ProtocolError, RequestFailedError, UnreachableError
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.scripted_node import scripted_node


def _route(addresses: bytes, queues: bytes) -> bytes:
    brokers = b'{"brokerName":"a","brokerAddrs":%b}' % addresses
    return b'{"brokerDatas":[%b],"queueDatas":[%b]}' % (brokers, queues)


async def test_a_node_returns_its_status_runtime_info_and_routes():
    """All come over the client port; the refusal of an illegal topic has its code."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), AdminClient.connect(address) as admin:
        status = await admin.ha_status()
        assert NodeStatus.from_dict(status["hastore"]) == target.status()
        table = await admin.runtime_info()
        assert table["clusterName"] == "DefaultCluster"
        route = await admin.route("orders")
        assert route["queueDatas"][0]["writeQueueNums"] == 8
        with pytest.raises(RequestFailedError, match="with 17: topic") as caught:
            await admin.route("no such topic")
        assert caught.value.code == 17


async def test_a_missing_answer_raises_unreachable_error(autojump_clock):
    """Whether the node is silent or closes the connection; the hint names the next step."""
    async with scripted_node(route_code=None) as (node, address):
        async with AdminClient.connect(address, request_timeout_s=3) as admin:
            with pytest.raises(UnreachableError, match="907: no answer within 3 s") as caught:
                await admin.ha_status()
            assert "whether the node runs" in caught.value.hint
            await node.receive(1)
            async with trio.open_nursery() as nursery:

                async def ask():
                    with pytest.raises(UnreachableError, match="the node closed it"):
                        await admin.runtime_info()

                nursery.start_soon(ask)
                await node.receive(1)
                node.drop()


@pytest.mark.parametrize("body", [b"{}", b'{"table":[]}', b"[]", b"x"])
async def test_an_invalid_runtime_info_raises_protocol_error(body):
    """Its body must be an object with a table."""
    async with (
        scripted_node(route_code=None) as (node, address),
        AdminClient.connect(address) as admin,
        trio.open_nursery() as nursery,
    ):

        async def ask():
            with pytest.raises(ProtocolError, match="runtime info"):
                await admin.runtime_info()

        nursery.start_soon(ask)
        (request,) = await node.receive(1)
        await node.send(request.response(0, body=body))


async def test_a_refused_connection_names_the_address_and_has_a_hint():
    """It is UnreachableError, exit code 3."""
    async with serving(InMemoryTarget()) as (_, address):
        pass
    with pytest.raises(UnreachableError, match=f":{address[1]}") as caught:
        async with AdminClient.connect(address):
            pass
    assert caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("body", "queue_nums"),
    [
        (_route(b'{0:"h:1",1:"h:2"}', b'{"brokerName":"a","writeQueueNums":4}'), 4),
        (
            _route(
                b'{"0":"h:1"}',
                b'{"brokerName":"a","writeQueueNums":"6"},{"brokerName":"b","writeQueueNums":4}',
            ),
            6,
        ),
        (_route(b'{"0":"h:1"}', b'{"brokerName":[],"writeQueueNums":4}'), None),
        (_route(b'{1:"h:2"}', b'{"brokerName":"a","writeQueueNums":4}'), None),
        (b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":null}],"queueDatas":null}', None),
        (b"{}", None),
    ],
)
def test_a_route_has_the_write_queues_of_its_masters(body, queue_nums):
    """Java's bare integer keys and numbers as text are read; slaves have no queue to write to."""
    assert read_queue_nums(body) == queue_nums


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"brokerDatas":5}',
        b'{"brokerDatas":[5]}',
        b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":5}]}',
        _route(b'{"0":"h"}', b'{"brokerName":"a","writeQueueNums":1e999}'),
        _route(b'{"0":"h"}', b'{"brokerName":"a"}'),
    ],
)
def test_an_invalid_route_is_refused(body):
    """The error names the route."""
    with pytest.raises(ProtocolError, match="the route"):
        read_queue_nums(body)
