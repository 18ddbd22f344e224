"""Locks of queues for ordered consumption, which lapse after a minute without renewal.

Pure: the caller passes the time.  Source: RocketMQ 4.9.8 ``RebalanceLockManager``.

Invariant: of each group, at most one client holds a queue; there are at most LOCKS_MAX locks, and
``per_owner_max`` of one owner (``hastore.broker.quotas``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore.broker.quotas import Quota, table_full
from hastore.errors import QuotaUsedUpError

if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK_LAPSE_S: Final = 60.0
_DROP_INTERVAL_S: Final = 1.0  # a full table is searched for lapsed locks once within this
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

    per_owner_max: int
    _locks: dict[tuple[str, MessageQueue], tuple[str, float]] = attrs.field(
        factory=dict, init=False
    )
    _quota: Quota[tuple[str, MessageQueue]] = attrs.field(init=False)
    _now: float = attrs.field(default=0.0, init=False)  # of the last request
    _dropped: float = attrs.field(default=-LOCK_LAPSE_S, init=False)  # when lapsed ones were

    def __attrs_post_init__(self) -> None:
        """Make the quota."""
        self._quota = Quota(
            "locks of queues",
            "locks_per_owner_max",
            self.per_owner_max,
            lambda key: key in self._locks and self._now - self._locks[key][1] <= LOCK_LAPSE_S,
        )

    def lock(
        self,
        group: str,
        queues: Iterable[MessageQueue],
        client_id: str,
        now: float,
        owner: str | None = None,
    ) -> tuple[list[MessageQueue], QuotaUsedUpError | None]:
        """Lock or renew; return the queues that the client now holds, and the first refusal.

        New locks count for the quota of ``owner``.  A refusal says that the quota, or the table,
        had no room for a lock; locks that the client already holds are renewed nevertheless.
        """
        locks = self._locks
        refusal: QuotaUsedUpError | None = None
        is_used_up = False  # the quota, which is asked no further
        self._now = now
        if len(locks) >= LOCKS_MAX and now - self._dropped >= _DROP_INTERVAL_S:
            self._dropped = now
            self._drop_lapsed(now)
        locked = []
        for queue in queues:
            key = group, queue
            holder, renewed = locks.get(key, (None, now))
            if holder not in {None, client_id} and now - renewed <= LOCK_LAPSE_S:
                continue
            if holder is None and len(locks) >= LOCKS_MAX:
                msg = f"this broker already has {LOCKS_MAX} locks of queues, the most it keeps"
                refusal = refusal or table_full("locks_max", msg)
                continue
            if owner is not None and holder != client_id:
                if is_used_up:
                    continue
                try:
                    self._quota.take(owner, key, now)
                except QuotaUsedUpError as error:
                    refusal, is_used_up = refusal or error, True
                    continue
            locks[key] = client_id, now
            locked.append(queue)
        return locked, refusal

    def unlock(self, group: str, queues: Iterable[MessageQueue], client_id: str) -> None:
        """Release those of the locks that the client holds."""
        for queue in queues:
            key = group, queue
            if self._locks.get(key, (None, 0.0))[0] == client_id:
                self._drop(key)

    def _drop_lapsed(self, now: float) -> None:
        lapsed = [key for key, (_, time) in self._locks.items() if now - time > LOCK_LAPSE_S]
        for key in lapsed:
            self._drop(key)

    def _drop(self, key: tuple[str, MessageQueue]) -> None:
        del self._locks[key]
        self._quota.release(key)
