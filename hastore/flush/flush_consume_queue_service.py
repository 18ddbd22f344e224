"""Syncs what the dispatch has written: consume queues, and the index with every thorough pass.

::

    dispatch ──► consume queues (page cache) ──► fdatasync ──► checkpoint.logics_msg_timestamp

A file with ``flush_consume_queue_least_pages`` dirty pages is synced an interval after it was
written; everything is, directories too, ``flush_consume_queue_thorough_interval_ms`` after the last
time.  All of it can be rebuilt from the log, from the checkpoint on.  So a full disk only delays,
but a failed sync is fail-stop here as everywhere, because the log is on the same disk.

Invariant: the checkpoint names a time only after everything that was dispatched up to it, when the
pass began, is on the disk.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.concurrency.store_health import StoreHealth, Write
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.flush.checkpoint_flusher import will_pass
from hastore.flush.flush_timer import FlushTimer
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.flush.checkpoint_flusher import CheckpointFlusher
    from hastore.store.index.service import IndexService
    from hastore.store.queue.consume_queue_store import ConsumeQueueStore

_FLUSH: Final = "flush"

_log = logger("flush")


class _Syncable(Protocol):
    def sync(self) -> None: ...


@final
@attrs.define(eq=False, kw_only=True)
class FlushConsumeQueueService:
    """The timer of the consume queues' flushes.

    ``dispatched_timestamp_ms`` returns the store time of the last record whose units the queues
    have committed.  ``notify_dispatched`` is called after every commit of the queues.
    """

    env: Env
    config: StoreConfig
    consume_queues: ConsumeQueueStore
    index_service: IndexService | None
    checkpoint_flusher: CheckpointFlusher | None
    dispatched_timestamp_ms: Callable[[], int]
    health: StoreHealth = attrs.field(factory=StoreHealth)
    failure: Exception | None = attrs.field(default=None, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _one_pass: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _recorded_timestamp_ms: int = attrs.field(default=0, init=False)
    _is_delayed: bool = attrs.field(default=False, init=False)

    def notify_dispatched(self) -> None:
        """Wake the timer: consume queues or index were written."""
        self._wake.wakeup()

    @property
    def is_dirty(self) -> bool:
        """Whether something waits for a sync, or to be recorded in the checkpoint."""
        return (
            not self.consume_queues.is_flushed
            or self._recorded_timestamp_ms != self.dispatched_timestamp_ms()
        )

    async def run(self) -> None:
        """Serve until cancelled; a failed sync is fail-stop."""
        await FlushTimer(
            interval_ms=self.config.flush_consume_queue_interval_ms,
            least_pages=self.config.flush_consume_queue_least_pages,
            thorough_interval_ms=self.config.flush_consume_queue_thorough_interval_ms,
            is_timed=True,
            wake=self._wake,
            is_dirty=lambda: self.is_dirty,
            flush=self.flush,
        ).run()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Sync nothing while the block runs, which may remove directories of queues."""
        async with self._one_pass:
            yield

    async def flush(self, least_pages: int = 0) -> None:
        """Sync files with at least ``least_pages`` dirty pages; 0 syncs directories and index too.

        A stop calls it once more, before ``FlushManager.flush_all``, which writes the checkpoint.
        Raises the error of the first failed sync, then and at every later call.
        """
        async with self._one_pass:
            if self.failure is not None:
                raise self.failure
            try:
                await self._flush(least_pages)
            except DiskError as error:
                if not will_pass(error):
                    self.failure = error
                    _log.error("queue_flush_failed", reason=str(error), next=error.hint)
                    raise
                if not self._is_delayed:
                    _log.warning("queues_not_flushed", reason=str(error), next=error.hint)
                self._is_delayed = True
                self.env.failed_writes.failed(self.consume_queues.path, str(error), error.hint)
                self.health.failed(Write.CONSUME_QUEUES, str(error), part=_FLUSH)
            else:
                self.env.failed_writes.succeeded(self.consume_queues.path)
                self._is_delayed = False
                self.health.works(Write.CONSUME_QUEUES, part=_FLUSH)

    async def _flush(self, least_pages: int) -> None:
        timestamp_ms = self.dispatched_timestamp_ms()
        await self._flush_files(least_pages)
        if least_pages:
            return
        await self._flush_dirs()
        await self._flush_index()
        self._recorded_timestamp_ms = timestamp_ms
        if self.checkpoint_flusher is not None:
            self.checkpoint_flusher.record_queues_flushed(timestamp_ms)

    async def _flush_files(self, least_pages: int) -> None:
        """Sync, in portions, all files that were dirty at the beginning.

        They come in the order in which they became dirty, so one that comes again ends the pass.
        """
        seen: set[str] = set()
        while files := self.consume_queues.dirty_files(least_pages):
            await self._sync(files)
            self.consume_queues.mark_flushed(files)
            paths = {file.path for file in files}
            if paths & seen:
                return
            seen |= paths

    async def _sync(self, files: Sequence[_Syncable]) -> None:
        def sync() -> None:
            for file in files:
                file.sync()

        await self.env.offload.run(sync)

    async def _flush_dirs(self) -> None:
        dirs = self.consume_queues.dirty_dirs()
        if dirs:

            def sync() -> None:
                for path in dirs:
                    self.env.disk.sync_dir(path)

            await self.env.offload.run(sync)
            self.consume_queues.mark_dirs_flushed(dirs)

    async def _flush_index(self) -> None:
        if self.index_service is not None:
            files = self.index_service.dirty_files()
            if files:
                await self._sync(files)
                self.index_service.mark_flushed(files)
