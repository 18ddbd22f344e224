"""How a node, or a command, gets to its group's coordinator: files read, client opened.

What speaks HTTP is imported here only, when it is needed: a node without a coordinator starts
without it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Final, final

import attrs
import trio

from hastore.access.secret_file import read_password
from hastore.cluster.cluster_node import run_cluster_node
from hastore.cluster.cluster_routes import ClusterRoutes
from hastore.cluster.group_records import Keys
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import CoordinatorFilesStatus, RoleService
from hastore.cluster.route_records import RouteKeys
from hastore.concurrency.service import as_itself
from hastore.concurrency.watched_files import WatchedFiles
from hastore.errors import ConfigError, DiskError
from hastore.tls.contexts import (
    TlsFiles,
    certificate_dates,
    check_dates,
    check_modes,
    client_context,
)
from hastore.trace import logger

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from hastore.broker.node.group_node import GroupNode
    from hastore.broker.node.master import Master
    from hastore.broker.node.slave import Slave
    from hastore.cluster.key_value_store import KeyValueStore
    from hastore.config import CoordinatorConfig, GroupNodeConfig
    from hastore.env.interface import Env, FileStamp
    from hastore.ha.client_port import AskClientPort
    from hastore.tls.contexts import CertificateDates

REQUEST_TIMEOUT_S: Final = 2.0

_log = logger("cluster")


def keys_of(config: GroupNodeConfig) -> Keys:
    """Return the keys of a node's group."""
    assert config.replica_group is not None, "a node of a group"
    coordinator = config.coordinator
    cluster = coordinator.cluster_name or config.cluster
    return Keys.of(coordinator.prefix, cluster, config.replica_group)


def role_service(
    config: GroupNodeConfig,
    env: Env,
    store: KeyValueStore,
    *,
    version: str = "",
    files: CoordinatorFiles | None = None,
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
    return RoleService(env, store, keys, roles, neighbours, files)


@final
@attrs.frozen
class Secrets:
    """How a node proves to etcd who it is, and whom it trusts: one version of its files."""

    context: ssl.SSLContext | None  # None: no endpoint is https
    password: str | None = attrs.field(repr=False)
    dates: CertificateDates | None = None  # of the own certificate, if there is one for etcd


@final
@attrs.define(eq=False)
class CoordinatorFiles(WatchedFiles[Secrets]):
    """The files that ``[cluster]`` names, as a node's own certificate files are watched.

    New connections are made with a new certificate; a new password is used for the next login.
    """

    GONE_HINT: ClassVar[str] = "put it back: [cluster] ca, cert, key and password_file"

    config: CoordinatorConfig
    on_taken: Callable[[Secrets], None] = attrs.field(default=lambda _secrets: None)

    @classmethod
    async def open(cls, config: CoordinatorConfig, env: Env) -> CoordinatorFiles:
        """Read the files.  Raises ConfigError for one that cannot be used."""
        made, stamps = await env.offload.run(lambda: _read_files(config, env))
        return cls(env, made, stamps, config)

    def status(self) -> CoordinatorFilesStatus:
        """Return why the files' present versions are not in force."""
        warning, dates = None, self.current.dates
        if dates is not None:
            try:
                check_dates(dates, self.env.wall_clock.now_s())
            except ConfigError as error:
                warning = str(error)
        return CoordinatorFilesStatus(fault=self._fault, hint=self._hint, warning=warning)

    def _stamps_now(self) -> tuple[FileStamp, ...]:
        return _stamps(self.config, self.env)

    def _read(self) -> tuple[Secrets, tuple[FileStamp, ...]]:
        return _read_files(self.config, self.env)

    def _log_taken(self) -> None:
        self.on_taken(self.current)
        _log.info("coordinator_files_taken", files=_paths_of(self.config))

    def _log_refused(self, reason: str, hint: str | None) -> None:
        _log.warning("coordinator_files_not_taken", reason=reason, next=hint)


def _tls_files(config: CoordinatorConfig) -> TlsFiles:
    return TlsFiles(
        cert=config.cert_file, key=config.key_file, ca=config.ca_file, section="cluster"
    )


def _paths_of(config: CoordinatorConfig) -> tuple[str, ...]:
    passwords = () if config.password_file is None else (config.password_file,)
    return (*_tls_files(config).paths, *passwords)


def _stamps(config: CoordinatorConfig, env: Env) -> tuple[FileStamp, ...]:
    return tuple(env.disk.stamp(path) for path in _paths_of(config))


def _read_files(config: CoordinatorConfig, env: Env) -> tuple[Secrets, tuple[FileStamp, ...]]:
    """Read all files as one version; blocks.  Raises ConfigError."""
    try:
        stamps = _stamps(config, env)
        context = password = dates = None
        files = _tls_files(config)
        if any(each.startswith("https:") for each in config.endpoints):
            context = client_context(files, env.disk, env.wall_clock.now_s())
            dates = None if files.cert is None else certificate_dates(files.cert, env.disk)
        else:  # earlier releases took any file there
            check_modes(files, env.disk)
        if config.password_file is not None:
            password = _password(config.password_file, env)
        is_one_version = _stamps(config, env) == stamps
    except DiskError as error:
        hint = "check the path, its owner and its mode: [cluster] ca, cert, key and password_file"
        raise ConfigError(str(error), hint=hint) from error
    if not is_one_version:
        raise ConfigError(
            f"{', '.join(_paths_of(config))}: one of them changes while they are read",
            hint="write new ones under other names and rename them, the certificate last",
        )
    return Secrets(context, password, dates), stamps


def _password(path: str, env: Env) -> str:
    try:
        return read_password(env.disk, path).decode()
    except UnicodeDecodeError:  # without the error as its cause, which has the bytes
        raise ConfigError(f"the password in {path} is not UTF-8", hint="save it as UTF-8") from None


@asynccontextmanager
async def open_coordinator(
    config: CoordinatorConfig,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
    now: Callable[[], float] = trio.current_time,
    files: CoordinatorFiles | None = None,
) -> AsyncIterator[KeyValueStore]:
    """Open the way to an etcd while the block runs; connections are made when needed.

    ``now`` is the clock of ``ServerTime.heard_at_s``; ``files``: those of the configuration, if
    somebody watches them.  Raises ConfigError if one cannot be used.
    """
    from hastore.cluster.etcd_client import EtcdClient, EtcdConfig  # noqa: PLC0415
    from hastore.env.real import real_env  # noqa: PLC0415 - a node has one

    if files is None:
        files = await CoordinatorFiles.open(config, real_env())
    etcd = EtcdConfig(
        endpoints=config.endpoints,
        context=files.current.context,
        user=config.user,
        password=files.current.password,
        timeout_s=timeout_s,
    )
    async with EtcdClient.open(etcd, now=now) as store:

        def use(secrets: Secrets) -> None:
            store.use(context=secrets.context, password=secrets.password)

        files.on_taken = use
        yield store


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
    files = await CoordinatorFiles.open(config.coordinator, env)
    with as_itself():
        async with (
            open_coordinator(config.coordinator, now=env.wall_clock.boot_s, files=files) as store,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(files.run)
            await run_cluster_node(
                config,
                env,
                role_service(config, env, store, version=version, files=files),
                ask_client_port=ask_client_port,
                on_role=on_role,
                task_status=task_status,
            )
            nursery.cancel_scope.cancel()
