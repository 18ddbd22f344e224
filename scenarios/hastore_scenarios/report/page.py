"""The report of a run as one self-contained page: no script, no other file, no network.

Headline figures, the drawn timeline, then the same as text: what happened, the puts by outcome, the
outages, the checker's counts and, after a failure, what the nodes logged.  Names and texts come
from users' files and from nodes: all of them are escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.html.templates import templates
from hastore_scenarios.judge.outage import find_outages
from hastore_scenarios.judge.result import held_text, loss_text, puts_text, rto_text, unknown_text
from hastore_scenarios.report.drawing import draw
from hastore_scenarios.report.lanes import Picture

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import History, Operation
    from hastore_scenarios.judge.result import Act, ScenarioResult

_TEMPLATES: Final = templates("hastore_scenarios.report")


def render_page(result: ScenarioResult, *, again: str | None = None) -> str:
    """Return the page as text; ``result.history`` must not be None.

    ``again`` is the command that repeats the run; None: that of a scenario.
    """
    history = result.history
    assert history is not None, "a result without its history has nothing to draw"
    outages = find_outages(history)
    rto, rto_more = rto_text(outages, result.unmeasured)
    loss = None if result.verdict is None else result.verdict.loss
    puts = puts_text(result.put_counts)
    picture = Picture.of(history)
    description = _description(picture, puts, rto, rto_more)
    return _TEMPLATES.get_template("run.html.jinja").render(
        result=result,
        held=held_text(result),
        outages=outages,
        rto=(rto, rto_more),
        loss=loss_text(loss),
        unknown=unknown_text(loss),
        puts_text=puts,
        drawing=draw(picture, outages, description),
        puts=_puts(history),
        acts=[_act(act, f"act-{number}") for number, act in enumerate(result.later_acts, 2)],
        again=again or _command(result),
    )


def _description(picture: Picture, puts: str, rto: str, rto_more: str) -> str:
    nodes = ", ".join(lane.name for lane in picture.lanes if not lane.is_link)
    return f"{picture.end_s:.3f} seconds of nodes {nodes}; {puts}; RTO {rto} {rto_more}"


def _act(act: Act, name: str) -> dict[str, Any]:
    """Return the figures and the drawing of a later act; ``name`` is unique in the page."""
    outages = find_outages(act.history)
    rto = rto_text(outages, None)
    picture = Picture.of(act.history)
    puts = puts_text(act.history.put_counts)
    return {
        "title": act.title,
        "name": name,
        "rto": rto,
        "outages": outages,
        "loss": act.loss,
        "gone": act.gone,
        "count": len(act.history.operations),
        "puts_text": puts,
        "drawing": draw(picture, outages, _description(picture, puts, *rto), name=name),
        "puts": _puts(act.history),
    }


def _puts(history: History) -> list[dict[str, Any]]:
    """Return the puts by outcome, the most frequent first, with their latencies in ms."""
    by_label: dict[str, list[Operation]] = {}
    for put in history.operations:
        by_label.setdefault(put.label, []).append(put)
    rows = []
    for label, puts in sorted(by_label.items(), key=lambda item: (-len(item[1]), item[0])):
        took_ms = sorted(
            1000 * (put.completed_s - put.invoked_s) for put in puts if put.completed_s is not None
        )
        waited = [_rank(took_ms, share) for share in (0.5, 0.99, 1.0)]
        rows.append({"label": label, "numbers": [len(puts), *waited]})
    return rows


def _rank(values: list[float], share: float) -> str:
    if not values:
        return "-"
    return f"{values[min(len(values) - 1, int(share * len(values)))]:.1f}"


def _command(result: ScenarioResult) -> str:
    seed = "" if result.seed is None else f" --seed {result.seed}"
    command = f"hastore scenario run {result.name} --world {result.world}{seed}"
    return f"{command} (a scenario of your own: its file instead of its name)"
