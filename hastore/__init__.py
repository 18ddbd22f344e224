"""hastore: a master/slave high-availability commit log on RocketMQ's own bytes.

::

    async with hastore.open_master(config) as master:
        result = await master.put(hastore.Message("orders", b"hello"))

``open_master`` and ``open_slave`` choose the real environment unless one is given.
"""

from __future__ import annotations

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.errors import HastoreError
from hastore.message import Message, PutMessageResult, StoredMessage
from hastore.opening import open_master, open_slave
from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus, SlaveStart

__all__ = [
    "BrokerRole",
    "FlushDiskType",
    "HAConfig",
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
    "open_slave",
]
