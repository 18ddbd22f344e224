"""A consumer of a run: the real client code, pulling all queues over the simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.pull_client import NO_GROUP, PullStatus, pull
from hastore.client.remoting_client import open_remoting_client
from hastore.errors import HastoreError
from hastore.sim.cluster import CLIENT_PORT, MASTER
from hastore.sim.producers import QUEUES, TOPIC
from hastore.sim.sockets import HOST
from hastore.sim.violation import ViolationError
from hastore.wire.pull_message import PullRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.client.pull_client import PullResult
    from hastore.client.remoting_client import RemotingClient
    from hastore.sim.oracle import Oracle

CONSUMER: Final = "10.0.1.1"
_PAUSE_S: Final = 1.0
_COUNT_MAX: Final = 32
_SUSPEND_MS: Final = 4_000


@final
@attrs.define(eq=False)
class SimConsumer:
    """Reads everything that the master serves; each connection goes on at the last offset."""

    oracle: Oracle
    on_violation: Callable[[ViolationError], None]
    offsets: dict[int, int] = attrs.field(factory=lambda: dict.fromkeys(range(QUEUES), 0))

    async def run(self) -> None:
        """Read until cancelled; reconnect when the link breaks."""
        HOST.set(CONSUMER)
        while True:
            master = self.oracle.cluster.master
            boot = master.boots if master.is_up else master.boots + 1
            try:
                async with (
                    open_remoting_client((MASTER, CLIENT_PORT)) as client,
                    trio.open_nursery() as nursery,
                ):
                    for queue_id in range(QUEUES):
                        nursery.start_soon(self._read_queue, client, queue_id, boot)
            except* HastoreError:
                pass
            await trio.sleep(_PAUSE_S)

    async def _read_queue(self, client: RemotingClient, queue_id: int, boot: int) -> None:
        while True:
            result = await pull(
                client,
                PullRequest(
                    group=NO_GROUP,
                    topic=TOPIC,
                    queue_id=queue_id,
                    queue_offset=self.offsets[queue_id],
                    count_max=_COUNT_MAX,
                    suspend_timeout_ms=_SUSPEND_MS,
                    subscription="*",
                ),
            )
            reads, asked, messages = self.oracle.reads, self.offsets[queue_id], result.messages
            try:
                reads.served(queue_id, asked, messages, boot)
                reads.went_on(queue_id, asked, len(messages), result.next_begin_offset)
            except ViolationError as error:
                self.on_violation(error)
            await self._go_on(queue_id, result)

    async def _go_on(self, queue_id: int, result: PullResult) -> None:
        if (
            result.status is not PullStatus.FOUND
            and result.next_begin_offset <= (self.offsets[queue_id])
        ):
            await trio.sleep(_PAUSE_S / 10)
        self.offsets[queue_id] = result.next_begin_offset
