"""A pull that meets a unit of other bytes skips that unit alone, and answers records only."""

import struct

import pytest

from hastore.message import Message
from hastore.status import GetMessageStatus as Status
from hastore.store.queue import queue_read
from hastore.store.queue.unit import UNIT_SIZE
from hastore.store.queue.unit_check import UnitCheck
from hastore.store.record import message_codec
from hastore.store.record.message_filter import TagFilter
from tests.store.whole_store import config_of, dispatch, open_store
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, flush
from tests.support.store.store_reads import get_message

COUNT = 40
BAD = 7  # far before the units that a start checks
QUEUE = "/d/consumequeue/orders/0/00000000000000000000"
FILTERS = [None, TagFilter.parse("A"), TagFilter.parse("A || B")]


@pytest.fixture
async def disk():
    """The disk of a stopped store with forty messages in one queue."""
    disk = FakeDisk()
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    for number in range(COUNT):
        append(store.commit_log, order(number))
    service = await dispatch(env, store)
    flush(store.commit_log)
    store.redispatched_to = service.reput_offset
    store.checkpoint.flushed_offset = store.commit_log.flushed_offset
    store.close(clean=True)
    return disk


def order(number):
    return Message("orders", b"%d" % number, queue_id=0, properties={"TAGS": "A"})


def reopened(disk):
    return open_store(fake_env(disk), config_of(mapped_file_size=FILE_SIZE), master=False)


def unit_of(disk, number):
    at = number * UNIT_SIZE
    return struct.unpack(">qiq", disk.read_file(QUEUE)[at : at + UNIT_SIZE])


def write_unit(disk, number, physic_offset, size, tags_code):
    disk_file = disk.open_sparse_file(QUEUE, 1_000)
    disk_file.pwrite(struct.pack(">qiq", physic_offset, size, tags_code), number * UNIT_SIZE)
    disk_file.close()


def read(store, message_filter=None):
    """Return the queue offsets of the messages that a consumer reads."""
    offset, seen = 0, []
    while True:
        result = get_message(store, "orders", 0, offset, message_filter=message_filter)
        for place in result.ranges:
            message = message_codec.decode(store.commit_log.read(*place))
            assert message.topic == "orders"
            seen.append(message.queue_offset)
        assert result.next_begin_offset > offset or result.status is Status.OFFSET_OVERFLOW_ONE
        if result.next_begin_offset == offset:
            return seen
        offset = result.next_begin_offset


@pytest.mark.parametrize("message_filter", FILTERS, ids=["all", "one tag", "two tags"])
@pytest.mark.parametrize(
    "bad",
    ["inside a record", "another record", "another size", "beyond the log", "huge"],
)
async def test_only_the_bad_unit_is_skipped(disk, bad, message_filter):
    """RocketMQ's client would drop every message after it in the answer."""
    physic_offset, size, code = unit_of(disk, BAD)
    match bad:
        case "inside a record":
            physic_offset += 17
        case "another record":
            physic_offset, size, _ = unit_of(disk, 3)
        case "another size":
            size += 1
        case "beyond the log":
            physic_offset += 1_000_000
        case "huge":
            size = 2**31 - 2
    write_unit(disk, BAD, physic_offset, size, code)
    store = reopened(disk)
    assert read(store, message_filter) == [n for n in range(COUNT) if n != BAD]


async def test_a_read_checks_a_limited_number_of_bad_units(disk, monkeypatch):
    """The next read continues there, so a queue of bad units keeps no node busy."""
    monkeypatch.setattr(queue_read, "RECORDS_READ_MAX", 5)
    for number in range(COUNT - 20):
        write_unit(disk, number, 17, 100, 0)
    store = reopened(disk)
    result = get_message(store, "orders", 0, 0)
    assert (result.status, result.next_begin_offset) == (Status.NO_MATCHED_MESSAGE, 5)
    assert read(store) == list(range(COUNT - 20, COUNT))


async def test_units_of_this_run_are_not_checked(disk, monkeypatch):
    """Dispatch has just put them; so a consumer that keeps up costs no extra reads."""
    env = fake_env(disk)
    store = open_store(env, config_of(mapped_file_size=FILE_SIZE))
    append(store.commit_log, order(COUNT))
    service = await dispatch(env, store)
    checked = []
    names_record = UnitCheck.names_record

    def spy(self, unit, topic, queue_id, queue_offset):
        checked.append(queue_offset)
        return names_record(self, unit, topic, queue_id, queue_offset)

    monkeypatch.setattr(UnitCheck, "names_record", spy)
    get_message(store, "orders", 0, COUNT - 2)
    assert checked == [COUNT - 2, COUNT - 1]
    service.log_rewritten([])
    get_message(store, "orders", 0, COUNT)
    assert checked == [COUNT - 2, COUNT - 1, COUNT]
