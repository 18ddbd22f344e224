"""Which faults befall a cluster, and when: all of it chosen before the run begins, by the seed.

    at       kind       node
    3.271    kill       0          each with a number, and a generator of its own for the rest
    4.016    one-way    2          (how long, which way, …)

Each kind has a weight from the seed, and some happen in no run of it at all (swarm testing).  As a
fault's choices are its own, leaving one out changes nothing about the others but what comes of
them: so a plan can be shrunk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

_WEIGHTS: Final = (0.0, 0.3, 1.0, 1.0, 3.0)
_MEANS_S: Final = (0.5, 2.0, 5.0)  # between two faults
_SAFETY_S: Final = (20.0, 60.0)


@attrs.frozen(kw_only=True)
class PlannedFault:
    """One fault; ``node`` is its index in the cluster, ``salt`` the seed of its own choices."""

    number: int
    at: float
    kind: str
    node: int
    salt: int

    def choices(self) -> random.Random:
        """Return the generator for all that the fault itself chooses."""
        return random.Random(self.salt)


@attrs.frozen(kw_only=True)
class FaultPlan:
    """The faults of one seed, in order; after ``safety_s`` there are none, and all heals."""

    safety_s: float
    weights: dict[str, float]
    faults: tuple[PlannedFault, ...]


def make_fault_plan(choices: random.Random, kinds: Sequence[str], nodes: int) -> FaultPlan:
    """Choose what happens."""
    safety_s = choices.uniform(*_SAFETY_S)
    mean_s = choices.choice(_MEANS_S)
    weights = {kind: choices.choice(_WEIGHTS) for kind in kinds}
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
