"""Routes as a node answers them (105): its own, or its group's and its cluster's.

::

    no directory       one broker, itself: id 0 as a master, 1 as a slave; in a replica group it has
                       the group's name, so that clients see one broker after a failover, too
    a directory        its group as one broker, the master as id 0, each slave under its node id;
                       and each other group as one more

A topic is on each broker that has it, with the queues that it has there; the node's own group comes
first.  A broker without a master takes no messages.

Invariant: no node is listed as a master that does not take messages itself, as far as it is this
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.broker.group_directory import MASTER_ID, BrokerRoute, TopicQueues
from hastore.concurrency.tcp import describe
from hastore.status import BrokerRole
from hastore.wire.config_tables import PERM_READ

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.group_directory import Address, KnownNode
    from hastore.broker.request_target import RequestTarget
    from hastore.wire.config_tables import TopicConfig

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_SLAVE_ID: Final = 1


def brokers_of(target: RequestTarget, reached_at: Address) -> tuple[BrokerRoute, ...]:
    """Return the brokers that a node knows; a client has reached it at ``reached_at``."""
    address = target.address
    if address is None or address[0] in WILDCARDS:
        address = reached_at
    directory = target.directory
    nodes = () if directory is None else directory.nodes()
    if directory is None or not nodes:
        broker_id = _SLAVE_ID if target.role is BrokerRole.SLAVE else MASTER_ID
        return (
            BrokerRoute(
                cluster=target.cluster,
                broker_name=target.broker_name,
                addresses={broker_id: address},
            ),
        )
    own = BrokerRoute(
        cluster=target.cluster,
        broker_name=directory.broker_name,
        addresses=_addresses(nodes, target, address),
    )
    return (own, *directory.other_groups())


def _addresses(
    nodes: Sequence[KnownNode], target: RequestTarget, address: Address
) -> dict[int, Address]:
    """Return the group's addresses by broker id, the master's first."""
    found: dict[int, Address] = {}
    for node in sorted(nodes, key=lambda node: not node.is_master):
        is_here = node.client_address in {target.address, address}
        is_own = node.is_own or is_here
        is_master = node.is_master and (target.takes_puts or not is_own)
        where = address if is_here else node.client_address
        if where[0] not in WILDCARDS:  # another node's: nobody can reach it there
            found[MASTER_ID if is_master else node.node_id] = where
    return found


def route_json(
    brokers: Sequence[BrokerRoute], topic: str, config: TopicConfig | None
) -> dict[str, Any]:
    """Return the body of the answer to 105 about a topic, on the brokers that have it.

    ``config`` is this node's; None: it does not have the topic.
    """
    found = [
        (broker, queues)
        for broker in brokers
        if (queues := _queues_of(broker, topic, config)) is not None
    ]
    return {
        "brokerDatas": [
            {
                "brokerAddrs": {
                    str(broker_id): describe(address)
                    for broker_id, address in broker.addresses.items()
                },
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
            }
            for broker, _ in found
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": broker.broker_name,
                "perm": queues.perm if broker.has_master else queues.perm & PERM_READ,
                "readQueueNums": queues.read,
                "topicSynFlag": 0,
                "writeQueueNums": queues.write if broker.has_master else 0,
            }
            for broker, queues in found
        ],
    }


def _queues_of(broker: BrokerRoute, topic: str, config: TopicConfig | None) -> TopicQueues | None:
    if broker.topics is not None:
        return broker.topics.get(topic)
    if config is None:
        return None
    return TopicQueues(read=config.read_queue_nums, write=config.write_queue_nums, perm=config.perm)
