"""The append path's encoder against the codec: the same bytes, and RocketMQ's limits."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.message import PROPERTY_CRC32, Message
from hastore.status import AppendMessageStatus
from hastore.store.record import layout, message_codec
from hastore.store.record.message_encoder import MessageEncoder, encode_host
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.record.topic_queue_table import TopicQueues

NOW_MS = 1_700_000_000_123
STORE_HOST = ("127.0.0.1", 10_911)
V6_HOST = ("2001:db8::1", 10_911)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
PORTS = st.integers(0, 65_535)
HOSTS = st.one_of(
    st.tuples(st.ip_addresses(v=4).map(str), PORTS), st.tuples(st.ip_addresses(v=6).map(str), PORTS)
)
TEXTS = st.text(
    st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), min_size=1
)
MESSAGES = st.builds(
    Message,
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    body=st.binary(max_size=500),
    properties=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=5),
    queue_id=INTS,
    flag=INTS,
    sys_flag=INTS,
    born_timestamp_ms=st.none() | LONGS,
    born_host=st.none() | HOSTS,
    reconsume_times=INTS,
    prepared_transaction_offset=LONGS,
)


def encoder(*, store_host=STORE_HOST, max_message_size=4 * 1024 * 1024, append_prop_crc=True):
    return MessageEncoder(
        store_host=store_host, max_message_size=max_message_size, append_prop_crc=append_prop_crc
    )


def encode(message, made=None, *, queue_offset=7, physic_offset=4096, now_ms=NOW_MS):
    made = made or encoder()
    queues = TopicQueues(message.topic.encode(), made.bare_properties)
    return made.encode(message, queues, queue_offset, physic_offset, now_ms)


@given(MESSAGES, st.booleans(), st.sampled_from([STORE_HOST, V6_HOST]), LONGS)
def test_encoded_record_decodes_to_the_message(message, append_prop_crc, store_host, offset):
    """The codec reads back every field unchanged, and the record is valid."""
    made = encoder(store_host=store_host, append_prop_crc=append_prop_crc)
    record = encode(message, made, queue_offset=5, physic_offset=offset)
    check = check_record(record, 0, len(record), offset)
    assert check.kind is RecordKind.MESSAGE, check
    assert check.has_prop_crc is append_prop_crc
    stored = message_codec.decode(record)
    assert message_codec.encode(stored) == record
    properties = dict(stored.properties)
    properties.pop(PROPERTY_CRC32, None)
    wanted = dict(message.properties or {})
    wanted.pop(PROPERTY_CRC32, None)
    assert properties == wanted
    host = message.born_host or store_host
    assert encode_host(stored.born_host) == encode_host(host)
    flags = 0x10 * (":" in host[0]) | 0x20 * (":" in store_host[0])
    assert stored.sys_flag == (message.sys_flag & ~0x30) | flags
    born_ms = message.born_timestamp_ms
    assert stored.born_timestamp_ms == (NOW_MS if born_ms is None else born_ms)
    assert (stored.topic, stored.body, stored.queue_offset) == (message.topic, message.body, 5)
    assert (stored.store_timestamp_ms, stored.store_host[1]) == (NOW_MS, store_host[1])
    for field in ("queue_id", "flag", "reconsume_times", "prepared_transaction_offset"):
        assert getattr(stored, field) == getattr(message, field)


@pytest.mark.parametrize(
    ("topic", "magic"),
    [
        ("t" * 127, layout.MESSAGE_MAGIC_CODE),
        ("t" * 128, layout.MESSAGE_MAGIC_CODE_V2),
        ("ü" * 63, layout.MESSAGE_MAGIC_CODE),
        ("ü" * 64, layout.MESSAGE_MAGIC_CODE_V2),
    ],
)
def test_topic_of_more_than_127_bytes_takes_a_v2_record(topic, magic):
    """Bytes count, not characters: RocketMQ's rule would write a negative length for ü × 64."""
    stored = message_codec.decode(encode(Message(topic, b"x")))
    assert (stored.magic, stored.topic) == (magic, topic)


@pytest.mark.parametrize("append_prop_crc", [True, False])
def test_properties_end_in_a_separator(append_prop_crc):
    """RocketMQ writes it since 5.2.0."""
    record = encode(
        Message("t", b"x", properties={"a": "1", "b": "2"}),
        encoder(append_prop_crc=append_prop_crc),
    )
    raw = message_codec.decode(record).properties_raw
    assert raw[: 8 if append_prop_crc else None] == b"a\x011\x02b\x012\x02"


def test_crc_property_from_a_client_is_dropped():
    """Only the store writes ``__CRC32#``."""
    message = Message("t", b"x", properties={PROPERTY_CRC32: "1234567890", "a": "1"})
    raw = message_codec.decode(encode(message)).properties_raw
    assert raw.count(b"__CRC32#") == 1
    assert b"1234567890" not in raw
    only = attrs.evolve(message, properties={PROPERTY_CRC32: "1234567890"})
    assert encode(only, encoder(append_prop_crc=False))[-2:] == b"\0\0"


def test_property_bytes_that_are_not_utf_8_are_kept():
    """Undecodable bytes from a producer are stored unchanged."""
    message = Message("t", b"x", properties={"a": b"\xff\xfe".decode(errors="surrogateescape")})
    assert b"a\x01\xff\xfe\x02" in encode(message)


@pytest.mark.parametrize(("spare", "append_prop_crc"), [(20, True), (0, False)])
def test_properties_have_at_most_32767_bytes(spare, append_prop_crc):
    """Their length is a signed short; the checksum's 20 bytes count too."""
    made = encoder(append_prop_crc=append_prop_crc)
    value = "v" * (32_767 - len("a\x01\x02") - spare)
    record = encode(Message("t", b"x", properties={"a": value}), made)
    assert len(message_codec.decode(record).properties_raw) == 32_767
    refused = encode(Message("t", b"x", properties={"a": value + "v"}), made)
    assert refused is AppendMessageStatus.PROPERTIES_SIZE_EXCEEDED


def test_body_has_at_most_max_message_size_bytes():
    """One byte more is refused, whatever the message's other fields."""
    made = encoder(max_message_size=1000)
    assert isinstance(encode(Message("t", bytes(1000)), made), bytes)
    refused = encode(Message("t", bytes(1001)), made)
    assert refused is AppendMessageStatus.MESSAGE_SIZE_EXCEEDED


def test_record_may_exceed_max_message_size_by_64_kib():
    """As in RocketMQ, this limits topic and properties together."""
    made = encoder(max_message_size=1000)
    value = "v" * (32_767 - 23)
    topic = "t" * (1000 + 65_536 - 1000 - 32_767 - 88 - 4)
    largest = encode(Message(topic, bytes(1000), properties={"a": value}), made)
    assert len(largest) == 1000 + 65_536
    refused = encode(Message(topic + "t", bytes(1000), properties={"a": value}), made)
    assert refused is AppendMessageStatus.MESSAGE_SIZE_EXCEEDED


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {"a\x01": "1"}},
        {"properties": {"a\0": "1"}},
        {"properties": {"a": "1\0"}},
        {"properties": {"a": "1\x02b"}},
        {"properties": {"a": "\ud800"}},
        {"queue_id": 2**31},
        {"flag": -(2**31) - 1},
        {"sys_flag": 2**40},
        {"born_timestamp_ms": 2**63},
        {"reconsume_times": 2**31},
        {"prepared_transaction_offset": 2**63},
        {"born_host": ("example.org", 1)},
        {"born_host": ("10.0.0.1", 2**31)},
    ],
    ids=str,
)
def test_values_that_no_field_can_hold_are_illegal(fields):
    """The encoder returns a status: it neither raises nor writes a damaged record."""
    assert encode(Message("t", b"x", **fields)) is AppendMessageStatus.MESSAGE_ILLEGAL


def test_cache_of_producer_hosts_is_bounded():
    """Producers with ever new ports must not fill the memory."""
    made = encoder()
    for port in range(5000):
        encode(Message("t", b"x", born_host=("10.0.0.1", port)), made)
    assert len(made._born_hosts) <= 4096


def test_scope_id_is_not_part_of_an_address():
    """``fe80::1%eth0`` is stored as its 16 bytes."""
    assert encode_host(("fe80::1%eth0", 1)) == encode_host(("fe80::1", 1))
