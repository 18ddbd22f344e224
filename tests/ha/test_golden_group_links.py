"""Replay recorded AutoSwitch slaves against our master: its answer and its bytes are RocketMQ's.

Cuts, heartbeats, confirm offsets and the times of reports followed RocketMQ's timing; ours must be
legal.  Labels differ where RocketMQ's name the next epoch.
"""

import tarfile

import attrs
import pytest

from hastore.epoch_history import EpochEntry
from hastore.wire.autoswitch_frames import (
    ANSWER_HEADER,
    ANSWER_HEADER_SIZE,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    HANDSHAKE_SIZE,
    REPORT,
    REPORT_SIZE,
    STATE_HANDSHAKE,
    Handshake,
    HandshakeAnswer,
)
from tests.golden.autoswitch_vectors import SESSIONS
from tests.support.nodes.group import FILE_SIZE, group_master, raw_node
from tests.support.waiting import eventually

# Recordings and their connections, but the one whose slave our master refuses.
STREAMS = {
    "async_learner": "a_1",
    "autoswitch_1": "1",
    "autoswitch_2": "1 2",
    "confirm_offset": "a_1 b_1",
    "confirm_restart": "a_1",
    "empty_master": "a_1",
    "epochs_first_frame": "a_1",
    "epochs_first_frame_lost": "a_1",
    "epochs_without_messages": "a_1 a_2 a_3",
    "expand_shrink": "a_1 a_3 a_5",
    "failover": "epoch1_1 epoch2_1",
    "failover_crash": "epoch1_1 epoch2_1",
    "failover_live": "a_1 a_2 b_1",
    "hazard_half_record_promotion": "a_1",
    "hazard_refused_epoch": "a_1 a_2 b_1",
    "hazard_same_epoch_restart": "a_1 a_2 a_3 a_4 a_5",
    "hazard_stale_tail": "a_1 b_1 b_2",
    "no_common_epoch": "a_1 a_2 a_3 a_4 a_5",
    "slave_ahead": "a_1 a_2",
    "slave_without_epoch_file": "a_1 a_2",
    "sync_from_last_file": "a_1",
    "truncate_not_aligned": "a_1 a_2 a_3 a_4",
    "truncate_to_zero": "a_1",
}
NAMES = [f"{name}/stream_{of}" for name in STREAMS for of in STREAMS[name].split()]
# The masters' stores that were kept, by stream.
STORES = {
    "autoswitch_1/stream_1": "autoswitch_1/a1_master",
    "autoswitch_2/stream_1": "autoswitch_2/a2_master",
    "autoswitch_2/stream_2": "autoswitch_2/a2_master",
    "failover/stream_epoch2_1": "failover/newmaster_after",
    "failover_crash/stream_epoch2_1": "failover_crash/newmaster_after",
}


@attrs.frozen(kw_only=True)
class Stream:
    """One recorded connection."""

    handshake: bytes
    answer: bytes
    reports: list[int]
    start: int  # the first byte that was sent
    log: bytes  # the master's, up to the last byte that was sent


def slave_half(data):
    """Return the handshake, and the offsets reported."""
    handshake, reports = b"", []
    while len(data) >= REPORT_SIZE:
        if int.from_bytes(data[:4], "big") == STATE_HANDSHAKE:
            handshake, data = data[:HANDSHAKE_SIZE], data[HANDSHAKE_SIZE:]
        else:
            reports.append(REPORT.unpack_from(data)[1])
            data = data[REPORT_SIZE:]
    return handshake, reports


def master_half(data):
    """Return the answer's bytes, and the whole frames with a body: their offset and it."""
    answer, frames = b"", []
    while len(data) >= ANSWER_HEADER_SIZE:
        if int.from_bytes(data[:4], "big") == STATE_HANDSHAKE:
            size = ANSWER_HEADER_SIZE + ANSWER_HEADER.unpack_from(data)[1]
            answer = answer or data[:size]
        else:
            if len(data) < FRAME_HEADER_SIZE:
                break
            _, body_size, offset, *_ = FRAME_HEADER.unpack_from(data)
            size = FRAME_HEADER_SIZE + body_size
            if body_size and len(data) >= size:
                frames.append((offset, data[FRAME_HEADER_SIZE:size]))
        data = data[size:]
    return answer, frames


def stored_log(archive):
    """Return the log in a recorded store, up to its last file's end."""
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if "/commitlog/0" in name)
        assert names[0].endswith("/" + "0" * 20)
        return b"".join(tar.extractfile(name).read() for name in names)


def stream_of(golden, name, store):
    stem = golden / "autoswitch" / name
    half = {d: stem.with_name(f"{stem.name}_{d}.bin").read_bytes() for d in ("m2s", "s2m")}
    handshake, reports = slave_half(half["s2m"])
    answer, frames = master_half(half["m2s"])
    start = frames[0][0] if frames else 0
    body = b"".join(data for _, data in frames)
    log = bytes(start) + body  # no slave has asked for what was before
    if store is not None:
        log = stored_log(golden / "autoswitch" / f"{store}.tar.xz")[: len(log)]
        assert log[start:] == body
    return Stream(
        handshake=handshake,
        answer=answer,
        reports=reports,
        start=start,
        log=log,
    )


async def replay(tmp_path, stream, *, repeats=False):
    """Be the recorded slave; return the answer, and the bytes of all frames."""
    with memoryview(stream.answer) as data:
        answer, _ = HandshakeAnswer.decode(data)
    node_id = Handshake.decode(stream.handshake).node_id
    own_id = 1 if node_id != 1 else 2
    at_first = stream.log[: answer.max_offset]
    received = bytearray()
    async with (
        group_master(
            tmp_path / "m",
            log=at_first.ljust(answer.max_offset, b"\0"),
            epochs=answer.epochs.entries,
            own_id=own_id,
            members={own_id},
            ids=None,
        ) as master,
        raw_node(master) as node,
    ):
        await node.send(stream.handshake * (2 if repeats else 1))
        _, sent = await node.raw_answer()
        master.append(stream.log[answer.max_offset :])
        if not stream.reports:
            return sent, b""  # the slave had no epoch in common with its master
        pending = stream.reports[:]
        await node.report(pending.pop(0))
        while stream.start + len(received) < len(stream.log):
            header, body = await node.frame()
            offset, end = header.physic_offset, header.physic_offset + len(body)
            assert offset == stream.start + len(received)
            assert header.epoch == answer.epochs.at(offset)
            assert header.epoch.start_offset <= offset
            assert 0 <= header.confirm_offset <= master.log.max_offset
            if body:
                assert offset // FILE_SIZE == (end - 1) // FILE_SIZE
                assert answer.epochs.at(end - 1) == header.epoch
            received += body
            while pending and pending[0] <= end:
                await node.report(pending.pop(0))
        acked = max(stream.reports)
        if stream.log[stream.start :] and acked > stream.start:
            await eventually(lambda: acked in ack_offsets(master))
        assert not master.service.refusals
    return sent, bytes(received)


def ack_offsets(master):
    return [connection.progress.ack_offset for connection in master.service.connections.values()]


@pytest.mark.parametrize("repeats", [False, True], ids=["once", "repeated"])
@pytest.mark.parametrize("name", NAMES)
async def test_our_master_serves_a_recorded_slave(recorded_golden, tmp_path, name, repeats):
    """The recorded answer, and over all frames the recorded bytes; every report is legal."""
    stream = stream_of(recorded_golden, name, STORES.get(name))
    sent, received = await replay(tmp_path, stream, repeats=repeats)
    assert sent == stream.answer
    assert received == stream.log[stream.start :]


async def test_offset_before_the_first_epoch_gets_no_negative_size(recorded_golden, tmp_path):
    """RocketMQ's master sends one, and bytes that it does not announce; ours refuses the slave."""
    recording = recorded_golden / "autoswitch/hazard_offset_before_first_epoch"
    handshake, reports = slave_half((recording / "stream_a_1_s2m.bin").read_bytes())
    answer, _ = master_half((recording / "stream_a_1_m2s.bin").read_bytes())
    async with (
        group_master(tmp_path / "m", log=bytes(2_444), epochs=((1, 1_222),)) as master,
        raw_node(master) as node,
    ):
        await node.send(handshake)
        assert (await node.raw_answer())[1][20:] == answer[20:]
        await node.report(reports[0])
        header, _ = await node.frame()
        assert header.body_size == 0
        assert await node.frame() is None
        assert "before this master's first epoch 1-1222" in master.service.refusals[-1].reason


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.recording)
async def test_our_master_answers_as_the_vectors_say(tmp_path, session):
    """Those are in the repository: no recorded file is needed."""
    answers = [m for m, _ in session.messages if isinstance(m, HandshakeAnswer)]
    handshake = next(m for m, _ in session.messages if isinstance(m, Handshake))
    epochs = answers[0].epochs.entries
    own_id = 1 if handshake.node_id != 1 else 2
    async with (
        group_master(
            tmp_path / "m",
            log=bytes(answers[0].max_offset),
            epochs=epochs,
            own_id=own_id,
            members={own_id},
            ids=None,
        ) as master,
        raw_node(master) as node,
    ):
        await node.send(session.raw(Handshake))
        answer, data = await node.raw_answer()
    assert answer == answers[0]
    assert session.raw(HandshakeAnswer).startswith(data)
    assert answer.epochs.entries[0] == EpochEntry(*epochs[0])
