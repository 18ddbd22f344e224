"""Delivery of delayed messages: when they are due, in order, at least once and rarely twice."""

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
from tests.broker.delivery_run import DeliveryRun, records
from tests.support.env.scripted_disk import disk_full

DAY_MS = 86_400_000
FILE = "/d/config/delayOffset.json"


def stored_offsets(disk):
    return json.loads(disk.read_file(FILE))["offsetTable"]


async def test_each_level_is_delivered_when_it_is_due(autojump_clock):
    """Not before, whichever message was sent first."""
    run = DeliveryRun()
    async with run.running():
        run.send(3, "ten")
        run.send(2, "five")
        run.send(1, "one")
        for until, names in (
            (0.9, []), (1.1, ["one"]), (4.9, ["one"]), (5.1, ["one", "five"]),
            (9.9, ["one", "five"]), (10.1, ["one", "five", "ten"]),
        ):  # fmt: skip
            await trio.sleep_until(until)
            assert run.delivered() == names


async def test_a_level_keeps_its_order_over_many_messages(autojump_clock):
    """Messages of one level are delivered in the order in which they were sent."""
    run = DeliveryRun()
    names = [f"m{n}" for n in range(200)]
    async with run.running():
        for name in names:
            run.send(1, name)
        await trio.sleep(2)
        assert run.delivered() == names
        assert run.service.delivered == 200


async def test_a_delivered_message_is_in_its_own_queue(autojump_clock):
    """It has a tags code and properties like any other message."""
    run = DeliveryRun()
    async with run.running():
        run.send(1, "a", queue_id=3, TAGS="red")
        await trio.sleep(2)
        (unit,) = run.store.consume_queues.find("orders", 3).units(0, 10)
        assert unit.tags_code == tags_code("red")
        record = decode(run.log.read(unit.physic_offset, unit.size))
        assert record.properties == {
            "UNIQ_KEY": "a", "TAGS": "red", "REAL_TOPIC": "orders", "REAL_QID": "3",
            "WAIT": "false", **{k: v for k, v in record.properties.items() if k == "__CRC32#"},
        }  # fmt: skip


async def test_the_clock_is_not_read_without_delayed_messages(autojump_clock):
    """A level without messages does nothing."""
    run = DeliveryRun()
    async with run.running():
        await trio.sleep(1)
        reads = run.clock.reads
        await trio.sleep(100_000)
        assert run.clock.reads == reads


async def test_a_waiting_message_is_checked_once_a_minute(autojump_clock):
    """No more often, but enough to notice a clock that is set forward."""
    run = DeliveryRun()
    run.service.levels = type(run.service.levels).parse("2h")
    run.reput.dispatcher.delay_levels = run.service.levels
    async with run.running():
        run.send(1, "late")
        await trio.sleep(1)
        reads = run.clock.reads
        await trio.sleep(3_600)
        assert 59 <= run.clock.reads - reads <= 61
        run.clock.off_by_ms = DAY_MS
        await trio.sleep(61)
        assert run.delivered() == ["late"]


async def test_a_clock_set_back_holds_no_message_beyond_its_delay(autojump_clock):
    """Neither a message that waits nor a later one, although the deliver time of the first is a day
    ahead of the clock.
    """
    run = DeliveryRun()
    async with run.running():
        run.send(2, "before")
        await trio.sleep(1)
        run.clock.off_by_ms = -DAY_MS
        for name in ("a", "b", "c"):
            run.send(2, name)
            await trio.sleep(1.2)
        assert run.delivered() == []
        await trio.sleep_until(6.6)
        assert run.delivered() == ["before", "a"]
        await trio.sleep_until(11)
        assert run.delivered() == ["before", "a", "b", "c"]


async def test_a_restart_continues_where_the_last_run_ended(autojump_clock):
    """Delivered messages are not delivered again, the others when they are due."""
    run = DeliveryRun()
    async with run.running():
        run.send(1, "one")
        run.send(3, "ten")
        await trio.sleep(2)
    assert stored_offsets(run.disk) == {"1": 1}
    run = run.again()
    async with run.running():
        await trio.sleep_until(9.9)
        assert run.delivered() == ["one"]
        await trio.sleep_until(10.5)
        assert run.delivered() == ["one", "ten"]
        assert run.store.queries == 1  # "one" was not even looked up


async def test_messages_due_while_the_node_was_down_come_at_its_start(autojump_clock):
    """They are delivered at once and in order."""
    run = DeliveryRun()
    for name in ("a", "b"):
        run.send(1, name)
    await trio.sleep(100)
    run = run.again()
    async with run.running():
        await trio.sleep(0.1)
        assert run.delivered() == ["a", "b"]


async def test_a_kill_before_the_offsets_are_stored_repeats_no_delivery(autojump_clock):
    """The index shows what was delivered, as it does on a promoted slave."""
    run = DeliveryRun()
    async with run.running():
        run.send(1, "one")
        run.send(2, "five")
        await trio.sleep(2)
        assert not run.disk.exists(FILE)
        killed = run.disk.kill()
    run = run.again(killed)
    async with run.running():
        await trio.sleep(10)
        assert run.delivered() == ["one", "five"]
        assert run.service.delivered == 1


async def test_the_index_is_queried_in_a_thread_for_each_message(autojump_clock):
    """The event loop goes on meanwhile, and each level keeps its order."""
    run = DeliveryRun()
    for name in ("a", "b", "c"):
        run.send(1, name)
        run.send(2, name.upper())
    await trio.sleep(10)
    run = run.again()
    offload, query = run.env.offload, run.store.query_message
    asked = []

    def query_in_a_thread(topic, key, **limits):
        assert offload.running == 1
        asked.append(key)
        return query(topic, key, **limits)

    run.store.query_message = query_in_a_thread
    async with run.running():
        await trio.sleep(1)
        delivered = run.delivered()
        assert [name for name in delivered if name.islower()] == ["a", "b", "c"]
        assert [name for name in delivered if name.isupper()] == ["A", "B", "C"]
        assert sorted(asked) == ["A", "B", "C", "a", "b", "c"]
        assert run.service.delivered == 6


@pytest.mark.parametrize("case", ["no index", "no key"])
async def test_without_index_or_key_a_kill_may_repeat_a_delivery(autojump_clock, case):
    """Delivery is at least once: nothing is lost, and nothing shows that it was delivered."""
    run = DeliveryRun()
    async with run.running():
        if case == "no key":
            properties = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"}
            run.submit(Message("SCHEDULE_TOPIC_XXXX", b"one", properties=properties))
        else:
            run.send(1, "one")
        await trio.sleep(2)
        killed = run.disk.kill()
    run = run.again(killed)
    run.store.has_index = case != "no index"
    async with run.running():
        await trio.sleep(1)
        assert run.delivered() == ["one", "one"]


async def test_offsets_are_stored_only_after_their_deliveries_are_flushed(autojump_clock):
    """A power cut that loses a delivery must not keep its offset."""
    run = DeliveryRun()
    async with run.running():
        run.send(1, "one")
        run.flushes = False
        await trio.sleep(60)
        assert run.delivered() == ["one"]
        cut = run.disk.cut_power()
    assert not cut.exists(FILE)
    run = run.again(cut)
    async with run.running():
        await trio.sleep(1)
        assert run.delivered() == ["one"]
        await trio.sleep(11)
        assert stored_offsets(run.disk) == {"1": 1}


async def test_offsets_are_handed_out_only_after_their_deliveries_are_confirmed(autojump_clock):
    """A slave copies them: it must have the deliveries that they pass, now and after a restart."""
    run = DeliveryRun(confirmed=0)
    async with run.running():
        run.send(1, "one")
        await trio.sleep(60)
        assert run.delivered() == ["one"]
        assert run.service.confirmed_offsets() == {}
        run.confirmed = run.log.max_offset - 1
        assert run.service.confirmed_offsets() == {}
        run.confirmed += 1
        assert run.service.confirmed_offsets() == {1: 1}
    assert stored_offsets(run.disk) == {"1": 1}
    run = run.again(run.disk)
    run.confirmed = 0
    async with run.running():
        await trio.sleep(1)
        assert run.service.confirmed_offsets() == {}
        run.confirmed = run.log.max_offset
        assert run.service.confirmed_offsets() == {1: 1}


@pytest.mark.parametrize("in_group", [False, True])
async def test_a_group_stores_only_offsets_of_confirmed_deliveries(autojump_clock, in_group):
    """What is not confirmed may be cut from the log; a classic log is never cut."""
    run = DeliveryRun(confirmed=0, stores_confirmed_only=in_group)
    async with run.running():
        run.send(1, "one")
        await trio.sleep(60)
        assert run.delivered() == ["one"]
        if in_group:
            assert not run.disk.exists(FILE)
        else:
            assert stored_offsets(run.disk) == {"1": 1}
        run.confirmed = run.log.max_offset
        await trio.sleep(11)
        assert stored_offsets(run.disk) == {"1": 1}


async def test_a_refused_delivery_is_retried_until_it_succeeds(autojump_clock):
    """The pauses grow; later messages of the level wait, so the order stays."""
    run = DeliveryRun()
    async with run.running():
        run.refusal = Status.SERVICE_NOT_AVAILABLE
        run.send(1, "a")
        run.send(1, "b")
        await trio.sleep(60)
        assert run.delivered() == []
        assert run.service.fault == "SERVICE_NOT_AVAILABLE: on purpose"
        assert len(run.attempts) < 20
        run.refusal = None
        await trio.sleep(11)
        assert run.delivered() == ["a", "b"]
        assert run.service.fault is None


async def test_an_illegal_message_is_dropped_and_counted(autojump_clock):
    """It does not block the messages after it."""
    run = DeliveryRun()
    async with run.running():
        run.submit(Message("SCHEDULE_TOPIC_XXXX", b"x", properties={"DELAY": "1"}))
        run.refusal = Status.MESSAGE_ILLEGAL
        run.send(1, "a")
        await trio.sleep(2)
        run.refusal = None
        run.send(1, "b")
        await trio.sleep(2)
        assert run.delivered() == ["b"]
        assert run.service.dropped == 2


async def test_a_read_error_loses_no_message(autojump_clock):
    """The level waits and tries again."""
    run = DeliveryRun()
    read = run.store.record_at
    async with run.running():

        def fail(*_args):
            raise DiskError("cannot read F: Input/output error", path="F")

        run.store.record_at = fail
        run.send(1, "a")
        await trio.sleep(30)
        assert run.service.fault == "cannot read F: Input/output error"
        run.store.record_at = read
        await trio.sleep(11)
        assert run.delivered() == ["a"]


async def test_offsets_are_stored_once_a_full_disk_has_room(autojump_clock):
    """The service retries the failed write."""
    run = DeliveryRun()
    async with run.running():
        run.send(1, "a")
        run.disk.fail("write_file", disk_full())
        await trio.sleep(30)
        run.disk.heal()
        await trio.sleep(11)
        assert stored_offsets(run.disk) == {"1": 1}


async def test_rocketmqs_offset_file_is_read_and_kept(autojump_clock):
    """Bare integer keys are read, foreign fields kept and invalid offsets skipped."""
    run = DeliveryRun()
    for name in ("a", "b", "c"):
        run.send(1, name)
    run.disk.put(
        FILE,
        b'{"dataVersion":{"counter":7},"offsetTable":{1:2,2:0,3:"x",900:1}}',
    )
    async with run.running():
        await trio.sleep(2)
        assert run.delivered() == ["c"]
    value = json.loads(run.disk.read_file(FILE))
    assert value["dataVersion"] == {"counter": 7}
    assert value["offsetTable"]["1"] == 3


@pytest.mark.parametrize("text", [b'{"offsetTable":{"1":9}}', b'{"offsetTable":5}', b"{"])
async def test_invalid_offsets_in_the_file_are_corrected(autojump_clock, text):
    """An offset beyond the queue's end becomes the end; a torn file counts as none."""
    run = DeliveryRun()
    run.disk.put(FILE, text)
    run.send(1, "a")
    async with run.running():
        await trio.sleep(2)
        run.send(1, "b")
        await trio.sleep(2)
        assert run.delivered() == (["b"] if b"9" in text else ["a", "b"])


async def test_messages_that_expired_before_they_were_due_are_skipped(autojump_clock):
    """They are counted, and the next message is delivered."""
    run = DeliveryRun()
    async with run.running():
        for _ in range(3):
            run.send(3, "gone")
        await trio.sleep(1)
        run.store.consume_queues.find("SCHEDULE_TOPIC_XXXX", 2).min_offset = 3
        run.send(3, "kept")
        await trio.sleep(20)
        assert run.delivered() == ["kept"]
        assert run.service.dropped == 3


async def test_delivery_waits_until_the_queues_are_built(autojump_clock):
    """Until then a stored offset beyond the end of its queue is not an error."""
    run = DeliveryRun()
    backlog = [100]
    run.service.dispatch_behind = lambda: backlog[0]
    run.disk.put(FILE, b'{"offsetTable":{"1":1}}')
    async with run.running():
        await trio.sleep(5)
        for name in ("a", "b"):
            run.send(1, name)
        await trio.sleep(5)
        assert run.delivered() == []
        backlog[0] = 0
        await trio.sleep(2)
        assert run.delivered() == ["b"]


async def test_levels_of_an_earlier_table_are_delivered_too(autojump_clock):
    """Their queues still have messages, although no level of today's table belongs to them."""
    run = DeliveryRun()
    properties = {"DELAY": "7", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": "x"}
    message = Message("SCHEDULE_TOPIC_XXXX", b"x", queue_id=6, properties=properties)
    run.submit(message)
    await run.reput.catch_up()
    async with run.running():
        await trio.sleep(11)
        assert run.delivered() == ["x"]
        assert run.service.progress()[7] == (1, 1)


async def test_an_ext_address_in_place_of_the_time_is_not_taken_for_one(autojump_clock):
    """The record's own store time counts instead of a ConsumeQueueExt address."""
    run = DeliveryRun()
    run.send(2, "a")
    ((_, record),) = records(run.log)
    run.store.consume_queues.put("SCHEDULE_TOPIC_XXXX", 1, 0, 0, record.total_size, -(2**63) + 5)
    run.store.consume_queues.commit()
    async with run.running():
        await trio.sleep(4.9)
        assert run.delivered() == []
        await trio.sleep(0.2)
        assert run.delivered() == ["a"]


def test_due_messages_are_read_a_mebibyte_at_a_time():
    """At least one record is read, whatever its size; blank units have no size."""
    large = Unit(0, 700_000, 1)
    assert len(_up_to_size([large] * 3)) == 1
    assert len(_up_to_size([Unit(0, 5_000_000, 1)])) == 1
    assert len(_up_to_size([Unit(0, 400_000, 1)] * 5)) == 2
    assert len(_up_to_size([BLANK_UNIT, large, BLANK_UNIT])) == 3
