"""What ``reinit`` and ``adopt`` do with a directory on this machine, on which no node runs.

::

    reinit   DIR ──rename──▶ DIR.before-20261124T161500Z     and an empty DIR in its place
    adopt    DIR gets epochFileCheckpoint (epoch 1 from 0 on), then identity.json

Nothing is ever removed.  Both hold the directory's lock while they change it.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hastore.env.real import real_env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import DiskError, NotAStoreError, OperationRefusedError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import NodeIdentity, draw_uuid, read_identity
from hastore.store.store_lock import ABORT_FILE, LOCK_FILE, StoreLock
from hastore.store.tools.log_directory import find_log
from hastore_cli.app.output import wall_clock_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hastore.store.node_identity import Identity


def identity_of(directory: Path) -> Identity:
    """Return which node a directory belongs to.  Raises NotAStoreError, IdentityFileError."""
    _check_is_directory(directory)
    identity = read_identity(real_env().disk, str(directory))
    if identity is None:
        raise NotAStoreError(
            f"{directory} belongs to no node of a replica group: it has no identity.json",
            path=str(directory),
            hint="name the --data directory of the node, on its machine",
        )
    return identity


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory's lock while the block runs.  Raises StoreLockedError if a node runs.

    Makes no lock file: without one no node has ever run there.
    """
    if not (directory / LOCK_FILE).exists():
        yield
        return
    lock = StoreLock.take(real_env().disk, str(directory))
    try:
        yield
    finally:
        lock.release(clean=False)


# -- reinit --------------------------------------------------------------------------------------


def place_beside(directory: Path) -> Path:
    """Return where a directory is to be kept.  Raises OperationRefusedError if it cannot be moved.

    Nothing is changed.
    """
    kind = real_env().disk.cannot_move(str(directory))
    if kind is not None:
        raise OperationRefusedError(
            f"{directory} is {kind}, and cannot be kept under another name",
            hint="hastore cluster remove ID, move its files elsewhere, and start the node again",
        )
    if not os.access(directory.parent, os.W_OK | os.X_OK):
        raise OperationRefusedError(
            f"{directory} is to be kept beside itself, and {directory.parent} cannot be written",
            hint="run it as a user who may write there",
        )
    now = datetime.fromtimestamp(wall_clock_ms() / 1000, UTC)
    return directory.with_name(f"{directory.name}.before-{now:%Y%m%dT%H%M%S}Z")


def set_aside(directory: Path, kept: Path) -> None:
    """Give a directory another name, and make an empty one, durably.  Raises DiskError."""
    try:
        found = directory.stat()
        if kept.exists():
            raise FileExistsError(17, os.strerror(17), str(kept))
        directory.rename(kept)
        directory.mkdir(exist_ok=True)
        directory.chmod(found.st_mode & 0o7777)
        if (found.st_uid, found.st_gid) != (os.getuid(), os.getgid()):
            os.chown(directory, found.st_uid, found.st_gid)
        real_env().disk.sync_dir(str(directory.parent))
    except OSError as error:
        raise DiskError(
            f"cannot keep {directory} as {kept}: {error.strerror}",
            path=str(directory),
            hint="its node has left the SyncStateSet: move the directory yourself, then start it",
        ) from error


# -- adopt ---------------------------------------------------------------------------------------


def check_adoptable(directory: Path) -> int:
    """Check that a directory holds a log of no group, closed cleanly; return the log's first byte.

    Raises NotAStoreError, OperationRefusedError.
    """
    _check_is_directory(directory)
    disk, path = real_env().disk, str(directory)
    identity = read_identity(disk, path)
    if identity is not None:
        raise OperationRefusedError(
            f"{directory} belongs to {identity} already",
            hint="start the group's nodes with --etcd, then: hastore cluster init --force",
        )
    log = find_log(disk, path)
    log.refuse_unfinished_cut()
    if not log.files or log.root is None:
        raise OperationRefusedError(
            f"{directory} holds no log",
            hint="a node with an empty directory needs no adopt: hastore node … --etcd URL",
        )
    if any((directory / name).exists() for name in (EPOCH_FILE, f"{EPOCH_FILE}.bak")):
        raise OperationRefusedError(
            f"{directory} has epochs, but no identity.json: it is of a RocketMQ broker in"
            " controller mode, or was copied in part",
            hint="let that group's master be followed by hastore nodes with empty directories;"
            f" after an adopt that was cut short: remove {EPOCH_FILE}, and adopt it again",
        )
    if (directory / ABORT_FILE).exists():
        raise OperationRefusedError(
            f"{directory} was not closed cleanly: its log's end has not been checked",
            hint="start its node as before, let its slaves catch up, and stop it by SIGTERM",
        )
    return log.min_offset


def adopt_directory(directory: Path, node_id: int, group: str) -> tuple[Identity, str]:
    """Give the log to a node as epoch 1; return the node's identity and token.  Raises DiskError.

    The token is recorded before the coordinator has it, as at a start of the node.
    """
    env, path = real_env(), str(directory)
    history = EpochHistory((EpochEntry(1, 0),))
    EpochFile(env.disk, f"{path}/{EPOCH_FILE}").store(history)
    opened = NodeIdentity.open(
        env.disk,
        path,
        node_id=node_id,
        group=group,
        last_exit_ok=True,
        boot_id=env.boot_id,
        randomness=env.randomness,
        adopt=True,
    )
    token = draw_uuid(env.randomness)
    opened.claim(None, token)
    return opened.current, token


def _check_is_directory(directory: Path) -> None:
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "no such directory"
        raise NotAStoreError(
            f"{directory}: {what}",
            path=str(directory),
            hint="name the --data directory of the node, on its machine",
        )
