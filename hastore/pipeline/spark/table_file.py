"""A DataFrame as a Parquet table in a directory of results: all of it, or none."""

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
    """Give a path as Spark is told of it: its own file system may be another one, such as HDFS."""
    return f"file://{Path(path).absolute()}"


def source_uri(path: str) -> str:
    """Return a path that Spark is to read, which takes such paths for globs."""
    return local_uri(_GLOB_SIGNS.sub(r"\\\1", path))


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
        frame.write.mode("overwrite").option("compression", "zstd").parquet(local_uri(part))
        _sync(disk, part)
    except BaseException:
        with contextlib.suppress(DiskError):
            disk.remove_tree(part)
        raise
    old = f"{folder}/.{name}.old"  # where the process ends between the two, it is what was
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
        file = disk.open_file(f"{folder}/{entry.name}", writable=True)
        try:
            file.sync()
        finally:
            file.close()
    disk.sync_dir(folder)
