"""The commit log: appends of messages, batches and a master's bytes; reads and flushes."""

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ConfigError, DiskFullError, FileSizeMismatchError, StoreClosedError
from hastore.message import Message
from hastore.status import AppendMessageStatus as Status
from hastore.status import FlushDiskType
from hastore.store.commit_log import JOINED_SIZE_MAX, SCRATCH_SIZE
from hastore.store.log_tail import PAGES_SIZE, SIZE_THROUGH_MAP, WRITE_SIZE_MAX
from hastore.store.record import message_codec, record_check
from hastore.store.record.layout import BLANK_MAGIC_CODE
from hastore.store.record.record_check import RecordKind
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.store.open_log import (
    FILE_SIZE,
    all_bytes,
    append,
    append_data,
    close,
    flush,
    make_file,
    open_log,
)

RECORD_SIZE = 88 + 1 + len("orders") + 2 + 20  # without the body


def message(body=b"body", **fields):
    return Message("orders", body, **fields)


def body_that_fills(log, left=8):
    """Return a body whose record leaves ``left`` bytes in the last file."""
    return bytes(FILE_SIZE - log.max_offset % FILE_SIZE - RECORD_SIZE - left)


def records(log):
    """Return the decoded messages of a log, and the size of each BLANK in its place."""
    data = all_bytes(log)
    found, position = [], 0
    while position < len(data):
        left = log.file_size - (log.min_offset + position) % log.file_size
        check = record_check.check_record(data, position, left, log.min_offset + position)
        assert check.kind in (RecordKind.MESSAGE, RecordKind.BLANK), check
        if check.kind is RecordKind.MESSAGE:
            found.append(message_codec.decode(data, position))
        else:
            found.append(check.size)
        position += check.size
    return found


# -- one message ---------------------------------------------------------------------------------


def test_append_returns_the_position_of_the_record():
    """Offsets bound the record, queue offsets count up, and the id is RocketMQ's offsetMsgId."""
    log = open_log()
    first = append(log, message(b"one"))
    second = append(log, message(b"two!"))
    assert first.status is second.status is Status.PUT_OK
    assert (first.physic_offset, first.next_offset) == (0, RECORD_SIZE + 3)
    assert (second.physic_offset, second.next_offset) == (first.next_offset, log.max_offset)
    assert (first.queue_offset, second.queue_offset, second.message_count) == (0, 1, 1)
    assert first.store_timestamp_ms == START_MS
    assert second.message_id == f"7F00000100002A9F{second.physic_offset:016X}"
    assert [stored.body for stored in records(log)] == [b"one", b"two!"]


@pytest.mark.parametrize("append_prop_crc", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"born_timestamp_ms": START_MS},
        {"born_host": ("127.0.0.1", 10_911)},
        {"flag": 7, "properties": {"a": "1"}},
        {"sys_flag": 0x8, "reconsume_times": 1, "prepared_transaction_offset": 9},
    ],
    ids=str,
)
def test_single_messages_and_batches_have_the_same_records(fields, append_prop_crc):
    """Single appends use a faster encoder, which must write the same bytes as the general one."""
    one_by_one, batch = (open_log(append_prop_crc=append_prop_crc) for _ in range(2))
    bodies = [b"", b"x", bytes(500)]
    messages = [message(body, queue_id=3, **fields) for body in bodies]
    for each in messages:
        assert append(one_by_one, each).status is Status.PUT_OK
    if "sys_flag" not in fields:
        assert append(batch, messages).status is Status.PUT_OK
        assert all_bytes(one_by_one) == all_bytes(batch)
    for number, stored in enumerate(records(one_by_one)):
        raw = batch._encoder.encode(
            messages[number], batch._table.find("orders"), number, stored.physic_offset, START_MS
        )
        assert message_codec.encode(stored) == raw


def test_each_queue_has_its_own_offsets():
    """Topic and queue id together identify a queue."""
    log = open_log()
    places = [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 1), ("a", 0)]
    offsets = [append(log, topic=topic, queue_id=queue).queue_offset for topic, queue in places]
    assert offsets == [0, 0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "offsets"), [(0x4, [0, 0, 1]), (0x8, [0, 1, 2]), (0xC, [0, 0, 1])]
)
def test_half_messages_and_rollbacks_do_not_advance_their_queue(kind, offsets):
    """PREPARED and ROLLBACK records have queue offset 0; COMMIT records count as usual."""
    log = open_log()
    found = [append(log, message(sys_flag=flag)).queue_offset for flag in (0, kind, 0)]
    assert found == offsets


def test_pages_are_made_before_single_messages_reach_them():
    """Each is made once, before its first byte is appended, up to the end of each file."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=3 * PAGES_SIZE)
    made = []  # of the last file: position and size

    def record(operation):
        at = made[-1][0] + made[-1][1] if made else 0
        assert operation.position == max(log.max_offset % log.file_size, at)
        made.append((operation.position, operation.size))

    disk.before("make_pages", record)
    bodies = [bytes([number % 256]) * 3000 for number in range(200)]
    for number, body in enumerate(bodies):
        if log.max_offset % log.file_size + len(body) + 200 > log.file_size:
            assert sum(made[-1]) == log.file_size
            made.clear()
        result = append(log, [message(body)] if number % 7 == 1 else message(body))
        if number % 7 != 1:
            assert sum(made[-1]) >= (result.next_offset - 1) % log.file_size + 1
    assert disk.counts["make_pages"] <= 4 * len(log.mapped_file_queue.files)
    assert [stored.body for stored in records(log) if not isinstance(stored, int)] == bodies


@pytest.mark.parametrize("append_prop_crc", [False, True])
def test_with_sync_flush_each_record_is_written_with_the_same_bytes(append_prop_crc):
    """Not through the map: small ones and large ones, up to the end of each file."""
    disk = FakeDisk()
    fields = {"append_prop_crc": append_prop_crc, "mapped_file_size": 4 * SCRATCH_SIZE}
    mapped = open_log(**fields)
    written = open_log(fake_env(disk), flush_disk_type=FlushDiskType.SYNC_FLUSH, **fields)
    sizes = [0, 1, 1000, SCRATCH_SIZE - 200, SCRATCH_SIZE, 2 * SCRATCH_SIZE] * 3
    for number, size in enumerate(sizes):
        each = message(bytes([number]) * size, properties={"KEYS": f"k{number}"})
        before = disk.counts["pwrite"]
        assert append(written, each) == append(mapped, each)
        assert disk.counts["pwrite"] == before + (3 if size > JOINED_SIZE_MAX else 1)
    assert all_bytes(written) == all_bytes(mapped)
    assert not disk.counts["make_pages"]


def test_large_records_are_written_with_the_same_bytes():
    """Small ones before and after them go through the map, and find its pages."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=8 * PAGES_SIZE)
    same = open_log(flush_disk_type=FlushDiskType.SYNC_FLUSH, mapped_file_size=8 * PAGES_SIZE)
    made = []  # positions in the log

    def record(operation):
        start = int(Path(operation.path).name) + operation.position
        made.append(range(start, start + operation.size))

    disk.before("make_pages", record)
    rng = random.Random(1)
    sizes = [rng.choice([1, 5_000, 12_000, SIZE_THROUGH_MAP, 50_000, 90_000]) for _ in range(500)]
    for number, size in enumerate(sizes):
        each = message(bytes([number % 256]) * size, properties={"KEYS": f"k{number}"})
        pwrites = disk.counts["pwrite"]
        result = append(log, each)
        assert result == append(same, each)
        is_large = size > 12_000  # a record has more than its body
        assert disk.counts["pwrite"] == pwrites + (3 if size > JOINED_SIZE_MAX else is_large)
        for offset in () if is_large else (result.physic_offset, result.next_offset - 1):
            assert any(offset in pages for pages in made), f"record {number}"
    assert all_bytes(log) == all_bytes(same)
    assert [stored.body[:1] for stored in records(log) if not isinstance(stored, int)] == [
        bytes([number % 256]) for number in range(len(sizes))
    ]


def test_large_records_alone_make_no_pages():
    """They would be made twice."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=4 * PAGES_SIZE)
    for _ in range(20):
        append(log, body=bytes(50_000))
    assert len(log.mapped_file_queue.files) > 3
    assert not disk.counts["make_pages"]


def test_a_very_large_record_is_written_in_pieces():
    """In order, so that a kill leaves a prefix; if one fails, nothing is left.

    The body is not copied before.
    """
    disk = FakeDisk()
    log = open_log(
        fake_env(disk), mapped_file_size=8 * WRITE_SIZE_MAX, max_message_size=4 * WRITE_SIZE_MAX
    )
    pieces = []
    disk.before("pwrite", lambda operation: pieces.append((operation.position, operation.size)))
    body = random.Random(1).randbytes(2 * WRITE_SIZE_MAX)
    size = append(log, body=body).next_offset
    head_size = pieces[0][1]
    body_end = head_size + len(body)
    assert 0 < head_size < size - len(body)
    assert pieces == [
        (0, head_size),
        (head_size, WRITE_SIZE_MAX),
        (head_size + WRITE_SIZE_MAX, WRITE_SIZE_MAX),
        (body_end, size - body_end),
    ]
    assert [stored.body for stored in records(log)] == [body]
    for failing in range(4):
        disk.fail("pwrite", disk_full(), skip=failing)
        with pytest.raises(DiskFullError):
            append(log, body=body)
        assert not any(log.mapped_file_queue.files[0].append_view[size:])
        disk.heal()
    assert append(log, body=body).physic_offset == size


def test_a_record_may_be_large_by_its_properties():
    """The limit is the record's, with the extension as without."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=4 * PAGES_SIZE)
    append(log, message(properties={"a": "x" * SIZE_THROUGH_MAP}))
    append(log, message(bytes(SIZE_THROUGH_MAP - 1)))
    assert disk.counts["pwrite"] == 2
    assert [len(stored.body) for stored in records(log)] == [4, SIZE_THROUGH_MAP - 1]


def test_a_large_record_that_cannot_be_written_leaves_the_log_unchanged():
    """Whatever of it was written is zeroed."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=4 * PAGES_SIZE)
    append(log, body=b"first")
    disk.fail("pwrite", disk_full(), reaches=PAGES_SIZE)
    with pytest.raises(DiskFullError):
        append(log, body=b"x" * SIZE_THROUGH_MAP + b"y")
    assert not any(log.mapped_file_queue.files[0].append_view[log.max_offset :])
    disk.heal()
    append(log, body=b"second")
    assert [stored.body for stored in records(log)] == [b"first", b"second"]


@pytest.mark.parametrize("flush_disk_type", FlushDiskType)
@pytest.mark.parametrize("body_size", [SIZE_THROUGH_MAP, JOINED_SIZE_MAX + 1])
def test_above_a_file_size_limit_records_are_stored_through_the_map(flush_disk_type, body_size):
    """RLIMIT_FSIZE was lowered below the size of a file that has its blocks."""
    disk = FakeDisk()
    size = 4 * PAGES_SIZE
    log = open_log(fake_env(disk), flush_disk_type=flush_disk_type, mapped_file_size=size)
    large = body_size * b"x"
    append(log, body=b"first")
    too_large = disk_full()
    too_large.__cause__ = OSError(errno.EFBIG, "File too large")
    disk.fail("pwrite", too_large, reaches=30)
    assert append(log, body=large).status is Status.PUT_OK
    disk.heal()
    disk.fail("pwrite", disk_full(), reaches=30)
    with pytest.raises(DiskFullError):
        append(log, body=large)
    assert [stored.body for stored in records(log)] == [b"first", large]


def test_no_pages_are_made_for_a_slave():
    """Its bytes are written, not mapped."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), master=False)
    append_data(log, 0, bytes(100))
    append_data(log, 100, bytes(FILE_SIZE - 100))
    append_data(log, FILE_SIZE, bytes(100))
    assert not disk.counts["make_pages"]


def test_store_timestamp_never_decreases():
    """When the wall clock is set back, every kind of append keeps the last timestamp."""
    clock = FakeClock()
    log = open_log(fake_env(clock=clock))
    append(log, message())
    clock.ms -= 60_000
    append(log, message())
    append(log, message(properties={"a": "1"}))
    append(log, [message(), message()])
    clock.ms += 60_001
    append(log, message())
    assert [stored.store_timestamp_ms - START_MS for stored in records(log)] == [0, 0, 0, 0, 0, 1]
    assert [stored.born_timestamp_ms - START_MS for stored in records(log)] == [0, 0, 0, 0, 0, 1]


def test_store_timestamp_never_decreases_across_a_restart():
    """Opening the log restores the last record's timestamp."""
    disk, clock = FakeDisk(), FakeClock()
    log = open_log(fake_env(disk, clock))
    append(log, message())
    close(log)
    clock.ms -= 60_000
    again = open_log(fake_env(disk, clock))
    assert append(again, message()).store_timestamp_ms == START_MS


def test_ipv6_store_host_is_marked_in_each_record():
    """The host takes 20 bytes and sets its flag bit; the message id grows to 56 digits."""
    log = open_log(store_host=("::1", 10_911))
    results = [append(log, message()), append(log, message(properties={"a": "1"}))]
    assert [stored.sys_flag for stored in records(log)] == [0x30, 0x30]
    assert [stored.store_host for stored in records(log)] == [("::1", 10_911)] * 2
    assert all(len(result.message_id) == 56 for result in results)


def test_master_refuses_a_host_name_as_store_host():
    """Records contain an IP address. A slave creates no records and accepts a name."""
    with pytest.raises(ConfigError, match="must be an IP address"):
        open_log(store_host=("localhost", 10_911))
    open_log(store_host=("localhost", 10_911), master=False)


# -- refused messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (message(bytes(1001)), Status.MESSAGE_SIZE_EXCEEDED),
        (message(bytes(1001), properties={"a": "1"}), Status.MESSAGE_SIZE_EXCEEDED),
        (message(properties={"a": "v" * 32_768}), Status.PROPERTIES_SIZE_EXCEEDED),
        (message(queue_id=2**31), Status.MESSAGE_ILLEGAL),
        (message(properties={"a": "\x02"}), Status.MESSAGE_ILLEGAL),
        (Message("", b"x"), Status.MESSAGE_ILLEGAL),
        (Message("\ud800", b"x"), Status.MESSAGE_ILLEGAL),
        (Message("t" * 32_768, b"x"), Status.MESSAGE_ILLEGAL),
        ([message(bytes(600)), message(bytes(401))], Status.MESSAGE_SIZE_EXCEEDED),
        ([message(), message(sys_flag=0x4)], Status.MESSAGE_ILLEGAL),
        ([message(), message(properties={"a": "\x01"})], Status.MESSAGE_ILLEGAL),
        ([Message("", b"x")], Status.MESSAGE_ILLEGAL),
    ],
    ids=range(12),
)
def test_refused_message_changes_nothing(refused, status):
    """No byte is written, neither the log nor the queue advances, and a topic leaves nothing."""
    log = open_log(max_message_size=1000)
    assert append(log, refused).status is status
    assert not log._topics, "a producer could make any number of rows"
    append(log, message(b"before"))
    before = all_bytes(log)
    result = append(log, refused)
    assert result.status is status
    assert result.message_count == 0
    assert result.physic_offset == result.next_offset == log.max_offset
    assert append(log, message(b"after")).queue_offset == 1
    assert all_bytes(log).startswith(before)
    assert [stored.body for stored in records(log)] == [b"before", b"after"]


@pytest.mark.parametrize("properties", [None, {"a": "1"}])
def test_refuses_a_record_larger_than_a_file(properties):
    """RocketMQ would first fill a whole file with a BLANK; hastore refuses up front."""
    log = open_log()
    append(log, message())
    room = FILE_SIZE - 8 - RECORD_SIZE - (len("a\x011\x02") if properties else 0)
    too_large = message(bytes(room + 1), properties=properties)
    assert append(log, too_large).status is Status.MESSAGE_SIZE_EXCEEDED
    assert append(log, [too_large]).status is Status.MESSAGE_SIZE_EXCEEDED
    assert log.max_offset < FILE_SIZE
    assert append(log, message(bytes(room), properties=properties)).status is Status.PUT_OK
    assert log.max_offset == 2 * FILE_SIZE - 8


# -- the end of a file ---------------------------------------------------------------------------


@pytest.mark.parametrize("properties", [None, {"a": "1"}])
def test_record_that_would_leave_under_8_bytes_goes_to_the_next_file(properties):
    """A BLANK takes at least 8 bytes; the max offset jumps to the end of the file."""
    log = open_log()
    append(log, message())
    props_size = len("a\x011\x02") if properties else 0
    result = append(log, message(body_that_fills(log, left=7 + props_size), properties=properties))
    assert result.physic_offset == FILE_SIZE
    (_, blank, _) = records(log)
    assert blank == FILE_SIZE - RECORD_SIZE - len(b"body")
    assert message_codec.encode_blank(blank) in all_bytes(log)


def test_record_that_leaves_8_bytes_stays_in_its_file():
    """The BLANK then consists of its header."""
    log = open_log()
    append(log, message())
    append(log, message(body_that_fills(log, left=8)))
    assert log.max_offset == FILE_SIZE - 8
    append(log, message())
    assert records(log)[2] == 8


def test_append_returns_end_of_file_until_the_next_file_exists():
    """The BLANK is written once, and further attempts change nothing."""
    log = open_log()
    assert log.append_message(message()).status is Status.END_OF_FILE
    make_file(log)
    assert log.append_message(message()).status is Status.PUT_OK
    large = message(bytes(FILE_SIZE - 8 - RECORD_SIZE))
    for _ in range(3):
        assert log.append_message(large).status is Status.END_OF_FILE
        assert log.append_batch([large]).status is Status.END_OF_FILE
        assert log.max_offset == FILE_SIZE
    make_file(log)
    result = log.append_message(large)
    assert (result.status, result.physic_offset, result.queue_offset) == (
        Status.PUT_OK,
        FILE_SIZE,
        1,
    )


def test_requests_the_next_file_once_when_half_full():
    """The request is repeated only when an append has to wait for the file."""
    log = open_log()
    requests = []
    log.mapped_file_queue.subscribe(lambda: requests.append(log.max_offset))
    append(log, message())
    requests.clear()
    while log.max_offset < FILE_SIZE - 2 * RECORD_SIZE:
        append(log, message())
    assert len(requests) == 1
    assert FILE_SIZE // 2 <= requests[0] < FILE_SIZE // 2 + RECORD_SIZE + len(b"body")


# -- a batch -------------------------------------------------------------------------------------


def test_batch_is_stored_as_consecutive_records_with_one_timestamp():
    """One result has the first record's offset, the last one's end and all ids."""
    log = open_log()
    append(log, message())
    bodies = [b"a", b"bb", b"ccc"]
    result = append(log, [message(body) for body in bodies])
    stored = records(log)[1:]
    assert [record.body for record in stored] == bodies
    assert [record.queue_offset for record in stored] == [1, 2, 3]
    assert {record.store_timestamp_ms for record in stored} == {result.store_timestamp_ms}
    assert (result.physic_offset, result.next_offset) == (stored[0].physic_offset, log.max_offset)
    assert (result.queue_offset, result.message_count) == (1, 3)
    ids = [f"7F00000100002A9F{record.physic_offset:016X}" for record in stored]
    assert result.message_id.split(",") == ids
    assert append(log, message()).queue_offset == 4


def test_batch_never_crosses_the_end_of_a_file():
    """A batch that does not fit goes to the next file as a whole."""
    log = open_log()
    append(log, message(bytes(2000)))
    result = append(log, [message(bytes(800)), message(bytes(800)), message(bytes(800))])
    assert result.physic_offset == FILE_SIZE
    assert [record.queue_offset for record in records(log) if not isinstance(record, int)] == [
        0,
        1,
        2,
        3,
    ]


# -- a slave -------------------------------------------------------------------------------------


@given(st.data())
def test_slave_stores_its_masters_bytes_from_pieces_of_any_size(data):
    """Pieces may split records, but never cross the end of a file."""
    master, slave = open_log(), open_log(master=False)
    for size in data.draw(st.lists(st.integers(0, 1500), min_size=1, max_size=8)):
        append(master, message(bytes(size)))
    source = all_bytes(master)
    while slave.max_offset < len(source):
        offset = slave.max_offset
        left = min(FILE_SIZE - offset % FILE_SIZE, len(source) - offset)
        append_data(slave, offset, source[offset : offset + data.draw(st.integers(1, left))])
    assert all_bytes(slave) == source


def test_empty_slave_begins_at_the_offset_of_its_first_data():
    """A slave that starts with its master's last file has no file before it."""
    slave = open_log(master=False)
    assert not slave.append_data(3 * FILE_SIZE, memoryview(b"abc"))
    assert slave.max_offset == slave.min_offset == 3 * FILE_SIZE
    make_file(slave)
    assert slave.append_data(3 * FILE_SIZE, memoryview(b"abc"))
    assert (slave.min_offset, slave.max_offset) == (3 * FILE_SIZE, 3 * FILE_SIZE + 3)
    assert slave.mapped_file_queue.files[0].path.endswith(f"{3 * FILE_SIZE:020d}")


def test_append_data_without_a_file_writes_nothing():
    """It returns False, and the caller passes the same bytes again."""
    slave = open_log(master=False)
    assert not slave.append_data(0, memoryview(b"x" * FILE_SIZE))
    assert slave.max_offset == 0
    make_file(slave)
    assert slave.append_data(0, memoryview(b"x" * FILE_SIZE))
    assert not slave.append_data(FILE_SIZE, memoryview(b"y"))
    assert slave.max_offset == FILE_SIZE


@pytest.mark.parametrize("have", [0, 1, 4000, FILE_SIZE])
def test_data_across_a_file_end_means_the_master_has_larger_files(have):
    """The error says so and contains the slave's file size; nothing is written."""
    slave = open_log(master=False)
    if have:
        append_data(slave, 0, bytes(have))
    with pytest.raises(FileSizeMismatchError, match="master's are larger") as caught:
        slave.append_data(have, memoryview(bytes(FILE_SIZE + 1)))
    assert caught.value.size_found == FILE_SIZE
    assert caught.value.size_wanted > FILE_SIZE
    assert "--mapped-file-size" in caught.value.hint
    assert slave.max_offset == have


def test_data_that_begins_inside_a_file_means_another_file_size():
    """A master's last file begins at an offset where no file of the slave begins."""
    slave = open_log(master=False)
    with pytest.raises(FileSizeMismatchError, match="another size"):
        slave.append_data(FILE_SIZE + 1, memoryview(b"x"))


# -- reading, flushing, closing ------------------------------------------------------------------


def test_read_ends_at_the_end_of_the_file_or_log():
    """Reads outside the log return no bytes."""
    log = open_log()
    append(log, message(bytes(3000)))
    append(log, message(bytes(3000)))
    first_end = FILE_SIZE
    assert len(log.read(0, 10_000)) == FILE_SIZE
    assert len(log.read(first_end - 5, 10_000)) == 5
    assert len(log.read(first_end, 10_000)) == log.max_offset - first_end
    assert log.read(log.max_offset, 1) == log.read(-1, 1) == log.read(10 * FILE_SIZE, 1) == b""


def test_flush_moves_the_flushed_offset_across_two_files():
    """Both files are dirty after a roll; bytes appended during the flush stay dirty."""
    log = open_log()
    append(log, message(bytes(3000)))
    append(log, message(bytes(3000)))
    targets = log.flush_targets()
    end = log.max_offset
    append(log, message())
    assert [position for _, position in targets] == [FILE_SIZE, end - FILE_SIZE]
    assert log.flushed_offset == 0
    log.mark_flushed(targets)
    assert log.flushed_offset == end < log.max_offset
    flush(log)
    assert log.flushed_offset == log.max_offset
    assert log.flush_targets() == []


def test_closed_log_refuses_appends():
    """Each kind of append raises an error; closing the log again does nothing."""
    log = open_log()
    append(log, message())
    close(log)
    log.close(clean=True)
    for call in (
        lambda: log.append_message(message()),
        lambda: log.append_batch([message()]),
        lambda: log.append_data(log.max_offset, memoryview(b"x")),
    ):
        with pytest.raises(StoreClosedError):
            call()


def test_blank_has_rocketmqs_format():
    """It has the size up to the end of the file, the magic code, then zeros."""
    log = open_log()
    append(log, message(bytes(2000)))
    end = log.max_offset
    append(log, message(bytes(2000)))
    size = FILE_SIZE - end
    filler = log.read(end, size)
    assert filler == size.to_bytes(4) + (BLANK_MAGIC_CODE & 0xFFFFFFFF).to_bytes(4) + bytes(
        size - 8
    )
