"""Quotas: how many rows of a node's tables one owner may have, and make within a minute.

An owner is an access key or, on a node without access keys, the address of a peer (IPv6: its /64).
So an owner can fill its own part of a table only.  A row counts for the
owner whose request made it, while the table has it.  Rows that an administrator made, that were
read from a file or copied from a master have no owner: counts begin with the process.

A consumer commits its offsets one-way, or with a pull, so no answer says that one was refused: the
node counts the refusals and logs them (``QuotaRefusals``).  A table that is full is refused and
counted likewise: its limit is the quota of all owners together.

``Quota`` is pure: the caller passes the time.

Invariants: a row counts for one owner, the last one that made it.  Counted rows that the table no
longer has are never more than the table may hold; each request looks for a few of them, so that
none takes long.  The new rows of at most OWNERS_MAX owners are counted by the minute.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import attrs

from hastore.concurrency.peers import PeerLog
from hastore.errors import QuotaUsedUpError
from hastore.trace import logger
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

MINUTE_S: Final = 60.0
OWNERS_MAX: Final = 4_096
_OWN_LOOKED_AT: Final = 256  # rows checked when an owner at its limit asks for another
_LOOKED_AT: Final = 2  # rows of all owners checked for each new row: two, so that stale ones shrink

R = TypeVar("R", bound="Hashable")

_log = logger("remoting")


def table_full(name: str, text: str) -> QuotaUsedUpError:
    """Return the error for a table without room for any owner; ``name`` is its limit's."""
    return QuotaUsedUpError(
        text, code=ResponseCode.SYSTEM_ERROR, quota=name, owner="all owners together"
    )


@attrs.define
class _Minute:
    began: float
    new: int = 0


@final
@attrs.define(eq=False)
class Quota(Generic[R]):
    """The rows of one table by owner; ``what`` names them.

    ``name`` and ``new_name`` are the settings in ``[remoting]`` that have the limits.
    """

    what: str
    name: str
    rows_max: int
    has_row: Callable[[R], bool]  # whether the table still has one
    new_name: str = ""
    new_max: int | None = None  # within a minute; None: any number
    # Looked at first: the first.  A plain dict is slow at its front once that has moved.
    _owner_of: OrderedDict[R, str] = attrs.field(factory=OrderedDict, init=False)
    _rows: dict[str, OrderedDict[R, None]] = attrs.field(factory=dict, init=False)  # by owner
    _minutes: dict[str, _Minute] = attrs.field(factory=dict, init=False)  # the oldest first

    def check(self, owner: str, row: R, now: float) -> None:
        """Count nothing.  Raises QuotaUsedUpError if the row would be one too many."""
        refusal = self._refusal(owner, row, now)
        if refusal is not None:
            raise refusal

    def take(self, owner: str, row: R, now: float) -> None:
        """Count a row that is about to be made.  Raises QuotaUsedUpError for one too many."""
        self.check(owner, row, now)
        self._count(owner, row, now)

    def takes(self, owner: str, row: R, now: float) -> bool:
        """Count a row that is about to be made, unless it is one too many; return whether."""
        if self._refusal(owner, row, now) is not None:
            return False
        self._count(owner, row, now)
        return True

    def release(self, row: R) -> None:
        """Stop counting a row that is gone, if it counts; one that is not told is found later."""
        owner = self._owner_of.pop(row, None)
        if owner is None:
            return
        rows = self._rows[owner]
        del rows[row]
        if not rows:
            del self._rows[owner]

    def count(self, owner: str) -> int:
        """Return the number of an owner's rows, also of some that are gone."""
        return len(self._rows.get(owner, ()))

    def _refusal(self, owner: str, row: R, now: float) -> QuotaUsedUpError | None:
        if self._owner_of.get(row) == owner:
            return None
        if self.count(owner) >= self.rows_max:
            self._look_at(self._rows[owner], _OWN_LOOKED_AT)
        if self.count(owner) >= self.rows_max:
            what = f"{self.count(owner)} {self.what}, the most that one may have"
            return self._used_up(self.name, owner, what)
        if self.new_max is not None and self._new_within_minute(owner, now) >= self.new_max:
            what = f"{self.new_max} {self.what} within a minute, the most that one may"
            return self._used_up(self.new_name, owner, f"{what}: try again later")
        return None

    def _count(self, owner: str, row: R, now: float) -> None:
        former = self._owner_of.get(row)
        if former == owner:
            return
        if self.new_max is not None:
            self._count_within_minute(owner, now)
        if former is not None:
            self.release(row)
        self._look_at(self._owner_of, _LOOKED_AT)
        self._owner_of[row] = owner
        self._rows.setdefault(owner, OrderedDict())[row] = None

    def _used_up(self, name: str, owner: str, what: str) -> QuotaUsedUpError:
        text = f"quota [remoting] {name}: {owner} has made {what}"
        return QuotaUsedUpError(text, code=ResponseCode.SYSTEM_ERROR, quota=name, owner=owner)

    def _look_at(self, rows: OrderedDict[R, Any], count: int) -> None:
        """Forget those of the first rows that the table no longer has; others become the last."""
        for row in list(itertools.islice(rows, count)):
            if self.has_row(row):
                rows.move_to_end(row)
            else:
                self.release(row)

    def _new_within_minute(self, owner: str, now: float) -> int:
        minute = self._minutes.get(owner)
        return 0 if minute is None or now - minute.began >= MINUTE_S else minute.new

    def _count_within_minute(self, owner: str, now: float) -> None:
        minute = self._minutes.get(owner)
        if minute is None or now - minute.began >= MINUTE_S:
            self._minutes.pop(owner, None)
            minute = self._minutes[owner] = _Minute(now)
            if len(self._minutes) > OWNERS_MAX:
                del self._minutes[next(iter(self._minutes))]
        minute.new += 1


@final
@attrs.define(eq=False)
class QuotaRefusals:
    """The requests that a node has refused because a quota was used up."""

    # By the name of the setting, or of a table's limit.
    counts: Counter[str] = attrs.field(factory=Counter, init=False)
    _refusal_log: PeerLog = attrs.field(factory=lambda: PeerLog(_log, "quota_used_up"), init=False)

    def record(self, peer: tuple[str, int], error: QuotaUsedUpError) -> None:
        """Count a refused request of ``peer``, and log it."""
        self.counts[error.quota] += 1
        kind = f"{error.quota} of {error.owner}"
        self._refusal_log.log_line(peer, kind=kind, reason=str(error))
