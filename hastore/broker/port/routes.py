"""Routes as a node answers them (105): its own, or its group's and its cluster's.

::

    no directory       one broker, itself: id 0 as a master, 1 as a slave; in a replica group it has
                       the group's name, so that clients see one broker after a failover, too
    a directory        its group as one broker, the master as id 0, each slave under its node id;
                       and each other group as one more

A topic has the same queues on each broker: this node's numbers.  A broker without a master takes no
messages.

Invariant: no node is listed as a master that does not take messages itself, as far as it is this
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hastore.broker.group_directory import MASTER_ID, BrokerRoute
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
        is_own = node.client_address in {target.address, address}
        is_master = node.is_master and (target.takes_puts or not is_own)
        where = address if is_own else node.client_address
        if where[0] not in WILDCARDS:  # another node's: nobody can reach it there
            found[MASTER_ID if is_master else node.node_id] = where
    return found


def route_json(brokers: Sequence[BrokerRoute], config: TopicConfig) -> dict[str, Any]:
    """Return the body of the answer to 105 about a topic."""
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
            for broker in brokers
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": broker.broker_name,
                "perm": config.perm if broker.has_master else config.perm & PERM_READ,
                "readQueueNums": config.read_queue_nums,
                "topicSynFlag": 0,
                "writeQueueNums": config.write_queue_nums if broker.has_master else 0,
            }
            for broker in brokers
        ],
    }
