"""What ``hastore consume`` reads from one replica group, and the backlogs of several as one.

Offsets say nothing between groups, so there the store times decide; each group's own messages stay
in the order of its log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import AccessDeniedError, TlsError, UnreachableError
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import trio

    from hastore.client.pull_client import PullResult
    from hastore.message import StoredMessage
    from hastore_cli.consume.queue_reader import QueueCursor, QueueReader
    from hastore_cli.node.client import NodeClient

SUSPEND_S: Final = 15.0  # a pull is held for as long, while there is no message
# By these a group is lost, and others are not.
LOSSES: Final = (UnreachableError, AccessDeniedError, TlsError)


@final
@attrs.frozen
class Pulled:
    """New messages of a queue."""

    read: GroupRead
    queue_id: int
    result: PullResult


@final
@attrs.define(eq=False)
class GroupRead:
    """The reading of one group, or of one node."""

    node: NodeClient
    reader: QueueReader
    # By queue: the offset after the last message printed, and the same until it is committed.
    next_offsets: dict[int, int] = attrs.field(factory=dict, init=False)
    uncommitted: dict[int, int] = attrs.field(factory=dict, init=False)

    @property
    def name(self) -> str | None:
        """The group's name; None: it is that of the addresses."""
        return self.node.group_name

    def printed(self, queue_id: int, next_offset: int) -> None:
        """All messages of a queue below ``next_offset`` are printed, or left out by the tags."""
        self.next_offsets[queue_id] = self.uncommitted[queue_id] = next_offset

    async def pull_for_ever(
        self, cursor: QueueCursor, send: trio.MemorySendChannel[Pulled]
    ) -> None:
        """Send what a queue gets from now on.  Raises UnreachableError."""
        while True:
            offset = cursor.next_offset
            result = await self.reader.pull(cursor, suspend_s=SUSPEND_S)
            # Without messages it may still advance: past messages that the tags left out.
            if result.messages or result.next_begin_offset != offset:
                await send.send(Pulled(self, cursor.queue_id, result))

    async def commit(self) -> None:
        """Commit the offsets of what was printed.

        Raises RequestFailedError, and UnreachableError for the group of the addresses: the others
        get their messages again.
        """

        async def commit_queue(queue_id: int) -> None:
            offset, reader = self.uncommitted[queue_id], self.reader
            assert reader.group is not None, "only a consumer group has offsets"
            try:
                await self.node.admin.update_offset(reader.group, reader.topic, queue_id, offset)
            except LOSSES:
                if self.name is None:
                    raise
                return
            if self.uncommitted[queue_id] == offset:
                del self.uncommitted[queue_id]

        await gather(commit_queue, list(self.uncommitted))

    async def end(self) -> None:
        """Commit and leave the consumer group, unless the link has ended.  Raises as ``commit``."""
        if self.node.client.broken_because is None:
            await self.commit()
            await self.node.membership.leave()


@final
class MergedBacklog:
    """What the queues of all groups hold up to their ends."""

    def __init__(
        self, reads: Sequence[GroupRead], on_lost: Callable[[GroupRead, Exception], None]
    ) -> None:
        self._on_lost = on_lost  # called with another group than that of the addresses
        self._left: dict[GroupRead, deque[StoredMessage]] = {read: deque() for read in reads}

    async def next_batch(self) -> tuple[GroupRead, list[StoredMessage]] | None:
        """Return the next messages, all of one group; None at the end.  Raises UnreachableError."""
        for read, batch in list(self._left.items()):
            if not batch:
                try:
                    batch.extend(await read.reader.next_batch())
                except* LOSSES as errors:
                    if read.name is None:
                        raise
                    del self._left[read]
                    self._on_lost(read, errors.exceptions[0])
            if not batch and read in self._left:
                del self._left[read]
                for cursor in read.reader.cursors:
                    read.printed(cursor.queue_id, cursor.next_offset)
        if not self._left:
            return None
        read, *others = sorted(self._left, key=lambda each: self._left[each][0].store_timestamp_ms)
        batch = self._left[read]
        if not others:
            messages = list(batch)
            batch.clear()
            return read, messages
        until_ms = self._left[others[0]][0].store_timestamp_ms
        messages = [batch.popleft()]
        while batch and batch[0].store_timestamp_ms <= until_ms:
            messages.append(batch.popleft())
        return read, messages
