"""What a slave makes of frames."""

import pytest

from hastore.errors import DivergedError, ExpiredError, ProtocolError
from hastore.ha.slave_cursor import FrameVerdict, SlaveCursor
from hastore.status import SlaveStart
from hastore.wire.double_read_buffer import DoubleReadBuffer
from hastore.wire.ha_frames import HEADER


def buffer_of(data):
    buffer = DoubleReadBuffer(4096)
    buffer.free()[: len(data)] = data
    buffer.received(len(data))
    return buffer


def look(data, position, own_end=None):
    cursor = SlaveCursor(SlaveStart.EARLIEST)
    return cursor.next_frame(buffer_of(data), position, position if own_end is None else own_end)


def test_a_whole_frame_at_our_end_is_appended():
    """A frame at the slave's max offset is taken, and its place in the buffer is named."""
    verdict, frame = look(HEADER.pack(700, 3) + b"abc", 700)
    assert verdict is FrameVerdict.APPEND
    assert (frame.physic_offset, frame.start, frame.size) == (700, 12, 3)


@pytest.mark.parametrize("cut", range(15))
def test_a_frame_is_nothing_until_it_is_whole(cut):
    """At every cut of a frame there is nothing to do but to wait."""
    assert look((HEADER.pack(700, 3) + b"abc")[:cut], 700) is None


@pytest.mark.parametrize(("offset", "size"), [(699, 0), (699, 5), (701, 5), (2**62, 5)])
def test_a_frame_elsewhere_is_divergence_as_soon_as_its_header_is_there(offset, size):
    """Heartbeats and frames that are not at our end name both offsets, body or not."""
    with pytest.raises(DivergedError) as caught:
        look(HEADER.pack(offset, size), 700)
    assert (caught.value.master_offset, caught.value.slave_offset) == (offset, 700)


def test_a_heartbeat_behind_our_end_says_that_the_masters_log_begins_there():
    """What the slave needs is gone: both offsets are named, and what to do."""
    with pytest.raises(ExpiredError, match="deleted what this slave needs") as caught:
        look(HEADER.pack(701, 0), 700)
    assert (caught.value.min_offset, caught.value.slave_offset) == (701, 700)
    assert "empty" in caught.value.hint


@pytest.mark.parametrize("offset", [601, 700])
def test_a_heartbeat_in_the_overlap_says_that_less_can_be_compared(offset):
    """The master's log begins after our position, but not after our end: nothing is lost."""
    verdict, frame = look(HEADER.pack(offset, 0), 600, 700)
    assert (verdict, frame.physic_offset) == (FrameVerdict.ASK_LATER, offset)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 0), (700, -1), (700, 4 * 1024 * 1024 - 11), (0, 2**31 - 1)]
)
def test_a_header_that_no_master_sends_is_a_protocol_error(offset, size):
    """A negative offset and a body that cannot fit the read buffer are refused at the header."""
    with pytest.raises(ProtocolError):
        look(HEADER.pack(offset, size), 0 if offset <= 0 else 700)


def test_an_empty_slave_takes_what_the_master_begins_with():
    """Without a log any file's start is right."""
    verdict, frame = look(HEADER.pack(65_536, 1) + b"x", 0)
    assert (verdict, frame.physic_offset) == (FrameVerdict.APPEND, 65_536)


def test_a_stock_master_that_streams_from_one_lacks_byte_zero():
    """The frame at offset 1 is the answer to our 1; byte 0 is supplied here."""
    assert look(HEADER.pack(1, 1) + b"x", 0)[0] is FrameVerdict.APPEND_AFTER_ZERO
    assert look(HEADER.pack(1, 0), 0)[0] is FrameVerdict.APPEND


def test_a_stock_master_that_takes_last_file_for_an_offset_is_asked_again():
    """A frame at 2 tells that the master is a stock one, which understands 0."""
    cursor = SlaveCursor(SlaveStart.LAST_FILE)
    assert cursor.first_report(0) == 2
    assert cursor.next_frame(buffer_of(HEADER.pack(2, 0)), 0, 0)[0] is FrameVerdict.ASK_AGAIN
    assert cursor.first_report(0) == 0


def test_first_report_is_our_end_or_our_wish():
    """A slave with a log reports its end whatever it was told to begin with."""
    assert SlaveCursor(SlaveStart.EARLIEST).first_report(0) == 1
    assert SlaveCursor(SlaveStart.EARLIEST).first_report(331_518) == 331_518
    assert SlaveCursor(SlaveStart.LAST_FILE).first_report(331_518) == 331_518


def test_a_heartbeat_within_the_overlap_says_that_the_master_ends_there():
    """While the last bytes are compared a heartbeat means that we are ahead of our master."""
    assert look(HEADER.pack(700, 3) + b"abc", 700, 4796)[0] is FrameVerdict.APPEND
    with pytest.raises(DivergedError, match="ahead") as caught:
        look(HEADER.pack(700, 0), 700, 4796)
    assert (caught.value.master_offset, caught.value.slave_offset) == (700, 4796)
