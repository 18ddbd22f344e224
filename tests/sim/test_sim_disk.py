"""The simulated disk loses what a real one may lose, and nothing else."""

import itertools

import pytest

from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.sim.disk import SimDisk
from hastore.sim.inode import SECTOR_SIZE

PATH = "/d/commitlog/0"


@pytest.fixture
def disk():
    return SimDisk(lambda: 5)


def written(disk, data=b"a" * 2048, path=PATH):
    """Make a file, write and sync it; gives it open."""
    file = disk.create_file(path, 4096)
    file.buffer[: len(data)] = data
    file.sync()
    return file


def test_what_was_synced_survives_everything(disk):
    """Kill and power cut."""
    written(disk)
    for after in (disk.after_kill(), disk.after_power_cut(lambda: False)):
        assert after.read_file(PATH)[:2048] == b"a" * 2048


def test_what_was_not_synced_survives_a_kill_and_not_a_power_cut(disk):
    """Through the map, and by pwrite."""
    file = written(disk)
    file.buffer[0:4] = b"new1"
    file.pwrite(b"new2", 1024)
    killed, cut = disk.after_kill(), disk.after_power_cut(lambda: False)
    assert (killed.read_file(PATH)[:4], killed.read_file(PATH)[1024:1028]) == (b"new1", b"new2")
    assert cut.read_file(PATH)[:2048] == b"a" * 2048
    assert disk.durable_range(PATH, 0, 4) == b"aaaa"
    assert disk.cached_range(PATH, 0, 4) == b"new1"


def test_a_power_cut_keeps_or_loses_each_sector_by_itself(disk):
    """Whole, never half."""
    file = written(disk, b"")
    file.buffer[:2048] = b"b" * 2048
    keeps = itertools.cycle((True, False)).__next__
    after = disk.after_power_cut(keeps).read_file(PATH)
    sectors = [after[start : start + SECTOR_SIZE] for start in range(0, 2048, SECTOR_SIZE)]
    assert sectors == [b"b" * SECTOR_SIZE, bytes(SECTOR_SIZE)] * 2


def test_a_failed_sync_takes_pages_for_clean_that_the_disk_does_not_have(disk):
    """The next sync says yes and writes nothing; what is written again afterwards gets there."""
    file = written(disk)
    file.buffer[0:4] = b"lost"
    disk.sync_failures = 1
    with pytest.raises(FlushFailedError):
        file.sync()
    file.sync()
    assert disk.durable_range(PATH, 0, 4) == b"aaaa"
    assert file.pread(4, 0) == b"lost"
    file.buffer[0:4] = b"kept"
    file.sync()
    assert disk.durable_range(PATH, 0, 4) == b"kept"


def test_forget_reads_what_is_really_on_the_disk(disk):
    """After a failed sync; without one the cache is the disk's."""
    file = written(disk)
    file.forget()
    disk.sync_failures = 1
    file.buffer[0:4] = b"lost"
    with pytest.raises(FlushFailedError):
        file.sync()
    file.forget()
    assert file.pread(4, 0) == b"aaaa"


def test_a_page_that_a_failed_sync_left_unwritten_takes_nothing_until_it_is_forgotten(disk):
    """ext4 takes its block for written; a kill does not end that, forgetting the page does."""
    file = disk.create_file(PATH, 8_192)
    file.buffer[4_096:4_100] = b"lost"
    disk.sync_failures = 1
    with pytest.raises(FlushFailedError):
        file.sync()
    file.close()
    disk = disk.after_kill()
    file = disk.open_file(PATH, writable=True)
    file.buffer[0:1] = b"x"
    file.buffer[4_096:4_100] = b"more"
    file.sync()
    assert disk.durable_range(PATH, 0, 1) == b"x"
    assert disk.durable_range(PATH, 4_096, 4) == bytes(4)
    assert disk.after_power_cut(lambda: True).cached_range(PATH, 4_096, 4) == bytes(4)
    file.forget(4_096)
    assert file.pread(4, 4_096) == bytes(4)
    file.buffer[4_096:4_100] = b"kept"
    file.sync()
    assert disk.durable_range(PATH, 4_096, 4) == b"kept"


def test_the_name_of_a_sparse_file_is_durable_once_its_directory_is_synced(disk):
    """A consume queue's file may be gone after a power cut, and is there after a kill."""
    disk.make_dirs("/d/q")
    disk.open_sparse_file("/d/q/0", 100).pwrite(b"x", 0)
    assert disk.after_kill().exists("/d/q/0")
    assert not disk.after_power_cut(lambda: False).exists("/d/q/0")
    assert disk.after_power_cut(lambda: True).exists("/d/q/0")
    disk.sync_dir("/d/q")
    assert disk.after_power_cut(lambda: False).exists("/d/q/0")


def test_a_sync_of_a_directory_is_for_what_is_in_it_only(disk):
    """The names of those further below, and its own, need each a sync of what they are in."""
    disk.make_dirs("/d/q")
    disk.open_sparse_file("/d/q/t/0/file", 100).pwrite(b"x", 0)
    for synced, is_there in (("/d/q", False), ("/d/q/t", False), ("/d/q/t/0", True)):
        disk.sync_dir(synced)
        after = disk.after_power_cut(lambda: False)
        assert after.exists("/d/q/t/0/file") is is_there
    assert disk.after_power_cut(lambda: False).exists("/d/q/t/0")


def test_a_full_disk_refuses_what_has_no_room_yet(disk):
    """New files, small files, and holes; what is allocated can be written."""
    file = written(disk)
    sparse = disk.open_sparse_file("/d/q/0", 100)
    disk.is_full = True
    for refused in (
        lambda: disk.create_file("/d/new", 10),
        lambda: disk.write_file("/d/small", b"x"),
        lambda: sparse.pwrite(b"x", 0),
    ):
        with pytest.raises(DiskFullError):
            refused()
    file.pwrite(b"y", 0)
    assert disk.free_bytes("/d") == 0


def test_a_read_error_is_one_of_the_disk(disk):
    """Once for each that was asked for."""
    file = written(disk)
    disk.read_failures = 1
    with pytest.raises(DiskError, match="Input/output error"):
        file.pread(1, 0)
    assert file.pread(1, 0) == b"a"


def test_a_crash_closes_and_unlocks_everything_and_the_dead_change_nothing(disk):
    """What the old boot still writes is not on the new boot's disk."""
    file = written(disk)
    disk.lock("/d/lock")
    after = disk.after_kill()
    file.buffer[0:4] = b"dead"
    disk.remove(PATH)
    assert after.read_file(PATH)[:4] == b"aaaa"
    after.lock("/d/lock")
    assert after.open_file(PATH, writable=True).buffer[:4] == b"aaaa"


def test_directories_are_listed_renamed_and_removed_with_what_is_in_them(disk):
    """Sorted by name, one level at a time."""
    disk.write_file("/d/b/f", b"12")
    disk.write_file("/d/a", b"1")
    assert [(e.name, e.size, e.is_dir) for e in disk.list_dir("/d")] == [
        ("a", 1, False),
        ("b", 0, True),
    ]
    disk.rename("/d/b", "/d/c")
    assert disk.read_file("/d/c/f") == b"12"
    assert not disk.exists("/d/b")
    disk.remove_tree("/d/c")
    assert not disk.exists("/d/c/f")
