"""Which group a command is about: flags, else the environment, else the configuration file."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import attrs
import rich_click as click

from hastore.config import REPLICA_GROUP, CoordinatorConfig, GroupNodeConfig, parse_endpoints
from hastore.errors import ConfigError
from hastore.setting import Kind
from hastore_cli.settings.config_file import (
    config_option_of,
    find_config_file,
    keys_named,
    read_config_file,
    read_environment,
    values_of,
)
from hastore_cli.settings.param_types import ParsedType
from hastore_cli.settings.settings import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable


def _parse_name(text: str) -> str:
    if not REPLICA_GROUP.fullmatch(text):
        raise ValueError(f"{text!r} is not 1 to 127 of a-z A-Z 0-9 . _ -")
    return text


_NAME = ParsedType("NAME", _parse_name, ())
URLS = ParsedType(Kind.URLS.value, parse_endpoints, ())


@attrs.frozen(kw_only=True)
class Target:
    """A group at its coordinator; ``group`` None: the only one of the cluster.

    ``ids``: of the group, as configured; None: not known.
    """

    coordinator: CoordinatorConfig
    cluster: str
    group: str | None
    ids: tuple[int, ...] | None

    @property
    def has_coordinator(self) -> bool:
        """Whether there is an etcd to ask."""
        return bool(self.coordinator.endpoints)

    def of_group(self, group: str, why: str) -> Target:
        """Return the target with this group.  Raises ConfigError if another one was named."""
        if self.group not in {None, group}:
            raise ConfigError(f"{why}, not to group {self.group}", hint=f"--group {group}")
        return attrs.evolve(self, group=group)

    def require_coordinator(self) -> None:
        """Raise ConfigError if no etcd is named."""
        if not self.has_coordinator:
            raise ConfigError(
                "no etcd is named",
                hint="--etcd http://127.0.0.1:2379, or HASTORE_CLUSTER_ETCD, or etcd in"
                " [cluster] of the file (-c)",
            )


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a group; the command gets a ``target``."""

    @functools.wraps(command)  # with the options that it has already
    def run(
        *args: Any,
        etcd: tuple[str, ...] | None,
        cluster: str | None,
        group: str | None,
        config_flag: str | None,
        **kwargs: Any,
    ) -> Any:
        target = target_of(etcd, cluster, group, config_flag)
        return command(*args, target=target, **kwargs)

    for option in reversed(
        (
            click.option(
                "--etcd",
                type=URLS,
                metavar="URL,URL",
                envvar=["HASTORE_CLUSTER_ETCD", "HASTORE_CLUSTER_ENDPOINTS"],
                show_envvar=True,
                help="The coordinator: URLs of etcd servers.",
            ),
            click.option(
                "--cluster",
                type=_NAME,
                envvar="HASTORE_CLUSTER_NAME",
                show_envvar=True,
                metavar="NAME",
                help="The cluster's name. [default: DefaultCluster]",
            ),
            click.option(
                "--group",
                type=_NAME,
                envvar="HASTORE_NODE_GROUP",
                show_envvar=True,
                metavar="NAME",
                help="The replica group. [default: the only one of the cluster]",
            ),
            config_option_of("A node's configuration, for [cluster] and [node]."),
        )
    ):
        run = option(run)
    return run


def target_of(
    etcd: tuple[str, ...] | None, cluster: str | None, group: str | None, config_flag: str | None
) -> Target:
    """Return the group that is meant.  Raises ConfigError that names the place of a mistake."""
    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    places = PLACES["node"]
    with keys_named(places, found, "coordinator"):
        coordinator = CoordinatorConfig(**values_of("coordinator", places, found))
    if etcd is not None:
        coordinator = attrs.evolve(coordinator, endpoints=etcd)
    node = values_of("", places, found)
    default = str(attrs.fields(GroupNodeConfig).cluster.default)
    named: str | None = node.get("cluster")
    return Target(
        coordinator=coordinator,
        cluster=cluster or coordinator.cluster_name or named or default,
        group=group or node.get("replica_group"),
        ids=node.get("group_ids"),
    )
