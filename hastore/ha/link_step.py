"""The step of a slave's newest link, and the one table of all transitions between steps.

::

                      matched                new link
        COMPARING ───────────────► IN_STEP ───────────► COMPARING
            │                         ▲
            │ other log, expired      │ matched
            ▼                         │
        IN_DOUBT ─────────────────────┘
            │ other log, expired
            ▼
        GIVEN_UP ◄─── file size differs, own damage, cut refused: from every step

Any other event keeps the step; after a broken link another one follows with back-off, also after a
refusal because another node has our id: that node may not be the one that the id belongs to.  Bytes
that do not match our log may have been changed on the way, so the first such link only raises a
doubt; the second in a row ends the attempts.  In step our log has been compared, so bytes that do
not fit mean a bad link.
"""

from __future__ import annotations

import enum
from typing import Final

from hastore.errors import (
    BelowConfirmMarkError,
    DivergedError,
    ExpiredError,
    FileSizeMismatchError,
    ForeignGroupError,
    LogDamagedError,
)
from hastore.status import HAClientState


class LinkStep(enum.Enum):
    """How far the newest link is, and what the one before it showed."""

    COMPARING = "comparing"  # nothing has arrived yet, or only bytes that our log has
    IN_DOUBT = "in-doubt"  # comparing, and the link before showed another log
    IN_STEP = "in-step"  # our log is a prefix of the master's: new bytes are appended
    GIVEN_UP = "given-up"  # no further link: an operator must decide


class LinkEvent(enum.Enum):
    """An event on a slave's link."""

    NEW_LINK = "new-link"
    FRAME = "frame"  # a frame or a heartbeat that fits our log
    MATCHED = "matched"  # the last bytes of our log have arrived again, and are equal
    BROKEN = "broken"
    OTHER_LOG = "other-log"  # bytes or offsets that do not match our log
    EXPIRED = "expired"  # the master has deleted bytes that we need
    FILE_SIZE_DIFFERS = "file-size-differs"
    DAMAGED = "damaged"  # a record of our log is damaged, perhaps the master's, too
    OWN_DAMAGE = "own-damage"  # the master's record is intact
    CUT_REFUSED = "cut-refused"  # what our log has beyond the master's must not be cut
    STOPPED = "stopped"


class LinkAction(enum.Enum):
    """What the HAClient must do next."""

    CONNECT = "connect"
    APPEND = "append"
    GO_ON = "go-on"
    BACK_OFF = "back-off"
    CALL_BROKEN = "call-broken"  # back off as from a broken link
    COMPARE_DAMAGE = "compare-damage"  # fetch the master's record
    GIVE_UP_DIVERGED = "give-up-diverged"  # give up, and notify the master
    GIVE_UP = "give-up"
    STOP = "stop"


_S, _E, _A = LinkStep, LinkEvent, LinkAction

TRANSITIONS: Final[dict[tuple[LinkStep, LinkEvent], tuple[LinkStep, LinkAction]]] = {
    (_S.COMPARING, _E.NEW_LINK): (_S.COMPARING, _A.CONNECT),
    (_S.COMPARING, _E.FRAME): (_S.COMPARING, _A.APPEND),
    (_S.COMPARING, _E.MATCHED): (_S.IN_STEP, _A.GO_ON),
    (_S.COMPARING, _E.BROKEN): (_S.COMPARING, _A.BACK_OFF),
    (_S.COMPARING, _E.OTHER_LOG): (_S.IN_DOUBT, _A.BACK_OFF),
    (_S.COMPARING, _E.EXPIRED): (_S.IN_DOUBT, _A.BACK_OFF),
    (_S.COMPARING, _E.FILE_SIZE_DIFFERS): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.COMPARING, _E.DAMAGED): (_S.COMPARING, _A.COMPARE_DAMAGE),
    (_S.COMPARING, _E.OWN_DAMAGE): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.COMPARING, _E.CUT_REFUSED): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.COMPARING, _E.STOPPED): (_S.COMPARING, _A.STOP),
    (_S.IN_DOUBT, _E.NEW_LINK): (_S.IN_DOUBT, _A.CONNECT),
    (_S.IN_DOUBT, _E.FRAME): (_S.IN_DOUBT, _A.APPEND),
    (_S.IN_DOUBT, _E.MATCHED): (_S.IN_STEP, _A.GO_ON),
    (_S.IN_DOUBT, _E.BROKEN): (_S.IN_DOUBT, _A.BACK_OFF),
    (_S.IN_DOUBT, _E.OTHER_LOG): (_S.GIVEN_UP, _A.GIVE_UP_DIVERGED),
    (_S.IN_DOUBT, _E.EXPIRED): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_DOUBT, _E.FILE_SIZE_DIFFERS): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_DOUBT, _E.DAMAGED): (_S.IN_DOUBT, _A.COMPARE_DAMAGE),
    (_S.IN_DOUBT, _E.OWN_DAMAGE): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_DOUBT, _E.CUT_REFUSED): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_DOUBT, _E.STOPPED): (_S.IN_DOUBT, _A.STOP),
    (_S.IN_STEP, _E.NEW_LINK): (_S.COMPARING, _A.CONNECT),
    (_S.IN_STEP, _E.FRAME): (_S.IN_STEP, _A.APPEND),
    (_S.IN_STEP, _E.BROKEN): (_S.IN_STEP, _A.BACK_OFF),
    (_S.IN_STEP, _E.OTHER_LOG): (_S.IN_STEP, _A.CALL_BROKEN),
    (_S.IN_STEP, _E.EXPIRED): (_S.IN_STEP, _A.CALL_BROKEN),
    (_S.IN_STEP, _E.FILE_SIZE_DIFFERS): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_STEP, _E.DAMAGED): (_S.IN_STEP, _A.COMPARE_DAMAGE),
    (_S.IN_STEP, _E.OWN_DAMAGE): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_STEP, _E.CUT_REFUSED): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_STEP, _E.STOPPED): (_S.IN_STEP, _A.STOP),
    (_S.GIVEN_UP, _E.STOPPED): (_S.GIVEN_UP, _A.STOP),
}

# The state that ``status`` shows after an action; GO_ON keeps the one before.
SHOWN: Final[dict[LinkAction, HAClientState]] = {
    _A.CONNECT: HAClientState.CONNECTING,
    _A.APPEND: HAClientState.STREAMING,
    _A.BACK_OFF: HAClientState.BACKING_OFF,
    _A.CALL_BROKEN: HAClientState.BACKING_OFF,
    _A.COMPARE_DAMAGE: HAClientState.BACKING_OFF,
    _A.GIVE_UP_DIVERGED: HAClientState.DIVERGED,
    _A.GIVE_UP: HAClientState.FAILED,
    _A.STOP: HAClientState.STOPPED,
}

_EVENTS: Final[dict[type[Exception], LinkEvent]] = {
    BelowConfirmMarkError: _E.CUT_REFUSED,
    DivergedError: _E.OTHER_LOG,
    ForeignGroupError: _E.OTHER_LOG,
    ExpiredError: _E.EXPIRED,
    FileSizeMismatchError: _E.FILE_SIZE_DIFFERS,
    LogDamagedError: _E.DAMAGED,
}


def event_of(error: Exception) -> LinkEvent:
    """Return the event for the error that ended a link."""
    return _EVENTS.get(type(error), LinkEvent.BROKEN)


def transition(step: LinkStep, event: LinkEvent) -> tuple[LinkStep, LinkAction]:
    """Return the step after ``event`` and what to do; the pair must be in ``TRANSITIONS``."""
    assert (step, event) in TRANSITIONS, f"{event.value} in step {step.value}"
    return TRANSITIONS[step, event]
