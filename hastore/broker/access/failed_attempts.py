"""Failed attempts to prove a key, by address: after a few of them each one more is answered late.

A right signature is never delayed: peers behind one NAT or proxy have one address, and a wrong key
of one of them must not keep the others out.

Invariant: at most ``PEERS_MAX`` addresses are remembered; for IPv6 an address is its /64.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from hastore.concurrency.peers import peer_key

UNDELAYED_MAX: Final = 9  # failures of one address within PERIOD_S
PERIOD_S: Final = 60.0
PEERS_MAX: Final = 4_096
FIRST_DELAY_S: Final = 1.0  # doubles with each further failure
DELAY_MAX_S: Final = 30.0
_DOUBLINGS_MAX: Final = 10  # more than DELAY_MAX_S needs


@attrs.define
class _Failures:
    began: float
    count: int = 0


@final
@attrs.define(eq=False)
class FailedAttempts:
    """Counts failures; times must not fall."""

    total: int = 0
    _recent: dict[str, _Failures] = attrs.field(factory=dict, init=False)

    def record(self, host: str, now: float) -> float:
        """Count a failure; return how many seconds its answer is delayed, 0 at first."""
        self.total += 1
        key = peer_key(host)
        failures = self._recent.get(key)
        if failures is None or now - failures.began >= PERIOD_S:
            self._recent.pop(key, None)
            failures = self._recent[key] = _Failures(now)
            if len(self._recent) > PEERS_MAX:
                del self._recent[next(iter(self._recent))]  # the oldest
        failures.count += 1
        doublings = failures.count - UNDELAYED_MAX - 1
        if doublings < 0:
            return 0.0
        return min(FIRST_DELAY_S * 2.0 ** min(doublings, _DOUBLINGS_MAX), DELAY_MAX_S)
