"""Whether a directory is this node's: its identity, beside the lock.

::

    open        lock -> identity -> do the epochs fit it? -> acked offset -> store
    open again  lock -> is it still ours? -> acked offset -> store
    end found   a start: has the log kept all that it acknowledged?  durable before any change
    opened      the confirm mark is not above the log's end

Only a node of a replica group has an identity.  Everything here blocks.

Invariant: between two openings by one process the identity stays the same, or the second fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.errors import DiskError, EpochFileError, StoreLockedError, WrongNodeError
from hastore.status import FlushDiskType, HAProtocol
from hastore.store.acked_offset import AckedOffset
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, Opening, read_identity
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.config import NodeConfig
    from hastore.env.interface import Disk, Env
    from hastore.store.commit_log import CommitLog
    from hastore.store.node_identity import Identity
    from hastore.store.recovery.log_loader import FoundEnd
    from hastore.store.store_lock import StoreLock

_log = logger("broker")


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
        randomness=env.randomness,
    )
    _check_epochs(env.disk, lock.path, opened.current)
    return opened


def hold_acked(env: Env, lock: StoreLock, identity: NodeIdentity) -> AckedOffset | None:
    """Hold, with the lock, the number up to which this directory's node has acknowledged its log.

    None if this machine keeps none.  Raises WrongNodeError while another process holds it.
    """
    try:
        acked = AckedOffset.hold(env, identity)
    except StoreLockedError as error:
        raise WrongNodeError(
            f"{lock.path} is a copy of a directory whose node runs on this machine:"
            f" {identity.current} has one directory",
            path=lock.path,
            hint="give this node another id and an empty directory, or stop the other process",
        ) from error
    if acked is not None:
        lock.at_release(lambda _clean: acked.close())
    return acked


def judge_opening(
    env: Env,
    config: NodeConfig,
    lock: StoreLock,
    identity: NodeIdentity,
    acked: AckedOffset | None,
    *,
    is_start: bool,
) -> Callable[[FoundEnd], None]:
    """Return what takes the log's end as an opening has found it, before anything is changed.

    A start records, durably, whether the log has kept all that it acknowledged.  A later opening
    by the same process raises DiskError if it has not: nothing says what else is gone.  It may
    acknowledge more, so where the log was closed for it proves nothing.
    """

    def judge(found: FoundEnd) -> None:
        kept = None if acked is None else acked.kept()
        if identity.has_acked_offset and kept is not None and found.lacks(kept):
            raise DiskError(
                f"the log in {lock.path} ends at {found.end_offset}, and this process had"
                f" acknowledged up to {kept}: its files have changed while they were closed",
                path=lock.path,
                hint="look at the disk, then start this node again: it copies its master's log",
            )
        if is_start:
            before = identity.current
            identity.opened(
                Opening(
                    end_offset=found.end_offset,
                    kept_offset=found.kept_offset,
                    lacks=found.lacks,
                    has_intact_rest=found.intact_offset is not None,
                    last_exit_ok=lock.last_exit_ok,
                    boot_id=env.boot_id,
                    acked_offset=kept,
                    keeps_acked=acked is not None,
                    acks_flushed=config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                )
            )
            if identity.current.kept_since > before.kept_since:
                _log.warning("log_in_doubt", reason=identity.current.doubt, path=lock.path)
        else:
            identity.runs()
        if acked is not None:
            # After the identity: from here on the bytes after the end may be gone.
            offset = found.kept_offset if kept is None else min(kept, found.kept_offset)
            if identity.has_acked_offset:
                acked.begin(offset)
            else:
                acked.prepare(offset)

    return judge


def mark_clean_stop(lock: StoreLock, identity: NodeIdentity, log: CommitLog) -> None:
    """Let a clean stop record where the log ends, last of all.

    A stop that cannot record it is not clean for the next start, which looks for other evidence.
    """

    def record(*, is_clean: bool) -> None:
        if not is_clean:
            return
        try:
            identity.stopped(log.flushed_offset)
        except DiskError as error:
            _log.warning("close_failed", reason=str(error), next=error.hint)

    lock.at_release(lambda is_clean: record(is_clean=is_clean))


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
