"""Flags, environment and file → a MasterConfig or a SlaveConfig, and how to log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore_cli.app.logging_setup import LogConfig
from hastore_cli.app.terminal import say
from hastore_cli.settings.config_file import (
    Resolved,
    build_fields,
    find_config_file,
    near_miss_variables,
    require,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore_cli.settings.setting import Setting


@attrs.frozen(kw_only=True)
class NodeSettings:
    """What a node is started with; ``found`` has every value that is not a default."""

    node: MasterConfig | SlaveConfig
    log: LogConfig
    found: Mapping[Setting, Resolved]


@attrs.frozen
class AllFields:
    """A node's fields and ``log`` side by side, for ``--check-config``."""

    _settings: NodeSettings

    def __getattr__(self, name: str) -> object:
        return self._settings.log if name == "log" else getattr(self._settings.node, name)


def node_settings(kind: str, flags: Mapping[str, object], config_flag: str | None) -> NodeSettings:
    """Resolve and build; every mistake is a ConfigError that says where it stands."""
    file = find_config_file(config_flag, os.environ)
    for name, meant in near_miss_variables(os.environ):
        say(f"note: {name} is no setting and is ignored; did you mean {meant}?")
    found = resolve(kind, flags=flags, environ=os.environ, file=file)
    require(found, "store.data_dir", *(["master"] if kind == "slave" else []))
    # Each value was checked by its kind; the classes check what is between them.
    parts: dict[str, dict[str, Any]] = build_fields(found)
    store = StoreConfig(**parts["store"])
    ha = HAConfig(**parts["ha"])
    remoting = RemotingConfig(**parts["remoting"])
    node_class = MasterConfig if kind == "master" else SlaveConfig
    node = node_class(store=store, ha=ha, remoting=remoting, **parts[""])
    return NodeSettings(node=node, log=LogConfig(**parts["log"]), found=found)
