"""Seeds of the simulator, one after the other in several processes, and what became of all."""

from __future__ import annotations

import math
import os
import resource
import signal
import threading
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AHEAD: Final = 2  # seeds that a process has waiting
_WAKE_S: Final = 0.5  # for the progress line and the end of the time


@final
@attrs.frozen(kw_only=True)
class SeedOutcome:
    """What became of one seed; ``error`` is the traceback of what broke it off, if anything did."""

    seed: int
    trace_hash: str = ""
    virtual_s: float = 0.0
    faults: int = 0
    boots: int = 0
    puts: int = 0
    acknowledged: int = 0
    served: int = 0
    violation: str | None = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return self.violation is None and self.error is None


@final
@attrs.define(eq=False)
class SeedTotals:
    """The sum of many seeds."""

    seeds: int = 0
    virtual_s: float = 0.0
    faults: int = 0
    boots: int = 0
    puts: int = 0
    acknowledged: int = 0
    served: int = 0
    failed: list[SeedOutcome] = attrs.field(factory=list)
    was_interrupted: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, outcome: SeedOutcome) -> None:
        """Count one more."""
        self.seeds += 1
        for name in ("virtual_s", "faults", "boots", "puts", "acknowledged", "served"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        if not outcome.ok:
            self.failed.append(outcome)
            self.failed.sort(key=lambda each: each.seed)

    @property
    def rate(self) -> float:
        """Virtual seconds a second of CPU, all processes and their start included."""
        return self.virtual_s / self.cpu_s if self.cpu_s else 0.0


def run_seed(seed: int) -> SeedOutcome:
    """Run one seed, in a process of the pool."""
    from hastore.sim.simulation import simulate

    try:
        result = simulate(seed)
    except Exception:  # noqa: BLE001 - the seed is to be named, whatever broke
        return SeedOutcome(seed=seed, error=traceback.format_exc())
    return SeedOutcome(
        seed=seed,
        trace_hash=result.trace_hash,
        virtual_s=result.virtual_s,
        faults=result.faults,
        boots=result.boots,
        puts=result.puts,
        acknowledged=result.acknowledged,
        served=result.served,
        violation=None if result.violation is None else str(result.violation),
        error=result.traceback,
    )


def run_seeds(
    seeds: Iterator[int],
    *,
    jobs: int,
    seconds: float | None,
    on_progress: Callable[[SeedTotals], None],
) -> SeedTotals:
    """Run seeds until there are no more, or the time is over, or Ctrl-C.

    The first one runs however short the time is: no seed at all would look as if all had held.
    """
    import hastore.sim.simulation  # noqa: F401 - once, before the processes are forked

    tally = SeedTotals()
    begun, cpu = time.monotonic(), _cpu_s()
    until = math.inf if seconds is None else begun + seconds
    pool = ProcessPoolExecutor(max_workers=jobs, initializer=_begin_process)
    waiting: set[Future[SeedOutcome]] = set()
    has_begun = False

    def fill() -> None:
        nonlocal has_begun
        while len(waiting) < jobs * _AHEAD and (time.monotonic() < until or not has_begun):
            seed = next(seeds, None)
            if seed is None:
                break
            has_begun = True
            waiting.add(pool.submit(run_seed, seed))

    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the processes begin so, too
    try:
        fill()
    finally:
        signal.signal(signal.SIGINT, handler)
    try:
        while True:
            fill()
            if not waiting:
                break
            done, waiting = wait(waiting, timeout=_WAKE_S, return_when=FIRST_COMPLETED)
            for future in done:
                tally.add(future.result())
            tally.wall_s = time.monotonic() - begun
            on_progress(tally)
    except BrokenProcessPool:
        msg = "a process of the simulator was killed; was there too little memory?"
        raise HastoreError(msg, hint="try again with fewer: --jobs 1") from None
    except KeyboardInterrupt:
        tally.was_interrupted = True
        for process in (pool._processes or {}).values():  # noqa: SLF001 - there is no other way
            process.terminate()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    tally.wall_s = time.monotonic() - begun
    tally.cpu_s = _cpu_s() - cpu
    return tally


def _begin_process() -> None:
    """Leave Ctrl-C to the parent, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End when the parent was killed: its pipes are open as long as a sibling lives."""
    while os.getppid() == parent:
        time.sleep(_WAKE_S)
    os._exit(1)


def _cpu_s() -> float:
    """User and system time of this process and of those that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def default_jobs() -> int:
    """Give the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))
