"""Whether a node's clock can be trusted, as ``status`` shows it."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ClockStatus:
    """Whether this machine's wall clock can be trusted (``ClockVerdict``)."""

    trust: str  # "confirmed", "plausible", "unconfirmed" or "contradicted"
    in_doubt_because: str | None  # None: it is not; else no file is deleted because of its age
    hint: str | None
    leads_s: dict[str, float] = attrs.field(factory=dict)  # this clock minus each other one
    corrected_by_s: float = 0.0  # what a master adds to the clock for its store times
    store_time_lead_s: float = 0.0  # how far the log's last store time is ahead; 0: it is not
