"""Whether a directory is this node's: its identity, beside the lock.

::

    open        lock -> identity -> do the epochs fit it? -> store
    open again  lock -> is it still ours? -> store
    opened      the confirm mark is not above the log's end

Only a node of a replica group has an identity.  Everything here blocks.

Invariant: between two openings by one process the identity stays the same, or the second fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.errors import EpochFileError, WrongNodeError
from hastore.status import FlushDiskType, HAProtocol
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, read_identity

if TYPE_CHECKING:
    from hastore.config import NodeConfig
    from hastore.env.interface import Disk, Env
    from hastore.store.node_identity import Identity
    from hastore.store.store_lock import StoreLock


def identify(
    env: Env, config: NodeConfig, lock: StoreLock, identity: NodeIdentity | None
) -> NodeIdentity | None:
    """Return the identity of a locked directory; None for a node of no replica group.

    ``identity`` is that of an earlier opening by this process; without one, this is a start.
    Raises WrongNodeError, EpochFileError, and what ``NodeIdentity.open`` raises.
    """
    if identity is not None:
        if not identity.is_as_stored():
            raise WrongNodeError(
                f"{lock.path}: {IDENTITY_FILE} has changed while this process had the store closed",
                path=lock.path,
                hint="start this node again",
            )
        return identity
    present = read_identity(env.disk, lock.path)
    if config.ha.protocol is HAProtocol.CLASSIC:
        if present is None:
            return None
        raise WrongNodeError(
            f"{lock.path} belongs to {present}, whose log has epochs, and the classic protocol"
            " knows none",
            path=lock.path,
            hint=f"start it with --ha-protocol autoswitch --node-id {present.node_id}"
            f" --node-group {present.group}, or give this node another directory",
        )
    assert config.node_id is not None
    assert config.replica_group is not None
    opened = NodeIdentity.open(
        env.disk,
        lock.path,
        node_id=config.node_id,
        group=config.replica_group,
        last_exit_ok=lock.last_exit_ok,
        boot_id=env.boot_id,
        acks_flushed=config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        randomness=env.randomness,
    )
    _check_epochs(env.disk, lock.path, opened.current)
    return opened


def limit_confirm_mark(identity: NodeIdentity, end_offset: int) -> None:
    """Lower a confirm mark above the end of the log, which has just been opened.

    What is gone is copied again, and the log goes on: bytes that nobody has confirmed would be
    below the mark, and could never be cut.
    """
    mark = identity.current.confirm_mark
    if mark is not None and mark.offset > end_offset:
        identity.lower_confirm_mark(attrs.evolve(mark, offset=end_offset))


def _check_epochs(disk: Disk, data_dir: str, identity: Identity) -> None:
    """Raise EpochFileError if the log's epochs are damaged, or later than all that was seen.

    An epoch is seen, durably, before the log has it.  Another node's file, or a restored one,
    would let a link cut what this log has, or let a master have its slaves cut theirs.
    """
    file = EpochFile(disk, f"{data_dir}/{EPOCH_FILE}")
    last = file.load().last_epoch
    if last is not None and last > identity.seen_epoch:
        raise EpochFileError(
            f"{file.path} ends with epoch {last}, and {IDENTITY_FILE} has seen none after"
            f" {identity.seen_epoch}: one of the two is older, or another node's",
            path=file.path,
            hint="keep this directory, and give the node an empty one: it copies its master's log",
        )
