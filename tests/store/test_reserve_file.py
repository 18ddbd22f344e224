"""The reserve of a full disk: small files that a change of roles needs are still written."""

import pytest

from hastore.errors import DiskFullError
from hastore.sim.disk import SimDisk
from hastore.store.epoch_file import EPOCH_FILE
from hastore.store.reserve_file import ReserveFile, write_beside_reserve
from hastore.store.store_lock import StoreLock

SIZE = 512 * 1024


@pytest.fixture
def disk():
    made = SimDisk(lambda: 1)
    made.make_dirs("/d")
    return made


def test_small_files_are_written_on_a_full_disk(disk):
    """Again and again: each time the reserve is there afterwards."""
    reserve = ReserveFile(disk, "/d")
    assert reserve.keep(SIZE) == SIZE
    disk.fill()
    with pytest.raises(DiskFullError):
        disk.write_file("/d/identity.json", b"1")
    for number in range(50):
        write_beside_reserve(disk, "/d/identity.json", b"%d" % number)
        write_beside_reserve(disk, f"/d/{EPOCH_FILE}", b"%d" % number)
        assert disk.exists(reserve.path)
    assert disk.read_file("/d/identity.json") == b"49"


def test_without_a_reserve_a_full_disk_is_an_error(disk):
    """A classic node keeps none."""
    disk.fill()
    with pytest.raises(DiskFullError):
        write_beside_reserve(disk, "/d/identity.json", b"1")
    assert not disk.exists("/d/reserve")


def test_a_store_is_marked_as_open_on_a_full_disk(disk):
    """Each role removes ``abort`` at its end, and the next one writes it."""
    ReserveFile(disk, "/d").keep(SIZE)
    lock = StoreLock.take(disk, "/d")
    disk.fill()
    for _ in range(3):
        lock.write_abort(7)
        assert not lock.last_exit_ok
        lock.release(clean=True)
        lock = StoreLock.take(disk, "/d")
    assert lock.last_exit_ok


def test_the_reserve_takes_the_room_that_is_left(disk):
    """Less than what is wanted is better than none; the rest follows once there is room."""
    reserve = ReserveFile(disk, "/d")
    reserve.keep(SIZE)
    disk.fill()
    with reserve.freed():
        disk.write_file("/d/copy", bytes(SIZE // 2 + 1))
    assert disk.stamp(reserve.path).size == SIZE // 4
    assert reserve.keep(SIZE) == SIZE // 4
    disk.make_room()
    assert reserve.keep(SIZE) == SIZE
    assert disk.stamp(reserve.path).size == SIZE


def test_a_directory_without_room_has_no_reserve(disk):
    """That is logged, and no error: the node may never need it."""
    disk.fill()
    assert ReserveFile(disk, "/d").keep(SIZE) == 0
    assert not disk.exists("/d/reserve")
