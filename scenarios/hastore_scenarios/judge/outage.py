"""Finds the outages of a run and their lengths (RTO): pure, from the history alone.

::

    PUT_OK  PUT_OK  │ fault   timeout  timeout  no answer   PUT_OK
                    └──────────────── RTO ─────────────────►┘

An outage begins with a fault (a node stopped, killed or frozen; a link, a disk or the
coordinator disturbed) that
ended acknowledgements, and ends with the next PUT_OK of a put that waits.  A fault ended them if
the next put got a weaker answer or none, or if it took the master that answered.  Of several faults
it is the last one before the first failed put was sent, or else the first while that put waited.
If acknowledgements went on for a while under a lasting fault (a full disk shows only when the next
file is needed), the outage begins with the first failed put.  Puts with WAIT=false are left out:
they ask for no acknowledgement.

Each replica group of a run has its own outages: what another group acknowledges ends none.

A fault without any later put is not an outage, because nothing was measured (``find_unmeasured``
names it).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from hastore.status import PutMessageStatus
from hastore_scenarios.judge.history import DISK_HEALED, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore_scenarios.judge.history import Event, History, Operation

_TAKES_NODE: Final = frozenset({EventKind.STOP, EventKind.KILL, EventKind.PAUSE, EventKind.EXIT})

# The part whose state an event changes, for worse or for better.
_CHANGES: Final = {
    **dict.fromkeys(_TAKES_NODE, "process"),
    EventKind.START_MASTER: "process",
    EventKind.START_SLAVE: "process",
    EventKind.RESUME: "process",
    EventKind.LINK: "link",
    EventKind.DISK: "disk",
    EventKind.COORDINATOR: "coordinator",
}


@attrs.frozen(kw_only=True)
class Outage:
    """From a fault at ``begin_s`` to the next PUT_OK at ``ok_s``, None if the story ended first.

    ``puts`` is the number of puts that ended meanwhile without PUT_OK.
    """

    begin_s: float
    ok_s: float | None
    fault: str
    node: str | None
    puts: int

    @property
    def rto_s(self) -> float | None:
        """The seconds without an acknowledgement; None if the outage did not end."""
        return None if self.ok_s is None else self.ok_s - self.begin_s

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "begin_s": round(self.begin_s, 6),
            "ok_s": None if self.ok_s is None else round(self.ok_s, 6),
            "rto_s": None if self.rto_s is None else round(self.rto_s, 6),
            "fault": self.fault,
            "node": self.node,
            "puts": self.puts,
        }


class _Part(NamedTuple):
    """Of a run: its events up to the story's end, and its puts that wait for an acknowledgement."""

    story: list[Event]
    asked: list[Operation]


class _Found(NamedTuple):
    """The begin of an outage, its fault, and the next put that was PUT_OK."""

    begin_s: float
    fault: Event
    good: Operation | None


def is_fault(event: Event) -> bool:
    """Whether an event is a fault (not: the end of one)."""
    if event.kind in _TAKES_NODE:
        return True
    if event.kind is EventKind.LINK:
        # A change to an open link is a fault if it slows, splits or resets the stream.
        return event.details.get("mode") != "open" or "," in event.text
    if event.kind is EventKind.COORDINATOR:
        return bool(event.details.get("fault"))
    return event.kind is EventKind.DISK and event.details.get("fault") != DISK_HEALED


def find_outages(history: History) -> tuple[Outage, ...]:
    """Return the outages in order of their begins; those of one group do not overlap."""
    found = (outage for part in _parts(history) for outage in _outages_of(part))
    return tuple(sorted(found, key=attrgetter("begin_s")))


def _outages_of(part: _Part) -> list[Outage]:
    """Return the outages of one part in order of time; they do not overlap."""
    story, asked = part.story, part.asked
    ended = sorted(
        (operation for operation in asked if operation.completed_s is not None),
        key=attrgetter("ended_s"),
    )
    found = [*_lost_masters(story, asked, ended), *_weaker_answers(story, ended)]
    found.sort(key=lambda outage: outage.begin_s)
    failed_s = [put.ended_s for put in ended if not _is_ok(put)]
    outages: list[Outage] = []
    for begin_s, fault, good in found:
        last = outages[-1] if outages else None
        if last is not None and (last.ok_s is None or begin_s < last.ok_s):
            continue  # it is a part of the last outage
        until_s = float("inf") if good is None else good.ended_s
        outages.append(
            Outage(
                begin_s=begin_s,
                ok_s=None if good is None else until_s,
                fault=fault.text or fault.kind.value,
                node=fault.node,
                puts=bisect_right(failed_s, until_s) - bisect_right(failed_s, begin_s),
            )
        )
    return outages


def find_unmeasured(history: History) -> str | None:
    """Return the last fault that took a master and was followed by no put, or None."""
    taken = [
        event
        for part in _parts(history)
        for event, was_asked in _taken_masters(part.story, part.asked)
        if not was_asked
    ]
    if not taken:
        return None
    last = max(taken, key=attrgetter("time_s"))
    return last.text or last.kind.value


def _parts(history: History) -> list[_Part]:
    """Return a run in parts, one for each replica group, or whole."""
    story = _story(history)
    asked = [operation for operation in history.operations if operation.wait]
    group_of = {event.node: event.details["group"] for event in story if event.details.get("group")}
    groups = dict.fromkeys(group_of.values())
    if len(groups) < 2:
        return [_Part(story, asked)]
    return [
        _Part(
            [event for event in story if group_of.get(event.node, group) == group],
            [put for put in asked if group_of.get(put.node, group) == group],
        )
        for group in groups
    ]


def _story(history: History) -> list[Event]:
    """Return the events up to the story's end: later stops are not faults."""
    story = []
    for event in history.events:
        if event.kind is EventKind.END:
            break
        story.append(event)
    return story


def _lost_masters(
    story: list[Event], asked: list[Operation], ended: list[Operation]
) -> list[_Found]:
    """Return the faults that took a master, each with the next PUT_OK of any master."""
    found = []
    for event, was_asked in _taken_masters(story, asked):
        if was_asked:
            is_frozen = event.kind is EventKind.PAUSE
            good = next(
                (
                    put
                    for put in ended
                    if _is_ok(put)
                    and put.ended_s > event.done_s
                    and (is_frozen or put.invoked_s >= event.time_s)
                ),
                None,
            )
            found.append(_Found(event.time_s, event, good))
    return found


def _taken_masters(story: list[Event], asked: list[Operation]) -> Iterator[tuple[Event, bool]]:
    """Yield the faults that took a master with puts, and whether a put followed on any node."""
    masters: set[str] = set()
    for event in story:
        node = event.node
        if node is None:
            continue
        if event.kind is EventKind.START_MASTER:
            masters.add(node)
        elif event.kind is EventKind.START_SLAVE:
            masters.discard(node)
        elif event.kind in _TAKES_NODE and node in masters:
            is_frozen = event.kind is EventKind.PAUSE
            before = any(put.node == node and put.invoked_s < event.time_s for put in asked)
            after = any(
                put.invoked_s >= event.time_s or (is_frozen and _is_open(put, event.time_s))
                for put in asked
            )
            if before:
                yield event, after


def _weaker_answers(story: list[Event], ended: list[Operation]) -> list[_Found]:
    """Return the faults before puts that ended without PUT_OK, each with the next PUT_OK."""
    faults = [event for event in story if is_fault(event)]
    found = []
    last_ok_s = float("-inf")  # when the last put that was PUT_OK was sent
    is_down = False
    for position, put in enumerate(ended):
        if _is_ok(put):
            last_ok_s = max(last_ok_s, put.invoked_s)
            is_down = False
        elif not is_down:
            since = [event for event in faults if last_ok_s < event.time_s <= put.ended_s]
            before = [event for event in since if event.time_s <= put.invoked_s]
            lasting = _lasting(story, put.invoked_s)
            if since or lasting is not None:
                is_down = True
                good = next((later for later in ended[position:] if _is_ok(later)), None)
                if since:
                    fault = before[-1] if before else since[0]
                    found.append(_Found(fault.time_s, fault, good))
                elif lasting is not None:
                    found.append(_Found(put.invoked_s, lasting, good))
    return found


def _lasting(story: list[Event], time_s: float) -> Event | None:
    """Return the last fault before ``time_s`` that had not ended by then."""
    going_on: dict[tuple[str, str | None], Event] = {}
    for event in story:
        if event.time_s > time_s:
            break
        what = _CHANGES.get(event.kind)
        if what is None or event.text.endswith(", reset"):  # over as soon as it was done
            continue
        going_on.pop((what, event.node), None)
        if is_fault(event):
            going_on[what, event.node] = event
    return next(reversed(going_on.values()), None)


def _is_open(operation: Operation, time_s: float) -> bool:
    """Whether the put had no answer yet at ``time_s``."""
    return operation.completed_s is None or operation.completed_s > time_s


def _is_ok(operation: Operation) -> bool:
    return operation.status is PutMessageStatus.PUT_OK
