"""Quotas: how many rows of a node's tables one owner may have, and make within a minute.

An owner is an access key or, on a node without access keys, the address of a peer (IPv6: its /64).
So an owner can fill its own part of a table only.  A row counts for the
owner whose request made it, while the table has it.  Rows that an administrator made, that were
read from a file or copied from a master have no owner: counts begin with the process.

Pure: the caller passes the time.

Invariants: what is kept of rows that are gone is at most as large as the table; at most OWNERS_MAX
owners have a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import attrs

from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MINUTE_S: Final = 60.0
OWNERS_MAX: Final = 4_096
_SWEEP_INTERVAL_S: Final = 1.0

R = TypeVar("R", bound="Hashable")


@attrs.define
class _Rows(Generic[R]):
    """The rows of one owner; those that are gone are dropped when it has too many."""

    rows: dict[R, None] = attrs.field(factory=dict)  # an ordered set
    swept: float = -_SWEEP_INTERVAL_S


@attrs.define
class _Minute:
    began: float
    new: int = 0


@final
@attrs.define(eq=False)
class Quota(Generic[R]):
    """The rows of one table by owner; ``what`` names them, ``name`` and ``new_name`` the limits."""

    what: str
    name: str
    rows_max: int
    table_max: int  # rows of all owners
    has_row: Callable[[R], bool]  # whether the table still has one
    new_name: str = ""
    new_max: int | None = None  # within a minute; None: any number
    _owners: dict[str, _Rows[R]] = attrs.field(factory=dict, init=False)
    _minutes: dict[str, _Minute] = attrs.field(factory=dict, init=False)  # the oldest first
    _total: int = attrs.field(default=0, init=False)

    def take(self, owner: str, row: R, now: float) -> None:
        """Count a row that is about to be made.  Raises RequestFailedError for one too many."""
        fault = self._fault(owner, row, now)
        if fault is not None:
            raise RequestFailedError(fault, code=ResponseCode.SYSTEM_ERROR)

    def takes(self, owner: str, row: R, now: float) -> bool:
        """Count a row that is about to be made, unless it is one too many; return whether."""
        return self._fault(owner, row, now) is None

    def release(self, owner: str, row: R) -> None:
        """Stop counting a row, without waiting for its owner to have too many."""
        owned = self._owners[owner]
        del owned.rows[row]
        self._total -= 1
        if not owned.rows:
            del self._owners[owner]

    def count(self, owner: str) -> int:
        """Return the number of an owner's rows, also of some that are gone."""
        owned = self._owners.get(owner)
        return 0 if owned is None else len(owned.rows)

    def _fault(self, owner: str, row: R, now: float) -> str | None:
        owned = self._owners.get(owner)
        if owned is not None:
            if row in owned.rows:
                return None
            if len(owned.rows) >= self.rows_max and now - owned.swept >= _SWEEP_INTERVAL_S:
                owned.swept = now
                self._sweep(owned)
            if len(owned.rows) >= self.rows_max:
                return (
                    f"quota {self.name}: {owner} has made {len(owned.rows)} {self.what}, the most"
                    " that one may have"
                )
        if self.new_max is not None and not self._is_within_minute(owner, now, self.new_max):
            return (
                f"quota {self.new_name}: {owner} has made {self.new_max} {self.what} within a"
                " minute, the most that one may: try again later"
            )
        if self._total >= 2 * self.table_max:
            self._sweep_all()
        self._owners.setdefault(owner, _Rows()).rows[row] = None
        self._total += 1
        return None

    def _is_within_minute(self, owner: str, now: float, new_max: int) -> bool:
        """Count a new row in its owner's minute, if there is room."""
        minute = self._minutes.get(owner)
        if minute is None or now - minute.began >= MINUTE_S:
            self._minutes.pop(owner, None)
            minute = self._minutes[owner] = _Minute(now)
            if len(self._minutes) > OWNERS_MAX:
                del self._minutes[next(iter(self._minutes))]
        if minute.new >= new_max:
            return False
        minute.new += 1
        return True

    def _sweep(self, owned: _Rows[R]) -> None:
        """Forget rows that the table no longer has."""
        before = len(owned.rows)
        owned.rows = {row: None for row in owned.rows if self.has_row(row)}
        self._total -= before - len(owned.rows)

    def _sweep_all(self) -> None:
        for owner, owned in tuple(self._owners.items()):
            self._sweep(owned)
            if not owned.rows:
                del self._owners[owner]
