"""Which classic slaves a promoted master has sent its own bytes, so that no other log slips in.

A promotion starts where the log ended: what follows is this master's alone.  The classic protocol
carries a peer's address and where its log ends, so the end says::

    ──────── the former master's log ────────┬──── this master's ────▶
                                           start
       a slave ends here: served             │  a slave ends here: this master must have sent it
                                             │  these bytes, or they are another master's

A slave counts as served from the moment at which bytes beyond the start may be sent to it; that is
durable before they are, so a slave that has them is never taken for another one.  The peer is an
address, because its port changes; of several slaves of one address each needs a row of its own
while it is connected.  A slave that reconnects before the old link is known to be dead takes its
row over, if it ends between what that link has acknowledged and what it was sent.

A slave that is not known is asked whether it compares: a heartbeat one byte after the report makes
a hastore slave connect again and begin exactly there (``SlaveCursor``'s ASK_LATER), and it compares
its bytes before it appends.  A RocketMQ slave only closes the link and reports its end again: it is
refused.

Pure: ``RefusedSlavesFile`` keeps the rows.

Invariants: no limit is exceeded; a row that is held is not evicted; without a promotion there are
no rows; addresses are normalized (``one_spelling``).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs

from hastore.concurrency.peers import one_spelling, peer_key
from hastore.wire.ha_frames import FIRST_OFFSET_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

PER_PEER_MAX: Final = 32  # rows of a peer: an IPv4 address, or the /64 of an IPv6 address
SERVED_MAX: Final = 1_024
QUESTIONS_MAX: Final = 1_024  # that are not answered yet
_OFFSET_MAX: Final = (1 << 63) - 1


class Admission(enum.Enum):
    """What to do with a slave's first report."""

    SERVE = "serve"
    SERVE_TRUSTED = "serve-trusted"  # an operator said so
    COMPARES = "compares"  # serve it: it has answered the question
    ASK = "ask"  # whether it compares
    REFUSE = "refuse"  # it did not answer: its log may be another master's


class ServedLink(Protocol):
    """A link's offsets: its SlaveProgress."""

    ack_offset: int | None
    next_transfer_from_where: int | None
    counts_as_ack: bool
    ended_because: str | None


@final
@attrs.define(eq=False, kw_only=True)
class ServedSlave:
    """A slave that this master may have sent bytes beyond the promotion's start."""

    address: str
    ack_offset: int | None  # the end of what it had when its last link ended; None: not known
    time_ms: int  # wall clock: of the last link's begin or end
    link: ServedLink | None = None  # its newest in this process

    @property
    def is_held(self) -> bool:
        """Whether its link has not ended."""
        return self.link is not None and self.link.ended_because is None

    def may_be_at(self, offset: int) -> bool:
        """Return whether the slave on the link can have a log that ends at ``offset`` now."""
        link = self.link
        if link is None or not link.counts_as_ack:
            return False
        assert link.ack_offset is not None
        assert link.next_transfer_from_where is not None
        return link.ack_offset <= offset <= link.next_transfer_from_where


@final
@attrs.define(eq=False)
class ServedSlaves:
    """The slaves served since a promotion, oldest first."""

    start: int | None = None  # of the promotion: where the log ended; None: there was none
    time_ms: int = 0  # of the promotion
    # Pairs of address and offset that an operator vouches for; each counts once.
    trusted: set[tuple[str, int]] = attrs.field(factory=set)
    _rows: list[ServedSlave] = attrs.field(factory=list, init=False)
    # Pairs of address and the offset at which a slave that compares begins next; oldest first.
    _questions: dict[tuple[str, int], None] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        """Number of slaves."""
        return len(self._rows)

    def __iter__(self) -> Iterator[ServedSlave]:
        """Iterate over all slaves, oldest first."""
        return iter(self._rows)

    def promote(self, start: int, now_ms: int) -> bool:
        """Begin a promotion at ``start``; return whether it is another one than before."""
        if self.start == start:
            return False
        self.start, self.time_ms = start, now_ms
        self._rows.clear()
        self._questions.clear()
        return True

    def knows(self, address: str) -> bool:
        """Return whether a slave of ``address`` has been served."""
        address = one_spelling(address)
        return any(row.address == address for row in self._rows)

    def admit(self, address: str, offset: int, *, is_refused: bool = False) -> Admission:
        """Decide about a first report of ``offset``, which is in the log or a new slave's request.

        ``is_refused``: it was refused here earlier.  A slave to serve needs a row: ``hold``.
        """
        address = one_spelling(address)
        if (address, offset) in self.trusted:
            return Admission.SERVE_TRUSTED
        if not is_refused and self._may_be_served(address, offset):
            return Admission.SERVE
        if (address, offset) in self._questions:
            del self._questions[address, offset]
            return Admission.COMPARES
        question = address, offset + 1
        if question not in self._questions:
            if len(self._questions) >= QUESTIONS_MAX:
                del self._questions[next(iter(self._questions))]
            self._questions[question] = None
            return Admission.ASK
        return Admission.REFUSE

    def _may_be_served(self, address: str, offset: int) -> bool:
        if self.start is None or offset <= max(self.start, FIRST_OFFSET_MIN - 1):
            return True
        return self._find(address, offset) is not None

    def hold(self, address: str, offset: int, link: ServedLink, now_ms: int) -> bool:
        """Let a link that is to be served have a row; return whether the rows have changed.

        Without room for one the slave is served, but not known later.
        """
        address = one_spelling(address)
        self.trusted.discard((address, offset))
        if self.start is None:
            return False
        row = self._find(address, offset)
        if row is not None:
            row.link = link
            return False
        if not self._make_room(address):
            return False
        self._rows.append(ServedSlave(address=address, ack_offset=None, time_ms=now_ms, link=link))
        return True

    def release(self, link: ServedLink, now_ms: int) -> bool:
        """Take the offsets of a link that has ended; return whether the rows have changed."""
        row = next((row for row in self._rows if row.link is link), None)
        if row is None:
            return False
        assert self.start is not None
        row.link = None
        sent, acked = link.next_transfer_from_where, link.ack_offset
        if row.ack_offset is None and (sent is None or sent <= self.start):
            self._rows.remove(row)  # it has none of our bytes
            return True
        if link.counts_as_ack and acked is not None and acked > self.start:
            row.ack_offset, row.time_ms = acked, now_ms
            return True
        return False

    def _find(self, address: str, offset: int) -> ServedSlave | None:
        """Return the row of a slave that may end at ``offset``: the nearest at or below it.

        One without our bytes is none of those that have acknowledged some.
        """
        assert self.start is not None
        rows = [row for row in self._rows if row.address == address]
        free = [row for row in rows if not row.is_held]
        if offset <= self.start:
            return next((row for row in free if row.ack_offset is None), None)
        if free:
            return max(free, key=lambda row: _nearness(row.ack_offset, offset))
        return next((row for row in rows if row.may_be_at(offset)), None)

    def _make_room(self, address: str) -> bool:
        """Return whether there is room for a row, if need be that of another slave.

        Those that have acknowledged something go last: scanners have not.
        """
        peer = peer_key(address)
        of_peer = [row for row in self._rows if peer_key(row.address) == peer]
        if len(of_peer) >= PER_PEER_MAX:
            candidates = of_peer
        elif len(self._rows) >= SERVED_MAX:
            candidates = self._rows
        else:
            return True
        free = [row for row in candidates if not row.is_held]
        if not free:
            return False
        self._rows.remove(min(free, key=lambda row: (row.ack_offset is not None, row.time_ms)))
        return True

    # -- the file's form -------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return the file's keys; none without a promotion."""
        if self.start is None:
            return {}
        rows = [
            {"address": row.address, "ack_offset": row.ack_offset, "time_ms": row.time_ms}
            for row in self._rows
        ]
        return {"promotion": {"start": self.start, "time_ms": self.time_ms}, "served": rows}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> tuple[ServedSlaves, str | None]:
        """Return the usable part of a file's content, and what is wrong with the rest."""
        promotion, rows = value.get("promotion"), value.get("served", [])
        if promotion is None:
            return cls(), None
        if not isinstance(promotion, dict) or not _are_offsets(
            promotion.get("start"), promotion.get("time_ms")
        ):
            return cls(), "its promotion cannot be used"
        table = cls(start=promotion["start"], time_ms=promotion["time_ms"])
        if not isinstance(rows, list):
            return table, "its served slaves cannot be used"
        wrong = sum(not table._take(row) for row in rows)
        return table, f"{wrong} of {len(rows)} served slaves cannot be used" if wrong else None

    def _take(self, row: Any) -> bool:
        """Add a row of a file; return whether it is valid and there is room."""
        if not isinstance(row, dict) or not isinstance(row.get("address"), str):
            return False
        ack_offset: Any = row.get("ack_offset")
        time_ms: Any = row.get("time_ms")
        if not _are_offsets(time_ms, 0 if ack_offset is None else ack_offset):
            return False
        address = one_spelling(row["address"])
        peer = peer_key(address)
        count = sum(peer_key(each.address) == peer for each in self._rows)
        if count >= PER_PEER_MAX or len(self._rows) >= SERVED_MAX:
            return False
        self._rows.append(ServedSlave(address=address, ack_offset=ack_offset, time_ms=time_ms))
        return True


def _nearness(ack_offset: int | None, offset: int) -> tuple[bool, int]:
    """Order rows: the highest at or below ``offset``, then the lowest above it."""
    ack_offset = ack_offset or 0
    return ack_offset <= offset, -abs(offset - ack_offset)


def _are_offsets(*numbers: Any) -> bool:
    return all(type(number) is int and 0 <= number <= _OFFSET_MAX for number in numbers)
