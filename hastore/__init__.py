"""hastore: a master/slave high-availability commit log, byte-compatible with RocketMQ.

::

    async with hastore.open_master(config) as master:
        result = await master.put(hastore.Message("orders", b"hello"))

``open_master``, ``open_slave`` and ``open_node`` run a node in this process.  Over the network:
``hastore.client.producer.Producer``, ``hastore.client.consumer.Consumer``.

To read the code, begin with ``broker.node.master``.

These invariants hold while a node runs, whatever its disk, its peers and its clients do:

1. The log of a slave that follows is a byte prefix of its master's, from the slave's first byte on.
2. A slave reports at most its own max offset; with SYNC_FLUSH, at most its flushed offset.
3. ``push2_slave_max_offset`` never decreases and never exceeds the master's max offset: a report
   above what was sent does not count.
4. On a SYNC_MASTER, PUT_OK for a message that waits means that a slave has reported an offset at
   or above the message's end.
5. flushed offset ≤ readable offset (the end of the bytes in the file) ≤ max offset; all three only
   grow.
6. No later read contradicts a status that was returned.
7. Nothing above the confirm offset is dispatched, so no consumer reads it; records are dispatched
   in the log's order.
8. The checkpoint never claims more than is on disk.
9. Log files are deleted from the front, one after the other, and never the last: a log has no hole.
"""

from __future__ import annotations

from hastore.config import (
    GroupNodeConfig,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
)
from hastore.errors import HastoreError
from hastore.message import Message, PutMessageResult, StoredMessage
from hastore.opening import open_master, open_node, open_slave
from hastore.status import BrokerRole, FlushDiskType, HAProtocol, PutMessageStatus, SlaveStart

__all__ = [
    "BrokerRole",
    "FlushDiskType",
    "GroupNodeConfig",
    "HAConfig",
    "HAProtocol",
    "HastoreError",
    "MasterConfig",
    "Message",
    "PutMessageResult",
    "PutMessageStatus",
    "RemotingConfig",
    "SlaveConfig",
    "SlaveStart",
    "StoreConfig",
    "StoredMessage",
    "open_master",
    "open_node",
    "open_slave",
]
