"""Comparing two logs."""

import pytest

from hastore.env.real import RealDisk
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.tools.log_diff import COMPARE_SIZE, DiffVerdict, diff_logs
from hastore.store.tools.log_directory import find_log
from tests.support.store.log_builder import FILE_SIZE, LogBuilder, disk_with


def diff(left, right, /, **epochs):
    """Compare two logs, each of which is given as its files, perhaps with epochs of a side."""
    disk = disk_with(left=left, right=right)
    for side, entries in epochs.items():
        history = EpochHistory(tuple(EpochEntry(*entry) for entry in entries))
        EpochFile(disk, f"/{side}/{EPOCH_FILE}").store(history)
    return diff_logs(disk, find_log(disk, "/left"), find_log(disk, "/right"))


def whole(count=60, **options):
    return LogBuilder(**options).fill(count)


def test_equal_logs_are_equal():
    """There is no first difference, and neither side lags."""
    builder = whole()
    report = diff(builder.files(), builder.files())
    assert report.verdict is DiffVerdict.EQUAL
    assert (report.common_from, report.common_to) == (0, builder.end)
    assert (report.behind, report.bytes_behind, report.messages_behind) == (None, 0, 0)
    assert report.first_difference is None


def test_zeros_after_the_end_are_ignored():
    """Prepared files and the rest of the last file are not part of either log."""
    builder = whole()
    longer = builder.files(bytes(builder.data).ljust(9 * FILE_SIZE, b"\0"))
    assert diff(longer, builder.files()).verdict is DiffVerdict.EQUAL


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("lost", [1, 7, 45, 60])
def test_shorter_log_is_a_prefix(lost, swapped):
    """The report names the shorter side and counts its missing bytes and messages."""
    builder = whole()
    end = builder.offsets[-lost]
    sides = [builder.files(), builder.files(builder.data[:end])]
    if swapped:
        sides.reverse()
    report = diff(*sides)
    behind = report.left if swapped else report.right
    assert report.verdict is DiffVerdict.PREFIX
    assert report.behind is behind
    # A log cut at the start of a file ends after the filler before it, or with it.
    assert behind.max_offset == end
    assert report.messages_behind == lost
    assert report.bytes_behind == builder.end - end


def test_torn_tail_is_reported_but_not_compared():
    """A record cut in the middle is not a difference: that side ends before it."""
    builder = whole()
    last = builder.offsets[-1]
    report = diff(builder.files(), builder.files(builder.data[: last + 90]))
    assert report.verdict is DiffVerdict.PREFIX
    assert report.right.damaged_tail.physic_offset == last
    assert report.messages_behind == 1


@pytest.mark.parametrize("at", [0, 1, 30, 59])
def test_reports_first_differing_byte_and_the_record_on_each_side(at):
    """The damaged side reports its damage, the other side the message at that offset."""
    builder = whole()
    record = builder.offsets[at]
    report = diff(builder.files(), builder.files(builder.flipped(record + 100)))
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.first_difference == record + 100
    left, right = report.left_place, report.right_place
    assert (left.kind, left.physic_offset, left.key) == ("message", record, f"k{at}")
    assert (right.kind, right.physic_offset, right.key) == ("bad-body-crc", record, f"k{at}")


def test_diverged_logs_differ_at_the_first_message_they_do_not_share():
    """Both logs are intact, so both messages are reported."""
    left, right = whole(20).fill(5, topic="left"), whole(20).fill(9, topic="right")
    report = diff(left.files(), right.files())
    assert report.verdict is DiffVerdict.DIFFERENT
    assert (report.left_place.topic, report.right_place.topic) == ("left", "right")
    assert report.left_place.physic_offset == report.right_place.physic_offset == left.offsets[20]


def test_difference_in_a_filler_is_found():
    """Fillers are replicated, so their bytes are compared too."""
    builder = whole()
    report = diff(builder.files(), builder.files(builder.flipped(FILE_SIZE - 1)))
    assert report.first_difference == FILE_SIZE - 1
    assert report.left_place.kind == report.right_place.kind == "blank"


def test_finds_a_difference_after_the_first_chunk():
    """The reported offset is that of the byte, not of its chunk."""
    builder = LogBuilder(file_size=4 * COMPARE_SIZE)
    for _ in range(30):
        builder.add(bytes(100_000))
    at = builder.offsets[17] + 50_001
    report = diff(builder.files(), builder.files(builder.flipped(at)))
    assert report.first_difference == at


def test_only_the_common_range_is_compared():
    """One side has expired its first file; over the range that both hold, the logs are equal."""
    builder = whole()
    right = builder.files()
    del right[f"{0:020d}"]
    report = diff(builder.files(), right)
    assert report.verdict is DiffVerdict.EQUAL
    assert (report.common_from, report.common_to) == (FILE_SIZE, builder.end)


@pytest.mark.parametrize("swapped", [False, True])
def test_missing_file_in_the_middle_is_a_difference(swapped):
    """The logs differ where the gap begins, and only the complete side has a message there."""
    builder = whole()
    holed = builder.files()
    del holed[f"{FILE_SIZE:020d}"]
    sides = [builder.files(), holed]
    if swapped:
        sides.reverse()
    report = diff(*sides)
    places = [place and place.kind for place in (report.left_place, report.right_place)]
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.first_difference == FILE_SIZE
    assert places == ([None, "message"] if swapped else ["message", None])


def test_logs_with_different_file_sizes_are_compared_by_offset():
    """They diverge at the first file end of the side with the smaller files."""
    report = diff(whole().files(), whole(file_size=2 * FILE_SIZE).files())
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.left_place.kind == "blank"
    assert (report.left.mapped_file_size, report.right.mapped_file_size) == (4096, 8192)


def test_empty_log_is_a_prefix_of_any_log():
    """A new slave's directory lags by the whole log."""
    builder = whole(20, min_offset=3 * FILE_SIZE)
    report = diff(LogBuilder().files(), builder.files())
    assert report.verdict is DiffVerdict.PREFIX
    assert report.behind is report.left
    assert (report.messages_behind, report.bytes_behind) == (20, len(builder.data))


def test_logs_without_a_common_offset_are_disjoint():
    """One log ends before the other begins; they are not reported as equal."""
    report = diff(whole(5).files(), whole(5, min_offset=9 * FILE_SIZE).files())
    assert report.verdict is DiffVerdict.DISJOINT


def test_diverged_logs_with_epochs_have_a_consistent_point():
    """It is where the old master's successor began; without epochs on both sides there is none."""
    common = whole(30)
    old, new = (LogBuilder().fill(30).fill(n, topic=topic) for n, topic in ((5, "old"), (9, "new")))
    assert diff(old.files(), new.files()).epochs is None
    assert diff(old.files(), new.files(), left=[(1, 0)]).epochs is None
    report = diff(old.files(), new.files(), left=[(1, 0)], right=[(1, 0), (2, common.end)])
    assert report.verdict is DiffVerdict.DIFFERENT
    assert report.epochs.point == (1, common.end)
    assert report.first_difference >= common.end
    assert not report.epochs.is_contradicted_by(report.first_difference)


def test_logs_without_a_common_epoch_have_no_consistent_point():
    """Even if their bytes are equal."""
    files = whole().files()
    epochs = diff(files, files, left=[(1, 0)], right=[(5, 0)]).epochs
    assert (epochs.point, epochs.fault) == (None, None)
    assert not epochs.is_contradicted_by(7)


def test_a_difference_below_the_consistent_point_contradicts_it():
    """Stale bytes that came back behind a cut: nothing else shows them."""
    one, other = LogBuilder().fill(30, topic="a"), LogBuilder().fill(30, topic="b")
    report = diff(one.files(), other.files(), left=[(1, 0)], right=[(1, 0)])
    end = min(one.end, other.end)
    assert report.epochs.point == (1, end)
    assert report.epochs.is_contradicted_by(report.first_difference)
    assert [report.epochs.is_contradicted_by(n) for n in (end - 1, end, None)] == [
        True,
        False,
        False,
    ]
    assert not report.epochs.is_too_far_behind


def test_a_log_that_begins_after_the_consistent_point_is_too_far_behind():
    """Its bytes up to there have expired."""
    old = LogBuilder().fill(30)
    new = LogBuilder(min_offset=9 * FILE_SIZE).fill(3)
    epochs = diff(old.files(), new.files(), left=[(1, 0)], right=[(1, 0), (2, old.end)]).epochs
    assert epochs.point == (1, old.end)
    assert epochs.is_too_far_behind


def test_a_damaged_epoch_file_does_not_stop_the_comparison():
    """The bytes are compared, and the file is named."""
    files = whole().files()
    disk = disk_with(left=files, right=files)
    disk.write_file(f"/left/{EPOCH_FILE}", b"1\n1\n1-0\n")
    report = diff_logs(disk, find_log(disk, "/left"), find_log(disk, "/right"))
    assert report.verdict is DiffVerdict.EQUAL
    assert f"/left/{EPOCH_FILE}: its checksum" in report.epochs.fault


def test_an_epoch_file_that_the_disk_does_not_return_does_not_stop_the_comparison(tmp_path):
    """Here it is a directory."""
    for side in ("left", "right"):
        whole().write(tmp_path / side)
        (tmp_path / side / EPOCH_FILE).mkdir()
    disk = RealDisk()
    logs = (find_log(disk, str(tmp_path / side)) for side in ("left", "right"))
    report = diff_logs(disk, *logs)
    assert report.verdict is DiffVerdict.EQUAL
    assert EPOCH_FILE in report.epochs.fault
