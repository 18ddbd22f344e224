"""Messages of a topic's queues as one stream: a task pulls each queue, one caller reads.

::

    queue 0  pull ─┐
    queue 1  pull ─┼─► one answer at a time ─► its messages, one by one ─► async for
    queue 2  pull ─┘        the caller asks for more: handled ─► committed every few seconds

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
from hastore.client.route import read_readable_queue_nums
from hastore.errors import HastoreError
from hastore.trace import logger
from hastore.wire.config_tables import GROUP_ONLY
from hastore.wire.pull_message import PullRequest
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hastore.client.group_membership import GroupMembership
    from hastore.client.remoting_client import Asker
    from hastore.message import StoredMessage

BACK_OFF_S: Final = 1.0

_log = logger("client")


@final
@attrs.frozen
class _Answer:
    """The answer to one pull; once its messages are handled, so is the queue up to next_offset."""

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
    ) -> None:
        self.settings = settings
        self.passed_over = 0
        self._client = client
        self._membership = membership
        self._send, self._receive = trio.open_memory_channel[_Answer](0)
        self._answer: _Answer | None = None  # the one whose rest is in _ready
        self._ready: deque[StoredMessage] = deque()
        self._taken: StoredMessage | None = None  # returned to the caller, perhaps not handled yet
        self._handled: dict[int, int] = {}  # queue → next offset, not committed yet
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
        settings = self.settings
        if settings.group is not None and self._membership is not None:
            await self._membership.join(settings.group, settings.topic, settings.tags)
        queue_ids = settings.queue_ids
        if queue_ids is None:
            route = await self._client.invoke(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": settings.topic, GROUP_ONLY: "true"}
            )
            queue_ids = range(read_readable_queue_nums(route.body))
        async with trio.open_nursery() as nursery:
            for queue_id in queue_ids:
                nursery.start_soon(self._or_fail, partial(self._pull_queue, queue_id))

    async def _pull_queue(self, queue_id: int) -> None:
        settings = self.settings
        offset = await settings.start.find(self._client, settings.group, settings.topic, queue_id)
        end = None
        if settings.until_end:
            end = await ConsumeFrom.end().find(self._client, None, settings.topic, queue_id)
        while end is None or offset < end:
            result = await pull(
                self._client,
                PullRequest(
                    group=settings.group or NO_GROUP,
                    topic=settings.topic,
                    queue_id=queue_id,
                    queue_offset=offset,
                    count_max=settings.count_max,
                    suspend_timeout_ms=0 if settings.until_end else settings.suspend_timeout_ms,
                    subscription=settings.tags,
                ),
            )
            messages, next_offset = result.messages, result.next_begin_offset
            if end is not None:
                messages = tuple(one for one in messages if one.queue_offset < end)
                next_offset = min(next_offset, end)
            if messages or next_offset != offset:
                await self._send.send(_Answer(queue_id, messages, next_offset))
            offset = await self._next_offset(queue_id, offset, result)
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
        self._taken = message = self._ready.popleft()
        return message

    def handled(self) -> None:
        """Mark the last message returned as handled."""
        if self._taken is not None:
            self._handled[self._taken.queue_id] = self._taken.queue_offset + 1
            self._taken = None
        if self._answer is not None and not self._ready:
            self._handled[self._answer.queue_id] = self._answer.next_offset
            self._answer = None

    # -- committing ------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await trio.sleep(self.settings.commit_interval_s)
            await self.commit()

    async def commit(self) -> None:
        """Commit the handled offsets, if there is a group.

        Raises as ``RemotingClient.invoke`` does.
        """
        group = self.settings.group
        if group is None:
            return
        async with self._one_commit:
            for queue_id, offset in tuple(self._handled.items()):
                fields = {
                    "consumerGroup": group,
                    "topic": self.settings.topic,
                    "queueId": str(queue_id),
                    "commitOffset": str(offset),
                }
                await self._client.invoke(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
                if self._handled[queue_id] == offset:
                    del self._handled[queue_id]

    def close(self) -> None:
        """Stop pulling, and return no more messages."""
        self._scope.cancel()
        self._receive.close()
        if self._ready:
            self._answer = None  # some of its messages were not returned
            self._ready.clear()
