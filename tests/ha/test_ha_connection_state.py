"""The transition table of a slave's connection."""

import pytest

from hastore.ha.ha_connection_state import TRANSITIONS, HAConnectionEvent, next_state
from hastore.status import HAConnectionState


def test_every_state_but_the_last_is_left_when_the_link_ends():
    """Whatever the state, the end of the link is known, and a refusal stays visible."""
    for state in HAConnectionState:
        ended = next_state(state, HAConnectionEvent.LINK_ENDED)
        refused = state is HAConnectionState.REFUSED
        assert ended is (HAConnectionState.REFUSED if refused else HAConnectionState.CLOSED)


def test_a_pair_outside_the_table_is_a_programmers_error():
    """There is no transition that the table does not name."""
    for state in HAConnectionState:
        for event in HAConnectionEvent:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(AssertionError):
                    next_state(state, event)
