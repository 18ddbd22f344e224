"""A consumer of a simulated group: commits its offsets, and goes on at the next master.

The real client code, over the simulated network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.admin import query_offset
from hastore.client.pull_client import PullStatus, pull
from hastore.client.remoting_client import open_remoting_client
from hastore.errors import HastoreError
from hastore.sim.cluster import CLIENT_PORT
from hastore.sim.consumer import CONSUMER
from hastore.sim.group.offset_oracle import GROUP_OF_CONSUMERS
from hastore.sim.producers import QUEUES, TOPIC
from hastore.sim.sockets import HOST
from hastore.sim.violation import ViolationError
from hastore.wire.pull_message import PullRequest
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hastore.broker.node.master import Master
    from hastore.client.remoting_client import RemotingClient
    from hastore.sim.group.group_cluster import Agent, GroupCluster
    from hastore.sim.group.offset_oracle import OffsetOracle

_PAUSE_S: Final = 1.5
_COUNT_MAX: Final = 32


@final
@attrs.define(eq=False)
class GroupConsumer:
    """Reads all queues of one master after the other; begins where its group has committed."""

    cluster: GroupCluster
    offsets: OffsetOracle
    choices: Random
    on_violation: Callable[[ViolationError], None]

    async def run(self) -> None:
        """Read until cancelled; of two masters it takes any."""
        HOST.set(CONSUMER)
        while True:
            masters = self.cluster.masters()
            if masters:
                agent, master = self.choices.choice(masters)
                try:
                    async with open_remoting_client((agent.sim_node.host, CLIENT_PORT)) as client:
                        await self._read(client, agent, master)
                except* HastoreError:
                    pass
            await trio.sleep(_PAUSE_S)

    async def _read(self, client: RemotingClient, agent: Agent, master: Master) -> None:
        """Read as long as the node is this master."""
        begun: dict[int, int] = {}
        while True:
            for queue_id in range(QUEUES):
                if queue_id not in begun:
                    offset = await query_offset(client, _fields(queue_id))
                    if not _is_master(agent, master):
                        return
                    self._begins(agent, master, queue_id, offset)
                    begun[queue_id] = offset or 0
                begun[queue_id] = await self._read_queue(
                    client, agent, master, queue_id, begun[queue_id]
                )
            if not _is_master(agent, master):
                return
            await trio.sleep(_PAUSE_S)

    def _begins(self, agent: Agent, master: Master, queue_id: int, offset: int | None) -> None:
        try:
            self.offsets.begins(agent.sim_node.name, master, queue_id, offset)
        except ViolationError as error:
            self.on_violation(error)

    async def _read_queue(
        self, client: RemotingClient, agent: Agent, master: Master, queue_id: int, offset: int
    ) -> int:
        """Read what a queue has, commit, and return the next offset."""
        request = PullRequest(
            group=GROUP_OF_CONSUMERS,
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            count_max=_COUNT_MAX,
            suspend_timeout_ms=0,
            subscription="*",
        )
        result = await pull(client, request)
        if result.status is not PullStatus.FOUND:
            return offset
        offset = result.next_begin_offset
        self.offsets.handled[queue_id] = max(self.offsets.handled[queue_id], offset)
        fields = _fields(queue_id) | {"commitOffset": str(offset)}
        await client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if _is_master(agent, master):
            self.offsets.committed(master, queue_id, offset)
        return offset


def _is_master(agent: Agent, master: Master) -> bool:
    return not agent.is_over and agent.serving_master is master


def _fields(queue_id: int) -> dict[str, str]:
    return {"consumerGroup": GROUP_OF_CONSUMERS, "topic": TOPIC, "queueId": str(queue_id)}
