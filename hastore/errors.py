"""The error tree: one class a kind of fault, each with its exit code and, where known, a next step.

The class says whose fault it is.  ``ConfigError`` is the caller's, ``StoreError`` the disk's or the
directory's, ``ProtocolError`` the peer's.  What a *producer* must know is a status
(``hastore.status``), never an exception; a programmer's mistake is an assert.

Exit codes: 1 other, 2 usage, 3 unreachable, 4 damage, 6 refused for safety.
"""

from __future__ import annotations

from typing import ClassVar


class HastoreError(Exception):
    """Base of all: ``str(error)`` is one line of what and where; ``hint`` is the next step."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"next: {hint}")  # a traceback that crosses processes keeps it


class ConfigError(HastoreError):
    """A value that cannot be used: a bad TOML key, an address without a port, a wrong role."""

    exit_code = 2


class WrongPortError(ConfigError):
    """A slave's ``master`` is a port, but not a master's HA port."""


class ListenError(HastoreError):
    """An address that cannot be listened on (in use, not ours, no permission).

    ``purpose`` says what for, in the words of the message; ``is_in_use`` that somebody else does.
    """

    def __init__(
        self, message: str, *, purpose: str = "", is_in_use: bool = False, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.purpose = purpose
        self.is_in_use = is_in_use


class UnreachableError(HastoreError):
    """Nobody answers where somebody should."""

    exit_code = 3


class RequestFailedError(HastoreError):
    """A node answered with an error; ``code`` is the remoting response code."""

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class UnknownOutcomeError(HastoreError):
    """No answer came to a request that may have been carried out: the message may be stored, once.

    ``unique_key`` finds it in the log; None where the request was not a message.
    """

    exit_code = 3

    def __init__(
        self, message: str, *, unique_key: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.unique_key = unique_key


# -- the store -----------------------------------------------------------------------------------


class StoreError(HastoreError):
    """Something is wrong with a store directory; ``path`` says where."""

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.path = path


class StoreLockedError(StoreError):
    """Another process holds the directory's ``lock`` file."""

    exit_code = 6


class NotAStoreError(StoreError):
    """The directory exists and holds something else."""

    exit_code = 6


class FileSizeMismatchError(StoreError):
    """Files of one size are here, another size was asked for (or the master has another)."""

    exit_code = 6

    def __init__(
        self, message: str, *, path: str, size_found: int, size_wanted: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.size_found = size_found
        self.size_wanted = size_wanted


class LogDamagedError(StoreError):
    """A record that cannot be right with good ones behind it; nothing was changed."""

    exit_code = 4

    def __init__(
        self, message: str, *, path: str, physic_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.physic_offset = physic_offset


class DiskError(StoreError):
    """The operating system refused a read, write, allocation or directory operation."""


class DiskFullError(DiskError):
    """No space (or quota) left for the next file; reads and replication go on."""


class FlushFailedError(DiskError):
    """fdatasync failed.  Fail-stop: what is on disk is unknown, so nothing more is acknowledged."""


class StoreClosedError(HastoreError):
    """The store was used after it was closed."""


# -- peers ---------------------------------------------------------------------------------------


class ProtocolError(HastoreError):
    """The other side broke the protocol; the connection is closed."""


class FrameTooLargeError(ProtocolError):
    """A length prefix above the limit; refused before anything was reserved for it."""


class LimitReachedError(ProtocolError):
    """A peer that went beyond what one peer, or all together, may cost; ``limit`` names it."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class IllegalReportError(ProtocolError):
    """A slave's report that no slave of this log could send; never counted as an ack."""

    def __init__(
        self, message: str, *, reported_offset: int, max_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.reported_offset = reported_offset
        self.max_offset = max_offset


class DivergedError(ProtocolError):
    """Master and slave do not hold the same log; both offsets are named, nothing is cut."""

    exit_code = 6

    def __init__(
        self, message: str, *, master_offset: int, slave_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.master_offset = master_offset
        self.slave_offset = slave_offset


class ExpiredError(ProtocolError):
    """The master has deleted bytes that the slave still needed; only a new copy can mend that."""

    exit_code = 6

    def __init__(
        self, message: str, *, min_offset: int, slave_offset: int, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.min_offset = min_offset
        self.slave_offset = slave_offset
