"""One mapped file: three positions, what is worth a commit or a flush, and a map given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.env.real import RealDisk
from hastore.errors import DiskError
from hastore.store.log.mapped_file import PAGE_SIZE, MappedFile
from hastore.store.log.transient_store_pool import TransientStorePool
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeMemory

SIZE = 8 * PAGE_SIZE


def mapped(disk=None, path="/d/f"):
    return MappedFile(0, SIZE, (disk or FakeDisk()).create_file(path, SIZE))


def buffered(disk=None):
    file = mapped(disk)
    file.begin_buffering(TransientStorePool(FakeMemory(), SIZE, 1).borrow())
    return file


def write(file, size):
    start = file.wrote_position
    file.append_view[start : start + size] = b"x" * size
    file.wrote_position += size


def test_without_a_buffer_what_is_written_is_committed():
    """Appends go to the map, and readers see them at once."""
    file = mapped()
    write(file, 10)
    assert (file.wrote_position, file.committed_position, file.flushed_position) == (10, 10, 0)
    assert file.disk_file.pread(12, 0) == b"x" * 10 + b"\0\0"
    assert not file.is_able_to_commit(0)
    assert file.is_able_to_flush(0)


def test_with_a_buffer_the_three_positions_really_differ():
    """Written, committed, flushed: each moves by its own step, and the file shows the second."""
    file = buffered()
    write(file, 100)
    assert (file.wrote_position, file.committed_position, file.flushed_position) == (100, 0, 0)
    assert file.disk_file.pread(100, 0) == bytes(100)
    assert not file.is_able_to_flush(0)
    file.commit(60)
    assert file.committed_position == 0
    assert file.mark_committed(60) is None
    assert file.disk_file.pread(100, 0) == b"x" * 60 + bytes(40)
    assert (file.is_able_to_commit(0), file.is_able_to_flush(0)) == (True, True)
    file.flushed_position = 60
    assert not file.is_able_to_flush(0)
    assert 0 < file.flushed_position == file.committed_position < file.wrote_position


def test_the_buffer_goes_back_once_the_file_is_full_and_committed():
    """Not before: what is not committed is nowhere else."""
    file = buffered()
    buffer = file.write_buffer
    write(file, SIZE)
    file.commit(SIZE - 1)
    assert file.mark_committed(SIZE - 1) is None
    file.commit(SIZE)
    assert file.mark_committed(SIZE) is buffer
    assert file.write_buffer is None
    assert file.disk_file.pread(SIZE, 0) == b"x" * SIZE


def test_a_file_without_a_buffer_in_a_log_with_a_pool_is_committed_by_a_mark():
    """The pool was empty: its bytes are in the map already, but nobody is told before its turn."""
    file = mapped()
    file.begin_buffering(None)
    write(file, 10)
    assert file.committed_position == 0
    file.commit(10)
    file.mark_committed(10)
    assert file.committed_position == 10


@pytest.mark.parametrize(
    ("done", "end", "pages", "able"),
    [
        (0, 0, 0, False),
        (0, 1, 0, True),
        (0, 4 * PAGE_SIZE - 1, 4, False),
        (0, 4 * PAGE_SIZE, 4, True),
        (1, 4 * PAGE_SIZE, 4, True),  # pages are counted by their ends, as RocketMQ does
        (PAGE_SIZE, 4 * PAGE_SIZE, 4, False),
        (SIZE - 1, SIZE, 4, True),  # a full file
        (SIZE, SIZE, 0, False),
    ],
)
def test_what_is_worth_a_flush_or_a_commit(done, end, pages, able):
    """Full, or as many whole pages as asked for, or any byte where none are."""
    file = mapped()
    file.wrote_position, file.flushed_position = end, done
    assert file.is_able_to_flush(pages) is able
    file = buffered()
    file.wrote_position = done
    file.mark_committed(done)
    file.wrote_position = end
    assert file.is_able_to_commit(pages) is able


@given(steps=st.lists(st.tuples(st.sampled_from("wcf"), st.integers(1, SIZE)), max_size=40))
def test_flushed_is_never_ahead_of_committed_nor_that_of_written(steps):
    """Whatever the order of appends, commits and flushes, and the file holds what is committed."""
    file = buffered()
    for step, size in steps:
        if step == "w":
            write(file, min(size, SIZE - file.wrote_position))
        elif step == "c" and file.is_able_to_commit(0):
            end = min(file.committed_position + size, file.wrote_position)
            file.commit(end)
            file.mark_committed(end)
        elif step == "f" and file.is_able_to_flush(0):
            file.flushed_position = file.committed_position
        assert 0 <= file.flushed_position <= file.committed_position <= file.wrote_position <= SIZE
        data = file.disk_file.pread(SIZE, 0)
        assert data == b"x" * file.committed_position + bytes(SIZE - file.committed_position)


def test_a_commit_that_fails_moves_no_position():
    """Any part of it may be in the file; none of it counts."""
    disk = FakeDisk()
    file = buffered(disk)
    write(file, 100)
    disk.fail("pwrite", DiskError("write failed", path="/d/f"), reaches=30)
    with pytest.raises(DiskError):
        file.commit(100)
    assert file.committed_position == 0
    assert file.disk_file.pread(100, 0) == b"x" * 30 + bytes(70)


def test_a_view_that_is_given_up_still_reads(tmp_path):
    """By the descriptor, which is the same as before: who streams from it goes on."""
    file = mapped(RealDisk(), str(tmp_path / "f"))
    write(file, 100)
    descriptor = file.disk_file.fileno()
    slice_of_old = file.view[10:20]
    file.release_view()
    file.release_view()
    with file.view[90:110] as part:
        assert part == b"x" * 10 + bytes(10)
    with pytest.raises(BufferError):  # somebody still looks at the map
        file.disk_file.unmap()
    assert slice_of_old == b"x" * 10
    slice_of_old.release()
    file.disk_file.unmap()
    file.disk_file.unmap()
    assert file.disk_file.buffer is None
    assert file.disk_file.fileno() == descriptor
    file.disk_file.sync()
    with file.view[0:100] as part:
        assert part == b"x" * 100
    file.close()
