"""The directories of a rebuild: how a rebuilt one replaces the old one, even if it is killed.

::

    DIR/rebuild.tmp/consumequeue          built and synced here
    DIR/consumequeue ──► DIR/consumequeue.old-1700000000000       then two renames,
    DIR/rebuild.tmp/consumequeue ──► DIR/consumequeue             and the old one is removed

The same with ``index``.  A mount point cannot be renamed, and of a link only the link would be: so
``refuse_immovable`` comes before all work.  The store always has the old one or the new one: after
a kill between the renames ``restore_interrupted`` (at every opening, and at the next rebuild) puts
the old one back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.errors import StoreError
from hastore.store.index.service import INDEX_DIR
from hastore.store.queue.directory import CONSUME_QUEUE_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.env.interface import Disk

REBUILD_DIR: Final = "rebuild.tmp"
_REBUILT_DIRS: Final = (CONSUME_QUEUE_DIR, INDEX_DIR)
_OLD_MARK: Final = ".old-"


class ImmovableDirectoryError(StoreError):
    """A directory is a mount point or a link, so it cannot be replaced as a whole."""

    exit_code = 6


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


def refuse_immovable(disk: Disk, data_dir: str, names: Iterable[str]) -> None:
    """Raise ImmovableDirectoryError for a directory that a rebuilt one cannot replace."""
    for name in names:
        path = f"{data_dir}/{name}"
        kind = disk.cannot_move(path)
        if kind is not None:
            taken_away = "unmount it" if kind == "a mount point" else "remove the link"
            raise ImmovableDirectoryError(
                f"nothing changed: {path} is {kind}, which a rebuilt directory cannot replace",
                path=path,
                hint=f"{taken_away}, rebuild, and move the new {name}/ to its file system",
            )


def swap(disk: Disk, data_dir: str, name: str, now_ms: int) -> None:
    """Replace a directory by the rebuilt one."""
    path = f"{data_dir}/{name}"
    new_path = f"{data_dir}/{REBUILD_DIR}/{name}"
    disk.make_dirs(new_path)
    if disk.exists(path):
        disk.rename(path, f"{path}{_OLD_MARK}{now_ms}")
    disk.rename(new_path, path)
