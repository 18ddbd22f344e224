"""One node's way to the model of etcd, with the faults of that way."""

from __future__ import annotations

import math
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast, final

import attrs
import outcome
import trio

from hastore.cluster.key_value_store import ServerTime
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import CompactedError, CoordinatorUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
    from random import Random

    from hastore.cluster.key_value_store import (
        Absent,
        Changes,
        Delete,
        Lease,
        Outcome,
        Put,
        Snapshot,
        Unchanged,
    )
    from hastore.sim.coordinator.etcd_state import EtcdState

T = TypeVar("T")


class Cluster(Protocol):
    """What a client needs of ``EtcdModel``, which describes it."""

    choices: Random
    state: EtcdState
    applied_at: dict[int, float]
    broken_leases: set[int]

    def do_at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""

    def wall_s(self) -> int:
        """Return the servers' wall time in seconds."""

    def take(self, act: Callable[[], object]) -> outcome.Outcome[object]:
        """Do what a request that has arrived asks for."""

    def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""

    def renew(self, lease_id: int) -> float | None:
        """Renew a lease."""

    def end_lease(self, lease_id: int) -> None:
        """End a lease, as its holder has asked."""


SERVER: Final = "http://etcd-1:2379"  # as which all servers tell their time
_HOST: Final = "etcd-1"


@final
@attrs.frozen(kw_only=True)
class LinkFaults:
    """What the network between a node and etcd does; how likely, from 0 to 1, or for how long.

    ``late``: a transaction is done, but ``late_s`` after its sender has given up, if a key of its
    ends with ``late_key``.
    """

    delay_s: tuple[float, float] = (0.0005, 0.003)  # of a request, and of an answer
    watch_delay_s: tuple[float, float] = (0.0005, 0.003)  # of a change
    request_lost: float = 0.0
    answer_lost: float = 0.0  # although what was asked for is done
    late: float = 0.0
    late_s: tuple[float, float] = (0.1, 10.0)
    late_key: str = ""


@final
@attrs.define(eq=False)
class _Call:
    """A request and, once it has come, its answer."""

    what: str
    answered: WaitNotifyObject = attrs.field(factory=WaitNotifyObject)
    answer: outcome.Outcome[object] | None = None


@final
@attrs.define(eq=False)
class _Watch:
    """A watch: all changes up to ``revision`` were yielded, or are none below its prefix."""

    prefix: str
    revision: int
    error: Exception | None = None
    wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject)


@final
@attrs.define(eq=False, kw_only=True)
class ModelClient:
    """A ``KeyValueStore``; ``faults`` may be replaced at any time."""

    model: Cluster
    name: str
    timeout_s: float  # for an answer, and for signs of life of a watch
    faults: LinkFaults = attrs.field(factory=LinkFaults, init=False)
    late_count: int = attrs.field(default=0, init=False)  # transactions that were late, or will be
    # When the last request arrived that had been sent while a fault lasted.
    slow_at: float = attrs.field(default=-math.inf, init=False)
    _cut_at: float | None = attrs.field(default=None, init=False)
    # What a deposed leader believes to be alive, None: the true one answers.
    _believed: dict[int, float] | None = attrs.field(default=None, init=False)
    now: Callable[[], float] = attrs.field(default=trio.current_time, init=False)  # the node's
    _clocks: dict[str, ServerTime] = attrs.field(factory=dict, init=False)
    _calls: dict[_Call, None] = attrs.field(factory=dict, init=False)
    _watches: dict[_Watch, None] = attrs.field(factory=dict, init=False)

    # -- the store -------------------------------------------------------------------------------

    async def read(self, prefix: str) -> Snapshot:
        """Return all keys below ``prefix``."""
        return await self._ask(f"read {prefix}", lambda: self.model.state.read(prefix))

    async def commit(
        self, comparisons: Sequence[Absent | Unchanged], writes: Sequence[Put | Delete]
    ) -> Outcome:
        """Make all writes if all comparisons hold."""
        what = f"write {', '.join(write.key for write in writes)}"
        asked = tuple(comparisons), tuple(writes)
        late_key = self.faults.late_key
        may_be_late = any(write.key.endswith(late_key) for write in writes)
        return await self._ask(
            what, lambda: self.model.state.commit(*asked), may_be_late=may_be_late
        )

    async def grant(self, ttl_s: int) -> Lease:
        """Return a new lease."""
        assert ttl_s >= 1
        return await self._ask("grant a lease", lambda: self.model.grant(ttl_s))

    async def renew(self, lease_id: int) -> float | None:
        """Renew a lease and return its time to live, None if it has ended."""
        return await self._ask(f"renew lease {lease_id}", lambda: self._renew(lease_id))

    def _renew(self, lease_id: int) -> float | None:
        if self._believed is not None:
            self.model.broken_leases.add(lease_id)
            return self._believed.get(lease_id)
        return self.model.renew(lease_id)

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys."""
        await self._ask(f"revoke lease {lease_id}", lambda: self.model.end_lease(lease_id))

    async def alarms(self) -> frozenset[str]:
        """Return what is wrong with the store itself."""
        return await self._ask("alarms", lambda: self.model.state.alarms)

    def clocks(self) -> Mapping[str, ServerTime]:
        """Return what the server's clock said in its last answer."""
        return self._clocks

    @asynccontextmanager
    async def changes(
        self, prefix: str, after_revision: int
    ) -> AsyncGenerator[AsyncIterator[Changes]]:
        """Yield what changes below ``prefix`` after a revision."""
        watch = _Watch(prefix, after_revision)
        self._watches[watch] = None
        try:
            async with aclosing(self._watch(watch)) as stream:
                yield stream
        finally:
            del self._watches[watch]

    # -- calls -----------------------------------------------------------------------------------

    async def _ask(self, what: str, act: Callable[[], T], *, may_be_late: bool = False) -> T:
        call = _Call(what)
        self._calls[call] = None
        self._send(call, act, may_be_late=may_be_late)
        try:
            with trio.move_on_after(self.timeout_s):
                await call.answered.wait_for_running()
        finally:
            self._calls.pop(call, None)
        if call.answer is None:
            raise self._unreachable(f"no answer within {self.timeout_s:g} s to: {what}")
        return cast("T", call.answer.unwrap())

    def _send(self, call: _Call, act: Callable[[], object], *, may_be_late: bool) -> None:
        """Put a request on its way, unless it is lost."""
        choices, faults, now = self.model.choices, self.faults, trio.current_time()
        arrives_at = now + choices.uniform(*faults.delay_s)
        if choices.random() < faults.request_lost or self._cut_at is not None:
            return
        if may_be_late and choices.random() < faults.late:
            self.late_count += 1
            arrives_at = now + self.timeout_s + choices.uniform(*faults.late_s)
            self.model.do_at(arrives_at, lambda: self._arrives_late(act))
            return
        is_slow = faults != LinkFaults()
        self.model.do_at(arrives_at, lambda: self._arrives(call, act, is_slow=is_slow))

    def _arrives_late(self, act: Callable[[], object]) -> None:
        """Do what somebody asked for who has given up; nothing stops it any more."""
        self.slow_at = trio.current_time()
        self.model.take(act)

    def _arrives(self, call: _Call, act: Callable[[], object], *, is_slow: bool) -> None:
        if self._cut_at is not None:
            return
        if is_slow:
            self.slow_at = trio.current_time()
        choices, faults = self.model.choices, self.faults
        answer = self.model.take(act)
        wall_s = self.model.wall_s()
        if choices.random() >= faults.answer_lost:
            returns_at = trio.current_time() + choices.uniform(*faults.delay_s)
            self.model.do_at(returns_at, lambda: self._returns(call, answer, wall_s))

    def _returns(self, call: _Call, answer: outcome.Outcome[object], wall_s: int) -> None:
        if self._cut_at is None:
            self._clocks[SERVER] = ServerTime(
                time_s=wall_s, heard_at_s=self.now(), host=_HOST, own_host=self.name
            )
            self._answer(call, answer)

    def _answer(self, call: _Call, answer: outcome.Outcome[object]) -> None:
        """Hand an answer to the task that waits for it, if it still does and has none."""
        if self._calls.pop(call, call) is None:
            call.answer = answer
            call.answered.wakeup()

    def _unreachable(self, why: str) -> CoordinatorUnreachableError:
        return CoordinatorUnreachableError(f"etcd, from {self.name}: {why}")

    # -- watches ---------------------------------------------------------------------------------

    async def _watch(self, watch: _Watch) -> AsyncGenerator[Changes]:
        after = watch.revision
        await self._ask(f"watch {watch.prefix}", lambda: self.model.state.check_watch(after))
        arrives_at: float | None = None  # of the next change
        while True:
            if watch.error is not None:
                raise watch.error
            now = trio.current_time()
            changes = self.model.state.next_changes(watch.prefix, watch.revision)
            if self._cut_at is not None:
                until = self._cut_at + self.timeout_s
                if now >= until:
                    raise self._unreachable(f"no sign of life for {self.timeout_s:g} s")
            elif changes is None:
                until = math.inf
            else:
                if arrives_at is None:
                    delay_s = self.model.choices.uniform(*self.faults.watch_delay_s)
                    arrives_at = self.model.applied_at[changes.revision] + delay_s
                if now >= arrives_at:
                    watch.revision, arrives_at = changes.revision, None
                    yield changes
                    continue
                until = arrives_at
            with trio.move_on_at(until):
                await watch.wake.wait_for_running()

    def wake_watches(self) -> None:
        """Let watches look again."""
        for watch in self._watches:
            watch.wake.wakeup()

    def is_compacted(self, revision: int) -> None:
        """End the watches that have not yet shown all changes up to a revision."""
        for watch in self._watches:
            missed = self.model.state.next_changes(watch.prefix, watch.revision)
            if missed is not None and missed.revision <= revision:
                why = f"etcd was compacted up to revision {revision}"
                watch.error = CompactedError(why, after_revision=watch.revision)
        self.wake_watches()

    # -- faults ----------------------------------------------------------------------------------

    def cut(self) -> None:
        """Let nothing through any more; what is on its way is lost, what has arrived is done."""
        if self._cut_at is None:
            self._cut_at = trio.current_time()
            self.wake_watches()

    @property
    def is_troubled(self) -> bool:
        """Whether a fault of this way lasts."""
        faults = self.faults
        return self._cut_at is not None or self._believed is not None or faults != LinkFaults()

    def heal(self) -> None:
        """Let everything through again, and take all other faults away."""
        self._cut_at, self._believed, self.faults = None, None, LinkFaults()
        self.wake_watches()

    def break_watches(self, why: str = "connection reset") -> None:
        """End the watches of this node."""
        for watch in self._watches:
            watch.error = watch.error or self._unreachable(why)
        self.wake_watches()

    def broke(self, why: str) -> None:
        """End calls and watches: nobody knows what was done."""
        for call in list(self._calls):
            self._answer(call, outcome.Error(self._unreachable(f"{why}: {call.what}")))
        self.break_watches(why)

    def meet_deposed_leader(self) -> None:
        """Let a deposed leader answer renewals from now on: they succeed, and extend nothing."""
        leases = self.model.state.leases.values()
        self._believed = {lease.lease_id: lease.ttl_s for lease in leases}
