"""Every status that a put can come to, each by its own condition, in virtual time."""

import pytest
import trio
import trio.testing

import hastore
from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType
from hastore.status import PutMessageStatus as Status
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.harness import master_config, messages


@pytest.fixture
def world():
    return RealFiles()


def async_master(path, **changes):
    return master_config(path, role=BrokerRole.ASYNC_MASTER, **changes)


def first_waiting_put(master):
    """Put into the first file until a put has to wait for the second; give that put."""
    while True:
        request = master.submit(messages(1)[0])
        if request.status is None:
            return request
        assert request.status is Status.PUT_OK


async def test_put_ok_names_the_place_of_the_record(tmp_path, autojump_clock, world):
    """PUT_OK comes with the offsets, the queue offset and the message id."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        first = await master.put(Message("orders", b"a", queue_id=3))
        second = await master.put(Message("orders", b"b", queue_id=3))
    assert first.status is second.status is Status.PUT_OK
    assert (first.physic_offset, first.queue_offset) == (0, 0)
    assert (second.physic_offset, second.queue_offset) == (first.next_offset, 1)
    assert second.message_id.endswith(f"{second.physic_offset:016X}")


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (Message("", b"x"), Status.MESSAGE_ILLEGAL),
        (Message("no spaces", b"x"), Status.MESSAGE_ILLEGAL),
        (Message("größe", b"x"), Status.MESSAGE_ILLEGAL),
        (Message("t" * 128, b"x"), Status.MESSAGE_ILLEGAL),
        (Message("orders", bytes(70_000)), Status.MESSAGE_ILLEGAL),
        (
            Message("orders", b"x", properties={"k": "v" * 32_767}),
            Status.PROPERTIES_SIZE_EXCEEDED,
        ),
    ],
)
async def test_what_cannot_be_stored_is_refused_and_changes_nothing(
    tmp_path, autojump_clock, world, message, status
):
    """An illegal message leaves neither bytes nor a queue offset behind."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        result = await master.put(message)
        assert (result.status, result.physic_offset) == (status, None)
        assert result.reason
        assert master.max_offset == 0
        assert (await master.put(Message("orders", b"x"))).queue_offset == 0


async def test_message_size_limit_is_the_bodys(tmp_path, autojump_clock, world):
    """A body of max_message_size is taken, one byte more is not."""
    config = async_master(tmp_path, store={"max_message_size": 1000})
    async with hastore.open_master(config, env=world.env) as master:
        assert (await master.put(Message("orders", bytes(1000)))).ok
        assert (await master.put(Message("orders", bytes(1001)))).status is Status.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("bodies", "reason"),
    [
        ([100_001], "the message is larger than max_message_size: 100001 bytes, at most 100000"),
        ([50_000, 50_001], "the batch is larger than max_message_size: 100001 bytes,"),
        ([66_000], "the message is larger than a mapped file takes: 66000 bytes and"),
        ([33_000, 33_000], "the batch is larger than a mapped file takes: 66000 bytes and"),
    ],
)
async def test_the_limit_that_a_message_exceeds_is_the_one_that_is_named(
    tmp_path, autojump_clock, world, bodies, reason
):
    """One can be configured, the other cannot: who sends must know which it is."""
    config = async_master(tmp_path, store={"max_message_size": 100_000})
    batch = [Message("orders", bytes(size)) for size in bodies]
    async with hastore.open_master(config, env=world.env) as master:
        put = master.put(batch[0]) if len(batch) == 1 else master.put_batch(batch)
        result = await put
        assert result.status is Status.MESSAGE_ILLEGAL
        assert result.reason.startswith(reason)
        assert master.max_offset == 0


async def test_no_next_file_in_time_is_create_mapped_file_failed(tmp_path, autojump_clock, world):
    """While the next file hangs, puts wait; at the deadline they are refused, and later heal."""
    config = async_master(tmp_path)
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        requests = [first_waiting_put(master), *[master.submit(m) for m in messages(2)]]
        begin = trio.current_time()
        assert {await request.wait() for request in requests} == {Status.CREATE_MAPPED_FILE_FAILED}
        assert trio.current_time() - begin == pytest.approx(5.0)
        world.offload.go_on()
        assert (await master.put(messages(1)[0])).ok


async def test_a_full_disk_refuses_at_once_and_heals(tmp_path, autojump_clock, world):
    """No space for the next file is CREATE_MAPPED_FILE_FAILED with the reason; then it goes on."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.disk.fail("create_file", DiskFullError("no space to create X", path="X"))
        begin = trio.current_time()
        request = first_waiting_put(master)
        assert await request.wait() is Status.CREATE_MAPPED_FILE_FAILED
        assert "no space" in request.reason
        assert trio.current_time() - begin < 1
        world.disk.heal()
        assert (await master.put(messages(1)[0])).ok


async def test_a_disk_without_room_for_the_first_file_is_told_at_the_start(
    tmp_path, autojump_clock, world
):
    """A master that could not store a single message does not start."""
    world.disk.fail("create_file", DiskFullError("no space to create X", path="X"))
    with pytest.raises(DiskFullError):
        async with hastore.open_master(async_master(tmp_path), env=world.env):
            pass


async def test_puts_behind_a_long_wait_for_a_file_are_os_page_cache_busy(
    tmp_path, autojump_clock, world
):
    """After a second of waiting newcomers are turned away; those that wait keep their place."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.offload.hang()
        waiting = [first_waiting_put(master), *[master.submit(m) for m in messages(4)]]
        await trio.sleep(0.9)
        patient = master.submit(messages(1)[0])
        await trio.sleep(0.2)
        assert master.submit(messages(1)[0]).status is Status.OS_PAGE_CACHE_BUSY
        world.offload.go_on()
        for request in [*waiting, patient]:
            assert await request.wait() is Status.PUT_OK
        offsets = [request.append_result.physic_offset for request in [*waiting, patient]]
        assert offsets == sorted(offsets)


async def test_waiting_puts_are_bounded(tmp_path, autojump_clock, world):
    """More than pending_put_max waiting puts are OS_PAGE_CACHE_BUSY whatever the time."""
    config = async_master(tmp_path, store={"pending_put_max": 2})
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        requests = [first_waiting_put(master), *[master.submit(m) for m in messages(2)]]
        assert [request.status for request in requests] == [None, None, Status.OS_PAGE_CACHE_BUSY]
        world.offload.go_on()
        assert await requests[1].wait() is Status.PUT_OK


async def test_puts_over_file_ends_keep_their_order(tmp_path, autojump_clock, world):
    """A thousand non-waiting puts over several files are stored in the order they came."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        requests = [master.submit(message) for message in messages(1500)]
        for request in requests:
            assert await request.wait() is Status.PUT_OK
        offsets = [request.append_result.physic_offset for request in requests]
        assert offsets == sorted(set(offsets))
        by_queue = [r.append_result.queue_offset for r in requests if r.queue_id == 1]
        assert by_queue == list(range(len(by_queue)))
        assert master.status().mapped_files > 3


async def test_a_slow_disk_is_flush_disk_timeout_at_the_deadline(tmp_path, autojump_clock, world):
    """Whatever the disk does, the answer comes at the deadline, and the record stays."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config, env=world.env) as master:
        assert (await master.put(messages(1)[0])).ok
        world.offload.hang()
        begin = trio.current_time()
        results = []

        async def put(after):
            await trio.sleep(after)
            results.append((await master.put(messages(1)[0]), trio.current_time() - begin))

        async with trio.open_nursery() as nursery:
            for after in (0, 2):
                nursery.start_soon(put, after)
        assert [result.status for result, _ in results] == [Status.FLUSH_DISK_TIMEOUT] * 2
        assert [at for _, at in results] == [pytest.approx(5.0), pytest.approx(7.0)]
        assert results[1][0].next_offset == master.max_offset
        world.offload.go_on()
        assert (await master.put(messages(1)[0])).ok


async def test_one_sync_serves_all_that_wait(tmp_path, autojump_clock, world):
    """Requests that arrive together share one fdatasync."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config, env=world.env) as master:
        await master.put(messages(1)[0])
        before = len(world.disk.syncs)
        requests = [master.submit(message) for message in messages(64)]
        for request in requests:
            assert await request.wait() is Status.PUT_OK
        assert len(world.disk.syncs) - before <= 2


async def test_a_failed_sync_is_fail_stop(tmp_path, autojump_clock, world):
    """After a failed fdatasync what waits is UNKNOWN_ERROR, nothing is taken, and run raises."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    results = []
    with pytest.raises(FlushFailedError, match="on purpose"):  # noqa: PT012 - the block fails
        async with hastore.open_master(config, env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            world.disk.fail("sync", FlushFailedError("on purpose", path="X"))
            request = master.submit(messages(1)[0])
            with trio.CancelScope(shield=True):
                results.append(await request.wait())
            results.append(master.submit(messages(1)[0]).status)
            await trio.sleep_forever()
    assert results == [Status.UNKNOWN_ERROR, Status.SERVICE_NOT_AVAILABLE]
    assert (tmp_path / "abort").exists()


async def test_nothing_is_acknowledged_after_a_failed_sync(tmp_path, autojump_clock, world):
    """From the step on in which a sync fails no put and no slave's ack becomes PUT_OK."""
    config = async_master(tmp_path)
    statuses = []
    with pytest.raises(FlushFailedError):  # noqa: PT012 - the block fails
        async with hastore.open_master(config, env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            world.disk.fail("sync", FlushFailedError("on purpose", path="X"))
            with trio.CancelScope(shield=True):
                for _ in range(20):
                    await trio.sleep(0.1)
                    statuses.append(master.submit(messages(1)[0]).status)
            await trio.sleep_forever()
    assert statuses[-1] is Status.SERVICE_NOT_AVAILABLE
    failed_at = statuses.index(Status.SERVICE_NOT_AVAILABLE)
    assert set(statuses[failed_at:]) == {Status.SERVICE_NOT_AVAILABLE}


async def test_a_failed_last_flush_makes_the_stop_an_error(tmp_path, autojump_clock, world):
    """A stop that could not flush raises and leaves ``abort``: it was not a clean one."""
    with pytest.raises(FlushFailedError, match="on purpose"):  # noqa: PT012 - the end of the block fails
        async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            world.disk.fail("sync", FlushFailedError("on purpose", path="X"))
    assert (tmp_path / "abort").exists()


async def test_a_disk_that_hangs_at_the_stop_keeps_no_producer_waiting(
    tmp_path, autojump_clock, world
):
    """What waits for the disk is answered three seconds into the stop, whatever the disk does."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    answers = []
    async with trio.open_nursery() as nursery:
        async with hastore.open_master(config, env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            world.offload.hang()

            async def put():
                answers.append(((await master.put(messages(1)[0])).status, trio.current_time()))
                world.offload.go_on()

            nursery.start_soon(put)
            await trio.sleep(0.1)
            stop_began = trio.current_time()
    assert answers == [(Status.FLUSH_DISK_TIMEOUT, pytest.approx(stop_began + 3, abs=0.01))]


@pytest.mark.parametrize("inner", [{"sys_flag": 0x80}, {"properties": {"INNER_NUM": "9" * 5000}}])
async def test_inner_batches_are_illegal(tmp_path, autojump_clock, world, inner):
    """A record that claims to hold a batch would skew its queue's offsets: RocketMQ refuses it."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        assert (await master.put(Message("orders", b"x"))).ok
        assert (await master.put(Message("orders", b"x", **inner))).status is Status.MESSAGE_ILLEGAL
        batch = [Message("orders", b"x", **inner)]
        assert (await master.put_batch(batch)).status is Status.MESSAGE_ILLEGAL


async def test_puts_that_wait_are_bounded_in_bytes(tmp_path, autojump_clock, world):
    """Bodies that wait for the next file take a bounded amount of memory."""
    config = async_master(tmp_path, store={"pending_put_size_max": 1000})
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        first = first_waiting_put(master)
        later = [master.submit(m) for m in messages(10, size=400)]
        assert [r.status for r in later].count(Status.OS_PAGE_CACHE_BUSY) == 8
        world.offload.go_on()
        for request in [first, *later[:2]]:
            assert await request.wait() is Status.PUT_OK


async def test_a_stopped_master_is_service_not_available(tmp_path, autojump_clock, world):
    """A master that has stopped takes nothing, and what waited for a file was not stored."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.offload.hang()
        waiting = first_waiting_put(master)
        world.offload.go_on()
        master.put_message.stop("the master is stopping")
        assert waiting.status is Status.SERVICE_NOT_AVAILABLE
        assert master.submit(messages(1)[0]).status is Status.SERVICE_NOT_AVAILABLE


async def test_a_batch_is_consecutive_records_with_one_answer(tmp_path, autojump_clock, world):
    """A batch's records follow each other in the log and in their queue."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        await master.put(Message("orders", b"x"))
        result = await master.put_batch([Message("orders", bytes([i])) for i in range(10)])
        assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, 10)
        assert result.next_offset == master.max_offset
        assert len(result.message_id.split(",")) == 10


@pytest.mark.parametrize(
    "batch",
    [
        [],
        [Message("a", b"x"), Message("b", b"x")],
        [Message("a", b"x"), Message("a", b"x", queue_id=1)],
        [Message("a", b"x", properties={"DELAY": "3"})],
        [Message("a", b"x", sys_flag=4)],
        [Message("a b", b"x")],
    ],
)
async def test_a_batch_that_cannot_be_one_is_illegal(tmp_path, autojump_clock, world, batch):
    """Mixed topics or queues, delayed and transactional messages are no batch."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        assert (await master.put_batch(batch)).status is Status.MESSAGE_ILLEGAL
        assert master.max_offset == 0


async def test_a_cancelled_put_stays_in_the_log(tmp_path, autojump_clock, world):
    """Giving up the wait does not undo the append."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config, env=world.env) as master:
        await master.put(messages(1)[0])
        world.offload.hang()
        before = master.max_offset
        with trio.move_on_after(1) as scope:
            await master.put(messages(1)[0])
        assert scope.cancelled_caught
        assert master.max_offset > before
        world.offload.go_on()


async def test_a_batch_whose_write_fails_stops_the_master(tmp_path, autojump_clock, world):
    """Nobody knows what is on that disk: the batch is unknown, and nothing more is taken."""
    told = "cannot write F: Input/output error"

    async def write():
        async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
            batch = [Message("orders", b"of three") for _ in range(3)]
            await master.put(Message("orders", b"first"))
            world.disk.fail("pwrite", DiskError(told, path="F"))
            failed, later = master.submit_batch(batch), master.submit_batch(batch)
            assert (failed.status, failed.reason) == (Status.UNKNOWN_ERROR, told)
            assert later.status is Status.SERVICE_NOT_AVAILABLE
            assert later.reason == f"this master has stopped: {told}"
            await trio.sleep_forever()

    with pytest.raises(DiskError, match=told):
        await write()


async def test_a_batch_without_room_is_unknown_and_the_next_is_taken(
    tmp_path, autojump_clock, world
):
    """A file with holes on a full disk: the log ends where it ended, and there may be room."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        batch = [Message("orders", b"of three") for _ in range(3)]
        await master.put(Message("orders", b"first"))
        end = master.max_offset
        world.disk.fail("pwrite", DiskFullError("cannot write F: no room", path="F"))
        failed = await master.put_batch(batch)
        assert (failed.status, failed.reason) == (Status.UNKNOWN_ERROR, "cannot write F: no room")
        assert master.max_offset == end
        world.disk.heal()
        assert (await master.put_batch(batch)).queue_offset == 1
