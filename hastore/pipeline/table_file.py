"""A DataFrame as a Parquet table in a directory of results: all of it, or none."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from hastore.env.real import real_env
from hastore.errors import DiskError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hastore.env.interface import Disk


def write_table(frame: DataFrame, folder: str, name: str) -> str:
    """Write ``folder/name``, instead of what stands there; gives the path.

    Under a temporary name first, so that nobody takes half a table for one; what was written of a
    table that failed goes away.  Raises DiskError.
    """
    disk = real_env().disk
    folder = folder.rstrip("/") or "/"
    disk.make_dirs(folder)
    path, part = f"{folder}/{name}", f"{folder}/.{name}.part"
    try:
        # Spark's own file system may be another one; the workers see this one, too.
        where = f"file://{Path(part).absolute()}"
        frame.write.mode("overwrite").option("compression", "zstd").parquet(where)
        _sync(disk, part)
    except BaseException:
        with contextlib.suppress(DiskError):
            disk.remove_tree(part)
        raise
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
