"""The faults of a run and their times, all chosen by the seed before the run begins.

    at       kind       node
    3.271    kill       0          each with a number, and a generator of its own for the rest
    4.016    one-way    2          (how long, which way, …)

Each kind has a weight from the seed, often 0 (swarm testing).  Each fault has a generator of its
own, so leaving one out does not change the choices of the others: a plan can be shrunk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_WEIGHTS: Final = (0.0, 0.3, 1.0, 1.0, 3.0)
_MEANS_S: Final = (0.5, 2.0, 5.0)  # between two faults
_SAFETY_S: Final = (20.0, 60.0)
_ADDED: Final = (1, 1, 2, 3)


@attrs.frozen(kw_only=True)
class PlannedFault:
    """One fault; ``node`` is its index in the cluster, ``salt`` the seed of its own choices."""

    number: int
    at: float
    kind: str
    node: int
    salt: int

    def choices(self) -> random.Random:
        """Return a new generator for the fault's own choices."""
        return random.Random(self.salt)


@attrs.frozen(kw_only=True)
class FaultPlan:
    """The faults of one seed in order of time; after ``safety_s`` there are none, and all heals."""

    safety_s: float
    weights: dict[str, float]
    faults: tuple[PlannedFault, ...]


def make_fault_plan(
    choices: random.Random,
    kinds: Sequence[str],
    nodes: int,
    weights_of: Mapping[str, Sequence[float]] | None = None,
    *,
    lasts_s: tuple[float, float] = _SAFETY_S,
) -> FaultPlan:
    """Choose the faults of a run for a cluster of ``nodes`` nodes.

    ``weights_of`` are the weights to choose from for kinds that are to be more or less frequent;
    ``lasts_s`` are the shortest and the longest time in which faults happen.
    """
    weights_of = weights_of or {}
    safety_s = choices.uniform(*lasts_s)
    mean_s = choices.choice(_MEANS_S)
    weights = {kind: choices.choice(weights_of.get(kind, _WEIGHTS)) for kind in kinds}
    if not any(weights.values()):
        weights["kill"] = 1.0
    faults: list[PlannedFault] = []
    at = choices.expovariate(1 / mean_s)
    while at < safety_s:
        kind = choices.choices(list(weights), list(weights.values()))[0]
        node, salt = choices.randrange(nodes), choices.getrandbits(64)
        faults.append(PlannedFault(number=len(faults), at=at, kind=kind, node=node, salt=salt))
        at += choices.expovariate(1 / mean_s)
    return FaultPlan(safety_s=safety_s, weights=weights, faults=tuple(faults))


def with_more_faults(
    plan: FaultPlan,
    choices: random.Random,
    kinds: Sequence[str],
    nodes: int,
    early: Collection[str] = (),
) -> FaultPlan:
    """Add one to three faults of ``kinds`` to a plan, whose own ones stay as they are.

    Those of ``early`` kinds need a group in which little else has failed yet.
    """
    added = []
    for index in range(choices.choice(_ADDED)):
        kind = choices.choice(kinds)
        share = choices.uniform(0.0, 0.05) if kind in early else choices.uniform(0.05, 0.8)
        added.append(
            PlannedFault(
                number=len(plan.faults) + index,
                at=share * plan.safety_s,
                kind=kind,
                node=choices.randrange(nodes),
                salt=choices.getrandbits(64),
            )
        )
    faults = sorted((*plan.faults, *added), key=lambda fault: fault.at)
    return attrs.evolve(plan, faults=tuple(faults))
