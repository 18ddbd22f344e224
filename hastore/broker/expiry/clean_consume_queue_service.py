"""Deletion of consume queue and index files that point only below the log's first byte.

It runs when log files were removed, and a minute after the start, for what a crash left behind.  An
index file that is not flushed yet is checked again a minute later.  Only leading files are deleted,
never a queue's last, and each queue's minimum offset rises to its first message that is left.

    taken out of its queue, or the index ─► unlinked, directory synced, closed: in a thread

Invariant: a queue's files on the disk have no hole.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import StoreConfig
    from hastore.env.interface import Offload
    from hastore.store.index.search import IndexSearch
    from hastore.store.message_store import MessageStore
    from hastore.store.queue.consume_queue import ConsumeQueue
    from hastore.store.queue.file import ConsumeQueueFile

FIRST_RUN_S: Final = 60.0
LOOK_AGAIN_S: Final = 60.0
_QUEUES_WITHOUT_A_BREAK: Final = 64

_log = logger("broker")


@final
@attrs.define(eq=False)
class CleanConsumeQueueService:
    """The expiry of one node's consume queues and index."""

    offload: Offload
    message_store: MessageStore
    config: StoreConfig
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def wakeup(self) -> None:
        """Run again, since the log's first byte has moved."""
        self._wake.wakeup()

    async def run(self) -> None:
        """Serve until cancelled; try again after a disk error."""
        await trio.sleep(FIRST_RUN_S)
        while True:
            try:
                await self.clean()
            except DiskError as error:
                _log.error("cleaning_failed", reason=str(error), next=error.hint)
                await trio.sleep(self.config.clean_resource_interval_ms / 1000)
            else:
                look_again_s = LOOK_AGAIN_S if self._is_index_left() else math.inf
                with trio.move_on_after(look_again_s):
                    await self._wake.wait_for_running()

    async def clean(self) -> int:
        """Remove the files that point only below the log's first byte; return their number.

        They are selected in the trio thread, since the dispatch writes to the same queues.
        """
        store = self.message_store
        min_offset = store.commit_log.min_offset
        removed = 0
        for count, queue in enumerate(list(store.consume_queues), start=1):
            files = queue.take_expired(min_offset)
            if files:
                removed += await self._remove(queue, files)
            elif count % _QUEUES_WITHOUT_A_BREAK == 0:
                await trio.lowlevel.checkpoint()
        if store.index_service is not None:
            removed += await self._clean_index(store.index_service.search, min_offset)
        await trio.lowlevel.checkpoint()
        if removed:
            _log.info("queue_and_index_files_deleted", files=removed, before=min_offset)
        return removed

    async def _remove(self, queue: ConsumeQueue, files: list[ConsumeQueueFile]) -> int:
        left = deque(files)
        try:
            while left:
                await self.offload.run(partial(queue.remove_taken, left[0]))
                left.popleft()
        finally:
            if left:
                queue.give_back(list(left))
        return len(files)

    async def _clean_index(self, search: IndexSearch, min_offset: int) -> int:
        removed = 0
        while (file := search.take_expired(min_offset)) is not None:
            try:
                await self.offload.run(partial(search.remove_taken, file))
            except BaseException:
                search.give_back(file)
                raise
            removed += 1
        if search.removed:
            await self.offload.run(search.close_removed)
        return removed

    def _is_index_left(self) -> bool:
        """Return whether an index file is left, or open, that the log's front has passed."""
        index_service = self.message_store.index_service
        if index_service is None:
            return False
        if index_service.search.removed:
            return True
        if len(index_service.files) < 2:  # noqa: PLR2004 - the last stays
            return False
        return index_service.files[0].end_physic_offset < self.message_store.commit_log.min_offset
