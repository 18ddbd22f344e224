"""Which client may consume a queue in order: locks that lapse after a minute without renewal.

Pure: the time is given.  Source: RocketMQ 4.9.8 ``RebalanceLockManager``.

Invariant: a queue has one holder a group at any time; at most LOCKS_MAX locks.
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
    """The locks: group and queue → holder and when it renewed last."""

    _locks: dict[tuple[str, MessageQueue], tuple[str, float]] = attrs.field(
        factory=dict, init=False
    )

    def lock(
        self, group: str, queues: Iterable[MessageQueue], client_id: str, now: float
    ) -> list[MessageQueue]:
        """Lock or renew; give the queues that are now the client's."""
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
        """Give up what is the client's."""
        for queue in queues:
            key = group, queue
            if self._locks.get(key, (None, 0.0))[0] == client_id:
                del self._locks[key]

    def _drop_lapsed(self, now: float) -> None:
        lapsed = [key for key, (_, time) in self._locks.items() if now - time > LOCK_LAPSE_S]
        for key in lapsed:
            del self._locks[key]
