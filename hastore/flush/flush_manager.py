"""Forces the log to disk as the node's flush type says; commits before it, the checkpoint after.

::

                 ┌ TransientStorePool: CommitRealTimeService (buffer → file) ┐
    append ──────┤                                                           ├──► flush ──► disk
                 └ without it: the bytes are in the file                     ┘      └──► checkpoint

``SYNC_FLUSH`` flushes by GroupCommitService, ``ASYNC_FLUSH`` by FlushRealTimeService.  An error
from the disk comes out of ``run`` and is fail-stop: nothing may be acknowledged after it, and no
write or sync is tried again in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import trio

from hastore.concurrency.group_commit_request import Part
from hastore.concurrency.service import as_itself
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.flush.append_wake import AppendWake
from hastore.flush.commit_real_time_service import CommitRealTimeService
from hastore.flush.flush_real_time_service import FlushRealTimeService
from hastore.flush.group_commit_service import GroupCommitService
from hastore.flush.log_committer import LogCommitter
from hastore.flush.log_flusher import LogFlusher
from hastore.status import FlushDiskType, PutMessageStatus
from hastore.store.log.transient_store_pool import TransientStorePool
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.concurrency.latency_histogram import LatencyHistogram
    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.flush.checkpoint_flusher import CheckpointFlusher
    from hastore.store.commit_log import CommitLog

FLUSH_ALL_RETRIES_MAX: Final = 10  # RocketMQ's RETRY_TIMES_OVER

_log = logger("flush")


@final
class FlushManager:
    """The flush side of one store.

    ``notify_appended()`` is called after every append and only wakes the service.  It runs
    ``checkpoint_flusher``, which records after each pass how far the log is on disk.
    ``store_timestamp_ms`` returns the store time of the log's last record if the log itself does
    not know it (a slave's: there the dispatch does).

    ``on_flushed`` is called with the new flushed offset after each pass, ``on_committed`` when a
    commit has moved ``readable_offset`` (never without a pool), ``on_failed`` with the error in the
    same step in which a commit or a sync fails.  None of them may block or raise.
    """

    def __init__(
        self,
        env: Env,
        commit_log: CommitLog,
        config: StoreConfig,
        checkpoint_flusher: CheckpointFlusher | None = None,
        *,
        store_timestamp_ms: Callable[[], int] | None = None,
        on_flushed: Callable[[int], None] | None = None,
        on_committed: Callable[[], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._commit_log = commit_log
        self._checkpoint_flusher = checkpoint_flusher
        self.flush_all_retries = 0  # of the last ``flush_all``
        wake = WaitNotifyObject()
        self.notify_appended: Callable[[], None] = wake.wakeup
        self._committer: LogCommitter | None = None
        self._commit_service: CommitRealTimeService | None = None
        timestamp = store_timestamp_ms or (lambda: commit_log.store_timestamp_ms)
        if config.transient_store_pool_enable:
            pool = TransientStorePool(
                env.memory, commit_log.file_size, config.transient_store_pool_size
            )
            commit_log.begin_buffering(pool)

            def committed() -> None:
                wake.wakeup()
                if on_committed is not None:
                    on_committed()

            committer = self._committer = LogCommitter(env, commit_log, committed, on_failed)
            timestamp = lambda: committer.timestamp_ms  # noqa: E731 - the type is declared above
            self._commit_service = CommitRealTimeService(committer, pool, config)
            self.notify_appended = self._commit_service.notify_appended
        self._flusher = LogFlusher(
            env, commit_log, timestamp, checkpoint_flusher, self._flushed, on_failed
        )
        self._on_flushed = on_flushed
        self._group_commit: GroupCommitService | None = None
        self._real_time: FlushRealTimeService | None = None
        if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._group_commit = GroupCommitService(
                self._flusher, wake, config.sync_flush_timeout_ms
            )
        else:
            append_wake = None
            if self._committer is None and not config.flush_commit_log_timed:
                append_wake = AppendWake(commit_log, config.flush_least_pages, wake)
                self.notify_appended = append_wake.notify_appended
            self._real_time = FlushRealTimeService(self._flusher, wake, config, append_wake)

    @property
    def flushed_offset(self) -> int:
        """End of what is on the disk."""
        return self._commit_log.flushed_offset

    @property
    def pass_times(self) -> LatencyHistogram:
        """Durations of the passes that synced something (one fdatasync each, two after a roll)."""
        return self._flusher.pass_times

    @property
    def waiting(self) -> int:
        """Number of puts that wait for the disk."""
        return 0 if self._group_commit is None else len(self._group_commit.watcher.queue)

    # -- puts ------------------------------------------------------------------------------------

    def handle_disk_flush(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for the disk (its FLUSH part) if the flush type is SYNC_FLUSH."""
        if self._group_commit is None:
            request.complete(Part.FLUSH, PutMessageStatus.PUT_OK)
        else:
            self._group_commit.put_request(next_offset, request)

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Answer every put that waits for the disk."""
        if self._group_commit is not None:
            self._group_commit.watcher.queue.fail_all(status, reason)

    def _flushed(self, flushed_offset: int) -> None:
        if self._on_flushed is not None:  # first: what is acknowledged must be kept before
            self._on_flushed(flushed_offset)
        if self._group_commit is not None:
            self._group_commit.release(flushed_offset)

    # -- serving ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError (or another DiskError) is fail-stop."""
        services = [
            service
            for service in (
                self._group_commit,
                self._real_time,
                self._commit_service,
                self._checkpoint_flusher,
            )
            if service is not None
        ]
        with as_itself():
            async with trio.open_nursery() as nursery:
                for service in services:
                    nursery.start_soon(service.run)

    async def flush_all(self) -> None:
        """Commit and sync everything, then write the checkpoint; the last step of a stop.

        Appends during a pass make another one necessary, up to ``FLUSH_ALL_RETRIES_MAX`` (counted
        in ``flush_all_retries``).  A write or sync that failed is not tried again: its error is
        raised, now and at every later call.
        """
        log = self._commit_log
        for retries in range(FLUSH_ALL_RETRIES_MAX + 1):
            self.flush_all_retries = retries
            if self._committer is not None:
                await self._committer.commit()
            await self._flusher.flush()
            if log.flushed_offset == log.max_offset:
                break
        if self.flush_all_retries:
            _log.info(
                "flushed_with_retries",
                retries=self.flush_all_retries,
                flushed=log.flushed_offset,
                left=log.max_offset - log.flushed_offset,
            )
        if self._checkpoint_flusher is not None:
            await self._checkpoint_flusher.flush()

    def close(self) -> None:
        """End the flush thread, if there is one; the store closes next."""
        self._flusher.close()
