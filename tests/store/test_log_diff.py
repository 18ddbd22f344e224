"""Two logs against each other."""

import attrs
import pytest

from hastore.store.tools.log_diff import COMPARE_SIZE, DiffVerdict, diff_logs
from tests.support.store.log_builder import FILE_SIZE, LogBuilder, MemoryDisk


class TwoDisks:
    """One Disk that holds two logs in memory, left and right."""

    def __init__(self, left, right):
        self.sides = {"left": left, "right": right}
        self.left, self.right = (self.renamed(name) for name in self.sides)

    def renamed(self, name):
        log = self.sides[name].log
        files = tuple(attrs.evolve(file, path=f"{name}/{file.name}") for file in log.files)
        return attrs.evolve(log, files=files, path=name)

    def open_file(self, path, *, writable):
        name, _, file = path.partition("/")
        return self.sides[name].open_file(file, writable=writable)


def diff(left, right):
    disk = TwoDisks(left, right)
    return diff_logs(disk, disk.left, disk.right)


def whole(count=60, **options):
    return LogBuilder(**options).fill(count)


def test_a_log_equals_itself():
    """Equal logs that end alike are equal, and nobody is behind."""
    builder = whole()
    report = diff(MemoryDisk(builder), MemoryDisk(builder))
    assert report.verdict is DiffVerdict.EQUAL
    assert (report.common_from, report.common_to) == (0, builder.end)
    assert (report.behind, report.bytes_behind, report.messages_behind) == (None, 0, 0)
    assert report.first_difference is None


def test_prepared_files_and_what_follows_the_end_do_not_count():
    """Zeros behind the end are no part of either log."""
    builder = whole()
    longer = MemoryDisk(builder, bytes(builder.data).ljust(9 * FILE_SIZE, b"\0"))
    assert diff(longer, MemoryDisk(builder)).verdict is DiffVerdict.EQUAL


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("lost", [1, 7, 45, 60])
def test_a_log_that_ends_earlier_is_a_prefix(lost, swapped):
    """The side that is behind is named, with its missing bytes and messages; across files too."""
    builder = whole()
    end = builder.offsets[-lost]
    sides = [MemoryDisk(builder), MemoryDisk(builder, builder.data[:end])]
    if swapped:
        sides.reverse()
    report = diff(*sides)
    behind = report.left if swapped else report.right
    assert report.verdict is DiffVerdict.PREFIX
    assert report.behind is behind
    # A log cut at a file's start ends behind the filler before it, or with it.
    assert behind.max_offset == end
    assert report.messages_behind == lost
    assert report.bytes_behind == builder.end - end


def test_a_torn_end_is_named_and_left_out():
    """A record cut in the middle is no difference: that side ends before it."""
    builder = whole()
    last = builder.offsets[-1]
    report = diff(MemoryDisk(builder), MemoryDisk(builder, builder.data[: last + 90]))
    assert report.verdict is DiffVerdict.PREFIX
    assert report.right.damaged_tail.physic_offset == last
    assert report.messages_behind == 1


@pytest.mark.parametrize("at", [0, 1, 30, 59])
def test_the_first_differing_byte_and_its_message_on_each_side(at):
    """The side whose record is damaged shows it; the other shows the message."""
    builder = whole()
    record = builder.offsets[at]
    report = diff(MemoryDisk(builder), MemoryDisk(builder, builder.flipped(record + 100)))
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.first_difference == record + 100
    left, right = report.left_place, report.right_place
    assert (left.kind, left.physic_offset, left.key) == ("message", record, f"k{at}")
    assert (right.kind, right.physic_offset, right.key) == ("bad-body-crc", record, f"k{at}")


def test_two_histories_differ_at_the_message_where_they_part():
    """Two sound logs that went apart: both messages are named."""
    left, right = whole(20).fill(5, topic="left"), whole(20).fill(9, topic="right")
    report = diff(MemoryDisk(left), MemoryDisk(right))
    assert report.verdict is DiffVerdict.DIFFERENT
    assert (report.left_place.topic, report.right_place.topic) == ("left", "right")
    assert report.left_place.physic_offset == report.right_place.physic_offset == left.offsets[20]


def test_a_difference_in_a_filler():
    """Fillers are replicated: their bytes count."""
    builder = whole()
    report = diff(MemoryDisk(builder), MemoryDisk(builder, builder.flipped(FILE_SIZE - 1)))
    assert report.first_difference == FILE_SIZE - 1
    assert report.left_place.kind == report.right_place.kind == "blank"


def test_differences_behind_the_first_mebibyte():
    """Every chunk is compared, and the offset is that of the byte."""
    builder = LogBuilder(file_size=4 * COMPARE_SIZE)
    for _ in range(30):
        builder.add(bytes(100_000))
    at = builder.offsets[17] + 50_001
    report = diff(MemoryDisk(builder), MemoryDisk(builder, builder.flipped(at)))
    assert report.first_difference == at


def test_a_side_whose_front_files_are_gone():
    """Over what both hold they are equal."""
    builder = whole()
    right = MemoryDisk(builder)
    del right.files[f"{0:020d}"]
    right.log = attrs.evolve(right.log, files=right.log.files[1:])
    report = diff(MemoryDisk(builder), right)
    assert report.verdict is DiffVerdict.EQUAL
    assert (report.common_from, report.common_to) == (FILE_SIZE, builder.end)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_side_without_a_file_in_the_middle(swapped):
    """Where one side has no file, that is where they differ, and only the other has a message."""
    builder = whole()
    holed = MemoryDisk(builder)
    holed.log = attrs.evolve(holed.log, files=holed.log.files[:1] + holed.log.files[2:])
    sides = [MemoryDisk(builder), holed]
    if swapped:
        sides.reverse()
    report = diff(*sides)
    places = [place and place.kind for place in (report.left_place, report.right_place)]
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.first_difference == FILE_SIZE
    assert places == ([None, "message"] if swapped else ["message", None])


def test_files_of_different_sizes_are_compared_by_offset():
    """The first file end of the side with the smaller files is where they part."""
    report = diff(MemoryDisk(whole()), MemoryDisk(whole(file_size=2 * FILE_SIZE)))
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.left_place.kind == "blank"
    assert (report.left.mapped_file_size, report.right.mapped_file_size) == (4096, 8192)


def test_an_empty_log_is_a_prefix_of_every_other():
    """A new slave's directory is behind by everything."""
    builder = whole(20, min_offset=3 * FILE_SIZE)
    report = diff(MemoryDisk(LogBuilder()), MemoryDisk(builder))
    assert report.verdict is DiffVerdict.PREFIX
    assert report.behind is report.left
    assert (report.messages_behind, report.bytes_behind) == (20, len(builder.data))


def test_logs_without_an_offset_in_common():
    """One ends before the other begins: that is said, not called equal."""
    report = diff(MemoryDisk(whole(5)), MemoryDisk(whole(5, min_offset=9 * FILE_SIZE)))
    assert report.verdict is DiffVerdict.DISJOINT
