"""The puts that wait for the log's next file, in order.

The first one has reached the end of a file; later ones wait after it, within limits.  When
AllocateMappedFileService has the next file, they are appended, oldest first.

Invariant: a put waits for at most ``create_mapped_file_timeout_ms``; then it is decided
CREATE_MAPPED_FILE_FAILED.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.message import Message
from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.config import StoreConfig
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService

    # Appends a put that has waited since a time, or has it wait again.
    Append = Callable[[GroupCommitRequest, Message | Sequence[Message], float], None]


@final
@attrs.frozen
class PendingPut:
    """A put that has waited since ``since`` (trio time)."""

    request: GroupCommitRequest
    messages: Message | Sequence[Message]
    since: float
    size: int  # bytes of bodies


@final
@attrs.define(eq=False)
class PendingPuts:
    """The queue; ``run`` serves it.  ``waiting`` is always the same deque."""

    config: StoreConfig
    allocate_service: AllocateMappedFileService
    waiting: deque[PendingPut] = attrs.field(factory=deque, init=False)
    _size: int = attrs.field(default=0, init=False)  # bytes of the bodies that wait
    _failure: DiskError | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def busy_because(self) -> str | None:
        """Return why no further put may wait, or None if one may; a put must be waiting."""
        config = self.config
        waited_ms = (trio.current_time() - self.waiting[0].since) * 1000
        if (
            waited_ms > config.os_page_cache_busy_timeout_ms
            or len(self.waiting) >= config.pending_put_max
            or self._size >= config.pending_put_size_max
        ):
            return f"{len(self.waiting)} puts have waited {waited_ms:.0f} ms for the next file"
        return None

    def add(
        self,
        request: GroupCommitRequest,
        messages: Message | Sequence[Message],
        since: float | None = None,
    ) -> None:
        """Add a put that has waited since ``since`` (None: now)."""
        size = body_size(messages)
        since = trio.current_time() if since is None else since
        if not self.waiting:
            self._wake.wakeup()
        self.waiting.append(PendingPut(request, messages, since, size))
        self._size += size

    def fail(self, error: DiskError) -> None:
        """Have ``run`` raise ``error``."""
        self._failure = error
        self._wake.wakeup()

    def decide_all(
        self, status: PutMessageStatus, reason: str, since_max: float = math.inf
    ) -> None:
        """Decide the puts that have waited since ``since_max`` or longer."""
        while self.waiting and self.waiting[0].since <= since_max:
            put = self.waiting.popleft()
            self._size -= put.size
            put.request.decide(status, reason)

    async def run(self, append: Append) -> None:
        """Serve until cancelled.  Raises the error that ``fail`` was called with."""
        failed = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        timeout_ms = self.config.create_mapped_file_timeout_ms
        while True:
            if self._failure is not None:
                raise self._failure
            if not self.waiting:
                await self._wake.wait_for_running()
                continue
            deadline = self.waiting[0].since + timeout_ms / 1000
            try:
                with trio.move_on_at(deadline) as scope:
                    await self.allocate_service.wait_for_file()
            except DiskError as error:
                self.decide_all(failed, str(error), trio.current_time())
                continue
            if scope.cancelled_caught:
                reason = f"no next file within {timeout_ms} ms"
                # The head is due; by the clock, rounding could keep it waiting for ever.
                self.decide_all(failed, reason, self.waiting[0].since if self.waiting else deadline)
            else:
                self._append_all(append)

    def _append_all(self, append: Append) -> None:
        waiting = deque(self.waiting)
        self.waiting.clear()
        self._size = 0
        while waiting:
            put = waiting.popleft()
            append(put.request, put.messages, put.since)
            if self.waiting:  # the file is full again: the rest goes on waiting, in order
                self.waiting.extend(waiting)
                self._size += sum(put.size for put in waiting)
                return


def body_size(messages: Message | Sequence[Message]) -> int:
    """Return the bytes of the body or bodies."""
    if isinstance(messages, Message):
        return len(messages.body)
    return sum(len(message.body) for message in messages)
