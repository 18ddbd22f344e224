"""Real masters and slaves to read from, with small files and on loopback."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import hastore
from hastore.broker.node.group_node import GroupNode
from hastore.broker.node.master import Master
from hastore.broker.node.slave import Slave
from hastore.config import KIB, MIB, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.env.interface import Env
from hastore.env.real import real_env
from hastore.message import Message, PutMessageResult
from hastore.status import BrokerRole
from hastore.wire.pull_message import PullRequest, write_pull_fields
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import RemotingCommand
from tests.support.nodes.configs import ANY_PORT
from tests.support.waiting import eventually

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"  # which each master has


def of_users(topics: Iterable[str]) -> list[str]:
    """Return the topics that the master has not made itself."""
    return [topic for topic in topics if topic != REPLY_TOPIC]


def store_config(data_dir: str | Path, **store: Any) -> StoreConfig:
    return StoreConfig(
        data_dir=str(data_dir),
        **{
            "mapped_file_size": 4 * MIB,
            "max_message_size": 256 * KIB,
            "max_hash_slot_num": 1_000,
            "max_index_num": 4_000,
            **store,
        },
    )


def master_config(
    data_dir: str | Path, store: Mapping[str, Any] | None = None, **remoting: Any
) -> MasterConfig:
    return MasterConfig(
        store=store_config(data_dir, **(store or {})),
        role=BrokerRole.ASYNC_MASTER,
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        remoting=RemotingConfig(**remoting),
    )


@contextlib.asynccontextmanager
async def open_master(
    data_dir: str | Path,
    store: Mapping[str, Any] | None = None,
    *,
    env: Env | None = None,
    **remoting: Any,
) -> AsyncIterator[Master]:
    """Run a master whose messages may be read at once."""
    config = master_config(data_dir, store, **remoting)
    async with hastore.open_master(config, env=env or real_env()) as master:
        yield master


@contextlib.asynccontextmanager
async def open_slave(
    data_dir: str | Path,
    master: Master,
    store: Mapping[str, Any] | None = None,
    *,
    env: Env | None = None,
    master_client: tuple[str, int] | None = None,
    **remoting: Any,
) -> AsyncIterator[Slave]:
    """Run a slave that has dispatched all of its master's log.

    It copies the master's tables if ``master_client`` names the client port.
    """
    config = SlaveConfig(
        store=store_config(data_dir, **(store or {})),
        master=master.ha_address,
        master_client=master_client,
        listen=ANY_PORT,
        remoting=RemotingConfig(**remoting),
    )
    async with hastore.open_slave(config, env=env or real_env()) as slave:
        await dispatched(slave, master.max_offset)
        yield slave


async def put(
    master: Master,
    topic: str = "T",
    bodies: Iterable[bytes] = (b"body",),
    *,
    queue_id: int = 0,
    **fields: Any,
) -> list[PutMessageResult]:
    """Put messages and wait until they may be read; return their results."""
    results = [
        await master.put(Message(topic, body, queue_id=queue_id, **fields)) for body in bodies
    ]
    end = results[-1].next_offset
    assert end is not None
    await dispatched(master, end)
    return results


async def dispatched(node: Master | Slave, offset: int) -> None:
    """Wait until the queues have all records up to ``offset``."""
    await eventually(lambda: node.reput_message_service.committed_offset >= offset)


async def all_dispatched(node: Master | GroupNode) -> None:
    """Wait until consumers can read all that is confirmed, as each PUT_OK is."""
    await eventually(lambda: node.status().dispatch_behind_bytes == 0)


def pull_command(
    opaque: int = 1, *, serialize_type: SerializeType | None = None, flag: int = 0, **changes: Any
) -> RemotingCommand:
    """Return a PULL_MESSAGE request, by default for all messages of queue 0 of T."""
    given: dict[str, Any] = {
        "group": "g",
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "count_max": 32,
        "subscription": "*",
    }
    fields = write_pull_fields(PullRequest(**(given | changes)))
    command = RemotingCommand(code=11, opaque=opaque, ext_fields=fields, flag=flag)
    if serialize_type is not None:
        command.serialize_type = serialize_type
    return command
