"""The timeline of a run, in lines for people: actions, states, and the puts between them.

::

      0.412 s  a: started as SYNC_MASTER, ASYNC_FLUSH
      1.020 s  a: 300 puts PUT_OK in 0.411 s
      2.031 s  a: put FLUSH_SLAVE_TIMEOUT after 1.003 s
      2.040 s  b: killed (SIGKILL)

Consecutive puts of one node with the same outcome share a line.  If outcomes change too often for
that, one line counts them.

Invariant: every put that ended is in exactly one line; the times of the lines never fall.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore_scenarios.judge.history import History, count_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hastore_scenarios.judge.history import Event, Operation

PUTS: Final = "puts"  # the kind of a line that is about puts

# More changes of outcome than this between two events are counted in one line.
_RUNS_MAX: Final = 6


@attrs.frozen(kw_only=True)
class TimelineEntry:
    """One line: its time, kind and node; ``text`` is a sentence for people."""

    time_s: float
    kind: str
    node: str | None
    text: str

    @classmethod
    def of(cls, event: Event) -> TimelineEntry:
        """Return the line of an event."""
        return cls(
            time_s=round(event.done_s, 3),
            kind=event.kind.value,
            node=event.node,
            text=event.text,
        )

    def __str__(self) -> str:
        """``   1.234 s  b: killed (SIGKILL)``."""
        return f"{self.time_s:8.3f} s  {self.text}"


@final
@attrs.define(eq=False)
class Timeline:
    """The lines so far; ``on_entry`` is called with each as soon as it is known."""

    on_entry: Callable[[TimelineEntry], None] | None = None
    entries: list[TimelineEntry] = attrs.field(factory=list, init=False)
    _seen: int = attrs.field(default=0, init=False)  # operations handled so far
    _open: list[Operation] = attrs.field(factory=list, init=False)  # of those, not yet ended

    @classmethod
    def of(cls, history: History) -> Timeline:
        """Return the timeline of a whole history."""
        timeline = cls()
        so_far = History(now_s=history.now_s, wall_ms=history.wall_ms)
        puts = deque(_ended(history.operations))
        for event in sorted(history.events, key=lambda each: each.done_s):
            while puts and puts[0].ended_s <= event.done_s:
                so_far.operations.append(puts.popleft())
            timeline.take(so_far, event)
        so_far.operations += puts
        timeline.add_puts(so_far)
        return timeline

    def take(self, history: History, event: Event) -> None:
        """Add the puts since the last event, then the event."""
        self.add_puts(history)
        self._add(TimelineEntry.of(event))

    def add_puts(self, history: History) -> None:
        """Add the puts that have ended since the last line."""
        known = [*self._open, *history.operations[self._seen :]]
        self._seen = len(history.operations)
        self._open = [operation for operation in known if operation.completed_s is None]
        for entry in _put_entries(_ended(known)):
            self._add(entry)

    def _add(self, entry: TimelineEntry) -> None:
        self.entries.append(entry)
        if self.on_entry is not None:
            self.on_entry(entry)


def _ended(operations: Iterable[Operation]) -> list[Operation]:
    """Return the puts that have ended, in the order of their ends."""
    ended = (operation for operation in operations if operation.completed_s is not None)
    return sorted(ended, key=attrgetter("ended_s"))


def _put_entries(operations: list[Operation]) -> list[TimelineEntry]:
    """Return the lines of puts, of all nodes, in the order of their ends."""
    by_node: dict[str, list[Operation]] = {}
    for operation in operations:
        by_node.setdefault(operation.node, []).append(operation)
    entries = [entry for group in by_node.values() for entry in _entries_of_node(group)]
    return sorted(entries, key=lambda entry: entry.time_s)


def _entries_of_node(operations: list[Operation]) -> list[TimelineEntry]:
    runs: list[list[Operation]] = []
    for operation in operations:
        if not runs or _kind_of(runs[-1][0]) != _kind_of(operation):
            runs.append([])
        runs[-1].append(operation)
    if len(runs) <= _RUNS_MAX:
        return [_entry(run, _kind_of(run[0])) for run in runs]
    counts = count_labels(map(_kind_of, operations))
    return [_entry(operations, ", ".join(f"{count} {kind}" for kind, count in counts.items()))]


def _kind_of(operation: Operation) -> str:
    return operation.label if operation.wait else f"{operation.label} (WAIT=false)"


def _entry(operations: list[Operation], what: str) -> TimelineEntry:
    first = min(operation.invoked_s for operation in operations)
    last = operations[-1].ended_s
    many = f"{len(operations)} puts" if len(operations) > 1 else "put"
    text = f"{many}: {what}" if "," in what else f"{many} {what}"
    node = operations[0].node
    return TimelineEntry(
        time_s=round(last, 3),
        kind=PUTS,
        node=node,
        text=f"{node}: {text}, {last - first:.3f} s",
    )
