"""Shrinks a failing seed to few faults with which the same rule still breaks.

Delta debugging over the faults that had an effect: parts of the list are left out, first halves,
then quarters, down to single faults, and stay out if the rule still breaks.  A run without some
faults is another run, so any that breaks the same rule will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.sim.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.sim.simulation import SimResult

RUNS_MAX: Final = 60


@final
@attrs.frozen(kw_only=True)
class Shrunk:
    """The smallest run found, with its trace; ``kept`` of the ``fired`` faults are left."""

    result: SimResult
    kept: tuple[int, ...]
    fired: int
    runs: int


def shrink(
    failed: SimResult,
    *,
    runs_max: int = RUNS_MAX,
    is_over: Callable[[], bool] = lambda: False,
    run: Callable[..., SimResult] = simulate,
) -> Shrunk:
    """Shrink a seed that has failed; blocks for up to ``runs_max`` + 2 runs.

    Stop early with what was reached once ``is_over`` returns True between two runs.
    """
    assert failed.violation is not None
    rule = failed.violation.name
    everything = [fault.number for fault in failed.plan.faults]
    runs = 0

    def breaks(kept: list[int]) -> SimResult | None:
        nonlocal runs
        runs += 1
        result = run(failed.seed, left_out=_without(everything, kept))
        is_same = result.violation is not None and result.violation.name == rule
        return result if is_same else None

    kept = sorted(failed.fired)
    if breaks(kept) is None:  # a fault without an effect of its own was needed after all
        kept = everything
    parts = 2
    while kept and runs < runs_max and not is_over():
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            smaller = breaks(rest)
            if smaller is not None:
                fired = set(smaller.fired)
                kept = [number for number in rest if number in fired] or rest
                parts = max(parts - 1, 2)
                break
            if runs >= runs_max or is_over():
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(kept))
    result = run(failed.seed, keeps_trace=True, left_out=_without(everything, kept))
    if result.violation is None or result.violation.name != rule:
        kept = everything  # faults that were left out were needed after all
        result = run(failed.seed, keeps_trace=True)
    return Shrunk(result=result, kept=tuple(kept), fired=len(failed.fired), runs=runs)


def _without(everything: list[int], kept: list[int]) -> frozenset[int]:
    return frozenset(everything).difference(kept)
