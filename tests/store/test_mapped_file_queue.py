"""The queue of mapped files: found by division, one made ready ahead, flushed in order."""

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
    """Write the last file full, and go to the next."""
    if files.files:
        files.files[-1].wrote_position = SIZE
    make(files)
    return files.take_prepared()


def test_a_name_is_the_start_offset_in_20_digits():
    """RocketMQ's names: decimal, padded with zeros."""
    assert file_name(1_073_741_824) == "00000000001073741824"


def test_the_first_file_of_an_empty_log_is_wanted_at_once():
    """An empty log asks for its first file, wherever it starts."""
    assert queue(8192).wanted_file_offset() == 8192


def test_a_log_that_does_not_know_its_start_wants_nothing():
    """An empty slave cannot make a file before its master says where the log starts."""
    files = queue(None)
    assert files.wanted_file_offset() is None
    assert (files.min_offset, files.max_offset, files.flushed_offset) == (0, 0, 0)


@pytest.mark.parametrize(("wrote", "wanted"), [(0, None), (2047, None), (2048, SIZE), (SIZE, SIZE)])
def test_the_next_file_is_wanted_once_the_last_is_half_written(wrote, wanted):
    """Early enough to be ready in time, not so early that an idle node allocates for nothing."""
    files = queue()
    fill(files).wrote_position = wrote
    assert files.wanted_file_offset() == wanted


def test_a_file_is_found_by_division_with_the_front_gone():
    """Offsets before the first file and behind the last have no file."""
    files = queue(5 * SIZE)
    first, second = fill(files), fill(files)
    found = files.find_mapped_file_by_offset
    assert found(5 * SIZE - 1) is None
    assert found(5 * SIZE) is found(6 * SIZE - 1) is first
    assert found(6 * SIZE) is second
    assert found(7 * SIZE) is None
    assert queue().find_mapped_file_by_offset(0) is None


def test_a_file_that_nobody_wants_any_more_is_removed():
    """A file made for a queue that was closed meanwhile does not stay on the disk."""
    disk = FakeDisk()
    files = queue(disk=disk)
    made = files.create_file(0)
    files.close(remove_prepared=True)
    files.offer(made)
    assert disk.files("/d/") == {}


def test_only_the_unused_file_goes_at_a_clean_close():
    """The prepared file holds nothing; the others stay."""
    disk = FakeDisk()
    files = queue(disk=disk)
    fill(files).wrote_position = SIZE
    make(files)
    files.close(remove_prepared=True)
    assert list(disk.files("/d/")) == [file_name(0)]
    assert files.wanted_file_offset() is None


def test_a_failed_creation_leaves_the_queue_as_it_was():
    """The file is still wanted after there was no space for it."""
    disk = FakeDisk()
    files = queue(disk=disk)
    disk.fail("create_file", disk_full())
    with pytest.raises(DiskFullError):
        files.create_file(0)
    disk.heal()
    assert files.wanted_file_offset() == 0
    make(files)
    assert files.prepared is not None


def test_flush_targets_name_every_dirty_file_once():
    """A roll leaves two files to sync; a flushed one is not named again."""
    files = queue()
    first, second = fill(files), fill(files)
    second.wrote_position = 100
    targets = files.flush_targets()
    assert targets == [(first, SIZE), (second, 100)]
    second.wrote_position = 200  # appended while the sync runs
    files.mark_flushed(targets)
    assert files.flushed_offset == SIZE + 100
    assert files.flush_targets() == [(second, 200)]


def test_a_file_refuses_to_close_under_a_view():
    """Bytes that somebody still looks at cannot vanish."""
    files = queue()
    mapped_file = fill(files)
    view = mapped_file.view[:10]
    with pytest.raises(BufferError):
        mapped_file.close()
    view.release()
    mapped_file.disk_file.close()


class QueueModel(RuleBasedStateMachine):
    """The queue against a model: two numbers and a list of starts."""

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
        self.queue.on_file_wanted = self.count_call

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
        """What a clean stop and a load would do with the same files."""
        files, self.queue.files = self.queue.files, []
        self.queue.close(remove_prepared=True)
        self.prepared = False
        self.queue = queue(self.start, self.disk)
        self.queue.on_file_wanted = self.count_call
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
