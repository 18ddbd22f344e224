"""The transition table of a slave's links, row by row, and some sequences of events."""

import pytest

from hastore.errors import (
    BelowConfirmMarkError,
    DeposedMasterError,
    DiskError,
    DivergedError,
    ExpiredError,
    FileSizeMismatchError,
    ForeignGroupError,
    LogDamagedError,
    ProtocolError,
)
from hastore.ha.link_step import (
    SHOWN,
    TRANSITIONS,
    LinkAction,
    LinkEvent,
    LinkStep,
    event_of,
    transition,
)
from hastore.ha.slave_cursor import SlaveCursor
from hastore.status import HAClientState, SlaveStart

# The next step and the action; "-": cannot happen.  C, D, S, G: the steps, in the enum's order.
ROWS = """
                    comparing            in-doubt             in-step              given-up
new-link            C connect            D connect            C connect            -
frame               C append             D append             S append             -
matched             S go-on              S go-on              -                    -
broken              C back-off           D back-off           S back-off           -
other-log           D back-off           G give-up-diverged   S call-broken        -
expired             D back-off           G give-up            S call-broken        -
file-size-differs   G give-up            G give-up            G give-up            -
damaged             C compare-damage     D compare-damage     S compare-damage     -
own-damage          G give-up            G give-up            G give-up            -
cut-refused         G give-up            G give-up            G give-up            -
stopped             C stop               D stop               S stop               G stop
"""
LETTERS = dict(zip("CDSG", LinkStep, strict=True))


def rows():
    """Yield every pair of step and event in ``ROWS`` with its next step and action, or None."""
    for line in ROWS.strip().splitlines()[1:]:
        event, *cells = line.replace(" -", " - -").split()
        for number, step in enumerate(LinkStep):
            letter, action = cells[2 * number : 2 * number + 2]
            follows = None if letter == "-" else (LETTERS[letter], LinkAction(action))
            yield step, LinkEvent(event), follows


@pytest.mark.parametrize(("step", "event", "follows"), list(rows()))
def test_each_pair_has_the_transition_of_its_row(step, event, follows):
    """A pair without a transition is a programmer error."""
    if follows is None:
        with pytest.raises(AssertionError):
            transition(step, event)
    else:
        assert transition(step, event) == follows


def test_rows_list_every_pair():
    """A row that is missing in ``ROWS`` or in ``TRANSITIONS`` is found."""
    listed = {(step, event): follows for step, event, follows in rows()}
    assert set(listed) == {(step, event) for step in LinkStep for event in LinkEvent}
    assert {pair for pair, follows in listed.items() if follows is not None} == set(TRANSITIONS)


def test_every_action_except_go_on_has_a_state():
    """``status`` shows a state for each action, and each state of a link comes from an action."""
    assert set(SHOWN) == set(LinkAction) - {LinkAction.GO_ON}
    assert set(SHOWN.values()) == set(HAClientState) - {HAClientState.UNASSIGNED}  # without a link


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (DivergedError("", master_offset=1, slave_offset=2), LinkEvent.OTHER_LOG),
        (ForeignGroupError("", master_offset=1, slave_offset=2), LinkEvent.OTHER_LOG),
        (ExpiredError("", min_offset=2, slave_offset=1), LinkEvent.EXPIRED),
        (
            BelowConfirmMarkError("", path="", physic_offset=1, confirm_mark=2),
            LinkEvent.CUT_REFUSED,
        ),
        (DeposedMasterError("", epoch=1, seen_epoch=2), LinkEvent.BROKEN),
        (
            FileSizeMismatchError("", path="", size_found=1, size_wanted=2),
            LinkEvent.FILE_SIZE_DIFFERS,
        ),
        (LogDamagedError("", path="", physic_offset=0), LinkEvent.DAMAGED),
        (DiskError("", path=""), LinkEvent.BROKEN),
        (ProtocolError(""), LinkEvent.BROKEN),
        (OSError(), LinkEvent.BROKEN),
    ],
)
def test_each_error_maps_to_its_event(error, event):
    """An error that is not about the logs is a broken link: the next link may be better."""
    assert event_of(error) is event


def test_in_doubt_lasts_until_a_link_is_in_step():
    """The slave retries after one link with another log, and gives up after two in a row."""
    cursor = SlaveCursor(SlaveStart.EARLIEST)
    for event in (LinkEvent.OTHER_LOG, LinkEvent.NEW_LINK, LinkEvent.BROKEN, LinkEvent.NEW_LINK):
        cursor.on(event)
    assert cursor.step is LinkStep.IN_DOUBT
    assert cursor.would(LinkEvent.OTHER_LOG) is LinkAction.GIVE_UP_DIVERGED
    for event in (LinkEvent.FRAME, LinkEvent.MATCHED, LinkEvent.NEW_LINK):
        cursor.on(event)
    assert cursor.would(LinkEvent.OTHER_LOG) is LinkAction.BACK_OFF


def test_shown_state_follows_the_actions():
    """A link is connecting until its first frame; a match alone changes nothing."""
    cursor = SlaveCursor(SlaveStart.EARLIEST)
    events = (
        LinkEvent.NEW_LINK,
        LinkEvent.MATCHED,
        LinkEvent.FRAME,
        LinkEvent.BROKEN,
        LinkEvent.OWN_DAMAGE,
        LinkEvent.STOPPED,
    )
    shown = []
    for event in events:
        cursor.on(event)
        shown.append(cursor.state.value)
    assert shown == [
        "connecting",
        "connecting",
        "streaming",
        "backing-off",
        "failed",
        "stopped",
    ]
