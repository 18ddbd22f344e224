"""A model of etcd in virtual time, behind the product's interface, with faults for a schedule.

::

    ModelClient ── request ──▶ agenda ── at its time ──▶ EtcdState ── answer ──▶ ModelClient
     (one node)   slow, lost,          run(): one task   (linearizable)  slow, lost
                  or very late         also ends leases

A request is on its way without its sender: one that was cancelled, or has timed out, may still be
done.  Leases end by the model's own clock (``clock_rate``) and up to ``expiry_late_s`` later, as in
etcd, which looks twice a second.  What a schedule can do:

- to one client (``ModelClient``): slow, lose, delay beyond the time-out, cut off, break or delay
  its watches, let a deposed leader answer its renewals;
- to all: ``stop`` and ``start`` (leases begin again), ``fill`` and ``make_room`` (no writes
  between them), ``change_leader``, ``extend_leases``, ``end_lease_early``, ``ttl_min_s`` (longer
  leases than asked for), ``compact``, and ``restore`` to a ``backup``, as the same cluster or
  another one.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING, Final, final

import attrs
import outcome
import trio

from hastore.broker.observe.coordinator_status import NO_SPACE
from hastore.cluster.key_value_store import Lease
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import CoordinatorUnreachableError
from hastore.sim.coordinator.etcd_state import EtcdState
from hastore.sim.coordinator.model_client import ModelClient
from hastore.sim.host import START_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

_ID_BITS: Final = 62  # cluster and lease ids are positive 64-bit numbers


@final
@attrs.define(eq=False, kw_only=True)
class EtcdModel:
    """The cluster: its state, what is under way, and when its leases end."""

    choices: Random
    clock_rate: float = 1.0  # seconds of its clock in a second of virtual time
    expiry_late_s: tuple[float, float] = (0.0, 0.5)
    ttl_min_s: int = 2  # granted at least: etcd's minimum follows from its election time-out
    state: EtcdState = attrs.field(init=False)
    is_running: bool = attrs.field(default=True, init=False)
    applied_at: dict[int, float] = attrs.field(factory=dict, init=False)  # by revision
    # Leases that have not lived as long as their holders were told.
    broken_leases: set[int] = attrs.field(factory=set, init=False)
    _clients: dict[str, ModelClient] = attrs.field(factory=dict, init=False)
    _ends_at: dict[int, float] = attrs.field(factory=dict, init=False)  # by lease
    _agenda: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list, init=False)
    _numbers: Iterator[int] = attrs.field(factory=itertools.count, init=False)
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin as a new cluster."""
        self.state = EtcdState(cluster_id=self._new_id())

    def client(self, name: str, *, timeout_s: float = 2.0) -> ModelClient:
        """Return the way of one node to the cluster; a node that starts again gets the same."""
        if name not in self._clients:
            self._clients[name] = ModelClient(model=self, name=name, timeout_s=timeout_s)
        return self._clients[name]

    async def run(self) -> None:
        """Do what is due, at its time, until cancelled."""
        while True:
            now = trio.current_time()
            while self._agenda and self._agenda[0][0] <= now:
                heapq.heappop(self._agenda)[2]()
            with trio.move_on_at(self._agenda[0][0] if self._agenda else math.inf):
                await self._wake.wait_for_running()

    def do_at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time; what is due at the same time is done in the order of calls."""
        heapq.heappush(self._agenda, (time, next(self._numbers), action))
        self._wake.wakeup()

    def wall_s(self) -> int:
        """Return the servers' wall time in whole seconds, which no fault changes."""
        return int(START_MS / 1000 + trio.current_time())

    # -- steps of the cluster --------------------------------------------------------------------

    def take(self, act: Callable[[], object]) -> outcome.Outcome[object]:
        """Do what a request that has arrived asks for, and return the answer or the refusal."""
        if not self.is_running:
            return outcome.Error(CoordinatorUnreachableError("etcd: connection refused"))
        answer = outcome.capture(act)
        self._was_applied()
        return answer

    def _was_applied(self) -> None:
        """Let watches see what has changed, if anything has."""
        if self.state.revision not in self.applied_at:
            self.applied_at[self.state.revision] = trio.current_time()
            for client in self._clients.values():
                client.wake_watches()

    def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        lease = Lease(self._new_id(), float(max(ttl_s, self.ttl_min_s)))
        self.state.grant(lease)
        self._live_until(lease)
        return lease

    def renew(self, lease_id: int) -> float | None:
        """Renew a lease and return its time to live, None if it has ended."""
        lease = self.state.leases.get(lease_id)
        if lease is None:
            return None
        self._live_until(lease)
        return lease.ttl_s

    def _live_until(self, lease: Lease, extend_s: float = 0.0) -> None:
        """Let a lease live its full time from now on."""
        late_s = self.choices.uniform(*self.expiry_late_s)
        ends_at = trio.current_time() + (lease.ttl_s + extend_s) / self.clock_rate + late_s
        self._set_end(lease.lease_id, ends_at)

    def _set_end(self, lease_id: int, ends_at: float) -> None:
        self._ends_at[lease_id] = ends_at
        self.do_at(ends_at, lambda: self._expire(lease_id, ends_at))

    def _expire(self, lease_id: int, ends_at: float) -> None:
        """End a lease, unless it was renewed since."""
        if self.is_running and self._ends_at.get(lease_id) == ends_at:
            self.end_lease(lease_id)

    def end_lease(self, lease_id: int) -> None:
        """End a lease now, with its keys."""
        self.state.end_lease(lease_id)
        self._ends_at.pop(lease_id, None)
        self._was_applied()

    def _new_id(self) -> int:
        return self.choices.getrandbits(_ID_BITS) | 1

    # -- faults ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop all members: calls and watches break, and what arrives now is lost."""
        self.is_running = False
        for client in self._clients.values():
            client.broke("etcd has stopped")

    def start(self, *, extend_s: float = 0.0) -> None:
        """Start again: what is on its way arrives; leases live their full time again, or longer."""
        assert not self.is_running
        self.is_running = True
        self.change_leader(extend_s=extend_s)

    def change_leader(self, *, extend_s: float = 0.0) -> None:
        """Elect another leader: it lets all leases live their full time from now on, or longer."""
        for lease in self.state.leases.values():
            self._live_until(lease, extend_s)

    def extend_leases(self, extend_s: float) -> None:
        """Let all leases end later than they would."""
        for lease_id in self.state.leases:
            self._set_end(lease_id, self._ends_at[lease_id] + extend_s)

    @property
    def is_full(self) -> bool:
        """Whether it refuses all writes for want of space."""
        return NO_SPACE in self.state.alarms

    def fill(self) -> None:
        """Run out of space: reads are answered and leases renewed, nothing is written."""
        self.state.alarms |= {NO_SPACE}

    def make_room(self) -> None:
        """Take writes again, as after a compaction and ``etcdctl alarm disarm``."""
        self.state.alarms -= {NO_SPACE}

    def end_lease_early(self, lease_id: int) -> None:
        """End a lease now, although it was renewed; its keys go with it."""
        self.broken_leases.add(lease_id)
        self.end_lease(lease_id)

    def compact(self, revision: int | None = None) -> None:
        """Forget the changes up to a revision, None: all; watches that lag behind it end."""
        revision = self.state.revision if revision is None else revision
        for client in self._clients.values():
            client.is_compacted(revision)
        self.state.compact(revision)
        self.applied_at = {key: at for key, at in self.applied_at.items() if key > revision}

    def backup(self) -> EtcdState:
        """Return a backup to restore later."""
        return self.state.copy()

    def restore(self, backup: EtcdState, *, as_other_cluster: bool) -> None:
        """Go back to a backup, while stopped; ``start`` follows."""
        assert not self.is_running
        self.state = backup.copy()
        if as_other_cluster:
            self.state.cluster_id = self._new_id()
        self._ends_at.clear()
        now = trio.current_time()
        self.applied_at = {changes.revision: now for changes in self.state.history}
