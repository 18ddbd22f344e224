"""Expiry of consume queues and index with the log, without blocking the event loop."""

import attrs
import pytest
import trio
import trio.testing

from hastore.broker.expiry.clean_consume_queue_service import CleanConsumeQueueService
from hastore.config import StoreConfig
from hastore.errors import DiskError
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import FakeOffload
from tests.support.store.consume_queues import ROOT, all_units, flush, open_queues, put, unit
from tests.support.store.index_stores import fake_service, query_index
from tests.support.store.index_stores import flush as flush_index

INDEX = "/d/index/"


@attrs.define
class Log:
    """The part of a commit log that the service reads."""

    min_offset: int = 0


class Store:
    """Three queues of 25 units, and an index of five files."""

    def __init__(self):
        self.disk, self.offload = FakeDisk(), FakeOffload()
        self.disk.before("remove", self.check_thread)
        self.commit_log = Log()
        self.consume_queues = open_queues(self.disk)
        self.index_service = fake_service(self.disk, entries=20)
        for queue_id in range(3):
            put(self.consume_queues, 0, 25, queue_id=queue_id)
        for index in range(90):
            self.index_service.put("t", ["k"], index * 100, START_MS)
        self.index_service.commit()
        flush(self.consume_queues)
        while flush_index(self.index_service):
            self.index_service.commit()

    def check_thread(self, removal):
        assert self.offload.running, f"{removal.path} is removed on the event loop"

    def service(self):
        return CleanConsumeQueueService(self.offload, self, StoreConfig(data_dir="/d"))

    def names(self):
        return [name for name in self.disk.files(f"{ROOT}/") if name.startswith("t/0/")]

    def found(self):
        return query_index(self.index_service, "t", "k")


async def test_files_are_removed_in_a_thread(autojump_clock):
    """The oldest files of each queue and of the index go; the remaining entries are complete."""
    store = Store()
    store.commit_log.min_offset = 2_150
    assert await store.service().clean() == 3 * 2 + 1
    assert store.offload.runs == 3 * 2 + 2
    for queue in store.consume_queues:
        assert (queue.min_offset, queue.max_offset) == (22, 25)
        assert all_units(queue) == {index: unit(index) for index in range(22, 25)}
    assert store.found() == [index * 100 for index in range(89, 18, -1)]
    assert await store.service().clean() == 0


async def test_dispatch_continues_while_a_file_is_removed(autojump_clock):
    """Units and keys that arrive during the removal can be read."""
    store = Store()
    store.commit_log.min_offset = 2_150
    store.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.service().clean)
        await trio.testing.wait_all_tasks_blocked()
        put(store.consume_queues, 25, 45)
        store.index_service.put("t", ["k"], 9_000, START_MS)
        store.index_service.commit()
        flush(store.consume_queues)
        assert store.found()[0] == 9_000
        store.offload.go_on()
    assert all_units(store.consume_queues.find("t", 0)) == {n: unit(n) for n in range(22, 45)}
    assert store.names() == [f"t/0/{start:020d}" for start in (400, 600, 800)]


@pytest.mark.parametrize("dirty", [False, True])
async def test_a_file_that_cannot_be_removed_is_put_back(dirty, autojump_clock):
    """A restart finds it, it is flushed as before, and the next round removes it."""
    store = Store()
    queue = store.consume_queues.find("t", 0)
    if dirty:
        disk_file = store.consume_queues._files.open(queue.path, queue.files[0])
        store.consume_queues._files.mark_dirty(queue.path, queue.files[0], 0, 20)
        assert not disk_file.is_closed
    store.commit_log.min_offset = 2_150
    store.disk.fail("remove", DiskError("cannot remove F: Input/output error", path="F"))
    with pytest.raises(DiskError):
        await store.service().clean()
    assert [file.start for file in queue.files] == [0, 200, 400]
    assert (queue.min_offset, store.consume_queues.is_flushed) == (22, not dirty)
    assert len(flush(store.consume_queues)) == dirty
    assert store.consume_queues.is_flushed
    store.disk.heal()
    assert await store.service().clean() == 7
    assert store.names() == [f"t/0/{400:020d}"]


async def test_a_queue_that_restarts_meanwhile_gets_no_file_back(autojump_clock):
    """The queue continues far after its old files, so these are obsolete and removed."""
    store = Store()
    queue = store.consume_queues.find("t", 0)
    store.commit_log.min_offset = 2_500
    store.offload.hang()
    store.disk.fail("remove", DiskError("cannot remove F: Input/output error", path="F"))
    with pytest.RaisesGroup(DiskError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.service().clean)
            await trio.testing.wait_all_tasks_blocked()
            store.consume_queues.put("t", 0, 9_000_000, 9_000, 100, 5)
            store.offload.go_on()
    store.disk.heal()
    store.offload.running = 1
    store.consume_queues.commit()
    assert store.names() == [f"t/0/{9_000_000 * 20:020d}"]
    assert queue.units(9_000_000, 1) == [(9_000, 100, 5)]


async def test_an_index_file_stays_open_while_a_query_reads_it(autojump_clock):
    """It is unlinked at once and closed after the query."""
    store = Store()
    first = store.index_service.files[0]
    under_way = store.index_service.candidates("t", "k", 0, 2**62)
    assert next(under_way) == 8_900
    store.commit_log.min_offset = 2_150
    service = store.service()
    await service.clean()
    assert len(store.disk.files(INDEX)) == 4
    assert not first.disk_file.is_closed
    assert service._is_index_left()
    assert [*under_way][-1] == 0
    assert await service.clean() == 0
    assert first.disk_file.is_closed
    assert not service._is_index_left()


async def test_a_file_that_is_being_flushed_is_closed_by_the_flush(autojump_clock):
    """The service must not close it while another thread uses it."""
    store = Store()
    queue = store.consume_queues.find("t", 0)
    file = queue.files[0]
    store.consume_queues._files.mark_dirty(queue.path, file, 0, 20)
    (disk_file,) = store.consume_queues.dirty_files()
    store.commit_log.min_offset = 2_150
    await store.service().clean()
    assert not disk_file.is_closed
    disk_file.sync()
    store.consume_queues.mark_flushed([disk_file])
    assert disk_file.is_closed
    assert store.consume_queues.is_flushed


async def test_a_stop_before_the_removal_puts_the_files_back(autojump_clock):
    """A later round removes them."""
    store = Store()
    store.commit_log.min_offset = 2_150

    class Refusing:
        async def run(self, _call):
            await trio.sleep_forever()

    service = store.service()
    service.offload = Refusing()
    with trio.move_on_after(1):
        await service.clean()
    queue = store.consume_queues.find("t", 0)
    assert [file.start for file in queue.files] == [0, 200, 400]
    assert await store.service().clean() == 7
