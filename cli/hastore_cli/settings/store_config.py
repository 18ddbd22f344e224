"""The ``[store]`` settings for commands on a directory: file and environment, as its node has them.

Sizes of index files and the delay levels are not written in a store; who has changed them in the
node's configuration names the same file here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import rich_click as click

from hastore.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Callable


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-c``, given to the command as ``config_flag``."""
    return click.option(
        "-c",
        "--config",
        "config_flag",
        type=click.Path(),
        metavar="FILE.toml",
        envvar="HASTORE_CONFIG",
        show_envvar=True,
        help="The node's configuration: what its [store] says of files, delays and expiry.",
    )(command)


def read_store_config(data_dir: str, config_flag: str | None) -> StoreConfig:
    """Give the store's configuration; every mistake is a ConfigError that says where it stands."""
    from hastore_cli.settings.config_file import (
        build_fields,
        find_config_file,
        read_config_file,
        read_environment,
    )

    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    fields: dict[str, Any] = build_fields(found)["store"]
    return StoreConfig(**{**fields, "data_dir": data_dir})
