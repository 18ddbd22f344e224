"""The last act of a node that stops: what it has goes to the disk, cancelled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from hastore.errors import HastoreError
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.broker.node.dispatching import Dispatching
    from hastore.flush.flush_manager import FlushManager

STOP_TIMEOUT_S: Final = 3.0  # for the last flush; a stop takes at most 5 s in all

_log = logger("broker")


async def last_flush(flush_manager: FlushManager, dispatching: Dispatching) -> HastoreError | None:
    """Flush what is left, cancelled or not; give the error that makes the stop an unclean one."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
        try:
            await flush_manager.flush_all()  # then it is confirmed
            await dispatching.finish()
            await flush_manager.flush_all()  # the checkpoint
        except HastoreError as error:
            _log.error("last_flush_failed", reason=str(error), next=error.hint)
            return error
    return None
