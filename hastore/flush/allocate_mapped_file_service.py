"""Makes the next mapped file before it is needed, in a thread, so that an append does not wait.

The log says which file it wants (the first; the next one once the last is half written); the
service makes it and hands it over.  A failure is kept and told to whoever waits; the file is tried
again when somebody asks again, so space that comes back heals the node.

Invariant: one file is made at a time, and none that is not wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.store.mapped_file_queue import MappedFileQueue

_log = logger("flush")


@final
@attrs.define(eq=False)
class AllocateMappedFileService:
    """The one maker of files for ``mapped_file_queue``; ``last_error`` is the last attempt's."""

    env: Env
    mapped_file_queue: MappedFileQueue
    last_error: DiskError | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # Replaced by a new one at the end of each attempt; whoever waits, waits for the one at hand.
    _attempt_ended: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self) -> None:
        """Serve until cancelled.  An attempt that has begun is always ended."""
        queue = self.mapped_file_queue
        queue.on_file_wanted = self._wake.wakeup
        while True:
            file_from_offset = queue.wanted_file_offset()
            if file_from_offset is not None:
                await self._make(file_from_offset)
            if self.last_error is not None or queue.wanted_file_offset() is None:
                await self._wake.wait_for_running()

    async def wait_for_file(self) -> None:
        """Park until the log has its next file.

        Raises DiskError where it could not be made (in an attempt that was still running, or was
        begun, after the call).  Has no timeout of its own.
        """
        await trio.lowlevel.checkpoint()
        while self.mapped_file_queue.wanted_file_offset() is not None:
            attempt_ended = self._attempt_ended
            self._wake.wakeup()
            await attempt_ended.wait()
            if self.last_error is not None:
                raise self.last_error

    async def _make(self, file_from_offset: int) -> None:
        queue = self.mapped_file_queue
        try:
            mapped_file = await self.env.offload.run(lambda: queue.create_file(file_from_offset))
            queue.offer(mapped_file)
        except DiskError as error:
            if self.last_error is None:
                _log.error("next_file_failed", reason=str(error), next=error.hint)
            self.last_error = error
        else:
            if self.last_error is not None:
                _log.info("next_file_made_again", file_from_offset=file_from_offset)
            self.last_error = None
        self._attempt_ended.set()
        self._attempt_ended = trio.Event()
