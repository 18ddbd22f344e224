"""What nodes know of their group, as a test says it."""

from __future__ import annotations

import attrs

from hastore.broker.group_directory import BrokerRoute, KnownNode, TopicTable

Address = tuple[str, int]


@attrs.define
class Directory:
    """A GroupDirectory that a test fills."""

    known: tuple[KnownNode, ...] = ()
    others: tuple[BrokerRoute, ...] = ()
    broker_name: str = "g1"
    topics: TopicTable | None = None

    def nodes(self) -> tuple[KnownNode, ...]:
        """Return the group's nodes."""
        return self.known

    def other_groups(self) -> tuple[BrokerRoute, ...]:
        """Return the other groups."""
        return self.others

    def serves(self, topics: TopicTable) -> None:
        """Keep the topics of a master that begins to serve."""
        self.topics = topics


def known(*addresses: Address, master: Address | None = None) -> tuple[KnownNode, ...]:
    """Return the nodes 1, 2, … at these addresses."""
    return tuple(
        KnownNode(node_id=number, client_address=address, is_master=address == master)
        for number, address in enumerate(addresses, 1)
    )
