"""Dispatch follows the log: it dispatches each record once, in order, up to the confirm offset."""

import contextlib
import itertools
import logging
from enum import Enum

import attrs
import pytest
import trio
import trio.testing

from hastore.dispatch import reput_message_service
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import RECORDS_A_STEP, ReputMessageService
from hastore.errors import DiskError, FlushFailedError
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore.store.index.layout import PACKED_KEY, key_hash, topic_hash
from hastore.store.log import cold_read
from hastore.store.log_rewrite import rewrite
from hastore.store.queue.consume_queue_store import FILES_A_STEP
from hastore.store.queue.unit import UNIT
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.tools.repair.filler import fill
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import sync_failed
from tests.support.store.consume_queues import open_queues
from tests.support.store.open_log import FILE_SIZE, all_bytes, append, append_data, open_log


class Queues:
    """A fake of the consume queues that records the units it receives."""

    def __init__(self):
        self.units = []
        self.error = None
        self.commits = 0

    def put(self, *unit):
        self.units.append(unit)

    def distrust(self):
        """Ignore it: nobody reads these units."""

    def put_units(self, topic, queue_id, queue_offset, units):
        """Record them as single units, and keep all in the log's order."""
        for index, unit in enumerate(UNIT.iter_unpack(units)):
            self.put(topic, queue_id, queue_offset + index, *unit)
        self.units.sort(key=lambda unit: unit[3])

    def commit_step(self):
        self.commits += 1
        if self.error is not None:
            raise self.error
        return [object()]


class Index:
    """A fake of the index that records the hashes of the keys it receives, and their offsets."""

    def __init__(self):
        self.keys = []

    def put(self, topic, keys, physic_offset, store_timestamp_ms):
        self.keys += [(key_hash(topic_hash(topic), key), physic_offset) for key in keys]

    def put_keys(self, keys):
        self.keys += [
            (key, physic_offset) for key, physic_offset, _ in PACKED_KEY.iter_unpack(keys)
        ]

    def record_seen(self, first_offset, last_offset):
        self.seen_offset = last_offset

    def commit(self):
        pass


class FullIndex(Index):
    """An index whose first commit finds the disk full."""

    is_full = True

    def commit(self):
        if self.is_full:
            self.is_full = False
            raise DiskError("no space to write I", path="I")


@attrs.define
class Bench:
    """A log and its dispatch."""

    log: object
    queues: Queues
    index: Index
    confirmed: int | None = None

    def service(self, start=0):
        dispatcher = RecordDispatcher(self.queues, self.index, DelayLevels.parse("1s 5s"))
        return ReputMessageService(fake_env(), self.log, dispatcher, self.confirm_offset, start)

    def confirm_offset(self):
        return self.log.max_offset if self.confirmed is None else self.confirmed

    def put(self, message=None, **fields):
        if message is None:
            message = Message(fields.pop("topic", "orders"), fields.pop("body", b"body"), **fields)
        return append(self.log, message)


@pytest.fixture
def bench():
    """A master's log and its dispatch."""
    return Bench(open_log(), Queues(), Index())


MESSAGES = [
    Message("orders", b"a", queue_id=1),
    Message("orders", b"b", properties={"TAGS": "TagA", "KEYS": "k1 k2  k3", "UNIQ_KEY": "u"}),
    Message("Ärger", b"c" * 300, properties={"TAGS": "日本"}),
    Message("SCHEDULE_TOPIC_XXXX", b"d", properties={"DELAY": "2", "TAGS": "x"}, queue_id=1),
    Message("tx", b"prepared", sys_flag=4, properties={"KEYS": "p"}),
    Message("tx", b"commit", sys_flag=8, properties={"KEYS": "c"}),
    Message("tx", b"rollback", sys_flag=12, properties={"KEYS": "r"}),
    Message("v2" * 100, b"long topic"),
]


async def test_transactions_delays_tags_and_keys_follow_rocketmq_rules(bench, autojump_clock):
    """Prepared and rolled-back messages have no unit; a delayed one's tags code is its due time."""
    service = bench.service()
    await service.catch_up()
    results = [bench.put(message) for message in MESSAGES]
    await service.catch_up()
    topics = [unit[0] for unit in bench.queues.units]
    assert topics == ["orders", "orders", "Ärger", "SCHEDULE_TOPIC_XXXX", "tx", "v2" * 100]
    by_topic = {unit[0]: unit for unit in bench.queues.units}
    assert by_topic["orders"][5] == 2598919  # "TagA".hashCode()
    assert by_topic["SCHEDULE_TOPIC_XXXX"][5] == results[3].store_timestamp_ms + 5_000
    assert by_topic["tx"][3] == results[5].physic_offset
    keys = [("orders", "u"), ("orders", "k1"), ("orders", "k2"), ("orders", "k3"), ("tx", "p")]
    keys.append(("tx", "c"))
    hashes = [key_hash(topic_hash(topic), key) for topic, key in keys]
    assert [found for found, _ in bench.index.keys] == hashes


@pytest.mark.parametrize(("is_awaited", "gather_s"), [(True, 0.001), (False, 0.003)])
async def test_records_gather_for_longer_if_no_consumer_waits(
    bench, autojump_clock, is_awaited, gather_s
):
    """A pass costs as much as a dozen records, so it waits for more of them."""
    service = bench.service()
    times = []
    service.subscribe(lambda _grown: times.append(trio.current_time()), lambda: is_awaited)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        bench.put()
        service.wakeup()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert times == [pytest.approx(began + gather_s)]


async def test_a_pass_that_has_enough_does_not_wait(bench, autojump_clock, monkeypatch):
    """A pass begins at once if enough is confirmed before the wait, or during it."""
    service = bench.service()
    times = []
    service.subscribe(lambda _grown: times.append(trio.current_time()))
    bench.confirmed = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        enough = [bench.put().next_offset for _ in range(3)][-1]
        monkeypatch.setattr(reput_message_service, "GATHER_SIZE", enough)
        bench.confirmed = enough - 1
        service.wake.notify_confirmed()
        await trio.sleep(0.001)
        bench.put()
        service.wakeup()
        await trio.sleep(0.001)
        assert times == []
        bench.confirmed = enough
        service.wake.notify_confirmed()
        await trio.testing.wait_all_tasks_blocked()
        assert times == [pytest.approx(began + 0.002)]

        await trio.sleep(1)
        began = trio.current_time()
        bench.confirmed = [bench.put().next_offset for _ in range(3)][-1]
        service.wake.notify_confirmed()
        await trio.testing.wait_all_tasks_blocked()
        assert times[1:] == [pytest.approx(began)]

        await trio.sleep(1)
        began = trio.current_time()
        bench.confirmed = bench.put().next_offset
        service.wakeup()
        await trio.sleep(1)
        assert times[2:] == [pytest.approx(began + 0.003)], "what was enough before does not count"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_what_a_pass_cannot_take_starts_no_more_passes(
    bench, autojump_clock, monkeypatch, is_damaged
):
    """A part of a record, or what follows damage: only new bytes count."""
    passes = []
    run_pass = ReputMessageService._pass

    async def counting(self):
        passes.append(trio.current_time())
        return await run_pass(self)

    monkeypatch.setattr(ReputMessageService, "_pass", counting)
    monkeypatch.setattr(reput_message_service, "GATHER_SIZE", 1000)
    service = bench.service()
    bench.put(body=bytes(3000))
    if is_damaged:
        bench.log.feed = None
        bench.log.mapped_file_queue.files[0].append_view[4:8] = b"oops"
        service._feed.clear()
    bench.confirmed = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked()
        for bench.confirmed in range(10, 3_010, 10):
            service.wake.notify_confirmed()
            await trio.sleep(0.00001)
        nursery.cancel_scope.cancel()
    assert bench.queues.units == []
    assert len(passes) <= 1 + 3 + 1  # the first one, those of 1,000 bytes, one by the timer


async def test_a_confirmation_of_too_little_leaves_the_wait_as_it_is(bench, autojump_clock):
    """Four of them start one pass, when its time has come."""
    service = bench.service()
    times = []
    service.subscribe(lambda _grown: times.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        for _ in range(4):
            bench.put()
            service.wake.notify_confirmed()
            await trio.sleep(0.0005)
        await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    assert times == [pytest.approx(began + 0.003)]


async def test_nothing_above_the_confirm_offset_is_dispatched(bench, autojump_clock):
    """A record is dispatched when all of it is confirmed, not a byte earlier."""
    service = bench.service()
    await service.catch_up()
    ends = [bench.put(body=bytes([number])).next_offset for number in range(10)]
    for index, end in enumerate(ends):
        bench.confirmed = end - 1
        await service.catch_up()
        assert len(bench.queues.units) == index
        bench.confirmed = end
        await service.catch_up()
        assert len(bench.queues.units) == index + 1


@pytest.mark.parametrize("piece", [1, 7, 100, 1_000, FILE_SIZE])
async def test_slave_dispatches_a_record_once_it_is_complete(piece, autojump_clock):
    """It does not matter into which pieces the master's bytes are split."""
    master = Bench(open_log(), Queues(), Index())
    for number in range(30):
        master.put(body=bytes([number]) * (number * 20), properties={"TAGS": str(number)})
    data = all_bytes(master.log)
    expected = master.service()
    await expected.catch_up()
    slave = Bench(open_log(master=False), Queues(), Index())
    service = slave.service()
    at = 0
    while at < len(data):
        end = min(at + piece, len(data), at - at % FILE_SIZE + FILE_SIZE)
        append_data(slave.log, at, data[at:end])
        if piece > 1 or end % 50 == 0:
            await service.catch_up()
        at = end
    await service.catch_up()
    assert slave.queues.units == master.queues.units
    assert service.reput_offset == len(data)


async def test_bad_record_of_known_size_is_skipped(autojump_clock):
    """The record claims another physical offset; the next one is dispatched."""
    bench = Bench(open_log(), Queues(), Index())
    results = [bench.put(body=bytes([number])) for number in range(3)]
    view = bench.log.mapped_file_queue.files[0].writable_view
    view[results[1].physic_offset + 28 : results[1].physic_offset + 36] = (7).to_bytes(8, "big")
    service = bench.service()
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == [0, 2]
    assert service.skipped == 1
    assert service.fault is None


@pytest.mark.parametrize(
    ("position", "damage", "what"),
    [
        (4, b"rust", "bad-magic: magic 72757374"),
        (0, bytes(8), "empty: "),
        (0, b"\x7f\xff\xff\xff", "torn: size 2147483647, but "),
    ],
)
async def test_dispatch_stops_at_other_damage_and_reports_it(
    position, damage, what, autojump_clock
):
    """Without a size the record cannot be skipped; the loop ends and does not spin."""
    bench = Bench(open_log(), Queues(), Index())
    results = [bench.put(body=bytes([number])) for number in range(3)]
    view = bench.log.mapped_file_queue.files[0].writable_view
    start = results[1].physic_offset + position
    view[start : start + len(damage)] = damage
    service = bench.service()
    await service.catch_up()
    await service.catch_up()
    assert len(bench.queues.units) == 1
    stopped = f"dispatch stopped at offset {results[1].physic_offset}: {what}"
    assert service.fault.startswith(stopped)


async def test_failed_commit_is_retried_until_it_succeeds(bench, autojump_clock):
    """Until then dispatch waits, reports the fault, and loses nothing."""
    service = bench.service()
    await service.catch_up()
    bench.queues.error = DiskError("no space to write Q", path="Q")
    bench.put()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(10)
        assert service.fault == "no space to write Q"
        assert 5 < bench.queues.commits < 15
        bench.queues.error = None
        await trio.sleep(2)
        assert service.fault is None
        nursery.cancel_scope.cancel()
    assert len(bench.queues.units) == 1


async def test_listeners_are_notified_once_a_pass(bench, autojump_clock):
    """They are called after the commit; an idle service neither commits nor calls them."""
    service = bench.service()
    reported = []
    service.subscribe(reported.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(1)
        for _ in range(5):
            bench.put()
        service.wakeup()
        await trio.sleep(3_600)
        assert len(reported) == 1
        assert bench.queues.commits == 1
        nursery.cancel_scope.cancel()


async def test_dispatches_a_record_larger_than_a_chunk(autojump_clock):
    """A message of a megabyte is read as a whole."""
    size = 4 * 1024 * 1024
    bench = Bench(open_log(mapped_file_size=size), Queues(), Index())
    bench.put(body=bytes(1024 * 1024))
    bench.put(body=b"small")
    bench.put(body=bytes(1024 * 1024 + 1))
    service = bench.service()
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == [0, 1, 2]


@pytest.fixture
def reads(monkeypatch):
    """What dispatch reads of a log: offset and size."""
    sizes = []
    read, read_now = CommitLog.read, CommitLog.read_now

    def reading(log, physic_offset, size):
        sizes.append((physic_offset, size))
        return read(log, physic_offset, size)

    def reading_now(log, physic_offset, buffer):
        sizes.append((physic_offset, len(buffer)))
        return read_now(log, physic_offset, buffer)

    monkeypatch.setattr(CommitLog, "read", reading)
    monkeypatch.setattr(CommitLog, "read_now", reading_now)
    return sizes


@pytest.fixture
def chunk_size(monkeypatch):
    """Read little at a time."""
    monkeypatch.setattr(reput_message_service, "CHUNK_SIZE", 1_000)
    return 1_000


def large_log(**settings):
    return open_log(mapped_file_size=100_000, **settings)


async def test_a_large_record_is_read_once(reads, chunk_size, autojump_clock):
    """Its first chunk once more: what it claims is checked before all of it is there."""
    master = Bench(large_log(), Queues(), Index())
    record_size, _ = (
        master.put(body=bytes(7_000), properties={"KEYS": key}).next_offset for key in "ab"
    )
    data = all_bytes(master.log)
    reads.clear()
    slave = Bench(large_log(master=False), Queues(), Index())
    service = slave.service()
    for start in range(0, len(data), 2_000):
        append_data(slave.log, start, data[start : start + 2_000])
        await service.catch_up()
    assert reads == [
        (0, chunk_size),
        (0, chunk_size),
        (chunk_size, record_size - chunk_size),
        (record_size, 8_000 - record_size),  # of the first four pieces
        (record_size, chunk_size),
        (record_size + chunk_size, record_size - chunk_size),
    ]
    assert [unit[3:5] for unit in slave.queues.units] == [(0, record_size), (record_size,) * 2]
    assert len(slave.index.keys) == 2


async def test_the_buffer_stays_for_large_records(chunk_size, autojump_clock):
    """It grows for a larger one, and never beyond some MiB."""
    bench = Bench(large_log(), Queues(), Index())
    service = bench.service()
    sizes = []
    for body_size in (10, 5_000, 10, 4_000, 7_000, 5_000):
        bench.put(body=bytes(body_size), properties={"KEYS": "k"})
        service._feed.clear()
        before = service._buffer
        await service.catch_up()
        sizes.append(len(service._buffer))
        assert (service._buffer is before) == (sizes[-1] == len(before))
    assert len(bench.queues.units) == len(bench.index.keys) == 6
    assert sizes[0] == chunk_size
    assert sizes[1] == sizes[3] > 5_000
    assert sizes[4] == sizes[5] > 7_000


@pytest.mark.parametrize("cached", [1_000, 3_000, 7_000])
async def test_the_rest_of_a_large_record_may_have_to_be_waited_for(
    cached, chunk_size, monkeypatch, autojump_clock
):
    """What the buffer had before is not taken for it."""
    bench = Bench(large_log(), Queues(), Index())
    service = bench.service()
    start = bench.put(body=bytes(7_000), properties={"KEYS": "a"}).next_offset
    service._feed.clear()
    await service.catch_up()
    read_now = CommitLog.read_now

    def read_cached(log, physic_offset, buffer):
        return read_now(log, physic_offset, buffer[: max(start + cached - physic_offset, 0)])

    monkeypatch.setattr(CommitLog, "read_now", read_cached)
    bench.put(body=bytes(7_000), properties={"KEYS": "b"})
    service._feed.clear()
    await service.catch_up()
    keys = [key_hash(topic_hash("orders"), key) for key in "ab"]
    assert [key for key, _ in bench.index.keys] == keys


async def test_a_record_above_the_buffer_is_read_as_a_whole(
    reads, chunk_size, monkeypatch, autojump_clock
):
    """It may be damaged: no buffer stays for it."""
    monkeypatch.setattr(reput_message_service, "_BUFFER_SIZE_MAX", 5_000)
    bench = Bench(large_log(), Queues(), Index())
    service = bench.service()
    size = bench.put(body=bytes(7_000)).next_offset
    service._feed.clear()
    await service.catch_up()
    assert reads == [(0, chunk_size), (0, size)]
    assert len(service._buffer) == chunk_size
    assert [unit[3:5] for unit in bench.queues.units] == [(0, size)]


async def test_a_master_does_not_read_back_large_records(reads, autojump_clock):
    """With the extension only small ones are read: those that it has encoded."""
    bench = Bench(open_log(mapped_file_size=1024 * 1024), Queues(), Index())
    service = bench.service()
    results = [
        bench.put(body=bytes(size), properties={"TAGS": "a", "KEYS": "k"})
        for size in (20_000, 30_000, 10, 70_000, 10, 10, 300_000, 10)
    ]
    await service.catch_up()
    large = [each for each in results if each.next_offset - each.physic_offset > 20_000]
    for start, size in reads:
        assert all(
            start >= each.next_offset or start + size <= each.physic_offset for each in large
        )
    assert [unit[3] for unit in bench.queues.units] == [each.physic_offset for each in results]
    assert len(bench.index.keys) == len(results)


async def test_a_fed_record_waits_for_its_confirmation(reads, autojump_clock):
    """A slave's acks end anywhere in it; nothing is read meanwhile."""
    bench = Bench(open_log(mapped_file_size=1024 * 1024), Queues(), Index(), confirmed=0)
    service = bench.service()
    size = bench.put(body=bytes(300_000)).next_offset
    bench.put(body=bytes(20_000))
    for bench.confirmed in range(0, size, 1_000):
        await service.catch_up()
    assert bench.queues.units == []
    bench.confirmed = size
    await service.catch_up()
    assert [unit[3:5] for unit in bench.queues.units] == [(0, size)]
    assert reads == []


async def test_what_a_fed_record_rules_out_stops_dispatch(autojump_clock):
    """A record that claims a part of the next one, of which the append knows, is damaged."""
    bench = Bench(large_log(), Queues(), Index())
    service = bench.service()
    bench.put(body=b"one")
    service._feed.clear()
    bench.put(body=bytes(20_000))
    view = bench.log.mapped_file_queue.files[0].append_view
    view[0:4] = (10_000).to_bytes(4)
    await service.catch_up()
    assert "dispatch stopped at offset 0" in service.fault
    assert bench.queues.units == []


class Tag(str, Enum):  # noqa: UP042 - a StrEnum's text is its value
    """A string whose text as a format is another."""

    A = "a"


async def test_what_is_fed_is_what_the_record_says(autojump_clock):
    """Whatever a program has put in as a property: an enumeration, or a number."""
    values = [{"TAGS": Tag.A}, {"KEYS": 42}, {"UNIQ_KEY": Tag.A, "KEYS": Tag.A}]
    found = []
    for is_fed in (True, False):
        bench = Bench(open_log(), Queues(), Index())
        service = bench.service()
        for properties in values:
            bench.put(properties=properties)
        if not is_fed:
            service._feed.clear()
        await service.catch_up()
        found.append((bench.queues.units, bench.index.keys))
    assert found[0] == found[1]
    assert len(found[0][0]) == 3
    assert len(found[0][1]) == 3


async def test_a_size_that_its_head_rules_out_is_not_waited_for(autojump_clock):
    """A flipped bit makes a record claim what the master has yet to send."""
    master = Bench(large_log(), Queues(), Index())
    master.put(body=bytes(500))
    data = bytearray(all_bytes(master.log))
    data[1] ^= 1  # 65,536 bytes more
    found = []
    slave = Bench(large_log(master=False), Queues(), Index())
    service = attrs.evolve(slave.service(), on_bad_record=lambda *what: found.append(what))
    append_data(slave.log, 0, bytes(data[:100]))
    await service.catch_up()
    assert found == []
    append_data(slave.log, 100, bytes(data[100:]))
    await service.catch_up()
    ((offset, what),) = found
    assert offset == 0
    assert what.startswith("bad-lengths: its body's length does not fit size ")
    assert "dispatch stopped at offset 0" in service.fault


async def test_a_filler_is_not_read(reads, monkeypatch, autojump_clock):
    """Its start says how long it is, and nobody has written the rest."""
    read_now = CommitLog.read_now

    def read_written(log, physic_offset, buffer):
        ends = small_end, small_end + 8, log.max_offset
        end = next(each for each in ends if each > physic_offset)
        return read_now(log, physic_offset, buffer[: end - physic_offset])

    bench = Bench(large_log(), Queues(), Index())
    service = bench.service()
    small_end = bench.put().next_offset
    bench.put(body=bytes(99_800))
    assert bench.log.max_offset > 100_000
    service._feed.clear()
    monkeypatch.setattr(CommitLog, "read_now", read_written)
    await service.catch_up()
    assert len(bench.queues.units) == 2
    assert service.reput_offset == bench.log.max_offset
    assert [each for each in reads if each[0] < 100_000] == [(0, small_end), (small_end, 8)]


async def test_a_slave_reads_the_start_of_a_filler_once(reads, autojump_clock):
    """While the rest arrives there is nothing to look at."""
    master = Bench(large_log(), Queues(), Index())
    blank_start = master.put().next_offset
    master.put(body=bytes(99_800))
    data = all_bytes(master.log)
    reads.clear()
    slave = Bench(large_log(master=False), Queues(), Index())
    service = slave.service()
    edges = [0, blank_start, *range(blank_start + 10_000, 100_000, 10_000), 100_000]
    for start, end in itertools.pairwise(edges):
        append_data(slave.log, start, data[start:end])
        await service.catch_up()
    assert service.reput_offset == 100_000
    assert [start for start, _ in reads] == [0, blank_start, blank_start]


@pytest.mark.parametrize("cached", [0, 1, 500, FILE_SIZE], ids=str)
@pytest.mark.parametrize("cold_distance", [0, FILE_SIZE * 100], ids=["cold", "hot"])
async def test_only_what_must_wait_for_the_disk_is_read_in_a_thread(
    cached, cold_distance, monkeypatch, autojump_clock
):
    """Of each read so many bytes are in the page cache: none, or part of a record, or some."""
    read_now = CommitLog.read_now

    def read_cached(log, physic_offset, buffer):
        return read_now(log, physic_offset, buffer[:cached])

    monkeypatch.setattr(CommitLog, "read_now", read_cached)
    monkeypatch.setattr(cold_read, "COLD_DISTANCE", cold_distance)
    bench = Bench(open_log(), Queues(), Index())
    for number in range(40):
        bench.put(body=bytes([number]) * 200)
    bench.put(body=bytes(2_000))
    service = bench.service()
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == list(range(41))
    files = len(bench.log.mapped_file_queue.files)
    in_threads = {0: files, 1: files, 500: 1, FILE_SIZE: 0}[cached]  # one read for each file
    assert service.env.offload.runs == (in_threads if cold_distance == 0 else 0)


async def test_dispatch_jumps_over_deleted_records(autojump_clock):
    """If it is below the log's min offset, it continues there."""
    bench = Bench(open_log(), Queues(), Index())
    for number in range(40):
        bench.put(body=bytes(300), queue_id=number)
    queue = bench.log.mapped_file_queue
    queue.files.pop(0).close()
    service = bench.service()
    await service.catch_up()
    assert min(unit[3] for unit in bench.queues.units) >= FILE_SIZE
    assert service.reput_offset == bench.log.max_offset


async def test_failed_sync_is_not_retried(bench, autojump_clock):
    """The error ends the service, because the log is on the same disk."""
    service = bench.service()
    await service.catch_up()
    bench.queues.error = sync_failed()
    bench.put()
    with pytest.raises(FlushFailedError):
        await service.catch_up()
    assert bench.queues.commits == 1


async def test_queues_are_reported_after_a_failed_index_commit(autojump_clock):
    """The listeners are notified once the index has been committed, too."""
    bench = Bench(open_log(), Queues(), FullIndex())
    service = bench.service()
    reported = []
    service.subscribe(reported.extend)
    bench.put()
    bench.queues.commit_step = iter([["grown"], []]).__next__
    await service.catch_up()
    assert reported == ["grown"]


async def test_last_pass_commits_what_a_full_disk_prevented(autojump_clock):
    """The service was stopped while the disk was full; now it has room again."""
    bench = Bench(open_log(), Queues(), Index())
    service = bench.service()
    bench.put()
    bench.queues.error = DiskError("no space to write Q", path="Q")
    with trio.move_on_after(10):
        await service.run()
    commits, bench.queues.error = bench.queues.commits, None
    await service.catch_up()
    assert bench.queues.commits == commits + 1
    assert service.fault is None


@contextlib.asynccontextmanager
async def each_turn(callback):
    """Call ``callback`` each time that other tasks may run."""

    async def call_again():
        while True:
            callback()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_again)
        yield
        nursery.cancel_scope.cancel()


async def test_other_tasks_run_between_two_steps(bench):
    """A producer's answer does not wait until the whole backlog is dispatched."""
    service = bench.service()
    await service.catch_up()
    for _ in range(6 * RECORDS_A_STEP):
        bench.put()
    seen = [0]
    async with each_turn(lambda: seen.append(len(bench.queues.units))):
        await service.catch_up()
    assert len(bench.queues.units) == 6 * RECORDS_A_STEP
    # trio runs the tasks that are ready in any order: two steps may follow each other.
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * RECORDS_A_STEP


async def test_64_producers_do_not_outrun_dispatch():
    """Steps grow with the backlog, so it stays at some 4 KiB for each producer."""
    bench = Bench(open_log(mapped_file_size=8 << 20), Queues(), Index())
    service = bench.service()
    await service.catch_up()
    behind = []

    def produce():
        behind.append(service.behind)
        if len(behind) < 600:
            for _ in range(64):
                bench.put(body=b"")

    async with each_turn(produce):
        while len(behind) < 600:
            await service.catch_up()
    assert max(behind) < 3 * 64 * 4096 < bench.log.max_offset / 4


def many_queues(count=100):
    """Return a bench with real consume queues, and one record for each of ``count`` queues."""
    queues = open_queues()
    bench = Bench(open_log(mapped_file_size=1 << 20), queues, Index())
    for number in range(count):
        bench.put(queue_id=number)
    return bench


async def test_rewritten_records_do_not_wait_for_the_end_of_what_was_there(bench):
    """A filler takes the place of two messages, of which only the first is confirmed."""
    first = bench.put(body=b"a" * 100)
    end = bench.put(body=b"b" * 100).physic_offset
    data = all_bytes(bench.log)
    env = fake_env()
    log = open_log(env, master=False)
    filler = fill(0, len(data), first.store_timestamp_ms, to_file_end=False)
    append_data(log, 0, b"".join(filler))
    slave = Bench(log, Queues(), Index(), confirmed=end)
    service = slave.service()
    await service.catch_up()
    assert service.reput_offset == 0
    rewrite(env.disk, log.mapped_file_queue.find_mapped_file_by_offset(0), 0, data)
    service.log_rewritten([])
    await service.catch_up()
    assert service.committed_offset == end
    assert [unit[3] for unit in slave.queues.units] == [0]


async def test_other_tasks_run_while_many_queues_are_created():
    """Each step creates a few files; nothing counts as dispatched before all of them exist."""
    bench = many_queues()
    service = bench.service()
    reported, seen = [], [0]
    service.subscribe(reported.extend)

    def callback():
        created = sum(1 for queue in bench.queues if queue.max_offset)
        seen.append(created)
        if created < 100:
            assert service.behind == bench.log.max_offset
            assert service.dispatched_timestamp_ms == 0
            assert reported == []
            assert not hasattr(bench.index, "committed")

    bench.index.commit = lambda: setattr(bench.index, "committed", True)
    async with each_turn(callback):
        await service.catch_up()
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * FILES_A_STEP
    assert len(reported) == 100
    assert service.behind == 0
    assert service.dispatched_timestamp_ms > 0


@pytest.mark.parametrize("turns", range(12))
async def test_last_pass_commits_what_a_stop_left_uncommitted(turns):
    """The stop comes between two steps of dispatch, or of the commit."""
    bench = many_queues(20)
    service = bench.service()
    reported = []
    service.subscribe(reported.extend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await service.catch_up()
    assert [queue.max_offset for queue in bench.queues] == [1] * 20
    assert len(reported) == 20
    assert service.behind == 0


async def test_long_dispatch_at_start_logs_its_progress(autojump_clock, caplog):
    """A line each five seconds for the backlog at the start, and none for later records."""
    caplog.set_level(logging.INFO, logger="hastore")
    bench = Bench(open_log(), Queues(), Index())
    for _ in range(4_500):
        bench.put()
    size = bench.log.max_offset
    service = bench.service()
    offsets = []

    def three_seconds_pass(_grown):
        offsets.append(service.committed_offset)
        autojump_clock.jump(3)

    service.subscribe(three_seconds_pass)
    bench.confirmed = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.testing.wait_all_tasks_blocked()
        bench.confirmed = None
        service.wakeup()
        while service.behind:
            await trio.sleep(1)
        for _ in range(3):
            bench.put()
            service.wakeup()
            autojump_clock.jump(100)
            while service.behind:
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert len(offsets) == 5 + 3, "a pass has slightly more than 1,000 records"
    reported = [record.msg for record in caplog.records if record.msg["event"] == "dispatching"]
    assert [pairs["done_bytes"] for pairs in reported] == [offsets[1], offsets[3]]
    assert [pairs["percent"] for pairs in reported] == [
        100 * pairs["done_bytes"] // size for pairs in reported
    ]
    assert [pairs["total_bytes"] for pairs in reported] == [size, size]
