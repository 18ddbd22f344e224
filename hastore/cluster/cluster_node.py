"""A node of a replica group whose role its group's coordinator decides.

::

    run_group_node ── the node: log, links, clients
         ▲  │
         │  └─ begins a term, has a new master
    RoleService ── the coordinator
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hastore.broker.node.group_node import run_group_node
from hastore.concurrency.service import as_itself
from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.cluster.role_service import RoleService
    from hastore.config import GroupNodeConfig
    from hastore.env.interface import Env
    from hastore.ha.client_port import AskClientPort


async def run_cluster_node(
    config: GroupNodeConfig,
    env: Env,
    roles: RoleService,
    *,
    ask_client_port: AskClientPort | None = None,
    on_master: Callable[[Master], None] = lambda _master: None,
    on_role: Callable[[Master | Slave], None] = lambda _node: None,
    task_status: trio.TaskStatus[GroupNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node until it is asked to stop, or cancelled; ``nursery.start`` returns it.

    ``on_master`` gets each master before its services run, ``on_role`` each master and slave once
    it serves.  Raises HastoreError if the node cannot start or must not continue.
    """
    if config.is_learner:
        raise ConfigError(
            "an observer takes part in no election, so it needs no coordinator",
            hint="leave the coordinator out, and name the master that it follows",
        )

    def built(master: Master) -> None:
        roles.master_built(master)
        on_master(master)

    async def run(*, task_status: trio.TaskStatus[GroupNode]) -> None:
        await run_group_node(
            config,
            env,
            ask_client_port=ask_client_port,
            on_master=built,
            on_role=on_role,
            coordinator=roles.begin_term,
            role_control=roles,
            directory=roles,
            task_status=task_status,
        )
        nursery.cancel_scope.cancel()  # it was asked to stop

    with as_itself():
        async with trio.open_nursery() as nursery:
            node = await nursery.start(run)
            await nursery.start(roles.run, node)
            task_status.started(node)
