"""Runs seeds of the simulator in several processes, and prints the results.

Progress, the summary, and the story of a seed that failed.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import HastoreError
from hastore_cli.app.terminal import folded, one_line, say, say_in_place, style, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from hastore.sim.shrink import Shrunk
    from hastore.sim.simulation import SimResult
    from hastore.sim.trace import TraceEntry

_LINE_EVERY_S: Final = 10.0
_IN_PLACE_EVERY_S: Final = 0.2
_AHEAD: Final = 2  # seeds queued per process
_WAKE_S: Final = 0.5  # for the progress line and the end of the time


@final
@attrs.frozen(kw_only=True)
class SeedOutcome:
    """The outcome of one seed; ``error`` is the traceback of the exception that ended it."""

    seed: int
    groups: bool = False
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
        """Whether all promises held."""
        return self.violation is None and self.error is None


@final
@attrs.define(eq=False)
class SeedTotals:
    """The totals of many seeds."""

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
        """Add the outcome of one seed."""
        self.seeds += 1
        for name in ("virtual_s", "faults", "boots", "puts", "acknowledged", "served"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        if not outcome.ok:
            self.failed.append(outcome)
            self.failed.sort(key=lambda each: each.seed)

    @property
    def rate(self) -> float:
        """Virtual seconds per CPU second, including all processes and their start."""
        return self.virtual_s / self.cpu_s if self.cpu_s else 0.0


def simulation_of(*, groups: bool) -> Callable[..., SimResult]:
    """Return what runs a seed: of a classic cluster, or of a replica group."""
    from hastore.sim.group.group_simulation import simulate_group
    from hastore.sim.simulation import simulate

    return simulate_group if groups else simulate


def replay_command(seed: int, *, groups: bool) -> str:
    """Return the command that repeats a seed."""
    return f"hastore sim replay {'--groups ' if groups else ''}{seed}"


def run_seed(seed: int, *, groups: bool = False) -> SeedOutcome:
    """Run one seed, in a process of the pool."""
    try:
        result = simulation_of(groups=groups)(seed)
    except Exception:  # noqa: BLE001 - any error must name its seed
        return SeedOutcome(seed=seed, groups=groups, error=traceback.format_exc())
    return SeedOutcome(
        seed=seed,
        groups=groups,
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
    groups: bool = False,
    on_progress: Callable[[SeedTotals], None],
) -> SeedTotals:
    """Run seeds until there are no more, the time is over, or Ctrl-C.

    At least one seed runs: a run without seeds would look as if all promises had held.  Ctrl-C is
    looked for between waits: raised inside the pool, it could leave a future locked, for which the
    pool's own thread would then wait for ever.
    """
    simulation_of(groups=groups)  # imported once, before the processes are forked

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
            waiting.add(pool.submit(run_seed, seed, groups=groups))

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        tally.was_interrupted = True

    handler = signal.signal(signal.SIGINT, interrupt)
    try:
        while not tally.was_interrupted:
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
    finally:
        signal.signal(signal.SIGINT, handler)
        if tally.was_interrupted:
            for process in (pool._processes or {}).values():  # noqa: SLF001 - no other way
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
    tally.wall_s = time.monotonic() - begun
    tally.cpu_s = _cpu_s() - cpu
    return tally


def _begin_process() -> None:
    """Ignore Ctrl-C, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """End when the parent is killed: siblings keep its pipes open."""
    while os.getppid() == parent:
        time.sleep(_WAKE_S)
    os._exit(1)


def _cpu_s() -> float:
    """Return the user and system time of this process and its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def default_jobs() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


# -- output -------------------------------------------------------------------------------------


@final
class ProgressLine:
    """A progress line on stderr: updated in place on a terminal, else every ten seconds."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._every_s = _IN_PLACE_EVERY_S if self._in_place else _LINE_EVERY_S
        self._last = time.monotonic() - self._every_s

    def show(self, tally: SeedTotals) -> None:
        """Print the progress if the last line is old enough."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        text = (
            f"{tally.seeds} seeds, {tally.virtual_s:.0f} virtual s, {tally.faults} faults,"
            f" {tally.acknowledged} acknowledged, {len(tally.failed)} failed"
        )
        if self._in_place:
            say_in_place(text)
        else:
            say(text)

    def end(self) -> None:
        """Remove the line."""
        if self._in_place:
            say_in_place("")


def tally_dict(tally: SeedTotals) -> dict[str, Any]:
    """Return the summary with stable keys."""
    return {
        "seeds": tally.seeds,
        "virtual_s": round(tally.virtual_s, 3),
        "faults": tally.faults,
        "boots": tally.boots,
        "puts": tally.puts,
        "acknowledged": tally.acknowledged,
        "served": tally.served,
        "violations": len(tally.failed),
        "cpu_s": round(tally.cpu_s, 3),
        "virtual_s_per_cpu_s": round(tally.rate, 1),
        "wall_s": round(tally.wall_s, 3),
        "interrupted": tally.was_interrupted,
    }


def print_tally(tally: SeedTotals) -> None:
    """Print the summary."""
    rows = (
        ("seeds", f"{tally.seeds}"),
        ("virtual time", f"{tally.virtual_s:.0f} s"),
        ("faults", f"{tally.faults}"),
        ("boots", f"{tally.boots}"),
        ("puts", f"{tally.puts}, {tally.acknowledged} acknowledged"),
        ("served", f"{tally.served} messages to consumers"),
        ("speed", f"{tally.rate:.0f} virtual s a CPU-second ({tally.cpu_s:.1f} s of CPU)"),
    )
    for name, value in rows:
        tell(f"{name:<13} {value}")
    count = len(tally.failed)
    verdict = style("none", fg="green") if not count else style(f"{count}", fg="red")
    tell(f"{'violations':<13} {verdict}" + (" (interrupted)" if tally.was_interrupted else ""))


def result_dict(result: SimResult) -> dict[str, Any]:
    """Return the result of a seed, with stable keys."""
    violation = result.violation
    return {
        "seed": result.seed,
        "config": result.config,
        "trace_hash": result.trace_hash,
        "virtual_s": round(result.virtual_s, 3),
        "faults": result.faults,
        "boots": result.boots,
        "puts": result.puts,
        "acknowledged": result.acknowledged,
        "served": result.served,
        "violation": None
        if violation is None
        else {"rule": violation.name, "detail": violation.detail, "put": violation.put},
        "error": result.traceback,
    }


def entries_dict(entries: Sequence[TraceEntry]) -> list[dict[str, Any]]:
    """Return a timeline with stable keys."""
    return [{"at_s": round(each.at, 6), "who": each.who, "what": each.what} for each in entries]


def print_result(result: SimResult) -> None:
    """Print the result of a seed."""
    tell(folded(f"seed {result.seed}: ", result.config, sys.stdout))
    counts = (
        f"{result.virtual_s:.1f} virtual s, {result.faults} faults, {result.boots} boots,"
        f" {result.puts} puts, {result.acknowledged} acknowledged, {result.served} served"
    )
    tell(folded("  ", counts, sys.stdout))
    tell(f"  trace hash  {result.trace_hash}")
    if result.violation is None:
        tell(f"  {style('held', fg='green')}")
    else:
        head = f"  {style('broke', fg='red', bold=True)}  "
        tell(folded(head, str(result.violation), sys.stdout))


def print_timeline(entries: Sequence[TraceEntry]) -> None:
    """Print the entries of a timeline."""
    for each in entries:
        line = folded(f"  {each.at:10.3f}  {each.who:<9} ", one_line(each.what), sys.stdout)
        colour = "red" if each.who == "oracle" else "yellow" if _is_fault(each) else None
        tell(style(line, fg=colour) if colour else line)


def _is_fault(entry: TraceEntry) -> bool:
    return entry.what.startswith("fault ")


def print_shrunk(shrunk: Shrunk) -> None:
    """Print how many faults a failing seed needs, and its shrunk timeline."""
    tell(f"  with {len(shrunk.kept)} of its {shrunk.fired} faults ({shrunk.runs} runs):")
    print_timeline(shrunk.result.timeline())


def print_failed(outcome: SeedOutcome) -> None:
    """Print a seed that failed, and how to replay it."""
    what = outcome.violation or (outcome.error or "").strip().splitlines()[-1]
    failed = style("FAILED", fg="red", bold=True)
    tell(folded(f"seed {outcome.seed} {failed}: ", one_line(what), sys.stdout))
    tell(f"  {replay_command(outcome.seed, groups=outcome.groups)}")
