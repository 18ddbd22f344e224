"""The result of a scenario's run: its JSON form ``hastore.scenario/1``, and short texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore_scenarios.judge.outage import Outage, find_outages, find_unmeasured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.history import History
    from hastore_scenarios.judge.loss import Loss
    from hastore_scenarios.judge.timeline import TimelineEntry

SCHEMA: Final = "hastore.scenario/1"


@attrs.frozen(kw_only=True)
class Act:
    """A later part of a run, on nodes of its own; ``history`` counts from the act's beginning.

    ``gone`` of ``acknowledged`` messages are missing in at least one of the logs at the end.
    """

    title: str
    history: History
    acknowledged: int
    gone: int

    @property
    def loss(self) -> tuple[str, str]:
        """How many acknowledged messages are gone, and a sentence about them."""
        return f"{self.gone}", f"of {self.acknowledged} acknowledged are gone, in each node's log"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "title": self.title,
            "put_counts": self.history.put_counts,
            "outages": [outage.to_dict() for outage in find_outages(self.history)],
            "acknowledged": self.acknowledged,
            "gone": self.gone,
        }


@attrs.frozen(kw_only=True)
class ScenarioResult:
    """The result of one run.

    ``failure`` is why the scenario itself failed (an expectation, a node, a deadline); ``verdict``
    is the checker's, None if the logs could not be read.  ``directory`` holds the logs, the nodes'
    outputs and ``history.jsonl``; None once it is removed.  ``outputs`` has the end of each node's
    output, unless the run passed.  ``history`` is for the report.
    """

    name: str
    title: str
    proves: str
    failure: str | None
    verdict: Verdict | None
    timeline: tuple[TimelineEntry, ...]
    put_counts: dict[str, int]
    duration_s: float
    directory: str | None
    outputs: dict[str, str] = attrs.field(factory=dict)
    world: str = "process"  # or "netns" or "sim"
    seed: int | None = None  # of a run in the simulator
    skipped: str | None = None  # why this machine cannot run it in that world
    # Spark's result from the same history and logs, if asked for (``hastore_cli``).
    spark: dict[str, Any] | None = None
    history: History | None = attrs.field(default=None, repr=False, eq=False)
    later_acts: tuple[Act, ...] = attrs.field(default=(), repr=False, eq=False)  # of the demo

    def with_directory_removed(self) -> ScenarioResult:
        """Return the result without its directory."""
        return attrs.evolve(self, directory=None)

    @property
    def passed(self) -> bool:
        """Whether every expectation held, the checker found nothing, and Spark agrees."""
        held = self.failure is None and self.verdict is not None and self.verdict.ok
        return held and not self.disagreements

    @property
    def outages(self) -> tuple[Outage, ...]:
        """The outages, with their lengths (RTO)."""
        return () if self.history is None else find_outages(self.history)

    @property
    def unmeasured(self) -> str | None:
        """The fault that took a master without any later put, or None."""
        return None if self.history is None else find_unmeasured(self.history)

    @property
    def disagreements(self) -> list[str]:
        """The rules that Spark and the checker count differently, as sentences."""
        return [] if self.spark is None else self.spark["disagreements"]

    @property
    def why(self) -> str:
        """What was wrong, a line each; empty if nothing was."""
        lines = [] if self.failure is None else [self.failure]
        if self.verdict is not None:
            lines += [str(violation) for violation in self.verdict.violations]
        lines += [f"Spark and the checker disagree: {text}" for text in self.disagreements]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "title": self.title,
            "proves": self.proves,
            "world": self.world,
            "seed": self.seed,
            "skipped": self.skipped,
            "passed": self.passed,
            "failure": self.failure,
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "timeline": [attrs.asdict(entry) for entry in self.timeline],
            "put_counts": self.put_counts,
            "outages": [outage.to_dict() for outage in self.outages],
            "duration_s": round(self.duration_s, 3),
            "directory": self.directory,
            "outputs": self.outputs,
            "spark": self.spark,
            **(
                {"later_acts": [act.to_dict() for act in self.later_acts]}
                if self.later_acts
                else {}
            ),
        }


def puts_text(counts: Mapping[str, int]) -> str:
    """Return ``95 PUT_OK, 5 FLUSH_SLAVE_TIMEOUT``."""
    return ", ".join(f"{count} {label}" for label, count in counts.items()) or "no puts"


def held_text(result: ScenarioResult) -> str:
    """Return ``held``, ``broken`` (the checker), ``failed`` (the story), or ``skipped``."""
    if result.skipped is not None:
        return "skipped"
    if result.verdict is not None and not result.verdict.ok:
        return "broken"
    return "held" if result.passed else "failed"


def rto_text(outages: Sequence[Outage], unmeasured: str | None) -> tuple[str, str]:
    """Return the longest outage and its cause; ``unmeasured`` is a fault without later puts."""
    if not outages and unmeasured is not None:
        return "–", f"not measured: no put after {unmeasured}"
    if not outages:
        return "–", "no fault ended acknowledgements"
    worst = max(outages, key=lambda each: (each.ok_s is None, each.rto_s or 0.0))
    many = "" if len(outages) == 1 else f"the longest of {len(outages)}: "
    if worst.rto_s is None:
        return "never", f"{many}no PUT_OK from {worst.fault} to the story's end"
    return f"{worst.rto_s:.3f} s", f"{many}from {worst.fault} to the next PUT_OK"


def loss_text(loss: Loss | None) -> tuple[str, str]:
    """Return how many acknowledged messages are gone, and a sentence about them."""
    if loss is None:
        return "?", "the logs could not be read"
    more = f"of {loss.acknowledged} acknowledged are gone"
    if loss.unwaited:
        more += f", {loss.unwaited} of them sent with WAIT=false"
    if loss.elsewhere:
        more += f"; {loss.elsewhere} are still in another node's log"
    if loss.expired:
        more += f"; {loss.expired} messages have expired"
    if loss.wiped:
        more += f"; {loss.wiped} were wiped by the story"
    return f"{loss.gone}", more


def unknown_text(loss: Loss | None) -> str:
    """Return how many messages have no certain outcome, and how many of them are there."""
    if loss is None or not loss.unknown:
        return "none of unknown outcome" if loss is not None else "outcomes not checked"
    if loss.unknown_there == loss.unknown:
        return f"{loss.unknown} of unknown outcome, all there"
    return f"{loss.unknown} of unknown outcome, {loss.unknown_there} of them there"
