"""Producers of a run: they put bursts of messages and record the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, Message
from hastore.sim.put import Put
from hastore.sim.put_wait import PutWait
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.sim.cluster import SimCluster
    from hastore.sim.oracle import Oracle

TOPIC: Final = "orders"
QUEUES: Final = 4
_PUT_WAIT_S: Final = 30.0
_HALF: Final = 0.5


def properties_of(number: int) -> dict[str, str]:
    """Return the properties of the message of a put."""
    return {PROPERTY_KEYS: f"put-{number}-", PROPERTY_UNIQ_KEY: f"{number:032X}"}


@final
@attrs.define(eq=False)
class Producers:
    """All producers of a run; ``on_violation`` is called at the instant of a wrong answer."""

    cluster: SimCluster
    oracle: Oracle
    choices: Random
    on_violation: Callable[[ViolationError], None]
    put_wait: PutWait = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Wait beside the master's process."""
        self.put_wait = PutWait(self.on_violation, _PUT_WAIT_S)

    async def produce(self, choices: Random) -> None:
        """Put bursts of messages, one after the other or all at once, and rest between them."""
        rest_s = choices.choice((0.5, 1.5, 4.0))
        burst_max = choices.choice((1, 1, 4, 12))
        size_max = choices.choice((10, 300, 2_000))
        burst_max, is_parallel = self.put_wait.burst(
            burst_max, is_parallel=choices.random() < _HALF
        )
        while True:
            await trio.sleep(choices.expovariate(1 / rest_s))
            burst = range(choices.randint(1, burst_max))
            sizes = [choices.randint(1, size_max) for _ in burst]
            if is_parallel:
                async with trio.open_nursery() as nursery:
                    for size in sizes:
                        nursery.start_soon(self.put, size)
            else:
                for size in sizes:
                    await self.put(size)

    async def put(self, size: int) -> Put | None:
        """Put a message and wait for its answer; None without a serving master."""
        node = self.cluster.master
        await node.wait_while_frozen()
        master, boot = self.cluster.serving_master, node.boot
        if master is None or boot is None:
            return None
        number = len(self.oracle.puts)
        put = Put(number, b"put-%d-" % number)
        self.oracle.puts.append(put)
        message = Message(
            TOPIC,
            bytes([65 + number % 26]) * size,
            queue_id=number % QUEUES,
            properties=properties_of(number),
        )
        put.submitted_at = trio.current_time()
        put.boot = boot
        self.oracle.waiting[number] = put
        done = trio.Event()

        def answered(request: GroupCommitRequest) -> None:
            self.oracle.waiting.pop(number, None)  # here: the task that waits may be cancelled
            if not boot.is_over:
                self._answered(put, request)
            done.set()

        request = master.submit(message)
        self.oracle.answers.submitted(put, master, request)
        self.cluster.trace.add("producer", f"put {number}, {size} bytes", is_detail=True)
        if request.status is not None:
            answered(request)
        else:
            request.on_done = answered
            await self.put_wait(node, master, request, put, done)
        return put

    def _answered(self, put: Put, request: GroupCommitRequest) -> None:
        result = request.result
        assert result is not None
        text = f"put {put.number} {result.status.value} {result.physic_offset}"
        self.cluster.trace.add("producer", text, is_detail=True)
        try:
            self.oracle.answered(put, result)
        except ViolationError as error:
            self.on_violation(error)
