"""AutoSwitch messages that no sound peer sends are refused, and partial ones are waited for."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.epoch_history import ENTRIES_MAX, EpochEntry, EpochHistory
from hastore.errors import ProtocolError
from hastore.wire.autoswitch_frames import (
    ANSWER_HEADER,
    FRAME_BODY_SIZE_MAX,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HANDSHAKE,
    REPORT,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    decode_report,
    encode_report,
)

BUFFER_SIZE = 4 * 1024 * 1024
EPOCHS = EpochHistory((EpochEntry(1, 0), EpochEntry(2, 1_222)))
I32 = st.integers(-(1 << 31), (1 << 31) - 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((2, 0, 0, 2), "began with state 2 instead of a handshake"),
        ((0, 0, 0, 0), "began with state 0"),  # a classic slave's report
        ((1, 0, 0, 0), "node id is 0; the least is 1"),  # a RocketMQ slave's handshake, cut at 12
        ((1, 0, 0, -1), "node id is -1"),
    ],
)
def test_a_wrong_handshake_is_refused(fields, reason):
    """The master names what it was instead."""
    with pytest.raises(ProtocolError, match=reason):
        Handshake.decode(HANDSHAKE.pack(*fields))


@pytest.mark.parametrize("flag", [0, 2, -1])
def test_only_1_sets_a_flag(flag):
    """As RocketMQ reads it."""
    assert Handshake.decode(HANDSHAKE.pack(1, flag, 1, 7)) == Handshake(node_id=7, is_learner=True)
    assert Handshake.decode(HANDSHAKE.pack(1, 1, flag, 7)) == Handshake(
        node_id=7, from_last_file=True
    )


@pytest.mark.parametrize("state", [0, 1, 3, 4, -1])
def test_a_report_has_state_2(state):
    """Any other state ends the link."""
    assert decode_report(encode_report(5)) == 5
    with pytest.raises(ProtocolError, match=f"sent state {state} where a report"):
        decode_report(REPORT.pack(state, 5))


def test_a_report_is_not_negative():
    """A RocketMQ master takes -2, and never sends anything."""
    with pytest.raises(ProtocolError, match="reported -2, where no log can end"):
        decode_report(REPORT.pack(2, -2))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ANSWER_HEADER.pack(2, 0, 0, -1), "answered the handshake with state 2"),
        (ANSWER_HEADER.pack(1, -12, 0, -1), "announced -12 bytes of epochs"),
        (ANSWER_HEADER.pack(1, 13, 0, -1), "announced 13 bytes of epochs"),
        (ANSWER_HEADER.pack(1, 12 * (ENTRIES_MAX + 1), 0, -1), "announced 12012 bytes of epochs"),
        (ANSWER_HEADER.pack(1, 0, -1, -1), "log ends at -1"),
        (ANSWER_HEADER.pack(1, 0, 0, 1), "its last epoch is not 1, as the header says"),
        (ANSWER_HEADER.pack(1, 12, 0, 2) + struct.pack(">iq", 1, 0), "its last epoch is not 2"),
        (ANSWER_HEADER.pack(1, 12, 0, 1) + struct.pack(">iq", 1, -5), "out of range"),
        (
            ANSWER_HEADER.pack(1, 24, 0, 1) + struct.pack(">iqiq", 2, 0, 1, 5),
            "epochs must rise",
        ),
    ],
)
def test_a_wrong_answer_is_refused(data, reason):
    """As soon as the header shows it, before the list is waited for."""
    with pytest.raises(ProtocolError, match=reason):
        HandshakeAnswer.decode(memoryview(data))


def test_an_answer_is_read_once_it_is_whole():
    """Whatever follows it stays."""
    for epochs in (EpochHistory(), EPOCHS):
        answer = HandshakeAnswer(max_offset=2_000, epochs=epochs)
        raw = answer.encode()
        for size in range(len(raw)):
            assert HandshakeAnswer.decode(memoryview(raw)[:size]) is None
        assert HandshakeAnswer.decode(memoryview(raw + b"more")) == (answer, len(raw))


def test_the_longest_list_fits():
    """RocketMQ's buffer has room for a thousand entries."""
    epochs = EpochHistory(tuple(EpochEntry(n, n) for n in range(ENTRIES_MAX)))
    raw = HandshakeAnswer(max_offset=5_000, epochs=epochs).encode()
    assert len(raw) == 20 + 12_000
    assert HandshakeAnswer.decode(memoryview(raw))[0].epochs == epochs


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((1, 0, 0, 1, 0, 0), "sent state 1 where a frame"),
        ((2, -611, 611, 1, 2_444, 0), "a frame of -611 bytes at offset 611"),  # RocketMQ did
        ((2, FRAME_BODY_SIZE_MAX + 1, 0, 1, 0, 0), "fit the read buffer"),
        ((2, 5, -1, 1, 0, 0), "at offset -1, where no log can be"),
        ((2, 0, -2, 1, 0, 0), "at offset -2, where no log can be"),
        ((2, 5, (1 << 63) - 1, 1, 0, 0), "where no log can be"),
        ((2, 5, 0, -1, 0, 0), "a frame of epoch -1-0 at offset 0"),
        ((2, 0, 0, 1, -1, 0), "a frame of epoch 1--1"),
        ((2, 5, 0, 1, 0, -2), "the confirm offset -2"),
    ],
)
def test_a_wrong_frame_is_refused(fields, reason):
    """Before memory is reserved for its body."""
    with pytest.raises(ProtocolError, match=reason):
        FrameHeader.decode(memoryview(FRAME_HEADER.pack(*fields)))


def test_a_heartbeat_may_come_without_log_epoch_and_confirm_offset():
    """From a master that has none yet."""
    frame = FrameHeader(0, None, None, None)
    assert frame.encode() == FRAME_HEADER.pack(2, 0, -1, -1, -1, -1)
    assert FrameHeader.decode(memoryview(frame.encode())) == frame


def test_the_largest_frame_fits_the_read_buffer():
    """With its header."""
    assert FRAME_HEADER_SIZE + FRAME_BODY_SIZE_MAX == BUFFER_SIZE
    frame = FrameHeader(FRAME_BODY_SIZE_MAX, 0, EpochEntry(1, 0), 0)
    assert FrameHeader.decode(memoryview(frame.encode())) == frame


# State, body size, offset, epoch, its start, confirm offset.
LEGAL = (
    st.just(2),
    st.integers(0, FRAME_BODY_SIZE_MAX),
    st.integers(0, (1 << 63) - 1 - FRAME_BODY_SIZE_MAX),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(-1, (1 << 63) - 1),
)
ILLEGAL = (
    I32.filter(lambda state: state != 2),
    I32.filter(lambda size: not 0 <= size <= FRAME_BODY_SIZE_MAX),
    st.integers(-(1 << 63), -1),
    st.integers(-(1 << 31), -1),
    st.integers(-(1 << 63), -1),
    st.integers(-(1 << 63), -2),
)


@given(st.tuples(*LEGAL))
def test_every_legal_frame_is_read_and_written_back(fields):
    """The same 36 bytes."""
    raw = FRAME_HEADER.pack(*fields)
    assert FrameHeader.decode(memoryview(b"before" + raw), 6).encode() == raw


@given(st.tuples(*LEGAL), st.integers(0, len(ILLEGAL) - 1), st.data())
def test_one_illegal_field_is_enough_to_refuse_a_frame(legal, index, data):
    """Whatever the others are."""
    fields = list(legal)
    fields[1] = max(fields[1], 1)  # a heartbeat may come without offset and epoch
    fields[index] = data.draw(ILLEGAL[index])
    with pytest.raises(ProtocolError):
        FrameHeader.decode(memoryview(FRAME_HEADER.pack(*fields)))


@given(
    st.integers(0, (1 << 63) - 1),
    st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1 << 40)), max_size=20),
    st.binary(max_size=20),
)
def test_every_legal_answer_is_read_and_written_back(max_offset, steps, rest):
    """Whatever follows it."""
    epoch = start = 0
    entries = []
    for epochs_later, bytes_later in steps:
        epoch, start = epoch + epochs_later, start + bytes_later
        entries.append(EpochEntry(epoch, start))
    answer = HandshakeAnswer(max_offset=max_offset, epochs=EpochHistory(tuple(entries)))
    raw = answer.encode()
    assert HandshakeAnswer.decode(memoryview(raw + rest)) == (answer, len(raw))


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_refused_or_waited_for(data):
    """Nothing else is raised; with the right state, they get further."""
    for raw in (data, ANSWER_HEADER.pack(1, 12, 5, 1) + data):
        with contextlib.suppress(ProtocolError):
            found = HandshakeAnswer.decode(memoryview(raw))
            assert found is None or found[0].encode() == raw[: found[1]]
