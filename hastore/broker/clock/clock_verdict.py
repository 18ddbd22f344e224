"""Whether this machine's wall clock can be trusted: facts in, a verdict out.  Pure.

::

    other machines' clocks    most differ from ours           contradicted
                              at least half agree with ours   confirmed
                              none heard                      ours against the time since boot:
    expected ≤ ours ≤ expected + slack                        plausible
    later, after a reboot, and the kernel's clock is by NTP   plausible
    else                                                      unconfirmed, for at most the time
                                                              that log files are kept

*Expected* is the last wall time that was trusted, plus the time since then on the boot clock, which
no change of the wall clock moves.  How long a reboot took is not known: hence the ``slack``.

In doubt (contradicted or unconfirmed), no log file is deleted because of its age.  A doubt without
other clocks ends after the time that files are kept: by then each file from before it is old enough
by the boot clock, and each later file is dated by the clock as it is now.

Each machine has one vote, whatever runs there.  A clock that was read on this machine has none as
long as another machine's is known, because it is the same clock, some time ago; alone it can
contradict, but neither confirm nor correct.
"""

from __future__ import annotations

import enum
import statistics
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.quantities import format_span

if TYPE_CHECKING:
    from collections.abc import Iterable

TOLERANCE_MS: Final = 600_000  # a smaller difference is no doubt: files are kept for hours
NOTICED_MS: Final = 5_000  # a smaller difference between two machines is not mentioned
READING_AGE_MAX_MS: Final = 60_000  # an older reading does not count
_CORRECTED_BY_MIN: Final = 2  # so many other clocks agree before ours is corrected
_NAMED_MAX: Final = 4


@final
@attrs.frozen(kw_only=True)
class ClockReading:
    """What another machine's clock said.

    ``offset_ms`` is its wall time minus this machine's boot clock at that instant, so a step of our
    wall clock does not change it.  ``error_ms``: by how much it may be wrong.
    """

    who: str  # for people: "node 2's clock"
    host: str  # the machine, by its address on a connection; one vote each
    offset_ms: float
    error_ms: float
    boot_ms: float  # our boot clock when it was read
    is_own_machine: bool = False


@final
@attrs.frozen(kw_only=True)
class TrustedTime:
    """When the wall clock was trusted last; kept in the directory over restarts.

    ``slack_ms``: how much later than the boot clock says the wall time may be.  ``doubted_ms``: how
    long this node has run since then with a wall time out of that range and without other clocks.
    """

    boot_id: str | None
    boot_ms: float
    wall_ms: float
    slack_ms: float = 0.0
    doubted_ms: float = 0.0

    def lead_ms(self, wall_ms: float, boot_ms: float) -> float:
        """Return how far a wall time is outside the expected range; 0 inside, negative below."""
        lead = wall_ms - self.wall_ms - (boot_ms - self.boot_ms)
        return lead if lead < 0 else max(lead - self.slack_ms, 0.0)


class Trust(enum.Enum):
    """How far the wall clock can be trusted."""

    CONFIRMED = "confirmed"
    PLAUSIBLE = "plausible"
    UNCONFIRMED = "unconfirmed"
    CONTRADICTED = "contradicted"


@final
@attrs.frozen(kw_only=True)
class ClockVerdict:
    """What to think of the wall clock at one instant.

    ``leads_ms``: our clock minus each other one, by ``who``.  ``lead_ms``: how far ours is ahead of
    the clocks that contradict it, or of the expected time; negative if it is behind.
    ``is_corrected``: enough other clocks agree with each other to go by them instead.
    """

    trust: Trust
    lead_ms: float = 0.0
    leads_ms: dict[str, float] = attrs.field(factory=dict)
    others: str = ""  # the clocks that contradict ours
    is_corrected: bool = False

    @property
    def in_doubt(self) -> bool:
        """Whether nothing may be deleted because of its age."""
        return self.trust in {Trust.UNCONFIRMED, Trust.CONTRADICTED}

    @property
    def reason(self) -> str | None:
        """Why the clock is in doubt; None if it is not."""
        apart = format_span(abs(self.lead_ms) / 1000)
        direction = "ahead of" if self.lead_ms > 0 else "behind"
        if self.trust is Trust.CONTRADICTED:
            return f"this machine's clock is {apart} {direction} {self.others}"
        if self.trust is Trust.UNCONFIRMED:
            return (
                f"this machine's clock is {apart} {direction} the time that this node expects, and"
                " no other machine's clock is known"
            )
        return None


def judge(
    trusted: TrustedTime | None,
    readings: Iterable[ClockReading],
    *,
    wall_ms: float,
    boot_ms: float,
    keep_ms: float,
    is_synchronised: bool = False,
) -> ClockVerdict:
    """Judge the wall clock, which says ``wall_ms`` when the boot clock says ``boot_ms``.

    ``trusted`` None: nothing is known of the past.  ``is_synchronised``: this machine has booted
    since then, and its kernel takes the clock for right.
    """
    apart: list[tuple[ClockReading, float]] = []
    agreeing = 0
    leads: dict[str, float] = {}
    newest = _one_per_machine(readings, boot_ms)
    is_alone = all(reading.is_own_machine for reading in newest)
    for reading in newest:
        lead = wall_ms - boot_ms - reading.offset_ms
        leads[reading.who] = lead
        if reading.is_own_machine and not is_alone:
            continue
        if abs(lead) > TOLERANCE_MS + reading.error_ms:
            apart.append((reading, lead))
        elif not reading.is_own_machine:
            agreeing += 1
    if len(apart) > agreeing:
        middle = statistics.median(lead for _, lead in apart)
        near = sum(
            abs(lead - middle) <= TOLERANCE_MS + each.error_ms
            for each, lead in apart
            if not each.is_own_machine
        )
        names = [reading.who for reading, _ in apart]
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        return ClockVerdict(
            trust=Trust.CONTRADICTED,
            lead_ms=middle,
            leads_ms=leads,
            others=", ".join(names[:_NAMED_MAX]) + more,
            is_corrected=near >= _CORRECTED_BY_MIN and near > agreeing + len(apart) - near,
        )
    if agreeing:
        return ClockVerdict(trust=Trust.CONFIRMED, leads_ms=leads)
    lead = 0.0 if trusted is None else trusted.lead_ms(wall_ms, boot_ms)
    is_late_by_ntp = is_synchronised and lead > 0
    if (
        trusted is None
        or abs(lead) <= TOLERANCE_MS
        or trusted.doubted_ms >= keep_ms
        or is_late_by_ntp
    ):
        return ClockVerdict(trust=Trust.PLAUSIBLE, leads_ms=leads)
    return ClockVerdict(trust=Trust.UNCONFIRMED, lead_ms=lead, leads_ms=leads)


def _one_per_machine(readings: Iterable[ClockReading], boot_ms: float) -> list[ClockReading]:
    """Return the newest reading of each machine, without those that are too old.

    This machine is one, by whichever of its addresses it was asked.
    """
    newest: dict[str | None, ClockReading] = {}
    for reading in readings:
        machine = None if reading.is_own_machine else reading.host
        other = newest.get(machine)
        is_fresh = boot_ms - reading.boot_ms <= READING_AGE_MAX_MS
        if is_fresh and (other is None or other.boot_ms < reading.boot_ms):
            newest[machine] = reading
    return list(newest.values())
