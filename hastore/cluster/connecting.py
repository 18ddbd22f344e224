"""How a node, or a command, gets to its group's coordinator: files read, client opened.

What speaks HTTP is imported here only, when it is needed: a node without a coordinator starts
without it.
"""

from __future__ import annotations

import os
import stat
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from hastore.cluster.cluster_node import run_cluster_node
from hastore.cluster.cluster_routes import ClusterRoutes
from hastore.cluster.group_records import Keys
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import RoleService
from hastore.cluster.route_records import RouteKeys
from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.config import CoordinatorConfig, GroupNodeConfig
    from hastore.env.interface import Env
    from hastore.ha.client_port import AskClientPort

REQUEST_TIMEOUT_S: Final = 2.0
_PASSWORD_SIZE_MAX: Final = 4_096
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def keys_of(config: GroupNodeConfig) -> Keys:
    """Return the keys of a node's group."""
    assert config.replica_group is not None, "a node of a group"
    coordinator = config.coordinator
    cluster = coordinator.cluster_name or config.cluster
    return Keys.of(coordinator.prefix, cluster, config.replica_group)


def role_service(
    config: GroupNodeConfig, env: Env, store: KeyValueStore, *, version: str = ""
) -> RoleService:
    """Return what lets the coordinator decide on a node's role."""
    ids = config.group_ids
    roles = RoleConfig(
        ttl_s=config.coordinator.ttl_ms // 1_000,
        priority=config.coordinator.priority,
        initial_ids=None if ids is None else frozenset(ids),
        acks=str(config.ha.in_sync_replicas),
        failsafe=config.coordinator.failsafe,
        hand_over_after_s=config.coordinator.hand_over_after_ms / 1000,
        min_in_sync_replicas=config.ha.min_in_sync_replicas,
        advertised_host=config.coordinator.advertised_host,
        version=version,
        key_file=config.access.key_file,
    )
    keys = keys_of(config)
    assert config.replica_group is not None, "a node of a group"
    neighbours = ClusterRoutes(store, RouteKeys.of(keys.base), config.replica_group)
    return RoleService(env, store, keys, roles, neighbours)


@asynccontextmanager
async def open_coordinator(
    config: CoordinatorConfig,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    now: Callable[[], float] = trio.current_time,
) -> AsyncIterator[KeyValueStore]:
    """Open the way to an etcd while the block runs; connections are made when needed.

    ``now`` is the clock of ``ServerTime.heard_at_s``.  Raises ConfigError if a file cannot be used.
    """
    password = None if config.password_file is None else read_password(config.password_file)
    for path in (config.ca_file, config.cert_file, config.key_file):
        if path is not None:
            _check_readable(path)
    from hastore.cluster.etcd_client import EtcdClient, EtcdConfig  # noqa: PLC0415

    etcd = EtcdConfig(
        endpoints=config.endpoints,
        ca=config.ca_file,
        cert=config.cert_file,
        key=config.key_file,
        user=config.user,
        password=password,
        timeout_s=timeout_s,
    )
    async with EtcdClient.open(etcd, now=now) as store:
        yield store


def _check_readable(path: str) -> None:
    if not Path(path).is_file() or not os.access(path, os.R_OK):
        raise ConfigError(f"cannot read {path}", hint="check [cluster] ca, cert and key")


def read_password(path: str) -> str:
    """Return the first line of a password file.  Raises ConfigError if others may read it."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - its mode is that of what is open
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & _OTHERS:
                raise ConfigError(
                    f"{path} has mode {mode:04o}: others may read the password",
                    hint=f"chmod 600 {path}",
                )
            text = file.read(_PASSWORD_SIZE_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"cannot read {path}: {reason}", hint="check [cluster] password_file"
        ) from error
    password = text.partition("\n")[0].removesuffix("\r")
    if not password or len(text) > _PASSWORD_SIZE_MAX:
        raise ConfigError(f"{path} has no password in its first line", hint="write it there")
    return password


async def run_node_by_etcd(
    config: GroupNodeConfig,
    env: Env,
    *,
    ask_client_port: AskClientPort | None = None,
    on_role: Callable[[Master | Slave], None] = lambda _node: None,
    version: str = "",
    task_status: trio.TaskStatus[GroupNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a node whose configuration has endpoints: ``run_cluster_node``, with a client of its own.

    Raises ConfigError as ``open_coordinator`` does, before the node starts.
    """
    async with open_coordinator(config.coordinator, now=env.wall_clock.boot_s) as store:
        await run_cluster_node(
            config,
            env,
            role_service(config, env, store, version=version),
            ask_client_port=ask_client_port,
            on_role=on_role,
            task_status=task_status,
        )
