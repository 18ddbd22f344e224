"""What a failover would lose, or has cut, by topic and count: pure.

::

    the node that becomes master    ──────────┤ its end
    another node that answers       ──────────┼────────────┤      would be cut: lost, at least
                                              └ the consistent point of both, by their epochs

The others cut what they have above that point, and keep it in ``trimmed/``.  A node that does not
answer may have more: it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hastore.store.recovery.log_cut import LogCut
    from hastore.store.tools.group_log import GroupLog


@final
@attrs.frozen(kw_only=True)
class NodeLoss:
    """The bytes [begin, end) of a node's log that the next master lacks.

    ``messages`` counts whole messages by topic; ``confirmed`` those of them that every member of
    the SyncStateSet had, so that they were acknowledged; None: the node does not know.

    ``unread_from`` is the first offset where its log could not be read, so that there may be more
    messages than those; ``confirmed_unread_from`` likewise of the confirmed ones.  None: all are
    counted.
    """

    node_id: int
    begin: int
    end: int
    messages: Mapping[str, int]
    confirmed: Mapping[str, int] | None
    unread_from: int | None = None
    confirmed_unread_from: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "id": self.node_id,
            "from": self.begin,
            "to": self.end,
            "messages": dict(self.messages),
            "confirmed": None if self.confirmed is None else dict(self.confirmed),
            "unread_from": self.unread_from,
        }


@final
@attrs.frozen(kw_only=True)
class Loss:
    """What would be lost if a node became master, as far as the nodes that answer know."""

    to_id: int
    nodes: tuple[NodeLoss, ...] = ()
    silent: tuple[int, ...] = ()  # nothing is known of what these have
    too_old: tuple[int, ...] = ()  # those of them that answered, but cannot say it

    @property
    def at_least(self) -> dict[str, int]:
        """The messages by topic: the most that one node has, because several have the same."""
        return merged(node.messages for node in self.nodes)

    @property
    def confirmed(self) -> dict[str, int]:
        """Those of them that were certainly acknowledged."""
        return merged(node.confirmed for node in self.nodes if node.confirmed is not None)

    @property
    def uncounted(self) -> frozenset[int]:
        """The nodes that may have more messages than were counted."""
        return frozenset(each.node_id for each in self.nodes if each.unread_from is not None)

    @property
    def uncounted_confirmed(self) -> frozenset[int]:
        """The nodes that may have more messages that were acknowledged."""
        return frozenset(
            each.node_id for each in self.nodes if each.confirmed_unread_from is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "to": self.to_id,
            "at_least": self.at_least,
            "nodes": [node.to_json() for node in self.nodes],
            "silent": list(self.silent),
            "too_old": list(self.too_old),
        }


def merged(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest count of each topic, by topic."""
    most: dict[str, int] = {}
    for each in counts:
        for topic, count in each.items():
            most[topic] = max(most.get(topic, 0), count)
    return dict(sorted(most.items()))


def lacking(chosen: GroupLog, other: GroupLog) -> tuple[int, int] | None:
    """Return the range of ``other`` that ``chosen`` lacks; None: nothing."""
    point = chosen.epochs.consistent_point(chosen.end_offset, other.epochs, other.end_offset)
    begin = other.min_offset if point is None else max(point.offset, other.min_offset)
    return (begin, other.end_offset) if begin < other.end_offset else None


@final
@attrs.frozen(kw_only=True)
class NodeCut:
    """A cut of a node's log."""

    node_id: int
    cut: LogCut


def cuts_by_epoch(
    epochs: Sequence[int], cuts: Iterable[NodeCut]
) -> tuple[dict[int, list[NodeCut]], list[NodeCut]]:
    """Return the cuts by the epoch that made them necessary, and those that belong to none of them.

    A log is cut where a later epoch went on without its end: the first one after the newest epoch
    among the bytes that were cut.
    """
    found: dict[int, list[NodeCut]] = {epoch: [] for epoch in epochs}
    others = []
    for each in sorted(cuts, key=lambda each: (each.cut.time_ms, each.node_id)):
        newest = max((span.epoch for span in each.cut.epochs), default=None)
        later = [epoch for epoch in epochs if newest is not None and epoch > newest]
        if later:
            found[min(later)].append(each)
        else:
            others.append(each)
    return found, others


def cut_json(each: NodeCut) -> dict[str, Any]:
    """Return a cut as a JSON object."""
    return {"id": each.node_id} | each.cut.to_json()
