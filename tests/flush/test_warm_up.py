"""Warm-up of the next file: every page touched, synced on the way, locked where allowed."""

import resource
import threading
import time
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from hastore.config import MIB, StoreConfig
from hastore.env.interface import PAGE_SIZE
from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
from hastore.flush.warm_up import PIECE_SIZE, WarmUp
from hastore.status import FlushDiskType
from hastore.store.log.mapped_file import MappedFile
from hastore.store.log.mapped_file_queue import MappedFileQueue
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeMemory, FakeOffload, fake_env
from tests.support.store.open_log import FILE_SIZE, append, flush, open_log

SIZE = 5 * MIB // 2
PIECES = [(0, PIECE_SIZE), (PIECE_SIZE, PIECE_SIZE), (2 * PIECE_SIZE, SIZE % PIECE_SIZE)]


def config(flush_disk_type=FlushDiskType.ASYNC_FLUSH, **changes):
    return StoreConfig(
        data_dir="/d", warm_mapped_file_enable=True, flush_disk_type=flush_disk_type, **changes
    )


def new_file(disk, size=SIZE):
    return MappedFile(0, size, disk.create_file("/d/f", size))


def test_every_page_is_touched_in_pieces():
    """No other thread waits long for the kernel's lock on the address space."""
    memory = FakeMemory()
    file = new_file(FakeDisk())
    WarmUp(memory, config()).warm(file)
    touched = [call[1:] for call in memory.calls if call[0] == "populate"]
    assert touched == PIECES
    assert memory.calls[-2:] == [("lock", SIZE), ("will_need", SIZE)]
    assert file.is_locked


def test_zeros_are_written_if_the_kernel_cannot_populate():
    """The kernel is asked once, and the file still holds only zeros."""
    disk, memory = FakeDisk(), FakeMemory(populate_refusal="madvise: Invalid argument")
    file = new_file(disk)
    written = []
    disk.before("pwrite", lambda write: written.append((write.position, write.size)))
    WarmUp(memory, config()).warm(file)
    assert [call for call in memory.calls if call[0] == "populate"] == [("populate", 0, PIECE_SIZE)]
    assert written == PIECES
    assert file.disk_file.pread(SIZE, 0) == bytes(SIZE)


@pytest.mark.parametrize(("pages", "syncs"), [(256, 3), (512, 2), (4096, 1)])
def test_sync_flush_syncs_during_the_warm_up(pages, syncs):
    """Otherwise the first put's sync would wait for a file full of zeros."""
    disk = FakeDisk()
    warm_up = WarmUp(
        FakeMemory(),
        config(FlushDiskType.SYNC_FLUSH, flush_least_pages_when_warm_mapped_file=pages),
    )
    warm_up.warm(new_file(disk))
    assert len(disk.syncs) == syncs


def test_async_flush_syncs_nothing_during_the_warm_up():
    """No put waits for the disk, so the kernel may write the zeros at any time."""
    disk = FakeDisk()
    WarmUp(FakeMemory(), config()).warm(new_file(disk))
    assert disk.syncs == []


def test_refused_memory_lock_is_one_warning(caplog):
    """It names the limit to raise; the files are used unlocked, without a second attempt."""
    memory = FakeMemory(refusal="mlock: Cannot allocate memory (raise ulimit -l)")
    warm_up = WarmUp(memory, config())
    for name in "abc":
        disk = FakeDisk()
        file = MappedFile(0, SIZE, disk.create_file(f"/d/{name}", SIZE))
        warm_up.warm(file)
        assert not file.is_locked
    assert caplog.text.count("mapped_files_not_locked") == 1
    assert "ulimit -l" in caplog.text
    assert [call for call in memory.calls if call[0] == "lock"] == [("lock", SIZE)]


# -- the service ---------------------------------------------------------------------------------


class World:
    """A log, the service that warms up its files, and the calls that reach memory."""

    def __init__(self, **changes):
        self.disk, self.offload, self.memory = FakeDisk(), FakeOffload(), FakeMemory()
        env = fake_env(self.disk, offload=self.offload, memory=self.memory)
        self.log = open_log(env)
        self.queue = self.log.mapped_file_queue
        self.service = AllocateMappedFileService(env, self.queue, config(**changes))

    async def fill_file(self):
        """Append until the log has one more file."""
        count = len(self.queue.files)
        while len(self.queue.files) == count:
            append(self.log, body=bytes(600))
            await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def world(nursery):
    made = World()
    nursery.start_soon(made.service.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


async def test_a_file_is_warm_before_it_is_handed_over(world, autojump_clock):
    """The first append finds every page in memory."""
    assert world.queue.prepared.is_locked
    assert ("populate", 0, FILE_SIZE) in world.memory.calls


async def test_full_file_is_unlocked_after_the_roll(world, autojump_clock):
    """At most three are locked: the current one, the next, and for a moment the last."""
    for _ in range(6):
        await world.fill_file()
    locked = [file.is_locked for file in world.queue.files]
    assert locked == [False] * (len(locked) - 1) + [True]
    assert len(world.memory.locked) <= 2


async def test_a_file_that_cannot_be_warmed_up_is_removed_and_made_again(nursery, autojump_clock):
    """It counts as a failed creation: waits fail, and the next attempt starts again."""
    world = World(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    error = DiskError("no", path="/d/f")
    world.disk.fail("sync", error)
    nursery.start_soon(world.service.run)
    await trio.testing.wait_all_tasks_blocked()
    assert world.service.last_error is error
    assert world.disk.files() == {}
    world.disk.heal()
    await world.service.wait_for_file()
    assert world.queue.prepared.is_locked


async def test_without_the_setting_nothing_is_touched(nursery, autojump_clock):
    """It is off by default, as in RocketMQ."""
    world = World()
    world.service = AllocateMappedFileService(world.service.env, world.queue)
    nursery.start_soon(world.service.run)
    await trio.testing.wait_all_tasks_blocked()
    assert world.queue.prepared is not None
    assert world.memory.calls == []


async def test_old_files_are_unmapped_and_still_readable(world, autojump_clock):
    """A full and flushed file with two others after it keeps only its descriptor."""
    for _ in range(5):
        await world.fill_file()
    flush(world.log)
    await world.fill_file()
    files = world.queue.files
    mapped = [file.disk_file.buffer is not None for file in files]
    assert mapped == [False] * (len(files) - 2) + [True, True]
    data = world.log.read(0, FILE_SIZE)
    with files[0].view[0:FILE_SIZE] as view:
        assert view == data
    assert any(data)
    world.log.close(clean=False)


async def test_a_file_that_is_not_flushed_keeps_its_map(world, autojump_clock):
    """Its bytes are still on their way to the disk."""
    for _ in range(5):
        await world.fill_file()
    assert all(file.disk_file.buffer is not None for file in world.queue.files)


async def test_map_in_use_is_released_by_a_later_roll(world, autojump_clock):
    """A slave may be receiving bytes from it."""
    await world.fill_file()
    held = world.queue.files[0].view[0:100]
    for _ in range(3):
        await world.fill_file()
    flush(world.log)
    await world.fill_file()
    first = world.queue.files[0].disk_file
    assert first.buffer is not None
    assert any(held)
    held.release()
    await world.fill_file()
    assert first.buffer is None


# -- the real kernel -----------------------------------------------------------------------------


def test_the_kernel_touches_and_locks_real_pages(tmp_path):
    """After the warm-up appends cause almost no page faults, and VmLck counts the file."""
    env = real_env()
    size = 8 * MIB
    file = MappedFile(0, size, env.disk.create_file(str(tmp_path / "f"), size))
    warm_up = WarmUp(env.memory, config())
    warm_up.warm(file)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for position in range(0, size, PAGE_SIZE):
        file.append_view[position] = 1
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    if warm_up._can_populate:
        assert faults < size // PAGE_SIZE // 10
    if warm_up.lock_refusal is None:
        assert locked_kib() >= size // 1024
        warm_up.cool(file)
        assert locked_kib() < size // 1024
    else:
        assert "mlock" in warm_up.lock_refusal
    file.close()


def locked_kib():
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmLck:"))


def test_anonymous_memory_is_zeroed_and_can_be_unlocked():
    """Write buffers are made of it."""
    memory = real_env().memory
    buffer = memory.anonymous(MIB)
    assert not any(buffer[:100])
    refusal = memory.lock(buffer)
    assert refusal is None or "mlock" in refusal
    assert memory.unlock(buffer) is None
    buffer.close()


async def test_the_event_loop_runs_while_a_file_is_warmed_up(tmp_path):
    """Neither touching nor locking holds the GIL, so no turn of the loop takes long."""
    env = real_env()
    size = 256 * MIB
    threads = []

    class MemorySpy:
        """Records the threads in which memory is touched."""

        def __getattr__(self, name):
            return getattr(env.memory, name)

        def populate(self, buffer, position, size):
            threads.append(threading.current_thread())
            return env.memory.populate(buffer, position, size)

    queue = MappedFileQueue(env.disk, str(tmp_path), size, 0)
    service = AllocateMappedFileService(attrs.evolve(env, memory=MemorySpy()), queue, config())
    longest = turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        began = time.perf_counter()
        while queue.prepared is None:
            turn = time.perf_counter()
            await trio.sleep(0.001)
            longest, turns = max(longest, time.perf_counter() - turn), turns + 1
        took = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    assert threading.main_thread() not in threads
    assert len(threads) == size // PIECE_SIZE
    assert turns >= 10
    assert longest < max(0.1, took / 2)
    queue.close(remove_prepared=True)
