"""Failed attempts to prove a key, by address: after a few of them no more are taken for a while.

Invariant: at most ``PEERS_MAX`` addresses are remembered; for IPv6 an address is its /64.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from hastore.concurrency.peers import peer_key

ATTEMPTS_MAX: Final = 10  # that fail, of one address within PERIOD_S
PERIOD_S: Final = 60.0
PEERS_MAX: Final = 4_096


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

    def record(self, host: str, now: float) -> None:
        """Count a failure."""
        self.total += 1
        key = peer_key(host)
        failures = self._recent.get(key)
        if failures is None or now - failures.began >= PERIOD_S:
            self._recent.pop(key, None)
            failures = self._recent[key] = _Failures(now)
            if len(self._recent) > PEERS_MAX:
                del self._recent[next(iter(self._recent))]  # the oldest
        failures.count += 1

    def wait_s(self, host: str, now: float) -> float:
        """Return how long no attempt of an address is taken; 0: one is taken now."""
        failures = self._recent.get(peer_key(host)) if self._recent else None
        if failures is None or failures.count < ATTEMPTS_MAX:
            return 0.0
        return max(failures.began + PERIOD_S - now, 0.0)
