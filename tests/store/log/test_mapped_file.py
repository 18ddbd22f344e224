"""One mapped file: its three positions, when to commit or flush, and unmapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.env.interface import PAGE_SIZE
from hastore.env.real import RealDisk
from hastore.errors import DiskError
from hastore.store.log.mapped_file import MappedFile
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


def test_append_without_a_buffer_is_committed_at_once():
    """Appends go to the map, and readers see them immediately."""
    file = mapped()
    write(file, 10)
    assert (file.wrote_position, file.committed_position, file.flushed_position) == (10, 10, 0)
    assert file.disk_file.pread(12, 0) == b"x" * 10 + b"\0\0"
    assert not file.is_able_to_commit(0)
    assert file.is_able_to_flush(0)


def test_written_committed_and_flushed_positions_differ_with_a_buffer():
    """Each moves in its own step, and the file holds only the committed bytes."""
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


def test_buffer_is_returned_when_the_full_file_is_committed():
    """Until then, uncommitted bytes exist only in the buffer."""
    file = buffered()
    buffer = file.write_buffer
    write(file, SIZE)
    file.commit(SIZE - 1)
    assert file.mark_committed(SIZE - 1) is None
    file.commit(SIZE)
    assert file.mark_committed(SIZE) is buffer
    assert file.write_buffer is None
    assert file.disk_file.pread(SIZE, 0) == b"x" * SIZE


def test_file_that_got_no_buffer_is_committed_by_mark_committed():
    """The pool was empty: the bytes are in the map, but become readable only in log order."""
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
        (1, 4 * PAGE_SIZE, 4, True),  # counts page boundaries, as RocketMQ does
        (PAGE_SIZE, 4 * PAGE_SIZE, 4, False),
        (SIZE - 1, SIZE, 4, True),  # a full file
        (SIZE, SIZE, 0, False),
    ],
)
def test_commit_and_flush_need_enough_pages_or_a_full_file(done, end, pages, able):
    """With a minimum of 0 pages, a single byte is enough."""
    file = mapped()
    file.wrote_position, file.flushed_position = end, done
    assert file.is_able_to_flush(pages) is able
    file = buffered()
    file.wrote_position = done
    file.mark_committed(done)
    file.wrote_position = end
    assert file.is_able_to_commit(pages) is able


@given(steps=st.lists(st.tuples(st.sampled_from("wcf"), st.integers(1, SIZE)), max_size=40))
def test_flushed_never_exceeds_committed_nor_committed_written(steps):
    """This holds after any appends, commits and flushes; the file holds the committed bytes."""
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


def test_failed_commit_moves_no_position():
    """Some of its bytes may be in the file, but none of them counts."""
    disk = FakeDisk()
    file = buffered(disk)
    write(file, 100)
    disk.fail("pwrite", DiskError("write failed", path="/d/f"), reaches=30)
    with pytest.raises(DiskError):
        file.commit(100)
    assert file.committed_position == 0
    assert file.disk_file.pread(100, 0) == b"x" * 30 + bytes(70)


def test_file_is_readable_after_its_map_is_released(tmp_path):
    """Reads use the descriptor, which stays the same for readers that stream from it."""
    file = mapped(RealDisk(), str(tmp_path / "f"))
    write(file, 100)
    descriptor = file.disk_file.fileno()
    slice_of_old = file.view[10:20]
    file.release_view()
    file.release_view()
    with file.view[90:110] as part:
        assert part == b"x" * 10 + bytes(10)
    with pytest.raises(BufferError):  # a slice still refers to the map
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
