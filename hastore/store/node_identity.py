"""Which node of a replica group a directory belongs to, and what it must never forget.

``DIR/identity.json``, here with a comment beside each field::

    {
     "schema": "hastore.identity/1",
     "node_id": 2,                          unique in the replica group
     "group": "g1",
     "uuid": "5f0c…",                       of this directory, drawn when it got its identity
     "starts": 7,                           of a node of this group on this directory
     "kept_since": 5,                       every later start has proved that nothing was lost
     "doubt": "its log ends at 17, and …",  why kept_since was last raised; null: never
     "token": "9b2e…",                      claims the node's id in the coordinator; null: none yet
     "former_token": null,                  the one before, until the coordinator has ``token``
     "boot_id": "e0a1…",                    of the machine, at the last start; null: unknown
     "last_exit_ok": false,                 the last start found a clean stop before it
     "acks_flushed": true,                  this start acknowledges only what is on its disk
     "promise_ttl_s": 10,                   no promise not to campaign lasts longer; 0: none given
     "seen_epoch": 12,                      the highest heard of; 0: none
     "vote": {"epoch": 12, "node_id": 1},   null: none yet
     "confirm_mark": {"epoch": 11, "offset": 5242880, "master_uuid": "77ab…"},     null: none
     "coordinator": {"cluster_id": 77, "revision": 812, "state_revision": 790},    absent: none
     "unverified": {"begin": 4096, "end": 8192, "why": "log repair filled it"},    absent: none
     "disowned_in": 7,                      a start that etcd did not recognise; absent: none
     "crc32": 1951004802                    of all bytes before this line
    }

There is no backup.  Out of date, it would let a node vote twice, or follow a master that it knows
to be deposed; so a damaged file is an error, and all of it counts or nothing.

Invariant: a crash leaves what was stored last, or the value before or after a change that has not
returned.  ``starts``, the seen epoch and the vote's epoch never fall below what was returned.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
import zlib
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.config import NODE_ID_MAX, REPLICA_GROUP
from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ConfigError, IdentityFileError, ProtocolError, WrongNodeError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.log.mapped_file_queue import is_file_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.reserve_file import write_beside_reserve
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.env.interface import Disk, Randomness

    _Validator = Callable[[object, attrs.Attribute[Any], object], None]

IDENTITY_FILE: Final = "identity.json"
SCHEMA: Final = "hastore.identity/1"
_FILE_SIZE_MAX: Final = 8192
_OFFSET_MAX: Final = (1 << 63) - 1
_RUNS: Final = -1  # a ``clean_end`` of a process that may acknowledge, or has: there is none
_CLUSTER_ID_MAX: Final = (1 << 64) - 1
_STARTS_MAX: Final = (1 << 63) - 1
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOOT_ID: Final = re.compile(r"[!-~]{1,64}")
_TOKEN: Final = re.compile(r"[!-~]{1,256}")  # earlier versions claimed with other words
_TTL_MAX_S: Final = 1 << 31
_TEXT_SIZE_MAX: Final = 200  # characters of a reason
# What the checksum covers, and the checksum.
_FILE: Final = re.compile(rb'(.*\n) "crc32": ([0-9]{1,10})\n}\n', re.DOTALL)


def _number(low: int, high: int) -> _Validator:
    """Return a validator for whole numbers from ``low`` to ``high``."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if type(value) is not int or not low <= value <= high:
            msg = f"{attribute.name} is {value!r}, not a number from {low} to {high}"
            raise ValueError(msg)

    return check


def _text(pattern: re.Pattern[str]) -> _Validator:
    """Return a validator for texts of a form."""

    def check(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            msg = f"{attribute.name} is {value!r}, not of the form {pattern.pattern}"
            raise ValueError(msg)

    return check


def _short_text(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validate a text for people."""
    if not isinstance(value, str) or len(value) > _TEXT_SIZE_MAX:
        msg = f"{attribute.name} is {value!r:.100}, not a text of {_TEXT_SIZE_MAX} characters"
        raise ValueError(msg)


# -- values --------------------------------------------------------------------------------------


@final
@attrs.frozen(kw_only=True)
class Vote:
    """A vote for the node that is to be the master of an epoch: each node has one an epoch."""

    epoch: int = attrs.field(validator=_number(1, EPOCH_MAX))
    node_id: int = attrs.field(validator=_number(1, NODE_ID_MAX))


@final
@attrs.frozen(kw_only=True)
class ConfirmMark:
    """All of this log below ``offset`` was on every member of the SyncStateSet, in ``epoch``.

    The master that said so has the directory ``master_uuid``; None: it did not say.
    """

    epoch: int = attrs.field(validator=_number(0, EPOCH_MAX))
    offset: int = attrs.field(validator=_number(0, _OFFSET_MAX))
    master_uuid: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(_text(_UUID))
    )


@final
@attrs.frozen(kw_only=True)
class CoordinatorMark:
    """How far this node has seen its group's coordinator: an older one was restored."""

    cluster_id: int = attrs.field(validator=_number(0, _CLUSTER_ID_MAX))
    revision: int = attrs.field(validator=_number(0, _OFFSET_MAX))
    state_revision: int = attrs.field(validator=_number(0, _OFFSET_MAX))  # of the group's state

    def went_back(self, newer: CoordinatorMark) -> str | None:
        """Return how a coordinator that says ``newer`` now has gone back; None if it has not."""
        if newer.cluster_id != self.cluster_id:
            return f"etcd was cluster {self.cluster_id:x}, now {newer.cluster_id:x}"
        if newer.revision < self.revision:
            return f"etcd was at revision {self.revision}, now at {newer.revision}"
        if 0 < newer.state_revision < self.state_revision:
            return (
                f"the group's state was of revision {self.state_revision}, now of"
                f" {newer.state_revision}"
            )
        return None


@final
@attrs.frozen(kw_only=True)
class Unverified:
    """Messages in [begin, end) of the log may be missing or wrong: a repair filled them.

    The range is where that is known; the whole log is compared with a master's before the node
    may be elected again.
    """

    begin: int = attrs.field(validator=_number(0, _OFFSET_MAX))
    end: int = attrs.field(validator=_number(0, _OFFSET_MAX))
    why: str = attrs.field(validator=_short_text)

    def __attrs_post_init__(self) -> None:
        """Check the bound between fields."""
        if self.end < self.begin:
            raise ValueError(f"end is {self.end}, before begin {self.begin}")

    def __str__(self) -> str:
        return f"the log is not verified from {self.begin} to {self.end}: {self.why}"

    def joined(self, other: Unverified | None) -> Unverified:
        """Return the range that covers both, with the reason of ``self``."""
        if other is None:
            return self
        begin, end = min(self.begin, other.begin), max(self.end, other.end)
        return attrs.evolve(self, begin=begin, end=end)


@final
@attrs.frozen(kw_only=True)
class Identity:
    """The content of the file.  Raises ValueError for a value that is out of range.

    ``kept_since`` is the earliest start from which on the log has kept all that it acknowledged:
    each later start has proved that (``Opening.why_in_doubt``) before it changed the log.  It is
    never above ``starts``.

    The other fields of an unfinished start are those of the last start that has opened the log, so
    the next one has the same evidence.
    """

    node_id: int = attrs.field(validator=_number(1, NODE_ID_MAX))
    group: str = attrs.field(validator=_text(REPLICA_GROUP))
    uuid: str = attrs.field(validator=_text(_UUID))
    starts: int = attrs.field(validator=_number(1, _STARTS_MAX))
    kept_since: int = attrs.field(validator=_number(1, _STARTS_MAX))
    doubt: str | None = attrs.field(default=None, validator=attrs.validators.optional(_short_text))
    token: str | None = attrs.field(default=None, validator=attrs.validators.optional(_text(_UUID)))
    former_token: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(_text(_TOKEN))
    )
    boot_id: str | None = attrs.field(validator=attrs.validators.optional(_text(_BOOT_ID)))
    last_exit_ok: bool = attrs.field(validator=attrs.validators.instance_of(bool))
    # Where the log ended at the last clean stop; _RUNS: a later process may have acknowledged.
    clean_end: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_number(_RUNS, _OFFSET_MAX))
    )
    acks_flushed: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    promise_ttl_s: int = attrs.field(default=0, validator=_number(0, _TTL_MAX_S))
    seen_epoch: int = attrs.field(validator=_number(0, EPOCH_MAX))
    vote: Vote | None
    confirm_mark: ConfirmMark | None
    coordinator: CoordinatorMark | None = None
    unverified: Unverified | None = None  # never elected, until compared with a master's log
    # The last start in which the coordinator did not recognise this directory; None: it always did.
    # A set that names this start, or a later one, counts on this log again.
    disowned_in: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_number(1, _STARTS_MAX))
    )

    def __attrs_post_init__(self) -> None:
        """Check the bound between fields."""
        if self.kept_since > self.starts:
            raise ValueError(f"kept_since is {self.kept_since}, after start {self.starts}")

    def __str__(self) -> str:
        return f"node {self.node_id} of replica group {self.group}"

    def opened(self, opening: Opening) -> Identity:
        """Return the identity once a start has found its log's end, before it changes the log."""
        doubt = opening.why_in_doubt(self)
        mark = self.confirm_mark
        if mark is not None and mark.offset > opening.kept_offset:
            mark = attrs.evolve(mark, offset=opening.kept_offset)
        return attrs.evolve(
            self,
            kept_since=self.kept_since if doubt is None else self.starts,
            doubt=doubt or self.doubt,
            boot_id=opening.boot_id,
            last_exit_ok=opening.last_exit_ok,
            # A start that ends before its claim has acknowledged nothing: the next one has it, too.
            clean_end=self.clean_end if opening.may_keep_clean_end(self) else _RUNS,
            # Bytes that an earlier start has acknowledged, and not synced, are of this one, too.
            acks_flushed=opening.acks_flushed and (opening.is_clean(self) or self.acks_flushed),
            # What is copied again is not confirmed yet, and must stay possible to cut.
            confirm_mark=mark,
        )


@final
@attrs.frozen(kw_only=True)
class Opening:
    """What a start has found before it changes the log; offsets are exclusive.

    ``end_offset`` and ``kept_offset`` are those of ``log_loader.FoundEnd``.

    ``acked_offset`` is what the last process of this boot had acknowledged, kept in the machine's
    memory; None if there is no such number.  ``lacks`` returns whether a whole record is missing
    that ended at an offset or below.
    """

    end_offset: int
    kept_offset: int
    lacks: Callable[[int], bool]
    has_intact_rest: bool  # an intact record follows the bytes that are cut off
    last_exit_ok: bool  # a clean stop: all was on disk
    boot_id: str | None
    acked_offset: int | None
    keeps_acked: bool = False  # this start will keep such a number
    acks_flushed: bool  # this start acknowledges only what is on its disk

    def is_clean(self, before: Identity) -> bool:
        """Return whether the last process that could acknowledge stopped cleanly, with this log.

        ``abort`` alone may be missing because somebody removed it, or left it out of a copy; and it
        may be there because a later start ended before its claim.
        """
        end = before.clean_end
        if end is None:
            return self.last_exit_ok  # the file is of a version that did not record it
        return self.kept_offset <= end and not self.lacks(end)

    def may_keep_clean_end(self, before: Identity) -> bool:
        """Return whether the end of a clean stop counts until this start may acknowledge.

        That is with its claim, or at its first acknowledgement, which ``AckedOffset`` meets.  A
        directory without a token has no claim to wait for.
        """
        return self.keeps_acked and before.token is not None and self.is_clean(before)

    def why_in_doubt(self, before: Identity) -> str | None:
        """Return why the log may lack what it acknowledged; None if it is proved to have all.

        ``before`` is the identity with the evidence of the last start that had opened the log.
        """
        acked, mark = self.acked_offset, before.confirm_mark
        if acked is not None and self.lacks(acked):
            return f"its log ends at {self.end_offset}, and it had acknowledged up to {acked}"
        if mark is not None and self.lacks(mark.offset):
            return (
                f"its log ends at {self.end_offset}, and the group had confirmed up to"
                f" {mark.offset}"
            )
        if acked is not None or self.is_clean(before):
            return None
        is_same_boot = self.boot_id is not None and self.boot_id == before.boot_id
        if self.has_intact_rest and is_same_boot:
            # After a power cut these may be records that were never acknowledged.
            return f"records after offset {self.end_offset} were cut off behind a damaged one"
        if before.acks_flushed:
            return None
        return "it stopped uncleanly, and acknowledged messages may not have been on its disk"


_KINDS: Final = (
    ("vote", Vote),
    ("confirm_mark", ConfirmMark),
    ("coordinator", CoordinatorMark),
    ("unverified", Unverified),
)


def encode_identity(identity: Identity) -> bytes:
    """Return the file's bytes."""
    content = {"schema": SCHEMA, **attrs.asdict(identity)}
    for name in ("coordinator", "unverified", "disowned_in"):
        if content[name] is None:
            del content[name]
    covered = json.dumps(content, indent=1).removesuffix("\n}").encode() + b",\n"
    return b'%s "crc32": %d\n}\n' % (covered, zlib.crc32(covered))


def decode_identity(data: bytes) -> Identity | str:
    """Return the identity in a file's bytes, or why it cannot be read."""
    if len(data) > _FILE_SIZE_MAX:
        return f"it has {len(data)} bytes, more than an identity takes"
    found = _FILE.fullmatch(data)
    if found is None:
        return "it does not end with its checksum"
    covered, crc = found[1], int(found[2])
    if crc != zlib.crc32(covered):
        return f"its checksum should be {zlib.crc32(covered)}, and is {crc}"
    try:
        content = loads_object(data, "it")
    except ProtocolError as error:
        return str(error)
    del content["crc32"]
    schema = content.pop("schema", None)
    if schema != SCHEMA:
        return f"its schema is {schema!r}, and this version of hastore reads {SCHEMA!r}"
    try:
        for name, kind in _KINDS:
            if content.get(name) is not None:
                content[name] = kind(**content[name])
        return Identity(**content)
    except (TypeError, ValueError) as error:
        return f"its fields are wrong: {error.args[0]}"


def _path_in(data_dir: str) -> str:
    return f"{data_dir.rstrip('/')}/{IDENTITY_FILE}"


def read_identity(disk: Disk, data_dir: str) -> Identity | None:
    """Return the identity of a directory, changing nothing; None if it has none.

    Raises IdentityFileError for a damaged file, DiskError for one that the disk does not return.
    """
    path = _path_in(data_dir)
    # An existence check would take a directory that cannot be searched for one without the file.
    if all(entry.name != IDENTITY_FILE for entry in disk.list_dir(data_dir)):
        return None
    found = decode_identity(disk.read_file(path))
    if isinstance(found, str):
        msg = f"{path}: {found}; it says which node this is, and what it has voted for"
        hint = (
            "start the node on an empty directory, and keep this one until the log is copied there"
        )
        raise IdentityFileError(msg, path=path, hint=hint)
    return found


# -- the file ------------------------------------------------------------------------------------


@final
@attrs.define(eq=False)
class NodeIdentity:
    """The identity of a directory whose lock this process holds.

    A change blocks, and is durable when it returns; one that changes nothing does not touch the
    disk.  Changes may run side by side, in threads.  If one raises DiskError, ``current`` is
    unchanged, and the file has either value.
    """

    disk: Disk
    path: str
    current: Identity  # the value stored last
    # How far an unverified log has been compared, by this process: not stored.
    compared_to: int = attrs.field(default=0, init=False)
    # Whether this process has stored an acked offset; until then the number is an earlier one's.
    has_acked_offset: bool = attrs.field(default=False, init=False)
    # Called with the coordinator's token, one of the two here, before the other one is forgotten.
    on_matched: Callable[[str], None] | None = attrs.field(default=None, init=False)
    # Called once the coordinator has ``token``, before the former one is forgotten.
    on_claimed: Callable[[], None] | None = attrs.field(default=None, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @classmethod
    def open(
        cls,
        disk: Disk,
        data_dir: str,
        *,
        node_id: int,
        group: str,
        last_exit_ok: bool,
        boot_id: str | None,
        randomness: Randomness,
        adopt: bool = False,
    ) -> NodeIdentity:
        """Count a start of this node on its directory, which gets an identity if it is empty.

        ``last_exit_ok`` is the StoreLock's, before it wrote ``abort``; ``boot_id`` is the
        environment's.  ``opened`` must follow once the log's end is found.  ``adopt`` gives a
        directory with a log an identity, too, which has seen the log's epochs.  Raises
        WrongNodeError for a directory of another node, or of none, IdentityFileError, DiskError,
        EpochFileError from ``adopt``, and ConfigError if no node can have this id or group.
        """
        former = read_identity(disk, data_dir)
        if former is None:
            seen_epoch = 0
            if adopt:
                seen_epoch = EpochFile(disk, f"{data_dir}/{EPOCH_FILE}").load().last_epoch or 0
            else:
                _check_has_no_log(disk, data_dir, node_id, group)
            try:
                current = Identity(
                    node_id=node_id,
                    group=group,
                    uuid=draw_uuid(randomness),
                    starts=1,
                    kept_since=1,
                    boot_id=boot_id,
                    last_exit_ok=last_exit_ok,
                    seen_epoch=seen_epoch,
                    vote=None,
                    confirm_mark=None,
                )
            except ValueError as error:
                raise ConfigError(str(error)) from error
        else:
            _check_is_of(former, data_dir, node_id, group)
            current = attrs.evolve(former, starts=former.starts + 1)
        path = _path_in(data_dir)
        write_beside_reserve(disk, path, encode_identity(current))
        return cls(disk, path, current)

    def is_as_stored(self) -> bool:
        """Return whether the file has the value stored last, and no other process's.

        Raises what ``read_identity`` raises.
        """
        with self._lock:
            return read_identity(self.disk, self.path.removesuffix(f"/{IDENTITY_FILE}")) == (
                self.current
            )

    def opened(self, opening: Opening) -> None:
        """Record what this start has found, before it changes the log."""
        with self._lock:
            self._store(self.current.opened(opening))

    def stopped(self, end_offset: int) -> None:
        """Record a clean stop: the log ends at ``end_offset``, and all of it is on the disk."""
        with self._lock:
            self._store(attrs.evolve(self.current, clean_end=end_offset))

    def runs(self) -> None:
        """Record that this process may acknowledge: an earlier clean stop proves nothing more."""
        with self._lock:
            if self.current.clean_end != _RUNS:
                self._store(attrs.evolve(self.current, clean_end=_RUNS))

    def claim(self, matched: str | None, token: str) -> None:
        """Record that the coordinator is about to be asked to replace ``matched`` by ``token``.

        Until ``claimed`` either of the two may be what the coordinator has.
        """
        with self._lock:
            known = self.current.token, self.current.former_token
            if self.on_matched is not None and matched is not None and matched in known:
                self.on_matched(matched)
            self._store(attrs.evolve(self.current, former_token=matched, token=token))

    def claimed(self) -> None:
        """Record that the coordinator has ``token``: this process may acknowledge."""
        with self._lock:
            if self.on_claimed is not None:
                self.on_claimed()
            changed = attrs.evolve(self.current, former_token=None, clean_end=_RUNS)
            if changed != self.current:
                self._store(changed)

    def disown(self, start: int, doubt: str) -> None:
        """Become start number ``start`` of a directory that has proved nothing.

        The coordinator knows another history of this directory, whose starts may have the numbers
        that this one has counted.
        """
        with self._lock:
            starts = max(start, self.current.starts + 1)
            self._store(
                attrs.evolve(
                    self.current,
                    starts=starts,
                    kept_since=starts,
                    doubt=doubt,
                    disowned_in=starts,
                )
            )

    def promises_last(self, ttl_s: int) -> None:
        """Record that no promise of this node lasts longer than ``ttl_s``, from now on."""
        with self._lock:
            if ttl_s != self.current.promise_ttl_s:
                self._store(attrs.evolve(self.current, promise_ttl_s=ttl_s))

    def see(self, epoch: int) -> None:
        """Record an epoch that a peer or the coordinator has named, unless a higher one is known.

        To be called before this node reports, votes or stands in that epoch.
        """
        with self._lock:
            if epoch > self.current.seen_epoch:
                self._store(attrs.evolve(self.current, seen_epoch=epoch))

    def cast(self, vote: Vote) -> bool:
        """Vote, unless it is too late; return whether ``vote`` is this node's vote.

        It is too late after another vote in that epoch or in a later one, and once this node has
        seen a later epoch.  Voting again for the same node is no other vote.
        """
        with self._lock:
            given = self.current.vote
            if vote.epoch < self.current.seen_epoch:
                return False
            if given is not None and given.epoch >= vote.epoch:
                return given == vote
            self._store(attrs.evolve(self.current, vote=vote))
            return True

    def raise_confirm_mark(self, mark: ConfirmMark) -> None:
        """Set the confirm mark, unless there is one at that offset or above."""
        with self._lock:
            present = self.current.confirm_mark
            if present is None or mark.offset > present.offset:
                self._store(attrs.evolve(self.current, confirm_mark=mark))

    def lower_confirm_mark(self, mark: ConfirmMark) -> None:
        """Replace a confirm mark above that offset: bytes below it are to be cut on command."""
        with self._lock:
            present = self.current.confirm_mark
            if present is not None and mark.offset < present.offset:
                self._store(attrs.evolve(self.current, confirm_mark=mark))

    def see_coordinator(self, mark: CoordinatorMark) -> None:
        """Record how far the coordinator is, be it less than before: a person has looked."""
        with self._lock:
            if mark != self.current.coordinator:
                self._store(attrs.evolve(self.current, coordinator=mark))

    def mark_unverified(self, found: Unverified) -> None:
        """Record that a part of the log may be missing or wrong, beside what is recorded.

        To be called before the log is changed there.
        """
        with self._lock:
            joined = found.joined(self.current.unverified)
            if joined != self.current.unverified:
                self._store(attrs.evolve(self.current, unverified=joined))
                self.compared_to = 0  # the log is about to differ from what was compared

    def clear_unverified(self, compared: Unverified) -> bool:
        """Record that the whole log equals a master's, or is the group's; return whether it counts.

        ``compared`` is what was recorded when that was found: more may have been found since.
        """
        with self._lock:
            if self.current.unverified == compared:
                self._store(attrs.evolve(self.current, unverified=None))
            return self.current.unverified is None

    def clear_confirm_mark(self) -> None:
        """Remove the confirm mark: what was confirmed is no longer known, or no longer counts."""
        with self._lock:
            if self.current.confirm_mark is not None:
                self._store(attrs.evolve(self.current, confirm_mark=None))

    def _store(self, changed: Identity) -> None:
        write_beside_reserve(self.disk, self.path, encode_identity(changed))
        self.current = changed


def _check_is_of(identity: Identity, data_dir: str, node_id: int, group: str) -> None:
    if (identity.node_id, identity.group) == (node_id, group):
        return
    flags = []
    if identity.node_id != node_id:
        flags.append(f"--node-id {identity.node_id}")
    if identity.group != group:
        flags.append(f"--node-group {identity.group}")
    raise WrongNodeError(
        f"{data_dir} belongs to {identity}, not to node {node_id} of {group}",
        path=data_dir,
        hint=f"start it with {' '.join(flags)}, or give node {node_id} of {group} a directory of"
        " its own",
    )


def _check_has_no_log(disk: Disk, data_dir: str, node_id: int, group: str) -> None:
    """Raise WrongNodeError if a directory holds a log, or its epochs."""
    has_log = any(
        is_file_name(entry.name) for entry in disk.list_dir(f"{data_dir}/{COMMIT_LOG_DIR}")
    )
    has_epochs = any(entry.name.startswith(EPOCH_FILE) for entry in disk.list_dir(data_dir))
    if has_log or has_epochs:
        raise WrongNodeError(
            f"{data_dir} holds a log but no {IDENTITY_FILE}: it belongs to no node of a replica"
            " group",
            path=data_dir,
            hint=f"give node {node_id} of {group} an empty directory, which it fills from"
            " its master; or begin the group with this log: hastore cluster adopt",
        )


def draw_uuid(randomness: Randomness) -> str:
    """Return a random UUID (version 4); a float in [0, 1) has 53 random bits."""
    number = 0
    for _ in range(4):
        number = number << 32 | int(randomness.random() * (1 << 32))
    return str(uuid.UUID(int=number, version=4))
