"""The other groups of a node's cluster, for routes; and what this node tells them.

::

    PREFIX/CLUSTER/@routes/ ──watch──▶ RouteReader ──▶ groups(), which routes (105) list
              ▲
              └── this node's address and role; as its group's master, the topics too

Invariant: nothing here decides, delays or ends anything; where the coordinator does not answer, the
groups stay what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.cluster.key_value_store import Put, Unchanged, follow
from hastore.cluster.route_records import RouteKeys, RouteNode, RouteReader, encode_topics
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import CoordinatorError, CoordinatorRefusedError, ProtocolError
from hastore.topic import DEFAULT_TOPIC
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.broker.group_directory import BrokerRoute, TopicTable
    from hastore.cluster.key_value_store import KeyValueStore, Snapshot
    from hastore.errors import HastoreError

INTERVAL_S: Final = 30.0  # after which all is looked at again
TOPICS_PAUSE_S: Final = 1.0  # so that a burst of new topics is few writes
_NODE_PAUSE_S: Final = 0.1
_RETRY_S: Final = 1.0
_REFUSED_RETRY_S: Final = 30.0  # a person has to give the right

_log = logger("cluster")


class OwnRoute(Protocol):
    """What a node says of itself."""

    def route_node(self) -> tuple[int, RouteNode] | None:
        """Return its id, and where clients reach it; None: nowhere."""

    def session(self) -> int | None:
        """Return the lease of what it says of itself; None: it has none now."""

    def leader_key(self) -> Unchanged | None:
        """Return its own leader key, unchanged; None: it is not the group's master."""


@final
@attrs.define(eq=False)
class ClusterRoutes:
    """The routes of a cluster as one of its nodes knows them; ``run`` works until cancelled."""

    store: KeyValueStore
    keys: RouteKeys
    own_group: str
    _reader: RouteReader = attrs.field(init=False)
    _groups: tuple[BrokerRoute, ...] = attrs.field(default=(), init=False)
    _snapshot: Snapshot | None = attrs.field(default=None, init=False)
    _changed: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _topics: TopicTable | None = attrs.field(default=None, init=False)
    # The changes of ``_topics`` that the value has, and the value.
    _encoded: tuple[int, bytes] | None = attrs.field(default=None, init=False)
    # By key: the value and lease that were written, at which revision.
    _written: dict[str, tuple[bytes, int | None, int]] = attrs.field(factory=dict, init=False)
    _failure: HastoreError | None = attrs.field(default=None, init=False)  # since the last answer

    def __attrs_post_init__(self) -> None:
        """Know nothing."""
        self._reader = RouteReader(self.keys, self.own_group)

    # -- what the node asks, and says ------------------------------------------------------------

    def groups(self) -> tuple[BrokerRoute, ...]:
        """Return the other groups that have a node."""
        return self._groups

    def serves(self, topics: TopicTable) -> None:
        """Take the table of a master that begins to serve."""
        self._topics, self._encoded = topics, None
        topics.watchers.append(self._changed.wakeup)
        self._changed.wakeup()

    def changed(self) -> None:
        """Look again at what this node is: its role may be another."""
        self._changed.wakeup()

    # -- the run ---------------------------------------------------------------------------------

    async def run(self, own: OwnRoute) -> None:
        """Watch the other groups, and tell them of this node."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self._publish_changes(own)

    async def _watch(self) -> None:
        while True:
            try:
                with trio.move_on_after(INTERVAL_S):  # a watch may be dead, and not know it
                    async with follow(self.store, self.keys.base) as snapshots:
                        async for snapshot in snapshots:
                            self._take(snapshot)
            except (CoordinatorError, ProtocolError) as error:
                await self._failed(error)

    def _take(self, snapshot: Snapshot) -> None:
        known = self._snapshot
        if known is not None and (
            known.cluster_id != snapshot.cluster_id or snapshot.revision < known.revision
        ):
            self._written.clear()  # it was restored, and may have forgotten it
        self._snapshot, damaged = snapshot, self._reader.damaged
        self._groups = self._reader.read(snapshot.items)
        for key in self._reader.damaged.keys() - damaged.keys():
            _log.warning("route_unreadable", key=key, reason=self._reader.damaged[key])
        self._failure = None

    async def _failed(self, error: CoordinatorError | ProtocolError) -> None:
        if type(error) is not type(self._failure):  # its text may name how long it was waited for
            _log.warning("routes_not_exchanged", reason=str(error), next=error.hint)
        self._failure = error
        is_refused = isinstance(error, CoordinatorRefusedError)
        await trio.sleep(_REFUSED_RETRY_S if is_refused else _RETRY_S)

    async def _publish_changes(self, own: OwnRoute) -> None:
        while True:
            try:
                pause_s = await self._publish(own)
            except (CoordinatorError, ProtocolError) as error:
                await self._failed(error)
                continue
            await trio.sleep(pause_s)
            with trio.move_on_after(INTERVAL_S):
                await self._changed.wait_for_running()

    async def _publish(self, own: OwnRoute) -> float:
        """Write what has changed; return how long to wait before the next write."""
        found, lease = own.route_node(), own.session()
        if found is not None and lease is not None:
            node_id, node = found
            put = Put(self.keys.node(self.own_group, node_id), node.encode(), lease=lease)
            await self._write(put, None)
        leader = own.leader_key()
        if leader is None or self._topics is None:
            return _NODE_PAUSE_S
        put = Put(self.keys.topics(self.own_group), self._topics_value(self._topics))
        return TOPICS_PAUSE_S if await self._write(put, leader) else _NODE_PAUSE_S

    async def _write(self, put: Put, comparison: Unchanged | None) -> bool:
        """Write a value unless it is there; return whether it was written."""
        if self._is_there(put):
            return False
        comparisons = [] if comparison is None else [comparison]
        outcome = await self.store.commit(comparisons, [put])
        if outcome.succeeded:
            self._written[put.key] = put.value, put.lease, outcome.revision
        return outcome.succeeded

    def _is_there(self, put: Put) -> bool:
        """Return whether the coordinator has a value, as far as this node knows."""
        snapshot, written = self._snapshot, self._written.get(put.key)
        if written is not None and (snapshot is None or snapshot.revision < written[2]):
            return written[:2] == (put.value, put.lease)
        item = None if snapshot is None else snapshot.items.get(put.key)
        return item is not None and (item.value, item.lease) == (put.value, put.lease)

    def _topics_value(self, topics: TopicTable) -> bytes:
        """Return the topics as a value, made again only after a change."""
        if self._encoded is None or self._encoded[0] != topics.changes:
            table = dict(topics.topics)
            default = topics.find(DEFAULT_TOPIC)  # by which clients make topics
            if default is not None:
                table[DEFAULT_TOPIC] = default
            value, left_out = encode_topics(table)
            if left_out:
                _log.warning("topics_not_published", count=left_out, of=len(table))
            self._encoded = topics.changes, value
        return self._encoded[1]
