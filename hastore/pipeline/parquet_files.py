"""Parquet directories that are there whole, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.env.real import real_env
from hastore.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_parquet(table: DataFrame, path: str) -> str:
    """Write a table under a temporary name, sync it, then rename it; gives the path.

    Raises ConfigError where something is there already, DiskError.
    """
    disk = real_env().disk
    path = path.rstrip("/")
    if disk.exists(path):
        raise ConfigError(f"{path} is there already", hint="name a directory that is not there yet")
    parent, _, name = path.rpartition("/")
    parent = parent or ("/" if path.startswith("/") else ".")
    disk.make_dirs(parent)
    temporary = f"{parent}/.{name}.unfinished"
    try:
        table.write.mode("overwrite").option("compression", "zstd").parquet(temporary)
        for entry in disk.list_dir(temporary):
            disk_file = disk.open_file(f"{temporary}/{entry.name}", writable=False)
            try:
                disk_file.sync()
            finally:
                disk_file.close()
        disk.sync_dir(temporary)
        disk.rename(temporary, path)
    except BaseException:
        disk.remove_tree(temporary)
        raise
    disk.sync_dir(parent)
    return path
