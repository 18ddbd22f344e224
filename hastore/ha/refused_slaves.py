"""The slaves whose logs were longer than ours: refused then, and for good.

The classic protocol tells of a peer its address and where its log ends, and nothing else.  A slave
that once reported an end beyond ours holds another log.  It is sent nothing, so it keeps reporting
that offset; ours grows past it, and then the same report looks like that of a slave which lags.  So
the pair is remembered, and the file ``DIR/refused_slaves.json`` makes that last::

    {
      "schema": "hastore.refused-slaves/1",
      "refused": [
        {"address": "10.0.0.7", "offset": 5242880, "master_end": 1048576, "time_ms": 1763823972000}
      ]
    }

``offset`` is what the slave reported, ``master_end`` where the master's log ended then.

Nobody may fill the table: an offset that our log could not reach in years is not remembered (a port
scan reports such), nor one that came along with other bytes (a client's request; see
``ReadSocketService``).  One peer has ``PER_PEER_MAX`` places, all have ``REFUSALS_MAX``.  What is
remembered is never evicted.  Places come free as the log's front expires: a slave at a deleted
offset is refused for that.

Invariants: ``master_end`` < ``offset``; no limit is ever exceeded; addresses are in one spelling.
"""

from __future__ import annotations

import enum
import ipaddress
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.concurrency.peers import peer_key
from hastore.errors import ProtocolError
from hastore.wire.ha_frames import REPORT_FROM_LAST_FILE
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA: Final = "hastore.refused-slaves/1"
PER_PEER_MAX: Final = 32  # a peer: an IPv4 address, or the /64 of an IPv6 address
REFUSALS_MAX: Final = 1_024
# 64 PiB: two years at 1 GiB/s.  Text, TLS and most of what else is said to a wrong port read as
# offsets further ahead than that.
AHEAD_MAX: Final = 1 << 56
_OFFSET_MAX: Final = (1 << 63) - 1


class RefusalOutcome(enum.Enum):
    """What became of a refusal that was to be remembered."""

    REMEMBERED = "remembered"
    KNOWN = "known"
    ABSURD = "absurd"  # no log ends there
    FULL = "full"


@attrs.frozen(kw_only=True)
class RefusedSlave:
    """A slave that reported ``offset`` when the master's log ended at ``master_end``."""

    address: str
    offset: int
    master_end: int
    time_ms: int


@final
class RefusedSlaves:
    """The pairs of address and offset that stay refused, the oldest first."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], RefusedSlave] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._rows)

    def __iter__(self) -> Iterator[RefusedSlave]:
        """Go through all, the oldest first."""
        return iter(self._rows.values())

    def find(self, address: str, offset: int) -> RefusedSlave | None:
        """Return the refusal that a first report of ``offset`` from ``address`` repeats."""
        if not self._rows:
            return None
        return self._rows.get((one_spelling(address), offset))

    def add(self, refused: RefusedSlave) -> RefusalOutcome:
        """Remember one, if there is a place for it."""
        refused = attrs.evolve(refused, address=one_spelling(refused.address))
        pair = refused.address, refused.offset
        if pair in self._rows:
            return RefusalOutcome.KNOWN
        if refused.offset - refused.master_end > AHEAD_MAX:
            return RefusalOutcome.ABSURD
        peer = peer_key(refused.address)
        if len(self._rows) >= REFUSALS_MAX or self._counts[peer] >= PER_PEER_MAX:
            return RefusalOutcome.FULL
        self._rows[pair] = refused
        self._counts[peer] += 1
        return RefusalOutcome.REMEMBERED

    def forget(self, address: str, offset: int) -> bool:
        """Forget one pair; whether it was there."""
        refused = self._rows.pop((one_spelling(address), offset), None)
        if refused is None:
            return False
        self._counts[peer_key(refused.address)] -= 1
        return True

    def forget_before(self, min_offset: int) -> bool:
        """Forget what is refused as expired anyway; whether that was any."""
        gone = [refused for refused in self if refused.offset < min_offset]
        for refused in gone:
            self.forget(refused.address, refused.offset)
        return bool(gone)

    def encode(self) -> bytes:
        """Make the file's content."""
        rows = [attrs.asdict(refused) for refused in self]
        return json.dumps({"schema": SCHEMA, "refused": rows}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, what: str) -> tuple[RefusedSlaves, str | None]:
        """Read a file's content: all rows that make sense, and what is wrong with the others."""
        table = cls()
        try:
            value = loads_object(data, what)
        except ProtocolError as error:
            return table, str(error)
        rows = value.get("refused")
        if value.get("schema") != SCHEMA or not isinstance(rows, list):
            return table, f"{what} is no {SCHEMA}"
        wrong = sum(not _take(table, row) for row in rows)
        return table, f"{what}: {wrong} of {len(rows)} rows cannot be used" if wrong else None


def _take(table: RefusedSlaves, row: Any) -> bool:
    """Add a row of a file; whether it makes sense and there was a place."""
    if not isinstance(row, dict) or not isinstance(row.get("address"), str):
        return False
    numbers: list[Any] = [row.get(name) for name in ("offset", "master_end", "time_ms")]
    if any(type(number) is not int or not 0 <= number <= _OFFSET_MAX for number in numbers):
        return False
    offset, master_end, time_ms = numbers
    if master_end >= offset or offset <= REPORT_FROM_LAST_FILE:
        return False
    refused = RefusedSlave(
        address=row["address"], offset=offset, master_end=master_end, time_ms=time_ms
    )
    return table.add(refused) in {RefusalOutcome.REMEMBERED, RefusalOutcome.KNOWN}


def one_spelling(address: str) -> str:
    """Return an address in one spelling: IPv4 through an IPv6 socket is the same host."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or parsed)
