"""How full the file systems of a store are: one figure for each, the fullest first.

``commitlog/``, ``consumequeue/``, ``index/`` and ``config/`` may be links or mounts, so each may be
on a file system of its own.  Whoever refuses puts, deletes files or reports figures asks here, so
all of them speak of the same disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import DiskError
from hastore.store.log.store_directory import COMMIT_LOG_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hastore.env.interface import Disk, DiskSpace

DATA_DIR: Final = "."  # the data directory itself, among the names below it
CONFIG_DIR: Final = "config"
# The directories of which deleting old files of the log makes room.
_CLEANED: Final = frozenset({COMMIT_LOG_DIR, "consumequeue", "index"})
_DIRECTORIES: Final = (COMMIT_LOG_DIR, "consumequeue", "index", CONFIG_DIR)


@attrs.frozen
class DiskUsage:
    """One file system, and the directories of the store that are on it."""

    directories: tuple[str, ...]  # names below the data directory, which itself is ``DATA_DIR``
    space: DiskSpace

    @property
    def is_cleaned(self) -> bool:
        """Whether deleting old files of the log makes room on it."""
        return not _CLEANED.isdisjoint(self.directories)


def disk_usages(disk: Disk, data_dir: str) -> tuple[DiskUsage, ...]:
    """Return the file systems of a store, the fullest first.

    One that cannot be queried is left out, unless the data directory itself or the log is on it:
    the others still count.  Raises DiskError.
    """
    spaces: dict[int, DiskSpace] = {}
    names: dict[int, list[str]] = {}
    for name in (DATA_DIR, *_DIRECTORIES):
        path = data_dir if name == DATA_DIR else f"{data_dir}/{name}"
        if name != DATA_DIR and not disk.exists(path):
            continue
        try:
            space = disk.space(path)
        except DiskError:
            if name in {DATA_DIR, COMMIT_LOG_DIR}:
                raise
            continue
        spaces.setdefault(space.device, space)
        names.setdefault(space.device, []).append(name)
    usages = [DiskUsage(tuple(names[device]), space) for device, space in spaces.items()]
    return tuple(
        sorted(usages, key=lambda usage: (-usage.space.used_ratio, usage.space.free_bytes))
    )


def disk_name(directories: Sequence[str]) -> str:
    """Return what to call a file system in a sentence: by what of the store is on it.

    >>> disk_name((".", "commitlog", "consumequeue", "index", "config"))
    'disk'
    >>> disk_name(("commitlog",))
    'disk of commitlog'
    """
    if DATA_DIR in directories and COMMIT_LOG_DIR in directories:
        return "disk"  # most of the store, as a rule all of it
    named: Iterable[str] = (name for name in directories if name != DATA_DIR)
    return f"disk of {', '.join(named) or 'the data directory'}"
