"""What forces the log to disk: one of two services, by the node's flush type.

``SYNC_FLUSH`` GroupCommitService, ``ASYNC_FLUSH`` FlushRealTimeService.  An error from the disk
comes out of ``run`` and is fail-stop: nothing may be acknowledged after it, and no sync is tried
again in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hastore.concurrency.group_commit_request import Part
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.flush.flush_real_time_service import FlushRealTimeService
from hastore.flush.group_commit_service import GroupCommitService
from hastore.flush.log_flusher import LogFlusher
from hastore.status import FlushDiskType, PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.config import StoreConfig
    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog


@final
class FlushManager:
    """The flush side of one store.

    ``notify_appended()`` is called after every append: it wakes the service, and costs no more
    than that.
    """

    def __init__(self, env: Env, commit_log: CommitLog, config: StoreConfig) -> None:
        self._commit_log = commit_log
        self._flusher = LogFlusher(env, commit_log)
        wake = WaitNotifyObject()
        self.notify_appended: Callable[[], None] = wake.wakeup
        self._group_commit: GroupCommitService | None = None
        self._real_time: FlushRealTimeService | None = None
        if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._group_commit = GroupCommitService(
                self._flusher, config.sync_flush_timeout_ms, wake
            )
        else:
            self._real_time = FlushRealTimeService(self._flusher, config.flush_interval_ms, wake)

    @property
    def flushed_offset(self) -> int:
        """End of what is on the disk."""
        return self._commit_log.flushed_offset

    @property
    def flush_passes(self) -> int:
        """Number of passes that synced something (one fdatasync each, two after a roll)."""
        return self._flusher.passes

    @property
    def waiting(self) -> int:
        """Number of puts that wait for the disk."""
        return 0 if self._group_commit is None else len(self._group_commit)

    @property
    def on_flushed(self) -> Callable[[int], None] | None:
        """Called with the new flushed offset, after each pass."""
        return self._flusher.on_flushed

    @on_flushed.setter
    def on_flushed(self, on_flushed: Callable[[int], None] | None) -> None:
        self._flusher.on_flushed = on_flushed

    @property
    def on_failed(self) -> Callable[[Exception], None] | None:
        """Called with the error in the very step in which a sync fails."""
        return self._flusher.on_failed

    @on_failed.setter
    def on_failed(self, on_failed: Callable[[Exception], None] | None) -> None:
        self._flusher.on_failed = on_failed

    def handle_disk_flush(self, request: GroupCommitRequest, next_offset: int) -> None:
        """Let a put wait for the disk (its FLUSH part), where the flush type says so."""
        if self._group_commit is None:
            request.complete(Part.FLUSH, PutMessageStatus.PUT_OK)
        else:
            self._group_commit.put_request(next_offset, request)

    async def run(self) -> None:
        """Serve until cancelled; FlushFailedError (or another DiskError) is fail-stop."""
        if self._group_commit is not None:
            await self._group_commit.run()
        elif self._real_time is not None:
            await self._real_time.run()

    async def flush_all(self) -> None:
        """Sync what is written now; FlushFailedError if a sync failed before."""
        await self._flusher.flush()
        if self._group_commit is not None:
            self._group_commit.release()

    def fail_all(self, status: PutMessageStatus, reason: str) -> None:
        """Answer every put that waits for the disk."""
        if self._group_commit is not None:
            self._group_commit.fail_all(status, reason)
