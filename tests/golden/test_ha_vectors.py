"""HA messages as bytes, of both protocols, and epoch files."""

import re
import tarfile

import pytest

from hastore.errors import ProtocolError
from hastore.store.epoch_file import decode_epochs, encode_epochs
from hastore.wire.autoswitch_frames import (
    FRAME_HEADER_SIZE,
    HANDSHAKE_SIZE,
    REPORT_SIZE,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    decode_report,
)
from hastore.wire.ha_frames import HEADER, REPORT, check_header, encode_header, encode_report
from tests.golden.autoswitch_vectors import EPOCH_FILES, SESSIONS, Report

# From the recorded sessions: offset, body size and bytes.
HEADERS = (
    (0, 192, "0000000000000000 000000c0"),
    (192, 1_158, "00000000000000c0 00000486"),
    (64_688, 848, "000000000000fcb0 00000350"),  # a BLANK to the file's end
    (65_536, 1_173, "0000000000010000 00000495"),
    (330_403, 1_115, "0000000000050aa3 0000045b"),  # a batch of five
    (331_518, 0, "0000000000050efe 00000000"),  # a heartbeat
    (2**62, 4_194_292, "4000000000000000 003ffff4"),  # the largest that a slave accepts
)
REPORTS = (
    (0, "0000000000000000"),
    (192, "00000000000000c0"),
    (331_518, "0000000000050efe"),
    (-1, "ffffffffffffffff"),
)
# No master sends these: a negative offset, a negative size, a byte more than fits the buffer.
REFUSED = ("ffffffffffffffff 00000000", "0000000000000000 ffffffff", "0000000000000000 003ffff5")

FILE_SIZE = 65_536
BATCH_SIZE_MAX = 32_768

each_session = pytest.mark.parametrize("session", SESSIONS, ids=lambda s: s.recording)


@pytest.mark.parametrize(("offset", "size", "text"), HEADERS)
def test_a_frame_header_has_these_twelve_bytes(offset, size, text):
    """It is encoded and decoded, and the check accepts it."""
    raw = bytes.fromhex(text)
    assert encode_header(offset, size) == raw
    assert HEADER.unpack(raw) == (offset, size)
    check_header(offset, size)


@pytest.mark.parametrize("text", REFUSED)
def test_an_invalid_frame_header_is_refused(text):
    """This happens before memory is reserved for its body."""
    with pytest.raises(ProtocolError):
        check_header(*HEADER.unpack(bytes.fromhex(text)))


@pytest.mark.parametrize(("offset", "text"), REPORTS)
def test_a_report_has_these_eight_bytes(offset, text):
    """It is a single number, encoded and decoded."""
    raw = bytes.fromhex(text)
    assert encode_report(offset) == raw
    assert REPORT.unpack(raw) == (offset,)


def of_slave(data):
    """Yield every message that a slave sent."""
    position = 0
    while position < len(data):
        is_report = data[position + 3] == 2
        end = position + (REPORT_SIZE if is_report else HANDSHAKE_SIZE)
        raw = data[position:end]
        yield Report(max_offset=decode_report(raw)) if is_report else Handshake.decode(raw)
        position = end


def of_master(data, *, has_bodies=True):
    """Yield every message that a master sent; without ``has_bodies`` frames are headers only."""
    rest = memoryview(data)
    while rest:
        if rest[3] == 1:
            message, size = HandshakeAnswer.decode(rest)
        else:
            message = FrameHeader.decode(rest)
            size = FRAME_HEADER_SIZE + (message.body_size if has_bodies else 0)
        yield message
        rest = rest[size:]


@each_session
def test_autoswitch_messages_have_the_recorded_bytes(session):
    """Both directions of a session also decode to the same messages."""
    for message, text in session.messages:
        assert message.encode().hex() == re.sub(r"\s", "", text)
    messages = [message for message, _ in session.messages]
    slave, master = (Handshake, Report), (HandshakeAnswer, FrameHeader)
    assert list(of_slave(session.raw(*slave))) == [
        message for message in messages if isinstance(message, slave)
    ]
    assert list(of_master(session.raw(*master), has_bodies=False)) == [
        message for message in messages if isinstance(message, master)
    ]


@each_session
def test_an_autoswitch_session_keeps_the_protocols_rules(session):
    """The slave speaks first, and frames are contiguous and stay within one file."""
    messages = [message for message, _ in session.messages]
    assert isinstance(messages[0], Handshake)
    answer = next(message for message in messages if isinstance(message, HandshakeAnswer))
    after = messages[messages.index(answer) + 1 :]
    assert isinstance(after[0], Report), "the master sends nothing before the first report"
    frames = [message for message in after if isinstance(message, FrameHeader)]
    assert all(frame.epoch in answer.epochs.entries for frame in frames)
    first = next(frame for frame in frames if frame.physic_offset is not None)
    if after[0].max_offset:
        assert first.physic_offset == after[0].max_offset
    else:
        assert first.physic_offset % FILE_SIZE == 0
    sent = first.physic_offset
    for message in after[after.index(first) :]:
        if isinstance(message, Report):
            assert message.max_offset <= sent
            continue
        size = message.body_size
        assert message.physic_offset == sent
        assert 0 <= size <= BATCH_SIZE_MAX
        sent += size
        assert size == 0 or message.physic_offset // FILE_SIZE == (sent - 1) // FILE_SIZE
        assert sent <= message.confirm_offset, "with one member, all that the master has"


@pytest.mark.parametrize(("epochs", "text"), EPOCH_FILES)
def test_an_epoch_file_has_its_entries_and_their_checksum(epochs, text):
    """It is written and read; any changed digit is noticed."""
    assert encode_epochs(epochs) == text.encode()
    assert decode_epochs(text.encode()) == epochs
    for position, letter in enumerate(text):
        if letter.isdigit():
            changed = text[:position] + str((int(letter) + 1) % 10) + text[position + 1 :]
            assert isinstance(decode_epochs(changed.encode()), str)


@each_session
def test_an_autoswitch_session_is_from_the_recording(session, recorded_golden):
    """Its messages are the first ones of both directions of the recording."""
    stem = recorded_golden / "autoswitch" / session.recording
    for suffix, read, kinds in (
        ("s2m", of_slave, (Handshake, Report)),
        ("m2s", of_master, (HandshakeAnswer, FrameHeader)),
    ):
        raw = stem.with_name(f"{stem.name}_{suffix}.bin").read_bytes()
        expected = [message for message, _ in session.messages if isinstance(message, kinds)]
        assert list(read(raw))[: len(expected)] == expected


def test_the_epoch_files_are_from_recorded_stores(recorded_golden):
    """The last one is excepted: its store was not kept."""
    found = set()
    for archive in sorted((recorded_golden / "autoswitch").glob("*/*.tar.xz")):
        with tarfile.open(archive) as tar:
            names = [name for name in tar.getnames() if name.endswith("/epochFileCheckpoint")]
            found |= {tar.extractfile(name).read().decode() for name in names}
    assert {text for _, text in EPOCH_FILES[:-1]} <= found
