"""The codec against records written by hand, and against arbitrary bytes."""

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hastore.message import StoredMessage
from hastore.store.record import layout, message_codec, record_check
from hastore.store.record.record_check import RecordError, RecordKind
from tests.golden.vectors import (
    BLANK_OF_848,
    LAST_SEPARATOR,
    NO_PROPERTIES,
    PROP_CRC,
    VECTORS,
    Vector,
)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
by_name = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)


def check(record, *, physic_offset=None, available=None):
    return record_check.check_record(
        record, 0, len(record) if available is None else available, physic_offset
    )


@by_name
def test_decode_returns_every_field(vector: Vector):
    """The expected values were written by hand beside the records."""
    assert message_codec.decode(vector.record) == vector.message


@by_name
def test_encode_returns_the_exact_record(vector: Vector):
    """The bytes are those that were written by hand."""
    assert message_codec.encode(vector.message) == vector.record


@by_name
def test_reads_a_record_at_any_position_of_a_buffer(vector: Vector):
    """The bytes around it do not matter, and a memoryview works too."""
    buffer = memoryview(b"\xff" * 7 + vector.record + b"\xff" * 9)
    assert message_codec.decode(buffer, 7) == vector.message
    found = record_check.check_record(buffer, 7, len(buffer) - 7, vector.message.physic_offset)
    assert (found.kind, found.size) == (RecordKind.MESSAGE, len(vector.record))
    assert found.topic.decode(errors="surrogateescape") == vector.message.topic
    assert (found.queue_id, found.queue_offset) == (
        vector.message.queue_id,
        vector.message.queue_offset,
    )
    assert found.store_timestamp_ms == vector.message.store_timestamp_ms


def texts_of(record):
    begin, end = record_check.texts_range(record[: layout.HEAD_READ_SIZE])
    return record[begin:end]


@by_name
def test_a_record_is_checked_without_its_body(vector: Vector):
    """The result is that of the whole record, wherever its body ends."""
    for body in (vector.message.body, b"", bytes(5_000)):
        size = len(vector.record) - len(vector.message.body) + len(body)
        message = attrs.evolve(vector.message, body=body, total_size=size)
        record, offset = message_codec.encode(message), message.physic_offset
        head = record[: layout.HEAD_READ_SIZE]
        found = record_check.check_without_body(head, texts_of(record), offset)
        assert found == record_check.check_record(record, 0, size, offset, check_crc=False)
        elsewhere = record_check.check_without_body(head, texts_of(record), offset + 1)
        assert elsewhere.kind is RecordKind.BAD_PHYSIC_OFFSET
        cut = record_check.check_without_body(head, texts_of(record)[:-1], offset)
        assert cut.kind is RecordKind.TORN


@given(st.binary(max_size=layout.HEAD_READ_SIZE), st.binary(max_size=64), st.data())
def test_no_head_makes_texts_of_what_is_no_record(head, texts, data):
    """Whatever bytes lie at an offset: the texts are after it, few, and nothing is raised."""
    vector = data.draw(st.sampled_from(VECTORS))
    at = data.draw(st.integers(0, layout.HEAD_READ_SIZE))
    for whole in (head, vector.record[:at] + head, head[:at] + vector.record[at:]):
        some = whole[: layout.HEAD_READ_SIZE]
        found = record_check.texts_range(some)
        if found is not None:
            assert layout.BODY_POSITIONS[0] <= found[0]
            assert layout.TEXTS_SIZE_MIN <= found[1] - found[0] <= layout.TEXTS_SIZE_MAX
        record_check.check_without_body(some, texts, vector.message.physic_offset)


@by_name
def test_message_id_holds_store_host_and_offset(vector: Vector):
    """The id is the store host's address and port, then the offset, in upper-case hex."""
    message = vector.message
    assert message_codec.message_id(message.store_host, message.physic_offset) == vector.message_id


@by_name
def test_record_cut_at_any_byte_is_torn(vector: Vector):
    """The check returns TORN, and decode raises it."""
    for size in range(len(vector.record)):
        cut = vector.record[:size]
        assert check(cut).kind is RecordKind.TORN, size
        with pytest.raises(RecordError) as caught:
            message_codec.decode(cut)
        assert caught.value.kind is RecordKind.TORN


def test_record_with_another_physic_offset_is_reported():
    """The detail names the offset that the record holds."""
    found = check(NO_PROPERTIES.record, physic_offset=65_537)
    assert found.kind is RecordKind.BAD_PHYSIC_OFFSET
    assert "65536" in found.detail


@pytest.mark.parametrize("position", range(len(PROP_CRC.record)))
@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_any_flipped_byte_of_a_record_with_crc_property_is_detected(position: int, flip: int):
    """__CRC32# covers the whole record: lengths, texts and the checksum itself."""
    record = bytearray(PROP_CRC.record)
    record[position] ^= flip
    assert check(record, physic_offset=65_536).kind is not RecordKind.MESSAGE


def test_any_flipped_body_byte_is_detected():
    """The body CRC detects changes of the body, and of itself."""
    record = LAST_SEPARATOR.record
    body = record.index(b"123456789")
    for position in (*range(8, 12), *range(body, body + 9)):
        flipped = bytearray(record)
        flipped[position] ^= 0x04
        assert check(flipped).kind is RecordKind.BAD_BODY_CRC, position


def test_crc_property_is_written_as_rocketmq_does():
    """It takes the last 20 bytes, with ten digits, the least significant first."""
    record = bytearray(PROP_CRC.record)
    record[-20:] = bytes(20)
    message_codec.append_prop_crc(record)
    assert record == PROP_CRC.record
    assert (layout.PROP_CRC_BACKWARDS % 1234)[::-1] == b"__CRC32#\x014321000000\x02"
    assert check(record).has_prop_crc


def test_property_that_resembles_the_crc_property_is_valid():
    """A property that shares only some bytes with __CRC32# is not a checksum."""
    raw = b"KEYS\x01k1\x02__CRAZY\x01abcdefghij\x02"
    record = message_codec.encode(
        attrs.evolve(PROP_CRC.message, properties_raw=raw, total_size=105 + len(raw))
    )
    assert check(record).kind is RecordKind.MESSAGE


def test_blank_must_reach_exactly_to_the_file_end():
    """A BLANK of any other size is damage."""
    assert message_codec.encode_blank(848) == BLANK_OF_848
    assert check(BLANK_OF_848, available=848) == (RecordKind.BLANK, 848, "", *check(b"")[3:])
    assert check(BLANK_OF_848, available=847).kind is RecordKind.BAD_SIZE
    assert check(BLANK_OF_848 + bytes(840)).kind is RecordKind.BLANK
    with pytest.raises(RecordError) as caught:
        message_codec.decode(BLANK_OF_848 + bytes(840))
    assert caught.value.kind is RecordKind.BLANK


def test_zeros_are_empty_and_garbage_is_damage():
    """Zeros where a record would begin mean that the log has no record there."""
    assert check(bytes(100)).kind is RecordKind.EMPTY
    assert check(b"GET / HTTP/1.1\r\n" * 10).kind is RecordKind.BAD_MAGIC
    assert check(bytes(4) + NO_PROPERTIES.record[4:]).kind is RecordKind.BAD_SIZE


def test_v1_topic_has_at_most_127_bytes():
    """The length byte of a V1 topic is signed: 128 and more are damage, and cannot be encoded."""
    long = attrs.evolve(NO_PROPERTIES.message, topic="t" * 128, total_size=228)
    with pytest.raises(RecordError):
        message_codec.encode(long)
    v2 = message_codec.encode(
        attrs.evolve(long, magic=layout.MESSAGE_MAGIC_CODE_V2, total_size=229)
    )
    v1 = v2[:7] + b"\xa7" + v2[8:]
    assert check(v1).kind is RecordKind.BAD_LENGTHS


def test_ipv6_hosts_must_fit_into_the_record_size():
    """A record too small for the hosts that its sysFlag claims is damage, not an index error."""
    record = bytearray(NO_PROPERTIES.record)
    record[39] = 0x30
    assert check(record).kind is RecordKind.BAD_LENGTHS


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue_id": 2**31},
        {"physic_offset": 2**63},
        {"body_crc": 2**32 - 1},
        {"born_host": ("localhost", 1)},
        {"born_host": ("::1", 1)},
        {"store_host": ("127.0.0.1", 2**31)},
        {"sys_flag": 0x20},
        {"sys_flag": 2**31},
        {"total_size": 106},
        {"magic": 1},
        {"properties_raw": bytes(32_768)},
        {"topic": "\ud800"},
    ],
    ids=str,
)
def test_encode_refuses_values_that_no_record_can_hold(wrong):
    """Values too large for their field, or inconsistent with each other, raise RecordError."""
    with pytest.raises(RecordError):
        message_codec.encode(attrs.evolve(NO_PROPERTIES.message, **wrong))


@pytest.mark.parametrize(
    ("raw", "properties"),
    [
        (b"", {}),
        (b"a\x011\x02b\x012\x02", {"a": "1", "b": "2"}),
        (b"a\x011\x02b\x012", {"a": "1", "b": "2"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01\x02\x01b\x02c\x02\x02d\x011", {"d": "1"}),
        (b"a\x011\x012\x02", {"a": "1\x012"}),
        (b"\x00\x01\x00", {"\0": "\0"}),
    ],
)
def test_decodes_properties_as_rocketmq_does(raw, properties):
    """Both endings are valid, pairs without name or value are skipped, the last duplicate wins."""
    assert message_codec.decode_properties(raw) == properties


@st.composite
def stored_messages(draw) -> StoredMessage:
    """Any message that a record can hold."""
    v2 = draw(st.booleans())
    topic = draw(st.binary(max_size=300 if v2 else 127))
    raw = draw(st.binary(max_size=80))
    body = draw(st.binary(max_size=200))
    sys_flag = draw(INTS)
    born, store = (draw(st.ip_addresses(v=6 if sys_flag & flag else 4)) for flag in (0x10, 0x20))
    size = (
        91
        + v2
        + len(topic)
        + len(raw)
        + len(body)
        + sum(12 * (a.version == 6) for a in (born, store))
    )
    return StoredMessage(
        magic=layout.MESSAGE_MAGIC_CODE_V2 if v2 else layout.MESSAGE_MAGIC_CODE,
        body_crc=record_check.body_crc32(body),
        queue_id=draw(INTS),
        flag=draw(INTS),
        queue_offset=draw(LONGS),
        physic_offset=draw(LONGS),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(LONGS),
        born_host=(message_codec.address_text(born.packed), draw(INTS)),
        store_timestamp_ms=draw(LONGS),
        store_host=(message_codec.address_text(store.packed), draw(INTS)),
        reconsume_times=draw(INTS),
        prepared_transaction_offset=draw(LONGS),
        body=body,
        topic=topic.decode(errors="surrogateescape"),
        properties_raw=raw,
        total_size=size,
        properties=message_codec.decode_properties(raw),
    )


@given(stored_messages())
def test_encode_and_decode_are_inverse(message: StoredMessage):
    """This holds for any message, and its record is valid."""
    record = message_codec.encode(message)
    assert message_codec.decode(record) == message
    assert message_codec.encode(message_codec.decode(record)) == record
    assert check(record, physic_offset=message.physic_offset).kind is RecordKind.MESSAGE


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda vector, position, bytes_: (
                vector.record[:position] + bytes_ + vector.record[position + len(bytes_) :]
            ),
            st.sampled_from(VECTORS),
            st.integers(0, 140),
            st.binary(max_size=8),
        ),
    ),
    st.integers(0, 20),
    st.integers(0, 2**31),
)
@example(bytes.fromhex("7fffffff daa320a7") + b"\xff" * 120, 0, 2**31)
def test_arbitrary_bytes_raise_only_record_error(data, position, available):
    """Random bytes, and records with random bytes in them, never crash check or decode."""
    found = record_check.check_record(data, position, available, 0)
    assert found.size <= available
    try:
        message = message_codec.decode(data, position)
    except RecordError:
        return
    assert message_codec.encode(message) == data[position : position + message.total_size]
