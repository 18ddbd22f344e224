"""Long polling: pulls that found nothing, held until their queue grows or their time is up.

::

    hold ─► queue's pulls ─► on_dispatched: the queue grew ─► wake(pull)
              ├─► its topic is deleted ─────────────────────► wake(pull), is_deleted
              └─► slot of the deadline ─► time is up ───────► wake(pull), is_due

Pulls have no timers of their own: deadlines are rounded up to slots of a tenth of a second, and one
task sleeps until the first slot.

Invariants: a pull is woken once, and is not held any more then; at most HELD_MAX are held of a
client, ``per_owner_max`` of an owner (``hastore.broker.quotas``), HELD_TOTAL_MAX in all.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import attrs
import trio

from hastore.broker.quotas import Quota
from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.reply import ClientConnection

HELD_MAX: Final = 1_024
HELD_TOTAL_MAX: Final = 65_536
SLOT_S: Final = 0.1

K = TypeVar("K")


@final
@attrs.define(eq=False)
class HeldPull:
    """A pull that waits for a message at ``queue_offset``; ``tag`` belongs to the caller."""

    client: ClientConnection
    topic: str
    queue_id: int
    queue_offset: int
    deadline: float
    tag: Any
    is_due: bool = False
    is_deleted: bool = False  # its topic was deleted while it was held
    owner: str = ""  # for whose quota it counts while it is held


@final
@attrs.define(eq=False)
class PullRequestHoldService:
    """The held pulls; ``wake`` is called with each one that is released, and must not block."""

    wake: Callable[[HeldPull], None]
    per_owner_max: int
    # Dicts as ordered sets: the pull that waits longest is woken first.
    _queues: dict[tuple[str, int], dict[HeldPull, None]] = attrs.field(factory=dict, init=False)
    _clients: dict[ClientConnection, dict[HeldPull, None]] = attrs.field(factory=dict, init=False)
    _slots: dict[int, dict[HeldPull, None]] = attrs.field(factory=dict, init=False)
    _slot_heap: list[int] = attrs.field(factory=list, init=False)
    _to_watch: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _count: int = attrs.field(default=0, init=False)
    _quota: Quota[HeldPull] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the quota."""
        self._quota = Quota(
            "held pulls",
            "held_pulls_per_owner_max",
            self.per_owner_max,
            lambda _pull: True,  # each is released
        )

    def __len__(self) -> int:
        return self._count

    @property
    def is_empty(self) -> bool:
        """Whether no pull is held."""
        return not self._queues

    def hold(self, pull: HeldPull) -> bool:
        """Hold a pull; return False if its client is gone, or too many are held."""
        client = pull.client
        if client.is_closed or self._count >= HELD_TOTAL_MAX:
            return False
        if len(self._clients.get(client, ())) >= HELD_MAX:
            return False
        pull.owner = client.owner
        if not self._quota.takes(pull.owner, pull, trio.current_time()):
            return False
        self._count += 1
        self._clients.setdefault(client, {})[pull] = None
        self._queues.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        slot = _slot_of(pull.deadline)
        if slot not in self._slots:
            self._slots[slot] = {}
            heapq.heappush(self._slot_heap, slot)
            if self._slot_heap[0] == slot:
                self._to_watch.wakeup()
        self._slots[slot][pull] = None
        return True

    def notify(self, topic: str, queue_id: int, max_offset: int) -> None:
        """Wake the pulls of a queue that now reaches up to ``max_offset`` (exclusive)."""
        pulls = self._queues.get((topic, queue_id))
        if pulls is None:
            return
        for pull in [pull for pull in pulls if pull.queue_offset < max_offset]:
            self._drop(pull)
            self.wake(pull)

    def topic_deleted(self, topic: str) -> None:
        """Wake the pulls of a topic that was deleted."""
        for key in [key for key in self._queues if key[0] == topic]:
            for pull in tuple(self._queues[key]):
                self._drop(pull)
                pull.is_deleted = True
                self.wake(pull)

    def client_gone(self, client: ClientConnection) -> None:
        """Forget the pulls of a connection that has ended."""
        for pull in tuple(self._clients.get(client, ())):
            self._drop(pull)

    def _drop(self, pull: HeldPull) -> None:
        key = pull.topic, pull.queue_id
        _discard(self._queues, key, pull)
        _discard(self._clients, pull.client, pull)
        self._quota.release(pull)
        self._count -= 1
        self._slots[_slot_of(pull.deadline)].pop(pull)  # the slot itself goes when it is due

    async def run(self) -> None:
        """Wake the pulls whose time is up, until cancelled."""
        while True:
            if not self._slot_heap:
                await self._to_watch.wait_for_running()
                continue
            with trio.move_on_at(self._slot_heap[0] * SLOT_S):
                await self._to_watch.wait_for_running()
            self._expire(trio.current_time())

    def _expire(self, now: float) -> None:
        while self._slot_heap and self._slot_heap[0] * SLOT_S <= now:
            slot = heapq.heappop(self._slot_heap)
            for pull in tuple(self._slots[slot]):
                self._drop(pull)
                pull.is_due = True
                self.wake(pull)
            del self._slots[slot]


def _slot_of(deadline: float) -> int:
    return math.ceil(deadline / SLOT_S)


def _discard(table: dict[K, dict[HeldPull, None]], key: K, pull: HeldPull) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
