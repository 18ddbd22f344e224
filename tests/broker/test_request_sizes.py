"""What a request may cost before it is allowed: its size, the bytes parsed for it, the pieces.

The work is counted, not timed: ``python -m tests.hostile.siege`` measures it.
"""

from __future__ import annotations

import pytest

from hastore.broker.puts.send_message_processor import SEND_CODES
from hastore.errors import FrameTooLargeError
from hastore.message import Message
from hastore.wire.frame_reader import FrameReader, encode_command
from hastore.wire.remoting_codes import SerializeType
from hastore.wire.remoting_command import HEADER_SIZE_MAX, RemotingCommand, frame
from hastore.wire.request_sizes import (
    BODY_KINDS,
    LIST_SIZE_MAX,
    SEND_REPLY_MESSAGE,
    SEND_REPLY_MESSAGE_V2,
    SMALL_SIZE_MAX,
    BodyKind,
    RequestSizes,
)
from hastore.wire.send_message import write_batch
from tests.support.nodes.in_memory_target import InMemoryTarget, serving
from tests.support.nodes.raw_client import raw_client, send_command

MIB = 1024 * 1024
MESSAGE_SIZE_MAX = 4 * MIB
RECEIVE_SIZE = 64 * 1024
SIZES = RequestSizes(MESSAGE_SIZE_MAX)
SIZE_MAX = {
    BodyKind.SMALL: SMALL_SIZE_MAX,
    BodyKind.LIST: LIST_SIZE_MAX,
    BodyKind.MESSAGE: MESSAGE_SIZE_MAX,
}
# A code of each kind, and one that is not known.
KINDS = [(200, SMALL_SIZE_MAX), (41, LIST_SIZE_MAX), (310, MESSAGE_SIZE_MAX), (9999, 64 * 1024)]


def read_in_pieces(reader, data, *, size=RECEIVE_SIZE):
    """Feed bytes as a socket does; return the commands, and how many bytes were kept at most."""
    commands, kept = [], 0
    for begin in range(0, len(data), size):
        reader.feed(data[begin : begin + size])
        while (command := reader.next_command()) is not None:
            commands.append(command)
        kept = max(kept, reader.buffered_size)
    return commands, kept


def test_the_sizes_are_those_of_the_docs():
    """Sends have large bodies, heartbeats and locks lists, and nothing else has either."""
    assert SEND_CODES | {36, SEND_REPLY_MESSAGE, SEND_REPLY_MESSAGE_V2} == {
        code for code, kind in BODY_KINDS.items() if kind is BodyKind.MESSAGE
    }
    assert {code for code, kind in BODY_KINDS.items() if kind is BodyKind.LIST} == {34, 41, 42}


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize(("code", "size_max"), KINDS)
@pytest.mark.parametrize("piece", [7_000, RECEIVE_SIZE, 64 * MIB])
def test_a_body_is_kept_up_to_its_limit_and_skipped_above(code, size_max, piece, kind):
    """The next request is read as if nothing had been; the header is enough for the refusal."""
    after = RemotingCommand(code=907, opaque=2, serialize_type=kind)
    for size in (size_max, size_max + 1):
        request = RemotingCommand(code=code, opaque=1, body=bytes(size), serialize_type=kind)
        reader = FrameReader(16 * MIB, SIZES)
        stream = encode_command(request) + encode_command(after)
        (first, second), kept = read_in_pieces(reader, stream, size=piece)
        assert second == after
        assert reader.consumed == len(stream)
        assert reader.buffered_size == 0
        if size == size_max:
            assert first == request
        else:
            assert first.body == b""
            assert f"{size} bytes" in first.size_fault
            assert str(size_max) in first.size_fault
            assert kept <= piece + SMALL_SIZE_MAX


def test_a_refused_request_is_answered_when_its_last_byte_has_come():
    """An answer to a request that its client is still sending would come unexpected."""
    data = encode_command(RemotingCommand(code=41, body=bytes(16 * MIB - 3000)))
    reader = FrameReader(16 * MIB, SIZES)
    for part in (data[:200], data[200:-1]):
        reader.feed(part)
        assert reader.next_command() is None
        assert reader.buffered_size == 0
    reader.feed(data[-1:])
    assert reader.next_command().size_fault is not None


def json_header(code, size):
    begin = b'{"code":%d,"opaque":1,"extFields":{"a":"' % code
    return begin + b"x" * (size - len(begin) - 3) + b'"}}'


@pytest.mark.parametrize("begin", [b"", b" {", b'{"opaque":1,"code":310'])
def test_a_header_above_64_kib_begins_with_the_code_of_a_send(begin):
    """Any other one is refused before it is there; 128 KiB are the most for all."""
    for code in (*SEND_CODES, 36, 324, 325):
        for size in (SMALL_SIZE_MAX + 1, HEADER_SIZE_MAX):
            reader = FrameReader(16 * MIB, SIZES)
            commands, _ = read_in_pieces(reader, frame(0, json_header(code, size), b"body"))
            assert commands[0].code == code
            assert commands[0].size_fault is None
    for code in (11, 34, 41, 907, 9999):
        reader = FrameReader(16 * MIB, SIZES)
        commands, _ = read_in_pieces(reader, frame(0, json_header(code, SMALL_SIZE_MAX)))
        assert commands[0].code == code
        reader = FrameReader(16 * MIB, SIZES)
        large = frame(0, begin or json_header(code, SMALL_SIZE_MAX + 1))[4:]
        size = SMALL_SIZE_MAX + 1
        head = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + large[4:]
        reader.feed(head[:80].ljust(80))
        with pytest.raises(FrameTooLargeError, match=f"header of {size} bytes.*{SMALL_SIZE_MAX}"):
            reader.next_command()
    with pytest.raises(FrameTooLargeError, match=f"at most {HEADER_SIZE_MAX}"):
        read_in_pieces(FrameReader(16 * MIB), frame(0, json_header(310, HEADER_SIZE_MAX + 1)))


def test_a_header_that_names_two_codes_is_refused_by_the_one_that_counts():
    """The first code in its bytes lets it in, the last one is the request's."""
    header = json_header(310, SMALL_SIZE_MAX + 100)[:-1] + b',"code":41}'
    (command,), _ = read_in_pieces(FrameReader(16 * MIB, SIZES), frame(0, header, b"x"))
    assert command.code == 41
    assert f"a header of {len(header)} bytes" in command.size_fault


@pytest.mark.parametrize("is_one_way", [False, True])
async def test_a_client_is_told_the_limit_and_stays_connected(is_one_way):
    """A refused send is MESSAGE_ILLEGAL, as the store's refusal is; nothing was put."""
    target = InMemoryTarget()
    async with serving(target) as (_, address), raw_client(address) as client:
        for code, size_max in KINDS:
            request = RemotingCommand(
                code=code, flag=2 * is_one_way, opaque=code, body=bytes(size_max + 1)
            )
            await client.send(request, RemotingCommand(code=907, opaque=1))
            if not is_one_way:
                answer = await client.receive()
                assert (answer.opaque, answer.code) == (code, 13 if code == 310 else 1)
                assert str(size_max) in answer.remark
            assert (await client.receive()).opaque == 1
    assert not any(target.counts.values())


async def test_a_batch_may_have_heads_and_properties_beside_a_messages_bytes():
    """Its messages' bodies together are limited by the store."""
    messages = [Message("T", bytes(1000), properties={"k": "v" * 500}) for _ in range(3_000)]
    body = write_batch(messages)
    assert MESSAGE_SIZE_MAX < len(body) <= 2 * MESSAGE_SIZE_MAX
    for code, fields in ((320, {}), (310, {"m": "true"})):
        request = send_command(ext_fields=fields, body=body)
        request.code = code
        async with serving(InMemoryTarget()) as (_, address), raw_client(address) as client:
            assert (await client.ask(request)).code == 0
            request.body = bytes(2 * MESSAGE_SIZE_MAX + 1)
            assert "the batch is larger than max_message_size" in (await client.ask(request)).remark
