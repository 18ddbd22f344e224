"""An outage of a simulated etcd that lasts much longer than any lease.

::

    all is well ── etcd stops ──── quiet ────┬── the faults of the seed ──┬── etcd starts
                   │  one put after another  │                            │
                   └──────────────────────── seconds ─────────────────────┘

In the quiet time nothing else fails, so it is known what becomes of each put:

- ``failsafe``: with it, each one is PUT_OK, because all members promise;
- ``no failsafe``: without it, none is once a lease is over, for as long as etcd is down; and in the
  end nobody is master.

All other rules hold as ever: nothing is lost, whatever fails while etcd is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.put import PutOutcome
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hastore.sim.fault_plan import FaultPlan
    from hastore.sim.group.etcd_director import EtcdDirector
    from hastore.sim.group.group_oracle import GroupOracle
    from hastore.sim.group.group_producers import GroupProducers
    from hastore.sim.put import Put

_QUIET_MIN_S: Final = 20.0  # two of the longest leases
_BEGINS_WITHIN_S: Final = 60.0
_REST_S: Final = (0.05, 0.5)
_SIZE_MAX: Final = 300
_TICK_S: Final = 0.1


@final
@attrs.frozen(kw_only=True)
class Outage:
    """What an outage is like: its length, and whether masters ask for promises meanwhile."""

    seconds: float = 60.0
    failsafe: bool


@final
@attrs.define(eq=False)
class EtcdOutage:
    """The outage of one run.

    What it draws comes from a generator of its own, so the faults of a seed are those that the seed
    has without it.
    """

    outage: Outage
    director: EtcdDirector
    producers: GroupProducers
    oracle: GroupOracle
    choices: Random
    began_at: float = attrs.field(default=0.0, init=False)
    _puts: list[Put] = attrs.field(factory=list, init=False)  # of the quiet time

    async def begin(self, plan: FaultPlan, is_settled: Callable[[], bool]) -> None:
        """Stop etcd once all is well; put messages in the quiet time, and check each answer.

        Raises ViolationError.
        """
        latest_at = trio.current_time() + _BEGINS_WITHIN_S
        while not (is_settled() and await self._is_acknowledged()):
            if trio.current_time() > latest_at:
                detail = f"no group within {_BEGINS_WITHIN_S:g} s of its start"
                raise ViolationError("liveness", detail)
            await trio.sleep(_TICK_S)
        await trio.sleep(self.choices.uniform(0.0, self.director.ttl_s))
        self.began_at = trio.current_time()
        how = "with" if self.outage.failsafe else "without"
        self.director.cluster.trace.add(
            "etcd", f"stops for {self.outage.seconds:g} s, {how} failsafe"
        )
        self.director.begin_outage()
        quiet_s = max(_QUIET_MIN_S, self.outage.seconds - plan.safety_s)
        while trio.current_time() < self.began_at + quiet_s:
            put = await self.producers.put(self.choices.randint(1, _SIZE_MAX), self.choices)
            if put is not None:
                self._puts.append(put)
            self._check_quiet(put)
            await trio.sleep(self.choices.uniform(*_REST_S))
        if not self.outage.failsafe and self.director.cluster.masters():
            raise ViolationError("no failsafe", f"there is a master after {quiet_s:g} s")

    async def _is_acknowledged(self) -> bool:
        """Whether a put is PUT_OK: a slave may not be connected yet."""
        put = await self.producers.put(1, self.choices)
        return put is not None and put.outcome is PutOutcome.OK

    def _check_quiet(self, put: Put | None) -> None:
        down_s = trio.current_time() - self.began_at
        if not self.outage.failsafe:
            self._check_none_late()
        elif put is None:
            raise ViolationError("failsafe", f"no master, with etcd down for {down_s:.1f} s")
        elif put.outcome is not PutOutcome.OK:
            detail = f"put {put.number} is {put.status}, with etcd down for {down_s:.1f} s"
            raise ViolationError("failsafe", detail, put.number)

    async def end_in_time(self) -> None:
        """Start etcd again when the outage is over."""
        await trio.sleep_until(self.began_at + self.outage.seconds)
        self.end()

    def end(self) -> None:
        """Check what was answered meanwhile, and start etcd.  Raises ViolationError."""
        if self.director.is_out:
            if not self.outage.failsafe:
                self._check_none_late()
            self.director.cluster.trace.add("etcd", "starts again after its outage")
            self.director.end_outage()

    def _check_none_late(self) -> None:
        """Check that nothing was PUT_OK after the end of each lease that etcd can have granted."""
        over_at = self.began_at + self.director.ttl_s
        for put in self.oracle.puts:
            if put.outcome is PutOutcome.OK and put.at > over_at:
                detail = f"put {put.number} is PUT_OK {put.at - over_at:.3f} s after the lease"
                raise ViolationError("no failsafe", detail, put.number)
