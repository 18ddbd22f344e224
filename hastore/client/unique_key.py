"""UNIQ_KEY, a message's unique name from its producer, in RocketMQ's form.

::

    20 hex digits  this producer (RocketMQ: address, process id, class loader; here: random)
     8 hex digits  milliseconds since the month began (stock tools read a message's time here)
     4 hex digits  counter

Source: RocketMQ 4.9.8 ``MessageClientIDSetter``.

Invariant: one maker never returns the same key twice, whatever the clock does: when the counter
overflows, the first part is incremented.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from hastore.env.interface import Randomness

_RANDOM_BITS: Final = 40  # a float in [0, 1) has 53 random bits
_PRODUCER_BITS: Final = 80
_COUNTER_MAX: Final = 0xFFFF
_TIME_MASK: Final = 0xFFFF_FFFF


@final
class UniqueKeyMaker:
    """Makes the keys of one producer."""

    def __init__(self, randomness: Randomness, now_ms: int) -> None:
        high, low = (int(randomness.random() * (1 << _RANDOM_BITS)) for _ in range(2))
        self._producer = high << _RANDOM_BITS | low
        self._prefix = f"{self._producer:020X}"
        self._counter = 0
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        month = datetime(now.year, now.month, 1, tzinfo=UTC)
        self._month_ms = int(month.timestamp()) * 1000

    def make(self, now_ms: int) -> str:
        """Return the next key."""
        if self._counter == _COUNTER_MAX:
            self._producer = (self._producer + 1) % (1 << _PRODUCER_BITS)
            self._prefix = f"{self._producer:020X}"
            self._counter = 0
        self._counter += 1
        return f"{self._prefix}{now_ms - self._month_ms & _TIME_MASK:08X}{self._counter:04X}"
