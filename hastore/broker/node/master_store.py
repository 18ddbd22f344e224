"""The directory of a master: opened, and in a replica group made the log of a new epoch.

::

    lock -> identity -> store (recovery) -> epochs -> SyncStateSet
                                               │
            seen epoch := e ─▶ entries from the log's end on dropped, (e, end) appended ─▶ members

An epoch has one master and one start of its process: every opening begins a new one.  Everything
here blocks.

Invariant: the entry of an epoch is durable before its first put, and its number is above all that
this directory has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.broker.node.own_directory import (
    hold_acked,
    identify,
    judge_opening,
    limit_confirm_mark,
    mark_clean_stop,
)
from hastore.epoch_history import ENTRIES_MAX, EPOCH_JUMP_MAX, EPOCH_MAX, EpochEntry
from hastore.errors import ConfigError, EpochFileError, StaleEpochError
from hastore.ha.refused_slaves import RefusedSlavesFile
from hastore.ha.set_rules import nodes_text
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.message_store import MessageStore, lock_store
from hastore.store.reserve_file import ReserveFile
from hastore.store.sync_state_file import SYNC_STATE_FILE, StoredSet, SyncStateFile
from hastore.trace import logger

if TYPE_CHECKING:
    from hastore.config import MasterConfig
    from hastore.env.interface import Env
    from hastore.epoch_history import EpochHistory
    from hastore.store.acked_offset import AckedOffset
    from hastore.store.commit_log import CommitLog
    from hastore.store.node_identity import NodeIdentity

_log = logger("broker")


@final
@attrs.frozen(kw_only=True)
class Promotion:
    """The wish that a node becomes its group's master.

    ``epoch`` None: the next one after all that it has seen.  ``members`` None: those that it named
    when it was master last, if nobody was master since; else all configured ids; else itself.
    """

    epoch: int | None = None
    members: frozenset[int] | None = None
    # The ids of the group as its coordinator has them; None: the configured ones.
    group_ids: frozenset[int] | None = None


@final
@attrs.frozen(kw_only=True)
class Term:
    """The time of one master of a replica group: its epoch, and what it begins with."""

    identity: NodeIdentity
    epochs: EpochHistory  # the last one is this master's
    members: frozenset[int]  # of the SyncStateSet; the master is one of them
    confirm_offset: int
    state_file: SyncStateFile
    group_ids: frozenset[int] | None = None  # see Promotion

    @property
    def entry(self) -> EpochEntry:
        """The epoch, and the log's end when it began."""
        return self.epochs.entries[-1]


@final
@attrs.frozen(kw_only=True)
class MasterStore:
    """An open store, and what its links need of it."""

    message_store: MessageStore
    refused_slaves: RefusedSlavesFile
    term: Term | None  # None: of no replica group
    acked: AckedOffset | None = None  # None: of no replica group, or this machine keeps none


def open_master_store(
    env: Env,
    config: MasterConfig,
    store_host: tuple[str, int],
    identity: NodeIdentity | None = None,
    promotion: Promotion | None = None,
) -> MasterStore:
    """Open a master's directory; ``identity`` is that of an earlier opening by this process.

    Raises what ``MessageStore.open`` and ``NodeIdentity.open`` raise, EpochFileError,
    SyncStateFileError, and StaleEpochError for an epoch that is not above all that was seen.
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
            needs_queue_offsets=True,
            lock=lock,
            on_end=on_end,
        )
    except BaseException:
        lock.release(clean=False)
        raise
    try:
        term = None
        if identity is not None:
            mark_clean_stop(lock, identity, message_store.commit_log)
            limit_confirm_mark(identity, message_store.commit_log.max_offset)
            term = _begin_term(env, config, message_store, identity, promotion or Promotion())
            ReserveFile(env.disk, lock.path).keep(config.store.reserve_size)
        refused_slaves = RefusedSlavesFile.load(env, config.store.data_dir)
        refused_slaves.begin_master(
            message_store.commit_log.max_offset,
            epoch_start=None if term is None else term.entry.start_offset,
        )
    except BaseException:
        message_store.close(clean=False)
        raise
    return MasterStore(
        message_store=message_store, refused_slaves=refused_slaves, term=term, acked=acked
    )


def check_jump(identity: NodeIdentity, epoch: int) -> None:
    """Raise ConfigError for an epoch far above all that this node has seen.

    It would be durable, and each later epoch has to be above it: a mistyped 2147483647 is the last
    one that the format has.
    """
    seen = identity.current.seen_epoch
    if epoch > seen + EPOCH_JUMP_MAX:
        raise ConfigError(
            f"epoch {epoch} is more than {EPOCH_JUMP_MAX:,} above the last that {identity.current}"
            f" has seen, {seen}",
            hint=f"is it mistyped? {seen + 1} is the next; a slave learns it from its master",
        )


def check_epoch(identity: NodeIdentity, epoch: int) -> None:
    """Raise StaleEpochError unless ``epoch`` is above all that this node has seen.

    Raises ConfigError if it is too far above (``check_jump``).
    """
    seen = identity.current.seen_epoch
    if not seen < epoch <= EPOCH_MAX:
        raise StaleEpochError(
            f"{identity.current} has seen epoch {seen}: it cannot become master of epoch {epoch}",
            path=identity.path,
            epoch=epoch,
            seen_epoch=seen,
            hint=f"an epoch has one master, once: take {seen + 1} or a later one",
        )
    check_jump(identity, epoch)


def _begin_term(
    env: Env,
    config: MasterConfig,
    message_store: MessageStore,
    identity: NodeIdentity,
    promotion: Promotion,
) -> Term:
    log = message_store.commit_log
    epoch_file = EpochFile(env.disk, f"{log.path}/{EPOCH_FILE}")
    history = _load_epochs(epoch_file, log)
    if history.last_epoch is not None:
        identity.see(history.last_epoch)
    epoch = promotion.epoch
    if epoch is None:
        epoch = identity.current.seen_epoch + 1
    check_epoch(identity, epoch)
    state_file = SyncStateFile(env.disk, f"{log.path}/{SYNC_STATE_FILE}")
    members = promotion.members
    if members is None:
        members = _members_of(config, identity, state_file.load(), history)
    history = _with_epoch(history, EpochEntry(epoch, log.max_offset), log, epoch_file.path)
    identity.see(epoch)
    # First: killed between the two, the next start must not begin with fewer members.
    state_file.store(StoredSet(epoch, members))
    epoch_file.store(history)
    _log.info("epoch_begins", epoch=epoch, at=log.max_offset, members=nodes_text(members))
    return Term(
        identity=identity,
        epochs=history,
        members=members,
        confirm_offset=min(message_store.checkpoint.confirm_offset, log.max_offset),
        state_file=state_file,
        group_ids=promotion.group_ids,
    )


def _load_epochs(file: EpochFile, log: CommitLog) -> EpochHistory:
    """Return the epochs of an open log.

    Raises what ``EpochFile.load`` raises, and EpochFileError if a log with bytes has no epochs: the
    file was removed, and the new master would take its intact replicas for another group's.
    """
    history = file.load()
    if not history.entries and log.max_offset > log.min_offset:
        raise EpochFileError(
            f"{file.path} is missing, and the log has {log.max_offset - log.min_offset} bytes: no"
            " epoch says who wrote them",
            path=file.path,
            hint="put the file back, or copy it from a node of the group that holds the same bytes",
        )
    return history


def _members_of(
    config: MasterConfig,
    identity: NodeIdentity,
    stored: StoredSet | None,
    history: EpochHistory,
) -> frozenset[int]:
    """Return the members of the set that an epoch begins with where nobody names them."""
    own, ids = frozenset({identity.current.node_id}), frozenset(config.group_ids or ())
    if stored is None or stored.epoch < (history.last_epoch or 0):
        return ids | own
    if stored.epoch == identity.current.seen_epoch:
        return stored.members | own
    return stored.members | ids | own  # a start that was killed, or another master: in doubt, more


def _with_epoch(
    history: EpochHistory, entry: EpochEntry, log: CommitLog, path: str
) -> EpochHistory:
    """Return the history that a master begins with.  Raises EpochFileError without room for it."""
    kept = history.drop_expired(log.min_offset).cut(entry.start_offset)
    if kept.is_full:
        raise EpochFileError(
            f"{path} has {len(kept)} epochs, and a handshake has room for {ENTRIES_MAX}",
            path=path,
            hint="keep the log for a shorter time, so that its oldest epochs expire",
        )
    return kept.begin(entry)
