"""The simulated disk loses what a real one may lose, and nothing else."""

import itertools
import random

import pytest

from hastore.env.interface import SECTOR_SIZE
from hastore.errors import DiskError, DiskFullError, FlushFailedError
from hastore.sim.disk import SimDisk
from hastore.sim.host import SimOffload, SimWallClock, sim_env

PATH = "/d/commitlog/0"


@pytest.fixture
def disk():
    return SimDisk(lambda: 5)


def synced_file(disk, data=b"a" * 2048, path=PATH):
    """Create a file, write and sync it; return it open."""
    file = disk.create_file(path, 4096)
    file.buffer[: len(data)] = data
    file.sync()
    return file


def test_synced_bytes_survive_a_kill_and_a_power_cut(disk):
    """Nothing in a file is lost after its sync."""
    synced_file(disk)
    for after in (disk.after_kill(), disk.after_power_cut(lambda: False)):
        assert after.read_file(PATH)[:2048] == b"a" * 2048


def test_a_power_cut_ends_a_boot_and_a_kill_does_not(disk):
    """As the kernel's boot_id on a real machine."""

    def boot_id(disk):
        clock = SimWallClock()
        return sim_env(disk, clock, SimOffload(random.Random(0)), process_id=1).boot_id

    cut = disk.after_power_cut(lambda: True)
    assert boot_id(disk.after_kill()) == boot_id(disk)
    assert boot_id(cut) != boot_id(disk)
    assert boot_id(cut.after_kill()) == boot_id(cut)
    assert boot_id(cut.after_kill().after_power_cut(lambda: True)) not in {
        boot_id(disk),
        boot_id(cut),
    }


def test_storage_is_lost_without_a_reboot(disk):
    """Unsynced bytes are gone, as after a power cut, and the boot is the same."""
    file = synced_file(disk)
    file.pwrite(b"new", 0)
    lost = disk.after_storage_was_lost(lambda: False)
    assert lost.read_file(PATH)[:4] == b"aaaa"
    assert lost.power_cuts == disk.power_cuts


def test_a_snapshot_has_what_programs_see(disk):
    """The page cache is in it, and later changes of the disk are not."""
    file = synced_file(disk)
    file.pwrite(b"new", 0)
    copy = disk.snapshot()
    file.pwrite(b"old", 0)
    assert copy.read_file(PATH)[:3] == b"new"
    assert copy.durable_range(PATH, 0, 3) == b"new"


def test_no_fault_meets_what_a_person_does(disk):
    """A planned fault waits for the node."""
    synced_file(disk)
    disk.read_failures = 1
    with disk.without_faults():
        disk.read_file(PATH)
    with pytest.raises(DiskError):
        disk.read_file(PATH)


def test_unsynced_bytes_survive_a_kill_but_not_a_power_cut(disk):
    """This holds for writes through the map and for pwrite."""
    file = synced_file(disk)
    file.buffer[0:4] = b"new1"
    file.pwrite(b"new2", 1024)
    killed, cut = disk.after_kill(), disk.after_power_cut(lambda: False)
    assert (killed.read_file(PATH)[:4], killed.read_file(PATH)[1024:1028]) == (b"new1", b"new2")
    assert cut.read_file(PATH)[:2048] == b"a" * 2048
    assert disk.durable_range(PATH, 0, 4) == b"aaaa"
    assert disk.cached_range(PATH, 0, 4) == b"new1"


def test_a_power_cut_keeps_or_loses_each_sector_whole(disk):
    """Neighbouring sectors are independent."""
    file = synced_file(disk, b"")
    file.buffer[:2048] = b"b" * 2048
    keeps = itertools.cycle((True, False)).__next__
    after = disk.after_power_cut(keeps).read_file(PATH)
    sectors = [after[start : start + SECTOR_SIZE] for start in range(0, 2048, SECTOR_SIZE)]
    assert sectors == [b"b" * SECTOR_SIZE, bytes(SECTOR_SIZE)] * 2


def test_a_failed_sync_marks_unwritten_pages_clean(disk):
    """The next sync succeeds and writes nothing; bytes written again after that reach the disk."""
    file = synced_file(disk)
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


def test_forget_makes_reads_return_the_disks_bytes(disk):
    """They differ from the cache only after a failed sync."""
    file = synced_file(disk)
    file.forget()
    disk.sync_failures = 1
    file.buffer[0:4] = b"lost"
    with pytest.raises(FlushFailedError):
        file.sync()
    file.forget()
    assert file.pread(4, 0) == b"aaaa"


def test_a_page_of_a_failed_sync_takes_no_writes_until_forgotten(disk):
    """ext4 counts its block as written; a kill does not change that, forgetting the page does."""
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


def test_a_sparse_files_name_is_durable_after_sync_dir(disk):
    """Before that, a consume queue's file survives a kill, but not every power cut."""
    disk.make_dirs("/d/q")
    disk.open_sparse_file("/d/q/0", 100).pwrite(b"x", 0)
    assert disk.after_kill().exists("/d/q/0")
    assert not disk.after_power_cut(lambda: False).exists("/d/q/0")
    assert disk.after_power_cut(lambda: True).exists("/d/q/0")
    disk.sync_dir("/d/q")
    assert disk.after_power_cut(lambda: False).exists("/d/q/0")


def test_sync_dir_covers_the_directorys_entries_only(disk):
    """Names further below, and the directory's own name, need syncs of their directories."""
    disk.make_dirs("/d/q")
    disk.open_sparse_file("/d/q/t/0/file", 100).pwrite(b"x", 0)
    for synced, is_there in (("/d/q", False), ("/d/q/t", False), ("/d/q/t/0", True)):
        disk.sync_dir(synced)
        after = disk.after_power_cut(lambda: False)
        assert after.exists("/d/q/t/0/file") is is_there
    assert disk.after_power_cut(lambda: False).exists("/d/q/t/0")


def test_sparse_file_needs_its_directory_if_told_so(disk):
    """As the real disk: neither the file nor the directory is made."""
    with pytest.raises(DiskError, match="no such directory"):
        disk.open_sparse_file("/d/q/0/file", 100, make_dirs=False)
    assert not disk.exists("/d/q")
    disk.make_dirs("/d/q/0")
    disk.open_sparse_file("/d/q/0/file", 100, make_dirs=False).pwrite(b"x", 0)
    assert disk.exists("/d/q/0/file")


def test_a_full_disk_refuses_new_blocks(disk):
    """New files, small files and holes need some; allocated blocks can still be written."""
    file = synced_file(disk)
    sparse = disk.open_sparse_file("/d/q/0", 100)
    disk.fill()
    for refused in (
        lambda: disk.create_file("/d/new", 10),
        lambda: disk.write_file("/d/small", b"x"),
        lambda: sparse.pwrite(b"x", 0),
    ):
        with pytest.raises(DiskFullError):
            refused()
    file.pwrite(b"y", 0)
    assert disk.space("/d").free_bytes == 0


def test_a_read_failure_raises_disk_error(disk):
    """Each planned failure affects one read."""
    file = synced_file(disk)
    disk.read_failures = 1
    with pytest.raises(DiskError, match="Input/output error"):
        file.pread(1, 0)
    assert file.pread(1, 0) == b"a"


def test_a_crash_releases_locks_and_ends_the_old_boots_writes(disk):
    """Later writes of the old boot are not on the new boot's disk."""
    file = synced_file(disk)
    disk.lock("/d/lock")
    after = disk.after_kill()
    file.buffer[0:4] = b"dead"
    disk.remove(PATH)
    assert after.read_file(PATH)[:4] == b"aaaa"
    after.lock("/d/lock")
    assert after.open_file(PATH, writable=True).buffer[:4] == b"aaaa"


def test_directories_are_listed_renamed_and_removed(disk):
    """Listings are sorted by name and one level deep; the others include the contents."""
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


def test_files_that_are_removed_under_a_program_are_lost(disk):
    """It still reads, writes and syncs them; the next process finds none."""
    file = disk.create_file("/d/log/0", 4096)
    held = disk.hold("/d/log")
    disk.lose("/d/log")
    file.pwrite(b"a", 0)
    file.sync()
    assert file.pread(1, 0) == b"a"
    assert file.lost_name() == held.lost_name() == "was removed or renamed"
    assert not disk.after_kill().exists("/d/log")
    assert not disk.exists("/d/log/0")
