"""The epochs of a log: what each holds, and what cannot be right."""

import pytest

from hastore.env.real import RealDisk
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.store.epoch_file import EPOCH_FILE, EpochFile, encode_epochs
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_epochs import read_epochs
from tests.support.store.log_builder import FILE_SIZE, LogBuilder, disk_with


def epochs_of(files, *entries, queues=None):
    """Return the epochs of a log that is given as its files, perhaps with consume queues."""
    disk = disk_with(log=files)
    for name, content in (queues or {}).items():
        disk.make_dirs(f"/log/consumequeue/{name.rpartition('/')[0]}")
        disk.put(f"/log/consumequeue/{name}", content)
    history = EpochHistory(tuple(EpochEntry(*entry) for entry in entries))
    EpochFile(disk, f"/log/{EPOCH_FILE}").store(history)
    return read_epochs(disk, find_log(disk, "/log"))


def test_each_epoch_has_the_messages_from_its_start_to_the_next_ones():
    """The last one goes to the log's end, or is empty there."""
    log = LogBuilder().fill(30)
    second = log.offsets[10]
    found = epochs_of(log.files(), (1, 0), (4, second), (5, log.end))
    assert [(e.start_offset, e.end_offset, e.size, e.messages) for e in found.epochs] == [
        (0, second, second, 10),
        (second, log.end, log.end - second, 20),
        (log.end, log.end, 0, 0),
    ]
    assert [epoch.begins_at_record for epoch in found.epochs] == [True] * 3
    assert found.epochs[2].first_store_timestamp_ms is None
    assert (list(found.faults), found.damaged_at, found.max_offset) == ([], None, log.end)


def test_only_what_has_not_expired_is_counted():
    """An epoch may have begun, or even ended, in deleted files."""
    log = LogBuilder(min_offset=3 * FILE_SIZE).fill(10)
    start = 3 * FILE_SIZE
    found = epochs_of(log.files(), (1, 0), (2, 100), (3, log.offsets[4]))
    assert [(e.size, e.messages, e.begins_at_record) for e in found.epochs] == [
        (0, 0, None),
        (log.offsets[4] - start, 4, None),
        (log.end - log.offsets[4], 6, True),
    ]
    assert list(found.faults) == []


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([(1, 91)], "the log begins at 0, its first epoch at 91"),
        ([(1, 0), (2, 1)], "epoch 2 begins at 1, where no record begins"),
        ([(1, 0), (2, 10**6)], "epoch 2 begins at 1000000, after the log's end"),
    ],
)
def test_epochs_that_do_not_fit_the_log_are_named(entries, fault):
    """One of the two is not what it was."""
    found = epochs_of(LogBuilder().fill(10).files(), *entries)
    assert fault in "; ".join(found.faults)


def test_an_epoch_that_begins_inside_a_record_does_not_get_that_record():
    """It belongs to the epoch of its first byte."""
    log = LogBuilder().fill(10)
    found = epochs_of(log.files(), (1, 0), (2, log.offsets[5] + 1))
    assert [epoch.messages for epoch in found.epochs] == [6, 4]


def test_damage_in_the_log_is_not_blamed_on_the_epochs():
    """Nobody knows whether a record began there."""
    log = LogBuilder().fill(10)
    data = bytearray(log.data)
    data[log.offsets[5] : log.offsets[6]] = b"x" * (log.offsets[6] - log.offsets[5])
    entries = ((1, 0), (2, log.offsets[5]), (3, log.offsets[5] + 7))
    found = epochs_of(log.files(data), *entries, queues=log.queue_files())
    assert [epoch.begins_at_record for epoch in found.epochs] == [True, None, None]
    assert (list(found.faults), found.damaged_at) == ([], log.offsets[5])


def test_a_torn_tail_is_no_damage():
    """The next start trims it."""
    log = LogBuilder().fill(10)
    found = epochs_of(log.files(log.data[: log.offsets[9] + 60]), (1, 0))
    assert (found.damaged_at, found.max_offset) == (None, log.offsets[9])


def test_a_missing_file_is_damage():
    """The epoch that began in it is not to blame."""
    log = LogBuilder().fill(60)
    files = log.files()
    inside = next(offset for offset in log.offsets if offset > FILE_SIZE)
    del files[f"{FILE_SIZE:020d}"]
    found = epochs_of(files, (1, 0), (2, inside))
    assert list(found.faults) == []
    assert found.damaged_at is not None


def test_the_backup_is_named_if_it_was_read():
    """RocketMQ was killed while it wrote the file."""
    disk = disk_with(log=LogBuilder().fill(3).files())
    disk.put(f"/log/{EPOCH_FILE}", b"")
    disk.put(f"/log/{EPOCH_FILE}.bak", encode_epochs(EpochHistory((EpochEntry(1, 0),))))
    assert read_epochs(disk, find_log(disk, "/log")).path == f"/log/{EPOCH_FILE}.bak"


@pytest.mark.parametrize(
    ("path", "root"),
    [("/d/log/commitlog", "/d/log"), ("/commitlog", "/")],
)
def test_the_store_around_a_commitlog_directory_is_named_plainly(path, root):
    """Not as ``/d/log/commitlog/..``."""
    disk = disk_with(log=LogBuilder().fill(3).files())
    for name in disk.list_dir("/log/commitlog"):
        disk.put(f"{path}/{name.name}", disk.read_file(f"/log/commitlog/{name.name}"))
    assert find_log(disk, path).root == root


def test_the_store_around_a_commitlog_directory_may_be_the_working_directory(tmp_path, monkeypatch):
    """``cd DIR; hastore log epochs commitlog``."""
    (tmp_path / "commitlog").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_log(RealDisk(), "commitlog").root == "."


def test_a_log_without_epochs_is_not_walked():
    """Its end is found by its last file."""
    disk = disk_with(log=LogBuilder().fill(60).files())
    read = []
    found = read_epochs(disk, find_log(disk, "/log"), on_progress=read.append)
    assert (found.path, found.epochs, read) == (None, (), [])
    assert found.max_offset == LogBuilder().fill(60).end
