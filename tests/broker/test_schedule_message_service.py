"""Delayed messages are delivered when they are due, in order, at least once and rarely twice."""

import json

import pytest
import trio

from hastore.broker.delay.schedule_message_service import _up_to_size
from hastore.errors import DiskError
from hastore.message import Message
from hastore.status import PutMessageStatus as Status
from hastore.store.queue.unit import BLANK_UNIT, Unit
from hastore.store.record.java_hash import tags_code
from hastore.store.record.message_codec import decode
from tests.broker.delay_bench import Bench, records
from tests.support.env.scripted_disk import disk_full

DAY_MS = 86_400_000
FILE = "/d/config/delayOffset.json"


def stored_offsets(disk):
    return json.loads(disk.read_file(FILE))["offsetTable"]


async def test_each_level_is_delivered_when_it_is_due(autojump_clock):
    """Not a second before, whatever was sent first."""
    bench = Bench()
    async with bench.running():
        bench.send(3, "ten")
        bench.send(2, "five")
        bench.send(1, "one")
        for until, names in (
            (0.9, []), (1.1, ["one"]), (4.9, ["one"]), (5.1, ["one", "five"]),
            (9.9, ["one", "five"]), (10.1, ["one", "five", "ten"]),
        ):  # fmt: skip
            await trio.sleep_until(until)
            assert bench.delivered() == names


async def test_a_level_keeps_its_order_over_many_messages(autojump_clock):
    """Messages of one level are delivered as they were sent."""
    bench = Bench()
    names = [f"m{n}" for n in range(200)]
    async with bench.running():
        for name in names:
            bench.send(1, name)
        await trio.sleep(2)
        assert bench.delivered() == names
        assert bench.service.delivered == 200


async def test_what_is_delivered_is_found_in_its_own_queue(autojump_clock):
    """With its tags code: the delivery is a message like any other."""
    bench = Bench()
    async with bench.running():
        bench.send(1, "a", queue_id=3, TAGS="red")
        await trio.sleep(2)
        (unit,) = bench.store.consume_queues.find("orders", 3).units(0, 10)
        assert unit.tags_code == tags_code("red")
        record = decode(bench.log.read(unit.physic_offset, unit.size))
        assert record.properties == {
            "UNIQ_KEY": "a", "TAGS": "red", "REAL_TOPIC": "orders", "REAL_QID": "3",
            "WAIT": "false", **{k: v for k, v in record.properties.items() if k == "__CRC32#"},
        }  # fmt: skip


async def test_nothing_is_done_while_nothing_is_delayed(autojump_clock):
    """No level looks at the clock without a message."""
    bench = Bench()
    async with bench.running():
        await trio.sleep(1)
        asked = bench.clock.asked
        await trio.sleep(100_000)
        assert bench.clock.asked == asked


async def test_a_waiting_head_is_looked_at_once_a_minute(autojump_clock):
    """So a clock that is set forward is noticed; no more often."""
    bench = Bench()
    bench.service.levels = type(bench.service.levels).parse("2h")
    bench.reput.dispatcher.delay_levels = bench.service.levels
    async with bench.running():
        bench.send(1, "late")
        await trio.sleep(1)
        asked = bench.clock.asked
        await trio.sleep(3_600)
        assert 59 <= bench.clock.asked - asked <= 61
        bench.clock.set_by_ms = DAY_MS
        await trio.sleep(61)
        assert bench.delivered() == ["late"]


async def test_a_clock_that_is_set_back_holds_nothing_for_longer_than_its_delay(autojump_clock):
    """Neither what waits then nor what comes later, although its deliver times lie in a future
    that the clock reaches in a day.
    """
    bench = Bench()
    async with bench.running():
        bench.send(2, "before")
        await trio.sleep(1)
        bench.clock.set_by_ms = -DAY_MS
        for name in ("a", "b", "c"):
            bench.send(2, name)
            await trio.sleep(1.2)
        assert bench.delivered() == []
        await trio.sleep_until(6.6)
        assert bench.delivered() == ["before", "a"]
        await trio.sleep_until(11)
        assert bench.delivered() == ["before", "a", "b", "c"]


async def test_a_restart_goes_on_where_the_last_run_ended(autojump_clock):
    """Delivered messages are not delivered again, the others when they are due."""
    bench = Bench()
    async with bench.running():
        bench.send(1, "one")
        bench.send(3, "ten")
        await trio.sleep(2)
    assert stored_offsets(bench.disk) == {"1": 1}
    bench = bench.again()
    async with bench.running():
        await trio.sleep_until(9.9)
        assert bench.delivered() == ["one"]
        await trio.sleep_until(10.5)
        assert bench.delivered() == ["one", "ten"]
        assert bench.store.queries == 1  # "one" was not even looked at


async def test_what_was_due_while_the_node_was_down_is_delivered_at_its_start(autojump_clock):
    """At once, in order."""
    bench = Bench()
    for name in ("a", "b"):
        bench.send(1, name)
    await trio.sleep(100)
    bench = bench.again()
    async with bench.running():
        await trio.sleep(0.1)
        assert bench.delivered() == ["a", "b"]


async def test_a_kill_before_the_offsets_are_stored_repeats_no_delivery(autojump_clock):
    """The index knows what was delivered: a promoted slave's directory too."""
    bench = Bench()
    async with bench.running():
        bench.send(1, "one")
        bench.send(2, "five")
        await trio.sleep(2)
        assert not bench.disk.exists(FILE)
        killed = bench.disk.kill()
    bench = bench.again(killed)
    async with bench.running():
        await trio.sleep(10)
        assert bench.delivered() == ["one", "five"]
        assert bench.service.delivered == 1


async def test_the_index_is_asked_in_a_thread_one_message_after_the_other(autojump_clock):
    """However long that takes the loop goes on, and each level keeps its order."""
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.send(1, name)
        bench.send(2, name.upper())
    await trio.sleep(10)
    bench = bench.again()
    offload, query = bench.env.offload, bench.store.query_message
    asked = []

    def query_in_a_thread(topic, key, *, begin_ms):
        assert offload.running == 1
        asked.append(key)
        return query(topic, key, begin_ms=begin_ms)

    bench.store.query_message = query_in_a_thread
    async with bench.running():
        await trio.sleep(1)
        delivered = bench.delivered()
        assert [name for name in delivered if name.islower()] == ["a", "b", "c"]
        assert [name for name in delivered if name.isupper()] == ["A", "B", "C"]
        assert sorted(asked) == ["A", "B", "C", "a", "b", "c"]
        assert bench.service.delivered == 6


@pytest.mark.parametrize("case", ["no index", "no key"])
async def test_without_index_or_key_a_kill_may_repeat_a_delivery(autojump_clock, case):
    """At least once: nothing is lost, and nothing tells that it was delivered."""
    bench = Bench()
    async with bench.running():
        if case == "no key":
            properties = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
            bench.submit(Message("SCHEDULE_TOPIC_XXXX", b"one", properties=properties))
        else:
            bench.send(1, "one")
        await trio.sleep(2)
        killed = bench.disk.kill()
    bench = bench.again(killed)
    bench.store.has_index = case != "no index"
    async with bench.running():
        await trio.sleep(1)
        assert bench.delivered() == ["one", "one"]


async def test_offsets_are_stored_only_when_their_deliveries_are_on_the_disk(autojump_clock):
    """A power cut that takes a delivery takes no offset with it."""
    bench = Bench()
    async with bench.running():
        bench.send(1, "one")
        bench.flushes = False
        await trio.sleep(60)
        assert bench.delivered() == ["one"]
        cut = bench.disk.cut_power()
    assert not cut.exists(FILE)
    bench = bench.again(cut)
    async with bench.running():
        await trio.sleep(1)
        assert bench.delivered() == ["one"]
        await trio.sleep(11)
        assert stored_offsets(bench.disk) == {"1": 1}


async def test_a_message_that_is_refused_is_tried_until_it_is_taken(autojump_clock):
    """With longer and longer pauses; those behind it wait, and the order stays."""
    bench = Bench()
    async with bench.running():
        bench.refusal = Status.SERVICE_NOT_AVAILABLE
        bench.send(1, "a")
        bench.send(1, "b")
        await trio.sleep(60)
        assert bench.delivered() == []
        assert bench.service.fault == "SERVICE_NOT_AVAILABLE: on purpose"
        assert len(bench.attempts) < 20
        bench.refusal = None
        await trio.sleep(11)
        assert bench.delivered() == ["a", "b"]
        assert bench.service.fault is None


async def test_what_can_never_be_stored_is_passed_over(autojump_clock):
    """An illegal message blocks nobody; it is counted."""
    bench = Bench()
    async with bench.running():
        bench.submit(Message("SCHEDULE_TOPIC_XXXX", b"x", properties={"DELAY": "1"}))
        bench.refusal = Status.MESSAGE_ILLEGAL
        bench.send(1, "a")
        await trio.sleep(2)
        bench.refusal = None
        bench.send(1, "b")
        await trio.sleep(2)
        assert bench.delivered() == ["b"]
        assert bench.service.dropped == 2


async def test_a_disk_that_cannot_be_read_loses_nothing(autojump_clock):
    """The level waits and tries again."""
    bench = Bench()
    read = bench.store.record_at
    async with bench.running():

        def fail(*_args):
            raise DiskError("cannot read F: Input/output error", path="F")

        bench.store.record_at = fail
        bench.send(1, "a")
        await trio.sleep(30)
        assert bench.service.fault == "cannot read F: Input/output error"
        bench.store.record_at = read
        await trio.sleep(11)
        assert bench.delivered() == ["a"]


async def test_offsets_that_could_not_be_stored_are_stored_later(autojump_clock):
    """A full disk costs nothing but time."""
    bench = Bench()
    async with bench.running():
        bench.send(1, "a")
        bench.disk.fail("write_file", disk_full())
        await trio.sleep(30)
        bench.disk.heal()
        await trio.sleep(11)
        assert stored_offsets(bench.disk) == {"1": 1}


async def test_the_file_is_rocketmqs(autojump_clock):
    """Bare integer keys are read, what is not ours is kept, what is no offset is passed over."""
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.send(1, name)
    bench.disk.put(
        FILE,
        b'{"dataVersion":{"counter":7},"offsetTable":{1:2,2:0,3:"x",900:1}}',
    )
    async with bench.running():
        await trio.sleep(2)
        assert bench.delivered() == ["c"]
    value = json.loads(bench.disk.read_file(FILE))
    assert value["dataVersion"] == {"counter": 7}
    assert value["offsetTable"]["1"] == 3


@pytest.mark.parametrize("text", [b'{"offsetTable":{"1":9}}', b'{"offsetTable":5}', b"{"])
async def test_offsets_that_cannot_be_are_corrected(autojump_clock, text):
    """One beyond the queue's end is taken for its end; a torn file is none."""
    bench = Bench()
    bench.disk.put(FILE, text)
    bench.send(1, "a")
    async with bench.running():
        await trio.sleep(2)
        bench.send(1, "b")
        await trio.sleep(2)
        assert bench.delivered() == (["b"] if b"9" in text else ["a", "b"])


async def test_messages_that_expired_before_they_were_due_are_passed_over(autojump_clock):
    """Their number is told; the next is delivered."""
    bench = Bench()
    async with bench.running():
        for _ in range(3):
            bench.send(3, "gone")
        await trio.sleep(1)
        bench.store.consume_queues.find("SCHEDULE_TOPIC_XXXX", 2).min_offset = 3
        bench.send(3, "kept")
        await trio.sleep(20)
        assert bench.delivered() == ["kept"]
        assert bench.service.dropped == 3


async def test_a_start_waits_for_the_queues_to_be_built(autojump_clock):
    """An offset beyond the end of a queue that is being built is not taken for a mistake."""
    bench = Bench()
    behind = [100]
    bench.service.dispatch_behind = lambda: behind[0]
    bench.disk.put(FILE, b'{"offsetTable":{"1":1}}')
    async with bench.running():
        await trio.sleep(5)
        for name in ("a", "b"):
            bench.send(1, name)
        await trio.sleep(5)
        assert bench.delivered() == []
        behind[0] = 0
        await trio.sleep(2)
        assert bench.delivered() == ["b"]


async def test_levels_of_an_earlier_table_are_delivered_too(autojump_clock):
    """A queue that today's table has no level for still has its messages."""
    bench = Bench()
    properties = {"DELAY": "7", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "x"}
    message = Message("SCHEDULE_TOPIC_XXXX", b"x", queue_id=6, properties=properties)
    bench.submit(message)
    await bench.reput.catch_up()
    async with bench.running():
        await trio.sleep(11)
        assert bench.delivered() == ["x"]
        assert bench.service.progress()[7] == (1, 1)


async def test_an_address_in_the_place_of_the_time_is_looked_up(autojump_clock):
    """A ConsumeQueueExt's address is no time: the record's own store time counts."""
    bench = Bench()
    bench.send(2, "a")
    ((_, record),) = records(bench.log)
    bench.store.consume_queues.put("SCHEDULE_TOPIC_XXXX", 1, 0, 0, record.total_size, -(2**63) + 5)
    bench.store.consume_queues.commit()
    async with bench.running():
        await trio.sleep(4.9)
        assert bench.delivered() == []
        await trio.sleep(0.2)
        assert bench.delivered() == ["a"]


def test_what_is_due_at_once_need_not_fit_in_memory_at_once():
    """A mebibyte of records at a time, one record at least; blanks have no size."""
    large = Unit(0, 700_000, 1)
    assert len(_up_to_size([large] * 3)) == 1
    assert len(_up_to_size([Unit(0, 5_000_000, 1)])) == 1
    assert len(_up_to_size([Unit(0, 400_000, 1)] * 5)) == 2
    assert len(_up_to_size([BLANK_UNIT, large, BLANK_UNIT])) == 3
