"""One message of a simulated producer: its answer, and what the oracles recorded about it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, final

import attrs

from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from hastore.sim.cluster import Boot


class PutOutcome(enum.Enum):
    """What a producer knows about its put."""

    OK = "ok"
    FAILED = "failed"  # never in the log
    UNKNOWN = "unknown"  # may be in the log, once


def outcome_of(status: PutMessageStatus) -> PutOutcome:
    """Return what a producer knows after the answer ``status``."""
    if status is PutMessageStatus.PUT_OK:
        return PutOutcome.OK
    if status.stored or status is PutMessageStatus.UNKNOWN_ERROR:
        return PutOutcome.UNKNOWN
    return PutOutcome.FAILED


@final
@attrs.define(eq=False)
class Put:
    """One message of a producer."""

    number: int
    key: bytes
    topic: str = ""  # a group's
    outcome: PutOutcome | None = None
    status: PutMessageStatus | None = None
    physic_offset: int = -1
    next_offset: int = -1
    at: float = 0.0  # answered
    submitted_at: float = 0.0
    had_slave: bool = False  # a slave was connected when it was submitted
    waits_for_file: bool = False  # it is appended later, when there is a next file
    had_near_slave: bool = False  # an available slave that has reported was connected then
    was_well: bool = False  # nothing was wrong with the cluster then or shortly before
    was_followed: bool = False  # likewise, and a slave had all records below this one
    boot: Boot | None = None  # the master's boot that owes the answer
