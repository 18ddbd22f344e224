"""Writes the store's checkpoint, in a thread, at most once a second while it changes.

Each flush of the log or the consume queues records its progress here.  Each number says what is on
disk already, so a checkpoint that is written late, or mixes older and newer numbers, is still true;
the next start only reads more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.env.descriptors import EXHAUSTED
from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.store.recovery.store_checkpoint import StoreCheckpoint

CHECKPOINT_INTERVAL_S: Final = 1.0

_log = logger("flush")


@final
@attrs.define(eq=False)
class CheckpointFlusher:
    """The only writer of ``checkpoint``."""

    env: Env
    checkpoint: StoreCheckpoint
    # Returns the end of what consumers may read; called for every write of the checkpoint.
    confirm_offset: Callable[[], int] | None = None
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _is_full: bool = attrs.field(default=False, init=False)
    _one_write: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def notify(self) -> None:
        """Have the checkpoint written soon."""
        self._wake.wakeup()

    def record_flushed(self, flushed_offset: int, timestamp_ms: int | None) -> None:
        """Record how far the log is on disk; ``timestamp_ms`` is None if no store time is known."""
        checkpoint = self.checkpoint
        checkpoint.flushed_offset = flushed_offset
        if timestamp_ms is not None:
            checkpoint.physic_msg_timestamp = max(checkpoint.physic_msg_timestamp, timestamp_ms)
        self.notify()

    def record_queues_flushed(self, timestamp_ms: int) -> None:
        """Record the store time of the last record whose units are on disk; 0 is not a time.

        It falls where the log's times do, in a copy of a RocketMQ master's log: if it stayed, all
        later records would look as if they were on disk.
        """
        if timestamp_ms:
            self.checkpoint.logics_msg_timestamp = timestamp_ms
        self.notify()

    async def run(self) -> None:
        """Serve until cancelled; a permanent error of the disk is fail-stop."""
        while True:
            if not self._is_full:
                await self._wake.wait_for_running()
            await self.flush()
            await trio.sleep(CHECKPOINT_INTERVAL_S)

    async def flush(self) -> None:
        """Write the checkpoint now, if it has changed.

        If the disk is full or no descriptor is left, log it once, and have ``run`` try again: the
        older checkpoint is still true.  Raises any other DiskError.
        """
        async with self._one_write:
            if self.confirm_offset is not None:
                self.checkpoint.confirm_offset = self.confirm_offset()
            try:
                await self.env.offload.run(self.checkpoint.flush)
            except DiskError as error:
                if not will_pass(error):
                    raise
                if not self._is_full:
                    _log.warning("checkpoint_not_written", reason=str(error), next=error.hint)
                self._is_full = True
                self.env.failed_writes.failed(self.checkpoint.path, str(error), error.hint)
            else:
                self.env.failed_writes.succeeded(self.checkpoint.path)
                self._is_full = False


def will_pass(error: DiskError) -> bool:
    """Whether an error is temporary: no room or no descriptor, so nothing was synced."""
    if isinstance(error, FlushFailedError):
        return False
    return is_out_of_descriptors(error) or isinstance(error, DiskFullError)


def is_out_of_descriptors(error: DiskError) -> bool:
    """Whether no descriptor was left for a file."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in EXHAUSTED
