"""Reads for ``hastore consume``: the backlog in the order of the log, then new messages.

::

    backlog   QueueReader ─► on_messages                     up to each queue's end
    live      one held pull a queue ─► channel ─► on_messages    until Ctrl-C, -n

With a group the offsets of printed messages are committed every few seconds and at the end.
Invariant: all messages below a committed offset were printed and flushed by ``on_messages``, or the
tags leave them out, so that each message is printed at least once.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.master_link import FAILOVER_TIMEOUT_S
from hastore.errors import ConfigError
from hastore.quantities import ungrouped
from hastore_cli.app.interrupts import interruptible
from hastore_cli.app.times import parse_time_ms
from hastore_cli.consume.queue_reader import PULL_COUNT_MAX, QueueCursor, QueueReader
from hastore_cli.node.client import NodeClient, connect_group, connect_node, gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from hastore.client.master_link import Failover
    from hastore.client.pull_client import PullResult
    from hastore.message import StoredMessage


SUSPEND_S: Final = 15.0
COMMIT_INTERVAL_S: Final = 5.0
_LAST_COMMIT_S: Final = 0.8  # after Ctrl-C; the command must end within a second


@attrs.frozen(kw_only=True)
class ConsumeOrder:
    """What to read, and from where."""

    topic: str
    addresses: list[tuple[str, int]]  # several: whichever is master, or answers
    start: ConsumeStart
    group: str | None = None
    queue_id: int | None = None
    tags: str = "*"
    count: int | None = None
    exit_at_end: bool = False
    failover_timeout_s: float = FAILOVER_TIMEOUT_S


@final
@attrs.define(eq=False)
class ConsumeRun:
    """One run of the command.

    ``on_messages`` prints and flushes a batch; ``on_note`` prints a remark; ``on_total`` receives
    the number of messages in the backlog, before tags are applied.
    """

    order: ConsumeOrder
    on_messages: Callable[[Sequence[StoredMessage]], None]
    on_note: Callable[[str], None]
    on_total: Callable[[int], None]
    on_failover: Callable[[Failover], None] = lambda _failover: None
    taken: int = attrs.field(default=0, init=False)
    _uncommitted: dict[int, int] = attrs.field(factory=dict, init=False)

    async def run(self) -> int | None:
        """Read until the end; return 128 + the signal's number if a signal ended it."""
        async with interruptible() as interruption:
            with interruption.grace_scope:
                async with self._connect() as node:
                    interruption.grace_s = _LAST_COMMIT_S
                    try:
                        with interruption.scope:
                            await self._read(node)
                    finally:
                        await self._commit_at_the_end(node)
        return interruption.exit_code

    def _connect(self) -> AbstractAsyncContextManager[NodeClient]:
        order = self.order
        if len(order.addresses) == 1:
            return connect_node(order.addresses[0], suspend_s=SUSPEND_S)
        return connect_group(
            order.addresses,
            suspend_s=SUSPEND_S,
            failover_timeout_s=order.failover_timeout_s,
            on_failover=self.on_failover,
        )

    async def _read(self, node: NodeClient) -> None:
        order = self.order
        if order.group is not None:
            await node.membership.join(order.group, order.topic, order.tags)
        cursors = await self._open_queues(node)
        self.on_total(sum(max(c.end_offset - c.next_offset, 0) for c in cursors))
        reader = QueueReader(
            node,
            order.topic,
            cursors,
            self._moved,
            group=order.group,
            tags=order.tags,
            count_max=min(order.count or PULL_COUNT_MAX, PULL_COUNT_MAX),
        )
        async with trio.open_nursery() as nursery:
            if order.group is not None:
                nursery.start_soon(node.membership.run)
                nursery.start_soon(self._commit_periodically, node)
            await self._read_backlog(reader)
            if not order.exit_at_end and not self._is_enough:
                await self._read_live(reader)
            nursery.cancel_scope.cancel()

    async def _open_queues(self, node: NodeClient) -> list[QueueCursor]:
        order = self.order
        config = await node.topic(order.topic)
        queue_ids = range(config.read_queue_nums)
        if order.queue_id is not None:
            check_queue(order.topic, order.queue_id, config.read_queue_nums)
            queue_ids = range(order.queue_id, order.queue_id + 1)

        async def open_queue(queue_id: int) -> QueueCursor:
            held = await node.queue_range(order.topic, queue_id)
            start = await order.start.find(node, order.group, order.topic, queue_id, held)
            return QueueCursor(queue_id, start, held.stop)

        return await gather(open_queue, queue_ids)

    def _moved(self, queue_id: int, offset: int, next_offset: int) -> None:
        self.on_note(f"queue {queue_id} does not hold offset {offset}: going on at {next_offset}")

    # -- messages --------------------------------------------------------------------------------

    @property
    def _is_enough(self) -> bool:
        return self.order.count is not None and self.taken >= self.order.count

    async def _read_backlog(self, reader: QueueReader) -> None:
        while batch := await reader.next_batch():
            self._take(batch)
            if self._is_enough:
                return
        for cursor in reader.cursors:
            self._uncommitted[cursor.queue_id] = cursor.next_offset

    async def _read_live(self, reader: QueueReader) -> None:
        send, receive = trio.open_memory_channel[tuple[QueueCursor, "PullResult"]](0)

        async def pull_for_ever(cursor: QueueCursor) -> None:
            while True:
                offset = cursor.next_offset
                result = await reader.pull(cursor, suspend_s=SUSPEND_S)
                # Without messages it may still advance: past messages that the tags left out.
                if result.messages or result.next_begin_offset != offset:
                    await send.send((cursor, result))

        async with trio.open_nursery() as nursery:
            for cursor in reader.cursors:
                nursery.start_soon(pull_for_ever, cursor)
            async for cursor, result in receive:
                self._take(result.messages)
                if self._is_enough:
                    break
                self._uncommitted[cursor.queue_id] = result.next_begin_offset
            nursery.cancel_scope.cancel()

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        """Print the messages that are still wanted, and count them as read."""
        if self.order.count is not None:
            messages = messages[: self.order.count - self.taken]
        if not messages:
            return
        self.on_messages(messages)
        self.taken += len(messages)
        for message in messages:
            self._uncommitted[message.queue_id] = message.queue_offset + 1

    # -- committing ------------------------------------------------------------------------------

    async def _commit_periodically(self, node: NodeClient) -> None:
        while True:
            await trio.sleep(COMMIT_INTERVAL_S)
            await self._commit(node)

    async def _commit_at_the_end(self, node: NodeClient) -> None:
        if self.order.group is None:
            return
        try:
            if node.client.broken_because is None:
                await self._commit(node)
                await node.membership.leave()
        finally:
            if self._uncommitted:
                group = self.order.group
                self.on_note(f"the last offsets of group {group} could not be committed")

    async def _commit(self, node: NodeClient) -> None:
        group = self.order.group
        assert group is not None

        async def commit_queue(queue_id: int) -> None:
            offset = self._uncommitted[queue_id]
            await node.admin.update_offset(group, self.order.topic, queue_id, offset)
            if self._uncommitted[queue_id] == offset:
                del self._uncommitted[queue_id]

        await gather(commit_queue, list(self._uncommitted))


# -- where reading begins ------------------------------------------------------------------------


class StartKind(enum.Enum):
    """The form of ``--from``: a word, an offset or a time."""

    BEGINNING = "beginning"
    END = "end"
    STORED = "stored"
    OFFSET = "OFFSET"
    TIME = "@TIME"


@final
@attrs.frozen
class ConsumeStart:
    """Where to begin in each queue; ``value`` is an offset or milliseconds since 1970."""

    kind: StartKind
    value: int = 0

    async def find(
        self, node: NodeClient, group: str | None, topic: str, queue_id: int, held: range
    ) -> int:
        """Return the offset to begin at in a queue that holds the offsets ``held``."""
        match self.kind:
            case StartKind.BEGINNING:
                return held.start
            case StartKind.END:
                return held.stop
            case StartKind.OFFSET:
                return min(max(self.value, held.start), held.stop)
            case StartKind.TIME:
                return await node.admin.search_offset(topic, queue_id, self.value)
            case StartKind.STORED:
                assert group is not None
                stored = await node.admin.query_offset(group, topic, queue_id)
                return held.start if stored is None else min(max(stored, held.start), held.stop)


def parse_start(text: str, now_ms: int) -> ConsumeStart:
    """Parse a start.  Raises ValueError that lists the forms."""
    for kind in (StartKind.BEGINNING, StartKind.END, StartKind.STORED):
        if text == kind.value:
            return ConsumeStart(kind)
    if text.startswith("@"):
        return ConsumeStart(StartKind.TIME, parse_time_ms(text[1:], now_ms))
    if ungrouped(text).isascii() and ungrouped(text).isdigit():
        return ConsumeStart(StartKind.OFFSET, int(ungrouped(text)))
    raise ValueError(f"{text!r} is not beginning, end, stored, an offset or @TIME (such as @15min)")


def check_queue(topic: str, queue_id: int, queue_nums: int) -> None:
    """Raise ConfigError for a queue that a topic does not have."""
    if queue_id >= queue_nums:
        raise ConfigError(
            f"topic {topic} has no queue {queue_id}", hint=f"its queues are 0 to {queue_nums - 1}"
        )
