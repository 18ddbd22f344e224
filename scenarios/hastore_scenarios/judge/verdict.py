"""The result of a run in a few words, for the terminal and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_scenarios.judge.loss import Loss
    from hastore_scenarios.judge.outage import Outage
    from hastore_scenarios.judge.result import ScenarioResult


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
