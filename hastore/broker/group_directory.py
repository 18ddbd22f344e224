"""What a node knows of its replica group, and of the other groups of its cluster, for routes.

A coordinator implements ``GroupDirectory``; a node without one answers routes to itself alone.  Its
answers are snapshots, from memory: routes are asked for all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.wire.config_tables import TopicConfig

Address = tuple[str, int]

MASTER_ID: Final = 0  # RocketMQ's broker id of a master; its slaves have others


@final
@attrs.frozen(kw_only=True)
class KnownNode:
    """A node of this node's replica group, itself included, that runs as far as is known."""

    node_id: int
    client_address: Address  # as other nodes and clients reach it
    is_master: bool
    is_own: bool = False  # whether it is the node whose directory this is


@final
@attrs.frozen(kw_only=True)
class TopicQueues:
    """How many queues a topic has in a group, and its permissions (4 read, 2 write)."""

    read: int
    write: int
    perm: int


@final
@attrs.frozen(kw_only=True)
class BrokerRoute:
    """A replica group as clients see it: RocketMQ's broker, with the addresses of its nodes."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, Address]  # by broker id
    topics: Mapping[str, TopicQueues] | None = None  # None: as the answering node has them

    @property
    def has_master(self) -> bool:
        """Whether clients can send to it."""
        return MASTER_ID in self.addresses


class TopicTable(Protocol):
    """The topics of a node, as they are now."""

    @property
    def topics(self) -> Mapping[str, TopicConfig]:
        """All of them, by name."""

    @property
    def changes(self) -> int:
        """How often the table has changed."""

    @property
    def watchers(self) -> list[Callable[[], None]]:
        """What is called after each change."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return a topic that exists, or that a message would make."""


class GroupDirectory(Protocol):
    """Who is in the group, and which groups there are besides; it may be behind."""

    @property
    def broker_name(self) -> str:
        """The group's name in routes: the same on all of its nodes."""

    def nodes(self) -> tuple[KnownNode, ...]:
        """Return the group's nodes; empty: nothing is known, and the node answers for itself."""

    def other_groups(self) -> tuple[BrokerRoute, ...]:
        """Return the other groups of the cluster."""

    def serves(self, topics: TopicTable) -> None:
        """Take the topics of this node, which begins to serve as a master."""
