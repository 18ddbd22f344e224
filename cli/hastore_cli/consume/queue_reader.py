"""Reads the queues of a topic together up to their ends, in the order of the log.

::

    queue 0   12 ──── 40 ──────── 97          physical offsets
    queue 1        31 ──── 55 ─────── 99      ─►  12 31 40 55 97 99
    queue 2                 (empty)

A message is returned once no queue can hold an earlier one, that is, when every queue that is not
read to its end has messages buffered.  Memory: one pull per queue.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.pull_client import PullStatus
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.client.pull_client import PullResult
    from hastore.message import StoredMessage
    from hastore_cli.node.client import NodeClient

PULL_COUNT_MAX: Final = 256
BACK_OFF_S: Final = 0.5
_NOTHING_NEW: Final = frozenset({PullStatus.RETRY_NOW, PullStatus.OFFSET_MOVED})


@final
@attrs.define(eq=False)
class QueueCursor:
    """One queue: ``buffer`` holds what was pulled below ``next_offset``, which is pulled next."""

    queue_id: int
    next_offset: int
    end_offset: int
    buffer: deque[StoredMessage] = attrs.field(factory=deque)

    @property
    def is_hungry(self) -> bool:
        """Whether it must be pulled before a message can be returned."""
        return not self.buffer and self.next_offset < self.end_offset


@final
@attrs.define(eq=False)
class QueueReader:
    """Pulls queues of a topic; calls ``on_moved(queue, offset, next offset)`` for a gap."""

    node: NodeClient
    topic: str
    cursors: Sequence[QueueCursor]
    on_moved: Callable[[int, int, int], None]
    group: str | None = None
    tags: str = "*"
    count_max: int = PULL_COUNT_MAX

    async def next_batch(self) -> list[StoredMessage]:
        """Return the next messages in the order of the log; empty at the queues' ends."""
        while hungry := [cursor for cursor in self.cursors if cursor.is_hungry]:
            await gather(self._fill, hungry)
        return self._merge()

    async def _fill(self, cursor: QueueCursor) -> None:
        result = await self.pull(cursor)
        end = cursor.end_offset
        cursor.buffer.extend(m for m in result.messages if m.queue_offset < end)
        # Messages after the end are left out: a reader that continues starts at the end.
        cursor.next_offset = min(cursor.next_offset, end)
        if result.status is PullStatus.NO_NEW_MESSAGE:
            cursor.end_offset = cursor.next_offset

    def _merge(self) -> list[StoredMessage]:
        """Take messages from the buffers until one of them must be filled again."""
        heads = [(c.buffer[0].physic_offset, c.queue_id, c) for c in self.cursors if c.buffer]
        heapq.heapify(heads)
        batch = []
        while heads:
            _, queue_id, cursor = heads[0]
            batch.append(cursor.buffer.popleft())
            if cursor.is_hungry:
                break
            if cursor.buffer:
                heapq.heapreplace(heads, (cursor.buffer[0].physic_offset, queue_id, cursor))
            else:
                heapq.heappop(heads)
        return batch

    async def pull(self, cursor: QueueCursor, *, suspend_s: float = 0) -> PullResult:
        """Pull a queue once and advance its cursor."""
        offset = cursor.next_offset
        result = await self.node.pull(
            self.topic,
            cursor.queue_id,
            offset,
            group=self.group,
            tags=self.tags,
            count_max=self.count_max,
            suspend_s=suspend_s,
        )
        next_offset = result.next_begin_offset
        if result.status is PullStatus.OFFSET_MOVED and next_offset != offset:
            self.on_moved(cursor.queue_id, offset, next_offset)
        elif next_offset <= offset and result.status in _NOTHING_NEW:
            await trio.sleep(BACK_OFF_S)  # most likely a slave that is behind
        cursor.next_offset = next_offset
        return result
