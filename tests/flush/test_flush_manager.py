"""Flushing: one sync for all waiting puts, deadlines that hold, and errors that are final."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import FlushFailedError
from hastore.message import Message
from hastore.status import FlushDiskType, PutMessageStatus
from tests.flush.flush_world import World
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import sync_failed
from tests.support.store.open_log import FILE_SIZE, append, append_data, open_log

OK = PutMessageStatus.PUT_OK
TIMEOUT = PutMessageStatus.FLUSH_DISK_TIMEOUT


@pytest.fixture
def world():
    return World()


@pytest.fixture
async def running(world, nursery):
    nursery.start_soon(world.manager.run)
    await trio.testing.wait_all_tasks_blocked()
    return world


# -- SYNC_FLUSH ----------------------------------------------------------------------------------


async def test_a_put_is_released_once_its_bytes_are_synced(running, autojump_clock):
    """The next start after a power cut finds the record."""
    request = running.put()
    assert request.status is None
    assert await request.wait() is OK
    assert running.is_flushed
    after = running.disk.cut_power()
    assert open_log(fake_env(after)).max_offset == running.log.max_offset


async def test_puts_during_a_sync_share_the_next_one(running, autojump_clock):
    """25 puts during a slow sync need one more, not 25."""
    running.offload.hang()
    first = running.put()
    await trio.testing.wait_all_tasks_blocked()
    others = [running.put(0) for _ in range(25)]
    assert len({request.append_result.physic_offset // FILE_SIZE for request in others}) == 1
    running.offload.go_on()
    for request in (first, *others):
        assert await request.wait() is OK
    assert running.manager.pass_times.count == 2
    assert len(running.disk.syncs) == 2


async def test_a_roll_syncs_both_files_before_a_put_is_released(running, autojump_clock):
    """Without the old file, which ends with a BLANK, the log would have a hole."""
    first = running.put(3000)
    running.disk.syncs.clear()
    second = running.put(3000)
    assert [await request.wait() for request in (first, second)] == [OK, OK]
    names = [path[-20:] for path in running.disk.syncs]
    assert names == [f"{0:020d}", f"{FILE_SIZE:020d}"]


async def test_a_disk_that_hangs_delays_no_answer(running, autojump_clock):
    """FLUSH_DISK_TIMEOUT comes at each put's own deadline, whatever the disk does."""
    start = trio.current_time()
    running.offload.hang()
    first = running.put()
    await trio.sleep(2)
    second = running.put()
    assert await first.wait() is TIMEOUT
    assert trio.current_time() - start == pytest.approx(5)
    assert await second.wait() is TIMEOUT
    assert trio.current_time() - start == pytest.approx(7)
    assert "5000 ms" in first.reason
    assert running.manager.waiting == 0
    running.offload.go_on()
    await trio.testing.wait_all_tasks_blocked()
    assert running.is_flushed


async def test_a_late_sync_still_counts(running, autojump_clock):
    """The put that timed out stays timed out; the offset advances, and the next put succeeds."""
    running.offload.hang()
    late = running.put()
    assert await late.wait() is TIMEOUT
    running.offload.go_on()
    await trio.testing.wait_all_tasks_blocked()
    assert running.flushed == [running.log.max_offset]
    assert late.status is TIMEOUT
    assert await running.put().wait() is OK


async def test_a_flush_during_a_pass_covers_what_came_since(running, autojump_clock):
    """It waits for that pass, then makes one of its own; another caller shares it."""
    running.offload.hang()
    running.put()
    await trio.testing.wait_all_tasks_blocked()
    append(running.log)
    end, reached = running.log.max_offset, []

    async def flush():
        await running.manager.flush_all()
        reached.append(running.manager.flushed_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush)
        nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        assert not reached
        running.offload.go_on()
    assert reached == [end, end]
    assert len(running.disk.syncs) == 2


async def test_all_who_wait_for_a_pass_learn_that_it_failed(world, autojump_clock):
    """None of them syncs again."""
    world.put()
    world.offload.hang()
    world.disk.fail("sync", sync_failed(), times=1)
    failed = []

    async def flush():
        with pytest.raises(FlushFailedError):
            await world.manager.flush_all()
        failed.append(len(world.disk.syncs))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(flush)
        await trio.testing.wait_all_tasks_blocked()
        world.offload.go_on()
    assert failed == [1, 1, 1]
    assert len(world.failed) == 1


async def test_appends_without_a_waiting_put_are_synced_too(running, autojump_clock):
    """They come from WAIT=false, or from a slave's master."""
    append(running.log)
    running.manager.notify_appended()
    await trio.testing.wait_all_tasks_blocked()
    assert running.is_flushed


async def test_a_slave_with_sync_flush_syncs_what_it_copies(nursery, autojump_clock):
    """Therefore it can acknowledge only what is on its disk."""
    world = World(master=False)
    nursery.start_soon(world.manager.run)
    for offset in (0, 100, 200):
        append_data(world.log, offset, bytes(100))
        world.manager.notify_appended()
        await trio.testing.wait_all_tasks_blocked()
    assert world.flushed == [100, 200, 300]


async def test_an_idle_service_syncs_nothing(running, autojump_clock):
    """No timer runs without a put."""
    assert await running.put().wait() is OK
    syncs = len(running.disk.syncs)
    await trio.sleep(3600)
    assert len(running.disk.syncs) == syncs


@given(st.lists(st.sampled_from(["put", "hang", "go_on", "pass", "second"]), max_size=25))
def test_put_ok_always_survives_a_power_cut(steps):
    """The order of puts, hangs and passes is random; each put also keeps its deadline."""

    async def main():
        world = World()
        requests = []

        def check_durable(request):
            if request.status is OK:
                synced = world.disk.cut_power().files()
                seen = world.disk.files()
                end = request.append_result.next_offset
                assert b"".join(synced.values())[:end] == b"".join(seen.values())[:end]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.manager.run)
            for step in steps:
                if step == "put":
                    request = world.put(700)
                    request.on_done = check_durable
                    requests.append((trio.current_time(), request))
                elif step == "hang" and world.offload.gate is None:
                    world.offload.hang()
                elif step == "go_on" and world.offload.gate is not None:
                    world.offload.go_on()
                elif step == "pass":
                    await trio.testing.wait_all_tasks_blocked()
                elif step == "second":
                    await trio.sleep(1)
            for start, request in requests:
                status = await request.wait()
                assert status in (OK, TIMEOUT)
                assert trio.current_time() <= start + 25
                if status is TIMEOUT:
                    assert trio.current_time() >= start + 5
            if world.offload.gate is not None:
                world.offload.go_on()
            await trio.testing.wait_all_tasks_blocked()
            assert world.is_flushed
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


# -- an error of the disk ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(FlushDiskType))
async def test_a_failed_sync_ends_the_service_for_good(autojump_clock, kind):
    """The error comes out of ``run``; nothing is released, nothing is synced again."""
    world = World(kind)
    world.disk.fail("sync", sync_failed())
    requests = []

    async def fail_later():
        await trio.testing.wait_all_tasks_blocked()
        if kind is FlushDiskType.SYNC_FLUSH:
            requests.append(world.put())
        else:
            append(world.log)
            world.manager.notify_appended()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_later)
        with pytest.raises(FlushFailedError):
            await world.manager.run()
    world.disk.heal()  # the device works again; the kernel would now report success
    syncs = len(world.disk.syncs)
    with pytest.raises(FlushFailedError):
        await world.manager.flush_all()
    assert len(world.disk.syncs) == syncs
    assert world.manager.flushed_offset == 0
    assert all(request.status is None for request in requests)
    world.manager.fail_all(PutMessageStatus.UNKNOWN_ERROR, "the disk failed")
    assert all(request.status is PutMessageStatus.UNKNOWN_ERROR for request in requests)


async def test_roll_advances_no_offset_if_one_of_two_syncs_fails(world, autojump_clock):
    """The first file may be on disk, but the flushed offset does not say so."""
    append(world.log, Message("t", bytes(3000)))
    append(world.log, Message("t", bytes(3000)))
    calls = []

    def fail_the_second(file):
        calls.append(file.path)
        if len(calls) == 2:
            raise sync_failed(file.path)

    world.disk.before("sync", fail_the_second)
    with pytest.raises(FlushFailedError):
        await world.manager.flush_all()
    assert len(calls) == 2
    assert world.manager.flushed_offset == 0


# -- ASYNC_FLUSH ---------------------------------------------------------------------------------


@pytest.fixture
async def timed(nursery):
    world = World(FlushDiskType.ASYNC_FLUSH)
    nursery.start_soon(world.manager.run)
    await trio.testing.wait_all_tasks_blocked()
    return world


async def test_the_timer_syncs_half_a_second_after_an_append(timed, autojump_clock):
    """One pass covers everything that was appended meanwhile."""
    append(timed.log)
    timed.manager.notify_appended()
    await trio.sleep(0.4)
    append(timed.log)
    timed.manager.notify_appended()
    assert timed.manager.flushed_offset == 0
    await trio.sleep(0.2)
    assert timed.is_flushed
    assert timed.manager.pass_times.count == 1


async def test_a_busy_log_is_synced_each_interval(timed, autojump_clock):
    """Two syncs a second, however many appends, if four whole pages are dirty each time."""
    for _ in range(100):
        append(timed.log, Message("t", bytes(2000)))
        timed.manager.notify_appended()
        await trio.sleep(0.05)
    assert 8 <= timed.manager.pass_times.count <= 11


async def test_a_quiet_log_has_no_timer(timed, autojump_clock):
    """An hour without appends is an hour without a pass or a sync."""
    append(timed.log)
    timed.manager.notify_appended()
    await trio.sleep(2)
    passes, syncs = timed.manager.pass_times.count, len(timed.disk.syncs)
    await trio.sleep(3600)
    assert (timed.manager.pass_times.count, len(timed.disk.syncs)) == (passes, syncs)


async def test_async_flush_put_does_not_wait(timed, autojump_clock):
    """A put's FLUSH part is done at once."""
    assert timed.put().status is OK


# -- the end -------------------------------------------------------------------------------------


async def test_stop_flushes_and_answers_waiting_puts(world, autojump_clock):
    """The last flush syncs them after the service has ended."""
    request = world.put()
    await world.manager.flush_all()
    assert request.status is OK
    assert world.is_flushed
    world.log.close(clean=True)


async def test_stop_during_a_sync_waits_for_it(autojump_clock):
    """The sync's result is recorded, so the last flush does not repeat it."""
    world = World()
    world.offload.hang()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.manager.run)
        world.put()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        world.offload.go_on()
    assert world.is_flushed
    await world.manager.flush_all()
    assert len(world.disk.syncs) == 1


async def test_fail_all_answers_every_waiting_put(world, autojump_clock):
    """Each request gets the given status and reason."""
    requests = [world.put() for _ in range(3)]
    world.manager.fail_all(TIMEOUT, "the node stops")
    assert [(request.status, request.reason) for request in requests] == [
        (TIMEOUT, "the node stops")
    ] * 3
    assert world.manager.waiting == 0
