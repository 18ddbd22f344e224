"""The bytes of a master's autoswitch link: handshakes, reports, headers, and a first report."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.config import HAConfig
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import ExpiredError, IllegalReportError, ProtocolError
from hastore.ha.flow_monitor import FlowMonitor
from hastore.ha.master_framing import CLASSIC, AutoswitchMasterFraming
from hastore.ha.send_rounds import SendRounds
from hastore.ha.slave_progress import LogBounds
from hastore.ha.write_socket_service import WriteSocketService
from hastore.message import Message
from hastore.wire.autoswitch_frames import (
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    encode_report,
)
from hastore.wire.ha_frames import encode_header
from tests.golden.autoswitch_vectors import SESSIONS
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import make_file, open_log

EPOCHS = EpochHistory((EpochEntry(1, 1_000), EpochEntry(3, 70_000), EpochEntry(4, 200_000)))
LOG = LogBounds(min_offset=65_536, max_offset=200_800, last_file_offset=196_608)
EMPTY = LogBounds(min_offset=0, max_offset=0, last_file_offset=0)
HANDSHAKE = Handshake(node_id=2)


def framing(epochs=EPOCHS, max_offset=LOG.max_offset, confirm_offset=777):
    answer = HandshakeAnswer(max_offset=max_offset, epochs=epochs)
    return AutoswitchMasterFraming(lambda _handshake: answer, lambda: confirm_offset)


def begun(handshake=HANDSHAKE, **link):
    link = framing(**link)
    assert link.take_handshakes(handshake.encode())[1] == b""
    return link


@pytest.mark.parametrize(
    "session", [s for s in SESSIONS if any(isinstance(m, HandshakeAnswer) for m, _ in s.messages)]
)
def test_the_answer_has_the_recorded_bytes(session):
    """A Java master's answers to Java slaves; a repeated handshake gets no other."""
    answer = next(m for m, _ in session.messages if isinstance(m, HandshakeAnswer))
    if not answer.epochs.entries:
        pytest.skip("our masters have an epoch")
    link = framing(answer.epochs, answer.max_offset)
    found, rest = link.take_handshakes(session.raw(Handshake))
    assert found == session.raw(HandshakeAnswer)[: len(found)]
    assert rest == b""


@given(st.integers(1, 3), st.lists(st.integers(1, 20), max_size=10))
def test_handshakes_are_taken_however_they_arrive(times, sizes):
    """There is one answer, and what follows the last handshake is left over."""
    link, answers, rest = framing(), [], b""
    data = HANDSHAKE.encode() * times + encode_report(200_000) * 2
    sizes = iter(sizes)
    while data:
        size = next(sizes, len(data))
        if not link.is_report(rest):
            answer, rest = link.take_handshakes(rest + data[:size])
            answers += [answer] if answer else []
        else:
            rest += data[:size]
        data = data[size:]
    assert len(answers) == 1
    assert link.is_report(rest)
    assert rest == encode_report(200_000) * 2


def test_nothing_is_a_report_before_the_handshake():
    """A peer that begins with one is refused as soon as its state is there."""
    with pytest.raises(ProtocolError, match="a report instead of a handshake"):
        framing().take_handshakes(encode_report(0)[:4])


@pytest.mark.parametrize(
    ("first_report", "from_last_file", "start"),
    [
        (0, False, 65_536),
        (0, True, 196_608),
        (65_536, False, 65_536),
        (65_537, True, 65_537),
        (200_800, False, 200_800),
    ],
)
def test_first_report_decides_where_the_stream_begins(first_report, from_last_file, start):
    """1 and 2 are offsets like others here."""
    link = begun(Handshake(node_id=2, from_last_file=from_last_file))
    slave = link.progress(HAConfig())
    slave.on_report(first_report, LOG)
    assert slave.next_transfer_from_where == start
    assert slave.ack_offset == first_report
    assert not slave.counts_as_ack
    assert slave.log_begin_offset == (None if first_report else start)


@pytest.mark.parametrize(
    ("first_report", "error"),
    [
        (1, ExpiredError),
        (2, ExpiredError),
        (65_535, ExpiredError),
        (200_801, IllegalReportError),
        (2**63 - 1, IllegalReportError),
        (-1, IllegalReportError),
    ],
)
def test_first_report_outside_the_log_is_refused(first_report, error):
    """It starts no stream."""
    slave = begun().progress(HAConfig())
    with pytest.raises(error):
        slave.on_report(first_report, LOG)
    assert slave.next_transfer_from_where is None
    assert slave.ack_offset is None


@pytest.mark.parametrize("first_report", [0, 65_536, 69_999])
def test_no_stream_begins_below_the_first_epoch(first_report):
    """A Java master sends a negative size there."""
    epochs = EpochHistory((EpochEntry(3, 70_000),))
    slave = begun(epochs=epochs).progress(HAConfig())
    with pytest.raises(ExpiredError, match="first epoch 3-70000"):
        slave.on_report(first_report, LOG)


def test_a_slave_of_an_empty_log_has_all_of_it():
    """It may have to join the SyncStateSet before the first message can be written."""
    slave = begun(epochs=EpochHistory((EpochEntry(1, 0),)), max_offset=0).progress(HAConfig())
    slave.on_report(0, EMPTY)
    assert (slave.counts_as_ack, slave.ack_offset) == (True, 0)
    slave.sent(211)
    slave.on_report(0, LogBounds(min_offset=0, max_offset=211, last_file_offset=0))
    slave.on_report(211, LogBounds(min_offset=0, max_offset=211, last_file_offset=0))
    assert (slave.counts_as_ack, slave.needed_from) == (True, 211)


@pytest.mark.parametrize(
    ("offset", "label"),
    [(1_000, EpochEntry(1, 1_000)), (69_999, EpochEntry(1, 1_000)), (70_000, EpochEntry(3, 70_000)),
     (200_000, EpochEntry(4, 200_000)), (10**9, EpochEntry(4, 200_000)), (999, None)],
)  # fmt: skip
@pytest.mark.parametrize("confirm_offset", [0, 777, None])
def test_header_names_the_epoch_of_its_first_byte(offset, label, confirm_offset):
    """And the confirm offset of the moment, -1 if it is not known."""
    link = begun(confirm_offset=confirm_offset)
    size = 0 if label is None else 5
    assert link.header(offset, size) == FrameHeader(size, offset, label, confirm_offset).encode()


def test_an_epoch_that_is_not_the_last_has_an_end():
    """Frames that begin below ``last_epoch_start`` end there."""
    link = begun()
    assert link.last_epoch_start == 200_000
    assert [link.epoch_end(at) for at in (1_000, 69_999, 70_000, 199_999)] == [
        70_000, 70_000, 200_000, 200_000,
    ]  # fmt: skip


def test_classic_bytes_are_what_they_were():
    """12 bytes before each frame, nothing before the first report, one epoch."""
    assert CLASSIC.header(2**40, 7) == encode_header(2**40, 7)
    assert (CLASSIC.header_size, CLASSIC.reports.size, CLASSIC.greets) == (12, 8, False)
    assert CLASSIC.last_epoch_start == 0


async def test_a_producers_turn_sends_no_frame_across_an_epochs_end():
    """The link's task does, which ends the frame there."""
    log = open_log(mapped_file_size=1 << 20)
    make_file(log)
    while log.max_offset < 3_000:
        log.append_message(Message("T", bytes(100)))
    epochs = EpochHistory((EpochEntry(1, 0), EpochEntry(2, 1_500)))
    link = begun(epochs=epochs, max_offset=log.max_offset)
    sent = []

    def send_now(_sock, buffers):
        sent.append(b"".join(buffers))
        return len(sent[-1])

    for start, frames in ((1_000, 0), (1_500, 1)):
        progress = link.progress(HAConfig())
        progress.on_report(start, LogBounds.of(log))
        rounds = SendRounds(log, gathers=False)
        writer = WriteSocketService(
            env=attrs.evolve(fake_env(), send_now=send_now),
            sock=None,
            commit_log=log,
            progress=progress,
            framing=link,
            flow_monitor=FlowMonitor(),
            send_times=LatencyHistogram(),
            rounds=rounds,
        )
        rounds.idle[writer] = None
        rounds.notify_appended()
        assert len(sent) == frames
        assert (writer in rounds.idle) == bool(frames)
