"""Reads from a whole store: by queue offset, time, key and physical offset; also golden stores."""

import json
from pathlib import Path

import pytest

from hastore.env.real import real_env
from hastore.errors import DiskFullError
from hastore.message import Message
from hastore.status import GetMessageStatus as Status
from hastore.store.queue.consume_queue import ConsumeQueue
from hastore.store.record import message_codec
from hastore.store.record.message_filter import TagFilter
from tests.store.whole_store import config_of, dispatch, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.store.open_log import FILE_SIZE, append, flush
from tests.support.store.store_reads import get_message, offset_by_time, store_time_of

GOLDEN = ["clean", "crashed", "crashed_torn", "propcrc", "replica", "replica_master"]


@pytest.fixture
def disk():
    return FakeDisk()


@pytest.fixture
async def store(disk, autojump_clock):
    """Forty orders in two queues, one second apart, each with a key and tag A or B."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(40):
        env.wall_clock.ms += 1_000
        append(
            store.commit_log,
            Message(
                "orders",
                b"%d" % number,
                queue_id=number % 2,
                properties={"TAGS": "AB"[number // 2 % 2], "KEYS": f"k{number} all"},
            ),
        )
    await dispatch(env, store)
    return store


def bodies(store, result):
    """The bodies of the messages in a result, as numbers."""
    records = result.records or [store.record_at(*place) for place in result.ranges]
    return [int(message_codec.decode(record).body) for record in records]


async def test_get_returns_messages_in_queue_order(store):
    """Count, size and the queue's end limit a read; the result holds the offset to continue at."""
    result = get_message(store, "orders", 1, 0, max_count=5)
    assert result.status is Status.FOUND
    assert bodies(store, result) == [1, 3, 5, 7, 9]
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (5, 0, 20)
    result = get_message(store, "orders", 1, 18, max_count=5)
    assert bodies(store, result) == [37, 39]
    assert result.next_begin_offset == 20
    one = get_message(store, "orders", 0, 0, max_size=1)
    assert bodies(store, one) == [0]
    size = one.size
    assert bodies(store, get_message(store, "orders", 0, 0, max_size=3 * size)) == [0, 2, 4]


@pytest.mark.parametrize(
    ("place", "status", "next_offset"),
    [
        (("nobody", 0, 7), Status.NO_MATCHED_LOGIC_QUEUE, 0),
        (("orders", 9, 7), Status.NO_MATCHED_LOGIC_QUEUE, 0),
        (("orders", 0, -1), Status.OFFSET_TOO_SMALL, 0),
        (("orders", 0, 20), Status.OFFSET_OVERFLOW_ONE, 20),
        (("orders", 0, 21), Status.OFFSET_OVERFLOW_BADLY, 20),
        (("orders", 0, 2**62), Status.OFFSET_OVERFLOW_BADLY, 20),
    ],
)
async def test_get_reports_why_it_returns_no_message(store, place, status, next_offset):
    """Each reason has its own status, and the result has the offset to continue at."""
    result = get_message(store, *place)
    assert (result.status, result.next_begin_offset) == (status, next_offset)
    assert not result.ranges


async def test_tag_filter_returns_only_messages_with_the_tag(store):
    """Reads that continue at the next offset return no message twice and skip none."""
    result = get_message(store, "orders", 0, 0, message_filter=TagFilter.parse("B"))
    assert bodies(store, result) == [2, 6, 10, 14, 18, 22, 26, 30, 34, 38]
    assert result.next_begin_offset == 20
    first = get_message(
        store, "orders", 0, 0, max_count=2, message_filter=TagFilter.parse("B || x")
    )
    assert bodies(store, first) == [2, 6]
    rest = get_message(
        store, "orders", 0, first.next_begin_offset, message_filter=TagFilter.parse("B || x")
    )
    assert bodies(store, rest)[0] == 10
    nothing = get_message(store, "orders", 0, 0, message_filter=TagFilter.parse("C"))
    assert (nothing.status, nothing.next_begin_offset) == (Status.NO_MATCHED_MESSAGE, 20)


async def test_tag_filter_rejects_another_tag_with_the_same_hash(disk, autojump_clock):
    """In Java, Aa and BB have one hash code; the exact comparison distinguishes them."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for tags in ("Aa", "BB", "Aa"):
        append(store.commit_log, Message("t", b"1", properties={"TAGS": tags}))
    await dispatch(env, store)
    result = get_message(store, "t", 0, 0, message_filter=TagFilter.parse("BB"))
    assert len(result.ranges) == len(result.records) == 1


async def test_tags_are_read_from_the_record_if_the_unit_holds_an_ext_address(disk, autojump_clock):
    """RocketMQ with enableConsumeQueueExt stores an address in place of the tags code."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    queues = store.consume_queues
    for number, tags in enumerate(["A", "B", "A", "C", "B"]):
        start = store.commit_log.max_offset
        append(store.commit_log, Message("t", b"%d" % number, properties={"TAGS": tags}))
        size = store.commit_log.max_offset - start
        queues.put("t", 0, number, start, size, -(2**63) + 20 * number)
    while queues.commit_step() is None:
        pass
    for wanted, found in [("A", [0, 2]), ("B || C", [1, 3, 4]), ("D", [])]:
        result = get_message(store, "t", 0, 0, message_filter=TagFilter.parse(wanted))
        assert bodies(store, result) == found
        assert result.next_begin_offset == 5


async def test_offset_by_time_is_the_first_at_or_after_it(store):
    """A time after the last message returns the queue's end."""
    times = [store_time_of(store, "orders", 0, offset) for offset in range(20)]
    assert times == sorted(times)
    assert offset_by_time(store, "orders", 0, 0) == 0
    assert offset_by_time(store, "orders", 0, times[7]) == 7
    assert offset_by_time(store, "orders", 0, times[7] + 1) == 8
    assert offset_by_time(store, "orders", 0, times[-1] + 1) == 20
    assert offset_by_time(store, "nobody", 0, 5) == 0
    assert store_time_of(store, "orders", 0, 20) == -1


async def test_query_by_key_returns_matching_messages_newest_first(store):
    """A time window and a count limit it; other keys with the same hash are left out."""
    assert [message_codec.decode(r).body for r in store.query_message("orders", "k7")] == [b"7"]
    found = [int(message_codec.decode(r).body) for r in store.query_message("orders", "all")]
    assert found == list(range(39, -1, -1))
    times = [store_time_of(store, "orders", 0, offset) for offset in range(20)]
    some = store.query_message("orders", "all", begin_ms=times[3], end_ms=times[5])
    assert [int(message_codec.decode(r).body) for r in some] == [10, 9, 8, 7, 6]
    assert store.query_message("other", "all") == []
    assert store.query_message("orders", "al") == []
    assert len(store.query_message("orders", "all", max_count=3)) == 3


async def test_record_at_returns_none_where_no_record_begins(store):
    """This holds inside a record, before the log and after it."""
    assert store.record_at(1) is None
    assert store.record_at(-1) is None
    assert store.record_at(2**62) is None
    assert store.record_at(0, 5) is None


async def test_queues_and_keys_are_the_same_after_a_restart(store, disk, autojump_clock):
    """After a kill, each message is found once, and queue offsets continue."""
    before = {
        queue_id: bodies(store, get_message(store, "orders", queue_id, 0)) for queue_id in (0, 1)
    }
    env = fake_env(disk.kill())
    again = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    await dispatch(env, again)
    for queue_id, expected in before.items():
        assert bodies(again, get_message(again, "orders", queue_id, 0)) == expected
    assert len(again.query_message("orders", "all")) == 40
    result = append(again.commit_log, Message("orders", b"40", queue_id=0))
    assert result.queue_offset == 20


async def test_offset_by_time_works_across_a_queue_offset_gap(disk, autojump_clock):
    """Queue offsets without a message have no time, but the messages before them are found."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    times = {}
    for queue_offset in (0, 1, *range(7, 10)):
        env.wall_clock.ms += 1_000
        store.commit_log._table.find("t").next_offsets[0] = queue_offset
        times[queue_offset] = append(store.commit_log, Message("t", b"x")).store_timestamp_ms
    await dispatch(env, store)
    assert store.max_offset_in_queue("t", 0) == 10
    assert offset_by_time(store, "t", 0, 0) == 0
    for queue_offset, time in times.items():
        assert offset_by_time(store, "t", 0, time) == queue_offset
    assert 2 <= offset_by_time(store, "t", 0, times[1] + 1) <= 7


@pytest.mark.parametrize("has_room_again", [False, True])
async def test_stop_on_a_full_disk_loses_no_queue_unit(
    disk, autojump_clock, monkeypatch, has_room_again
):
    """Of two queues only the one with the later record could be written before the clean stop."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for topic in ("full", "written"):
        append(store.commit_log, Message(topic, b"1"))
    write_tail = ConsumeQueue.write_tail
    is_full = True

    def fill_up(queue):
        if is_full and queue.topic == "full":
            raise disk_full()
        return write_tail(queue)

    monkeypatch.setattr(ConsumeQueue, "write_tail", fill_up)
    for _ in range(2):  # in the second pass the failed queue comes last
        with pytest.raises(DiskFullError):
            await _dispatch_once(store)
    assert store.max_offset_in_queue("written", 0) == 1
    flush(store.commit_log)
    is_full = not has_room_again
    store.close(clean=True)
    is_full = False
    env = fake_env(disk.kill())
    again = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    assert again.commit_log.load_report.last_exit_ok is has_room_again
    await dispatch(env, again)
    assert again.max_offset_in_queue("full", 0) == 1
    assert again.max_offset_in_queue("written", 0) == 1


@pytest.mark.parametrize("is_reopened", [False, True])
async def test_records_without_keys_are_not_redispatched_for_the_index(
    disk, autojump_clock, is_reopened
):
    """The offset that an index flush covers also includes records without keys."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    append(store.commit_log, Message("t", b"x", properties={"KEYS": "k"}))
    await dispatch(env, store)
    if is_reopened:
        flush(store.commit_log)
        store.close(clean=True)
        store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for _ in range(2):  # a flush covers what a later one makes durable
        for _ in range(50):
            last = append(store.commit_log, Message("t", b"no key"))
        seen = store.index_service._seen_offset
        await dispatch(env, store)
        flushes = store.index_service.dirty_files()
        for each in flushes:
            each.sync()
        store.index_service.mark_flushed(flushes)
        store.index_service.commit()
    again = open_store(fake_env(disk.kill()), config_of(mapped_file_size=FILE_SIZE))
    assert seen < again.index_service.redispatch_from() == last.physic_offset
    assert len(again.query_message("t", "k")) == 1


async def _dispatch_once(store):
    """Put all units that were not put yet, and commit."""
    queues = store.consume_queues
    offset = 0
    while (record := store.record_at(offset)) is not None:
        message = message_codec.decode(record)
        queues.put(message.topic, 0, message.queue_offset, offset, len(record), 0)
        offset += len(record)
    queues.commit()


# -- golden --------------------------------------------------------------------------------------


def manifest_of(golden: Path, name: str):
    """What RocketMQ itself read from a golden directory."""
    recovered = golden / f"{name}.recovered.manifest.json"
    path = recovered if recovered.exists() else golden / f"{name}.manifest.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", GOLDEN)
async def test_golden_messages_are_found_by_offset_key_and_time(golden, golden_copy, name):
    """Each result has the manifest's values."""
    manifest = manifest_of(golden, name)
    env = real_env()
    store = open_store(env, config_of(golden_copy(name)), master=False)
    await dispatch(env, store)
    try:
        records = [record for record in manifest["records"] if record["type"] == "MSG"]
        for queue in manifest["queues"]:
            place = queue["topic"], queue["queueId"]
            assert store.min_offset_in_queue(*place) == queue["minOffset"]
            assert store.max_offset_in_queue(*place) == queue["maxOffset"]
        in_queues = 0
        for record in records:
            stored = store.record_at(record["physicalOffset"], record["totalSize"])
            message = message_codec.decode(stored)
            assert (message.topic, message.queue_id) == (record["topic"], record["queueId"])
            if record["sysFlag"] & 12 not in {0, 8}:
                continue
            in_queues += 1
            place = record["topic"], record["queueId"]
            result = get_message(store, *place, record["queueOffset"], max_count=1)
            assert result.ranges == ((record["physicalOffset"], record["totalSize"]),)
            assert store_time_of(store, *place, record["queueOffset"]) == record["storeTimestamp"]
            at = offset_by_time(store, *place, record["storeTimestamp"])
            assert store_time_of(store, *place, at) == record["storeTimestamp"]
            assert at <= record["queueOffset"]
            for key in filter(None, [record["uniqKey"], *(record["keys"] or "").split(" ")]):
                found = store.query_message(record["topic"], key)
                offsets = [message_codec.decode(each).physic_offset for each in found]
                assert record["physicalOffset"] in offsets or len(offsets) == 64
        assert in_queues == sum(
            queue["maxOffset"] - queue["minOffset"] for queue in manifest["queues"]
        )
        for query in manifest.get("keyQueries", []):
            found = store.query_message(query["topic"], query["key"])
            offsets = [message_codec.decode(each).physic_offset for each in found]
            assert sorted(offsets) == query["physicalOffsets"]
    finally:
        store.close(clean=False)


# -- in steps ------------------------------------------------------------------------------------


def expire_first_file(store):
    """Remove the log's first file, as expiry does."""
    taken = store.commit_log.mapped_file_queue.take_first()
    store.env.disk.remove(taken.path)
    taken.close()


def drive(steps, *, before_read=lambda: None):
    """Run a read's steps, each after ``before_read``; return the result and the steps' offsets."""
    offsets, answer = [], None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value, offsets
        offsets.append(step.physic_offset)
        before_read()
        answer = step.read()


def read_red(store, offset=0, **limits):
    limits = {"max_count": 100, "max_size": 1 << 20, **limits}
    return store.get_message_steps("t", 0, offset, message_filter=TagFilter.parse("red"), **limits)


@pytest.fixture
async def long_store(disk, autojump_clock):
    """Sixty messages of one queue over several files, every third of them red."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(60):
        env.wall_clock.ms += 1_000
        properties = {"TAGS": "red" if number % 3 == 0 else "blue"}
        append(store.commit_log, Message("t", b"%d" % number * 100, properties=properties))
    await dispatch(env, store)
    assert len(store.commit_log.mapped_file_queue.files) > 2
    return store


async def test_only_filtered_reads_have_steps(long_store):
    """There is one step for each file of the queue; it starts at the first match."""
    limits = {"max_count": 100, "max_size": 1 << 20}
    result, offsets = drive(long_store.get_message_steps("t", 0, 0, message_filter=None, **limits))
    assert (len(result.ranges), offsets) == (60, [])
    result, offsets = drive(read_red(long_store, offset=1))
    units = long_store.consume_queues.find("t", 0).units
    assert offsets == [units(number, 1)[0].physic_offset for number in (3, 51)]
    assert [len(record) for record in result.records] == [size for _, size in result.ranges]
    assert result == get_message(
        long_store, "t", 0, 1, message_filter=TagFilter.parse("red"), **limits
    )
    assert bodies(long_store, result)[0] == int("3" * 100)


async def test_read_skips_files_that_expire_before_its_step(long_store):
    """The later messages are returned."""
    files = long_store.commit_log.mapped_file_queue.files
    expected, _ = drive(read_red(long_store))
    expire = iter([expire_first_file, lambda _store: None]).__next__
    result, _ = drive(read_red(long_store), before_read=lambda: expire()(long_store))
    low = long_store.commit_log.min_offset
    assert low == files[1].file_from_offset
    left = [at for at in expected.ranges if at[0] >= low]
    assert 0 < len(left) < len(expected.ranges)
    assert (result.status, result.ranges) == (Status.FOUND, tuple(left))
    assert result.next_begin_offset == expected.next_begin_offset == 60


async def test_read_whose_messages_all_expire_is_to_be_retried(long_store, monkeypatch):
    """The status is MESSAGE_WAS_REMOVING, as if the files had expired before the read."""
    monkeypatch.setattr("hastore.store.queue.queue_read.RECORDS_READ_MAX", 3)
    result, offsets = drive(read_red(long_store), before_read=lambda: expire_first_file(long_store))
    assert len(offsets) == 1
    assert (result.status, result.ranges) == (Status.MESSAGE_WAS_REMOVING, ())
    assert result.next_begin_offset == 7


async def test_read_ends_if_its_queue_expires_between_two_steps(long_store):
    """Its next offset is the end of the units read so far, below the queue's new first one."""
    queue = long_store.consume_queues.find("t", 0)

    def cut():
        while len(long_store.commit_log.mapped_file_queue.files) > 1:
            expire_first_file(long_store)
        for file in queue.take_expired(long_store.commit_log.min_offset):
            queue.remove_taken(file)

    result, offsets = drive(read_red(long_store), before_read=cut)
    assert len(offsets) == 1
    assert result.status is Status.MESSAGE_WAS_REMOVING
    assert result.next_begin_offset == 50 < result.min_offset


async def test_read_sees_messages_that_arrive_during_a_step(long_store):
    """A consumer that then waits for the queue to grow has missed none."""

    def one_more():
        append(long_store.commit_log, Message("t", b"1"))
        long_store.consume_queues.put("t", 0, 60, long_store.commit_log.max_offset - 200, 200, 0)
        long_store.consume_queues.commit()

    result, _ = drive(read_red(long_store, offset=52), before_read=one_more)
    assert (result.next_begin_offset, result.max_offset) == (61, 61)


async def test_search_by_time_continues_when_files_expire(long_store):
    """Expired messages count as earlier, so the result is an offset that still exists."""
    queue = long_store.consume_queues.find("t", 0)
    times = [store_time_of(long_store, "t", 0, offset) for offset in range(60)]
    for asked in (0, times[5], times[58]):
        steps = long_store.offset_by_time_steps("t", 0, asked)
        step = steps.send(None)
        if len(long_store.commit_log.mapped_file_queue.files) > 1:
            expire_first_file(long_store)
            queue.take_expired(long_store.commit_log.min_offset)
        try:
            while True:
                step = steps.send(step.read())
        except StopIteration as stop:
            found = stop.value
        expected = max(queue.min_offset, next(n for n in range(60) if times[n] >= asked))
        assert found == expected


async def test_filtered_read_reads_a_bounded_number_of_records(disk, autojump_clock, monkeypatch):
    """Other tags with the same hash cost no unbounded read, and no message is skipped."""
    monkeypatch.setattr("hastore.store.queue.queue_read.RECORDS_READ_MAX", 5)
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(12):
        tags = "BB" if number == 11 else "Aa"
        append(store.commit_log, Message("t", b"%d" % number, properties={"TAGS": tags}))
    await dispatch(env, store)
    offset, reads = 0, []
    while not reads or not reads[-1].ranges:
        reads.append(get_message(store, "t", 0, offset, message_filter=TagFilter.parse("BB")))
        offset = reads[-1].next_begin_offset
    assert [read.next_begin_offset for read in reads] == [5, 10, 12]
    assert [read.status for read in reads[:2]] == [Status.NO_MATCHED_MESSAGE] * 2
    assert bodies(store, reads[-1]) == [11]
