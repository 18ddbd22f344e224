"""How a slave handles the frames that it receives."""

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


def next_frame(data, position, own_end=None):
    cursor = SlaveCursor(SlaveStart.EARLIEST)
    return cursor.next_frame(buffer_of(data), position, position if own_end is None else own_end)


def test_a_whole_frame_at_our_end_is_appended():
    """The result also says where the frame's body is in the buffer."""
    verdict, frame = next_frame(HEADER.pack(700, 3) + b"abc", 700)
    assert verdict is FrameVerdict.APPEND
    assert (frame.physic_offset, frame.start, frame.size) == (700, 12, 3)


@pytest.mark.parametrize("cut", range(15))
def test_incomplete_frame_returns_none(cut):
    """Wherever a frame is cut, the slave waits for the rest."""
    assert next_frame((HEADER.pack(700, 3) + b"abc")[:cut], 700) is None


@pytest.mark.parametrize(("offset", "size"), [(699, 0), (699, 5), (701, 5), (2**62, 5)])
def test_header_at_another_offset_raises_diverged(offset, size):
    """The error names both offsets; a heartbeat, or a header without its body, is enough."""
    with pytest.raises(DivergedError) as caught:
        next_frame(HEADER.pack(offset, size), 700)
    assert (caught.value.master_offset, caught.value.slave_offset) == (offset, 700)


def test_heartbeat_after_our_end_raises_expired():
    """The master's log begins after the slave's end; the error names both offsets and a remedy."""
    with pytest.raises(ExpiredError, match="deleted what this slave needs") as caught:
        next_frame(HEADER.pack(701, 0), 700)
    assert (caught.value.min_offset, caught.value.slave_offset) == (701, 700)
    assert "empty" in caught.value.hint


@pytest.mark.parametrize("offset", [601, 700])
def test_heartbeat_after_our_position_in_the_overlap_asks_later(offset):
    """The master's log begins after our position but not after our end, so nothing is lost."""
    verdict, frame = next_frame(HEADER.pack(offset, 0), 600, 700)
    assert (verdict, frame.physic_offset) == (FrameVerdict.ASK_LATER, offset)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 0), (700, -1), (700, 4 * 1024 * 1024 - 11), (0, 2**31 - 1)]
)
def test_a_header_that_no_master_sends_is_a_protocol_error(offset, size):
    """Negative numbers, and a body larger than the read buffer, are refused at the header."""
    with pytest.raises(ProtocolError):
        next_frame(HEADER.pack(offset, size), 0 if offset <= 0 else 700)


def test_empty_slave_starts_at_the_masters_first_offset():
    """Without a log, the start of any file is right."""
    verdict, frame = next_frame(HEADER.pack(65_536, 1) + b"x", 0)
    assert (verdict, frame.physic_offset) == (FrameVerdict.APPEND, 65_536)


def test_byte_zero_is_supplied_if_a_stock_master_streams_from_one():
    """A stock master takes our report of 1 for an offset, and does not send byte 0."""
    assert next_frame(HEADER.pack(1, 1) + b"x", 0)[0] is FrameVerdict.APPEND_AFTER_ZERO
    assert next_frame(HEADER.pack(1, 0), 0)[0] is FrameVerdict.APPEND


def test_stock_master_that_takes_last_file_for_an_offset_is_asked_again():
    """A frame at offset 2 identifies a stock master, which understands 0."""
    cursor = SlaveCursor(SlaveStart.LAST_FILE)
    assert cursor.first_report(0) == 2
    assert cursor.next_frame(buffer_of(HEADER.pack(2, 0)), 0, 0)[0] is FrameVerdict.ASK_AGAIN
    assert cursor.first_report(0) == 0


def test_first_report_is_our_end_or_the_requested_start():
    """A slave with a log reports its end, whatever start it is configured with."""
    assert SlaveCursor(SlaveStart.EARLIEST).first_report(0) == 1
    assert SlaveCursor(SlaveStart.EARLIEST).first_report(331_518) == 331_518
    assert SlaveCursor(SlaveStart.LAST_FILE).first_report(331_518) == 331_518


def test_heartbeat_at_our_position_in_the_overlap_raises_diverged():
    """A heartbeat while the last bytes are compared means that we are ahead of our master."""
    assert next_frame(HEADER.pack(700, 3) + b"abc", 700, 4796)[0] is FrameVerdict.APPEND
    with pytest.raises(DivergedError, match="ahead") as caught:
        next_frame(HEADER.pack(700, 0), 700, 4796)
    assert (caught.value.master_offset, caught.value.slave_offset) == (700, 4796)
