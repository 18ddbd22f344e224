"""The state of the nodes during a run, from the world's own events: intervals and lineages.

Pure: events in, answers out, independent of what nodes report.  A slave *could* acknowledge while
its process ran unfrozen and its link passed both ways.  It *was healthy* from the moment it was
seen caught up until the first action on it, its link or its master.

The first is an outer bound (it starts when an action begins and ends when one has certainly taken
effect), the second an inner one, so a status that contradicts either is false, not a race.

A *lineage* is a list of (term, start offset): a promoted directory keeps its log up to the
promotion and writes its own from there.  Two logs must agree up to where their lineages diverge.
In a replica group epochs are the terms (`EpochLines`), and several masters may run at once: one
that was replaced while it was frozen, and that nobody has told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.status import BrokerRole, FlushDiskType
from hastore_scenarios.judge.epoch_lines import EpochLines, agreement
from hastore_scenarios.judge.history import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore_scenarios.judge.epoch_lines import Line
    from hastore_scenarios.judge.history import Operation

FOREVER = float("inf")


@attrs.define(eq=False, kw_only=True)
class MasterTerm:
    """One run of one master, from its start to its end (``end_s`` is infinite while it runs).

    In a replica group: from its promotion to when it was told of another.  ``epoch`` None: it is
    in none.  ``epoch_start`` is where its log ended when it began; ``copies_min`` nodes at least
    have a message that it answers PUT_OK, itself included; only with ``is_all`` does every later
    master have it.
    """

    node: str
    role: BrokerRole
    flush: FlushDiskType
    slave_timeout_s: float
    sync_flush_timeout_s: float
    fallbehind_max: int
    begin_s: float
    end_begun_s: float = FOREVER  # when its stop or kill began
    end_s: float = FOREVER
    paused: list[tuple[float, float]] = attrs.field(factory=list)
    epoch: int | None = None
    epoch_start: int = 0
    copies_min: int = 0
    is_all: bool = True  # in_sync_replicas = "all"
    min_in_sync_replicas: int = 1
    lines: frozenset[Line] = frozenset()  # what its log may be (``epoch_lines``)

    def was_disturbed(self, begin_s: float, end_s: float) -> bool:
        """Whether it was stopping, gone or frozen at some time in [begin_s, end_s]."""
        if end_s >= self.end_begun_s:
            return True
        return any(begin <= end_s and end >= begin_s for begin, end in self.paused)


@attrs.frozen(kw_only=True)
class Interval:
    """A slave of a master, in a state from ``begin_s`` to ``end_s``."""

    master: str
    slave: str
    begin_s: float
    end_s: float


@attrs.define(eq=False, kw_only=True)
class _SlaveState:
    master: str
    running: bool = True
    paused: bool = False
    flows: bool = True
    counts: bool = True  # False: it observes a replica group
    could_since: float | None = None
    healthy_since: float | None = None

    @property
    def could(self) -> bool:
        return self.running and not self.paused and self.flows


@final
@attrs.define(eq=False)
class Account:
    """The state of the nodes over time, as the checker needs it."""

    terms: list[MasterTerm] = attrs.field(factory=list, init=False)
    could: list[Interval] = attrs.field(factory=list, init=False)
    healthy: list[Interval] = attrs.field(factory=list, init=False)
    lineages: dict[str, tuple[tuple[int, int], ...]] = attrs.field(factory=dict, init=False)
    # At the end of the story: connected slaves and their masters; nodes with an undamaged log.
    up_at_end: dict[str, str] = attrs.field(factory=dict, init=False)
    whole_at_end: set[str] = attrs.field(factory=set, init=False)
    caught_up: dict[str, Event] = attrs.field(factory=dict, init=False)
    followed: dict[str, set[str]] = attrs.field(factory=dict, init=False)
    # By node, the offset below which its files have expired.
    expired: dict[str, int] = attrs.field(factory=dict, init=False)
    # When a node's disk was last wiped: it need not hold what it stored earlier.
    wiped: dict[str, float] = attrs.field(factory=dict, init=False)
    # The replica group of each node that is in one.
    groups: dict[str, str] = attrs.field(factory=dict, init=False)
    lines: EpochLines = attrs.field(factory=EpochLines, init=False)  # of these and of observers
    # Likewise, the group whose log each of them has.
    _log_of: dict[str, str] = attrs.field(factory=dict, init=False)
    _slaves: dict[str, _SlaveState] = attrs.field(factory=dict, init=False)
    _empty: set[str] = attrs.field(factory=set, init=False)  # wiped, and not started since
    _term_count: int = attrs.field(default=0, init=False)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Account:
        """Return the account of the events, which are in order of time."""
        account = cls()
        for event in events:
            account._take(event)
        for node, state in account._slaves.items():
            account._close_could(node, state, FOREVER)
            account._close_healthy(node, state, FOREVER)
        return account

    # -- queries

    def term_at(self, node: str, time_s: float) -> MasterTerm | None:
        """Return the run of master ``node`` that was on at ``time_s``."""
        for term in reversed(self.terms):
            if term.node == node and term.begin_s <= time_s:
                return term
        return None

    def is_same_group(self, node: str, other: str) -> bool:
        """Return whether two nodes are in one replica group, or both in none."""
        return self.groups.get(node) == self.groups.get(other)

    def is_same_log(self, node: str, other: str) -> bool:
        """Return whether both have the log of one group, or both that of none."""
        return self._log_of.get(node) == self._log_of.get(other)

    def successor_of(self, master: str) -> str | None:
        """Return the last other node that became a master on its copy of this log, or None."""
        for term in reversed(self.terms):
            if term.node == master:
                return None
            if master in self.groups:
                if self.is_same_group(term.node, master):
                    return term.node
                continue
            if (
                term.node not in self.groups
                and self.lineages[term.node][0] == self.lineages[master][0]
            ):
                return term.node
        return None

    def last_start_of(self, master: str) -> int:
        """Return the number of a master's last start among those of all masters, from 1 on."""
        return max(number for number, term in enumerate(self.terms, 1) if term.node == master)

    def was_wiped(self, put_s: float, node: str, heir: str) -> bool:
        """Whether the story wiped the only log that must hold what ``node`` stored at ``put_s``.

        An ``heir`` that was already a master at ``put_s`` did not inherit it: with its new disk,
        the node has joined that master's lineage.
        """
        if put_s >= self.wiped.get(node, 0.0):
            return False
        term = self.term_at(heir, FOREVER)
        return heir == node or (term is not None and term.begin_s <= put_s)

    def who_could_acknowledge(self, master: str, begin_s: float, end_s: float) -> str | None:
        """Return a slave that could acknowledge at some time in [begin_s, end_s], or None."""
        for interval in self.could:
            if (
                interval.master == master
                and interval.begin_s <= end_s
                and interval.end_s >= begin_s
            ):
                return interval.slave
        return None

    def how_many_could_acknowledge(self, master: str, begin_s: float, end_s: float) -> int:
        """Return how many slaves could acknowledge at some time in [begin_s, end_s]."""
        return len(
            {
                interval.slave
                for interval in self.could
                if interval.master == master
                and interval.begin_s <= end_s
                and interval.end_s >= begin_s
            }
        )

    def group_term_of(self, operation: Operation) -> MasterTerm | None:
        """Return the term of a group in which a put was answered, the last that may be meant."""
        end_s = FOREVER if operation.completed_s is None else operation.completed_s
        offset = operation.physic_offset or 0
        for term in reversed(self.terms):
            if (
                term.node == operation.node
                and term.epoch is not None
                and term.begin_s <= end_s
                and (term.epoch_start <= offset or operation.physic_offset is None)
            ):
                return term
        return None

    def later_terms(self, term: MasterTerm) -> list[MasterTerm]:
        """Return the terms of the same group's later epochs."""
        assert term.epoch is not None
        return [
            each
            for each in self.terms
            if each.epoch is not None
            and each.epoch > term.epoch
            and self.is_same_group(each.node, term.node)
        ]

    def in_step_at_end(self, group: str) -> set[str]:
        """Return the nodes of a group with the log of its running master at the end, and that."""
        found = set()
        for node, event in self.caught_up.items():
            master = self.up_at_end.get(node)
            is_even = event.details["max_offset"] == event.details["master_max_offset"]
            if self.groups.get(node) == group and master is not None and is_even:
                found |= {node, master}
        return found

    def who_was_healthy(self, master: str, begin_s: float, end_s: float) -> str | None:
        """Return a slave that was healthy throughout [begin_s, end_s], or None."""
        for interval in self.healthy:
            if interval.master == master and interval.begin_s <= begin_s and interval.end_s > end_s:
                return interval.slave
        return None

    def must_agree_up_to(self, left: str, right: str) -> float:
        """Return the offset below which two logs must be equal (infinite: everywhere)."""
        if self.groups and not self.lineages.keys() & {left, right}:
            if not self.is_same_log(left, right):
                return 0
            return self.lines.agree_up_to(left, right)
        return agreement(self.lineages.get(left, ()), self.lineages.get(right, ()))

    # -- the sweep over the events

    def _take(self, event: Event) -> None:
        match event.kind:
            case EventKind.START_MASTER:
                self._start_master(event)
            case EventKind.START_SLAVE:
                self._start_slave(event)
            case EventKind.STOP | EventKind.KILL | EventKind.EXIT:
                self._end(event)
            case EventKind.PAUSE | EventKind.RESUME:
                self._pause(event)
            case EventKind.LINK:
                self._link(event)
            case EventKind.DISK:
                self._disk(event)
            case EventKind.HEALTHY:
                self._healthy(event)
            case EventKind.CAUGHT_UP:
                self._caught_up(event)
            case EventKind.END:
                self._end_of_story()
            case EventKind.SAY | EventKind.EXPECT | EventKind.COORDINATOR:
                pass

    def _start_master(self, event: Event) -> None:
        assert event.node is not None
        details = event.details
        self._end_term(event)
        self.terms.append(
            MasterTerm(
                node=event.node,
                role=BrokerRole(details["role"]),
                flush=FlushDiskType(details["flush"]),
                slave_timeout_s=details["slave_timeout_ms"] / 1000,
                sync_flush_timeout_s=details["sync_flush_timeout_ms"] / 1000,
                fallbehind_max=details["ha_slave_fallbehind_max"],
                begin_s=event.time_s,
                epoch=details.get("epoch"),
                epoch_start=details.get("epoch_start", 0),
                copies_min=details.get("copies_min", 0),
                is_all=details.get("is_all", True),
                min_in_sync_replicas=details.get("min_in_sync_replicas", 1),
            )
        )
        if details.get("group"):
            self._lead(event)
            return
        line = self.lineages.get(event.node, ())
        was_slave = self._slaves.pop(event.node, None) is not None
        if was_slave or not line:
            # It writes its own records from here on: a new term, from the end of its log.
            self._term_count += 1
            start = details["log_end"] if line else 0
            self.lineages[event.node] = (*line, (self._term_count, start))

    def _lead(self, event: Event) -> None:
        """Begin an epoch: the nodes that follow its master copy it from now on."""
        assert event.node is not None
        self.groups[event.node] = self._log_of[event.node] = event.details["group"]
        self._close(event)
        followers = [node for node, state in self._slaves.items() if state.master == event.node]
        epoch, start = event.details["epoch"], event.details["epoch_start"]
        self.terms[-1].lines = self.lines.led(event.node, epoch, start, followers)

    def _trail(self, event: Event) -> None:
        """Let a node of a group follow another, or nobody; or let a slave observe the group."""
        assert event.node is not None
        counts = not event.details.get("observes", False)
        if counts:
            self.groups[event.node] = self._log_of[event.node] = event.details["group"]
        else:
            self._log_of[event.node] = self.groups[event.details["master"]]
        self._end_term(event)
        self._close(event)
        master = event.details["master"]
        flows = event.details["flows"]
        if master is not None:
            self._slaves[event.node] = _SlaveState(
                master=master,
                flows=flows,
                counts=counts,
                could_since=event.time_s if flows else None,
            )
            self.lines.trailed(event.node, master)

    def _close(self, event: Event) -> None:
        """End what a node was as a slave: it changes its role, or its master, while it runs."""
        assert event.node is not None
        state = self._slaves.pop(event.node, None)
        if state is not None:
            self._close_healthy(event.node, state, event.time_s)
            self._close_could(event.node, state, event.done_s)

    def _end_term(self, event: Event) -> None:
        """End what a node was as a master: it has another role."""
        assert event.node is not None
        earlier = [term for term in self.terms if term.node == event.node]
        if earlier and earlier[-1].end_s == FOREVER:
            earlier[-1].end_begun_s, earlier[-1].end_s = event.time_s, event.done_s

    def _healthy(self, event: Event) -> None:
        assert event.node is not None
        state = self._slaves[event.node]
        if state.could and state.healthy_since is None:
            state.healthy_since = event.done_s
        if state.master in self.groups:
            self.lines.in_step(event.node, state.master)

    def _caught_up(self, event: Event) -> None:
        assert event.node is not None
        self.caught_up[event.node] = event
        state = self._slaves.get(event.node)
        is_even = event.details["max_offset"] == event.details["master_max_offset"]
        if state is not None and state.master in self.groups and is_even:
            self.lines.in_step(event.node, state.master)

    def _start_slave(self, event: Event) -> None:
        assert event.node is not None
        if event.details.get("group") or event.details.get("observes"):
            self._trail(event)
            return
        master = event.details["master"]
        log_end = event.details["log_end"]
        own, masters = self.lineages.get(event.node, ()), self.lineages[master]
        agrees = own == masters or (
            log_end is not None and log_end <= self.must_agree_up_to(event.node, master)
        )
        if not own or agrees or event.node in self._empty:
            self.lineages[event.node] = masters
        self._empty.discard(event.node)
        flows = event.details["flows"]
        self._slaves[event.node] = _SlaveState(
            master=master, flows=flows, could_since=event.time_s if flows else None
        )
        self.followed.setdefault(master, set()).add(event.node)

    def _end(self, event: Event) -> None:
        assert event.node is not None
        state = self._slaves.get(event.node)
        if state is not None:
            state.running = False
            state.paused = False
            self._changed(event.node, state, event)
            return
        term = self._running_term(event.node)
        if term is not None:
            term.end_begun_s = event.time_s
            term.end_s = event.done_s
        self._master_disturbed(event)

    def _pause(self, event: Event) -> None:
        assert event.node is not None
        paused = event.kind is EventKind.PAUSE
        state = self._slaves.get(event.node)
        if state is not None:
            state.paused = paused
            self._changed(event.node, state, event)
            return
        term = self._running_term(event.node)
        if term is not None:
            if paused:
                term.paused.append((event.time_s, FOREVER))
            elif term.paused:
                term.paused[-1] = (term.paused[-1][0], event.done_s)
        self._master_disturbed(event)

    def _link(self, event: Event) -> None:
        assert event.node is not None
        state = self._slaves.get(event.node)
        if state is not None:
            state.flows = event.details["flows"]
            self._changed(event.node, state, event)

    def _disk(self, event: Event) -> None:
        """Record a disk fault: a slave is no longer healthy, but may still acknowledge."""
        assert event.node is not None
        state = self._slaves.get(event.node)
        if state is not None:
            self._close_healthy(event.node, state, event.time_s)
        else:
            self._master_disturbed(event)
        if event.details["fault"] == "expire":
            self.expired[event.node] = event.details["min_offset"]
        elif event.details["fault"] == "wipe":
            self.wiped[event.node] = event.done_s
            self._empty.add(event.node)

    def _end_of_story(self) -> None:
        for term in self.terms:
            if self._runs(term.node):
                self.whole_at_end.add(term.node)
        for node, state in self._slaves.items():
            if state.could and self._runs(state.master) and self._attached(node):
                self.up_at_end[node] = state.master
                self.whole_at_end.add(node)

    def _changed(self, node: str, state: _SlaveState, event: Event) -> None:
        """End a slave's health, and end or begin the time in which it could acknowledge."""
        self._close_healthy(node, state, event.time_s)
        if not state.could:
            self._close_could(node, state, event.done_s)
        elif state.could_since is None:
            state.could_since = event.time_s

    def _master_disturbed(self, event: Event) -> None:
        for node, state in self._slaves.items():
            if state.master == event.node:
                self._close_healthy(node, state, event.time_s)

    def _close_could(self, node: str, state: _SlaveState, end_s: float) -> None:
        if state.could_since is not None:
            if state.counts:
                self.could.append(
                    Interval(
                        master=state.master, slave=node, begin_s=state.could_since, end_s=end_s
                    )
                )
            state.could_since = None

    def _close_healthy(self, node: str, state: _SlaveState, end_s: float) -> None:
        if state.healthy_since is not None:
            self.healthy.append(
                Interval(master=state.master, slave=node, begin_s=state.healthy_since, end_s=end_s)
            )
            state.healthy_since = None

    def _running_term(self, node: str) -> MasterTerm | None:
        term = self.term_at(node, FOREVER)
        return term if term is not None and term.end_s == FOREVER else None

    def _runs(self, node: str) -> bool:
        term = self._running_term(node)
        return term is not None and (not term.paused or term.paused[-1][1] != FOREVER)

    def _attached(self, node: str) -> bool:
        master = self._slaves[node].master
        if master in self.groups:
            return True  # a node of a group cuts what its master does not have
        return self.lineages[node] == self.lineages[self._slaves[node].master]
