"""The commit log: what one append does, of a message, of a batch, of a master's bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import ConfigError, FileSizeMismatchError, StoreClosedError
from hastore.message import Message
from hastore.status import AppendMessageStatus as Status
from hastore.store.record import message_codec, record_check
from hastore.store.record.layout import BLANK_MAGIC_CODE
from hastore.store.record.record_check import RecordKind
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import FakeClock, fake_env
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

RECORD_SIZE = 88 + 1 + len("orders") + 2 + 20  # and the body


def message(body=b"body", **fields):
    return Message("orders", body, **fields)


def body_that_fills(log, left=8):
    """A body whose record leaves ``left`` bytes in the last file."""
    return bytes(FILE_SIZE - log.max_offset % FILE_SIZE - RECORD_SIZE - left)


def records(log):
    """Every message of a log, decoded, with each BLANK's size between them."""
    data = all_bytes(log)
    found, position = [], 0
    while position < len(data):
        left = FILE_SIZE - (log.min_offset + position) % FILE_SIZE
        check = record_check.check_record(data, position, left, log.min_offset + position)
        assert check.kind in (RecordKind.MESSAGE, RecordKind.BLANK), check
        if check.kind is RecordKind.MESSAGE:
            found.append(message_codec.decode(data, position))
        else:
            found.append(check.size)
        position += check.size
    return found


# -- one message ---------------------------------------------------------------------------------


def test_an_append_says_where_the_record_is():
    """Offsets bound the record, the queue offset counts, the id is RocketMQ's offsetMsgId."""
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
    """The append of one message has its own fast encoder; the bytes are those of the other."""
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


def test_queues_count_for_themselves():
    """Each queue of each topic has its own offsets."""
    log = open_log()
    places = [("a", 0), ("a", 1), ("a", 0), ("b", 0), ("a", 1), ("a", 0)]
    offsets = [append(log, topic=topic, queue_id=queue).queue_offset for topic, queue in places]
    assert offsets == [0, 0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "offsets"), [(0x4, [0, 0, 1]), (0x8, [0, 1, 2]), (0xC, [0, 0, 1])]
)
def test_half_messages_and_rollbacks_take_no_place_in_their_queue(kind, offsets):
    """PREPARED and ROLLBACK records have queue offset 0 and advance nothing; COMMIT does."""
    log = open_log()
    found = [append(log, message(sys_flag=flag)).queue_offset for flag in (0, kind, 0)]
    assert found == offsets


def test_the_store_timestamp_never_goes_back():
    """A wall clock that is set back does not put records out of order, in no kind of append."""
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


def test_the_store_timestamp_does_not_go_back_over_a_restart():
    """The last record's time is kept when the log is opened."""
    disk, clock = FakeDisk(), FakeClock()
    log = open_log(fake_env(disk, clock))
    append(log, message())
    close(log)
    clock.ms -= 60_000
    again = open_log(fake_env(disk, clock))
    assert append(again, message()).store_timestamp_ms == START_MS


def test_an_ipv6_master_says_so_in_each_record():
    """The store host takes 20 bytes and sets its bit; the id grows to 56 digits."""
    log = open_log(store_host=("::1", 10_911))
    results = [append(log, message()), append(log, message(properties={"a": "1"}))]
    assert [stored.sys_flag for stored in records(log)] == [0x30, 0x30]
    assert [stored.store_host for stored in records(log)] == [("::1", 10_911)] * 2
    assert all(len(result.message_id) == 56 for result in results)


def test_a_host_name_is_no_address_for_a_record():
    """A master that listens on a name is told so; a slave writes no host and needs none."""
    with pytest.raises(ConfigError, match="must be an IP address"):
        open_log(store_host=("localhost", 10_911))
    open_log(store_host=("localhost", 10_911), master=False)


# -- what is refused -----------------------------------------------------------------------------


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
def test_a_refused_message_leaves_no_trace(refused, status):
    """Nothing is written, no offset and no queue advances."""
    log = open_log(max_message_size=1000)
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
def test_a_record_that_fits_no_file_burns_none(properties):
    """RocketMQ would fill a whole file with a BLANK first; here it is refused up front."""
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
def test_a_record_that_leaves_less_than_8_bytes_goes_to_the_next_file(properties):
    """The BLANK takes at least 8 bytes; the max offset jumps to the file's end."""
    log = open_log()
    append(log, message())
    own = len("a\x011\x02") if properties else 0
    result = append(log, message(body_that_fills(log, left=7 + own), properties=properties))
    assert result.physic_offset == FILE_SIZE
    (_, blank, _) = records(log)
    assert blank == FILE_SIZE - RECORD_SIZE - len(b"body")
    assert message_codec.encode_blank(blank) in all_bytes(log)


def test_a_record_that_leaves_8_bytes_stays():
    """Then the BLANK is its header alone."""
    log = open_log()
    append(log, message())
    append(log, message(body_that_fills(log, left=8)))
    assert log.max_offset == FILE_SIZE - 8
    append(log, message())
    assert records(log)[2] == 8


def test_end_of_file_is_said_until_the_next_file_is_there():
    """The BLANK is written once; asking again changes nothing; then the append succeeds."""
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


def test_the_next_file_is_asked_for_once_at_half():
    """The wish is told when it begins, and again only when an append has to wait for it."""
    log = open_log()
    wishes = []
    log.mapped_file_queue.on_file_wanted = lambda: wishes.append(log.max_offset)
    append(log, message())
    wishes.clear()
    while log.max_offset < FILE_SIZE - 2 * RECORD_SIZE:
        append(log, message())
    assert len(wishes) == 1
    assert FILE_SIZE // 2 <= wishes[0] < FILE_SIZE // 2 + RECORD_SIZE + len(b"body")


# -- a batch -------------------------------------------------------------------------------------


def test_a_batch_is_consecutive_records_of_one_time():
    """One result for all: the first's place, the last's end, each one's id."""
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


def test_a_batch_never_crosses_a_files_end():
    """What does not fit as a whole goes to the next file as a whole."""
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
def test_a_slave_that_is_sent_any_pieces_has_its_masters_bytes(data):
    """Records may be cut anywhere; only a file's end is never crossed."""
    master, slave = open_log(), open_log(master=False)
    for size in data.draw(st.lists(st.integers(0, 1500), min_size=1, max_size=8)):
        append(master, message(bytes(size)))
    source = all_bytes(master)
    while slave.max_offset < len(source):
        offset = slave.max_offset
        left = min(FILE_SIZE - offset % FILE_SIZE, len(source) - offset)
        append_data(slave, offset, source[offset : offset + data.draw(st.integers(1, left))])
    assert all_bytes(slave) == source


def test_an_empty_slave_begins_where_its_first_data_says():
    """A slave that starts at its master's last file has no file before it."""
    slave = open_log(master=False)
    assert not slave.append_data(3 * FILE_SIZE, memoryview(b"abc"))
    assert slave.max_offset == slave.min_offset == 3 * FILE_SIZE
    make_file(slave)
    assert slave.append_data(3 * FILE_SIZE, memoryview(b"abc"))
    assert (slave.min_offset, slave.max_offset) == (3 * FILE_SIZE, 3 * FILE_SIZE + 3)
    assert slave.mapped_file_queue.files[0].path.endswith(f"{3 * FILE_SIZE:020d}")


def test_a_slave_that_waits_for_a_file_has_written_nothing():
    """False means: call again with the same bytes."""
    slave = open_log(master=False)
    assert not slave.append_data(0, memoryview(b"x" * FILE_SIZE))
    assert slave.max_offset == 0
    make_file(slave)
    assert slave.append_data(0, memoryview(b"x" * FILE_SIZE))
    assert not slave.append_data(FILE_SIZE, memoryview(b"y"))
    assert slave.max_offset == FILE_SIZE


@pytest.mark.parametrize("have", [0, 1, 4000, FILE_SIZE])
def test_bytes_across_our_files_end_mean_larger_files_at_the_master(have):
    """The error names our size and that the master's is larger; nothing was written."""
    slave = open_log(master=False)
    if have:
        append_data(slave, 0, bytes(have))
    with pytest.raises(FileSizeMismatchError, match="master's are larger") as caught:
        slave.append_data(have, memoryview(bytes(FILE_SIZE + 1)))
    assert caught.value.size_found == FILE_SIZE
    assert caught.value.size_wanted > FILE_SIZE
    assert "--mapped-file-size" in caught.value.hint
    assert slave.max_offset == have


def test_a_start_that_is_no_start_of_a_file_means_another_size():
    """A master with other files sends its last one from an offset that is none of ours."""
    slave = open_log(master=False)
    with pytest.raises(FileSizeMismatchError, match="another size"):
        slave.append_data(FILE_SIZE + 1, memoryview(b"x"))


# -- reading, flushing, the end ------------------------------------------------------------------


def test_a_read_ends_where_the_log_or_the_file_does():
    """Nothing that was not written is ever given."""
    log = open_log()
    append(log, message(bytes(3000)))
    append(log, message(bytes(3000)))
    first_end = FILE_SIZE
    assert len(log.read(0, 10_000)) == FILE_SIZE
    assert len(log.read(first_end - 5, 10_000)) == 5
    assert len(log.read(first_end, 10_000)) == log.max_offset - first_end
    assert log.read(log.max_offset, 1) == log.read(-1, 1) == log.read(10 * FILE_SIZE, 1) == b""


def test_flushing_moves_the_flushed_offset_over_a_roll():
    """Two files are dirty after a roll; what came meanwhile stays dirty."""
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


def test_a_closed_log_takes_nothing():
    """Using it is an error that says so; closing it again is nothing."""
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


def test_the_blank_is_rocketmqs():
    """Size up to the file's end, then the magic; the rest stays zero."""
    log = open_log()
    append(log, message(bytes(2000)))
    end = log.max_offset
    append(log, message(bytes(2000)))
    size = FILE_SIZE - end
    filler = log.read(end, size)
    assert filler == size.to_bytes(4) + (BLANK_MAGIC_CODE & 0xFFFFFFFF).to_bytes(4) + bytes(
        size - 8
    )
