"""The service that makes mapped files: ahead of need, one at a time, again once there is space."""

import pytest
import trio
import trio.testing

from hastore.errors import DiskFullError
from hastore.flush.allocate_mapped_file_service import RETRY_S, AllocateMappedFileService
from hastore.message import Message
from hastore.status import AppendMessageStatus
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeOffload, fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.store.open_log import FILE_SIZE, append, open_log


class World:
    """A log, its service, and their disk."""

    def __init__(self, *, master=True):
        self.disk, self.offload = FakeDisk(), FakeOffload()
        self.env = fake_env(self.disk, offload=self.offload)
        self.log = open_log(self.env, master=master)
        self.queue = self.log.mapped_file_queue
        self.service = AllocateMappedFileService(self.env, self.queue)

    def fill_half(self):
        while self.log.max_offset % FILE_SIZE < FILE_SIZE // 2:
            assert self.log.append_message(Message("t", b"")).status is AppendMessageStatus.PUT_OK


@pytest.fixture
async def world(nursery):
    made = World()
    nursery.start_soon(made.service.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def test_first_file_is_made_at_the_start(world, autojump_clock):
    """A master is ready before its first message comes."""
    assert world.queue.prepared.file_from_offset == 0
    assert world.service.last_error is None


async def test_next_file_is_made_when_the_last_is_half_full(world, autojump_clock):
    """The roll then finds it and waits for nothing."""
    world.fill_half()
    await trio.testing.wait_all_tasks_blocked()
    assert world.queue.prepared.file_from_offset == FILE_SIZE
    large = Message("t", bytes(3000))
    assert world.log.append_message(large).physic_offset == FILE_SIZE


async def test_empty_slaves_file_is_made_once_its_offset_is_known(nursery, autojump_clock):
    """The first bytes bring the offset; until then there is no file at all."""
    world = World(master=False)
    nursery.start_soon(world.service.run)
    await trio.testing.wait_all_tasks_blocked()
    assert world.disk.files() == {}
    assert not world.log.append_data(2 * FILE_SIZE, memoryview(b"x"))
    await world.service.wait_for_file()
    assert world.log.append_data(2 * FILE_SIZE, memoryview(b"x"))


async def test_wait_for_an_existing_file_returns_at_once(world, autojump_clock):
    """The same if no file is needed yet."""
    start = trio.current_time()
    await world.service.wait_for_file()
    assert trio.current_time() == start


async def test_waits_end_when_the_file_is_made(world, autojump_clock):
    """An append that found no file then succeeds."""
    world.offload.hang()
    world.fill_half()
    large = Message("t", bytes(3000))
    assert world.log.append_message(large).status is AppendMessageStatus.END_OF_FILE
    ended = []

    async def wait(name):
        await world.service.wait_for_file()
        ended.append(name)

    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(wait, name)
        await trio.testing.wait_all_tasks_blocked()
        assert ended == []
        world.offload.go_on()
    assert sorted(ended) == ["a", "b"]
    assert world.log.append_message(large).status is AppendMessageStatus.PUT_OK


async def test_full_disk_fails_each_wait_until_there_is_space(world, autojump_clock):
    """Each wait is a new attempt; the last error is kept until one succeeds."""
    error = disk_full()
    world.disk.fail("create_file", error)
    world.fill_half()
    await trio.testing.wait_all_tasks_blocked()
    assert world.service.last_error is error
    for _ in range(3):
        with pytest.raises(DiskFullError):
            await world.service.wait_for_file()
    assert append(world.log).status is AppendMessageStatus.PUT_OK  # this file has room
    world.disk.heal()
    await world.service.wait_for_file()
    assert world.service.last_error is None
    assert world.queue.prepared.file_from_offset == FILE_SIZE


async def test_cancelled_wait_does_not_end_the_attempt(world, autojump_clock):
    """The hanging attempt goes on, and its file is used."""
    world.offload.hang()
    world.fill_half()
    with trio.move_on_after(5) as scope:
        await world.service.wait_for_file()
    assert scope.cancelled_caught
    world.offload.go_on()
    await world.service.wait_for_file()
    assert world.queue.prepared is not None


async def test_stop_completes_the_running_attempt(autojump_clock):
    """No half-made file is left, and a clean close removes the prepared one."""
    world = World()
    world.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.service.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        world.offload.go_on()
    assert world.queue.prepared is not None
    world.log.close(clean=True)
    assert world.disk.files() == {}


async def test_a_failed_file_is_tried_again_without_a_put(world, autojump_clock):
    """So the node knows that it can store again; until then it says that it cannot."""
    world.disk.fail("create_file", disk_full())
    before = world.disk.counts["create_file"]
    world.fill_half()
    await trio.sleep(10.5 * RETRY_S)
    assert world.disk.counts["create_file"] == before + 11
    assert world.service.health.reason == str(world.service.last_error)
    world.disk.heal()
    await trio.sleep(RETRY_S)
    assert world.queue.prepared.file_from_offset == FILE_SIZE
    assert world.service.last_error is None
    assert world.service.health.can_store
