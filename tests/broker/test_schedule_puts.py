"""Puts of delayed messages, and puts on a full disk."""

import pytest

import hastore
from hastore.message import Message
from hastore.status import BrokerRole
from hastore.status import PutMessageStatus as Status
from hastore.store.record.message_codec import decode
from tests.support.nodes.harness import master_config


def config(path):
    return master_config(path, role=BrokerRole.ASYNC_MASTER)


def record_of(master, result):
    size = result.next_offset - result.physic_offset
    return decode(master.commit_log.read(result.physic_offset, size))


async def test_a_delayed_put_returns_the_producers_topic_and_queue(tmp_path, autojump_clock):
    """The record is in the schedule topic. As in RocketMQ, only the queue offset in the result is
    that of the schedule queue.
    """
    async with hastore.open_master(config(tmp_path)) as master:
        for index in range(3):
            message = Message("orders", b"x", queue_id=5, properties={"DELAY": "2"})
            result = await master.put(message)
            assert result.status is Status.PUT_OK
            assert (result.topic, result.queue_id, result.queue_offset) == ("orders", 5, index)
        record = record_of(master, result)
        assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
        assert record.properties["REAL_TOPIC"] == "orders"
        assert record.properties["REAL_QID"] == "5"


@pytest.mark.parametrize(
    "message",
    [
        Message("SCHEDULE_TOPIC_XXXX", b"x"),
        Message("SCHEDULE_TOPIC_XXXX", b"x", properties={"DELAY": "1"}),
        Message("orders", b"x", properties={"DELAY": "soon"}),
        Message("orders", b"x", queue_id=-1, properties={"DELAY": "1"}),
        Message("orders", b"x", queue_id=2**31, properties={"DELAY": "1"}),
    ],
)
async def test_an_invalid_delayed_message_is_illegal(tmp_path, autojump_clock, message):
    """Producers may not use the schedule topic, a level is a number, and the queue id must be valid
    at the delivery.
    """
    async with hastore.open_master(config(tmp_path)) as master:
        result = await master.put(message)
        assert result.status is Status.MESSAGE_ILLEGAL
        assert "DELAY" in result.reason
        assert master.max_offset == 0


async def test_a_full_disk_refuses_puts_until_there_is_room(tmp_path, autojump_clock):
    """The answer has the given reason. A stopped master stays stopped when there is room again."""
    async with hastore.open_master(config(tmp_path)) as master:
        puts = master.put_message
        puts.set_disk_full("disk is 91 % full")
        result = await master.put(Message("orders", b"x"))
        assert result.status is Status.SERVICE_NOT_AVAILABLE
        assert result.reason == "disk is 91 % full"
        puts.set_disk_full(None)
        assert (await master.put(Message("orders", b"x"))).ok
        puts.set_disk_full("disk is 91 % full")
        puts.stop("the master is stopping")
        puts.set_disk_full(None)
        assert master.submit(Message("orders", b"x")).reason == "the master is stopping"
