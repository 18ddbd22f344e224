"""The time for which a master may decide: its lease at the group's coordinator, counted carefully.

::

    request sent ─── answer ─────────────────────────── deadline ─── margin ─── the lease may end
    └──────────────── min(asked, granted) ttl ──────────────────────────────┘

The coordinator counts from some moment after the request was sent, so the deadline counts from
before that, and a margin is left for clocks that do not run alike.  So it is with the promises of
the members, while the coordinator is silent.

Invariant: the deadline never falls, but by ``end``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_MIN_S: Final = 3
DRIFT_MAX: Final = 0.02  # of two clocks, as a share of the time that passes
MARGIN_MIN_S: Final = 0.5


def margin_s(ttl_s: float) -> float:
    """Return how long before the end of a lease its holder stops deciding."""
    return MARGIN_MIN_S + DRIFT_MAX * ttl_s


@final
@attrs.define(eq=False)
class Lease:
    """A lease that its holder renews; ``clock`` returns seconds, and does not stop in a sleep."""

    clock: Callable[[], float]
    deadline: float = attrs.field(default=float("-inf"), init=False)
    _renewed_until: float = attrs.field(default=float("-inf"), init=False)  # by the coordinator

    def is_over(self) -> bool:
        """Return whether another node may be master now, so that nothing may be decided."""
        return self.clock() >= self.deadline

    def lasts(self) -> bool:
        """Return whether it is not over."""
        return self.clock() < self.deadline

    def renewed(self, sent_at: float, asked_s: float, granted_s: float) -> None:
        """Take a renewal that was asked for at ``sent_at``, and answered."""
        ttl_s = min(asked_s, granted_s)
        self._renewed_until = max(self._renewed_until, sent_at + ttl_s - margin_s(ttl_s))
        self.deadline = max(self.deadline, self._renewed_until)

    def promised(self, sent_at: float, ttl_s: float) -> float:
        """Take the promises of all members, asked for at ``sent_at``; return their deadline."""
        until = sent_at + ttl_s - margin_s(ttl_s)
        self.deadline = max(self.deadline, until)
        return until

    @property
    def rests_on_promises(self) -> bool:
        """Whether the coordinator's lease alone would be over before the deadline.

        Then a node that has not promised may be elected before it.
        """
        return self.deadline > self._renewed_until

    def end(self) -> None:
        """Decide nothing from now on."""
        self.deadline = self._renewed_until = float("-inf")
