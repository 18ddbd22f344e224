"""The report of a run as one page that needs nothing but itself: no script, no file, no network.

Headline figures, the drawn timeline, then the same as text: what happened, the puts by outcome, the
outages, what the checker counted, and, where something was wrong, what the nodes logged.  Names and
texts come from users' files and from nodes: every one of them is escaped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hastore.pipeline.report.html import (
    Column,
    card,
    escaped,
    figure,
    folded,
    note,
    page,
    table,
    tile,
    tiles,
    warning,
)
from hastore_scenarios.judge.outage import find_outages
from hastore_scenarios.judge.result import puts_text
from hastore_scenarios.judge.verdict import held_text, loss_text, rto_text, unknown_text
from hastore_scenarios.report.drawing import draw
from hastore_scenarios.report.lanes import Picture

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore_scenarios.judge.history import History, Operation
    from hastore_scenarios.judge.outage import Outage
    from hastore_scenarios.judge.result import ScenarioResult


def render_page(result: ScenarioResult, *, again: str | None = None) -> str:
    """Give the page as text; ``result.history`` must be there.

    ``again`` is the command that makes such a run; None: that of a scenario.
    """
    history = result.history
    assert history is not None, "a result without its history has nothing to draw"
    outages = find_outages(history)
    head = (
        f"<h1>{_text(result.name)}: {_text(result.title)}</h1>\n"
        f'<p class="lead">To prove: {_text(result.proves)}.</p>\n'
    )
    return page(
        _plain(f"{result.name} {held_text(result)}"),
        "".join(
            (
                head,
                _tiles(result, outages),
                _wrong(result),
                _drawing_card(result, history, outages),
                _timeline_card(result),
                _puts_card(history),
                _outages_card(outages),
                _checker_card(result),
                _outputs_card(result),
                _foot(again or _command(result)),
            )
        ),
    )


def _plain(text: str) -> str:
    """Take away what no document may hold: control characters, halves of surrogates."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _text(text: str) -> str:
    return escaped(_plain(text))


# -- headline --------------------------------------------------------------------------------------


def _tiles(result: ScenarioResult, outages: tuple[Outage, ...]) -> str:
    loss = None if result.verdict is None else result.verdict.loss
    rto, rto_more = rto_text(outages, result.unmeasured)
    gone, gone_more = loss_text(loss)
    return tiles(
        [
            tile("verdict", held_text(result), _judged(result), is_wrong=not result.passed),
            tile("RTO", rto, _plain(rto_more), is_wrong=any(each.ok_s is None for each in outages)),
            tile(
                "RPO",
                gone,
                f"{gone_more}; {unknown_text(loss)}",
                is_wrong=loss is not None and loss.gone > 0,
            ),
            tile("puts", str(sum(result.put_counts.values())), puts_text(result.put_counts)),
        ]
    )


def _judged(result: ScenarioResult) -> str:
    checked = "not judged"
    if result.verdict is not None:
        checked = f"{result.verdict.records} records checked"
    seed = "" if result.seed is None else f", seed {result.seed}"
    return f"{checked}; {result.duration_s:.1f} s in the {result.world} world{seed}"


def _wrong(result: ScenarioResult) -> str:
    if result.passed:
        return ""
    kept = "" if result.directory is None else f"\nLogs and outputs: {result.directory}"
    box = warning(held_text(result).capitalize(), _plain((result.why or "not judged") + kept))
    return box.strip().replace("\n", "<br>\n") + "\n"


# -- what happened ---------------------------------------------------------------------------------


def _drawing_card(result: ScenarioResult, history: History, outages: tuple[Outage, ...]) -> str:
    picture = Picture.of(history)
    nodes = ", ".join(lane.name for lane in picture.lanes if not lane.is_link)
    rto, rto_more = rto_text(outages, result.unmeasured)
    description = (
        f"{picture.end_s:.3f} seconds of nodes {nodes}; {puts_text(result.put_counts)};"
        f" RTO {rto} {rto_more}"
    )
    caption = (
        "Blue: running as master (dark) or slave (light). Dashed: down. Hatched: frozen. A thin"
        " line: a link that passes everything; a red bar: cut; amber: slowed, or a failing disk."
        " Below: expectations that came true (dots), and puts when they ended, by outcome (heights"
        " as the root of their number). Shaded: from a fault to the next PUT_OK. Point at anything"
        " for more; all times are seconds since the world began."
    )
    return card(
        "drawn", "The run", "Who was what, what was done, and what producers were told.",
        figure(draw(picture, outages, description)), note(caption),
    )  # fmt: skip


def _timeline_card(result: ScenarioResult) -> str:
    rows = [
        {
            "time_s": entry.time_s,
            "node": entry.node or "",
            "text": entry.text.removeprefix(f"{entry.node}: "),
            "is_others": entry.text.startswith("as expected"),
        }
        for entry in result.timeline
    ]
    columns = (
        Column("s", lambda row: f"{row['time_s']:.3f}"),
        Column("node", lambda row: _plain(row["node"]), is_number=False),
        Column("what", lambda row: _plain(row["text"]), is_number=False),
    )
    return card(
        "timeline",
        "Timeline",
        "The same as text; puts are in groups that ended the same way.",
        table("When something had certainly taken effect", columns, rows),
    )


def _puts_card(history: History) -> str:
    by_label: dict[str, list[Operation]] = {}
    for put in history.operations:
        by_label.setdefault(put.label, []).append(put)
    if not by_label:
        return ""
    rows = [
        {"label": label, "count": len(puts), "ms": _milliseconds(puts)}
        for label, puts in sorted(by_label.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    columns = (
        Column("outcome", lambda row: row["label"], is_number=False),
        Column("puts", lambda row: str(row["count"])),
        Column("p50 ms", lambda row: _rank(row["ms"], 0.5)),
        Column("p99 ms", lambda row: _rank(row["ms"], 0.99)),
        Column("slowest ms", lambda row: _rank(row["ms"], 1.0)),
    )
    lead = "What producers were told, and how long they waited for it."
    return card("puts", "Puts", lead, table("From the call to its answer", columns, rows))


def _milliseconds(puts: Iterable[Operation]) -> list[float]:
    took = (1000 * (put.completed_s - put.invoked_s) for put in puts if put.completed_s is not None)
    return sorted(took)


def _rank(values: list[float], share: float) -> str:
    if not values:
        return "-"
    return f"{values[min(len(values) - 1, int(share * len(values)))]:.1f}"


def _outages_card(outages: tuple[Outage, ...]) -> str:
    if not outages:
        return ""
    columns = (
        Column("from s", lambda row: f"{row['begin_s']:.3f}"),
        Column("fault", lambda row: _plain(row["fault"]), is_number=False),
        Column("RTO s", lambda row: "never" if row["rto_s"] is None else f"{row['rto_s']:.3f}"),
        Column("puts without PUT_OK", lambda row: str(row["puts"])),
    )
    rows: list[dict[str, Any]] = [outage.to_dict() for outage in outages]
    lead = "From the fault that ended acknowledgements to the next PUT_OK of a put that waits."
    return card("outages", "Outages", lead, table("In the order of time", columns, rows))


# -- the judgement ---------------------------------------------------------------------------------


def _checker_card(result: ScenarioResult) -> str:
    verdict = result.verdict
    if verdict is None:
        return ""
    rows = [{"rule": rule, "count": count} for rule, count in verdict.counts.items()]
    columns = (
        Column("rule", lambda row: row["rule"], is_number=False),
        Column("broken", lambda row: str(row["count"])),
    )
    lead = (
        f"{verdict.operations} puts were held against {verdict.records} records in the logs that"
        " were left."
    )
    return card("checker", "Checker", lead, folded("Every rule", table("", columns, rows)))


def _outputs_card(result: ScenarioResult) -> str:
    if not result.outputs:
        return ""
    said = "".join(
        folded(_plain(name), f'<div class="scroll"><pre>{_text(output)}</pre></div>')
        for name, output in result.outputs.items()
    )
    return card("outputs", "What the nodes logged", "The end of each node's output.", said)


def _command(result: ScenarioResult) -> str:
    seed = "" if result.seed is None else f" --seed {result.seed}"
    command = f"hastore scenario run {result.name} --world {result.world}{seed}"
    return f"{command} (a scenario of your own: its file instead of its name)"


def _foot(again: str) -> str:
    beside = "Beside this page: history.jsonl (every put and every action), result.json."
    return f"<footer>{note(_plain(f'Again: {again}.'))}{note(beside)}</footer>\n"
