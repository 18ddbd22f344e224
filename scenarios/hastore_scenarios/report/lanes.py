"""The numbers behind the drawing of a run: lanes of nodes and links, marks, and puts in bins.

Pure: a history goes in, spans of time come out; ``drawing`` chooses positions and colours.  All
times are seconds since the world began, in [0, ``end_s``].
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import attrs

from hastore_scenarios.judge.history import LASTING_DISK_FAULTS, EventKind
from hastore_scenarios.judge.outage import is_fault

if TYPE_CHECKING:
    from hastore_scenarios.judge.history import Event, History, Operation

BINS: Final = 240
# Kinds of spans, also their CSS classes.
MASTER, SLAVE, DOWN, FROZEN, CUT, OPEN, SICK = (
    "master",
    "slave",
    "down",
    "frozen",
    "cut",
    "open",
    "sick",
)
_ENDS: Final = frozenset({EventKind.STOP, EventKind.KILL, EventKind.EXIT})
_STARTS: Final = frozenset({EventKind.START_MASTER, EventKind.START_SLAVE})


@attrs.frozen(kw_only=True)
class LaneSpan:
    """A state in [``begin_s``, ``end_s``]; ``label`` is short, ``text`` a sentence."""

    begin_s: float
    end_s: float
    kind: str
    label: str
    text: str


@attrs.frozen(kw_only=True)
class Lane:
    """A node, or the link between a slave and its master; later spans cover earlier ones."""

    name: str
    is_link: bool
    spans: tuple[LaneSpan, ...]


@attrs.frozen(kw_only=True)
class Mark:
    """An expectation at one instant, or a sentence (``is_good`` None)."""

    time_s: float
    is_good: bool | None
    text: str


@attrs.frozen(kw_only=True)
class PutRow:
    """The puts of one outcome: their number, and how many ended in each of BINS bins."""

    label: str
    count: int
    bins: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Picture:
    """Everything that is drawn of a run."""

    end_s: float
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    puts: tuple[PutRow, ...]

    @classmethod
    def of(cls, history: History) -> Picture:
        """Return the picture of a history, without the stops after the story's end."""
        story: list[Event] = []
        for event in history.events:
            story.append(event)
            if event.kind is EventKind.END:
                break
        times = [event.done_s for event in story]
        times += [put.completed_s for put in history.operations if put.completed_s is not None]
        end_s = max(times, default=0.0) or 1.0
        nodes = dict.fromkeys(event.node for event in story if event.node is not None)
        lanes: list[Lane] = []
        for name in nodes:
            of_node = [event for event in story if event.node == name]
            lanes.append(Lane(name=name, is_link=False, spans=_node_spans(of_node, end_s)))
            links = _link_spans(of_node, end_s)
            if links:
                lanes.append(Lane(name=_link_name(of_node), is_link=True, spans=links))
        return cls(
            end_s=end_s,
            lanes=tuple(lanes),
            marks=tuple(_marks(story)),
            puts=_put_rows(history.operations, end_s),
        )


def _node_spans(events: list[Event], end_s: float) -> tuple[LaneSpan, ...]:
    """Return the states of a node, running in a role or down, then the faults that cover them."""
    states: list[LaneSpan] = []
    begun: Event | None = None
    for event in events:
        if event.kind in _STARTS or event.kind in _ENDS:
            if begun is not None:
                states.append(_state(begun, event.time_s))
            begun = event
    if begun is not None:
        states.append(_state(begun, end_s))
    return (*states, *_disk_spans(events, end_s), *_frozen_spans(events, end_s))


def _frozen_spans(events: list[Event], end_s: float) -> list[LaneSpan]:
    spans = []
    begun: Event | None = None
    for event in events:
        if event.kind is EventKind.PAUSE:
            begun = event
        elif begun is not None and (event.kind is EventKind.RESUME or event.kind in _ENDS):
            spans.append(_over(begun, event.time_s, FROZEN, "frozen"))
            begun = None
    return spans if begun is None else [*spans, _over(begun, end_s, FROZEN, "frozen")]


def _disk_spans(events: list[Event], end_s: float) -> list[LaneSpan]:
    spans = []
    begun: Event | None = None
    for event in events:
        if event.kind is not EventKind.DISK:
            continue
        fault = str(event.details.get("fault"))
        if begun is not None:
            spans.append(_over(begun, event.time_s, SICK, _disk_label(begun)))
        begun = event if fault in LASTING_DISK_FAULTS else None
        if begun is None and is_fault(event):  # a fault of a stopped node's disk
            spans.append(_over(event, event.time_s, SICK, fault))
    return spans if begun is None else [*spans, _over(begun, end_s, SICK, _disk_label(begun))]


def _state(begun: Event, end_s: float) -> LaneSpan:
    if begun.kind in _STARTS:
        kind = MASTER if begun.kind is EventKind.START_MASTER else SLAVE
        following = begun.details.get("master")
        label = str(begun.details.get("role", kind)) + (f" of {following}" if following else "")
        if kind == MASTER and "epoch" in begun.details:
            label += f" of epoch {begun.details['epoch']}"
        return LaneSpan(begin_s=begun.done_s, end_s=end_s, kind=kind, label=label, text=begun.text)
    label = {EventKind.KILL: "killed", EventKind.STOP: "stopped"}.get(begun.kind, "ended by itself")
    return LaneSpan(begin_s=begun.time_s, end_s=end_s, kind=DOWN, label=label, text=begun.text)


def _over(begun: Event, end_s: float, kind: str, label: str) -> LaneSpan:
    return LaneSpan(begin_s=begun.time_s, end_s=end_s, kind=kind, label=label, text=begun.text)


def _disk_label(event: Event) -> str:
    return f"disk: {event.details.get('fault')}"


def _link_name(events: list[Event]) -> str:
    starts = [event for event in events if event.kind is EventKind.START_SLAVE]
    return f"{starts[-1].node} → {starts[-1].details.get('master', '?')}"


def _link_spans(events: list[Event], end_s: float) -> tuple[LaneSpan, ...]:
    """Return the states of the link while the node was a slave; nothing for a master."""
    spans: list[LaneSpan] = []
    begun: tuple[float, str, str, str] | None = None  # since when, kind, label, text
    state = (OPEN, "", "open")
    for event in events:
        now_s = event.time_s
        if event.kind is EventKind.LINK:
            mode = str(event.details.get("mode", ""))
            detail = event.text.partition(", ")[2]
            if "reset" in detail:
                spans.append(
                    LaneSpan(begin_s=now_s, end_s=now_s, kind=CUT, label="reset", text=event.text)
                )
                continue
            kind = CUT if mode != "open" else SICK if detail else OPEN
            state = (kind, detail or mode, event.text)
        elif event.kind is not EventKind.START_SLAVE and event.kind is not EventKind.START_MASTER:
            continue
        if begun is not None:
            spans.append(_link_span(begun, now_s))
        begun = None if event.kind is EventKind.START_MASTER else (now_s, *state)
        if event.kind is EventKind.START_MASTER:
            state = (OPEN, "", "open")
    if begun is not None:
        spans.append(_link_span(begun, end_s))
    if all(span.kind == OPEN for span in spans):
        return ()  # without faults, the slave's own lane is enough
    return tuple(sorted(spans, key=lambda span: (span.begin_s == span.end_s, span.begin_s)))


def _link_span(begun: tuple[float, str, str, str], end_s: float) -> LaneSpan:
    begin_s, kind, label, text = begun
    return LaneSpan(begin_s=begin_s, end_s=end_s, kind=kind, label=label, text=text)


def _marks(story: list[Event]) -> list[Mark]:
    marks = []
    for event in story:
        if event.kind is EventKind.EXPECT:
            is_good = not event.text.startswith("NOT ")
            marks.append(Mark(time_s=event.done_s, is_good=is_good, text=event.text))
        elif event.kind in {EventKind.SAY, EventKind.COORDINATOR}:
            marks.append(Mark(time_s=event.done_s, is_good=None, text=event.text))
    return marks


def _put_rows(operations: list[Operation], end_s: float) -> tuple[PutRow, ...]:
    rows: dict[str, list[int]] = {}
    for put in operations:
        when_s = end_s if put.completed_s is None else put.completed_s
        bins = rows.setdefault(put.label, [0] * BINS)
        bins[min(BINS - 1, math.floor(when_s / end_s * BINS))] += 1
    ordered = sorted(rows.items(), key=lambda row: (row[0] != "PUT_OK", -sum(row[1]), row[0]))
    return tuple(PutRow(label=label, count=sum(bins), bins=tuple(bins)) for label, bins in ordered)
