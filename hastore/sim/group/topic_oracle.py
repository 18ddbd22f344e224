"""Checks topics that an operator deletes and makes again, once the group is quiet.

::

    log      | T 0 | T 1 | orders | T 2 |          deletedTopics of T on the master: logOffset
    T's queue   gone  gone          2              the records from there on, on every node
                              ▲
                          logOffset

A failover may undo a deletion that no slave had copied.  So the master's table says which life of a
topic counts, and it may hide only messages that were put before a deletion could be over:

    deleted     no node has a row, a queue, an offset or a readable message of a former life
    new life    every node serves each message of the present life, and each one of other topics
    hidden      no message that was put after the last deletion was over counts as deleted
    uncopied    slaves have what the master has, in their tables and on their disks
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple, final

import attrs

from hastore.sim.cluster import DATA_DIR
from hastore.sim.group.group_records import records
from hastore.sim.producers import TOPIC
from hastore.sim.put import PutOutcome
from hastore.sim.violation import ViolationError
from hastore.store.queue.directory import CONSUME_QUEUE_DIR, DELETED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hastore.broker.groups.copied_tables import CopiedTable
    from hastore.sim.disk import SimDisk
    from hastore.sim.group.group_cluster import GroupCluster
    from hastore.sim.group.group_oracle import GroupOracle
    from hastore.store.message_store import MessageStore
    from hastore.wire.config_tables import TopicConfig

TOPICS: Final = ("invoices", "returns")  # that are deleted and made again
_QUEUES: Final = f"{DATA_DIR}/{CONSUME_QUEUE_DIR}"


class Tables(NamedTuple):
    """What one node answers to 21 and 43."""

    topics: CopiedTable[TopicConfig]
    offsets: Mapping[str, Mapping[int, int]]  # by topic@group

    def deleted_below(self, topic: str) -> int:
        """Return the offset below which the records of a topic are deleted."""
        deletion = (self.topics.deleted_topics or {}).get(topic)
        return 0 if deletion is None else deletion.log_offset

    def offset_rows(self, topic: str) -> dict[str, Mapping[int, int]]:
        """Return the offsets that groups have in a topic."""
        return {key: row for key, row in self.offsets.items() if key.startswith(f"{topic}@")}


class Place(NamedTuple):
    """A message in a consume queue."""

    queue_id: int
    queue_offset: int
    physic_offset: int


@final
@attrs.define(eq=False)
class Topic:
    """What was asked of one topic; times are trio's."""

    name: str
    is_wanted: bool = True  # the operator's last request was not its deletion
    deletions: int = 0  # that may still be carried out
    last_deletion_at: float = 0.0  # when the last of the others was over
    is_gone: bool = False  # it was deleted since the group is quiet, and not used since
    is_emptied: bool = False  # likewise, and no offset was committed since


@final
@attrs.define(eq=False)
class TopicOracle:
    """Compares what all nodes serve with the master's table; ``is_quiet`` before any check."""

    cluster: GroupCluster
    oracle: GroupOracle
    topics: dict[str, Topic] = attrs.field(factory=lambda: {each: Topic(each) for each in TOPICS})

    def check_hidden(self, master: Tables) -> None:
        """Check that no deletion hides a message that was put after it.  Raises ViolationError."""
        for topic in self.topics.values():
            below = master.deleted_below(topic.name)
            for put in self.oracle.puts:
                is_hidden = put.topic == topic.name and put.outcome is PutOutcome.OK
                is_hidden = is_hidden and put.physic_offset < below
                if is_hidden and not topic.deletions and put.submitted_at > topic.last_deletion_at:
                    detail = (
                        f"put {put.number}, PUT_OK at {put.physic_offset} in topic {topic.name}, is"
                        f" deleted below {below}, though all deletions were over before it"
                    )
                    raise ViolationError("hidden", detail, put.number)

    def lacks(self, tables: Mapping[int, Tables], master_id: int) -> ViolationError | None:
        """Return what a node has or lacks, given the tables by node id; None if all is well."""
        master = tables[master_id]
        found = defaultdict(list)
        for record in records(self.oracle.logs[master_id].data):
            place = Place(record.queue_id, record.queue_offset, record.start)
            found[record.topic.decode()].append((place, record.key.decode()))
        for node_id, own in tables.items():
            agent = self.cluster.agent(node_id)
            if agent is None:
                return ViolationError("uncopied", f"node-{node_id} is down")
            store, name = agent.node.role_node.message_store, agent.sim_node.name
            for topic in (TOPIC, *TOPICS):
                violation = _compare(name, store, topic, found[topic], master.deleted_below(topic))
                if violation is not None:
                    return violation
            violation = self._compare_tables(name, own, master, agent.sim_node.live_disk)
            if violation is not None:
                return violation
        return None

    def _compare_tables(
        self, name: str, own: Tables, master: Tables, disk: SimDisk
    ) -> ViolationError | None:
        if own.topics.rows != master.topics.rows:
            detail = (
                f"{name} has topics {sorted(own.topics.rows)}, not {sorted(master.topics.rows)}"
            )
            return ViolationError("uncopied", detail)
        if own.topics.deleted_topics != master.topics.deleted_topics:
            return ViolationError("uncopied", f"{name} has other deleted topics than the master")
        for topic in self.topics.values():
            rows, masters = own.offset_rows(topic.name), master.offset_rows(topic.name)
            # A former master keeps an offset that nobody had copied; the master never removes it.
            if any(not row.items() <= rows.get(key, {}).items() for key, row in masters.items()):
                detail = f"{name} has offsets {rows} of {topic.name}, the master {masters}"
                return ViolationError("uncopied", detail)
            if topic.is_emptied and rows:
                return ViolationError("deleted", f"{name} has offsets {rows} of {topic.name}")
            if not topic.is_gone:
                continue
            if topic.name in own.topics.rows:
                return ViolationError("deleted", f"{name} has topic {topic.name}")
            if disk.exists(f"{_QUEUES}/{topic.name}"):
                return ViolationError("deleted", f"{name} has queues of topic {topic.name} on disk")
        left = [each.name for each in disk.list_dir(_QUEUES) if _is_set_aside(each.name)]
        return ViolationError("deleted", f"{name} has {left} on disk") if left else None


def _is_set_aside(name: str) -> bool:
    return name.startswith(DELETED_PREFIX)


def _compare(
    name: str,
    store: MessageStore,
    topic: str,
    found: Iterable[tuple[Place, str]],
    deleted_below: int,
) -> ViolationError | None:
    """Compare a node's queues of a topic, and what it finds by offset and key, with its records."""
    served = _served(store, topic)
    for place, key in found:
        is_live = place.physic_offset >= deleted_below
        if place.physic_offset < store.commit_log.min_offset:
            continue
        if is_live != (place in served):
            what = "serves" if place in served else "does not serve"
            rule = "new life" if is_live else "deleted"
            detail = f"{name} {what} {key} of topic {topic}: {place}, deleted below {deleted_below}"
            return ViolationError(rule, detail)
        served.discard(place)
        record = store.record_at(place.physic_offset)
        ways = {"its offset": record is not None and store.is_in_queue(record)}
        if key:
            # A delayed message may be delivered more than once.
            ways["its key"] = record in store.query_message(topic, key)
        for way, is_found in ways.items():
            if is_found is not is_live:
                what = f"finds {key} of {topic} by {way}" if is_found else f"lacks {key} by {way}"
                detail = f"{name} {what}: {place}, deleted below {deleted_below}"
                return ViolationError("new life" if is_live else "deleted", detail)
    if served:
        return ViolationError("deleted", f"{name} serves {min(served)} of topic {topic}")
    return None


def _served(store: MessageStore, topic: str) -> set[Place]:
    """Return the messages that a node's consume queues of a topic name."""
    served = set()
    for queue in store.consume_queues:
        at = queue.min_offset
        while queue.topic == topic and at < queue.max_offset:
            units = queue.units(at, queue.max_offset - at)  # to a file's end at most
            assert units, "it is inside the queue"
            served |= {
                Place(queue.queue_id, at + index, unit.physic_offset)
                for index, unit in enumerate(units)
                if not unit.is_blank
            }
            at += len(units)
    return served
