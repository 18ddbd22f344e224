"""The writes of a node that fail now: what it should have stored and has not.

A write that fails is remembered, by its path, until a write of the same path succeeds.  So a table
that could not be stored is reported for as long as the disk has an older one, however long nobody
changes it, and no caller has to say so.

Worker threads call this: each change is one operation on a dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

FAILED_MAX: Final = 256  # later ones are not remembered; those that are show the fault as well


@attrs.frozen(kw_only=True)
class FailedWrite:
    """A path that could not be written, or removed."""

    path: str
    reason: str
    hint: str | None
    is_removal: bool
    first_ms: int  # wall time of the first failure since its last success


@final
@attrs.define(eq=False)
class FailedWrites:
    """The ledger of one node; ``now_ms`` is its wall clock."""

    now_ms: Callable[[], int]
    _failed: dict[tuple[str, bool], FailedWrite] = attrs.field(factory=dict, init=False)

    def failed(
        self, path: str, reason: str, hint: str | None = None, *, is_removal: bool = False
    ) -> None:
        """Remember that ``path`` could not be written, or removed."""
        key = (path, is_removal)
        before = self._failed.get(key)
        if before is None and len(self._failed) >= FAILED_MAX:
            return
        self._failed[key] = FailedWrite(
            path=path,
            reason=reason,
            hint=hint,
            is_removal=is_removal,
            first_ms=self.now_ms() if before is None else before.first_ms,
        )

    def succeeded(self, path: str, *, is_removal: bool = False) -> None:
        """Forget the failures of ``path``; of a path that is removed nothing is left to write."""
        if self._failed:
            self._failed.pop((path, is_removal), None)
            if is_removal:
                self._failed.pop((path, False), None)

    def forget_below(self, path: str) -> None:
        """Forget all below a directory whose files are read, and written, again."""
        for key in list(self._failed):
            if key[0].startswith(f"{path}/"):
                self._failed.pop(key, None)

    @property
    def now(self) -> tuple[FailedWrite, ...]:
        """What fails now, the longest first."""
        return tuple(self._failed.values())
