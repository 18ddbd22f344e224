"""The transition table of a slave's links, row by row, and a walk through it."""

import pytest

from hastore.errors import (
    DiskError,
    DivergedError,
    ExpiredError,
    FileSizeMismatchError,
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

# What follows in each step, "-": cannot happen.  C, D, S, G: the steps, in the enum's order.
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
stopped             C stop               D stop               S stop               G stop
"""
LETTERS = dict(zip("CDSG", LinkStep, strict=True))


def rows():
    """Read ``ROWS``: every pair of step and event with what it leads to, or None."""
    for line in ROWS.strip().splitlines()[1:]:
        event, *cells = line.replace(" -", " - -").split()
        for number, step in enumerate(LinkStep):
            letter, action = cells[2 * number : 2 * number + 2]
            follows = None if letter == "-" else (LETTERS[letter], LinkAction(action))
            yield step, LinkEvent(event), follows


@pytest.mark.parametrize(("step", "event", "follows"), list(rows()))
def test_each_pair_leads_where_the_table_says(step, event, follows):
    """A pair that the table lacks is a programmer's error, any other has one outcome."""
    if follows is None:
        with pytest.raises(AssertionError):
            transition(step, event)
    else:
        assert transition(step, event) == follows


def test_every_pair_is_asserted_above():
    """A row that is missing here or there is seen."""
    told = {(step, event): follows for step, event, follows in rows()}
    assert set(told) == {(step, event) for step in LinkStep for event in LinkEvent}
    assert {pair for pair, follows in told.items() if follows is not None} == set(TRANSITIONS)


def test_every_action_but_going_on_is_shown():
    """``status`` names a state for each action, and each of its states comes from one."""
    assert set(SHOWN) == set(LinkAction) - {LinkAction.GO_ON}
    assert set(SHOWN.values()) == set(HAClientState)


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (DivergedError("", master_offset=1, slave_offset=2), LinkEvent.OTHER_LOG),
        (ExpiredError("", min_offset=2, slave_offset=1), LinkEvent.EXPIRED),
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
def test_an_error_is_the_event_that_it_stands_for(error, event):
    """What is not about the logs is a broken link, after which another one may be better."""
    assert event_of(error) is event


def test_a_doubt_lasts_until_a_link_is_in_step():
    """One link with another log is tried again; the second in a row ends it, not a later one."""
    cursor = SlaveCursor(SlaveStart.EARLIEST)
    for event in (LinkEvent.OTHER_LOG, LinkEvent.NEW_LINK, LinkEvent.BROKEN, LinkEvent.NEW_LINK):
        cursor.on(event)
    assert cursor.step is LinkStep.IN_DOUBT
    assert cursor.would(LinkEvent.OTHER_LOG) is LinkAction.GIVE_UP_DIVERGED
    for event in (LinkEvent.FRAME, LinkEvent.MATCHED, LinkEvent.NEW_LINK):
        cursor.on(event)
    assert cursor.would(LinkEvent.OTHER_LOG) is LinkAction.BACK_OFF


def test_what_is_shown_follows_the_actions():
    """A link is connecting until its first frame, and a match alone shows nothing."""
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
