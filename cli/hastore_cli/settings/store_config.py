"""The ``[store]`` settings for commands on a directory: file and environment, as its node has them.

Sizes of index files and the delay levels are not written in a store; who has changed them in the
node's configuration names the same file here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from hastore.config import StoreConfig

if TYPE_CHECKING:
    from collections.abc import Callable


def config_option_of(
    help_text: str, *, panel: str | None = None
) -> Callable[..., Callable[..., Any]]:
    """Make the option ``-c``, given to the command as ``config_flag``."""
    return click.option(
        "-c",
        "--config",
        "config_flag",
        type=click.Path(),
        metavar="FILE.toml",
        envvar="HASTORE_CONFIG",
        show_envvar=True,
        help=help_text,
        panel=panel,
    )


config_option: Final = config_option_of(
    "The node's configuration: what its [store] says of files, delays and expiry."
)


def read_store_config(data_dir: str, config_flag: str | None) -> StoreConfig:
    """The store's configuration; every mistake is a ConfigError that says where it stands."""
    from hastore_cli.settings.config_file import (
        find_config_file,
        read_config_file,
        read_environment,
        values_of,
    )
    from hastore_cli.settings.settings import PLACES

    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    fields = values_of("store", PLACES["master"], found)
    return StoreConfig(**{**fields, "data_dir": data_dir})
