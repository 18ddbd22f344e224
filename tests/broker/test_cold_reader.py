"""Old records are read in a thread, new ones at once, and few at a time."""

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.pulls.cold_reader import THREADS_MAX, ColdReader
from hastore.errors import DiskError
from hastore.store.log.cold_read import COLD_DISTANCE, ReadStep
from tests.support.env.fake_env import FakeOffload

END = 10 * COLD_DISTANCE


@attrs.define
class Log:
    """As much of a log as is asked for."""

    max_offset: int = END


def reading(offload, offsets, seen):
    """A read of records at these offsets; gives what came of each."""
    found = []
    for offset in offsets:

        def read(offset=offset):
            seen.append((offset, bool(offload.running)))
            return offset + 1

        found.append((yield ReadStep(offset, read)))
    return found


async def test_what_lies_far_behind_the_end_is_read_in_a_thread():
    """A step at a time, each by its own distance; the answers come back to the read."""
    offload, seen = FakeOffload(), []
    offsets = [0, END - COLD_DISTANCE, END - COLD_DISTANCE + 1, END]
    found = await ColdReader(offload).run(Log(), reading(offload, offsets, seen))
    assert found == [offset + 1 for offset in offsets]
    assert seen == list(zip(offsets, [True, True, False, False], strict=True))


async def test_a_read_of_what_is_new_is_done_without_a_pause():
    """Nobody else runs between its first step and its result: a pull that found nothing is held."""
    offload, seen = FakeOffload(), []
    with trio.testing.assert_no_checkpoints():
        await ColdReader(offload).run(Log(), reading(offload, [END - 5, END], seen))
    assert len(seen) == 2


async def test_few_reads_have_a_thread_at_a_time():
    """The others wait for their turn, and a flush finds a thread."""
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


async def test_what_a_disk_does_not_give_is_the_readers_error():
    """As it is without a thread."""
    offload = FakeOffload()

    def broken():
        raise DiskError("cannot read F: Input/output error", path="F")

    def steps():
        yield ReadStep(0, broken)

    with pytest.raises(DiskError):
        await ColdReader(offload).run(Log(), steps())
    assert offload.running == 0
