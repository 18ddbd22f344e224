"""Damaged records of a slave's log, compared with the master's.

The master's bytes are fetched again, on a separate link.  If they differ, ours were changed on the
way or by our disk, and can be repaired from the master.  If they are equal, the master's own record
is damaged, and this slave is a true copy.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.concurrency.tcp import describe
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import LogDamagedError
from hastore.ha.log_fetch import fetch_range
from hastore.store.record.layout import SIZE, claimed_size
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Env
    from hastore.ha.ha_tls import HATls
    from hastore.ha.log_fetch import GroupLogReader
    from hastore.store.commit_log import CommitLog

COMPARED_MAX: Final = 16 * 1024 * 1024  # bytes of a record: its size may be damaged, too
WAITING_MAX: Final = 100  # more at once are not bit rot: an operator must act

_log = logger("ha")


@final
@attrs.define(eq=False)
class DamagedRecords:
    """The damaged records of one slave that wait to be compared."""

    env: Env
    commit_log: CommitLog
    master: tuple[str, int]
    tls: HATls | None = None  # of the link
    # Reads the log of a replica group's master; None: the master speaks the classic protocol.
    reader: Callable[[], GroupLogReader | None] = attrs.field(default=lambda: None, kw_only=True)
    # The last record that is equal, so also damaged, in the master's log; None before any.
    masters_damage: LogDamagedError | None = attrs.field(default=None, init=False)
    _waiting: deque[LogDamagedError] = attrs.field(factory=deque, init=False)
    _added: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def add(self, physic_offset: int, what: str) -> None:
        """Add a record that was found damaged; ``what`` says how."""
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
        """Raise LogDamagedError for the first waiting record, if any."""
        if self._waiting:
            raise self._waiting[0]

    def forget(self, damage: LogDamagedError) -> None:
        """Forget the first waiting record: it is not damaged after all."""
        assert self._waiting[0] is damage, "the first is handled first"
        self._waiting.popleft()

    async def watch(self) -> None:
        """Raise LogDamagedError as soon as a record waits."""
        while True:
            self.check()
            await self._added.wait_for_running()

    async def compare(self) -> LogDamagedError | None:
        """Return the first waiting record that differs from the master's; None if all are equal.

        Raises the errors of ``fetch_range``.
        """
        while self._waiting:
            damage = self._waiting[0]
            offset = damage.physic_offset
            if len(self._waiting) >= WAITING_MAX or not await self.is_same_on_master(offset):
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

    async def is_same_on_master(self, physic_offset: int) -> bool:
        """Return whether the master has the same record.  Raises the errors of ``fetch_range``."""
        own = await self.env.offload.run(lambda: self._own_bytes(physic_offset))
        return bool(own) and await self._fetch(physic_offset, len(own)) == own

    async def _fetch(self, physic_offset: int, size: int) -> bytes:
        tls = None if self.tls is None else self.tls.client()
        return await fetch_range(self.master, physic_offset, size, tls, reader=self.reader())

    def _own_bytes(self, physic_offset: int) -> bytes:
        log = self.commit_log
        size = claimed_size(log.read(physic_offset, SIZE.size))
        if not SIZE.size < size <= COMPARED_MAX:
            size = COMPARED_MAX
        return log.read(physic_offset, min(size, log.max_offset - physic_offset))
