"""What each node of a group has acknowledged to this master: one ack a node, not one a connection.

::

    connection 3 ──▶ node 2   replaced: its reports change nothing any more
    connection 5 ──▶ node 2   counts: the newest of node 2
    connection 4 ──▶ node 3   counts
    connection 6 ··▶ node 9   an observer (``asyncLearner``): shown, never counted

A node is *stalled* while it should acknowledge something new and does not: its link is closed, or
bytes of the log are unacknowledged.  What each event changes::

    event                                   counts       ack      stalled since
    connected                               this one     None     now, unless stalled already
    connected as an observer                none         None     now, unless stalled already
    disconnected, the connection counts     none         None     now, unless stalled already
    disconnected, any other connection      -            -        -
    acknowledged the end of the log         -            the end  None
    acknowledged more than ever before      -            offset   now
    acknowledged, but no more than before   -            offset   -
    appended, all was acknowledged          -            -        now

A node that connects again and again, or repeats one offset, therefore stays stalled.

Invariants: a node has at most one connection that counts; within a connection its ack never falls,
and is never above the log's end; ``stalled_since`` is None only if the ack is the log's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR_S: Final = 0.5  # a learner that trails the end by less can have all of it soon


@final
@attrs.define(eq=False)
class NodeAck:
    """One node that may count; offsets in bytes, times are trio's."""

    node_id: int
    # Since when its link is up, or closed; at first since when it is known.
    since: float
    # Since when it has acknowledged nothing new although it should; None: it has all of the log.
    stalled_since: float | None
    connection_id: int | None = None  # the one that counts; None: its link is closed
    ack_offset: int | None = None  # exclusive; None: no ack on that connection
    # Where its log begins; None: not known on that connection.
    log_begin_offset: int | None = None
    has_connected: bool = False  # since this epoch began
    _best_offset: int = 0  # its highest ack in this epoch, on any connection
    # It is near if it acknowledges within NEAR_S what was the log's end at some time.
    _mark_offset: int | None = None
    _mark_time: float = 0.0

    def acknowledge(self, offset: int, end_offset: int, now: float) -> None:
        """Record an ack of the connection that counts."""
        self.ack_offset = offset
        if offset == end_offset:
            self.stalled_since = None
            self._best_offset = offset
        elif offset > self._best_offset:
            self.stalled_since = now
            self._best_offset = offset

    def is_near(self, end_offset: int, now: float) -> bool:
        """Return whether its newest ack has reached the end that the log had just before.

        To be called at every ack of a learner.
        """
        ack, mark = self.ack_offset, self._mark_offset
        if ack is None or (mark is not None and ack < mark):
            return False
        took_s = now - self._mark_time
        self._mark_offset, self._mark_time = end_offset, now
        return mark is not None and took_s <= NEAR_S

    def stall(self, now: float) -> None:
        """Record that it should acknowledge something from now on."""
        if self.stalled_since is None:
            self.stalled_since = now

    def restart(self, now: float) -> None:
        """Let the time for which it has stalled begin now."""
        if self.stalled_since is not None:
            self.stalled_since = now

    def open(self, connection_id: int, now: float) -> None:
        """Let a connection count, from its first ack on."""
        self.close(now)
        self.connection_id = connection_id
        self.has_connected = True

    def close(self, now: float) -> None:
        """Forget the connection, and all that was learned on it."""
        self.stall(now)
        self.since = now
        self.connection_id = self.ack_offset = self.log_begin_offset = self._mark_offset = None


@final
@attrs.define(eq=False)
class Observer:
    """A connection that reads and never counts."""

    node_id: int
    connection_id: int
    since: float  # trio's
    ack_offset: int | None = None


@final
@attrs.define(eq=False)
class NodeAcks:
    """The nodes that a master knows in its epoch, itself excluded."""

    end_offset: int  # of the master's log, exclusive
    _nodes: dict[int, NodeAck] = attrs.field(factory=dict, init=False)
    _counting: dict[int, NodeAck] = attrs.field(factory=dict, init=False)  # by connection id
    _observers: dict[int, Observer] = attrs.field(factory=dict, init=False)  # by connection id
    # Those that had all of the log at its last append; some may have closed since.
    in_step: dict[int, NodeAck] = attrs.field(factory=dict, init=False)

    def __iter__(self) -> Iterator[NodeAck]:
        """Iterate over the nodes that may count, those with closed links included."""
        return iter(self._nodes.values())

    @property
    def observers(self) -> list[Observer]:
        """The observers that are connected."""
        return list(self._observers.values())

    def get(self, node_id: int) -> NodeAck | None:
        """Return a node; None if it is not known."""
        return self._nodes.get(node_id)

    def node(self, node_id: int) -> NodeAck:
        """Return a node that is known."""
        return self._nodes[node_id]

    def expect(self, node_id: int, now: float) -> NodeAck:
        """Return a node; one that is not known yet is stalled from now on."""
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodeAck(node_id, since=now, stalled_since=now)
        return node

    def forget(self, node_id: int) -> None:
        """Forget a node whose link is closed."""
        node = self._nodes.pop(node_id)
        assert node.connection_id is None, f"node {node_id} is connected"
        self.in_step.pop(node_id, None)

    def connected(self, node_id: int, connection_id: int, now: float) -> NodeAck:
        """Let a connection count for its node, in place of an earlier one."""
        self._replace(node_id, connection_id)
        node = self.expect(node_id, now)
        node.open(connection_id, now)
        self._counting[connection_id] = node
        return node

    def observed(self, node_id: int, connection_id: int, now: float) -> NodeAck | None:
        """Add an observer; return the node whose connection it has replaced."""
        replaced = self._replace(node_id, connection_id)
        if replaced is not None:
            replaced.close(now)
        self._observers[connection_id] = Observer(node_id, connection_id, now)
        return replaced

    def _replace(self, node_id: int, connection_id: int) -> NodeAck | None:
        """Let the earlier connections of a node count no more; return the node that had one."""
        assert connection_id not in self._counting, f"connection {connection_id} twice"
        assert connection_id not in self._observers, f"connection {connection_id} twice"
        for observing, observer in list(self._observers.items()):
            if observer.node_id == node_id:
                del self._observers[observing]
        node = self._nodes.get(node_id)
        if node is None or node.connection_id is None:
            return None
        del self._counting[node.connection_id]
        return node

    def connection_of(self, node_id: int) -> int | None:
        """Return a node's newest connection, also an observer's; None: it has none."""
        node = self._nodes.get(node_id)
        if node is not None and node.connection_id is not None:
            return node.connection_id
        observing = (each for each in self._observers.values() if each.node_id == node_id)
        return next((observer.connection_id for observer in observing), None)

    def on_connection(self, connection_id: int) -> NodeAck | None:
        """Return the node for which a connection counts; None if it counts for none."""
        return self._counting.get(connection_id)

    def node_id_on(self, connection_id: int) -> int | None:
        """Return the node whose newest connection this is, also an observer's; None: no node's."""
        node = self._counting.get(connection_id)
        if node is not None:
            return node.node_id
        observer = self._observers.get(connection_id)
        return None if observer is None else observer.node_id

    def appended(self, end_offset: int, now: float) -> bool:
        """Record the log's new end; return whether a node has stalled by it."""
        assert end_offset >= self.end_offset, f"{end_offset} < {self.end_offset}"
        if end_offset == self.end_offset:
            return False
        self.end_offset = end_offset
        if not self.in_step:
            return False
        for node in self.in_step.values():
            node.stall(now)
        self.in_step.clear()
        return True

    def acknowledged(self, connection_id: int, offset: int, now: float) -> NodeAck | None:
        """Record an ack; return the node if it was one that counts, and a new one."""
        node = self._counting.get(connection_id)
        if node is None:
            if connection_id in self._observers:
                self._observers[connection_id].ack_offset = offset
            return None
        former = node.ack_offset
        if former is not None:
            assert former <= offset, f"node {node.node_id}: ack {offset} after {former}"
            if offset == former:
                return None
        end_offset = self.end_offset
        assert 0 <= offset <= end_offset, f"node {node.node_id}: ack {offset} of {end_offset}"
        node.acknowledge(offset, end_offset, now)
        if offset == end_offset:
            self.in_step[node.node_id] = node
        return node

    def disconnected(self, connection_id: int, now: float) -> NodeAck | None:
        """Forget a connection; return its node if the connection counted."""
        self._observers.pop(connection_id, None)
        node = self._counting.pop(connection_id, None)
        if node is not None:
            node.close(now)
        return node
