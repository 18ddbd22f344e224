"""How a slave's links follow each other: the table, and no transition elsewhere.

::

                      matched                new link
        COMPARING ───────────────► IN_STEP ───────────► COMPARING
            │                         ▲
            │ other log, expired      │ matched
            ▼                         │
        IN_DOUBT ─────────────────────┘
            │ other log, expired
            ▼
        GIVEN_UP ◄─── file size differs, own damage: from every step

A link that breaks changes nothing: another one is made after a back-off.  One link that shows
another log than ours may have been changed on the way, so it only raises a doubt; a second one in a
row ends the attempts.  In step our log has been compared, so what does not fit is a bad link.
"""

from __future__ import annotations

import enum
from typing import Final

from hastore.errors import (
    DivergedError,
    ExpiredError,
    FileSizeMismatchError,
    LogDamagedError,
)
from hastore.status import HAClientState


class LinkStep(enum.Enum):
    """How far the newest link is, and what the one before it has shown."""

    COMPARING = "comparing"  # nothing has come, or only bytes that our log has
    IN_DOUBT = "in-doubt"  # the same, and the link before showed another log than ours
    IN_STEP = "in-step"  # our log's end is in the master's log: what comes is appended
    GIVEN_UP = "given-up"  # there is no further link until somebody has looked


class LinkEvent(enum.Enum):
    """What can happen to a slave's link."""

    NEW_LINK = "new-link"
    FRAME = "frame"  # a frame or a heartbeat that fits our log
    MATCHED = "matched"  # what our log ends with has come again, and is the same
    BROKEN = "broken"
    OTHER_LOG = "other-log"
    EXPIRED = "expired"  # the master has deleted what we need
    FILE_SIZE_DIFFERS = "file-size-differs"
    DAMAGED = "damaged"  # a record of our log is wrong; perhaps its master's is, too
    OWN_DAMAGE = "own-damage"  # it is not
    STOPPED = "stopped"


class LinkAction(enum.Enum):
    """What the HAClient must do."""

    CONNECT = "connect"
    APPEND = "append"
    GO_ON = "go-on"
    BACK_OFF = "back-off"
    CALL_BROKEN = "call-broken"  # back off from a link that makes no sense any more
    COMPARE_DAMAGE = "compare-damage"
    GIVE_UP_DIVERGED = "give-up-diverged"  # and tell the master
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
    (_S.IN_DOUBT, _E.STOPPED): (_S.IN_DOUBT, _A.STOP),
    (_S.IN_STEP, _E.NEW_LINK): (_S.COMPARING, _A.CONNECT),
    (_S.IN_STEP, _E.FRAME): (_S.IN_STEP, _A.APPEND),
    (_S.IN_STEP, _E.BROKEN): (_S.IN_STEP, _A.BACK_OFF),
    (_S.IN_STEP, _E.OTHER_LOG): (_S.IN_STEP, _A.CALL_BROKEN),
    (_S.IN_STEP, _E.EXPIRED): (_S.IN_STEP, _A.CALL_BROKEN),
    (_S.IN_STEP, _E.FILE_SIZE_DIFFERS): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_STEP, _E.DAMAGED): (_S.IN_STEP, _A.COMPARE_DAMAGE),
    (_S.IN_STEP, _E.OWN_DAMAGE): (_S.GIVEN_UP, _A.GIVE_UP),
    (_S.IN_STEP, _E.STOPPED): (_S.IN_STEP, _A.STOP),
    (_S.GIVEN_UP, _E.STOPPED): (_S.GIVEN_UP, _A.STOP),
}

# What ``status`` shows from an action on; GO_ON changes nothing there.
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
    DivergedError: _E.OTHER_LOG,
    ExpiredError: _E.EXPIRED,
    FileSizeMismatchError: _E.FILE_SIZE_DIFFERS,
    LogDamagedError: _E.DAMAGED,
}


def event_of(error: Exception) -> LinkEvent:
    """Return what the error that a link ended with means."""
    return _EVENTS.get(type(error), LinkEvent.BROKEN)


def transition(step: LinkStep, event: LinkEvent) -> tuple[LinkStep, LinkAction]:
    """Return the step after ``event`` and what to do; a missing pair is a programmer's error."""
    assert (step, event) in TRANSITIONS, f"{event.value} in step {step.value}"
    return TRANSITIONS[step, event]
