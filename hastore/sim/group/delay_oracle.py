"""Checks the delayed messages of a group: each is delivered, and none is passed before that counts.

::

    SCHEDULE_TOPIC_XXXX   put-7    a delayed message, in the queue of its level
    orders                put-7    its delivery: another record, perhaps in another epoch

``delayOffset.json`` says of a level that what is below was delivered.  A node that becomes master
begins there, so each delivery must be on every member of the set before any node's file passes it:
what is cut from one log is then in no log, and nobody delivers it again.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.sim.cluster import DATA_DIR
from hastore.sim.group.group_records import records
from hastore.sim.violation import ViolationError
from hastore.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.sim.group.node_log import NodeLog
    from hastore.sim.inode import Inode

_PATH: Final = f"{DATA_DIR}/config/delayOffset.json"
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()


@final
@attrs.frozen
class Deliveries:
    """The puts in one log: delayed ones by level and queue offset, and all others by key."""

    scheduled: dict[int, dict[int, bytes]]
    delayed: Counter[bytes]
    others: Counter[bytes]  # deliveries, and messages without a delay

    @classmethod
    def of(cls, data: bytes | bytearray) -> Deliveries:
        """Read a log."""
        scheduled: dict[int, dict[int, bytes]] = defaultdict(dict)
        delayed: Counter[bytes] = Counter()
        others: Counter[bytes] = Counter()
        for record in records(data):
            if record.topic == _SCHEDULE:
                scheduled[record.queue_id + 1][record.queue_offset] = record.key
                delayed[record.key] += 1
            else:
                others[record.key] += 1
        return cls(dict(scheduled), delayed, others)

    def undelivered(self, level: int, below: int) -> bytes | None:
        """Return the first put of a level, below a queue offset, that has no delivery."""
        for queue_offset, key in self.scheduled.get(level, {}).items():
            if queue_offset < below and not self.others[key]:
                return key
        return None


@final
@attrs.define(eq=False)
class DelayOracle:
    """Checks each new ``delayOffset.json``; ``is_excused`` after a person's loss."""

    logs: dict[int, NodeLog]  # by node id
    whole_members: Callable[[], list[int]]  # of the set, those that have lost nothing
    is_excused: bool = attrs.field(default=False, init=False)
    _checked: dict[int, Inode] = attrs.field(factory=dict, init=False)  # by node id

    def check_step(self) -> None:
        """Check the files that are new."""
        for node_id, log in self.logs.items():
            inode = log.sim_node.live_disk.inodes.get(_PATH)
            if inode is not None and inode is not self._checked.get(node_id):
                self._checked[node_id] = inode
                if log.foreign is None and not self.is_excused:
                    self._check_file(log.name, json.loads(inode.seen()))

    def _check_file(self, name: str, value: dict[str, dict[str, int]]) -> None:
        for member in self.whole_members():
            deliveries = Deliveries.of(self.logs[member].data)
            for level, offset in value.get("offsetTable", {}).items():
                key = deliveries.undelivered(int(level), offset)
                if key is not None:
                    detail = (
                        f"{name} has passed {key.decode()} of level {level} with offset {offset},"
                        f" and the delivery is not in the log of node-{member} of the set"
                    )
                    raise ViolationError("delay offset", detail)

    def lacks(self, data: bytes | bytearray) -> str | None:
        """Return what has not been delivered in a log, in words; None if nothing."""
        if self.is_excused:
            return None
        deliveries = Deliveries.of(data)
        left = sum(not deliveries.others[key] for key in deliveries.delayed)
        return f"{left} of {len(deliveries.delayed)} delayed messages" if left else None
