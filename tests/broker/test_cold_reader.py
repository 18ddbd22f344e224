"""Reads far from the log's end run in a limited number of threads, others at once."""

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.groups.broker_data import BrokerData
from hastore.broker.port.request_processors import RequestProcessors
from hastore.broker.pulls.cold_reader import THREADS_MAX, ColdReader
from hastore.config import RemotingConfig, StoreConfig
from hastore.errors import DiskError
from hastore.store.log.cold_read import COLD_DISTANCE, ReadStep
from hastore.wire.remoting_codes import RequestCode
from hastore.wire.remoting_command import RemotingCommand
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.nodes.in_memory_target import InMemoryTarget
from tests.support.nodes.reading import pull_command

END = 10 * COLD_DISTANCE


@attrs.define
class Log:
    """The part of a log that the reader uses."""

    max_offset: int = END


@attrs.define
class Client:
    """The part of a connection that the processors use."""

    owner: str = "address 10.0.0.99"
    owner_of_offsets: str = owner


class BrokenStore:
    """A store whose reads need a thread, and fail there."""

    commit_log = Log()
    config = StoreConfig(data_dir="D")

    def get_message_steps(self, *_position, **_limits):
        """Read what a pull asks for."""

        def broken():
            raise DiskError("cannot read F: Input/output error", path="F")

        yield ReadStep(0, broken)

    offset_by_time_steps = get_message_steps


def reading(offload, offsets, seen):
    """A read of records at these offsets; returns the result of each step."""
    found = []
    for offset in offsets:

        def read(offset=offset):
            seen.append((offset, bool(offload.running)))
            return offset + 1

        found.append((yield ReadStep(offset, read)))
    return found


async def test_records_far_from_the_end_are_read_in_a_thread():
    """Each step is decided by its own distance, and its result goes back to the read."""
    offload, seen = FakeOffload(), []
    offsets = [0, END - COLD_DISTANCE, END - COLD_DISTANCE + 1, END]
    found = await ColdReader(offload).run(Log(), reading(offload, offsets, seen))
    assert found == [offset + 1 for offset in offsets]
    assert seen == list(zip(offsets, [True, True, False, False], strict=True))


async def test_recent_records_are_read_without_a_checkpoint():
    """No other task runs between the first step and the result: no message can arrive before a pull
    that found nothing is held.
    """
    offload, seen = FakeOffload(), []
    with trio.testing.assert_no_checkpoints():
        await ColdReader(offload).run(Log(), reading(offload, [END - 5, END], seen))
    assert len(seen) == 2


async def test_a_limited_number_of_reads_have_a_thread():
    """The others wait for their turn, so that a flush still finds a thread."""
    offload, seen = FakeOffload(), []
    reader = ColdReader(offload)
    offload.hang()
    async with trio.open_nursery() as nursery:
        for _ in range(3 * THREADS_MAX):
            nursery.start_soon(reader.run, Log(), reading(offload, [0], seen))
        await trio.testing.wait_all_tasks_blocked()
        assert offload.running == THREADS_MAX
        offload.go_on()
    assert len(seen) == 3 * THREADS_MAX


async def test_pulls_and_queries_share_the_limit():
    """Each kind of request has no threads of its own."""
    offload = FakeOffload()
    env, config = fake_env(offload=offload), RemotingConfig()
    target = InMemoryTarget(message_store=BrokenStore())
    processors = RequestProcessors(env, target, config, BrokerData.make(env, config, None))
    search = RemotingCommand(
        code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        ext_fields={"topic": "T", "queueId": "0", "timestamp": "0"},
    )
    offload.hang()
    async with trio.open_nursery() as nursery:
        for command in [pull_command(), search] * THREADS_MAX:
            nursery.start_soon(processors.process(command, Client()).make)
        await trio.testing.wait_all_tasks_blocked()
        threads = offload.running
        offload.go_on()
    assert threads == THREADS_MAX
    assert offload.runs == 2 * THREADS_MAX


async def test_a_disk_error_in_a_thread_reaches_the_reader():
    """It is raised as it would be without a thread."""
    offload = FakeOffload()
    with pytest.raises(DiskError):
        await ColdReader(offload).run(Log(), BrokenStore().get_message_steps())
    assert offload.running == 0
