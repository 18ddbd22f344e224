"""A producer of a run: the real client code, sending over the simulated network.

An answer arrives some time after the master sent it, or never: then the outcome is unknown (P2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.producer import Producer
from hastore.errors import HastoreError, UnknownOutcomeError
from hastore.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY, Message
from hastore.sim.cluster import CLIENT_PORT, MASTER
from hastore.sim.host import SimOffload, sim_env
from hastore.sim.producers import QUEUES, TOPIC
from hastore.sim.put import Put, PutOutcome, outcome_of
from hastore.sim.sockets import HOST

if TYPE_CHECKING:
    from random import Random

    from hastore.client.send_result import SendResult
    from hastore.sim.oracle import Oracle

PRODUCER: Final = "10.0.1.2"
_REST_S: Final = 1.0
_SIZE_MAX: Final = 300
_RECORD_OVERHEAD_MAX: Final = 1_024
_PROCESS_ID: Final = 900


@final
@attrs.define(eq=False)
class ClientProducer:
    """Sends a message now and then; reconnects when the link breaks."""

    oracle: Oracle
    choices: Random

    async def run(self) -> None:
        """Send until cancelled."""
        HOST.set(PRODUCER)
        master = self.oracle.cluster.master
        env = sim_env(master.disk, master.wall_clock, SimOffload(self.choices), _PROCESS_ID)
        while True:
            try:
                async with Producer.connect((MASTER, CLIENT_PORT), env=env) as producer:
                    while producer.broken_because is None:
                        await trio.sleep(self.choices.expovariate(1 / _REST_S))
                        await self._send(producer)
            except* HastoreError:
                pass
            await trio.sleep(_REST_S)

    async def _send(self, producer: Producer) -> None:
        puts = self.oracle.puts
        put = Put(len(puts), b"put-%d-" % len(puts))
        puts.append(put)
        size = self.choices.randint(1, _SIZE_MAX)
        text = f"put {put.number}, {size} bytes, over the network"
        self.oracle.cluster.trace.add("producer", text, is_detail=True)
        # The master may crash while its answer is on the way: the time of sending counts.
        put.at = put.submitted_at = trio.current_time()
        properties = {PROPERTY_KEYS: put.key.decode(), PROPERTY_UNIQ_KEY: f"{put.number:032X}"}
        message = Message(TOPIC, b"c" * size, properties=properties)
        try:
            result = await producer.send(message, queue_id=put.number % QUEUES)
        except UnknownOutcomeError:
            put.outcome = PutOutcome.UNKNOWN
        except HastoreError:
            put.outcome = PutOutcome.FAILED  # it was not sent
            raise
        else:
            self._answered(put, result, size)

    def _answered(self, put: Put, result: SendResult, size: int) -> None:
        put.status = result.status
        text = f"put {put.number} {result.status.value} {result.physic_offset}, over the network"
        self.oracle.cluster.trace.add("producer", text, is_detail=True)
        put.outcome = outcome_of(result.status)
        if put.outcome is PutOutcome.OK:
            assert result.physic_offset is not None
            put.physic_offset = result.physic_offset
            put.next_offset = put.physic_offset + size + _RECORD_OVERHEAD_MAX
            self.oracle.acknowledged += 1
