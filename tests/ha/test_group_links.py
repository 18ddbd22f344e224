"""One autoswitch link of a master: handshake, first report, frames; over real sockets."""

import attrs
import pytest
import trio

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.wire.autoswitch_frames import (
    FRAME_BODY_SIZE_MAX,
    FRAME_HEADER_SIZE,
    Handshake,
    HandshakeAnswer,
    encode_report,
)
from hastore.wire.ha_frames import encode_report as encode_classic_report
from tests.patience import WITHIN_S
from tests.support.nodes.configs import QUICK
from tests.support.nodes.group import FILE_SIZE, group_master, raw_node
from tests.support.store.open_log import all_bytes
from tests.support.waiting import eventually

LOG = bytes(range(251)) * 800  # 200,800 bytes: four files
EPOCHS = ((1, 0), (3, 1_222), (4, 70_000), (6, 200_800))


def history(*entries):
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


@pytest.fixture
async def master(tmp_path):
    async with group_master(tmp_path / "m", log=LOG, epochs=EPOCHS) as master:
        yield master


async def refusal_of(master):
    await eventually(lambda: master.service.refusals)
    return master.service.refusals[-1]


async def test_answer_leaves_in_one_write(master, monkeypatch):
    """A Java slave that reads a part of it asks again."""
    sent = []
    send = trio._socket._SocketType.send

    async def record(self, data, flags=0):
        sent.append(bytes(data))
        return await send(self, data, flags)

    async with raw_node(master) as node:
        await node.send(Handshake(node_id=2).encode())
        monkeypatch.setattr(trio._socket._SocketType, "send", record)
        answer, data = await node.raw_answer()
    assert answer == HandshakeAnswer(max_offset=len(LOG), epochs=history(*EPOCHS))
    assert sent == [data]


@pytest.mark.parametrize("first_report", [0, 1, 1_221, 1_222, 65_536, 69_999, 70_000, 150_000])
async def test_frames_end_at_a_files_and_an_epochs_end_and_carry_their_epoch(master, first_report):
    """Each is labelled with the epoch of all its bytes; together they are the log."""
    received = bytearray()
    async with raw_node(master) as node:
        await node.begin(2, first_report)
        while first_report + len(received) < len(LOG):
            header, body = await node.frame()
            begin, end = header.physic_offset, header.physic_offset + len(body)
            assert begin == first_report + len(received)
            epochs = history(*EPOCHS)
            assert header.epoch == epochs.at(begin)
            if body:
                assert header.epoch == epochs.at(end - 1)
                assert begin // FILE_SIZE == (end - 1) // FILE_SIZE
            assert 0 <= header.confirm_offset <= len(LOG)
            received += body
    assert bytes(received) == LOG[first_report:]


async def test_heartbeat_carries_the_epoch_of_the_next_byte(master):
    """At the log's end that is the newest epoch, although it has no byte yet."""
    async with raw_node(master) as node:
        await node.begin(2, len(LOG))
        header, body = await node.frame()
    assert (header.physic_offset, header.epoch, body) == (len(LOG), EpochEntry(6, 200_800), b"")


async def test_bytes_of_a_put_carry_the_newest_epoch(master):
    """They leave from the put itself, not from the link's task."""
    async with raw_node(master) as node:
        await node.begin(2, len(LOG))
        await node.frame()
        await eventually(lambda: master.service.rounds.idle)
        end = master.put().append_result.next_offset
        header, body = await node.frame()
    assert header.physic_offset + len(body) == end
    assert header.epoch == EpochEntry(6, 200_800)


async def test_an_empty_log_is_answered_and_followed(tmp_path):
    """Its slave may have reported 0 again before the first byte comes."""
    async with group_master(tmp_path / "m") as master, raw_node(master) as node:
        answer = await node.begin(2)
        assert answer == HandshakeAnswer(max_offset=0, epochs=history((1, 0)))
        await node.report(0)
        request = master.put()
        end = request.append_result.next_offset
        assert await node.bytes_up_to(end) == all_bytes(master.log)


@pytest.mark.parametrize("pause", [False, True])
async def test_a_repeated_handshake_before_the_first_report_is_ignored(master, pause):
    """A Java slave repeats it until it has read the whole answer."""
    handshake = Handshake(node_id=2).encode()
    async with raw_node(master) as node:
        await node.send(handshake)
        await node.answer()
        if pause:
            await node.send(handshake)
            await node.send(handshake[:13])
            await node.send(handshake[13:] + encode_report(199_000)[:5])
            await node.send(encode_report(199_000)[5:])
        else:
            await node.send(handshake, handshake, encode_report(199_000))
        assert await node.bytes_up_to(len(LOG)) == LOG[199_000:]


@pytest.mark.parametrize("size", [1, 3, 5, 12, 13, 15])
async def test_handshake_and_report_in_pieces(master, size):
    """TCP may split anything."""
    data = Handshake(node_id=2).encode()
    async with raw_node(master) as node:
        for part in range(0, len(data), size):
            await node.send(data[part : part + size])
            await trio.lowlevel.checkpoint()
        await node.answer()
        data = encode_report(199_000) + encode_report(199_000)
        for part in range(0, len(data), size):
            await node.send(data[part : part + size])
            await trio.lowlevel.checkpoint()
        assert await node.bytes_up_to(len(LOG)) == LOG[199_000:]


async def test_a_slave_that_does_not_wait_is_answered_first(master):
    """A Java master never answers it."""
    async with raw_node(master) as node:
        await node.send(Handshake(node_id=2).encode(), encode_report(199_000))
        assert (await node.answer()).max_offset == len(LOG)
        assert await node.bytes_up_to(len(LOG)) == LOG[199_000:]


async def test_from_last_file_begins_there(master):
    """The flag is of interest only with a report of 0."""
    async with raw_node(master) as node:
        await node.begin(2, 0, from_last_file=True)
        assert await node.bytes_up_to(len(LOG)) == LOG[3 * FILE_SIZE :]
    async with raw_node(master) as node:
        await node.begin(3, 5, from_last_file=True)
        assert await node.bytes_up_to(len(LOG)) == LOG[5:]


HANDSHAKE = Handshake(node_id=2).encode()
BAD_BEGINNINGS = {
    "report": (encode_report(0), "sent a report instead of a handshake"),
    "classic": (encode_classic_report(1), "sent a report of the classic protocol, and this ma"),
    "state 3": ((3).to_bytes(4, "big"), "sent state 3 instead of a handshake"),
    "state 4": ((4).to_bytes(4, "big") + bytes(12), "sent state 4 instead of a handshake"),
    "negative state": (b"\xff" * 16, "sent bytes of another protocol instead of a handshake"),
    "http": (b"GET / HTTP/1.1\r\n\r\n", "the peer sent bytes of another protocol"),
    "id 0": (HANDSHAKE[:8] + bytes(8), "node id is 0"),
    "id -2": (HANDSHAKE[:8] + (-2).to_bytes(8, "big", signed=True), "node id is -2"),
    "own id": (Handshake(node_id=1).encode(), "node 1, which is this master"),
}


@pytest.mark.parametrize("name", BAD_BEGINNINGS)
async def test_a_peer_without_a_handshake_is_refused_and_named(master, name):
    """It is sent nothing, and counts for nothing."""
    data, why = BAD_BEGINNINGS[name]
    async with raw_node(master) as node:
        await node.send(data)
        assert await node.closed() == b""
    refusal = await refusal_of(master)
    assert why in refusal.reason
    assert refusal.hint
    assert not [row for row in master.group.acks if row.connection_id is not None]


BAD_AFTER_HANDSHAKE = {
    "other id": ([Handshake(node_id=3).encode()], "sent a second handshake"),
    "state 0": ([bytes(12)], "after its handshake the slave sent state 0"),
    "state 3": ([b"\0\0\0\3" + bytes(8)], "after its handshake the slave sent state 3"),
    "state 4": ([b"\0\0\0\4" + bytes(8)], "after its handshake the slave sent state 4"),
    "beyond": ([encode_report(len(LOG) + 1)], f"first report {len(LOG) + 1} is beyond {len(LOG)}"),
    "-1": ([encode_report(-1)], "its log is not this master's"),
    "-611": ([encode_report(-611)], "reported -611, where no log can end"),
    "later handshake": ([encode_report(5), HANDSHAKE], "sent a handshake where a report"),
    "later state": ([encode_report(5), bytes(12)], "sent state 0 where a report"),
    "later beyond": ([encode_report(5), encode_report(2**40)], "is beyond this master's end"),
    "later negative": ([encode_report(5), encode_report(-2)], "reported -2"),
    "falls": ([encode_report(5), encode_report(4)], "falls behind the earlier report 5"),
}


@pytest.mark.parametrize("name", BAD_AFTER_HANDSHAKE)
async def test_a_bad_report_is_refused_and_named(master, name):
    """It acknowledges nothing; push2_slave_max_offset is what it was."""
    parts, why = BAD_AFTER_HANDSHAKE[name]
    async with raw_node(master) as node:
        await node.send(HANDSHAKE)
        await node.answer()
        for part in parts:
            await node.send(part)
        await node.closed()
    refusal = await refusal_of(master)
    assert why in refusal.reason
    assert master.service.ack_table.push2_slave_max_offset == 0
    assert not len(master.service.refused_slaves.table)


async def test_end_at_the_handshake_counts_not_the_end_at_the_report(master):
    """A slave that was ahead stays refused, however our log has grown since."""
    async with raw_node(master) as node:
        await node.send(HANDSHAKE)
        await node.answer()
        master.append(LOG[:500])
        await node.report(len(LOG) + 300)
        await node.closed()
    assert "where this master's log ended at the handshake" in (await refusal_of(master)).reason


@pytest.mark.parametrize("first_report", [0, 611])
async def test_a_slave_below_the_first_epoch_is_refused(tmp_path, first_report):
    """A Java master sends it a negative size and bytes that it does not announce."""
    async with (
        group_master(tmp_path / "m", log=LOG[:3_000], epochs=((1, 1_222),)) as master,
        raw_node(master) as node,
    ):
        await node.begin(2, first_report)
        header, body = await node.frame()
        assert (header.body_size, body) == (0, b"")
        assert await node.frame() is None
        reason = (await refusal_of(master)).reason
    assert (
        f"needs the log from {first_report} on, before this master's first epoch 1-1222" in reason
    )


async def test_a_slave_below_the_oldest_byte_is_refused(tmp_path):
    """It learns the oldest byte from the last heartbeat."""
    async with (
        group_master(
            tmp_path / "m", log=LOG[:3_000], epochs=((1, 0),), begin_offset=FILE_SIZE
        ) as master,
        raw_node(master) as node,
    ):
        await node.begin(2, 5)
        header, _ = await node.frame()
        assert (header.physic_offset, header.body_size) == (FILE_SIZE, 0)
        assert await node.frame() is None
        reason = (await refusal_of(master)).reason
    assert reason == f"slave needs the log from 5 on, before this master's oldest byte {FILE_SIZE}"


async def test_frames_fit_a_slaves_buffer_with_their_longer_header(tmp_path):
    """A classic master's largest frame would not."""
    config = attrs.evolve(QUICK, ha_transfer_batch_size_max=FRAME_BODY_SIZE_MAX + 24)
    async with group_master(tmp_path / "m", ha=config) as master:
        found = master.service.config.ha_transfer_batch_size_max
    assert found + FRAME_HEADER_SIZE <= 4 * 1024 * 1024


async def test_a_slave_that_never_reports_is_closed(tmp_path, autojump_clock):
    """A handshake alone keeps no connection."""
    autojump_clock.autojump_threshold = 0.02
    config = attrs.evolve(QUICK, ha_first_report_timeout_ms=1_000)
    async with group_master(tmp_path / "m", ha=config) as master, raw_node(master) as node:
        await node.send(HANDSHAKE)
        await node.answer()
        with trio.fail_after(WITHIN_S):
            assert await node.closed() == b""
        assert "no report within" in (await refusal_of(master)).reason
