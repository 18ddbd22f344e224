"""The dispatch follows the log: in order, once, up to the confirm offset."""

import contextlib
import itertools
import logging

import attrs
import pytest
import trio

from hastore.dispatch.dispatch_feed import DispatchFeed
from hastore.dispatch.record_dispatcher import RecordDispatcher
from hastore.dispatch.reput_message_service import ReputMessageService
from hastore.errors import DiskError, FlushFailedError
from hastore.message import Message
from hastore.store.queue.consume_queue_store import FILES_A_STEP
from hastore.store.record.delay_levels import DelayLevels
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import sync_failed
from tests.support.store.consume_queues import open_queues
from tests.support.store.open_log import FILE_SIZE, all_bytes, append, append_data, open_log


class Queues:
    """Stands in for the consume queues: notes what it is given."""

    def __init__(self):
        self.units = []
        self.error = None
        self.commits = 0

    def put(self, *unit):
        self.units.append(unit)

    def commit_step(self):
        self.commits += 1
        if self.error is not None:
            raise self.error
        return [object()]


class Index:
    """Stands in for the index."""

    def __init__(self):
        self.keys = []

    def put(self, topic, keys, physic_offset, store_timestamp_ms):
        self.keys.append((topic, list(keys), physic_offset))

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
    """A log with its dispatch."""

    log: object
    queues: Queues
    index: Index
    feed: DispatchFeed | None
    confirmed: int | None = None

    def service(self, start=0):
        dispatcher = RecordDispatcher(self.queues, self.index, DelayLevels.parse("1s 5s"))
        return ReputMessageService(
            fake_env(), self.log, dispatcher, self.confirm_offset, start, self.feed
        )

    def confirm_offset(self):
        return self.log.max_offset if self.confirmed is None else self.confirmed

    def put(self, message=None, **fields):
        if message is None:
            message = Message(fields.pop("topic", "orders"), fields.pop("body", b"body"), **fields)
        result = append(self.log, message)
        if self.feed is not None and isinstance(message, list):
            self.feed.add_batch(message, result)
        elif self.feed is not None:
            self.feed.add(message, result)
        return result


@pytest.fixture(params=["feed", "log"])
def bench(request):
    """A master whose records come from the feed, or from the log."""
    return Bench(open_log(), Queues(), Index(), DispatchFeed() if request.param == "feed" else None)


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


async def test_feed_and_log_give_the_same(autojump_clock):
    """What is taken from the feed is what decoding the log would have given."""
    seen = []
    for feed in (DispatchFeed(), None):
        bench = Bench(open_log(), Queues(), Index(), feed)
        service = bench.service()
        await service.catch_up()
        for _ in range(20):
            for message in MESSAGES:
                bench.put(message)
        bench.put([Message("batch", bytes(size), properties={"TAGS": "t"}) for size in (1, 2, 3)])
        assert feed is None or len(feed.requests) == 20 * len(MESSAGES) + 3
        await service.catch_up()
        assert service.reput_offset == bench.log.max_offset
        seen.append((bench.queues.units, bench.index.keys))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 20 * (len(MESSAGES) - 2) + 3


async def test_what_goes_where(bench, autojump_clock):
    """Transactions, delays, tags and keys are dispatched by RocketMQ's rules."""
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
    assert [keys for _, keys, _ in bench.index.keys] == [["u", "k1", "k2", "k3"], ["p"], ["c"]]


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


async def test_a_feed_that_grew_too_long_is_made_up_for_from_the_log(autojump_clock):
    """A closed feed loses nothing, doubles nothing, and is opened again at the log's end."""
    feed = DispatchFeed(size_max=5)
    bench = Bench(open_log(), Queues(), Index(), feed)
    service = bench.service()
    await service.catch_up()
    bench.confirmed = 0
    for number in range(40):
        bench.put(body=bytes(number * 10))
    assert feed.requests is None
    bench.confirmed = None
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == list(range(40))
    bench.put()
    assert len(feed.requests) == 1
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == list(range(41))


@pytest.mark.parametrize("batch", [False, True])
async def test_a_feed_of_large_texts_is_closed_before_it_takes_much_memory(batch, autojump_clock):
    """Texts of 32 KiB each would be two gigabytes by number alone; the log has them anyway."""
    feed = DispatchFeed(text_size_max=100_000)
    bench = Bench(open_log(mapped_file_size=4 << 20), Queues(), Index(), feed)
    service = bench.service()
    await service.catch_up()
    bench.confirmed = 0
    large = Message("t", b"", properties={"KEYS": "k" * 30_000, "TAGS": "x"})
    for number in range(4):
        assert feed.requests is not None
        assert feed.text_size == number * 30_001
        bench.put([large, Message("t", b"x" * 5_000)] if batch else large)
    assert feed.requests is None
    bench.confirmed = None
    await service.catch_up()
    assert [key for _, [key], _ in bench.index.keys] == ["k" * 30_000] * 4
    assert feed.text_size == 0
    wide = Message("t", b"", properties={"KEYS": "é" * 300})
    for number in range(10):  # what is taken counts no more
        bench.confirmed = bench.log.max_offset
        bench.put([large] * 3 if batch else large)
        bench.put(wide)
        assert feed.text_size > 30_000 + number
        bench.confirmed = None
        await service.catch_up()
        assert feed.requests == []
        assert feed.text_size == 0


async def test_small_texts_are_bound_by_their_number_alone(autojump_clock):
    """A large body is no text, so nothing is added up for the messages that most producers send."""
    feed = DispatchFeed(text_size_max=0)
    bench = Bench(open_log(mapped_file_size=4 << 20), Queues(), Index(), feed)
    service = bench.service()
    await service.catch_up()
    for _ in range(100):
        bench.put(body=b"x" * 3_000, properties={"KEYS": "k" * 250, "TAGS": "red"})
    assert len(feed.requests) == 100


@pytest.mark.parametrize("piece", [1, 7, 100, 1_000, FILE_SIZE])
async def test_a_slave_waits_for_the_rest_of_a_record(piece, autojump_clock):
    """However the master's bytes arrive, each record is dispatched once, when it is whole."""
    master = Bench(open_log(), Queues(), Index(), None)
    for number in range(30):
        master.put(body=bytes([number]) * (number * 20), properties={"TAGS": str(number)})
    data = all_bytes(master.log)
    expected = master.service()
    await expected.catch_up()
    slave = Bench(open_log(master=False), Queues(), Index(), None)
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


async def test_a_bad_record_of_known_size_is_skipped(autojump_clock):
    """A record that stands at the wrong place is named and passed over; the next one is taken."""
    bench = Bench(open_log(), Queues(), Index(), None)
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
async def test_at_other_damage_dispatch_stops_and_says_where(
    position, damage, what, autojump_clock
):
    """What has no size cannot be passed over; the loop ends, and does not spin."""
    bench = Bench(open_log(), Queues(), Index(), None)
    results = [bench.put(body=bytes([number])) for number in range(3)]
    view = bench.log.mapped_file_queue.files[0].writable_view
    start = results[1].physic_offset + position
    view[start : start + len(damage)] = damage
    service = bench.service()
    await service.catch_up()
    await service.catch_up()
    assert len(bench.queues.units) == 1
    stands = f"dispatch stopped at offset {results[1].physic_offset}: {what}"
    assert service.fault.startswith(stands)


async def test_a_disk_that_takes_nothing_is_tried_until_it_does(bench, autojump_clock):
    """While consume queues cannot be written dispatch waits, says so, and loses nothing."""
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


async def test_whoever_wants_to_know_is_told_of_queues_that_grew(bench, autojump_clock):
    """Listeners are called after the commit, once a pass; an idle service does nothing."""
    service = bench.service()
    told = []
    service.on_dispatched.append(told.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(1)
        for _ in range(5):
            bench.put()
        service.wakeup()
        await trio.sleep(3_600)
        assert len(told) == 1
        assert bench.queues.commits == 1
        nursery.cancel_scope.cancel()


async def test_a_record_larger_than_a_chunk(autojump_clock):
    """A message of a megabyte is read as a whole."""
    size = 4 * 1024 * 1024
    bench = Bench(open_log(mapped_file_size=size), Queues(), Index(), None)
    bench.put(body=bytes(1024 * 1024))
    bench.put(body=b"small")
    bench.put(body=bytes(1024 * 1024 + 1))
    service = bench.service()
    await service.catch_up()
    assert [unit[2] for unit in bench.queues.units] == [0, 1, 2]


async def test_deleted_records_are_jumped_over(autojump_clock):
    """Dispatch that is behind the log's first file goes on at its first record."""
    bench = Bench(open_log(), Queues(), Index(), None)
    for number in range(40):
        bench.put(body=bytes(300), queue_id=number)
    queue = bench.log.mapped_file_queue
    queue.files.pop(0).close()
    service = bench.service()
    await service.catch_up()
    assert min(unit[3] for unit in bench.queues.units) >= FILE_SIZE
    assert service.reput_offset == bench.log.max_offset


async def test_a_failed_sync_is_final(bench, autojump_clock):
    """A disk that could not keep what it was given is not asked again: the node stops."""
    service = bench.service()
    await service.catch_up()
    bench.queues.error = sync_failed()
    bench.put()
    with pytest.raises(FlushFailedError):
        await service.catch_up()
    assert bench.queues.commits == 1


async def test_a_full_index_keeps_no_queue_secret(autojump_clock):
    """Queues that grew are told of, once the index could be written as well."""
    bench = Bench(open_log(), Queues(), FullIndex(), None)
    service = bench.service()
    told = []
    service.on_dispatched.append(told.extend)
    bench.put()
    bench.queues.commit_step = iter([["grown"], []]).__next__
    await service.catch_up()
    assert told == ["grown"]


async def test_what_a_stopped_service_could_not_write_is_written_by_the_last_pass(autojump_clock):
    """A stop in the middle of a full disk, which has room again: nothing waits in memory then."""
    bench = Bench(open_log(), Queues(), Index(), None)
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
async def each_turn(look):
    """Call ``look`` each time that others may run."""

    async def call_again():
        while True:
            look()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_again)
        yield
        nursery.cancel_scope.cancel()


async def test_others_run_between_steps_of_16_records(bench):
    """A producer's answer does not wait for all that a wake-up brought."""
    service = bench.service()
    await service.catch_up()
    for _ in range(100):
        bench.put()
    seen = [0]
    async with each_turn(lambda: seen.append(len(bench.queues.units))):
        await service.catch_up()
    assert len(bench.queues.units) == 100
    # trio runs the tasks that are ready in any order: two steps may follow each other.
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * 16
    assert bench.queues.commits == 1


async def test_64_producers_do_not_outrun_the_dispatch():
    """The further behind, the larger the steps: what waits stays at some 4 KiB a producer."""
    bench = Bench(open_log(mapped_file_size=8 << 20), Queues(), Index(), DispatchFeed())
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
    """A bench with real consume queues, and a record for each of so many."""
    queues = open_queues()
    bench = Bench(open_log(mapped_file_size=1 << 20), queues, Index(), None)
    for number in range(count):
        bench.put(queue_id=number)
    return bench


async def test_others_run_while_a_thousand_queues_are_made():
    """A few files at a time; nothing counts as dispatched before all of them are there."""
    bench = many_queues()
    service = bench.service()
    told, seen = [], [0]
    service.on_dispatched.append(told.extend)

    def look():
        made = sum(1 for queue in bench.queues if queue.max_offset)
        seen.append(made)
        if made < 100:
            assert service.behind == bench.log.max_offset
            assert service.dispatched_timestamp_ms == 0
            assert told == []
            assert not hasattr(bench.index, "committed")

    bench.index.commit = lambda: setattr(bench.index, "committed", True)
    async with each_turn(look):
        await service.catch_up()
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * FILES_A_STEP
    assert len(told) == 100
    assert service.behind == 0
    assert service.dispatched_timestamp_ms > 0


@pytest.mark.parametrize("turns", range(12))
async def test_what_a_stop_leaves_uncommitted_is_committed_by_the_last_pass(turns):
    """Wherever in a pass it comes: between two steps of dispatch, or of the commit."""
    bench = many_queues(20)
    service = bench.service()
    told = []
    service.on_dispatched.append(told.extend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await service.catch_up()
    assert [queue.max_offset for queue in bench.queues] == [1] * 20
    assert len(told) == 20
    assert service.behind == 0


async def test_a_long_dispatch_at_a_start_says_how_far_it_is(autojump_clock, caplog):
    """Every five seconds once it is confirmed, and not a word of what comes later."""
    caplog.set_level(logging.INFO, logger="hastore")
    bench = Bench(open_log(), Queues(), Index(), None)
    for _ in range(4_500):
        bench.put()
    size = bench.log.max_offset
    service = bench.service()
    offsets = []

    def three_seconds_pass(_grown):
        offsets.append(service.committed_offset)
        autojump_clock.jump(3)

    service.on_dispatched.append(three_seconds_pass)
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
    assert len(offsets) == 5 + 3, "a pass is a thousand records and a few"
    told = [record.msg for record in caplog.records if record.msg["event"] == "dispatching"]
    assert [pairs["done_bytes"] for pairs in told] == [offsets[1], offsets[3]]
    assert [pairs["percent"] for pairs in told] == [
        100 * pairs["done_bytes"] // size for pairs in told
    ]
    assert [pairs["total_bytes"] for pairs in told] == [size, size]
