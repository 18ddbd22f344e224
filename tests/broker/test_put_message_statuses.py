"""The condition that leads to each put status, in virtual time."""

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
    """Fill the first file and return the first put that has to wait for the second."""
    while True:
        request = master.submit(messages(1)[0])
        if request.status is None:
            return request
        assert request.status is Status.PUT_OK


async def test_put_ok_returns_the_offsets_and_the_message_id(tmp_path, autojump_clock, world):
    """The message id ends with the physical offset."""
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
async def test_an_illegal_message_is_refused_and_changes_nothing(
    tmp_path, autojump_clock, world, message, status
):
    """It takes up neither bytes nor a queue offset."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        result = await master.put(message)
        assert (result.status, result.physic_offset) == (status, None)
        assert result.reason
        assert master.max_offset == 0
        assert (await master.put(Message("orders", b"x"))).queue_offset == 0


async def test_max_message_size_limits_the_body(tmp_path, autojump_clock, world):
    """A body of that size is accepted, one byte more is not."""
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
async def test_the_reason_names_the_exceeded_limit(tmp_path, autojump_clock, world, bodies, reason):
    """One limit can be configured and the other cannot: a sender must know which it is."""
    config = async_master(tmp_path, store={"max_message_size": 100_000})
    batch = [Message("orders", bytes(size)) for size in bodies]
    async with hastore.open_master(config, env=world.env) as master:
        put = master.put(batch[0]) if len(batch) == 1 else master.put_batch(batch)
        result = await put
        assert result.status is Status.MESSAGE_ILLEGAL
        assert result.reason.startswith(reason)
        assert master.max_offset == 0


async def test_puts_without_a_next_file_are_create_mapped_file_failed(
    tmp_path, autojump_clock, world
):
    """They wait until their deadline; puts succeed again once the file exists."""
    config = async_master(tmp_path)
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        requests = [first_waiting_put(master), *[master.submit(m) for m in messages(2)]]
        begin = trio.current_time()
        assert {await request.wait() for request in requests} == {Status.CREATE_MAPPED_FILE_FAILED}
        assert trio.current_time() - begin == pytest.approx(5.0)
        world.offload.go_on()
        assert (await master.put(messages(1)[0])).ok


async def test_a_full_disk_refuses_puts_at_once_until_it_has_room(tmp_path, autojump_clock, world):
    """Without space for the next file puts are CREATE_MAPPED_FILE_FAILED, with the reason."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.disk.fail("create_file", DiskFullError("no space to create X", path="X"))
        begin = trio.current_time()
        request = first_waiting_put(master)
        assert await request.wait() is Status.CREATE_MAPPED_FILE_FAILED
        assert "no space" in request.reason
        assert trio.current_time() - begin < 1
        world.disk.heal()
        assert (await master.put(messages(1)[0])).ok


async def test_a_start_without_room_for_the_first_file_fails(tmp_path, autojump_clock, world):
    """A master that could not store a single message does not start."""
    world.disk.fail("create_file", DiskFullError("no space to create X", path="X"))
    with pytest.raises(DiskFullError):
        async with hastore.open_master(async_master(tmp_path), env=world.env):
            pass


async def test_puts_after_a_long_wait_for_a_file_are_os_page_cache_busy(
    tmp_path, autojump_clock, world
):
    """After a second new puts are refused; those that wait already keep their place."""
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


async def test_the_number_of_waiting_puts_is_bounded(tmp_path, autojump_clock, world):
    """Above pending_put_max they are OS_PAGE_CACHE_BUSY at once."""
    config = async_master(tmp_path, store={"pending_put_max": 2})
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        requests = [first_waiting_put(master), *[master.submit(m) for m in messages(2)]]
        assert [request.status for request in requests] == [None, None, Status.OS_PAGE_CACHE_BUSY]
        world.offload.go_on()
        assert await requests[1].wait() is Status.PUT_OK


async def test_puts_across_file_ends_keep_their_order(tmp_path, autojump_clock, world):
    """1500 puts that do not wait for each other are stored in several files."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        requests = [master.submit(message) for message in messages(1500)]
        for request in requests:
            assert await request.wait() is Status.PUT_OK
        offsets = [request.append_result.physic_offset for request in requests]
        assert offsets == sorted(set(offsets))
        by_queue = [r.append_result.queue_offset for r in requests if r.queue_id == 1]
        assert by_queue == list(range(len(by_queue)))
        assert master.status().mapped_files > 3


async def test_a_hanging_flush_is_flush_disk_timeout_at_the_deadline(
    tmp_path, autojump_clock, world
):
    """Each put has its own deadline, and its record stays in the log."""
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


async def test_one_sync_serves_all_waiting_puts(tmp_path, autojump_clock, world):
    """Requests that arrive together share an fdatasync."""
    config = async_master(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    async with hastore.open_master(config, env=world.env) as master:
        await master.put(messages(1)[0])
        before = len(world.disk.syncs)
        requests = [master.submit(message) for message in messages(64)]
        for request in requests:
            assert await request.wait() is Status.PUT_OK
        assert len(world.disk.syncs) - before <= 2


async def test_a_failed_sync_stops_the_master(tmp_path, autojump_clock, world):
    """Waiting puts are UNKNOWN_ERROR, later ones are refused, and the node raises the error."""
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


async def test_all_puts_are_refused_after_a_failed_sync(tmp_path, autojump_clock, world):
    """No put is PUT_OK from the failure on."""
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


async def test_a_failed_last_flush_makes_the_stop_raise(tmp_path, autojump_clock, world):
    """The ``abort`` file remains, because the stop was not clean."""
    with pytest.raises(FlushFailedError, match="on purpose"):  # noqa: PT012 - its end fails
        async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
            assert (await master.put(messages(1)[0])).ok
            world.disk.fail("sync", FlushFailedError("on purpose", path="X"))
    assert (tmp_path / "abort").exists()


async def test_puts_are_answered_if_the_disk_hangs_at_the_stop(tmp_path, autojump_clock, world):
    """They are FLUSH_DISK_TIMEOUT three seconds after the stop began."""
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
    """A record that claims to hold a batch would skew its queue's offsets; RocketMQ refuses it."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        assert (await master.put(Message("orders", b"x"))).ok
        assert (await master.put(Message("orders", b"x", **inner))).status is Status.MESSAGE_ILLEGAL
        batch = [Message("orders", b"x", **inner)]
        assert (await master.put_batch(batch)).status is Status.MESSAGE_ILLEGAL


async def test_the_bytes_of_waiting_puts_are_bounded(tmp_path, autojump_clock, world):
    """Bodies that wait for the next file take a limited amount of memory."""
    config = async_master(tmp_path, store={"pending_put_size_max": 1000})
    async with hastore.open_master(config, env=world.env) as master:
        world.offload.hang()
        first = first_waiting_put(master)
        later = [master.submit(m) for m in messages(10, size=400)]
        assert [r.status for r in later].count(Status.OS_PAGE_CACHE_BUSY) == 8
        world.offload.go_on()
        for request in [first, *later[:2]]:
            assert await request.wait() is Status.PUT_OK


async def test_a_stopped_master_answers_service_not_available(tmp_path, autojump_clock, world):
    """A put that waited for a file is not stored, and new ones are refused."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.offload.hang()
        waiting = first_waiting_put(master)
        world.offload.go_on()
        master.put_message.stop("the master is stopping")
        assert waiting.status is Status.SERVICE_NOT_AVAILABLE
        assert master.submit(messages(1)[0]).status is Status.SERVICE_NOT_AVAILABLE


async def test_a_batch_is_stored_in_a_row_with_one_answer(tmp_path, autojump_clock, world):
    """Its records follow each other in the log and in their queue."""
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
async def test_an_invalid_batch_is_illegal(tmp_path, autojump_clock, world, batch):
    """A batch has one topic and one queue, and no delayed or transactional messages."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        assert (await master.put_batch(batch)).status is Status.MESSAGE_ILLEGAL
        assert master.max_offset == 0


async def test_a_cancelled_put_stays_in_the_log(tmp_path, autojump_clock, world):
    """Cancelling the wait does not undo the append."""
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


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_put_whose_write_fails_stops_the_master(tmp_path, autojump_clock, world, flush):
    """What reached the disk is unknown: UNKNOWN_ERROR; later puts are refused.

    With SYNC_FLUSH single messages are written, too; else they are stored through the map.
    """
    reason = "cannot write F: Input/output error"

    async def write():
        config = async_master(tmp_path, store={"flush_disk_type": flush})
        async with hastore.open_master(config, env=world.env) as master:
            batch = [Message("orders", b"of three") for _ in range(3)]
            await master.put(Message("orders", b"first"))
            world.disk.fail("pwrite", DiskError(reason, path="F"))
            if flush is FlushDiskType.SYNC_FLUSH:
                failed, later = master.submit(batch[0]), master.submit(batch[1])
            else:
                failed, later = master.submit_batch(batch), master.submit_batch(batch)
            assert (failed.status, failed.reason) == (Status.UNKNOWN_ERROR, reason)
            assert later.status is Status.SERVICE_NOT_AVAILABLE
            assert later.reason == f"this master has stopped: {reason}"
            await trio.sleep_forever()

    with pytest.raises(DiskError, match=reason):
        await write()


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_a_put_on_a_full_disk_is_unknown_and_a_later_one_stored(
    tmp_path, autojump_clock, world, flush
):
    """A sparse file may find no room: the log keeps its end, and there may be room later."""
    config = async_master(tmp_path, store={"flush_disk_type": flush})
    async with hastore.open_master(config, env=world.env) as master:
        batch = [Message("orders", b"of three") for _ in range(3)]
        await master.put(Message("orders", b"first"))
        end = master.max_offset
        world.disk.fail("pwrite", DiskFullError("cannot write F: no room", path="F"))
        if flush is FlushDiskType.SYNC_FLUSH:
            failed = await master.put(batch[0])
        else:
            failed = await master.put_batch(batch)
        assert (failed.status, failed.reason) == (Status.UNKNOWN_ERROR, "cannot write F: no room")
        assert master.max_offset == end
        world.disk.heal()
        assert (await master.put_batch(batch)).queue_offset == 1


async def test_too_few_in_sync_replicas_refuse_puts_before_they_are_written(
    tmp_path, autojump_clock, world
):
    """With RocketMQ's remark, and the reason behind it; whether the put waits or not."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        puts = master.put_message
        puts.set_not_in_sync("the SyncStateSet is node 1 only")
        for request in (
            master.submit(Message("orders", b"x")),
            master.submit(Message("orders", b"x", properties={"WAIT": "false"})),
            master.submit_batch([Message("orders", b"x")] * 2),
        ):
            assert request.status is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
            assert request.reason.startswith("in-sync replicas not enough: the SyncStateSet is")
            assert not request.status.stored
        assert master.max_offset == 0
        puts.set_not_in_sync(None)
        assert (await master.put(messages(1)[0])).ok


async def test_a_put_that_waits_for_a_file_is_refused_when_its_turn_comes(
    tmp_path, autojump_clock, world
):
    """The set may have shrunk while it waited: it is not written either."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        world.offload.hang()
        waiting = [first_waiting_put(master), *[master.submit(m) for m in messages(2)]]
        end = master.max_offset
        master.put_message.set_not_in_sync("the SyncStateSet is node 1 only")
        world.offload.go_on()
        for request in waiting:
            assert await request.wait() is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert master.max_offset == end


async def test_a_master_that_stops_or_is_full_says_so_first(tmp_path, autojump_clock, world):
    """Of several reasons to refuse a put, the set is the last."""
    async with hastore.open_master(async_master(tmp_path), env=world.env) as master:
        puts = master.put_message
        puts.set_disk_full("the disk is full")
        puts.set_not_in_sync("the SyncStateSet is node 1 only")
        assert master.submit(messages(1)[0]).status is Status.SERVICE_NOT_AVAILABLE
        puts.set_disk_full(None)
        assert master.submit(messages(1)[0]).status is Status.IN_SYNC_REPLICAS_NOT_ENOUGH
        puts.set_disk_full("the disk is full")
        puts.set_not_in_sync(None)
        assert master.submit(messages(1)[0]).status is Status.SERVICE_NOT_AVAILABLE
        puts.set_disk_full(None)
        assert (await master.put(messages(1)[0])).ok
