"""Messages of a topic's queues as one stream: a task pulls each queue, one caller reads.

::

    queue 0  pull ─┐
    queue 1  pull ─┼─► one answer at a time ─► its messages, one by one ─► async for
    queue 2  pull ─┘        the caller asks for more: handled ─► committed every few seconds

In a cluster of several groups the queues are those of all groups that have the topic; groups that
get it later are found by a look at its route now and then.  A group of which no node answers ends
the stream if it is the first one, or if the stream ends by itself; another is read again, from
where it was, once it answers.

Within a queue messages come in order; each queue is at most two answers ahead of the caller.  A
message counts as handled when the caller asks for the next, or leaves the consumer's block without
an exception; the group receives unhandled messages again (at least once).  An answer without
messages is queued like any other, so that messages filtered out by tags are committed in order.

Invariant: all messages below a committed offset are handled.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Self, final

import attrs
import trio

from hastore.client.consume_from import ConsumeFrom
from hastore.client.pull_client import NO_GROUP, PullResult, PullStatus, pull
from hastore.client.reader_groups import GroupReader
from hastore.client.route import read_readable_queue_nums
from hastore.client.topic_routes import INTERVAL_S
from hastore.errors import HastoreError, RequestFailedError, UnreachableError
from hastore.trace import logger
from hastore.wire.config_tables import GROUP_ONLY
from hastore.wire.pull_message import PullRequest
from hastore.wire.remoting_codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hastore.client.group_membership import GroupMembership
    from hastore.client.reader_groups import ReaderGroups
    from hastore.client.remoting_client import Asker
    from hastore.message import StoredMessage

BACK_OFF_S: Final = 1.0

_log = logger("client")


@final
@attrs.frozen
class _Answer:
    """The answer to one pull; once its messages are handled, so is the queue up to next_offset."""

    reader: GroupReader
    queue_id: int
    messages: Sequence[StoredMessage]
    next_offset: int


@final
@attrs.frozen(kw_only=True)
class StreamSettings:
    """The parameters of a stream."""

    topic: str
    group: str | None
    start: ConsumeFrom
    tags: str
    queue_ids: Sequence[int] | None  # None: all of the topic
    until_end: bool  # end where each queue ended when the stream began
    count_max: int
    suspend_timeout_ms: int
    commit_interval_s: float
    raw_bodies: bool = False  # whether compressed bodies stay compressed


@final
class MessageStream:
    """An async iterator over StoredMessages, from ``Consumer.messages``; ends with the consumer.

    ``passed_over`` counts offsets that had expired when the stream reached them.
    """

    def __init__(
        self,
        client: Asker,
        settings: StreamSettings,
        membership: GroupMembership | None = None,
        groups: ReaderGroups | None = None,
    ) -> None:
        self.settings = settings
        self.passed_over = 0
        self._home = GroupReader(None, client, membership)
        self._groups = groups  # None: there is one group
        self._read: set[str] = set()  # the other groups that are read now
        self._positions: dict[tuple[str | None, int], int] = {}  # where a queue is read on
        self._send, self._receive = trio.open_memory_channel[_Answer](0)
        self._answer: _Answer | None = None  # the one whose rest is in _ready
        self._ready: deque[StoredMessage] = deque()
        # The one returned to the caller, perhaps not handled yet.
        self._taken: tuple[GroupReader, StoredMessage] | None = None
        # Queue → next offset, not committed yet.
        self._handled: dict[tuple[GroupReader, int], int] = {}
        self._one_commit = trio.Lock()
        self._error: HastoreError | None = None
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Pull every queue until cancelled, ended, or disconnected."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if self.settings.group is not None:
                        nursery.start_soon(self._or_fail, self._commit_regularly)
                    await self._or_fail(self._pull_all)
                    nursery.cancel_scope.cancel()
        finally:
            self._send.close()

    async def _or_fail(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run ``act``; an error ends the stream."""
        try:
            await act()
        except HastoreError as error:
            if self._error is None:
                self._error = error
            self._scope.cancel()

    # -- pulling ---------------------------------------------------------------------------------

    async def _pull_all(self) -> None:
        """Pull the queues of all groups that have the topic."""
        others: dict[str, GroupReader] = {}
        if self._groups is not None and self.settings.queue_ids is None:
            others = await self._groups.others(self.settings.topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._or_fail, partial(self._pull_home, is_only=not others))
            if self._groups is None or self.settings.queue_ids is not None:
                return
            self._start(nursery, others)
            while not self.settings.until_end:
                await trio.sleep(INTERVAL_S)
                try:
                    self._start(nursery, await self._groups.others(self.settings.topic))
                except UnreachableError:
                    continue  # those that read it say so, too

    def _start(self, nursery: trio.Nursery, others: Mapping[str, GroupReader]) -> None:
        """Pull groups that are not read yet."""
        for name, reader in others.items():
            if name not in self._read:
                self._read.add(name)
                nursery.start_soon(self._or_fail, partial(self._pull_other, name, reader))

    async def _pull_home(self, *, is_only: bool) -> None:
        try:
            await self._pull_group(self._home)
        except RequestFailedError as error:
            if is_only or error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise

    async def _pull_other(self, name: str, reader: GroupReader) -> None:
        try:
            await self._pull_group(reader)
        except (UnreachableError, RequestFailedError) as error:
            if self.settings.until_end:
                raise
            _log.warning("group_not_read", group=name, reason=str(error))
            self._read.discard(name)

    async def _pull_group(self, reader: GroupReader) -> None:
        """Pull the queues of one group."""
        settings = self.settings
        if settings.group is not None and reader.membership is not None:
            await reader.membership.join(settings.group, settings.topic, settings.tags)
        queue_ids = settings.queue_ids
        if queue_ids is None:
            route = await reader.client.invoke(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": settings.topic, GROUP_ONLY: "true"}
            )
            queue_ids = range(read_readable_queue_nums(route.body))
        await _run_all([partial(self._pull_queue, reader, queue_id) for queue_id in queue_ids])

    async def _pull_queue(self, reader: GroupReader, queue_id: int) -> None:
        settings, client, place = self.settings, reader.client, (reader.name, queue_id)
        offset = self._positions.get(place)
        if offset is None:
            offset = await settings.start.find(client, settings.group, settings.topic, queue_id)
        end = None
        if settings.until_end:
            end = await ConsumeFrom.end().find(client, None, settings.topic, queue_id)
        while end is None or offset < end:
            result = await pull(
                client,
                PullRequest(
                    group=settings.group or NO_GROUP,
                    topic=settings.topic,
                    queue_id=queue_id,
                    queue_offset=offset,
                    count_max=settings.count_max,
                    suspend_timeout_ms=0 if settings.until_end else settings.suspend_timeout_ms,
                    subscription=settings.tags,
                ),
                raw_bodies=settings.raw_bodies,
            )
            messages, next_offset = result.messages, result.next_begin_offset
            if end is not None:
                messages = tuple(one for one in messages if one.queue_offset < end)
                next_offset = min(next_offset, end)
            if messages or next_offset != offset:
                await self._send.send(_Answer(reader, queue_id, messages, next_offset))
            offset = await self._next_offset(queue_id, offset, result)
            self._positions[place] = offset
            if end is not None and result.status is PullStatus.NO_NEW_MESSAGE:
                return

    async def _next_offset(self, queue_id: int, offset: int, result: PullResult) -> int:
        """Return the offset to pull next, after a pause if it would be the same again."""
        next_offset = result.next_begin_offset
        if result.status is PullStatus.OFFSET_MOVED:
            if next_offset > offset:
                self.passed_over += next_offset - offset
            _log.warning(
                "queue_offset_moved",
                topic=self.settings.topic,
                queue_id=queue_id,
                asked=offset,
                next=next_offset,
            )
        if result.status is not PullStatus.FOUND and next_offset <= offset:
            if result.status is PullStatus.RETRY_NOW:  # a slave that lags
                await trio.sleep(BACK_OFF_S)
                return offset
            if result.status is PullStatus.OFFSET_MOVED and next_offset == offset:
                await trio.sleep(BACK_OFF_S)
        return next_offset

    # -- taking ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Return the next message; the previous one counts as handled.

        Raises the error that ended the stream: UnreachableError, RequestFailedError, ProtocolError.
        If a message is there already, this is no checkpoint: one would cost more than the message.
        """
        self.handled()
        while not self._ready:
            try:
                self._answer = await self._receive.receive()
            except (trio.EndOfChannel, trio.ClosedResourceError):
                if self._error is not None:
                    raise self._error from None
                raise StopAsyncIteration from None
            self._ready.extend(self._answer.messages)
            if not self._ready:
                self.handled()
        message = self._ready.popleft()
        assert self._answer is not None, "it is one of its messages"
        self._taken = self._answer.reader, message
        return message

    def handled(self) -> None:
        """Mark the last message returned as handled."""
        if self._taken is not None:
            reader, message = self._taken
            self._handled[reader, message.queue_id] = message.queue_offset + 1
            self._taken = None
        if self._answer is not None and not self._ready:
            answer = self._answer
            self._handled[answer.reader, answer.queue_id] = answer.next_offset
            self._answer = None

    # -- committing ------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await trio.sleep(self.settings.commit_interval_s)
            await self.commit()

    async def commit(self) -> None:
        """Commit the handled offsets, if there is a group; those of each group at the same time.

        Raises as ``RemotingClient.invoke`` does.
        """
        if self.settings.group is None:
            return
        async with self._one_commit:
            group = self.settings.group
            readers = {reader: None for reader, _ in self._handled}
            await _run_all([partial(self._commit_to, reader, group) for reader in readers])

    async def _commit_to(self, reader: GroupReader, group: str) -> None:
        places = {place: self._handled[place] for place in self._handled if place[0] is reader}
        for place, offset in places.items():
            fields = {
                "consumerGroup": group,
                "topic": self.settings.topic,
                "queueId": str(place[1]),
                "commitOffset": str(offset),
            }
            is_lost = False  # its group gets these messages again
            try:
                await reader.client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            except UnreachableError:
                is_lost = reader is not self._home
                if not is_lost:
                    raise
            if is_lost or self._handled[place] == offset:
                del self._handled[place]

    def close(self) -> None:
        """Stop pulling, and return no more messages."""
        self._scope.cancel()
        self._receive.close()
        if self._ready:
            self._answer = None  # some of its messages were not returned
            self._ready.clear()


async def _run_all(acts: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all at the same time; the first HastoreError ends the others, and is raised."""
    errors: list[HastoreError] = []
    async with trio.open_nursery() as nursery:

        async def run(act: Callable[[], Awaitable[None]]) -> None:
            try:
                await act()
            except HastoreError as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        for act in acts:
            nursery.start_soon(run, act)
    if errors:
        raise errors[0]
