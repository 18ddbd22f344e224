"""Records of a slave's log that cannot be right, compared with what its master has there.

::

    this slave's log   ···┤ record ├···
    its master's       ···┤ record ├···   asked for once more, on a link of its own

Where they differ, the bytes were changed on the way or by this slave's disk, and the master can
mend them.  Where they do not, the master's own record is damaged: this slave is as good as it is.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.concurrency.tcp import describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import LogDamagedError
from hastore.ha.log_fetch import fetch_range
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.store.commit_log import CommitLog

COMPARED_MAX: Final = 16 * 1024 * 1024  # of a record whose size may be what is damaged
WAITING_MAX: Final = 100  # more at once are no rot, and somebody has to look
_TOTAL_SIZE_BYTES: Final = 4  # of the totalSize that a record begins with

_log = logger("ha")


@final
@attrs.define(eq=False)
class DamagedRecords:
    """The bad records of one slave: those that wait, and the last that is its master's, too."""

    env: Env
    commit_log: CommitLog
    master: tuple[str, int]
    # The last record that is as wrong in the master's log; None where none was found.
    masters_damage: LogDamagedError | None = attrs.field(default=None, init=False)
    _waiting: deque[LogDamagedError] = attrs.field(factory=deque, init=False)
    _added: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def add(self, physic_offset: int, what: str) -> None:
        """Take one that was found."""
        if len(self._waiting) < WAITING_MAX:
            damage = LogDamagedError(
                f"the record at {physic_offset} of this slave's log is damaged: {what}",
                path=self.commit_log.path,
                physic_offset=physic_offset,
                hint="stop this slave, then: hastore log repair DATA --from-replica MASTER_HA_PORT",
            )
            self._waiting.append(damage)
            self._added.wakeup()

    def check(self) -> None:
        """Raise the first that waits."""
        if self._waiting:
            raise self._waiting[0]

    async def watch(self) -> None:
        """Raise the next that is found."""
        while True:
            self.check()
            await self._added.wait_for_running()

    async def judge(self) -> LogDamagedError | None:
        """Return the first that the master has otherwise; None where it has them all as they are.

        Raises what ``fetch_range`` raises where that cannot be known now.
        """
        while self._waiting:
            damage = self._waiting[0]
            offset = damage.physic_offset
            if len(self._waiting) >= WAITING_MAX or not await self.is_the_masters(offset):
                return damage
            self._waiting.popleft()
            master = describe(self.master)
            self.masters_damage = LogDamagedError(
                f"the log of master {master} is damaged at {offset}, and this slave has the same",
                path=master,
                physic_offset=offset,
                hint="on the master: hastore log verify DATA, then log repair DATA there,"
                " from a replica or a backup that has this record whole",
            )
            _log.error("masters_log_is_damaged", master=master, physic_offset=offset)
        return None

    async def is_the_masters(self, physic_offset: int) -> bool:
        """Whether the master has the same bytes there.  Raises what ``fetch_range`` raises."""
        own = await self.env.offload.run(lambda: self._own_bytes(physic_offset))
        return bool(own) and await fetch_range(self.master, physic_offset, len(own)) == own

    def _own_bytes(self, physic_offset: int) -> bytes:
        log = self.commit_log
        size = int.from_bytes(log.read(physic_offset, _TOTAL_SIZE_BYTES), "big")
        if not _TOTAL_SIZE_BYTES < size <= COMPARED_MAX:
            size = COMPARED_MAX
        return log.read(physic_offset, min(size, log.max_offset - physic_offset))
