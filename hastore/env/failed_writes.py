"""The writes of a node that fail now: what it should have stored and has not.

A write that fails is remembered, by its path, until a write of the same path succeeds; opening or
renaming a file that could not be written changes nothing of that.  So a table that could not be
stored is reported for as long as the disk has an older one, however long nobody changes it, and no
caller has to say so.

Any thread may call this.
"""

from __future__ import annotations

import enum
import threading
from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

FAILED_MAX: Final = 256  # later ones are not remembered; those that are show the fault as well


class Change(enum.Enum):
    """What was tried."""

    WRITE = enum.auto()
    OPEN = enum.auto()  # or to make a directory
    RENAME = enum.auto()
    REMOVE = enum.auto()


@attrs.frozen(kw_only=True)
class FailedWrite:
    """A path that could not be written, or removed."""

    path: str
    reason: str
    hint: str | None
    change: Change
    first_ms: int  # wall time of the first failure since its last success

    @property
    def is_removal(self) -> bool:
        """Whether the path could not be removed."""
        return self.change is Change.REMOVE


@final
@attrs.define(eq=False)
class FailedWrites:
    """The ledger of one node; ``now_ms`` is its wall clock."""

    now_ms: Callable[[], int]
    _failed: dict[tuple[str, bool], FailedWrite] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def failed(
        self, path: str, reason: str, hint: str | None = None, *, change: Change = Change.WRITE
    ) -> None:
        """Remember that ``path`` could not be written, or removed."""
        key = (path, change is Change.REMOVE)
        with self._lock:
            before = self._failed.get(key)
            if before is None and len(self._failed) >= FAILED_MAX:
                return
            was_write = before is not None and before.change is Change.WRITE
            self._failed[key] = FailedWrite(
                path=path,
                reason=reason,
                hint=hint,
                change=Change.WRITE if was_write else change,
                first_ms=self.now_ms() if before is None else before.first_ms,
            )

    def succeeded(self, path: str, change: Change = Change.WRITE) -> None:
        """Forget the failures of ``path`` that no longer count.

        A path that was written needs no removal, and one that was removed nothing else.  A rename
        moves the older file out of the way, so a later write of the path ends its failure, too.
        """
        if not self._failed:
            return
        with self._lock:
            for key in (path, False), (path, True):
                failed = self._failed.get(key)
                if failed is not None and (
                    change in {Change.WRITE, Change.REMOVE} or failed.change is change
                ):
                    del self._failed[key]

    def forget_below(self, path: str) -> None:
        """Forget all below a directory whose files are read, and written, again."""
        with self._lock:
            for key in list(self._failed):
                if key[0].startswith(f"{path}/"):
                    del self._failed[key]

    @property
    def now(self) -> tuple[FailedWrite, ...]:
        """What fails now, the longest first."""
        with self._lock:
            return tuple(self._failed.values())
