"""How a master handles a slave's reports, and the states of its connection."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import HAConfig
from hastore.errors import DivergedError, ExpiredError, IllegalReportError, ProtocolError
from hastore.ha.slave_progress import (
    TRANSITIONS,
    HAConnectionEvent,
    LogBounds,
    SlaveProgress,
    next_state,
)
from hastore.status import HAConnectionState, SlaveStart

LOG = LogBounds(min_offset=65_536, max_offset=331_518, last_file_offset=327_680)
GET_HTTP = int.from_bytes(b"GET / HT", "big")


def progress(**config):
    return SlaveProgress(HAConfig(**config))


def started(offset=100_000, sent=50_000):
    slave = progress()
    slave.on_report(offset, LOG)
    slave.sent(sent)
    return slave


@pytest.mark.parametrize(
    ("report", "new_slave_from", "starts_at"),
    [
        (0, SlaveStart.EARLIEST, 65_536),
        (0, SlaveStart.LAST_FILE, 327_680),
        (1, SlaveStart.LAST_FILE, 65_536),
        (2, SlaveStart.EARLIEST, 327_680),
        (65_536, SlaveStart.EARLIEST, 65_536),
        (70_001, SlaveStart.EARLIEST, 70_001),
        (331_518, SlaveStart.EARLIEST, 331_518),
    ],
)
def test_first_report_decides_where_the_stream_begins(report, new_slave_from, starts_at):
    """A new slave gets the start that it asks for; one with a log continues exactly at its end."""
    slave = progress(ha_new_slave_from=new_slave_from)
    slave.on_report(report, LOG)
    assert slave.next_transfer_from_where == starts_at
    assert slave.ack_offset == (report if report > 2 else min(report, starts_at))


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (331_519, DivergedError),
        (2**63 - 1, DivergedError),
        (GET_HTTP, DivergedError),
        (65_535, ExpiredError),
        (3, ExpiredError),
        (-1, IllegalReportError),
        (-(2**63), IllegalReportError),
    ],
)
def test_first_report_outside_the_log_is_refused(report, error):
    """It acknowledges nothing, and starts no stream."""
    slave = progress()
    with pytest.raises(error):
        slave.on_report(report, LOG)
    assert slave.next_transfer_from_where is None
    assert slave.ack_offset is None
    assert slave.state is HAConnectionState.CONNECTED


@pytest.mark.parametrize("report", [150_001, 331_519, GET_HTTP, 2**63 - 1, -1, 99_999, 0])
def test_later_report_below_the_last_or_above_the_sent_end_is_refused(report):
    """The acknowledged offset does not change."""
    slave = started()
    with pytest.raises(IllegalReportError):
        slave.on_report(report, LOG)
    assert slave.ack_offset == 100_000


def test_new_slave_may_repeat_its_first_report_until_it_has_bytes():
    """Its heartbeats repeat the first report, which is not an ack."""
    empty = LogBounds(min_offset=0, max_offset=0, last_file_offset=0)
    slave = progress()
    slave.on_report(1, empty)
    slave.on_report(1, empty)
    assert slave.ack_offset == 0
    slave.sent(500)
    slave.on_report(500, LOG)
    assert slave.ack_offset == 500


def test_report_counts_as_ack_only_after_the_links_start():
    """At the log's end a repeated start counts too: a stock slave of an idle master sends it."""
    slave = started(offset=331_000, sent=518)
    assert not slave.counts_as_ack
    slave.on_report(331_000, LOG)
    assert not slave.counts_as_ack
    slave.on_report(331_001, LOG)
    assert slave.counts_as_ack
    idle = started(offset=331_518, sent=0)
    assert not idle.counts_as_ack
    idle.on_report(331_518, LOG)
    assert idle.counts_as_ack


def test_state_follows_the_acks():
    """A slave streams once it has acknowledged the end, and catches up when the end moves on."""
    slave = started(offset=331_000, sent=518)
    assert slave.state is HAConnectionState.CATCHING_UP
    slave.on_report(331_518, LOG)
    assert slave.state is HAConnectionState.STREAMING
    grown = LogBounds(min_offset=0, max_offset=400_000, last_file_offset=0)
    slave.sent(100)
    slave.on_report(331_600, grown)
    assert slave.state is HAConnectionState.CATCHING_UP


def test_batches_grow_while_the_slave_lags_and_fall_back_when_it_does_not():
    """They double from 32 KiB to the limit while more waits than fits, and halve when idle."""
    slave = progress(ha_transfer_batch_size=32 * 1024, ha_transfer_batch_size_max=128 * 1024)
    mib = 1024 * 1024
    assert [slave.next_batch_size(mib) // 1024 for _ in range(4)] == [32, 64, 128, 128]
    assert slave.next_batch_size(1000) == 1000
    assert slave.next_batch_size(1000) == 1000
    assert slave.next_batch_size(mib) == 32 * 1024


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 400_000), max_size=30))
def test_no_sequence_of_reports_acknowledges_unsent_bytes(reports):
    """The ack never falls and never passes what was sent to the peer."""
    slave = progress()
    last = -1
    for report in reports:
        with contextlib.suppress(ProtocolError):
            slave.on_report(report, LOG)
        if slave.ack_offset is not None:
            assert last <= slave.ack_offset <= slave.next_transfer_from_where <= LOG.max_offset
            last = slave.ack_offset
            if slave.next_transfer_from_where + 7 <= LOG.max_offset:
                slave.sent(7)


def test_a_slave_needs_the_log_from_its_ack_on():
    """Before its first report it needs nothing."""
    slave = progress()
    assert slave.needed_from is None
    slave.on_report(100_000, LOG)
    slave.sent(500)
    assert slave.needed_from == 100_000
    slave.on_report(100_400, LOG)
    assert slave.needed_from == 100_400


def test_a_new_slave_needs_the_log_from_its_start():
    """Its first report is not an offset, so its start counts until its first ack."""
    slave = progress()
    slave.on_report(1, LOG)
    assert slave.needed_from == LOG.min_offset
    slave.sent(500)
    slave.on_report(LOG.min_offset + 500, LOG)
    assert slave.needed_from == LOG.min_offset + 500


def test_every_state_but_refused_becomes_closed_when_the_link_ends():
    """A refusal stays visible."""
    for state in HAConnectionState:
        ended = next_state(state, HAConnectionEvent.LINK_ENDED)
        refused = state is HAConnectionState.REFUSED
        assert ended is (HAConnectionState.REFUSED if refused else HAConnectionState.CLOSED)


def test_a_pair_outside_the_table_is_a_programmer_error():
    """The table lists every transition."""
    for state in HAConnectionState:
        for event in HAConnectionEvent:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(AssertionError):
                    next_state(state, event)


@given(
    st.sampled_from([0, 1, 2, 65_536, 100_000, 331_518]),
    st.lists(
        st.tuples(
            st.sampled_from(["report", "send", "grow"]),
            st.integers(min_value=-2, max_value=60_000),
        ),
        max_size=20,
    ),
)
def test_advance_does_what_on_report_does(first, events):
    """``advance`` takes a report only if ``on_report`` would, and leaves the same state."""
    quick, full = progress(), progress()
    end = LOG.max_offset
    for slave in (quick, full):
        slave.on_report(first, LOG)
    for kind, number in events:
        if kind == "grow":
            end += max(number, 0)
        elif kind == "send":
            size = min(max(number, 0), end - full.next_transfer_from_where)
            quick.sent(size)
            full.sent(size)
        else:
            offset = full.ack_offset + number
            bounds = LogBounds(min_offset=65_536, max_offset=end, last_file_offset=327_680)
            if not quick.advance(offset, end):
                with contextlib.suppress(ProtocolError):
                    quick.on_report(offset, bounds)
            with contextlib.suppress(ProtocolError):
                full.on_report(offset, bounds)
        for name in ("ack_offset", "state", "counts_as_ack", "needed_from"):
            assert getattr(quick, name) == getattr(full, name), name


def test_advance_takes_the_reports_of_a_slave_that_follows():
    """All but the first, and those that ``on_report`` refuses or ignores."""
    slave = started(sent=50_000)
    assert not slave.advance(110_000, LOG.max_offset)  # the first one above the start
    slave.on_report(110_000, LOG)
    assert slave.advance(120_000, LOG.max_offset)
    assert slave.ack_offset == 120_000
    assert not slave.advance(120_000, LOG.max_offset)
    assert not slave.advance(150_001, LOG.max_offset)  # beyond what was sent
    assert slave.ack_offset == 120_000
