"""Consume queues and index follow the log's front: what points before it goes.

Woken when files of the log were removed, and run once a minute after the start, for what a crash
left behind.  An index file that is not flushed yet is looked at again a minute later.  Only leading
files go, never a queue's last, and the queues' minimum offsets rise to the first message that is
still there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import StoreConfig
    from hastore.store.message_store import MessageStore

FIRST_RUN_S: Final = 60.0
LOOK_AGAIN_S: Final = 60.0
_QUEUES_WITHOUT_A_BREAK: Final = 64

_log = logger("broker")


@final
@attrs.define(eq=False)
class CleanConsumeQueueService:
    """The expiry of one node's consume queues and index."""

    message_store: MessageStore
    config: StoreConfig
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def wakeup(self) -> None:
        """Look again: the log begins later than it did."""
        self._wake.wakeup()

    async def run(self) -> None:
        """Serve until cancelled; what the disk refuses is tried again."""
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
        """Remove what lies before the log's first byte; gives the number of files.

        Not in a thread: the dispatch writes to the same queues meanwhile.  Others get their turn
        after each queue that lost a file.
        """
        store = self.message_store
        min_offset = store.commit_log.min_offset
        removed = 0
        for count, queue in enumerate(list(store.consume_queues), start=1):
            gone = queue.delete_expired(min_offset)
            removed += gone
            if gone or count % _QUEUES_WITHOUT_A_BREAK == 0:
                await trio.lowlevel.checkpoint()
        if store.index_service is not None:
            removed += store.index_service.delete_expired(min_offset)
        await trio.lowlevel.checkpoint()
        if removed:
            _log.info("queue_and_index_files_deleted", files=removed, before=min_offset)
        return removed

    def _is_index_left(self) -> bool:
        """Whether an index file is still there that could have gone."""
        index_service = self.message_store.index_service
        if index_service is None or len(index_service.files) < 2:  # noqa: PLR2004 - the last stays
            return False
        return index_service.files[0].end_physic_offset < self.message_store.commit_log.min_offset
