"""The directories of a rebuild: how a rebuilt one replaces the old one, even if it is killed.

::

    DIR/rebuild.tmp/consumequeue          built and synced here
    DIR/consumequeue ──► DIR/consumequeue.old-1700000000000       then two renames,
    DIR/rebuild.tmp/consumequeue ──► DIR/consumequeue             and the old one is removed

The same with ``index``.  The store always has the old one or the new one: after a kill between the
renames ``restore_interrupted`` (at every opening, and at the next rebuild) puts the old one back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.store.index.service import INDEX_DIR
from hastore.store.queue.directory import CONSUME_QUEUE_DIR

if TYPE_CHECKING:
    from hastore.env.interface import Disk

REBUILD_DIR: Final = "rebuild.tmp"
_REBUILT_DIRS: Final = (CONSUME_QUEUE_DIR, INDEX_DIR)
_OLD_MARK: Final = ".old-"


def restore_interrupted(disk: Disk, data_dir: str) -> tuple[str, ...]:
    """Put back directories that a killed rebuild moved away and did not replace; return the names.

    Call it under the store's lock, before anything reads ``consumequeue/`` or ``index/``.
    """
    names = {entry.name for entry in disk.list_dir(data_dir) if entry.is_dir}
    restored = []
    for name in _REBUILT_DIRS:
        old = max((entry for entry in names if entry.startswith(name + _OLD_MARK)), default=None)
        if old is not None and name not in names:
            disk.rename(f"{data_dir}/{old}", f"{data_dir}/{name}")
            restored.append(name)
    return tuple(restored)


def remove_leftovers(disk: Disk, data_dir: str) -> None:
    """Remove directories that were built and not swapped in, or swapped out."""
    for entry in disk.list_dir(data_dir):
        is_old = any(entry.name.startswith(name + _OLD_MARK) for name in _REBUILT_DIRS)
        if entry.is_dir and (is_old or entry.name == REBUILD_DIR):
            disk.remove_tree(f"{data_dir}/{entry.name}")


def swap(disk: Disk, data_dir: str, name: str, now_ms: int) -> None:
    """Replace a directory by the rebuilt one."""
    path = f"{data_dir}/{name}"
    new_path = f"{data_dir}/{REBUILD_DIR}/{name}"
    disk.make_dirs(new_path)
    if disk.exists(path):
        disk.rename(path, f"{path}{_OLD_MARK}{now_ms}")
    disk.rename(new_path, path)
