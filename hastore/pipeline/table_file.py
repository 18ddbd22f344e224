"""A DataFrame as a Parquet table in a directory of results: all of it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.env.real import real_env

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hastore.env.interface import Disk


def write_table(frame: DataFrame, folder: str, name: str) -> str:
    """Write ``folder/name``, instead of what stands there; gives the path.

    Under a temporary name first, so that nobody takes half a table for one.
    """
    disk = real_env().disk
    disk.make_dirs(folder)
    path = f"{folder.rstrip('/')}/{name}"
    part = f"{folder.rstrip('/')}/.{name}.part"
    frame.write.mode("overwrite").option("compression", "zstd").parquet(part)
    _sync(disk, part)
    if disk.exists(path):
        disk.remove_tree(path)
    disk.rename(part, path)
    disk.sync_dir(folder)
    return path


def _sync(disk: Disk, folder: str) -> None:
    for entry in disk.list_dir(folder):
        file = disk.open_file(f"{folder}/{entry.name}", writable=True)
        try:
            file.sync()
        finally:
            file.close()
    disk.sync_dir(folder)
