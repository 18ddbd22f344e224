"""The directory of a slave: opened, and cut where its epochs demand it.

::

    open   lock -> identity -> store (recovery) -> epochs
    cut    lock -> is it still ours? -> cut_store
    revive rebuild the consume queues -> topics.json without the deletions

Only a node of a replica group has an identity and epochs.  Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hastore.broker.node.own_directory import (
    hold_acked,
    identify,
    judge_opening,
    limit_confirm_mark,
    mark_clean_stop,
)
from hastore.config import NO_MASTER
from hastore.epoch_history import EpochHistory
from hastore.errors import DiskError, EpochFileError
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.refused_slaves import RefusedSlavesFile
from hastore.ha.slave_framing import ClassicFraming
from hastore.status import SlaveStart
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.message_store import MessageStore, lock_store
from hastore.store.queue.deleted_topics import store_deleted
from hastore.store.recovery.cut import cut_store
from hastore.store.recovery.log_cut import kept_cuts
from hastore.store.reserve_file import ReserveFile
from hastore.store.tools.rebuild import rebuild
from hastore.trace import logger
from hastore.wire.autoswitch_frames import Handshake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.ha.slave_appender import CutNeededError
    from hastore.store.acked_offset import AckedOffset
    from hastore.store.node_identity import NodeIdentity
    from hastore.store.recovery.log_cut import LogCut
    from hastore.wire.config_tables import DeletedTopic


_log = logger("store")


@attrs.frozen(kw_only=True)
class SlaveStore:
    """An open store, and what its links need of it."""

    message_store: MessageStore
    framing: ClassicFraming | AutoswitchFraming
    identity: NodeIdentity | None  # None: of no replica group
    newest_cut: LogCut | None = None  # that ``trimmed/`` has


def open_slave_store(
    env: Env, config: SlaveConfig, store_host: tuple[str, int], identity: NodeIdentity | None
) -> SlaveStore:
    """Open a slave's directory; ``identity`` is that of an earlier opening by this process.

    Raises what ``MessageStore.open`` and ``NodeIdentity.open`` raise, and EpochFileError.  A node
    that runs already, and follows nobody, serves consumers even if its epochs cannot be read.
    """
    is_start = identity is None
    lock = lock_store(env, config.store)
    on_end, acked = None, None
    try:
        identity = identify(env, config, lock, identity)
        if identity is not None:
            acked = hold_acked(env, lock, identity)
            on_end = judge_opening(env, config, lock, identity, acked, is_start=is_start)
        message_store = MessageStore.open(
            env,
            config.store,
            store_host=store_host,
            needs_queue_offsets=False,
            lock=lock,
            on_end=on_end,
        )
    except BaseException:
        lock.release(clean=False)
        raise
    if identity is None:
        RefusedSlavesFile.load(env, config.store.data_dir).begin_slave()
        return SlaveStore(message_store=message_store, framing=ClassicFraming(), identity=None)
    try:
        mark_clean_stop(lock, identity, message_store.commit_log)
        limit_confirm_mark(identity, message_store.commit_log.max_offset)
        needs_epochs = is_start or config.master != NO_MASTER
        framing = _make_framing(
            env, config, message_store, identity, acked, needs_epochs=needs_epochs
        )
        ReserveFile(env.disk, lock.path).keep(config.store.reserve_size)
    except BaseException:
        message_store.close(clean=False)
        raise
    return SlaveStore(
        message_store=message_store,
        framing=framing,
        identity=identity,
        newest_cut=_newest_cut(env, config.store.data_dir),
    )


def _newest_cut(env: Env, data_dir: str) -> LogCut | None:
    """Return the cut to show; a disk that does not return it is no reason not to start."""
    try:
        cuts = kept_cuts(env.disk, data_dir)
    except DiskError:
        return None
    return cuts[-1] if cuts else None


def _make_framing(
    env: Env,
    config: SlaveConfig,
    message_store: MessageStore,
    identity: NodeIdentity,
    acked: AckedOffset | None,
    *,
    needs_epochs: bool,
) -> AutoswitchFraming:
    log, checkpoint = message_store.commit_log, message_store.checkpoint
    assert config.node_id is not None
    epoch_file = EpochFile(env.disk, f"{log.path}/{EPOCH_FILE}")
    try:
        history = epoch_file.load()
    except EpochFileError:
        if needs_epochs:
            raise
        history = EpochHistory()  # the change of its role has named the fault
    return AutoswitchFraming(
        env=env,
        identity=identity,
        epoch_file=epoch_file,
        history=history,
        handshake=Handshake(
            node_id=config.node_id,
            from_last_file=config.slave_from is SlaveStart.LAST_FILE,
            is_learner=config.is_learner,
        ),
        confirm_offset=min(checkpoint.confirm_offset, log.max_offset),
        acked=acked,
    )


def cut_slave_store(
    env: Env, config: SlaveConfig, identity: NodeIdentity, needed: CutNeededError, reason: str
) -> LogCut | None:
    """Cut a slave's closed store where ``needed`` says.

    Raises what ``cut_store`` raises, and StoreLockedError or WrongNodeError if another process was
    faster.
    """
    lock = lock_store(env, config.store)
    try:
        identify(env, config, lock, identity)
        mark = identity.current.confirm_mark
        acked = hold_acked(env, lock, identity)
        return cut_store(
            env,
            config.store,
            lock,
            needed.physic_offset,
            reason=reason,
            confirm_mark=None if mark is None else mark.offset,
            on_cut=None if acked is None else acked.lower,
        )
    finally:
        lock.release(clean=False)


def revive_topics(
    env: Env, config: SlaveConfig, deleted: Mapping[str, DeletedTopic], dispatched_offset: int
) -> None:
    """Build a closed store's consume queues as if only ``deleted`` were deleted.

    Records from ``dispatched_offset`` on are left to the dispatch.  The deletions come last: until
    then a start deletes the revived queues again.  Records behind damage that no queue names get no
    unit, as at any dispatch: the slave serves without them.  Raises what ``rebuild`` raises.
    """
    path, disk = config.store.data_dir.rstrip("/") or "/", env.disk
    report = rebuild(
        env,
        path,
        config.store,
        consume_queues=True,
        index=False,
        deleted=deleted,
        end_offset=dispatched_offset,
        accept_loss=True,
    )
    if report.set_aside.records:
        _log.warning(
            "records_set_aside",
            records=report.set_aside.records,
            bytes=report.set_aside.size,
            path=path,
            next=f"hastore log verify {path}",
        )
    lock = lock_store(env, config.store)
    try:
        store_deleted(disk, path, deleted)
    finally:
        lock.release(clean=False)
