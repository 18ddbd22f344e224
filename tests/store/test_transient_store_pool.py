"""Write buffers: borrowed and given back, locked where allowed, and a log that uses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import StoreConfig
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore.store.log.transient_store_pool import TransientStorePool
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeMemory, fake_env
from tests.support.store.open_log import (
    DATA_DIR,
    FILE_SIZE,
    STORE_HOST,
    all_bytes,
    append,
    flush,
    make_file,
    open_log,
)

SIZE = 4096


def pool(size=2, memory=None):
    return TransientStorePool(memory or FakeMemory(), SIZE, size)


def test_no_more_buffers_are_made_than_are_needed():
    """One that came back is used again before another is made."""
    memory = FakeMemory()
    buffers = pool(5, memory)
    first = buffers.borrow()
    buffers.give_back(first)
    assert buffers.borrow() is first
    assert memory.calls == [("anonymous", SIZE)]
    assert buffers.available == 4


def test_an_empty_pool_gives_none_and_says_so_once(caplog):
    """The append goes to the file itself then: slower, never wrong."""
    buffers = pool(1)
    first = buffers.borrow()
    assert [buffers.borrow(), buffers.borrow()] == [None, None]
    assert caplog.text.count("no_write_buffer") == 1
    buffers.give_back(first)
    buffers.borrow()
    assert buffers.borrow() is None
    assert caplog.text.count("no_write_buffer") == 2


def test_no_memory_is_as_an_empty_pool(caplog):
    """A limit of the address space ends no node."""

    class Poor(FakeMemory):
        def anonymous(self, size):
            raise OSError(12, "Cannot allocate memory")

    assert pool(1, Poor()).borrow() is None
    assert "Cannot allocate memory" in caplog.text


def test_a_lock_that_is_refused_is_told_once(caplog):
    """The buffers are used all the same."""
    memory = FakeMemory(refusal="mlock: Cannot allocate memory")
    buffers = pool(3, memory)
    for _ in range(3):
        assert buffers.borrow() is not None
        buffers.lock()
    assert caplog.text.count("write_buffers_not_locked") == 1
    assert [call for call in memory.calls if call[0] == "lock"] == [("lock", SIZE)]


def test_each_buffer_is_locked_once():
    """When it was made, not each time that it is borrowed."""
    memory = FakeMemory()
    buffers = pool(2, memory)
    first = buffers.borrow()
    buffers.lock()
    buffers.give_back(first)
    buffers.borrow()
    buffers.borrow()
    buffers.lock()
    assert len(memory.locked) == 2


# -- a log with a pool ---------------------------------------------------------------------------


def buffered_log(disk=None, size=3):
    log = open_log(fake_env(disk))
    log.begin_buffering(TransientStorePool(FakeMemory(), log.file_size, size))
    make_file(log)
    return log


def commit(log, least_pages=0):
    targets = log.commit_targets(least_pages)
    for mapped_file, position in targets:
        mapped_file.commit(position)
    log.mark_committed(targets)


def test_readers_see_nothing_before_the_commit():
    """Neither ``read`` nor ``readable_offset`` nor the disk."""
    disk = FakeDisk()
    log = buffered_log(disk)
    result = append(log)
    assert log.max_offset == result.next_offset > 0
    assert (log.readable_offset, log.flushed_offset) == (0, 0)
    assert log.read(0, 100) == b""
    assert log.flush_targets() == []
    assert not any(disk.files()[f"{0:020d}"])
    commit(log)
    assert log.readable_offset == log.max_offset
    assert len(all_bytes(log)) == log.max_offset
    flush(log)
    assert log.flushed_offset == log.max_offset


def test_without_a_pool_all_is_readable_at_once():
    """The two offsets are one."""
    log = open_log()
    append(log)
    assert log.readable_offset == log.max_offset


def test_the_log_is_the_same_with_and_without_a_pool():
    """Byte for byte, over rolls, with buffers that were used before."""
    plain, buffered = open_log(), buffered_log(size=2)
    for log in (plain, buffered):
        for index in range(60):
            body = bytes([65 + index % 26]) * (100 + 37 * index % 900)
            message = Message("t", body)
            append(log, [message, message] if index % 7 == 0 else message)
            if index % 5 == 0:
                commit(log)
        commit(log)
    assert buffered.max_offset > 8 * FILE_SIZE
    assert all_bytes(buffered) == all_bytes(plain)
    assert buffered.mapped_file_queue.transient_store_pool.available >= 1


def test_an_empty_pool_changes_no_byte_and_no_order():
    """A file without a buffer is readable only after those before it are."""
    plain, buffered = open_log(), buffered_log(size=1)
    for log in (plain, buffered):
        for _ in range(30):
            append(log, body=bytes(500))
    assert buffered.readable_offset == 0
    assert buffered.mapped_file_queue.files[1].write_buffer is None
    commit(buffered)
    assert all_bytes(buffered) == all_bytes(plain)


def test_a_log_that_was_opened_goes_on_in_its_last_file():
    """The buffer then holds the end of the file only."""
    log = open_log()
    append(log)
    flush(log)
    end = log.max_offset
    log.begin_buffering(TransientStorePool(FakeMemory(), log.file_size, 2))
    assert (log.readable_offset, log.max_offset) == (end, end)
    append(log)
    assert len(log.read(0, 10_000)) == end
    commit(log)
    assert len(log.read(0, 10_000)) == log.max_offset
    log.close(clean=False)


@given(
    steps=st.lists(st.sampled_from(["append", "big", "commit", "commit2", "flush"]), max_size=60),
    cut=st.booleans(),
)
def test_a_crash_leaves_what_was_committed_and_a_power_cut_what_was_flushed(steps, cut):
    """Whole records, from the start on, and no fewer than that; the log goes on behind them.

    A file that found no buffer is in the page cache before those in front of it: what a kill leaves
    of it lies behind a hole, above all that the checkpoint vouches for, and is trimmed.
    """
    disk = FakeDisk()
    log = buffered_log(disk)
    checkpoint = StoreCheckpoint.open(disk, DATA_DIR)
    checkpoint.flush()
    for step in steps:
        if step == "append":
            append(log, body=b"b" * 50)
        elif step == "big":
            append(log, body=b"c" * 1500)
        elif step == "flush":
            flush(log)
            checkpoint.flushed_offset = log.flushed_offset
            checkpoint.flush()
        else:
            commit(log, 0 if step == "commit" else 2)
        assert log.flushed_offset <= log.readable_offset <= log.max_offset
    kept = log.flushed_offset if cut else log.readable_offset
    after = disk.cut_power() if cut else disk.kill()
    commit(log)
    written = all_readable(log)
    again = CommitLog.open(
        fake_env(after),
        StoreConfig(data_dir=DATA_DIR, mapped_file_size=FILE_SIZE),
        store_host=STORE_HOST,
        needs_queue_offsets=True,
        checkpoint=StoreCheckpoint.open(after, DATA_DIR),
    )
    assert again.max_offset >= kept - FILE_SIZE  # a filler without a record behind it may go
    assert all_bytes(again) == written[: again.max_offset]
    assert append(again).physic_offset >= again.min_offset


def all_readable(log):
    data = b""
    while len(data) < log.readable_offset:
        data += log.read(len(data), log.file_size)
    return data


def test_a_close_without_a_commit_loses_what_was_in_the_buffer():
    """As a kill does: RocketMQ's meaning of the pool."""
    disk = FakeDisk()
    log = buffered_log(disk)
    append(log)
    log.close(clean=False)
    assert open_log(fake_env(disk.kill())).max_offset == 0


def test_a_file_that_nobody_wants_gives_its_buffer_back():
    """Else the pool would run dry by files that were removed."""
    log = buffered_log(size=2)
    queue = log.mapped_file_queue
    before = queue.transient_store_pool.available
    queue.offer(queue.create_file(99 * FILE_SIZE))
    assert queue.transient_store_pool.available == before


@pytest.mark.parametrize("least_pages", [1, 4])
def test_only_the_last_file_waits_for_pages(least_pages):
    """Full ones are committed whatever their pages."""
    log = buffered_log()
    append(log, body=bytes(3000))
    append(log, body=bytes(3000))
    commit(log, least_pages)
    assert log.readable_offset == FILE_SIZE
    commit(log)
    assert log.readable_offset == log.max_offset
