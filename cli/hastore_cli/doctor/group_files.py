"""The files of a replica group's node in its directory: damaged, or of different ages.

::

    identity.json          has seen epoch 12
    epochFileCheckpoint    ends with epoch 12 at the latest
    sync_state_set.json    of epoch 12 at the latest, and this node is a member
    cut.json               a cut that the next start finishes
    trimmed/               what was cut, until somebody removes it

Only directories with an identity are checked; nothing is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hastore.errors import DiskError, HastoreError
from hastore.quantities import format_size
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.log.store_directory import COMMIT_LOG_DIR, TRIMMED_DIR
from hastore.store.node_identity import IDENTITY_FILE, read_identity
from hastore.store.recovery.log_cut import CutIntent, kept_cuts
from hastore.store.sync_state_file import SYNC_STATE_FILE, SyncStateFile
from hastore_cli.doctor.rules import Diagnosis, Result

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.env.interface import Disk
    from hastore.store.node_identity import Identity
    from hastore_cli.doctor.facts import Facts

_OLDER_COPY: Final = (
    "is one of them from an older copy? then keep this directory, and give the node an empty one"
)


def check_group_files(nodes: Sequence[Facts], disk: Disk) -> Iterator[Diagnosis]:
    """Yield what is wrong with the named directories of a group's nodes; blocks."""
    for facts in nodes:
        if facts.directory is not None and disk.exists(f"{facts.directory}/{IDENTITY_FILE}"):
            is_stopped = facts.status is None and facts.holder is None
            yield from _check(facts.name, facts.directory, disk, is_stopped=is_stopped)


def _check(name: str, directory: str, disk: Disk, *, is_stopped: bool) -> Iterator[Diagnosis]:
    try:
        identity = read_identity(disk, directory)
    except HastoreError as error:
        identity = None
        yield Diagnosis(name, "identity", Result.BAD, str(error), error.hint)
    if identity is not None:
        what = f"{identity}, start {identity.starts}, has seen epoch {identity.seen_epoch}"
        yield Diagnosis(name, "identity", Result.OK, what)
    for check, look in (("epochs", _epochs), ("sync state", _sync_state)):
        try:
            result, what, next_step = look(directory, disk, identity)
        except HastoreError as error:
            result, what, next_step = Result.BAD, str(error), error.hint
        if what:
            yield Diagnosis(name, check, result, what, next_step)
    if is_stopped:  # a node that runs is at it
        yield from _unfinished_cut(name, directory, disk)
    yield from _trimmed(name, directory, disk)


def _epochs(
    directory: str, disk: Disk, identity: Identity | None
) -> tuple[Result, str, str | None]:
    history = EpochFile(disk, f"{directory}/{EPOCH_FILE}").load()
    last = history.last_epoch
    if last is None:
        if not any(entry.size for entry in disk.list_dir(f"{directory}/{COMMIT_LOG_DIR}")):
            return Result.OK, "", None
        what = "there is a log, and no epoch says who wrote it: no master can compare it"
        return Result.BAD, what, "give the node an empty directory: it copies its master's log"
    if identity is not None and last > identity.seen_epoch:
        what = f"the log has epoch {last}, and {IDENTITY_FILE} knows none after"
        return Result.BAD, f"{what} {identity.seen_epoch}", _OLDER_COPY
    newest = history.entries[-1]
    return Result.OK, f"{len(history)}, the newest {last} from {newest.start_offset} on", None


def _sync_state(
    directory: str, disk: Disk, identity: Identity | None
) -> tuple[Result, str, str | None]:
    stored = SyncStateFile(disk, f"{directory}/{SYNC_STATE_FILE}").load()
    if stored is None:
        return Result.OK, "", None
    members = ", ".join(map(str, sorted(stored.members)))
    what = f"nodes {members} in epoch {stored.epoch}, when this node was master last"
    if identity is None:
        return Result.OK, what, None
    if stored.epoch > identity.seen_epoch:
        later = f"{what}, and {IDENTITY_FILE} knows no epoch after {identity.seen_epoch}"
        return Result.BAD, later, _OLDER_COPY
    if identity.node_id not in stored.members:
        not_its = f"{what}, but it is node {identity.node_id}: the file is another node's"
        next_step = f"remove {SYNC_STATE_FILE} only if this node has all that was acknowledged"
        return Result.BAD, not_its, next_step
    return Result.OK, what, None


def _unfinished_cut(name: str, directory: str, disk: Disk) -> Iterator[Diagnosis]:
    try:
        intent = CutIntent.load(disk, directory)
    except HastoreError as error:
        yield Diagnosis(name, "cut", Result.BAD, str(error), error.hint)
        return
    if intent is not None:
        cut = intent.cut
        what = f"a cut of {format_size(cut.size)} at {cut.physic_offset} is not finished"
        next_step = "start the node: it finishes the cut before it does anything else"
        yield Diagnosis(name, "cut", Result.WARN, f"{what}: {cut.reason}", next_step)


def _trimmed(name: str, directory: str, disk: Disk) -> Iterator[Diagnosis]:
    path = f"{directory}/{TRIMMED_DIR}"
    try:
        entries = disk.list_dir(path)
        cuts = kept_cuts(disk, directory)
    except DiskError as error:
        yield Diagnosis(name, "trimmed", Result.UNKNOWN, str(error), error.hint)
        return
    if not entries:
        return
    what = f"{format_size(sum(entry.size for entry in entries))} are kept that are in no log"
    if cuts:
        newest = cuts[-1]
        topics = ", ".join(f"{topic} {count}" for topic, count in newest.messages.items())
        what += f", of {len(cuts)} cut{'s' * (len(cuts) > 1)}; the newest at {newest.physic_offset}"
        what += f" with {topics or 'no whole message'}"
    next_step = f"after a clean stop remove what nobody needs any more from {path}"
    yield Diagnosis(name, "trimmed", Result.WARN, what, next_step)
