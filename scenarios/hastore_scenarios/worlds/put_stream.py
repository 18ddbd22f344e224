"""The producer of a world: it records every put in the history when it is sent and answered.

There is one connection per node, made when it is first needed and again after it broke.  The body
of a message is made from its key, so only the key has to be kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.producer import Producer
from hastore.errors import HastoreError, RequestFailedError
from hastore.message import PROPERTY_UNIQ_KEY, PROPERTY_WAIT_STORE_MSG_OK, Message
from hastore.status import PutMessageStatus
from hastore.store.record.record_check import body_crc32

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.client.send_result import PendingSend
    from hastore.env.interface import Env
    from hastore_scenarios.judge.history import History, Operation

# Above every timeout of a node, so that the node's own status is the answer.
REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
_RECONNECT_S: Final = (0.01, 0.2)
_KEY_DIGITS: Final = 32


@final
@attrs.define(eq=False)
class PutStream:
    """The producer of one node.

    ``address_of`` returns the node's current address, None while it does not run.  ``nursery``
    outlives the stream.  Messages go to queues 0 to ``queues`` - 1 in turn.  ``env`` is the
    producer's environment, None for the real one.
    """

    node: str
    history: History
    nursery: trio.Nursery
    address_of: Callable[[], tuple[str, int] | None]
    key_prefix: int
    queues: int = 4
    env: Env | None = None
    _producer: Producer | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    _connecting: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _connections: int = attrs.field(default=0, init=False)

    async def put(self, body: bytes | None, size: int, *, topic: str, wait: bool) -> Operation:
        """Send one message and wait for its answer, or until there will be none."""
        operation, pending = await self._submit(body, size, topic=topic, wait=wait)
        if pending is not None:
            await pending.done()
        return operation

    async def put_many(
        self, count: int, size: int, *, in_flight: int, topic: str, wait: bool
    ) -> list[Operation]:
        """Send ``count`` messages with at most ``in_flight`` unanswered; wait for all."""
        operations: list[Operation] = []
        window: deque[PendingSend] = deque()
        for _ in range(count):
            if len(window) >= in_flight:
                await window.popleft().done()
            operation, pending = await self._submit(None, size, topic=topic, wait=wait)
            operations.append(operation)
            if pending is not None:
                window.append(pending)
        for pending in window:
            await pending.done()
        return operations

    async def put_until(
        self,
        stopped: Callable[[], bool],
        size: int,
        operations: list[Operation],
        *,
        in_flight: int,
        topic: str,
        wait: bool = True,
        every_s: float = 0.0,
    ) -> None:
        """Put without pause until ``stopped``, across broken links and restarts.

        Each put is appended to ``operations`` when it is sent; ``every_s``: one each so many
        seconds, at most.
        """
        window: deque[PendingSend] = deque()
        pause_s = _RECONNECT_S[0]
        while not stopped():
            try:
                await self._connected()
            except (HastoreError, OSError):
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _RECONNECT_S[1])
                continue
            pause_s = _RECONNECT_S[0]
            if len(window) >= in_flight:
                await window.popleft().done()
            operation, pending = await self._submit(None, size, topic=topic, wait=wait)
            operations.append(operation)
            if pending is not None:
                window.append(pending)
            if every_s:
                await trio.sleep(every_s)
        for pending in window:
            await pending.done()

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._scope is not None:
            self._scope.cancel()
        self._producer = self._scope = None

    async def _submit(
        self, body: bytes | None, size: int, *, topic: str, wait: bool
    ) -> tuple[Operation, PendingSend | None]:
        """Record the call, send the message, and have its answer recorded."""
        op = len(self.history.operations)
        key = f"{self.key_prefix:0{_KEY_DIGITS - 8}X}{op:08X}"
        body = body_of(key, size) if body is None else body
        operation = self.history.invoke(
            node=self.node,
            process=f"{self.node}/{self._connections}",
            topic=topic,
            queue_id=op % self.queues,
            key=key,
            body_size=len(body),
            body_crc=body_crc32(body),
            wait=wait,
        )
        properties = {PROPERTY_UNIQ_KEY: key}
        if not wait:
            properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
        try:
            producer = await self._connected()
            pending = await producer.submit(
                Message(topic, body, properties=properties), queue_id=operation.queue_id
            )
        except (HastoreError, OSError) as error:
            self.history.lose(operation, str(error), sent=False)
            return operation, None
        if pending.is_done:
            _record(self.history, operation, pending)
        else:
            pending.on_done = lambda _: _record(self.history, operation, pending)
        return operation, pending

    async def _connected(self) -> Producer:
        """Return the connection, a new one if the last one broke.  Raises RequestFailedError."""
        async with self._connecting:
            if self._producer is not None and self._producer.broken_because is None:
                return self._producer
            self.hang_up()
            address = self.address_of()
            if address is None:
                raise RequestFailedError(f"{self.node} does not run", code=-1)
            scope = trio.CancelScope()
            producer: Producer = await self.nursery.start(self._hold, address, scope)
            self._producer, self._scope = producer, scope
            self._connections += 1
            return producer

    async def _hold(
        self,
        address: tuple[str, int],
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[Producer],
    ) -> None:
        """Keep one connection open until it is closed."""
        with scope:
            async with Producer.connect(
                address,
                env=self.env,
                connect_timeout_s=CONNECT_TIMEOUT_S,
                request_timeout_s=REQUEST_TIMEOUT_S,
            ) as producer:
                task_status.started(producer)
                await trio.sleep_forever()


def body_of(key: str, size: int) -> bytes:
    """Return the body of a message: its key, over and over."""
    text = key.encode()
    return (text * (size // len(text) + 1))[:size]


def _record(history: History, operation: Operation, pending: PendingSend) -> None:
    """Record a finished request in the history."""
    try:
        result = pending.result()
    except HastoreError as error:
        history.lose(operation, str(error), sent=True)
        return
    history.complete(
        operation,
        result.status,
        physic_offset=result.physic_offset,
        queue_offset=result.queue_offset,
        message_id=result.message_id,
    )
    if result.status is not PutMessageStatus.PUT_OK:
        operation.error = result.reason
