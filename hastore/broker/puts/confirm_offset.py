"""The confirm offset: the end of what consumers may read.

    ASYNC_MASTER  ASYNC_FLUSH   the readable offset
                  SYNC_FLUSH    the flushed offset
    SYNC_MASTER                 that, but at most what a slave has acknowledged, while one is
                                available
    a slave                     as an ASYNC_MASTER
    a replica group's master    as an ASYNC_MASTER, but at most what its SyncStateSet confirms

While no slave is available, a SYNC_MASTER's puts are answered SLAVE_NOT_AVAILABLE, and the master
confirms alone, with two exceptions: a put that still waits for a slave is not confirmed before its
producer has its answer; and after a start the master waits ``slave_timeout_ms``, so that slaves
that come back acknowledge the tail first.  With ``read_uncommitted`` consumers see all that is
appended (RocketMQ 4.9's visibility).

Invariant: nothing above the confirm offset is dispatched, so no consumer reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.ha.group_ha_service import GroupHAService
from hastore.status import FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import StoreConfig
    from hastore.ha.ha_service import HAService
    from hastore.store.commit_log import CommitLog


@final
@attrs.define(eq=False)
class ConfirmOffset:
    """Called by the dispatch; ``ha_service`` is a SYNC_MASTER's, None on every other node.

    ``received_offset`` returns what the master of a replica group has confirmed; None elsewhere.
    """

    commit_log: CommitLog
    config: StoreConfig
    ha_service: HAService | None = None
    received_offset: Callable[[], int] | None = None
    _alone_from: float = attrs.field(init=False)
    _flushed_only: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Compute when a master without slaves may confirm alone."""
        wait_ms = 0 if self.ha_service is None else self.ha_service.config.slave_timeout_ms
        self._alone_from = trio.current_time() + wait_ms / 1000
        self._flushed_only = (
            self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
            and not self.config.read_uncommitted
        )

    def __call__(self) -> int:
        """Return the confirm offset."""
        log = self.commit_log
        offset = log.flushed_offset if self._flushed_only else log.readable_offset
        ha_service = self.ha_service
        if self.config.read_uncommitted:
            return offset
        if self.received_offset is not None:
            return min(offset, self.received_offset())
        if ha_service is None:
            return offset
        if isinstance(ha_service, GroupHAService):
            return min(offset, ha_service.confirm_offset())
        acknowledged = ha_service.ack_table.push2_slave_max_offset
        if acknowledged >= offset:
            return offset
        is_waiting = trio.current_time() < self._alone_from
        if is_waiting or ha_service.is_slave_ok(log.max_offset):
            return acknowledged
        undecided = ha_service.group_transfer_service.first_undecided_offset
        return offset if undecided is None else max(acknowledged, min(offset, undecided))
