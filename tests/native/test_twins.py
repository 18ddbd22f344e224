"""The C extension returns what its twins in Python return, for every input, damaged ones too."""

import enum
import struct
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from hastore.dispatch import record_scan
from hastore.message import PROPERTY_CRC32, Message
from hastore.native.in_use import extension, state
from hastore.status import AppendMessageStatus
from hastore.store import commit_log
from hastore.store.index.file import IndexFile
from hastore.store.index.layout import PACKED_KEY, IndexLayout
from hastore.store.record.java_hash import hash_in_python
from hastore.store.record.message_encoder import MessageEncoder
from hastore.store.record.record_check import RecordKind, check_record, prop_crc_property
from hastore.store.record.topic_queue_table import TopicQueues, TopicQueueTable
from hastore.store.recovery import record_walk
from tests.support.env.fake_disk import FakeDisk
from tests.support.store.encoded_records import records_of
from tests.support.store.open_log import close, open_log

pytestmark = pytest.mark.skipif(extension is None, reason=f"the C extension is {state}")

FILE_SIZE = 1 << 20
HOST = ("127.0.0.1", 1)
WALKS = (record_walk.walk_records_in_python, record_walk.walk_records_in_c)
SCANS = (record_scan.scan_records_in_python, record_scan.scan_records_in_c)

TEXTS = st.text(st.characters(exclude_characters="\x00\x01\x02", codec="utf-8"), max_size=40)
KEYS = st.lists(st.sampled_from(["a", "order-7", "", "k" * 50, "日本"]), max_size=4).map(" ".join)
PROPERTIES = st.none() | st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "WAIT", "x"]), TEXTS | KEYS, max_size=5
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["orders", "a", "Ärger", "SCHEDULE_TOPIC_XXXX", "v2" * 100]),
    st.binary(max_size=60),
    properties=PROPERTIES,
    queue_id=st.sampled_from([0, 1, 2, 70_000, -1]),
    sys_flag=st.sampled_from([0] * 12 + [1, 4, 8, 12, 0x80]),
    born_host=st.sampled_from([None, ("10.0.0.1", 1), ("2001:db8::1", 65_535)]),
)


@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=8),
    start=st.sampled_from([0, 3 * FILE_SIZE, FILE_SIZE - 400]),
    store_host=st.sampled_from([("127.0.0.1", 10911), ("::1", 10911)]),
    has_prop_crc=st.booleans(),
    check_crc=st.booleans(),
    count_max=st.sampled_from([1, 3, 1_000, 5_000]),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 2_000),
)
def test_scan_of_any_bytes(  # noqa: PLR0917 - what hypothesis varies
    messages, start, store_host, has_prop_crc, check_crc, count_max, flips, cut
):
    """Intact, damaged and cut off records are read, or left to the caller, by both alike."""
    data = records_of(messages, start, store_host=store_host, has_prop_crc=has_prop_crc)
    for position, value in flips:
        data[position % len(data)] = value
    data = bytes(data[: max(len(data) - cut, 0)]) if cut % 2 else bytes(data)
    found = [scan(data, 0, start, FILE_SIZE, count_max, check_crc=check_crc) for scan in SCANS]
    assert found[0] == found[1]


@pytest.mark.parametrize("digits", [b"0123456789", b"01234x6789"])
@pytest.mark.parametrize("mark", [b"\x02", b"\x03"])
@pytest.mark.parametrize(
    "name", [b"__CRC3\0#\x01", b"\0_CRC32#\x01", b"__CRC32#\x01", b"123456789"]
)
def test_scan_of_a_damaged_checksum(name, digits, mark):
    """It is one without a name, or a text that only looks like it."""
    message = Message("orders", b"x", properties={"KEYS": "k"})
    data = records_of([message], 0, store_host=HOST, has_prop_crc=True)
    data[-20:] = name + digits + mark
    found = [scan(bytes(data), 0, 0, FILE_SIZE, 1, check_crc=True) for scan in SCANS]
    assert found[0] == found[1]
    is_shaped = digits.isdigit() and mark == b"\x02"
    has_name, looks_named = name == b"__CRC32#\x01", not name.isdigit()
    assert found[0].record_count == (not (has_name or (looks_named and is_shaped)))


@pytest.mark.parametrize("start", [b"", b"KEYS\x01k\x02"])
@pytest.mark.parametrize("value", [b"", b"a\x02", b"012345678\x02"])
def test_a_cut_checksum_is_damage(start, value):
    """A value shorter than a checksum's is none that fits, wherever a record is read."""
    data = record_with(start + b"__CRC32#\x01" + value)
    check = check_record(data, 0, FILE_SIZE, 0)
    is_damaged = not start
    assert check.kind is (RecordKind.BAD_PROP_CRC if is_damaged else RecordKind.MESSAGE)
    for scan in SCANS:
        assert scan(data, 0, 0, FILE_SIZE, 1, check_crc=True).record_count == (not is_damaged)
    for walk in WALKS:
        for table in (None, TopicQueueTable()):
            walked = walk(data, 0, table, len(data), check_crc=True)
            assert walked.record_count == (not is_damaged)


def record_with(properties):
    """Return a record with these bytes as its properties."""
    text = "x" * (len(properties) - 3)
    message = Message("orders", b"body", properties={"k": text})
    data = records_of([message], 0, store_host=HOST, has_prop_crc=False)
    assert data.endswith(b"k\x01" + text.encode() + b"\x02")
    data[-len(properties) :] = properties
    return bytes(data)


@pytest.mark.parametrize(
    ("position", "value"),
    [(4, b"abcd"), (84, b"\0\0\0\1"), (84, b"\xff\0\0\0"), (128, b"c"), (128, b"\xff")],
    ids=["magic", "body size", "negative body size", "topic size", "topic size of V1"],
)
def test_a_right_checksum_does_not_make_a_record(position, value):
    """Magic and lengths are read, too, in records that the consume queues have."""
    message = Message("orders", b"x" * 40, properties={"KEYS": "k" * 300})
    good = bytes(records_of([message], 0, store_host=HOST, has_prop_crc=True))
    assert good[128:135] == b"\6orders"
    data = bytearray(good)
    data[position : position + len(value)] = value
    data[-20:] = prop_crc_property(data[:-20])
    assert check_record(data, 0, len(data), 0).kind is not RecordKind.MESSAGE
    for walk in WALKS:
        for table in (None, TopicQueueTable()):
            assert walk(good, 0, table, 999, check_crc=True) == (len(good), 0, 1)
            assert walk(bytes(data), 0, table, 999, check_crc=True) == (0, -1, 0)


@pytest.mark.parametrize("offsets", [(2**63 - 1, -(2**63)), (2**63 - 1, 2**63 - 1)])
def test_scan_ends_after_the_largest_queue_offset(offsets):
    """It has no next."""
    messages = [Message("orders", b"x"), Message("orders", b"y")]
    data = records_of(messages, 0, store_host=HOST, has_prop_crc=False)
    size = len(data) // 2
    for number, offset in enumerate(offsets):
        data[number * size + 20 : number * size + 28] = offset.to_bytes(8, signed=True)
    for scan in SCANS:
        found = scan(bytes(data), 0, 0, FILE_SIZE, 10, check_crc=True)
        assert (found.position, found.record_count) == (size, 1)


def test_scan_ends_at_the_largest_physic_offset():
    """A record that ends there is read; none follows, whatever its offset has become."""
    size = len(records_of([Message("a", b"x")], 0, store_host=HOST, has_prop_crc=False))
    start = 2**63 - size
    data = records_of([Message("a", b"x")], start, store_host=HOST, has_prop_crc=False)
    data += records_of([Message("b", b"x")], 0, store_host=HOST, has_prop_crc=False)
    data[size + 28 : size + 36] = ((start + size) % 2**64).to_bytes(8)
    for scan in SCANS:
        found = scan(bytes(data), 0, start, FILE_SIZE, 10, check_crc=True)
        assert (found.position, found.record_count, found.last_offset) == (size, 1, start)


@pytest.mark.parametrize("size", [1, 40, 35_000, 60_000])
def test_a_body_size_that_leaves_too_much_or_too_little_ends_a_scan(size):
    """The rest of the record is more than topic and properties can be, or less."""
    message = Message("orders", b"x" * 60_000, properties={"KEYS": "a" * 30_000})
    data = records_of([message], 0, store_host=HOST, has_prop_crc=True)
    for body_size in (60_000 - size, 60_000 + size):
        data[84:88] = body_size.to_bytes(4)
        for scan in SCANS:
            found = scan(bytes(data), 0, 0, FILE_SIZE, 10, check_crc=False)
            assert found == record_scan.RecordScan(0, 0, -1, 0, [], b"")


@given(data=st.binary(max_size=300), position=st.integers(0, 400))
def test_scan_of_random_bytes(data, position):
    """Bytes that are no records end the scan at once, also where nothing is left."""
    for scan in SCANS:
        found = scan(data, position, 0, FILE_SIZE, 10, check_crc=True)
        assert found == record_scan.RecordScan(position, 0, -1, 0, [], b"")


def test_scan_reads_ordinary_records():
    """Both read all of them: the comparisons above are not of empty results."""
    messages = [
        Message("orders", b"x" * 100, queue_id=number % 3, properties={"KEYS": f"{number} a"})
        for number in range(60)
    ]
    data = bytes(records_of(messages, 0, store_host=("127.0.0.1", 1), has_prop_crc=True))
    for scan in SCANS:
        found = scan(data, 0, 0, FILE_SIZE, 1_000, check_crc=True)
        assert found.position == len(data)
        assert [(queue_id, len(units)) for _, queue_id, _, units in found.queues] == [
            (0, 400), (1, 400), (2, 400)
        ]  # fmt: skip
        assert len(found.keys) == 120 * PACKED_KEY.size


def test_more_queues_than_a_call_has_records():
    """Each record may be of another queue."""
    messages = [Message(f"t{number}", b"", queue_id=number) for number in range(1_200)]
    data = bytes(records_of(messages, 0, store_host=("127.0.0.1", 1), has_prop_crc=False))
    found = [scan(data, 0, 0, FILE_SIZE, 5_000, check_crc=False) for scan in SCANS]
    assert found[0] == found[1]
    assert found[0].record_count == record_scan.SCAN_RECORDS_MAX


@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=8),
    start=st.sampled_from([0, 3 * FILE_SIZE, 2**62]),
    store_host=st.sampled_from([("127.0.0.1", 10911), ("::1", 10911)]),
    has_prop_crc=st.booleans(),
    has_table=st.booleans(),
    check_crc=st.booleans(),
    torn_from=st.integers(-100, 1_000),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3),
    zeros=st.tuples(st.integers(0, 10_000), st.sampled_from([0, 0, 1, 40])),
    cut=st.integers(0, 2_000),
)
def test_walk_of_any_bytes(  # noqa: PLR0917 - what hypothesis varies
    messages,
    start,
    store_host,
    has_prop_crc,
    has_table,
    check_crc,
    torn_from,
    flips,
    zeros,
    cut,
):
    """A start finds the same end of the log and the same next queue offsets."""
    data = records_of(messages, start, store_host=store_host, has_prop_crc=has_prop_crc)
    for position, value in flips:
        data[position % len(data)] = value
    first = zeros[0] % len(data)
    data[first : first + zeros[1]] = bytes(len(data[first : first + zeros[1]]))
    data = bytes(data[: max(len(data) - cut, 0)]) if cut % 2 else bytes(data)
    found = []
    for walk in WALKS:
        table = TopicQueueTable() if has_table else None
        walked = walk(data, start, table, torn_from, check_crc=check_crc)
        topics = [] if table is None else list(table.topics.items())
        found.append((walked, [(name, queues.next_offsets) for name, queues in topics]))
    assert found[0] == found[1]


@given(data=st.binary(max_size=300))
def test_walk_of_random_bytes(data):
    """Bytes that are no records end the walk at once."""
    for walk in WALKS:
        assert walk(data, 0, TopicQueueTable(), 0, check_crc=True) == (0, -1, 0)


def test_walk_of_a_whole_chunk():
    """Both walk all records of it, more than a call of the extension takes."""
    messages = [
        Message(f"t{number % 1_100}", b"x", queue_id=number % 3, sys_flag=4 * (number % 50 == 7))
        for number in range(2_500)
    ]
    for has_prop_crc in (False, True):
        data = bytes(records_of(messages, 0, store_host=HOST, has_prop_crc=has_prop_crc))
        for walk in WALKS:
            table = TopicQueueTable()
            walked = walk(data, 0, table, len(data), check_crc=True)
            assert (walked.position, walked.record_count) == (len(data), 2_500)
            assert table.queue_count == len(
                {(m.topic, m.queue_id) for m in messages if not m.sys_flag}
            )


def test_walk_reads_impossible_queue_offsets():
    """The largest one has no next, and a negative one changes nothing."""
    messages = [Message("orders", b"x", queue_id=queue_id) for queue_id in range(3)]
    data = records_of(messages, 0, store_host=HOST, has_prop_crc=False)
    size = len(data) // 3
    for number, offset in enumerate((2**63 - 1, -(2**63), 2**63 - 2)):
        at = number * size + 20
        data[at : at + 8] = offset.to_bytes(8, signed=True)
    for walk in WALKS:
        table = TopicQueueTable()
        assert walk(bytes(data), 0, table, 0, check_crc=True).record_count == 3
        assert table.topics["orders"].next_offsets == {2: 2**63 - 1}


@pytest.mark.parametrize(("position", "offset"), [(-1, 0), (0, -1), (0, 2**63 - 2)])
def test_walk_refuses_positions_that_do_not_fit(position, offset):
    """They are an error, not a read outside the buffer."""
    with pytest.raises(ValueError, match="range"):
        extension.walk_records(b"abc", position, offset, 0, True, None)


NUMBERS = [0, 7, -1, 2**31 - 1, 2**31, -(2**31), 2**70, True, -1.0, 1.5, None, "7"]


class Printed(enum.StrEnum):
    """A text of another class."""

    TAG = "tag"

    def __str__(self):
        return f"printed {self.value}"


ENCODED = st.builds(
    Message,
    st.sampled_from(["orders", "Ärger", "v2" * 100, "t" * 32_767]),
    st.binary(max_size=1_001),
    properties=st.none()
    | st.dictionaries(
        TEXTS | st.sampled_from(["__CRC32#", "a\x01", ""]),
        TEXTS
        | st.sampled_from(
            [
                "\x02",
                "\0",
                "\udc80",
                "\ud800",
                "v" * 32_700,
                "w" * 32_700,
                "日" * 9_000,
                Printed.TAG,
            ]
        ),
        max_size=4,
    ),
    queue_id=st.sampled_from(NUMBERS),
    flag=st.sampled_from(NUMBERS),
    sys_flag=st.sampled_from([0, 1, 8]),
    born_host=st.sampled_from([None, ("10.0.0.1", 1), ("2001:db8::1", 65_535)]),
)


@given(
    message=ENCODED,
    store_host=st.sampled_from([("127.0.0.1", 10911), ("::1", 10911)]),
    has_prop_crc=st.booleans(),
    position=st.integers(0, 10),
    spare=st.sampled_from([-1, 0, 1, 300]),
)
def test_encoded_record(message, store_host, has_prop_crc, position, spare):
    """The same bytes, with nothing around them changed; or nothing, and the encoder decides."""
    encoder = MessageEncoder(
        store_host=store_host, max_message_size=1_000, append_prop_crc=has_prop_crc
    )
    queues = TopicQueues(message.topic.encode(), encoder.bare_properties)
    middle = encoder.encode_middle(message, 1_700_000_000_000)
    wanted = encoder.encode(message, queues, 5, 6_000_000_000, 1_700_000_000_000)
    size = len(wanted) if isinstance(wanted, bytes) else 500
    file = bytearray(b"-" * (position + size + 20))
    found = extension.encode_record(
        memoryview(file), position, position + size + min(spare, 20), queues.topic_field,
        queues.magic, message.queue_id, message.flag, 5, 6_000_000_000, middle, message.body,
        message.properties, isal_zlib.crc32, has_prop_crc, encoder.record_size_max,
    )  # fmt: skip
    if found:
        assert file == b"-" * position + wanted + b"-" * 20
        assert spare >= 0
    else:
        assert file == b"-" * len(file)
        texts = message.properties or {}
        is_special = PROPERTY_CRC32 in texts or "\udc80" in texts.values()
        is_special |= any(type(text) is Printed for text in texts.values())
        assert spare < 0 or is_special or not isinstance(wanted, bytes)


@pytest.mark.parametrize("properties", [{"TAGS": Printed.TAG}, {Printed.TAG: "a"}])
def test_texts_of_another_class_are_left_to_python(properties):
    """Such a text may print itself as it likes."""
    file = bytearray(500)
    for texts, is_encoded in (({"TAGS": "tag"}, True), (properties, False)):
        size = extension.encode_record(
            memoryview(file), 0, 500, b"\1t", 0, 0, 0, 0, 0, b"", b"", texts, isal_zlib.crc32,
            False, 500,
        )  # fmt: skip
        assert bool(size) == is_encoded


def test_encode_reports_an_error_of_its_crc32():
    """Of the body's, and of the record's."""
    for good in (0, 1):
        crcs = iter([7] * good + ["no number"])
        with pytest.raises(TypeError):
            extension.encode_record(
                memoryview(bytearray(200)), 0, 200, b"\1t", 0, 0, 0, 0, 0, b"", b"", None,
                lambda _, crcs=crcs: next(crcs), True, 1_000,
            )  # fmt: skip


@pytest.mark.parametrize("code", ["C", "Python"])
def test_numbers_that_are_none_are_refused(code, monkeypatch):
    """By the status of the append, not by an exception out of it."""
    if code == "Python":
        monkeypatch.setattr(commit_log, "_encode_record", None)
    log = open_log()
    for number in (1.5, -1.0, None, "7", 2**31):
        for message in (Message("t", b"x", queue_id=number), Message("t", b"x", flag=number)):
            assert log.append_message(message).status is AppendMessageStatus.MESSAGE_ILLEGAL
    assert log.max_offset == 0
    close(log)


def test_encode_refuses_a_file_that_is_too_short():
    """An end outside the file is an error, not a write outside it."""
    with pytest.raises(ValueError, match="outside"):
        extension.encode_record(
            memoryview(bytearray(100)), 0, 101, b"\1t", 0, 0, 0, 0, 0, b"", b"", None,
            isal_zlib.crc32, False, 1_000,
        )  # fmt: skip


def index_file(slots, entries):
    """Return a new, empty index file on a disk in memory."""
    disk = FakeDisk()
    disk.make_dirs("/i")
    return IndexFile.new(disk, "/i/20231114221320000", IndexLayout(slots, entries), None)


@given(
    keys=st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1),
            st.integers(0, 2**62),
            st.sampled_from([0, 1, 999, 1_700_000_000_000, 1_700_000_001_500, 2**62]),
        ),
        max_size=30,
    ),
    slots=st.integers(1, 9),
    left=st.lists(st.tuples(st.integers(0, 8), st.integers(-3, 40)), max_size=3),
    pieces=st.integers(1, 30),
)
def test_index_entries(keys, slots, left, pieces):
    """Entries, slots and header are the same, over slots that a RocketMQ's kill left too high."""
    files = [index_file(slots, 31) for _ in range(3)]
    for file in files:
        for slot, number in left:
            file.slots.numbers[slot % slots] = number
    for key in keys:
        files[0].put(*key)
    for begin in range(0, len(keys), pieces):
        packed = b"".join(PACKED_KEY.pack(*key) for key in keys[begin : begin + pieces])
        files[1].put_keys(packed)
        with mock.patch("hastore.store.index.file.extension", None):
            files[2].put_keys(packed)
    for file in files[1:]:
        assert file.header == files[0].header
        assert file.slots.numbers.tolist() == files[0].slots.numbers.tolist()
        assert file.slots.dirty == files[0].slots.dirty
        for number in range(1, file.index_count):
            assert file.read_entry(number) == files[0].read_entry(number)


@pytest.mark.parametrize(
    ("slots", "page_shift", "number", "keys"),
    [
        (2, 10, 0, b""),
        (2, 10, 1, b"7"),
        (2, 0, 1, b""),
        (2, 10, 1, PACKED_KEY.pack(-1, 0, 0)),
        (0, 10, 1, b""),
    ],
    ids=["number", "half a key", "few dirty pages", "hash", "no slots"],
)
def test_index_refuses_what_does_not_fit(slots, page_shift, number, keys):
    """Sizes that do not fit each other are an error, not a write outside a buffer."""
    numbers, tail = memoryview(bytearray(4 * slots)), bytearray()
    with pytest.raises(ValueError, match=r"fit|hash"):
        extension.fill_index(numbers, bytearray(1), page_shift, number, 0, keys, tail)
    assert tail == b""


@pytest.mark.parametrize("code", ["C", "Python"])
def test_refused_keys_are_not_counted(code):
    """The next keys follow those before."""
    file = index_file(5, 31)
    file.put_keys(PACKED_KEY.pack(1, 2, 3))
    used = extension if code == "C" else None
    with mock.patch("hastore.store.index.file.extension", used):
        good = PACKED_KEY.pack(4, 5, 6)
        for keys in (PACKED_KEY.pack(2**31, 5, 6), good + PACKED_KEY.pack(2**31, 5, 6), good[:-1]):
            before = file.header
            with pytest.raises((ValueError, struct.error)):
                file.put_keys(keys)
            assert file.header == before
        file.put_keys(PACKED_KEY.pack(4, 5, 6))
    assert file.index_count == 3
    assert file.read_entry(2).physic_offset == 5
    assert file.read_entry(2).key_hash == 4


@given(text=st.text(st.characters(exclude_categories=()), max_size=600), begun=st.integers())
def test_java_hash(text, begun):
    """The hash of any text, lone surrogates and large characters too, after any prefix."""
    begun = (begun + 2**31) % 2**32 - 2**31
    assert extension.java_hash(text, begun) == hash_in_python(text, begun)
