"""The directory of another group: the same name, node and epochs, and other bytes.

Every group begins with epoch 1 at offset 0, so a list of epochs does not tell two groups apart.
Half of these logs have records where ours has them, too: nothing but the bytes is different then.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.group_node import run_group_node
from hastore.broker.node.master_store import Promotion
from hastore.message import Message
from hastore.sim.cluster import SimNode
from hastore.sim.disk import SimDisk
from hastore.sim.group.group_records import records
from hastore.sim.host import SimWallClock
from hastore.sim.log_bytes import log_range
from hastore.sim.producers import QUEUES, TOPIC, properties_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from random import Random

    from hastore.broker.node.group_node import GroupNode
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.network import Network
    from hastore.sim.trace import Trace

_HOST: Final = "10.0.3.{}"
_MESSAGES_MAX: Final = 12
_SIZE_MAX: Final = 2_000
_HALF: Final = 0.5


@final
@attrs.frozen(eq=False)
class ForeignLog:
    """A disk, and the log on it."""

    disk: SimDisk
    data: bytearray


@final
@attrs.define(eq=False)
class OtherGroup:
    """A group of one node, with the id of a node of the simulated group.

    ``like`` is the log of which it may have the records' sizes.
    """

    cluster: GroupCluster
    node_id: int
    choices: Random
    like: bytearray

    @property
    def network(self) -> Network:
        """The simulated group's."""
        return self.cluster.network

    @property
    def trace(self) -> Trace:
        """The simulated group's."""
        return self.cluster.trace

    def main_of(self, node: SimNode) -> Callable[..., Awaitable[object]]:
        """Return the node, alone in its group.

        It does not wait for all, so its directory has no confirm mark: only the comparison of the
        bytes keeps it from being cut.
        """
        config = self.cluster.config.of_node(self.node_id, node.host)
        alone = attrs.evolve(
            config,
            group_ids=(self.node_id,),
            listen=None,
            observer_listen=None,
            ha=attrs.evolve(config.ha, in_sync_replicas=1, min_in_sync_replicas=1),
        )
        return functools.partial(run_group_node, alone)

    async def make_log(self, nursery: trio.Nursery) -> ForeignLog:
        """Return what the node leaves, after it was master of epoch 1 and has stopped."""
        clock = SimWallClock()
        host = _HOST.format(self.node_id)
        node = SimNode(self, f"other-{self.node_id}", host, False, SimDisk(clock.now_ms), clock)
        ended = trio.Event()
        node.on_ended = lambda _node, _error: ended.set()
        node.start(nursery)
        while node.node is None:  # noqa: ASYNC110 - a moment of virtual time
            await trio.sleep(0.001)
        group_node: GroupNode = node.node
        promotion = Promotion(epoch=1, members=frozenset({self.node_id}))
        master = await group_node.become_master(promotion)
        for message in self._messages():
            await master.put(message)
        end, size = master.max_offset, master.commit_log.file_size
        assert node.boot is not None
        node.boot.is_asked_to_stop = True
        group_node.stop()
        await ended.wait()
        data = log_range(node.disk, 0, end, size, durable=False)
        return ForeignLog(node.disk, bytearray(data))

    def _messages(self) -> Iterator[Message]:
        choices = self.choices
        if choices.random() < _HALF:
            for record in records(self.like):
                if record.topic != TOPIC.encode() or not record.key:
                    break  # a delayed message, or its delivery
                number = int(record.key.split(b"-")[1])
                properties = properties_of(number)
                yield Message(TOPIC, b"o" * record.body_size, properties=properties)
        for number in range(choices.randint(1, _MESSAGES_MAX)):
            body = b"other" * choices.randint(1, _SIZE_MAX // 5)
            yield Message(TOPIC, body, queue_id=number % QUEUES)
