"""Producers of a group: they put to whatever takes itself for a master, at times to two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.message import PROPERTY_DELAY_TIME_LEVEL, Message
from hastore.sim.group.group_cluster import epoch_of
from hastore.sim.group.group_oracle import GroupPut
from hastore.sim.producers import QUEUES, TOPIC, properties_of
from hastore.sim.put import Put
from hastore.sim.put_wait import PutWait
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.group.group_oracle import GroupOracle

_PUT_WAIT_S: Final = 60.0
_LEVELS: Final = ("1", "1", "2")  # 1 s and 5 s
_DELAYED: Final = 0.3  # of the messages
_HALF: Final = 0.5


@final
@attrs.define(eq=False)
class GroupProducers:
    """All producers of a run; ``on_violation`` is called at the instant of a wrong answer."""

    cluster: GroupCluster
    oracle: GroupOracle
    choices: Random
    on_violation: Callable[[ViolationError], None]
    put_wait: PutWait = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Wait beside the master's process."""
        self.put_wait = PutWait(self.on_violation, _PUT_WAIT_S)

    async def produce(self, choices: Random) -> None:
        """Put bursts of messages, and rest between them."""
        rest_s = choices.choice((0.3, 1.0, 3.0))
        burst_max = choices.choice((1, 4, 12))
        size_max = choices.choice((10, 300, 2_000))
        burst_max, is_parallel = self.put_wait.burst(
            burst_max, is_parallel=choices.random() < _HALF
        )
        while True:
            await trio.sleep(choices.expovariate(1 / rest_s))
            sizes = [choices.randint(1, size_max) for _ in range(choices.randint(1, burst_max))]
            if is_parallel:
                async with trio.open_nursery() as nursery:
                    for size in sizes:
                        nursery.start_soon(self.put, size, choices)
            else:
                for size in sizes:
                    await self.put(size, choices)

    async def put(self, size: int, choices: Random, topic: str = TOPIC) -> Put | None:
        """Put a message to one of the masters, and wait for its answer; None without a master."""
        masters = [
            (agent, master)
            for agent, master in self.cluster.masters()
            if agent.sim_node.frozen is None
        ]
        if not masters:
            await trio.sleep(0.1)
            return None
        agent, master = choices.choice(masters)
        number = len(self.oracle.puts)
        put = Put(number, b"put-%d-" % number, topic)
        self.oracle.puts.append(put)
        each = GroupPut(put, agent, master, epoch_of(master))
        properties = properties_of(number)
        if self.cluster.config.has_delays and choices.random() < _DELAYED:
            properties[PROPERTY_DELAY_TIME_LEVEL] = choices.choice(_LEVELS)
        body = bytes([65 + number % 26]) * size
        message = Message(topic, body, queue_id=number % QUEUES, properties=properties)
        put.submitted_at = trio.current_time()
        self.oracle.waiting[number] = each
        done = trio.Event()

        def answered(request: GroupCommitRequest) -> None:
            self.oracle.waiting.pop(number, None)
            if not agent.is_over:
                self._answered(each, request)
            done.set()

        text = f"put {number}, {size} bytes, to {agent.sim_node.name} in epoch {each.epoch}"
        self.cluster.trace.add("producer", text, is_detail=True)
        request = master.submit(message)
        if request.status is not None:
            answered(request)
        else:
            request.on_done = answered
            await self.put_wait(agent.sim_node, master, request, put, done)
        return put

    def _answered(self, each: GroupPut, request: GroupCommitRequest) -> None:
        result = request.result
        assert result is not None
        text = f"put {each.put.number} {result.status.value} {result.physic_offset}"
        self.cluster.trace.add("producer", text, is_detail=True)
        try:
            self.oracle.answered(each, result)
        except ViolationError as error:
            self.on_violation(error)
