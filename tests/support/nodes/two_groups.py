"""Two groups of a cluster in one process, of one node each, that know of each other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import trio

import hastore
from hastore.broker.group_directory import BrokerRoute, TopicQueues
from hastore.broker.node.group_node import GroupNode
from hastore.client.admin import AdminClient
from hastore.client.producer import Producer
from hastore.config import GroupNodeConfig
from hastore.message import Message
from tests.patience import WITHIN_S
from tests.support.nodes.directory import Directory, known
from tests.support.nodes.group_nodes import node_config, promote
from tests.support.nodes.reading import all_dispatched


def of_group(directory: Path, group: str) -> GroupNodeConfig:
    """Return the configuration of the only node of a group."""
    return attrs.evolve(node_config(directory / group, 1, (1,)), replica_group=group)


@contextlib.asynccontextmanager
async def cluster(
    tmp_path: Path, topics: tuple[str, ...] = ("T",), home_topics: tuple[str, ...] = ("T",)
) -> AsyncIterator[tuple[GroupNode, GroupNode, Directory]]:
    """The masters of two groups; the first one's nodes know of these topics in the second one."""
    directory = Directory(broker_name="g1")
    with trio.fail_after(WITHIN_S):
        async with (
            hastore.open_node(of_group(tmp_path, "g1"), directory=directory) as one,
            hastore.open_node(of_group(tmp_path, "g2")) as two,
        ):
            await promote(one)
            await promote(two)
            assert one.address is not None, "it has a client port"
            assert two.address is not None, "it has a client port"
            directory.known = known(one.address, master=one.address)
            directory.others = (other(two.address, *topics),)
            for address, names in ((one.address, home_topics), (two.address, ("T",))):
                async with AdminClient.connect(address) as admin:
                    for name in names:
                        await admin.create_topic(name, read_queue_nums=2)
            yield one, two, directory


async def serve(
    config: GroupNodeConfig,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[GroupNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the master of a group until told to stop; a task, whose start returns the node."""
    async with hastore.open_node(config) as node:
        await promote(node)
        task_status.started(node)
        await stop.wait()


def other(address: tuple[str, int], *topics: str) -> BrokerRoute:
    """Return the second group as the first one's nodes know it."""
    queues = TopicQueues(read=2, write=2, perm=6)
    return BrokerRoute(
        cluster="DefaultCluster",
        broker_name="g2",
        addresses={0: address},
        topics=dict.fromkeys(topics, queues),
    )


async def put(node: GroupNode, *bodies: bytes) -> None:
    """Put messages on one node, and wait until they may be read."""
    assert node.address is not None, "it has a client port"
    async with Producer.connect(node.address) as producer:
        for body in bodies:
            assert (await producer.send(Message("T", body))).ok
    await all_dispatched(node)
