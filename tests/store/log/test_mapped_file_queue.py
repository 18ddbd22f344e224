"""The queue of mapped files: found by division, one prepared ahead, flushed in order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hastore.errors import DiskFullError
from hastore.store.log.mapped_file_queue import MappedFileQueue, file_name
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import disk_full

SIZE = 4096


def queue(first_file_offset=0, disk=None):
    return MappedFileQueue(disk or FakeDisk(), "/d", SIZE, first_file_offset)


def make(files):
    files.offer(files.create_file(files.wanted_file_offset()))


def fill(files):
    """Fill the last file, then take the next one."""
    if files.files:
        files.files[-1].wrote_position = SIZE
    make(files)
    return files.take_prepared()


def test_file_name_is_its_start_offset_in_20_digits():
    """RocketMQ's names: decimal, padded with zeros."""
    assert file_name(1_073_741_824) == "00000000001073741824"


def test_empty_log_wants_its_first_file_at_once():
    """The file begins at the log's start, which need not be 0."""
    assert queue(8192).wanted_file_offset() == 8192


def test_log_with_unknown_start_wants_no_file():
    """An empty slave creates no file before its master reports where the log starts."""
    files = queue(None)
    assert files.wanted_file_offset() is None
    assert (files.min_offset, files.max_offset, files.flushed_offset) == (0, 0, 0)


@pytest.mark.parametrize(("wrote", "wanted"), [(0, None), (2047, None), (2048, SIZE), (SIZE, SIZE)])
def test_next_file_is_wanted_when_the_last_is_half_full(wrote, wanted):
    """Early enough to be ready in time, but an idle node allocates nothing."""
    files = queue()
    fill(files).wrote_position = wrote
    assert files.wanted_file_offset() == wanted


def test_finds_files_by_offset_after_expiry():
    """Offsets before the first file and after the last have no file."""
    files = queue(5 * SIZE)
    first, second = fill(files), fill(files)
    found = files.find_mapped_file_by_offset
    assert found(5 * SIZE - 1) is None
    assert found(5 * SIZE) is found(6 * SIZE - 1) is first
    assert found(6 * SIZE) is second
    assert found(7 * SIZE) is None
    assert queue().find_mapped_file_by_offset(0) is None


def test_file_created_for_a_closed_queue_is_removed():
    """The queue was closed while the file was being created."""
    disk = FakeDisk()
    files = queue(disk=disk)
    made = files.create_file(0)
    files.close(remove_prepared=True)
    files.offer(made)
    assert disk.files("/d/") == {}


def test_clean_close_removes_only_the_prepared_file():
    """The prepared file holds nothing; the others stay."""
    disk = FakeDisk()
    files = queue(disk=disk)
    fill(files).wrote_position = SIZE
    make(files)
    files.close(remove_prepared=True)
    assert list(disk.files("/d/")) == [file_name(0)]
    assert files.wanted_file_offset() is None


def test_failed_file_creation_leaves_the_queue_unchanged():
    """The file is still wanted after the disk was full."""
    disk = FakeDisk()
    files = queue(disk=disk)
    disk.fail("create_file", disk_full())
    with pytest.raises(DiskFullError):
        files.create_file(0)
    disk.heal()
    assert files.wanted_file_offset() == 0
    make(files)
    assert files.prepared is not None


def test_flush_targets_list_each_dirty_file_once():
    """After a roll two files must be synced; a flushed file is not listed again."""
    files = queue()
    first, second = fill(files), fill(files)
    second.wrote_position = 100
    targets = files.flush_targets()
    assert targets == [(first, SIZE), (second, 100)]
    second.wrote_position = 200  # appended while the sync runs
    files.mark_flushed(targets)
    assert files.flushed_offset == SIZE + 100
    assert files.flush_targets() == [(second, 200)]


def test_file_with_an_open_view_refuses_to_close():
    """Its bytes are still in use."""
    files = queue()
    mapped_file = fill(files)
    view = mapped_file.view[:10]
    with pytest.raises(BufferError):
        mapped_file.close()
    view.release()
    mapped_file.disk_file.close()


class QueueModel(RuleBasedStateMachine):
    """Compares the queue with a model: byte counts and a number of files."""

    def __init__(self):
        super().__init__()
        self.disk = FakeDisk()
        self.start = 3 * SIZE
        self.queue = queue(self.start, self.disk)
        self.wrote = 0  # bytes since the start
        self.flushed = 0
        self.count = 0
        self.prepared = False
        self.targets = None
        self.wanted_calls = 0
        self.queue.subscribe(self.count_call)

    def count_call(self):
        self.wanted_calls += 1

    @property
    def room(self):
        return self.count * SIZE - self.wrote

    def model_wants(self):
        if self.prepared:
            return None
        if not self.count:
            return self.start
        is_half = (SIZE - self.room) * 2 >= SIZE
        return self.start + self.count * SIZE if is_half else None

    @rule(size=st.integers(1, SIZE))
    def write(self, size):
        size = min(size, self.room)
        if size:
            self.queue.files[-1].wrote_position += size
            self.wrote += size

    @precondition(lambda self: self.model_wants() is not None)
    @rule()
    def create(self):
        make(self.queue)
        self.prepared = True

    @precondition(lambda self: self.room == 0)
    @rule()
    def roll(self):
        taken = self.queue.take_prepared()
        assert (taken is not None) == self.prepared
        if self.prepared:
            assert taken.file_from_offset == self.start + self.count * SIZE
            self.count += 1
            self.prepared = False

    @rule()
    def begin_flush(self):
        self.targets = (self.queue.flush_targets(), self.wrote)

    @precondition(lambda self: self.targets is not None)
    @rule()
    def end_flush(self):
        targets, wrote = self.targets
        self.queue.mark_flushed(targets)
        self.flushed = max(self.flushed, wrote)
        self.targets = None

    @rule()
    def ask(self):
        before = self.wanted_calls
        self.queue.want_file()
        assert self.wanted_calls - before == (self.model_wants() is not None)

    @precondition(lambda self: self.targets is None)
    @rule()
    def reopen(self):
        """Do what a clean stop and a load would do with the same files."""
        files, self.queue.files = self.queue.files, []
        self.queue.close(remove_prepared=True)
        self.prepared = False
        self.queue = queue(self.start, self.disk)
        self.queue.subscribe(self.count_call)
        self.queue.files = files

    @invariant()
    def agrees(self):
        assert self.queue.min_offset == self.start
        assert self.queue.max_offset == self.start + self.wrote
        assert self.queue.flushed_offset == self.start + self.flushed
        assert self.queue.wanted_file_offset() == self.model_wants()
        for index in range(-1, self.count + 1):
            found = self.queue.find_mapped_file_by_offset(self.start + index * SIZE)
            assert (found is not None) == (0 <= index < self.count)

    @invariant()
    def positions_are_in_order(self):
        for mapped_file in self.queue.files:
            assert (
                0
                <= mapped_file.flushed_position
                <= mapped_file.committed_position
                <= mapped_file.wrote_position
                <= mapped_file.file_size
            )
        assert all(mapped_file.is_full for mapped_file in self.queue.files[:-1])


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(stateful_step_count=30)
