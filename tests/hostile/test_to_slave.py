"""A slave under masters that lie: its log stays the same, or grows by what they sent.

It never reports more than it has, it reports the error, and its client port always answers.
"""

import random
from functools import partial

import pytest
import trio

import hastore
from hastore.wire.ha_frames import HEADER, HEADER_SIZE, encode_header
from tests.hostile.corpus_files import mutations, recorded
from tests.hostile.handmade import TO_SLAVE
from tests.patience import WITHIN_S
from tests.support.commands.in_process import master_on, slave_of
from tests.support.nodes.configs import ANY_PORT
from tests.support.nodes.harness import (
    FILE_SIZE,
    log_bytes,
    master_config,
    messages,
    raw_master,
    read_report,
    slave_config,
)
from tests.support.nodes.raw_client import raw_client, send_command
from tests.support.store.log_builder import LogBuilder
from tests.support.waiting import eventually

STREAMS = recorded("to_slave") | TO_SLAVE
MUTATIONS = 20
STATES = {"connecting", "backing-off", "streaming", "diverged", "failed"}


def rebuild(stream, own):
    """Return the most that a slave with the log ``own`` may have then: whole frames in a row.

    An empty slave has one zero byte.
    """
    taken = bytearray(own)
    at = 0
    while at + HEADER_SIZE <= len(stream):
        offset, size = HEADER.unpack_from(stream, at)
        if size < 0 or offset < 0:
            break
        body = stream[at + HEADER_SIZE : at + HEADER_SIZE + size]
        if len(body) < size:
            break
        is_first = len(taken) == 1 and offset <= 1
        own_part = taken[offset : offset + size]
        if is_first or (offset <= len(taken) and body.startswith(own_part)):
            taken[offset : offset + size] = body
        at += HEADER_SIZE + size
    return bytes(taken)


async def follow(master, stream, slave, end, piece=None):
    """Play a master that sends ``stream`` to a slave; check what the slave reports."""
    sock = await master.accept()
    with sock:
        first = await read_report(sock)
        assert first is not None
        assert first <= max(end, 2)
        try:
            step = piece or max(len(stream), 1)
            for at in range(0, len(stream), step):
                await sock.send(stream[at : at + step])
                if piece:
                    await trio.sleep(0)
            sock.shutdown(trio.socket.SHUT_WR)
        except OSError:
            return
        with trio.fail_after(WITHIN_S):
            while (report := await next_report(sock)) is not None:
                assert report <= max(slave.max_offset, 2) or report == -1, report


async def next_report(sock):
    try:
        return await read_report(sock)
    except OSError:
        return None


@pytest.mark.parametrize("name", STREAMS)
async def test_empty_slave_survives_any_stream(tmp_path, name):
    """It stores only whole frames that are in place, and answers its clients."""
    stream = STREAMS[name]
    async with raw_master() as master:
        config = slave_config(tmp_path, master.address, listen=ANY_PORT)
        async with hastore.open_slave(config) as slave:
            await follow(master, stream, slave, 0, piece=7 if len(stream) < 3000 else None)
            assert slave.status().state in STATES, slave.status().state
            async with raw_client(slave.address) as client:
                answer = await client.ask(send_command(1))
                assert answer.code == 14  # SERVICE_NOT_AVAILABLE: it is a slave
            end = slave.max_offset
    taken = rebuild(stream, bytes(1))
    assert end <= len(taken)
    if end:
        assert log_bytes(tmp_path, end) == taken[:end]


async def test_mutated_frames_change_no_stored_byte(tmp_path):
    """A slave with a log keeps each byte of it, whatever its master sends."""
    async with hastore.open_master(master_config(tmp_path / "m")) as real:
        config = slave_config(tmp_path / "s", real.ha_address)
        async with hastore.open_slave(config) as slave:
            for message in messages(30):
                await real.put(message)
            await eventually(lambda: slave.max_offset == real.max_offset)
            end = real.max_offset
    before = log_bytes(tmp_path / "s", end)
    # A correct master's streams from the overlap on.
    from_offset = max(end - 4096, 3)
    sane = {
        "overlap": encode_header(from_offset, end - from_offset) + before[from_offset:],
        "overlap, then a heartbeat": encode_header(from_offset, end - from_offset)
        + before[from_offset:]
        + encode_header(end, 0),
        "overlap in two": encode_header(from_offset, 1000)
        + before[from_offset : from_offset + 1000]
        + encode_header(from_offset + 1000, end - from_offset - 1000)
        + before[from_offset + 1000 :],
    }
    choose = random.Random(3)
    streams = mutations(sane, MUTATIONS, 3) + mutations(STREAMS, MUTATIONS, 3)
    choose.shuffle(streams)
    grown = before[from_offset:] + b"x" * 50
    streams.append(("one that grows", encode_header(from_offset, len(grown)) + grown))
    for name, stream in streams:
        try:
            async with raw_master() as master:
                config = slave_config(tmp_path / "s", master.address)
                async with hastore.open_slave(config) as slave:
                    own_end = slave.max_offset
                    own = log_bytes(tmp_path / "s", own_end)
                    await follow(master, stream, slave, own_end)
                    assert slave.max_offset >= own_end
                    new_end = slave.max_offset
            assert log_bytes(tmp_path / "s", new_end) == rebuild(stream, own)[:new_end]
        except BaseException as error:
            error.add_note(f"stream: {name}: {stream[:200].hex()}")
            raise
    assert log_bytes(tmp_path / "s", end) == before
    assert new_end == end + 50


async def test_wrong_header_within_a_stream_only_ends_the_link(tmp_path):
    """It does not yet mean another log, so the slave asks again."""
    log = LogBuilder(file_size=FILE_SIZE)
    log.add()
    end = log.end
    log.add()
    async with raw_master() as master:
        async with hastore.open_slave(slave_config(tmp_path, master.address)) as slave:
            with await master.accept() as sock:
                assert await read_report(sock) == 1
                await sock.send(encode_header(0, end) + log.data[:end])
                assert await read_report(sock) == end
                await sock.send(encode_header(end ^ 0x4000, 0))
                assert await read_report(sock) is None
            with await master.accept() as sock:
                assert await read_report(sock) == 3  # it compares its last bytes
                await sock.send(encode_header(3, end - 3) + log.data[3:end])
                await sock.send(encode_header(end, log.end - end) + log.data[end:])
                await eventually(lambda: slave.max_offset == log.end)
                assert slave.status().state == "streaming"


async def test_topics_of_a_masters_records_name_no_file_elsewhere(tmp_path, caplog):
    """The records are copied, and the good ones dispatched; each other topic is named once."""
    names = ("../up", "..", ".", "a/b", "/x", "n\0", "a\x1b[2J", "x\n", "\x9b31m", "%DLQ%/../..")
    builder = LogBuilder(file_size=1 << 20)
    for name in (*names, *names, "orders", "é" * 63, "orders"):
        builder.add(topic=name)
    where = tmp_path / "inner"
    builder.write(where / "master")
    async with master_on(where / "master") as master, slave_of(master, where / "slave") as slave:
        for node in (master, slave):
            queues = node.message_store.consume_queues
            orders = partial(queues.find, "orders", 0)
            await eventually(lambda orders=orders: orders() and orders().max_offset == 2)
            assert {queue.topic for queue in queues} == {"orders", "é" * 63}
    for node in ("master", "slave"):
        root = where / node / "consumequeue"
        assert {path.name for path in root.iterdir()} == {"orders", "é" * 63}
        assert {path.name for path in (where / node).iterdir()} >= {"consumequeue", "commitlog"}
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert {path.name for path in where.iterdir()} == {"master", "slave"}
    assert caplog.text.count("record_in_no_consume_queue") == 2 * len(names)
