"""Read a topic's route, the answer of a name server or a hastore node; liberal."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from hastore.errors import ProtocolError
from hastore.quantities import parse_address
from hastore.wire import liberal_json
from hastore.wire.config_tables import PERM_READ, TopicConfig
from hastore.wire.remoting_command import integer_field

_MASTER_ID: Final = "0"
_QUEUE_NUMS_MAX: Final = 65_536


def read_queue_nums(body: bytes) -> int | None:
    """Return the number of writable queues of the first broker; None if it has no master.

    A node names its own group first.  Raises ProtocolError.
    """
    route = liberal_json.loads_object(body, "the route")
    masters = {
        str(broker.get("brokerName"))
        for broker in _rows(route, "brokerDatas")[:1]
        if _has_master(broker)
    }
    queue_nums = 0
    for queue in _rows(route, "queueDatas"):
        if str(queue.get("brokerName")) in masters:
            queue_nums = max(queue_nums, _queue_nums(queue, "writeQueueNums"))
    return min(queue_nums, _QUEUE_NUMS_MAX) if queue_nums > 0 else None


def read_readable_queue_nums(body: bytes) -> int:
    """Return the number of readable queues, on a master or a slave.  Raises ProtocolError."""
    route = liberal_json.loads_object(body, "the route")
    queue_nums = 0
    for queue in _rows(route, "queueDatas"):
        if integer_field(queue, "perm", PERM_READ) & PERM_READ:
            queue_nums = max(queue_nums, _queue_nums(queue, "readQueueNums"))
    return min(queue_nums, _QUEUE_NUMS_MAX)


def read_topic_config(route: dict[str, Any], topic: str) -> TopicConfig:
    """Return what a node's route says of its topic: that of its first queue data.

    Raises ProtocolError.
    """
    for queue in _rows(route, "queueDatas"):
        return TopicConfig(
            topic=topic,
            read_queue_nums=min(_queue_nums(queue, "readQueueNums"), _QUEUE_NUMS_MAX),
            write_queue_nums=min(_queue_nums(queue, "writeQueueNums"), _QUEUE_NUMS_MAX),
            perm=integer_field(queue, "perm", PERM_READ),
        )
    raise ProtocolError(f"the route of topic {topic} has no queues")


def broker_addresses(body: bytes) -> tuple[tuple[str, int], ...]:
    """Return the nodes of all brokers, masters first; without those that are no addresses.

    Raises ProtocolError.
    """
    found: list[tuple[bool, tuple[str, int]]] = []
    for broker in _rows(liberal_json.loads_object(body, "the route"), "brokerDatas"):
        for broker_id, text in _addresses(broker).items():
            with contextlib.suppress(ValueError):
                found.append((broker_id != _MASTER_ID, parse_address(str(text))))
    return tuple(address for _, address in sorted(found, key=lambda one: one[0]))


def groups_in(body: bytes) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return the nodes of each broker, its master first, by the broker's name.

    Without those that are no addresses, and brokers without any.  Raises ProtocolError.
    """
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for broker in _rows(liberal_json.loads_object(body, "the route"), "brokerDatas"):
        nodes: list[tuple[bool, tuple[str, int]]] = []
        for broker_id, text in _addresses(broker).items():
            with contextlib.suppress(ValueError):
                nodes.append((broker_id != _MASTER_ID, parse_address(str(text))))
        if nodes:
            ordered = sorted(nodes, key=lambda one: one[0])
            found[str(broker.get("brokerName"))] = tuple(address for _, address in ordered)
    return found


def _has_master(broker: dict[str, Any]) -> bool:
    return _MASTER_ID in _addresses(broker)


def _addresses(broker: dict[str, Any]) -> dict[str, Any]:
    addresses = broker.get("brokerAddrs") or {}
    if not isinstance(addresses, dict):
        msg = f"the route's brokerAddrs of {broker.get('brokerName')} is not an object"
        raise ProtocolError(msg)
    return addresses


def _queue_nums(queue: dict[str, Any], name: str) -> int:
    try:
        return integer_field(queue, name)
    except ProtocolError as error:
        msg = f"the route's {name} of {queue.get('brokerName')} is not a number"
        raise ProtocolError(msg) from error


def _rows(route: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = route.get(name) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        msg = f"the route's {name} is not a list of objects"
        raise ProtocolError(msg)
    return rows
