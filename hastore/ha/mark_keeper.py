"""Writes a node's confirm mark while the node runs: see ``ConfirmMark``.

::

    acks, frames ──▶ ``kept`` rises ──wake──▶ MarkKeeper ──in a thread──▶ identity.json

Invariant: what is written is never above what is on this node's disk, since a crash must not leave
a log that ends below its mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Offload

# From one write to the next: one takes some milliseconds, and competes with the syncs that puts
# wait for.  An older mark protects less, and is still true.
MARK_PAUSE_S: Final = 5.0

_log = logger("ha")


@final
@attrs.define(eq=False, kw_only=True)
class MarkKeeper:
    """The confirm mark of one open store; offsets are exclusive, in bytes."""

    offload: Offload
    kept: Callable[[], int]  # up to where all members have the log, as far as this node knows
    flushed: Callable[[], int]  # up to where the log is on this disk
    write: Callable[[int], None]  # raises the mark, durably; blocks
    wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject)  # called as ``kept`` rises
    _written: int = attrs.field(default=0, init=False)

    async def run(self) -> None:
        """Write the mark as it rises, at most every MARK_PAUSE_S, until cancelled."""
        is_written = True
        while True:
            if is_written:
                await self.wake.wait_for_running()
            is_written = await self.write_risen()
            await trio.sleep(MARK_PAUSE_S)

    async def write_risen(self) -> bool:
        """Write the mark, if it has risen; return whether it is all that is kept now."""
        kept = self.kept()
        offset = min(kept, self.flushed())
        if offset > self._written:
            try:
                await self.offload.run(lambda: self.write(offset))
            except DiskError as error:
                _log.warning("confirm_mark_not_written", reason=str(error), next=error.hint)
                return False
            self._written = offset
        return self._written >= kept
