"""Embedding: a node as an ``async with`` block in the caller's own trio program.

A composition root: it uses the real environment unless the caller passes another.  What runs a
node (trio among it) is imported when one is opened, so that ``import hastore`` stays light.

An exception from the block, or a fail-stop of the node, is raised as itself and not inside an
ExceptionGroup, as long as it is the only one.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import trio

    from hastore.broker.group_directory import GroupDirectory
    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.config import GroupNodeConfig, MasterConfig, SlaveConfig
    from hastore.env.interface import Env

T = TypeVar("T", "GroupNode", "Master", "Slave")


@contextlib.asynccontextmanager
async def open_master(config: MasterConfig, *, env: Env | None = None) -> AsyncIterator[Master]:
    """Run a master while the block runs, then stop it cleanly."""
    from hastore.broker.node.master import run_master  # noqa: PLC0415
    from hastore.env.real import real_env  # noqa: PLC0415

    world = env or real_env()
    async with _running(lambda nursery: nursery.start(run_master, config, world)) as master:
        yield master


@contextlib.asynccontextmanager
async def open_slave(config: SlaveConfig, *, env: Env | None = None) -> AsyncIterator[Slave]:
    """Run a slave while the block runs, then stop it cleanly.

    In the real environment a slave without log files and without ``mapped_file_size`` asks its
    master for the file size; and it copies its master's topics, groups and offsets.
    """
    from hastore.broker.node.slave import run_slave  # noqa: PLC0415
    from hastore.env.real import real_env  # noqa: PLC0415
    from hastore.ha.client_port import asker_of  # noqa: PLC0415

    world = env or real_env()
    asks = env is None and config.store.mapped_file_size is None
    run = partial(
        run_slave,
        ask_client_port=asker_of(config.access, world) if asks else None,
        copies_tables=env is None,
    )
    async with _running(lambda nursery: nursery.start(run, config, world)) as slave:
        yield slave


@contextlib.asynccontextmanager
async def open_node(
    config: GroupNodeConfig, *, env: Env | None = None, directory: GroupDirectory | None = None
) -> AsyncIterator[GroupNode]:
    """Run a node of a replica group while the block runs, then stop it cleanly.

    With ``config.coordinator.endpoints`` their etcd decides on its role.  Else it begins as a
    slave; ``become_master`` and ``follow`` change its role.  See ``open_slave`` for the file size.
    ``directory``: what routes name besides this node; a coordinator knows that itself.
    """
    from hastore.broker.node.group_node import run_group_node  # noqa: PLC0415
    from hastore.cluster.connecting import run_node_by_etcd  # noqa: PLC0415
    from hastore.env.real import real_env  # noqa: PLC0415
    from hastore.ha.client_port import asker_of  # noqa: PLC0415

    world = env or real_env()
    ask = asker_of(config.access, world) if env is None else None
    if config.coordinator.endpoints:
        run = partial(run_node_by_etcd, ask_client_port=ask)
    else:
        run = partial(run_group_node, ask_client_port=ask, directory=directory)
    async with _running(lambda nursery: nursery.start(run, config, world)) as node:
        yield node


@contextlib.asynccontextmanager
async def _running(start: Callable[[trio.Nursery], Awaitable[T]]) -> AsyncIterator[T]:
    import trio  # noqa: PLC0415

    try:
        async with trio.open_nursery() as nursery:
            node = await start(nursery)
            yield node
            node.stop()
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        # Unwrap one level only: the caller's block may have raised a group itself.
        raise group.exceptions[0] from group.exceptions[0].__cause__
