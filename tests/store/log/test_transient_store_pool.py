"""Write buffers: borrowed, returned, locked where permitted, and a log that uses them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.config import StoreConfig
from hastore.message import Message
from hastore.store.commit_log import JOINED_SIZE_MAX, CommitLog
from hastore.store.log.transient_store_pool import TransientStorePool
from hastore.store.log_tail import SIZE_THROUGH_MAP
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


def test_returned_buffer_is_borrowed_again():
    """No new buffer is allocated while one is free."""
    memory = FakeMemory()
    buffers = pool(5, memory)
    first = buffers.borrow()
    buffers.give_back(first)
    assert buffers.borrow() is first
    assert memory.calls == [("anonymous", SIZE)]
    assert buffers.available == 4


def test_empty_pool_returns_none_and_warns_once(caplog):
    """The append then goes to the file directly: slower, but correct."""
    buffers = pool(1)
    first = buffers.borrow()
    assert [buffers.borrow(), buffers.borrow()] == [None, None]
    assert caplog.text.count("no_write_buffer") == 1
    buffers.give_back(first)
    buffers.borrow()
    assert buffers.borrow() is None
    assert caplog.text.count("no_write_buffer") == 2


def test_failed_allocation_counts_as_an_empty_pool(caplog):
    """A limit of the address space does not stop the node."""

    class NoMemory(FakeMemory):
        def anonymous(self, size):
            raise OSError(12, "Cannot allocate memory")

    assert pool(1, NoMemory()).borrow() is None
    assert "Cannot allocate memory" in caplog.text


def test_refused_memory_lock_is_logged_once(caplog):
    """The buffers are used without the lock."""
    memory = FakeMemory(refusal="mlock: Cannot allocate memory")
    buffers = pool(3, memory)
    for _ in range(3):
        assert buffers.borrow() is not None
        buffers.lock()
    assert caplog.text.count("write_buffers_not_locked") == 1
    assert [call for call in memory.calls if call[0] == "lock"] == [("lock", SIZE)]


def test_each_buffer_is_locked_once():
    """It is locked after its allocation, not each time it is borrowed."""
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


def buffered_log(disk=None, size=3, **config):
    log = open_log(fake_env(disk), **config)
    log.begin_buffering(TransientStorePool(FakeMemory(), log.file_size, size))
    make_file(log)
    return log


def commit(log, least_pages=0):
    targets = log.commit_targets(least_pages)
    for mapped_file, position in targets:
        mapped_file.commit(position)
    log.mark_committed(targets)


def test_readers_see_nothing_before_the_commit():
    """``read``, ``readable_offset`` and the disk all lack the bytes until then."""
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


@pytest.mark.parametrize("size", [1, 2 * SIZE_THROUGH_MAP, 2 * JOINED_SIZE_MAX])
def test_records_of_every_size_go_to_the_buffer(size):
    """Only without a pool are large ones written at once, and pages made for small ones."""
    disk = FakeDisk()
    file_size = 4 * JOINED_SIZE_MAX
    log, plain = (
        buffered_log(disk, mapped_file_size=file_size),
        open_log(mapped_file_size=file_size),
    )
    body = b"x" * size
    for _ in range(2):
        result = append(log, body=body)
        append(plain, body=body)
    assert log.max_offset == result.next_offset > 0
    assert not disk.counts["pwrite"]
    assert not disk.counts["make_pages"]
    commit(log)
    assert all_bytes(log) == all_bytes(plain)


def test_a_file_without_a_buffer_has_large_records_written():
    """The pool is used up."""
    disk = FakeDisk()
    log = buffered_log(disk, size=0, mapped_file_size=4 * SIZE_THROUGH_MAP)
    append(log, body=bytes(100))
    assert (disk.counts["pwrite"], disk.counts["make_pages"]) == (0, 1)
    append(log, body=bytes(2 * SIZE_THROUGH_MAP))
    assert disk.counts["pwrite"] == 1
    commit(log)
    assert len(all_bytes(log)) == log.max_offset


def test_all_bytes_are_readable_at_once_without_a_pool():
    """Readable offset and max offset are equal."""
    log = open_log()
    append(log)
    assert log.readable_offset == log.max_offset


def test_log_is_the_same_with_and_without_a_pool():
    """Every byte is equal, also after rolls and with reused buffers."""
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


def test_empty_pool_changes_neither_bytes_nor_order():
    """A file without a buffer becomes readable only after the files before it."""
    plain, buffered = open_log(), buffered_log(size=1)
    for log in (plain, buffered):
        for _ in range(30):
            append(log, body=bytes(500))
    assert buffered.readable_offset == 0
    assert buffered.mapped_file_queue.files[1].write_buffer is None
    commit(buffered)
    assert all_bytes(buffered) == all_bytes(plain)


def test_buffering_begins_at_the_end_of_an_existing_file():
    """The buffer then holds only the rest of the file."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=4 * SIZE_THROUGH_MAP)
    append(log)
    flush(log)
    end = log.max_offset
    log.begin_buffering(TransientStorePool(FakeMemory(), log.file_size, 2))
    assert (log.readable_offset, log.max_offset) == (end, end)
    append(log)
    append(log, body=bytes(2 * SIZE_THROUGH_MAP))
    assert len(log.read(0, log.file_size)) == end
    assert not disk.counts["pwrite"]
    commit(log)
    assert len(log.read(0, log.file_size)) == log.max_offset
    log.close(clean=False)


@given(
    steps=st.lists(st.sampled_from(["append", "big", "commit", "commit2", "flush"]), max_size=60),
    cut=st.booleans(),
)
def test_kill_keeps_committed_bytes_and_power_cut_keeps_flushed_bytes(steps, cut):
    """The next start finds complete records from the log's start, and appends after them.

    A file that got no buffer reaches the page cache before the files in front of it. After a kill,
    its records lie after a hole above the flushed offset, and are trimmed.
    """
    disk = FakeDisk()
    log = buffered_log(disk)
    checkpoint = StoreCheckpoint.open(disk, DATA_DIR)
    checkpoint.flush()
    ends = [0]
    for step in steps:
        if step == "append":
            ends.append(append(log, body=b"b" * 50).next_offset)
        elif step == "big":
            ends.append(append(log, body=b"c" * 1500).next_offset)
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
    # A BLANK that no record follows may be trimmed, but no record.
    assert again.max_offset >= max(end for end in ends if end <= kept)
    assert all_bytes(again) == written[: again.max_offset]
    assert append(again).physic_offset >= again.min_offset


def all_readable(log):
    data = b""
    while len(data) < log.readable_offset:
        data += log.read(len(data), log.file_size)
    return data


def test_close_without_a_commit_loses_uncommitted_bytes():
    """A kill does the same: RocketMQ's pool has this meaning."""
    disk = FakeDisk()
    log = buffered_log(disk)
    append(log)
    log.close(clean=False)
    assert open_log(fake_env(disk.kill())).max_offset == 0


def test_unwanted_file_returns_its_buffer():
    """Otherwise removed files would empty the pool."""
    log = buffered_log(size=2)
    queue = log.mapped_file_queue
    before = queue.transient_store_pool.available
    queue.offer(queue.create_file(99 * FILE_SIZE))
    assert queue.transient_store_pool.available == before


@pytest.mark.parametrize("least_pages", [1, 4])
def test_only_the_last_file_waits_for_full_pages(least_pages):
    """Full files are committed whatever the minimum number of pages."""
    log = buffered_log()
    append(log, body=bytes(3000))
    append(log, body=bytes(3000))
    commit(log, least_pages)
    assert log.readable_offset == FILE_SIZE
    commit(log)
    assert log.readable_offset == log.max_offset
