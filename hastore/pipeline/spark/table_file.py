"""Write a DataFrame as a Parquet table, atomically."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hastore.env.real import real_env
from hastore.errors import DiskError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hastore.env.interface import Disk

_GLOB_SIGNS: Final = re.compile(r"([][{}*?\\])")


def local_uri(path: str) -> str:
    """Return a local path as a URI: Spark's default file system may be another, such as HDFS."""
    return f"file://{Path(path).absolute()}"


def source_uri(path: str) -> str:
    """Return the URI of a path to read, with its glob characters escaped."""
    return local_uri(_GLOB_SIGNS.sub(r"\\\1", path))


def write_table(frame: DataFrame, folder: str, name: str) -> str:
    """Write ``folder/name``, replacing a table that is there, and return its path.

    The table gets its name when it is complete; if writing fails, the part is removed.  Raises
    DiskError.
    """
    disk = real_env().disk
    folder = folder.rstrip("/") or "/"
    disk.make_dirs(folder)
    path, part = f"{folder}/{name}", f"{folder}/.{name}.part"
    try:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(local_uri(part))
        _sync(disk, part)
    except BaseException:
        with contextlib.suppress(DiskError):
            disk.remove_tree(part)
        raise
    old = f"{folder}/.{name}.old"  # holds the old table if the process ends between the renames
    if disk.exists(path):
        if disk.exists(old):
            disk.remove_tree(old)
        disk.rename(path, old)
    disk.rename(part, path)
    disk.sync_dir(folder)
    if disk.exists(old):
        disk.remove_tree(old)
    return path


def _sync(disk: Disk, folder: str) -> None:
    for entry in disk.list_dir(folder):
        with contextlib.closing(disk.open_file(f"{folder}/{entry.name}", writable=True)) as file:
            file.sync()
    disk.sync_dir(folder)
