"""Nodes of a replica group whose roles a test changes, on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import attrs
import trio

import hastore
from hastore.broker.node.group_node import GroupNode
from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Promotion
from hastore.client.admin import AdminClient
from hastore.config import GroupNodeConfig, HAConfig, StoreConfig
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.sync_state_set import SyncStateSet
from hastore.status import HAProtocol, PutMessageStatus
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.harness import FILE_SIZE, messages
from tests.support.waiting import eventually

HA = HAConfig(
    protocol=HAProtocol.AUTOSWITCH,
    ha_reconnect_backoff_min_ms=10,
    ha_reconnect_backoff_max_ms=50,
)


def node_config(
    data_dir: str | Path, node_id: int, ids: tuple[int, ...] | None = (1, 2, 3), **changes: Any
) -> GroupNodeConfig:
    """Return the configuration of a node of g1."""
    config = GroupNodeConfig(
        store=StoreConfig(data_dir=str(data_dir), mapped_file_size=FILE_SIZE),
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        ha=HA,
        node_id=node_id,
        replica_group="g1",
        group_ids=ids,
    )
    return attrs.evolve(config, **changes)


@contextlib.asynccontextmanager
async def group(tmp_path: Path, count: int = 3, **changes: Any) -> AsyncIterator[list[GroupNode]]:
    """Run nodes 1 to ``count``; none has a role."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for node_id in range(1, count + 1):
            config = node_config(
                tmp_path / str(node_id), node_id, tuple(range(1, count + 1)), **changes
            )
            nodes.append(await stack.enter_async_context(hastore.open_node(config)))
        yield nodes


async def promote(
    master: GroupNode,
    *slaves: GroupNode,
    epoch: int | None = None,
    members: set[int] | None = None,
) -> Master:
    """Make one node master and let others follow it; wait until all are connected."""
    begins_with = None if members is None else frozenset(members)
    serving = await master.become_master(Promotion(epoch=epoch, members=begins_with))
    for slave in slaves:
        await slave.follow(master.ha_address, serving.epoch)
    group = set_of(serving)
    wanted = {slave.config.node_id for slave in slaves} | {master.config.node_id}
    await eventually(lambda: group.accepted - group.missing() >= wanted, f"{wanted} connected")
    return serving


async def promote_by_request(master: GroupNode, slave: GroupNode, epoch: int) -> Master:
    """Change the roles as a coordinator does; return the new master once its slave is in step.

    So the slave knows its master's client port, and copies its tables.
    """
    master_id = master.config.node_id
    assert master_id is not None
    for node in (master, slave):
        assert node.address is not None
        async with AdminClient.connect(node.address) as admin:
            await admin.change_role(
                epoch=epoch,
                master_address=master.address,
                master_id=master_id,
                members={master_id},
            )
        if node is master:
            await eventually(
                lambda: isinstance(master.role_node, Master) and master.role_node.epoch == epoch
            )
    await eventually(lambda: set_of(cast("Master", master.role_node)).accepted == {1, 2})
    serving = master.role_node
    assert isinstance(serving, Master)
    return serving


def set_of(master: Master) -> SyncStateSet:
    """Return its SyncStateSet."""
    assert isinstance(master.ha_service, GroupHAService)
    return master.ha_service.sync_state_set


async def put(node: Master, body: bytes = b"body") -> PutMessageStatus:
    """Put one message; return its status."""
    (message,) = messages(1)
    with trio.fail_after(WITHIN_S):
        return (await node.put(attrs.evolve(message, body=body))).status
