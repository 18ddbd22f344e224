"""The new ends of consume queues: found before anything is changed, and then the only truth."""

import pytest

from hastore.store.queue.unit import BLANK, UNIT
from hastore.store.recovery.cut_queues import cut_queues, find_queue_ends
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.scripted_disk import sync_failed

FILE_UNITS = 4
QUEUE = "/d/consumequeue/orders/0"


def kept(number):
    """A unit of a record below 1,000."""
    return UNIT.pack(number * 10, 10, number)


def lost(number):
    """A unit of a record from 1,000 on."""
    return UNIT.pack(1_000 + number * 10, 10, number)


TORN = UNIT.pack(-5, 10, 0)
ZEROS = bytes(20)


def disk_with(*units, first=0):
    """A disk with one queue, which begins at a file."""
    disk = FakeDisk()
    for at in range(0, len(units), FILE_UNITS):
        data = b"".join(units[at : at + FILE_UNITS]).ljust(20 * FILE_UNITS, b"\0")
        disk.put(f"{QUEUE}/{20 * (first + at):020d}", data)
    return disk


def ends(disk):
    return find_queue_ends(disk, "/d", 20 * FILE_UNITS, 1_000)


def image(disk):
    return b"".join(data for _, data in sorted(disk.files(f"{QUEUE}/").items()))


@pytest.mark.parametrize(
    ("units", "end"),
    [
        ([kept(1), kept(2), lost(1)], 2),
        ([kept(1), kept(2), lost(1), lost(2), lost(3), lost(4), lost(5)], 2),
        ([kept(1), kept(2), kept(3), kept(4), lost(1)], 4),
        ([BLANK, BLANK, kept(1), lost(1)], 3),
        ([BLANK, BLANK, BLANK, lost(1)], 0),
        ([BLANK, BLANK, BLANK, BLANK, lost(1)], 0),
        ([kept(1), BLANK, kept(2), BLANK, lost(1)], 3),
        ([kept(1), BLANK, BLANK, BLANK, BLANK, lost(1)], 1),
        ([kept(1), lost(1), BLANK, lost(2)], 1),
        ([kept(1), UNIT.pack(995, 10, 0)], 1),
        ([kept(1), *[lost(n) for n in range(20)]], 1),
        ([*[kept(n) for n in range(17)], lost(1)], 17),
        ([kept(1), TORN, lost(1)], 1),
        ([kept(1), ZEROS, kept(2), lost(1)], 3),
        ([kept(1), lost(1), ZEROS, kept(2)], 1),
        ([kept(1), lost(1), kept(2), kept(3), kept(4)], 1),
    ],
)
@pytest.mark.parametrize("first", [0, 100])
def test_queue_ends_after_its_last_unit_before_the_cut(units, end, first):
    """What follows is zeros, on disk too, and files without a unit are gone."""
    disk = disk_with(*units, first=first)
    before = image(disk)
    found = ends(disk)
    wanted = (first + end) * 20 if end else 0
    assert found == {"orders/0": wanted}
    assert image(disk) == before
    for _ in range(2):
        cut_queues(disk, "/d", found)
        after = image(disk.cut_power())
        assert after[: 20 * end] == before[: 20 * end]
        assert not after[20 * end :].strip(b"\0")
        assert len(after) == -(-end // FILE_UNITS) * FILE_UNITS * 20


@pytest.mark.parametrize(
    "units", [[], [kept(1)], [kept(1), BLANK], [BLANK], [kept(1), TORN], [kept(1), ZEROS, kept(2)]]
)
def test_queue_without_units_of_cut_records_is_left_alone(units):
    """Whatever else is wrong with it, the next opening repairs."""
    assert ends(disk_with(*units)) == {}


def test_half_zeroed_unit_does_not_move_the_end():
    """Killed within its offset, the first cut unit would look like that of an earlier record."""
    disk = disk_with(kept(1), kept(2), lost(30), lost(31))
    found = ends(disk)
    disk.overwrite(f"{QUEUE}/{0:020d}", 40, bytes(7))
    assert ends(disk) != found
    cut_queues(disk, "/d", found)
    assert image(disk) == (kept(1) + kept(2)).ljust(80, b"\0")


def test_queue_whose_directory_is_gone_is_cut():
    """Somebody removed the queues, to have them built again."""
    cut_queues(FakeDisk(), "/d", {"orders/0": 40})


def test_failed_sync_is_raised_and_repeated():
    """The second time every byte is read from the disk."""
    disk = disk_with(kept(1), lost(1))
    found = ends(disk)
    error = sync_failed()
    disk.fail("sync", error, times=1)
    with pytest.raises(type(error)):
        cut_queues(disk, "/d", found)
    cut_queues(disk, "/d", found)
    assert image(disk.cut_power()) == kept(1).ljust(80, b"\0")
