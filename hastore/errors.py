"""The error tree: a class for each kind of fault, with an exit code and, if known, a next step.

The class says whose fault it is.  ``ConfigError`` is the caller's, ``StoreError`` the disk's or the
directory's, ``ProtocolError`` the peer's, ``CoordinatorError`` the coordinator's.  The outcome of a
put is a status (``hastore.status``), never an exception; a programmer's mistake is an assert.

Exit codes: 1 other, 2 usage, 3 unreachable, 4 damage, 6 refused for safety, 7 login or TLS.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Sequence


class HastoreError(Exception):
    """The base class: ``str(error)`` is one line, what and where; ``hint`` is the next step."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"next: {hint}")  # survives in a traceback from another process


class ConfigError(HastoreError):
    """An unusable value: a bad TOML key, an address without a port, a wrong role."""

    exit_code = 2


class SettingsError(ConfigError):
    """Values that fields of a configuration cannot have, alone or together.

    ``text`` and ``hint`` have ``{0}``, ``{1}``, … in the places of the names in ``fields``, so that
    a command can name the keys of its file instead (``named``).
    """

    def __init__(self, text: str, *fields: str, hint: str | None = None) -> None:
        self.text = text
        self.fields = fields
        self.raw_hint = hint
        super().__init__(*self.named(fields)[:1], hint=self.named(fields)[1])

    def named(self, names: Sequence[str]) -> tuple[str, str | None]:
        """Return the message and the hint with other names for ``fields``."""
        return _filled(self.text, names), self.raw_hint and _filled(self.raw_hint, names)


def _filled(text: str, names: Sequence[str]) -> str:
    """Replace ``{N}`` by the N-th name; other braces stay, because values may have them."""
    for at, name in enumerate(names):
        text = text.replace(f"{{{at}}}", name, 1)
    return text


class WrongPortError(ConfigError):
    """A slave's ``master`` is an open port, but not the HA port of a master that it can follow."""


class ListenError(HastoreError):
    """An address that cannot be listened on (in use, not local, no permission).

    ``purpose`` is what the port is for, as in the message; ``is_in_use``: another process has it.
    """

    def __init__(
        self, message: str, *, purpose: str = "", is_in_use: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.purpose = purpose
        self.is_in_use = is_in_use


class UnreachableError(HastoreError):
    """No node answers at an address."""

    exit_code = 3


class RequestFailedError(HastoreError):
    """A node answered with an error; ``code`` is the remoting response code."""

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class QueueNotThereError(RequestFailedError):
    """A message for a queue that its topic does not have; it is certainly not stored."""


class QuotaUsedUpError(RequestFailedError):
    """A request would make more than its ``owner`` may have; ``quota`` is the setting's name."""

    def __init__(self, message: str, *, code: int, quota: str, owner: str) -> None:
        super().__init__(message, code=code)
        self.quota = quota
        self.owner = owner


class AccessDeniedError(RequestFailedError):
    """A request without a key that counts, or without the permission that it needs.

    ``delay_s`` is None, or how long a node waits before it answers and closes the connection.
    """

    exit_code = 7

    def __init__(
        self, message: str, *, code: int, hint: str | None = None, delay_s: float | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.delay_s = delay_s


class UnknownOutcomeError(HastoreError):
    """No answer came to a request, so a message may be stored, once, or not at all.

    ``unique_key`` finds it in the log; None if the request was not a message.
    """

    exit_code = 3

    def __init__(
        self, message: str, *, unique_key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.unique_key = unique_key


# -- the store -----------------------------------------------------------------------------------


class StoreError(HastoreError):
    """A fault in a store directory, at ``path``."""

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class StoreLockedError(StoreError):
    """Another process holds the directory's ``lock`` file."""

    exit_code = 6


class NotAStoreError(StoreError):
    """The directory exists but is not a store."""

    exit_code = 6


class FileSizeMismatchError(StoreError):
    """The log files have another size than configured, or than the master's (bytes)."""

    exit_code = 6

    def __init__(
        self, message: str, *, path: str, size_found: int, size_wanted: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.size_found = size_found
        self.size_wanted = size_wanted


class LogDamagedError(StoreError):
    """A damaged record at ``physic_offset``, not a torn tail; nothing was changed."""

    exit_code = 4

    def __init__(
        self, message: str, *, path: str, physic_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.physic_offset = physic_offset


class TableFileError(StoreError):
    """A table below ``config/`` is whole and cannot be read; nothing was changed."""

    exit_code = 4


class LossRefusedError(StoreError):
    """A change would leave out messages that may be right; nothing was changed."""

    exit_code = 6


class EpochFileError(StoreError):
    """The file of a log's epochs is damaged; nothing was changed."""

    exit_code = 4


class CutRefusedError(StoreError):
    """A log cannot be cut at ``physic_offset``; nothing was changed."""

    exit_code = 6

    def __init__(
        self, message: str, *, path: str, physic_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.physic_offset = physic_offset


class BelowConfirmMarkError(CutRefusedError):
    """A cut would take bytes that every member of the group had acknowledged: an alarm."""

    def __init__(
        self,
        message: str,
        *,
        path: str,
        physic_offset: int,
        confirm_mark: int,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, physic_offset=physic_offset, hint=hint)
        self.confirm_mark = confirm_mark


class UnfinishedCutError(StoreError):
    """A cut of the log is not finished; ``physic_offset`` is where it will end, None if unknown."""

    exit_code = 6

    def __init__(
        self, message: str, *, path: str, physic_offset: int | None, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.physic_offset = physic_offset


class IdentityFileError(StoreError):
    """The file of a node's identity is damaged; nothing was changed."""

    exit_code = 4


class SyncStateFileError(StoreError):
    """The file of a master's SyncStateSet is damaged; nothing was changed."""

    exit_code = 4


class StaleEpochError(StoreError):
    """An ``epoch`` is not above all that the node has seen, so it cannot begin; nothing changed."""

    exit_code = 6

    def __init__(
        self, message: str, *, path: str, epoch: int, seen_epoch: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.epoch = epoch
        self.seen_epoch = seen_epoch


class RoleChangedError(HastoreError):
    """A change of a node's role did not come about, because the node stops or has failed."""


class WrongNodeError(StoreError):
    """The directory belongs to another node of a replica group, or its log to none."""

    exit_code = 6


class DiskError(StoreError):
    """The operating system refused a read, write, allocation or directory operation."""

    @property
    def is_unreadable(self) -> bool:
        """Whether the disk cannot read the bytes (EIO); other errors, such as EMFILE, pass."""
        return isinstance(self.__cause__, OSError) and self.__cause__.errno == errno.EIO


class DiskFullError(DiskError):
    """No space (or quota) is left; reads and replication continue."""


class FlushFailedError(DiskError):
    """fdatasync failed.  Fail-stop: what is on disk is unknown, so nothing more is acknowledged."""


class FileLostError(FlushFailedError):
    """A file or directory that this process uses is no longer at its name.

    It was removed, renamed or replaced, or something is mounted over it: what is written to it is
    not found by the next start.  Fail-stop, as after a failed sync.
    """


class StoreClosedError(HastoreError):
    """The store was used after it was closed."""


# -- peers ---------------------------------------------------------------------------------------


class ProtocolError(HastoreError):
    """The peer broke the protocol; the connection is closed."""


class FrameTooLargeError(ProtocolError):
    """A length prefix above the limit; refused before memory was reserved."""


class LimitReachedError(ProtocolError):
    """A peer exceeded the limit of one peer or of all; ``limit`` is its name."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class TlsError(ProtocolError, ConnectionError):
    """TLS with a peer failed, and the connection is of no use; ``fault`` is a ``TlsFault``.

    Also an OSError: on a connection that breaks, what reads and writes need not know of TLS.
    """

    exit_code = 7

    def __init__(self, message: str, *, fault: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.fault = str(fault)

    @property
    def is_final(self) -> bool:
        """Whether the same files fail again; not so where a peer may have stopped meanwhile."""
        return self.fault not in {"cut", "handshake-timeout"}


class IllegalReportError(ProtocolError):
    """A report that no slave of this log can send; it is not an ack."""

    def __init__(
        self, message: str, *, reported_offset: int, max_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reported_offset = reported_offset
        self.max_offset = max_offset


class DivergedError(ProtocolError):
    """The logs of master and slave have diverged; both keep every byte."""

    exit_code = 6

    def __init__(
        self, message: str, *, master_offset: int, slave_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.master_offset = master_offset
        self.slave_offset = slave_offset


class ForeignGroupError(DivergedError):
    """The logs of master and slave have no epoch in common, or the slave's has none at all."""


class NodeIdTakenError(ProtocolError):
    """Another node of the replica group has the id of this one."""

    exit_code = 6


class UnknownSlaveError(ProtocolError):
    """A slave's log goes on where its master was promoted, and not with bytes that it was sent.

    ``is_question``: the slave is asked whether it compares its bytes, and not refused yet.
    """

    def __init__(
        self,
        message: str,
        *,
        slave_offset: int,
        promotion_start: int,
        is_question: bool = False,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.slave_offset = slave_offset
        self.promotion_start = promotion_start
        self.is_question = is_question


class DeposedMasterError(ProtocolError):
    """The master's last ``epoch`` is below one that this node has seen: it is followed no more."""

    exit_code = 6

    def __init__(
        self, message: str, *, epoch: int | None, seen_epoch: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.epoch = epoch
        self.seen_epoch = seen_epoch


class ExpiredError(ProtocolError):
    """The master has deleted bytes that the slave needs; only a new copy helps."""

    exit_code = 6

    def __init__(
        self, message: str, *, min_offset: int, slave_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.min_offset = min_offset
        self.slave_offset = slave_offset


# -- the coordinator -----------------------------------------------------------------------------


class OperationRefusedError(HastoreError):
    """A change to a group that a person asked for could lose messages, or could not come about."""

    exit_code = 6


class CoordinatorError(HastoreError):
    """The coordinator of a replica group, or the way to it, has a fault."""


class CoordinatorUnreachableError(CoordinatorError):
    """No valid answer came: what was asked for may be done, or may still be on its way.

    Reading again does not settle it; only a later write that moves the same keys does.
    """

    exit_code = 3


class CoordinatorTlsError(CoordinatorUnreachableError):
    """TLS failed: a certificate is not trusted, missing, or for another name."""

    exit_code = 7


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator answered that it will not do it: nothing was written.

    A wrong password, no permission, a request it cannot read, no space.
    """


class CoordinatorNoSpaceError(CoordinatorRefusedError):
    """The coordinator's own database is full: it reads and renews leases, and writes nothing.

    But etcd answers so, too, to the write by which it exceeds its quota, and carries that one out:
    a read tells.  It passes once an operator makes room, so a node waits for it.
    """


class CoordinatorLoginError(CoordinatorRefusedError):
    """The coordinator does not know this user by this password."""

    exit_code = 7


class LeaseGoneError(CoordinatorRefusedError):
    """A key was to be put with a lease that has ended: nothing was written."""


class CompactedError(CoordinatorError):
    """The changes after ``after_revision`` are not available (any more): read everything again.

    They were compacted away, or the coordinator was restored to a time before that revision.
    """

    def __init__(self, message: str, *, after_revision: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.after_revision = after_revision
