"""Locks of queues for ordered consumption, which lapse after a minute without renewal.

Pure: the caller passes the time.  Source: RocketMQ 4.9.8 ``RebalanceLockManager``.

Invariant: of each group, at most one client holds a queue; there are at most LOCKS_MAX locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK_LAPSE_S: Final = 60.0
LOCKS_MAX: Final = 262_144


class MessageQueue(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int


@final
@attrs.define(eq=False)
class RebalanceLockManager:
    """The locks: group and queue → holder and time of its last renewal."""

    _locks: dict[tuple[str, MessageQueue], tuple[str, float]] = attrs.field(
        factory=dict, init=False
    )

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now: float
    ) -> list[MessageQueue]:
        """Lock or renew; return the queues that the client now holds."""
        locks = self._locks
        if len(locks) >= LOCKS_MAX:
            self._drop_lapsed(now)
        locked = []
        for queue in queues:
            key = group, queue
            holder, renewed = locks.get(key, (None, now))
            if holder not in {None, client_id} and now - renewed <= LOCK_LAPSE_S:
                continue
            if holder is None and len(locks) >= LOCKS_MAX:
                continue
            locks[key] = client_id, now
            locked.append(queue)
        return locked

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the locks that the client holds."""
        for queue in queues:
            key = group, queue
            if self._locks.get(key, (None, 0.0))[0] == client_id:
                del self._locks[key]

    def _drop_lapsed(self, now: float) -> None:
        lapsed = [key for key, (_, time) in self._locks.items() if now - time > LOCK_LAPSE_S]
        for key in lapsed:
            del self._locks[key]
