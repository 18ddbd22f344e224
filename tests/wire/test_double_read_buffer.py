"""The slave's double read buffer."""

from hypothesis import given
from hypothesis import strategies as st

from hastore.wire.double_read_buffer import DoubleReadBuffer


def test_unparsed_bytes_survive_a_reallocation():
    """They are moved from the full buffer to the front of the other one."""
    buffer = DoubleReadBuffer(8)
    full = buffer.view
    full[:] = b"abcdefgh"
    buffer.received(8)
    buffer.consume(5)
    assert len(buffer.free()) == 5
    assert buffer.view is not full
    assert bytes(buffer.view[: buffer.write_position]) == b"fgh"


def test_a_parsed_buffer_is_used_again_without_a_copy():
    """When everything is parsed, both positions return to 0."""
    buffer = DoubleReadBuffer(8)
    view = buffer.view
    buffer.free()[:3] = b"abc"
    buffer.received(3)
    buffer.consume(3)
    assert len(buffer.free()) == 8
    assert buffer.view is view


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=60))
def test_the_buffer_is_a_byte_queue(steps):
    """Bytes come out in the order in which they came in, over any number of reallocations."""
    buffer = DoubleReadBuffer(16)
    expected = bytearray()
    counter = 0
    for receive, consume in steps:
        if buffer.write_position - buffer.dispatch_position < 16:
            free = buffer.free()
            count = min(receive, len(free))
            data = bytes((counter + i) % 256 for i in range(count))
            counter += count
            free[:count] = data
            expected += data
            buffer.received(count)
        count = min(consume, buffer.write_position - buffer.dispatch_position)
        position = buffer.dispatch_position
        assert bytes(buffer.view[position : position + count]) == bytes(expected[:count])
        buffer.consume(count)
        del expected[:count]
