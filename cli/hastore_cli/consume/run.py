"""Reads for ``hastore consume``: the backlog in the order of the log, then new messages.

::

    backlog   QueueReader ─► on_messages                     up to each queue's end
    live      one held pull a queue ─► channel ─► on_messages    until Ctrl-C, -n

Of a cluster of several replica groups all that have the topic are read; each message of a backlog
has its place by the time at which it was stored.

With a group the offsets of printed messages are committed every few seconds and at the end.
Invariant: all messages below a committed offset were printed and flushed by ``on_messages``, or the
tags leave them out, so that each message is printed at least once.
"""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.master_link import FAILOVER_TIMEOUT_S
from hastore.env.real import real_env
from hastore.errors import ConfigError, RequestFailedError, UnreachableError
from hastore.quantities import read_digits, ungrouped
from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.app.interrupts import interruptible
from hastore_cli.app.times import parse_time_ms
from hastore_cli.consume.group_read import LOSSES, SUSPEND_S, GroupRead, MergedBacklog, Pulled
from hastore_cli.consume.queue_reader import PULL_COUNT_MAX, QueueCursor, QueueReader
from hastore_cli.node.client import (
    NodeClient,
    OtherGroups,
    connect_group,
    connect_node,
    gather,
    with_other_groups,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from hastore.client.master_link import Failover
    from hastore.message import StoredMessage


COMMIT_INTERVAL_S: Final = 5.0
LOOK_INTERVAL_S: Final = 30.0  # for groups that have the topic, or can be reached, from now on
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
    _is_live: bool = attrs.field(default=False, init=False)  # the backlog is read
    _reads: list[GroupRead] = attrs.field(factory=list, init=False)
    # What was read from other groups until they could not be read any more, by name.
    _lost: dict[str | None, GroupRead] = attrs.field(factory=dict, init=False)
    _why_lost: dict[str, str] = attrs.field(factory=dict, init=False)  # as it was said last
    _began_ms: int = attrs.field(factory=real_env().wall_clock.now_ms, init=False)

    async def run(self) -> int | None:
        """Read until the end; return 128 + the signal's number if a signal ended it."""
        async with interruptible() as interruption:
            with interruption.grace_scope:
                async with self._connect() as node, with_other_groups(node) as others:
                    interruption.grace_s = _LAST_COMMIT_S
                    try:
                        with interruption.scope:
                            await self._read(node, others)
                    finally:
                        await self._commit_at_the_end()
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

    async def _read(self, node: NodeClient, others: OtherGroups) -> None:
        order = self.order
        if order.queue_id is not None:
            others = OtherGroups()  # a queue's number says nothing without its group
        elsewhere = await others.with_topic(order.topic)
        for name, reason in others.unreachable.items():
            self._cannot_read(name, reason)
        try:
            await self._open(node)
        except RequestFailedError as error:
            if not elsewhere or error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        for each in elsewhere:
            await self._try_open(each)
        cursors = [cursor for read in self._reads for cursor in read.reader.cursors]
        self.on_total(sum(max(c.end_offset - c.next_offset, 0) for c in cursors))
        async with trio.open_nursery() as nursery:
            if order.group is not None:
                nursery.start_soon(node.membership.run)  # the others' runs beside their links
                nursery.start_soon(self._commit_periodically)
            await self._read_backlog()
            if not order.exit_at_end and not self._is_enough:
                await self._read_live(node, others)
            nursery.cancel_scope.cancel()

    async def _open(self, node: NodeClient) -> GroupRead:
        """Begin to read from a group: join, and find where each queue begins."""
        order = self.order
        config = await node.topic(order.topic)
        if order.group is not None:
            await node.membership.join(order.group, order.topic, order.tags)
        queue_ids = range(config.read_queue_nums)
        if order.queue_id is not None:
            check_queue(order.topic, order.queue_id, config.read_queue_nums)
            queue_ids = range(order.queue_id, order.queue_id + 1)

        lost, start = self._lost.get(node.group_name), order.start
        if self._is_live and start.kind is StartKind.END:  # its end now is not that of the start
            start = ConsumeStart(StartKind.TIME, self._began_ms)

        async def open_queue(queue_id: int) -> QueueCursor:
            held = await node.queue_range(order.topic, queue_id)
            offset = None if lost is None else lost.next_offsets.get(queue_id)
            if offset is None:
                offset = await start.find(node, order.group, order.topic, queue_id, held)
            return QueueCursor(queue_id, offset, held.stop)

        cursors = await gather(open_queue, queue_ids)
        where = "" if node.group_name is None else f" of group {node.group_name}"

        def moved(queue_id: int, offset: int, next_offset: int) -> None:
            self.on_note(
                f"queue {queue_id}{where} does not hold offset {offset}: going on at {next_offset}"
            )

        reader = QueueReader(
            node,
            order.topic,
            cursors,
            moved,
            group=order.group,
            tags=order.tags,
            count_max=min(order.count or PULL_COUNT_MAX, PULL_COUNT_MAX),
        )
        read = GroupRead(node, reader)
        if lost is not None:
            read.next_offsets, read.uncommitted = lost.next_offsets, lost.uncommitted
            del self._lost[node.group_name]
        self._reads.append(read)
        return read

    async def _try_open(self, node: NodeClient) -> GroupRead | None:
        """Begin to read from a group that may not have the topic, or may not be readable."""
        read = None
        try:
            read = await self._open(node)
        except* LOSSES as errors:
            if node.group_name is not None:
                self._cannot_read(node.group_name, str(errors.exceptions[0]))
        except* RequestFailedError:
            pass  # it does not have the topic
        return read

    # -- messages --------------------------------------------------------------------------------

    @property
    def _is_enough(self) -> bool:
        return self.order.count is not None and self.taken >= self.order.count

    async def _read_backlog(self) -> None:
        backlog = MergedBacklog(list(self._reads), self._lose)
        while (batch := await backlog.next_batch()) is not None:
            self._take(*batch)
            if self._is_enough:
                return

    async def _read_live(self, node: NodeClient, others: OtherGroups) -> None:
        self._is_live = True
        send, receive = trio.open_memory_channel[Pulled](0)
        async with trio.open_nursery() as nursery:
            for read in self._reads:
                nursery.start_soon(self._pull_group, read, send)
            nursery.start_soon(self._look_for_groups, node, others, send, nursery)
            async for pulled in receive:
                self._take(pulled.read, pulled.result.messages)
                if self._is_enough:
                    break
                pulled.read.printed(pulled.queue_id, pulled.result.next_begin_offset)
            nursery.cancel_scope.cancel()

    async def _pull_group(self, read: GroupRead, send: trio.MemorySendChannel[Pulled]) -> None:
        """Pull the queues of a group; another group than that of the addresses may be lost."""
        try:
            async with trio.open_nursery() as nursery:
                for cursor in read.reader.cursors:
                    nursery.start_soon(read.pull_for_ever, cursor, send)
        except* LOSSES as errors:
            if read.name is None:
                raise
            self._lose(read, errors.exceptions[0])

    def _lose(self, read: GroupRead, error: Exception) -> None:
        """Leave another group out until it can be read again: then it goes on where it was."""
        assert read.name is not None, "the command ends without the group of the addresses"
        self._reads.remove(read)
        self._lost[read.name] = read
        self._cannot_read(read.name, str(error))

    def _cannot_read(self, name: str, reason: str) -> None:
        """Say once that another group is left out for now; an output that ends must be whole."""
        if self.order.exit_at_end:
            raise UnreachableError(
                f"group {name} of this cluster has the topic, and cannot be read: {reason}",
                hint="hastore cluster status shows its nodes; --addr of one node reads one group",
            )
        if self._why_lost.get(name) != reason:
            self._why_lost[name] = reason
            self.on_note(f"group {name} cannot be read now: {reason}")

    async def _look_for_groups(
        self,
        home: NodeClient,
        others: OtherGroups,
        send: trio.MemorySendChannel[Pulled],
        nursery: trio.Nursery,
    ) -> None:
        """Read groups that have the topic, or can be reached again, from then on, too."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            with contextlib.suppress(UnreachableError):  # those that read say so
                nodes = [home, *await others.with_topic(self.order.topic)]
                known = {read.name for read in self._reads}
                for node in nodes:
                    if node.group_name not in known:
                        read = await self._try_open(node)
                        if read is not None:
                            nursery.start_soon(self._pull_group, read, send)

    def _take(self, read: GroupRead, messages: Sequence[StoredMessage]) -> None:
        """Print the messages that are still wanted, and count them as read."""
        if self.order.count is not None:
            messages = messages[: self.order.count - self.taken]
        if not messages:
            return
        self.on_messages(messages)
        self.taken += len(messages)
        for message in messages:
            read.printed(message.queue_id, message.queue_offset + 1)

    # -- committing ------------------------------------------------------------------------------

    async def _commit_periodically(self) -> None:
        while True:
            await trio.sleep(COMMIT_INTERVAL_S)
            await gather(GroupRead.commit, list(self._reads))

    async def _commit_at_the_end(self) -> None:
        group = self.order.group
        if group is None:
            return
        try:
            await gather(GroupRead.end, list(self._reads))
        finally:
            if any(read.uncommitted for read in [*self._reads, *self._lost.values()]):
                self.on_note(f"the last offsets of group {group} could not be committed")


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
    offset = read_digits(ungrouped(text))
    if offset is not None:
        return ConsumeStart(StartKind.OFFSET, offset)
    raise ValueError(f"{text!r} is not beginning, end, stored, an offset or @TIME (such as @15min)")


def check_queue(topic: str, queue_id: int, queue_nums: int) -> None:
    """Raise ConfigError for a queue that a topic does not have."""
    if queue_id >= queue_nums:
        raise ConfigError(
            f"topic {topic} has no queue {queue_id}", hint=f"its queues are 0 to {queue_nums - 1}"
        )
