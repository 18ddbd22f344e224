"""The states of a master's connection to one slave: the table, and no transition elsewhere.

::

    CONNECTED --first report--> CATCHING_UP --acknowledged the end--> STREAMING
        |                            ^  |                               |
        |                            |  +---------- fell behind <-------+
        +--illegal report--> REFUSED |
      any state --link ended--> CLOSED
"""

from __future__ import annotations

import enum
from typing import Final

from hastore.status import HAConnectionState


class HAConnectionEvent(enum.Enum):
    """What can happen to a connection."""

    FIRST_REPORT = "first-report"
    CAUGHT_UP = "caught-up"
    FELL_BEHIND = "fell-behind"
    ILLEGAL_REPORT = "illegal-report"
    LINK_ENDED = "link-ended"


_S = HAConnectionState
_E = HAConnectionEvent

TRANSITIONS: Final[dict[tuple[HAConnectionState, HAConnectionEvent], HAConnectionState]] = {
    (_S.CONNECTED, _E.FIRST_REPORT): _S.CATCHING_UP,
    (_S.CATCHING_UP, _E.CAUGHT_UP): _S.STREAMING,
    (_S.STREAMING, _E.CAUGHT_UP): _S.STREAMING,
    (_S.CATCHING_UP, _E.FELL_BEHIND): _S.CATCHING_UP,
    (_S.STREAMING, _E.FELL_BEHIND): _S.CATCHING_UP,
    (_S.CONNECTED, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.CATCHING_UP, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.STREAMING, _E.ILLEGAL_REPORT): _S.REFUSED,
    (_S.CONNECTED, _E.LINK_ENDED): _S.CLOSED,
    (_S.CATCHING_UP, _E.LINK_ENDED): _S.CLOSED,
    (_S.STREAMING, _E.LINK_ENDED): _S.CLOSED,
    (_S.REFUSED, _E.LINK_ENDED): _S.REFUSED,
    (_S.CLOSED, _E.LINK_ENDED): _S.CLOSED,
}


def next_state(state: HAConnectionState, event: HAConnectionEvent) -> HAConnectionState:
    """Return the state after ``event``; a pair that is not in the table is a programmer's error."""
    assert (state, event) in TRANSITIONS, f"{event.value} in state {state.value}"
    return TRANSITIONS[state, event]
