"""The newest valid version of some files, read again whenever they change.

::

    stamps differ ── the same a look later ── read ──┬── valid: it replaces the former version
                                                     └── not: the former stays; named

Files that are being written are left alone until they have kept their stamps for one look, which
comes every ``LOOK_S``.  ``reload`` does not wait for a look.

Invariant: ``current`` is of one version of all the files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

import attrs
import trio

from hastore.errors import ConfigError, DiskError

if TYPE_CHECKING:
    from hastore.env.interface import Env, FileStamp

LOOK_S: Final = 2.0

T = TypeVar("T")


@attrs.frozen
class FilesStatus:
    """Why the files' present version is not in force, and the next step; None: it is."""

    fault: str | None
    hint: str | None


class ReloadedFiles(Protocol):
    """Files that are read again."""

    async def reload(self) -> bool:
        """Read them now; return whether that version is in force."""

    def status(self) -> HasFault:
        """Return why the present version is not in force."""


class HasFault(Protocol):
    """Why files are not in force, and the next step; None: they are."""

    @property
    def fault(self) -> str | None:
        """The reason."""

    @property
    def hint(self) -> str | None:
        """The next step."""


@attrs.define(eq=False)
class WatchedFiles(ABC, Generic[T]):
    """Files, and what was read from them; a subclass says how, and logs."""

    GONE_HINT: ClassVar[str]  # the next step when one cannot be found

    env: Env
    current: T
    _stamps: tuple[FileStamp, ...] | None  # of the version in force
    _seen: tuple[FileStamp, ...] | None = attrs.field(default=None, init=False)  # at the last look
    _refused: tuple[FileStamp, ...] | None = attrs.field(default=None, init=False)  # not taken
    _fault: str | None = attrs.field(default=None, init=False)  # why the files' version is not
    _hint: str | None = attrs.field(default=None, init=False)
    _reading: trio.Lock = attrs.field(factory=trio.Lock, init=False)  # the last read is the newest

    @abstractmethod
    def _stamps_now(self) -> tuple[FileStamp, ...]:
        """Return the files' stamps; blocks.  Raises DiskError."""

    @abstractmethod
    def _read(self) -> tuple[T, tuple[FileStamp, ...]]:
        """Return the files' present version and its stamps; blocks.  Raises ConfigError."""

    @abstractmethod
    def _log_taken(self) -> None:
        """Log that ``current`` is new."""

    @abstractmethod
    def _log_refused(self, reason: str, hint: str | None) -> None:
        """Log why a version is not taken; called once for each reason."""

    async def run(self) -> None:
        """Take the files when they change, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look at the files once."""
        async with self._reading:
            await self._look()

    async def reload(self) -> bool:
        """Read the files as they are now; return whether that version is in force."""
        async with self._reading:
            return await self._take()

    async def _look(self) -> None:
        try:
            stamps = await self.env.offload.run(self._stamps_now)
        except DiskError as error:
            self._seen = self._refused = None
            self._refuse(str(error), self.GONE_HINT)
            return
        before, self._seen = self._seen, stamps
        if stamps == self._stamps:  # a version that was refused may be replaced by the former one
            self._fault = self._hint = self._refused = None
        elif stamps == before and stamps != self._refused and not await self._take():
            self._refused = stamps

    async def _take(self) -> bool:
        try:
            self.current, self._stamps = await self.env.offload.run(self._read)
        except ConfigError as error:
            self._refuse(str(error), error.hint)
            return False
        self._fault = self._hint = self._refused = None
        self._log_taken()
        return True

    def _refuse(self, reason: str, hint: str | None) -> None:
        if reason != self._fault:
            self._log_refused(reason, hint)
        self._fault, self._hint = reason, hint
