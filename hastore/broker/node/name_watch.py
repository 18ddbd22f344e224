"""Checks once a second that the files of a running node are still at their names.

The sync of the log checks its file's name each time (``env/sync_thread``), so with SYNC_FLUSH no
put is PUT_OK in a file that was lost before.  This watch finds everything else, and an idle node's
loss; a stop looks once more before it is clean.  A lost file is fail-stop, as a failed sync is.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.errors import FileLostError
from hastore.store.watched_disk import WatchedDisk
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hastore.env.interface import Env

CHECK_INTERVAL_S: Final = 0.9  # a loss is found within a second

_log = logger("broker")


@contextlib.contextmanager
def watched_names(env: Env, data_dir: str) -> Iterator[Env]:
    """Return the environment of a node on ``data_dir``, whose disk watches names."""
    disk = WatchedDisk(env.disk, data_dir.rstrip("/") or "/")
    with contextlib.closing(disk):
        yield attrs.evolve(env, disk=disk)


async def watch_names(env: Env, on_lost: Callable[[FileLostError], None] | None = None) -> None:
    """Check the names of a node's files until cancelled.

    ``on_lost`` is called in the step in which a loss is found.  Raises FileLostError.
    """
    disk = env.disk
    assert isinstance(disk, WatchedDisk), "watched_names made the environment"
    while True:
        await trio.sleep(CHECK_INTERVAL_S)
        try:
            await env.offload.run(disk.check)
        except FileLostError as error:
            if on_lost is not None:
                on_lost(error)
            _log.error("file_lost", reason=str(error), next=error.hint)
            raise


def lost_at_stop(env: Env) -> FileLostError | None:
    """Look at the names a last time before a clean stop; blocks.  Return what is lost.

    A loss since the last look would otherwise end in a clean stop, which proves that the directory
    has all.
    """
    disk = env.disk
    assert isinstance(disk, WatchedDisk), "watched_names made the environment"
    try:
        disk.check()
    except FileLostError as error:
        _log.error("file_lost", reason=str(error), next=error.hint)
        return error
    return None
