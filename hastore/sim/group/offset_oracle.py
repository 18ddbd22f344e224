"""Checks that a group of consumers goes on where it was, whichever node becomes master.

::

    consumer ──commit──▶ master ──copied each second──▶ slave ──promotion──▶ master
                                                          │                    │
                                        what it has copied, or its queue's end ┘  is where it begins

A slave that was stopped cleanly for its promotion has stored what it had copied, unless its disk
was full or slow, or its process was stopped meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.sim.producers import QUEUES, TOPIC
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from hastore.broker.node.slave import Slave
    from hastore.sim.group.group_cluster import Agent, GroupCluster

GROUP_OF_CONSUMERS: Final = "readers"
_STORED_WITHIN_S: Final = 10.0  # by a slave whose disk and process are well
_KEY: Final = f"{TOPIC}@{GROUP_OF_CONSUMERS}"


@final
@attrs.define(eq=False)
class CopiedOffsets:
    """What one node had copied as a slave, in one boot: by queue."""

    agent: Agent
    changes: tuple[object, int]  # the table, and how often it had changed
    offsets: dict[int, int]


@final
@attrs.define(eq=False)
class OffsetOracle:
    """Records what slaves have copied, and what consumers commit and begin at."""

    cluster: GroupCluster
    _copied: dict[int, CopiedOffsets] = attrs.field(factory=dict, init=False)  # by node id
    _least: dict[Master, dict[int, int]] = attrs.field(factory=dict, init=False)
    _committed: tuple[Master, dict[int, int]] | None = attrs.field(default=None, init=False)
    # The next offset of each queue that the consumer has not seen.
    handled: dict[int, int] = attrs.field(factory=lambda: dict.fromkeys(range(QUEUES), 0))

    def check_step(self) -> None:
        """Record what slaves have copied."""
        for node_id, agent in self.cluster.agents.items():
            if agent.boot.is_over:
                continue
            role_node = agent.node.role_node
            if isinstance(role_node, Master):
                continue
            table = _table_of(role_node)
            before = self._copied.get(node_id)
            if table is None or (before is not None and before.changes == table):
                continue
            # A slave that follows another master begins with what it has stored.
            kept: dict[int, int] = {}
            if before is not None and before.agent is agent and not _may_not_have_stored(agent):
                kept = before.offsets
            offsets = kept | _offsets_of(role_node)
            self._copied[node_id] = CopiedOffsets(agent, table, offsets)

    def role_began(self, agent: Agent, master: Master) -> None:
        """Record where consumers of a new master begin at least."""
        copied = self._copied.get(agent.node_id)
        if copied is None or copied.agent is not agent or _may_not_have_stored(agent):
            return
        end_of = master.message_store.commit_log.next_queue_offset
        self._least[master] = {
            queue_id: min(offset, end_of(TOPIC, queue_id))
            for queue_id, offset in copied.offsets.items()
        }

    def begins(self, name: str, master: Master, queue_id: int, offset: int | None) -> None:
        """Check the offset that a master has given to the consumer.  Raises ViolationError."""
        if (offset or 0) > self.handled[queue_id]:
            detail = (
                f"{name} lets the consumer begin queue {queue_id} at {offset}, which has seen"
                f" what is below {self.handled[queue_id]} only"
            )
            raise ViolationError("skipped", detail)
        least = self._least.get(master, {}).get(queue_id)
        if least is not None and (offset or 0) < least:
            detail = (
                f"{name} had copied {least} of queue {queue_id} as a slave, and lets the consumer"
                f" begin at {offset} as master"
            )
            raise ViolationError("offset lost", detail)

    def committed(self, master: Master, queue_id: int, offset: int) -> None:
        """Record an offset that a master has taken."""
        if self._committed is None or self._committed[0] is not master:
            self._committed = (master, {})
        self._committed[1][queue_id] = offset
        least = self._least.get(master)
        if least is not None:
            least[queue_id] = offset

    def lacks(self, master: Master) -> str | None:
        """Return which slave has not copied what was committed to a master; None if all have."""
        if self._committed is None or self._committed[0] is not master:
            return None
        for node_id in self.cluster.config.ids:
            agent = self.cluster.agent(node_id)
            if agent is None or isinstance(agent.node.role_node, Master):
                continue
            own = _offsets_of(agent.node.role_node)
            for queue_id, offset in self._committed[1].items():
                if own.get(queue_id) != offset:
                    return f"node-{node_id} has offset {own.get(queue_id)}, not {offset}"
        return None


def _may_not_have_stored(agent: Agent) -> bool:
    """Whether a stop lately may have ended before what was copied was on disk."""
    node, lately = agent.sim_node, trio.current_time() - _STORED_WITHIN_S
    is_slow = node.slow_disk_s > 0 or node.slow_until > lately
    is_late = node.frozen is not None or node.went_on_at > max(lately, agent.began_at)
    return is_slow or is_late or agent.boot.disk.times_full > 0


def _table_of(slave: Slave) -> tuple[object, int] | None:
    """Return the table of a slave that serves, and how often it has changed."""
    copying = slave.slave_synchronize
    return None if copying is None else (copying.data.offsets, copying.data.offsets.changes)


def _offsets_of(slave: Slave) -> dict[int, int]:
    copying = slave.slave_synchronize
    return {} if copying is None else dict(copying.data.offsets.offsets.get(_KEY, {}))
