"""What the groups of a cluster tell each other for routes: the keys, and their values as JSON.

Below ``PREFIX/CLUSTER/@routes/GROUP/``::

    nodes/ID    lease   where clients reach a node, and of which epoch it is master, if it is
    topics      -       the queues of each topic, as the group's master has them

They are apart from the group's own keys because all nodes of the cluster watch them: those change
every few seconds, these with roles and topics only.  No group has a name with ``@``.

Invariant: any bytes decode to a value or to a ProtocolError that names the key.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Self, final

import attrs

from hastore.broker.group_directory import MASTER_ID, BrokerRoute, TopicQueues
from hastore.config import NODE_ID_MAX, REPLICA_GROUP
from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ProtocolError
from hastore.quantities import parse_address
from hastore.wire.config_tables import PERM_READ_WRITE, QUEUE_NUMS_MAX
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.broker.group_directory import Address
    from hastore.cluster.key_value_store import KeyValue
    from hastore.wire.config_tables import TopicConfig

GROUPS_MAX: Final = 64  # that a node knows besides its own, the first by name
NODES_MAX: Final = 64  # of one group
TOPICS_SIZE_MAX: Final = 1 << 19  # bytes of a value; etcd takes 1.5 MiB in one request
_NODE_ID: Final = re.compile("[1-9][0-9]{0,18}")
_NUMBERS: Final = 3  # of a topic


@final
@attrs.frozen
class RouteKeys:
    """The keys of a cluster's routes."""

    base: str  # ends with a slash

    @classmethod
    def of(cls, group_base: str) -> Self:
        """Return those of the cluster whose group has its own keys below ``group_base``."""
        cluster, _, _ = group_base.rstrip("/").rpartition("/")
        return cls(f"{cluster}/@routes/")

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.base.split("/")[-3]

    def node(self, group: str, node_id: int) -> str:
        """Return the key of a node."""
        return f"{self.base}{group}/nodes/{node_id}"

    def topics(self, group: str) -> str:
        """Return the key of a group's topics."""
        return f"{self.base}{group}/topics"


@final
@attrs.frozen
class RouteNode:
    """A node for clients; ``epoch``: it is master of it, None: it is a slave."""

    client_address: str
    epoch: int | None

    @property
    def address(self) -> Address:
        """The client port."""
        return parse_address(self.client_address)

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        what = f"the coordinator's key {key}"
        values = loads_object(data, what)
        client, epoch = values.get("client"), values.get("epoch")
        if not isinstance(client, str):
            raise ProtocolError(f"{what}: client is {client!r:.100}, not an address")
        try:
            parse_address(client)
        except ValueError as error:
            raise ProtocolError(f"{what}: client: {error}") from error
        if epoch is not None and not _is_number(epoch, 1, EPOCH_MAX):
            raise ProtocolError(f"{what}: epoch is {epoch!r:.100}, not 1 to {EPOCH_MAX}")
        return cls(client, epoch)

    def encode(self) -> bytes:
        """Return the value."""
        return _encode({"client": self.client_address, "epoch": self.epoch})


def encode_topics(topics: Mapping[str, TopicConfig]) -> tuple[bytes, int]:
    """Return the value for these topics, and how many of them have no room in it.

    The first by name have, so the value is the same on each master.
    """
    rows: dict[str, list[int]] = {}
    size, names = len('{"topics":{}}'), sorted(topics)
    for name in names:
        one = topics[name]
        row = [one.read_queue_nums, one.write_queue_nums, one.perm]
        size += len(_encode({name: row})) - 1  # its braces, and a comma
        if size > TOPICS_SIZE_MAX:
            break
        rows[name] = row
    return _encode({"topics": rows}), len(names) - len(rows)


def decode_topics(key: str, data: bytes) -> dict[str, TopicQueues]:
    """Read a value of ``encode_topics``.  Raises ProtocolError."""
    what = f"the coordinator's key {key}"
    if len(data) > TOPICS_SIZE_MAX:
        raise ProtocolError(f"{what} has {len(data)} bytes, more than {TOPICS_SIZE_MAX}")
    rows = loads_object(data, what).get("topics")
    if not isinstance(rows, dict):
        raise ProtocolError(f"{what}: topics is {rows!r:.100}, not an object")
    found: dict[str, TopicQueues] = {}
    for name, row in rows.items():
        is_row = isinstance(row, list) and len(row) == _NUMBERS
        if not is_row or not all(_is_number(each, 0, QUEUE_NUMS_MAX) for each in row):
            raise ProtocolError(f"{what}: topic {name:.100} is {row!r:.100}, not three numbers")
        read, write, perm = row
        found[name] = TopicQueues(read=read, write=write, perm=perm & PERM_READ_WRITE)
    return found


@final
@attrs.define(eq=False)
class RouteReader:
    """Reads the groups of a cluster from its keys; each value only once.

    ``damaged`` says, by key, what could not be read, and is passed over.
    """

    keys: RouteKeys
    own_group: str
    damaged: dict[str, str] = attrs.field(factory=dict, init=False)
    # By key: the value's revision, and what it says; None: it cannot be read.
    _known: dict[str, tuple[int, Any]] = attrs.field(factory=dict, init=False)

    def read(self, items: Mapping[str, KeyValue]) -> tuple[BrokerRoute, ...]:
        """Return the other groups that have a node, by name."""
        groups: dict[str, dict[str, KeyValue]] = {}
        for key, item in items.items():
            group, _, rest = key.removeprefix(self.keys.base).partition("/")
            if group != self.own_group and REPLICA_GROUP.fullmatch(group):
                groups.setdefault(group, {})[rest] = item
        with_nodes = [
            name
            for name in sorted(groups)
            if any(rest.startswith("nodes/") for rest in groups[name])
        ][:GROUPS_MAX]
        before, self._known, self.damaged = self._known, {}, {}
        found = [self._group(name, groups[name], before) for name in with_nodes]
        return tuple(group for group in found if group.addresses)

    def _group(
        self, name: str, items: Mapping[str, KeyValue], before: Mapping[str, tuple[int, Any]]
    ) -> BrokerRoute:
        nodes: dict[int, RouteNode] = {}
        for rest, item in sorted(items.items()):
            kind, _, node_id = rest.partition("/")
            is_id = _NODE_ID.fullmatch(node_id) and int(node_id) <= NODE_ID_MAX
            if kind == "nodes" and is_id and len(nodes) < NODES_MAX:
                node = self._decoded(item, before, RouteNode)
                if node is not None:
                    nodes[int(node_id)] = node
        listed = items.get("topics")
        topics = None if listed is None else self._decoded(listed, before, None)
        epochs = {node.epoch: node_id for node_id, node in nodes.items() if node.epoch is not None}
        master = epochs[max(epochs)] if epochs else None
        ordered = sorted(nodes, key=lambda node_id: (node_id != master, node_id))
        return BrokerRoute(
            cluster=self.keys.cluster,
            broker_name=name,
            addresses={
                MASTER_ID if node_id == master else node_id: nodes[node_id].address
                for node_id in ordered
            },
            topics=topics or {},
        )

    def _decoded(
        self,
        item: KeyValue,
        before: Mapping[str, tuple[int, Any]],
        kind: type[RouteNode] | None,
    ) -> Any:
        known = before.get(item.key)
        if known is None or known[0] != item.mod_revision:
            value: Any
            try:
                value = (decode_topics if kind is None else kind.decode)(item.key, item.value)
            except ProtocolError as error:
                value = error
            known = item.mod_revision, value
        self._known[item.key] = known
        if isinstance(known[1], ProtocolError):
            self.damaged[item.key] = str(known[1])
            return None
        return known[1]


def _is_number(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
