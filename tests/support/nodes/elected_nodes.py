"""Nodes whose roles a real etcd decides, and the group's status as `hastore cluster` shows it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import trio

import hastore
from hastore.broker.node.group_node import GroupNode
from hastore.broker.node.master import Master
from hastore.config import CoordinatorConfig
from tests.support.commands.in_process import call
from tests.support.nodes.group_nodes import node_config
from tests.support.waiting import eventually


@contextlib.asynccontextmanager
async def nodes_by(
    etcd: CoordinatorConfig,
    tmp_path: Path,
    count: int = 3,
    *,
    ids: tuple[int, ...] | None = (1, 2, 3),
) -> AsyncIterator[list[GroupNode]]:
    """Run nodes 1 to ``count``."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for at in range(1, count + 1):
            config = node_config(tmp_path / f"D{at}", at, ids, coordinator=etcd)
            nodes.append(await stack.enter_async_context(hastore.open_node(config)))
        yield nodes


def master_of(nodes: Sequence[GroupNode]) -> int | None:
    """Return the id of the node that is master; None: none is."""
    return next((n.config.node_id for n in nodes if isinstance(n.role_node, Master)), None)


async def status_once(predicate: Callable[[Any], object]) -> Any:
    """Return the group's status once a predicate holds; before, its keys may not be there yet."""
    while True:
        code, shown, _ = await call("cluster", "status", "-o", "json")
        if code == 0 and predicate(json.loads(shown)):
            return json.loads(shown)
        await trio.sleep(0.05)


def follow_its_master(status: Any) -> bool:
    """Return whether each node may become master, and all but the master say that they follow."""
    leader = status["leader"]
    return leader is not None and all(
        node["may_stand"]
        and node["last_epoch"] == leader["epoch"]
        and (node["link"] is not None or node["id"] == leader["id"])
        for node in status["nodes"]
    )


async def has_all(nodes: Sequence[GroupNode]) -> Any:
    """Wait until there is a master and all three may become one."""
    await eventually(lambda: master_of(nodes) is not None)
    return await status_once(follow_its_master)
