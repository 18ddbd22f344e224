"""Repair: damaged ranges get a replica's bytes, or are backed up and filled."""

from itertools import count
from random import Random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import DiskError, LogDamagedError, StoreLockedError
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, Unverified, read_identity
from hastore.store.record.message_codec import decode
from hastore.store.record.record_check import RecordKind, check_record
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.repair import log_repair, reasons
from hastore.store.tools.repair.filler import FILLER_SIZE_MIN, FILLER_TOPIC, can_fill, fill
from hastore.store.tools.repair.log_repair import apply_repair, is_unfinished
from hastore.store.tools.repair.plan import RepairAction, plan_repair
from hastore.store.tools.repair.source import DirectorySource
from tests.support.env.crash_points import DyingDisk, Killed
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import read_failed
from tests.support.store.log_builder import LogBuilder
from tests.support.store.recovering import FILE_SIZE, log_name, poke, recover

BODY = b"x" * 200


def stopped(count=40, *, clean=True):
    """A disk with a store in ``/d`` of a few files, and where its records begin."""
    disk = FakeDisk()
    store = recover(disk)
    offsets = [
        store.append(BODY + b"%d" % number, topic=f"t{number % 3}").physic_offset
        for number in range(count)
    ]
    end = store.log.max_offset
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    if clean:
        store.close()
    return disk.kill(), [*offsets, end]


def with_replica(disk):
    """The disk, with an undamaged copy of the store in ``/r``."""
    for path, inode in list(disk.inodes.items()):
        if path.startswith("/d/"):
            disk.put("/r" + path[2:], inode.seen())
    return disk


def repair(disk, *, source=None, backup_dir=None):
    plan = plan_repair(disk, "/d", source=source)
    report = apply_repair(fake_env(disk), plan, source=source, backup_dir=backup_dir)
    return plan, report


def source_of(disk):
    return DirectorySource(disk, "/r")


def bodies(store):
    return [int(body[200:]) for body in store.bodies() if body.startswith(BODY)]


def is_whole(disk):
    report = verify_log(disk, find_log(disk, "/d"))
    return report.is_whole, [f for f in report.findings if f.severity.value == "damage"]


def damage(disk, start, stop):
    """Overwrite a range, also across files, with bytes that form no record."""
    while start < stop:
        end = min(stop, start - start % FILE_SIZE + FILE_SIZE)
        poke(disk, start, b"\xa5" * (end - start))
        start = end


# -- nothing to do -------------------------------------------------------------------------------


def test_intact_log_needs_no_repair():
    """The plan is empty, and applying it changes nothing."""
    disk, _ = stopped()
    before = disk.files("/d/")
    plan, report = repair(disk)
    assert plan.is_empty
    assert plan.torn_at is None
    assert (report.saved_paths, report.units_blanked) == ((), 0)
    assert disk.files("/d/") == before


def test_torn_tail_is_left_to_the_next_start():
    """The plan reports it, but it is not damage: it lies after the flushed offset."""
    disk, offsets = stopped(clean=False)
    poke(disk, offsets[-1], b"\0\0\1\0torn")
    plan = plan_repair(disk, "/d")
    assert plan.is_empty
    assert plan.torn_at == offsets[-1]
    assert recover(disk).log.max_offset == offsets[-1]


def test_planning_changes_nothing():
    """A dry run is safe while an operator still decides what to do."""
    disk, offsets = stopped()
    with_replica(disk)
    damage(disk, offsets[3], offsets[5])
    before = disk.files("/")
    plan_repair(disk, "/d")
    plan_repair(disk, "/d", source=source_of(disk))
    assert disk.files("/") == before


# -- without a replica ---------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 1), (3, 4), (5, 2), (9, 30)])
def test_damaged_range_is_backed_up_and_filled(first, count):
    """The store opens, all other messages keep their places, and consumers receive no filler."""
    disk, offsets = stopped()
    last = min(first + count, 39)
    damage(disk, offsets[first], offsets[last])
    old = disk.files()
    plan, report = repair(disk)
    assert {part.action for part in plan.parts} == {RepairAction.FILL}
    assert report.units_blanked == last - first
    lost = range(first, last)
    store = recover(disk)
    assert bodies(store) == [number for number in range(40) if number not in lost]
    assert store.log.max_offset == offsets[-1]
    store.dispatch()
    expected = {}
    for number in range(40):
        if number not in lost:
            expected.setdefault((f"t{number % 3}", 0), {})[number // 3] = offsets[number]
    assert store.queue_contents() == expected
    assert store.append(topic="t0").queue_offset == 14
    for path in report.saved_paths:
        offset = int(path.rpartition("/")[2][:20])
        data = disk.inodes[path].seen()
        name = f"{offset - offset % FILE_SIZE:020d}"
        assert old[name][offset % FILE_SIZE : offset % FILE_SIZE + len(data)] == data
    whole, findings = is_whole(disk)
    assert whole, findings


def test_units_at_the_end_of_a_queue_are_removed():
    """RocketMQ would take blanked units at the end of a queue for dispatched messages."""
    disk, _ = stopped(10)
    store = recover(disk)
    last = store.append(b"other", topic="t1").physic_offset
    store.append(b"other", topic="t2")
    store.append(b"other", topic="t2")
    end = store.log.max_offset
    store.close()
    damage(disk, last, last + 100)
    _, report = repair(disk)
    assert report.units_blanked == 1
    units = disk.files("/d/consumequeue/t1/0/")[f"{0:020d}"]
    assert units[3 * 20 :] == bytes(1_000 - 60)
    store = recover(disk)
    assert store.log.max_offset == end
    assert store.append(topic="t1").queue_offset == 3


def test_damaged_end_of_a_file_becomes_a_filler_and_a_blank():
    """The next file stays unchanged."""
    disk, offsets = stopped()
    first = next(n for n, offset in enumerate(offsets) if offset >= FILE_SIZE)
    damage(disk, offsets[first - 2], FILE_SIZE)
    plan, _ = repair(disk)
    (part,) = plan.parts
    assert (part.start, part.stop) == (offsets[first - 2], FILE_SIZE)
    filler = decode(disk.files()[f"{0:020d}"][part.start : part.start + 125])
    assert (filler.topic, filler.sys_flag & 0xC) == (FILLER_TOPIC, 0xC)
    store = recover(disk)
    assert bodies(store) == [n for n in range(40) if n not in (first - 2, first - 1)]


def test_missing_file_is_recreated_with_fillers():
    """The messages before and after it are still served."""
    disk, offsets = stopped()
    disk.remove(log_name(FILE_SIZE))
    plan, report = repair(disk)
    assert [(p.start, p.stop, p.reason) for p in plan.parts] == [
        (FILE_SIZE, 2 * FILE_SIZE, "missing")
    ]
    assert report.saved_paths == ()
    store = recover(disk)
    lost = [n for n in range(40) if FILE_SIZE <= offsets[n] < 2 * FILE_SIZE]
    assert bodies(store) == [n for n in range(40) if n not in lost]
    assert store.log.max_offset == offsets[-1]


@pytest.mark.parametrize("how", ["flipped", "zeros", "file"])
def test_log_that_lost_flushed_records_at_its_end_is_cut_there(how):
    """The repair gives up the lost records and backs up the damaged bytes."""
    disk, offsets = stopped()
    if how == "flipped":
        poke(disk, offsets[-2] + 100, b"\xff")
        end = offsets[-2]
    elif how == "zeros":
        damage(disk, offsets[-3] + 30, offsets[-3] + 40)
        poke(disk, offsets[-2], bytes(offsets[-1] - offsets[-2]))
        end = offsets[-3]
    else:
        disk.remove(log_name(offsets[-1]))
        end = offsets[-1] - offsets[-1] % FILE_SIZE
    plan, report = repair(disk)
    assert {part.action for part in plan.parts} == {RepairAction.CUT}
    assert plan.parts[0].start == end
    assert f"on disk up to {offsets[-1]}" in str(plan.parts[0])
    store = recover(disk)
    assert store.log.max_offset == end
    assert store.report.trimmed is None
    assert bodies(store) == [n for n in range(40) if offsets[n] < end]
    assert bool(report.saved_paths) == (how != "file")


def test_backup_goes_to_the_given_directory():
    """trimmed/ is not used then."""
    disk, offsets = stopped()
    damage(disk, offsets[3], offsets[4])
    _, report = repair(disk, backup_dir="/elsewhere/b")
    assert report.saved_paths == (f"/elsewhere/b/{offsets[3]:020d}-1700000000000",)
    assert disk.files("/d/trimmed/") == {}


# -- with a replica ------------------------------------------------------------------------------


def swap(disk, one, other):
    first, second = disk.inodes[one].seen(), disk.inodes[other].seen()
    disk.put(one, second)
    disk.put(other, first)


def image(disk, offset):
    return disk.inodes[log_name(offset)].seen()


def two_places(disk, offsets):
    damage(disk, offsets[2] + 4, offsets[3])
    damage(disk, offsets[30], offsets[33] + 10)


DAMAGES = {
    "flip": lambda d, o: poke(d, o[7] + 100, b"\xff"),
    "hole": lambda d, o: poke(d, o[7] - 3, bytes(500)),
    "two places": two_places,
    "file end": lambda d, _: damage(d, FILE_SIZE - 300, FILE_SIZE + 200),
    "missing file": lambda d, _: d.remove(log_name(FILE_SIZE)),
    "zeroed first file": lambda d, _: d.put(log_name(0), bytes(FILE_SIZE)),
    "last record": lambda d, o: poke(d, o[-2] + 150, b"\0"),
    "lost end": lambda d, o: poke(d, o[-4] + 50, bytes(o[-1] - o[-4] - 50)),
    "missing last file": lambda d, o: d.remove(log_name(o[-1])),
    "short file": lambda d, _: d.put(log_name(FILE_SIZE), image(d, FILE_SIZE)[:1_000]),
    "long file": lambda d, _: d.put(log_name(FILE_SIZE), image(d, FILE_SIZE) + b"more"),
    "swapped files": lambda d, _: swap(d, log_name(0), log_name(FILE_SIZE)),
    "swapped last files": lambda d, o: swap(d, log_name(FILE_SIZE), log_name(o[-1])),
    "stale file": lambda d, _: d.put(log_name(2 * FILE_SIZE), image(d, 0)),
    "stale last file": lambda d, o: d.put(log_name(o[-1]), image(d, 0)),
}


def break_store(disk, offsets, how):
    """Damage a store in one of the named ways."""
    DAMAGES[how](disk, offsets)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_repair_from_a_replica_restores_every_byte(how, clean):
    """Afterwards the store opens with every message."""
    disk, offsets = stopped(clean=clean)
    with_replica(disk)
    before = disk.files()
    break_store(disk, offsets, how)
    assert disk.files() != before
    plan, _ = repair(disk, source=source_of(disk))
    assert {part.action for part in plan.parts} <= {RepairAction.REPLACE}
    after = disk.files()
    assert b"".join(after.values())[: offsets[-1]] == b"".join(before.values())[: offsets[-1]]
    store = recover(disk)
    assert bodies(store) == list(range(40))
    assert store.log.max_offset == offsets[-1]
    trimmed = store.report.trimmed  # a wrong file may hold bytes after the log's end
    assert trimmed is None or trimmed.physic_offset == offsets[-1]
    assert plan_repair(disk, "/d").is_empty


def test_repairs_a_slave_that_was_flushed_inside_a_record():
    """The replica's bytes are taken up to the flushed offset."""
    disk, offsets = stopped()
    whole = b"".join(disk.files().values())[: offsets[-1]]
    slave = FakeDisk()
    store = recover(slave, master=False)
    flushed = offsets[-2] + 40
    store.append_data(0, whole[:flushed])
    store.flush_log()
    slave = slave.kill()
    for path, inode in disk.inodes.items():
        slave.put("/r" + path[2:], inode.seen())
    poke(slave, offsets[-3] + 50, bytes(flushed - offsets[-3] - 50))
    with pytest.raises(LogDamagedError):
        recover(slave.kill(), master=False)
    repair(slave, source=source_of(slave))
    assert recover(slave, master=False).log.max_offset == offsets[-2]


@pytest.mark.parametrize("what", ["other log", "damaged there", "damaged beside", "too short"])
def test_unsuitable_replica_is_refused(what):
    """Planning fails with an error that names the replica, and nothing is changed."""
    disk, offsets = stopped()
    with_replica(disk)
    damage(disk, offsets[7], offsets[9])
    replica = f"/r/commitlog/{0:020d}"
    image = bytearray(disk.inodes[replica].seen())
    if what == "other log":
        store = recover(other := FakeDisk())
        for _ in range(40):
            store.append(BODY + b"12", topic="t9")
        image = bytearray(other.files()[f"{0:020d}"])
    elif what == "damaged there":
        image[offsets[8] + 90] ^= 1
    elif what == "damaged beside":
        image[offsets[9] + 90] ^= 1
    disk.put(replica, bytes(image))
    if what == "too short":
        for path in [path for path in disk.inodes if path.startswith("/r/commitlog")]:
            disk.remove(path)
        disk.put(f"/r/commitlog/{10 * FILE_SIZE:020d}", bytes(image))
    before = disk.files("/d/")
    with pytest.raises(LogDamagedError, match=r"^/r "):
        plan_repair(disk, "/d", source=source_of(disk))
    assert disk.files("/d/") == before


# -- interrupted and refused repairs -------------------------------------------------------------


@pytest.mark.parametrize("how", ["two places", "lost end", "missing file", "long file"])
@pytest.mark.parametrize("replica", [True, False], ids=["replica", "alone"])
def test_next_repair_completes_one_killed_at_any_operation(how, replica):
    """Log and queues end up as without the kill, and no byte is lost."""
    disk, offsets = stopped()
    with_replica(disk)
    break_store(disk, offsets, how)
    whole = DyingDisk.of(disk)
    repair(whole, source=source_of(whole) if replica else None)
    count = len(whole.operations)
    wanted = recover(whole.kill())
    for dies_at in range(count):
        for power in (False, True):
            dying = DyingDisk.of(disk, dies_at, 333)
            with pytest.raises(Killed):
                repair(dying, source=source_of(dying) if replica else None)
            after = dying.cut_power(lambda at=dies_at: at % 2 == 1) if power else dying.kill()
            repair(after, source=source_of(after) if replica else None)
            store = recover(after)
            assert bodies(store) == bodies(wanted)
            assert store.log.max_offset == wanted.log.max_offset
            assert store.queue_contents() == wanted.queue_contents()
            assert not replica or bodies(store) == list(range(40))


def test_store_in_use_is_not_repaired():
    """The process that holds the lock may be writing."""
    disk, offsets = stopped()
    damage(disk, offsets[3], offsets[4])
    plan = plan_repair(disk, "/d")
    lock = disk.lock("/d/lock")
    with pytest.raises(StoreLockedError):
        apply_repair(fake_env(disk), plan)
    lock.release()
    apply_repair(fake_env(disk), plan)
    assert disk.locked == set()


def test_log_that_changed_after_planning_is_not_repaired():
    """The plan no longer fits the log."""
    disk, offsets = stopped()
    damage(disk, offsets[3], offsets[4])
    plan = plan_repair(disk, "/d")
    disk.put(log_name(9 * FILE_SIZE), bytes(FILE_SIZE))
    with pytest.raises(LogDamagedError, match="changed since"):
        apply_repair(fake_env(disk), plan)


def test_directory_without_a_log_is_refused():
    """There is nothing to repair: a replica has to be copied instead."""
    disk, _ = stopped()
    for path in list(disk.files()):
        disk.remove(f"/d/commitlog/{path}")
    disk.make_dirs("/d/commitlog")
    with pytest.raises(LogDamagedError, match="no log file"):
        plan_repair(disk, "/d")


@attrs.define(eq=False)
class BadSector:
    """512 bytes of a file that cannot be read until their whole page is written."""

    path: str
    start: int
    is_healed: bool = False

    def on(self, disk):
        """Put this bad sector on a disk."""
        disk.before("pread", self.read, path=self.path)
        disk.before("pwrite", self.write, path=self.path)
        return disk

    def read(self, pread):
        end = pread.position + pread.size
        if not self.is_healed and pread.position < self.start + 512 and self.start < end:
            raise read_failed(self.path)

    def write(self, pwrite):
        """Refuse to write part of the bad page; writing all of it heals it."""
        page, end = self.start - self.start % 4096, pwrite.position + pwrite.size
        if not self.is_healed and pwrite.position < page + 4096 and page < end:
            if pwrite.position > page or end < page + 4096:
                raise DiskError(f"cannot write {self.path}: Input/output error", path=self.path)
            self.is_healed = True


@pytest.mark.parametrize("replica", [True, False], ids=["replica", "alone"])
def test_bad_sector_is_repaired(replica):
    """Unreadable bytes are damage; after a write of their whole page they can be read again."""
    disk, offsets = stopped()
    with_replica(disk)
    bad = BadSector(log_name(FILE_SIZE), 1_024).on(disk)
    with pytest.raises(DiskError, match="cannot read"):
        recover(bad)
    plan, _ = repair(bad, source=source_of(bad) if replica else None)
    (part,) = plan.parts
    assert part.start <= FILE_SIZE + 1_024
    assert part.stop >= FILE_SIZE + 1_536
    found = bodies(recover(bad))
    lost = [n for n in range(40) if part.start <= offsets[n] < part.stop]
    assert found == [n for n in range(40) if replica or n not in lost]


def test_bad_sector_after_the_log_is_zeroed():
    """It holds no data, but the next append to it would fail."""
    disk = FakeDisk()
    store = recover(disk, mapped_file_size=16_384)
    store.append(BODY)
    store.close()
    sector = BadSector(log_name(0), 9_000)
    bad = sector.on(disk.kill())
    plan, _ = repair(bad)
    (part,) = plan.parts
    assert (part.action, part.start, part.stop) == (RepairAction.ZERO, 8_192, 12_288)
    assert sector.is_healed
    assert recover(bad, mapped_file_size=None).bodies() == [BODY]


# -- fillers -------------------------------------------------------------------------------------


@given(size=st.integers(FILLER_SIZE_MIN, 3 * 1024 * 1024), offset=st.integers(0, 2**40))
def test_fillers_are_valid_records_that_cover_the_whole_gap(size, offset):
    """Their checksums are correct, and none is larger than 1 MiB."""
    data = b"".join(fill(offset, size, 5, to_file_end=False))
    assert len(data) == size
    position = 0
    while position < size:
        check = check_record(data, position, size - position + 8, offset + position)
        assert check.kind is RecordKind.MESSAGE
        assert check.size <= 1024 * 1024
        assert (check.sys_flag, check.store_timestamp_ms) == (0xC, 5)
        assert FILLER_TOPIC.startswith(check.topic.decode())
        position += check.size
    assert position == size


@pytest.mark.parametrize("size", [8, 9, 92, 124, 125, 132, 133, 134, 5_000])
def test_gap_at_the_end_of_a_file_ends_in_a_blank(size):
    """A BLANK takes at least 8 bytes; a filler message precedes it where both fit."""
    data = b"".join(fill(1_000, size, 5, to_file_end=True))
    assert len(data) == size
    first = check_record(data, 0, size, 1_000)
    if first.kind is RecordKind.MESSAGE:
        second = check_record(data, first.size, size - first.size, 1_000 + first.size)
        assert (second.kind, second.size) == (RecordKind.BLANK, size - first.size)
    else:
        assert (first.kind, first.size) == (RecordKind.BLANK, size)
        assert size < 133


def test_gap_too_small_for_a_record_cannot_be_filled():
    """It takes 92 bytes inside a file, 8 at its end; a smaller gap needs a replica."""
    assert not can_fill(91, to_file_end=False)
    assert can_fill(92, to_file_end=False)
    assert not can_fill(7, to_file_end=True)


# -- a replica that returns other bytes at each read ---------------------------------------------


@attrs.define
class ChangingSource:
    """A replica whose disk returns other bytes from its ``changes_after``-th read on."""

    source: DirectorySource
    changes_after: int
    name: str = "/r"
    reads: int = 0

    def read(self, physic_offset, size):
        """Read, perhaps with a flipped bit."""
        data = bytearray(self.source.read(physic_offset, size))
        self.reads += 1
        if self.reads > self.changes_after:
            data[-3] ^= 1
        return bytes(data)


@pytest.mark.parametrize("piece_size", [8 << 20, 400])
def test_bytes_that_were_not_checked_do_not_repair_a_log(monkeypatch, piece_size):
    """A part may be read again once it has been checked; then it must have the same bytes."""
    monkeypatch.setattr(log_repair, "_PIECE_SIZE", piece_size)
    disk, offsets = stopped()
    with_replica(of_a_group(disk))
    damage(disk, offsets[3], offsets[9])
    counting = ChangingSource(source_of(disk), 1000)
    plan_repair(disk, "/d", source=counting)
    for last in (False, True):
        copy = disk.kill()
        changing = ChangingSource(source_of(copy), counting.reads)
        plan = plan_repair(copy, "/d", source=changing)
        if last:  # of several pieces
            size = offsets[9] - offsets[3]
            changing.changes_after += -(-size // piece_size) - 1
        with pytest.raises(LogDamagedError, match="now than when they were checked"):
            apply_repair(fake_env(copy), plan, source=changing)
        assert unverified(copy) is not None
        assert not is_whole(copy)[0]
        plan, report = repair(copy, source=source_of(copy))
        assert report.unverified is unverified(copy) is None
        assert is_whole(copy)[0]


# -- a node of a replica group -------------------------------------------------------------------


def of_a_group(disk):
    """The disk, with an identity in ``/d``."""
    NodeIdentity.open(
        disk,
        "/d",
        node_id=2,
        group="g1",
        last_exit_ok=True,
        boot_id="b",
        randomness=Random(1),
        adopt=True,
    )
    return disk


def unverified(disk):
    return read_identity(disk, "/d").unverified


def test_a_filled_log_of_a_member_is_marked_before_a_byte_changes():
    """Killed at any write it says so, or the log is as it was; the range covers the damage."""
    disk, offsets = stopped()
    of_a_group(disk)
    damage(disk, offsets[3], offsets[5])
    damage(disk, offsets[20], offsets[21])
    before = {path: data for path, data in disk.files("/d/").items() if "commitlog" in path}
    plan = plan_repair(disk, "/d")
    for dies_at in count():
        copy = DyingDisk.of(disk.kill(), dies_at=dies_at)
        try:
            report = apply_repair(fake_env(copy), plan)
        except Killed:
            left = copy.kill()
            after = {path: data for path, data in left.files("/d/").items() if "commitlog" in path}
            assert unverified(left) is not None or after == before
        else:
            break
    assert dies_at > 5
    found = unverified(copy)
    assert report.unverified == found
    assert (found.begin, found.end) == (offsets[3], offsets[21])
    assert "filled" in found.why


def test_a_member_that_was_repaired_from_a_replica_is_verified():
    """Nothing is lost; but while the repair runs, and if it was unverified before, it is not."""
    disk, offsets = stopped()
    with_replica(of_a_group(disk))
    damage(disk, offsets[3], offsets[5])
    plan = plan_repair(disk, "/d", source=source_of(disk))
    for dies_at in count():
        copy = DyingDisk.of(disk.kill(), dies_at=dies_at)
        try:
            report = apply_repair(fake_env(copy), plan, source=source_of(copy))
        except Killed:
            left = copy.kill()
            assert unverified(left) is not None or is_whole(left)[0] or dies_at < 5
        else:
            break
    assert report.unverified is unverified(copy) is None
    former = Unverified(begin=7, end=9, why="before")
    NodeIdentity(disk, f"/d/{IDENTITY_FILE}", read_identity(disk, "/d")).mark_unverified(former)
    _, report = repair(disk, source=source_of(disk))
    assert report.unverified == unverified(disk) == attrs.evolve(former, end=offsets[5])


def test_a_repair_that_was_killed_is_verified_once_another_has_ended_it():
    """Also where the killed one had written all; a reason that was there before stays."""
    disk, offsets = stopped()
    with_replica(of_a_group(disk))
    damage(disk, offsets[3], offsets[5])
    damage(disk, offsets[20], offsets[21])
    plan = plan_repair(disk, "/d", source=source_of(disk))
    left_empty = 0
    for dies_at in count():
        copy = DyingDisk.of(disk.kill(), dies_at=dies_at)
        try:
            apply_repair(fake_env(copy), plan, source=source_of(copy))
        except Killed:
            after = copy.kill()
            began = unverified(after) is not None
            assert began == is_unfinished(after, "/d")
            again, report = repair(after, source=source_of(after))
            left_empty += began and again.is_empty
            cut = after.cut_power()
            assert report.unverified is unverified(cut) is None
            assert is_whole(cut)[0]
        else:
            break
    assert left_empty
    former = Unverified(begin=7, end=9, why="before")
    NodeIdentity(disk, f"/d/{IDENTITY_FILE}", read_identity(disk, "/d")).mark_unverified(former)
    killed = DyingDisk.of(disk.kill(), dies_at=dies_at - 2)
    with pytest.raises(Killed):
        apply_repair(fake_env(killed), plan, source=source_of(killed))
    after = killed.kill()
    _, report = repair(after, source=source_of(after))
    assert report.unverified == unverified(after) == attrs.evolve(former, end=offsets[21])


def test_a_replica_with_a_filler_leaves_a_member_unverified():
    """Its records are intact, and the messages are lost there, too."""
    disk, offsets = stopped()
    damage(disk, offsets[3], offsets[5])
    repair(disk)
    with_replica(of_a_group(disk))
    damage(disk, offsets[4] + 10, offsets[5])
    plan, report = repair(disk, source=source_of(disk))
    assert [part.has_filler for part in plan.parts] == [True]
    assert report.unverified == unverified(disk) is not None
    assert is_whole(disk)[0]


def test_a_cut_end_leaves_a_member_unverified():
    """It may have acknowledged what was cut off."""
    disk, offsets = stopped()
    of_a_group(disk)
    damage(disk, offsets[38], offsets[40])
    plan, report = repair(disk)
    assert [part.action for part in plan.parts] == [RepairAction.CUT]
    assert "cut" in report.unverified.why


def with_epochs(disk, path, *epochs):
    """The disk, with the epochs of a directory's log."""
    history = EpochHistory(tuple(EpochEntry(*each) for each in epochs))
    EpochFile(disk, f"{path}/{EPOCH_FILE}").store(history)
    return disk


def test_a_directory_of_another_epoch_is_no_source():
    """Its records are intact, but nobody may have acknowledged them; as from a master's port."""
    disk, offsets = stopped()
    of_a_group(disk)
    with_replica(disk)
    with_epochs(disk, "/d", (1, 0), (2, offsets[38]))
    with_epochs(disk, "/r", (1, 0))
    damage(disk, offsets[38], offsets[39])
    before = disk.files("/d/")
    with pytest.raises(LogDamagedError, match=rf"another one from {offsets[38]} on: its epochs"):
        plan_repair(disk, "/d", source=source_of(disk))
    with_epochs(disk, "/r", (1, 0), (3, offsets[20]))
    with pytest.raises(LogDamagedError, match=rf"another one from {offsets[20]} on: its epochs"):
        plan_repair(disk, "/d", source=source_of(disk))
    assert disk.files("/d/") == before
    with_epochs(disk, "/r", (1, 0), (2, offsets[38]), (3, offsets[39]))
    _, report = repair(disk, source=source_of(disk))
    assert report.unverified is unverified(disk) is None
    assert is_whole(disk)[0]


def test_a_directory_without_epochs_leaves_a_member_unverified():
    """A copy of the log alone, or that of an observer, does not say whose bytes it has."""
    disk, offsets = stopped()
    with_epochs(with_replica(of_a_group(disk)), "/d", (1, 0))
    damage(disk, offsets[3], offsets[5])
    plan, report = repair(disk, source=source_of(disk))
    assert plan.is_lossy
    assert not plan.lost
    assert report.unverified == unverified(disk) is not None
    assert report.unverified.why == "log repair took the bytes of a log without epochs"
    assert is_whole(disk)[0]


def members(disk):
    """The disk with two members' directories that have the log of the same master."""
    with_replica(of_a_group(disk))
    for path in "/d", "/r":
        with_epochs(disk, path, (1, 0))
    return disk


def mark(disk, begin, end, why):
    identity = NodeIdentity(disk, f"/r/{IDENTITY_FILE}", read_identity(disk, "/r"))
    identity.mark_unverified(Unverified(begin=begin, end=end, why=why))


@pytest.mark.parametrize("why", [reasons.UNPROVEN, "a test says so"])
def test_a_part_that_may_be_of_another_log_is_no_source(why):
    """Another part of it is."""
    disk, offsets = stopped()
    members(disk)
    mark(disk, offsets[4], offsets[6], why)
    beside = disk.kill()
    damage(disk, offsets[5], offsets[6])
    with pytest.raises(LogDamagedError, match=rf"no source for the bytes .* {why}"):
        plan_repair(disk, "/d", source=source_of(disk))
    damage(beside, offsets[6], offsets[7])
    _, report = repair(beside, source=source_of(beside))
    assert report.unverified is unverified(beside) is None


@pytest.mark.parametrize("why", sorted(reasons.INTACT_IS_RIGHT))
def test_an_intact_message_of_an_unverified_part_repairs_a_log(why):
    """The range is joined: a repair has touched a few of its records only."""
    disk, offsets = stopped()
    before = members(disk).files("/d/commitlog/")
    mark(disk, offsets[4], offsets[30], why)
    damage(disk, offsets[5], offsets[6])
    plan, report = repair(disk, source=source_of(disk))
    assert not plan.is_lossy
    assert report.unverified is unverified(disk) is None
    assert disk.files("/d/commitlog/") == before


def swapped(disk):
    """The disk, with the two directories' contents exchanged."""
    inodes = {path: inode.seen() for path, inode in disk.inodes.items()}
    for path, data in inodes.items():
        if path.startswith(("/d/", "/r/")):
            disk.put(("/r" if path.startswith("/d/") else "/d") + path[2:], data)
    return disk


def last_of_a_file(offsets):
    """Return the number of the last record of the first file."""
    return sum(offset < FILE_SIZE for offset in offsets) - 1


@pytest.mark.parametrize("whose", ["the replica's", "its own"])
@pytest.mark.parametrize("places", [(4, 6), (6, 4), (5, 6), (6, 5), (-1, 0), (0, -1), (-2, 0)])
def test_a_filler_beside_the_damage_makes_no_other_log(whose, places):
    """It is in the place of a message; the places count from the last one of a file."""
    disk, offsets = stopped()
    before = members(disk).files("/d/commitlog/")
    last = last_of_a_file(offsets)
    filled, damaged = (last + place for place in places) if min(places) < 1 else places
    damage(disk, offsets[filled], offsets[filled + 1])
    repair(disk)
    if whose == "the replica's":
        swapped(disk)
    kept = disk.files("/d/commitlog/")
    damage(disk, offsets[damaged], offsets[damaged + 1])
    plan, _ = repair(disk, source=source_of(disk))
    assert [(part.start, part.has_filler) for part in plan.parts] == [(offsets[damaged], False)]
    after = disk.files("/d/commitlog/")
    assert after == kept
    assert (after == before) == (whose == "the replica's")


def test_a_filler_of_the_replica_in_the_place_of_the_damage_is_a_loss():
    """An unverified replica has no other there."""
    disk, offsets = stopped()
    members(disk)
    damage(disk, offsets[5], offsets[6])
    repair(disk)
    swapped(disk)
    damage(disk, offsets[5], offsets[7])
    plan, report = repair(disk, source=source_of(disk))
    assert [part.has_filler for part in plan.parts] == [True]
    assert plan.is_lossy
    assert report.unverified == unverified(disk)
    assert report.unverified.why == reasons.FILLED


def test_what_is_unproven_stays_so_after_a_later_repair():
    """The ranges are joined, and have one reason."""
    disk, offsets = stopped()
    with_epochs(with_replica(of_a_group(disk)), "/d", (1, 0))
    damage(disk, offsets[3], offsets[5])
    repair(disk, source=source_of(disk))
    damage(disk, offsets[20], offsets[21])
    _, report = repair(disk)
    assert report.unverified.why == reasons.UNPROVEN
    assert (report.unverified.begin, report.unverified.end) == (offsets[3], offsets[21])


# -- records planted in a body -------------------------------------------------------------------


def planted(*, clean=True):
    """A disk with a store whose fifth message holds whole records, damaged; and where it is."""
    disk = FakeDisk()
    store = recover(disk)
    offsets = [store.append(BODY + b"%d" % number, topic="t0").physic_offset for number in range(4)]
    around = store.log.max_offset
    forged = LogBuilder(file_size=1 << 20, min_offset=around + 88 + 50, prop_crc=False)
    forged.add(b"FORGED", topic="secret").add(b"FORGED", topic="secret")
    body = b"p" * 50 + bytes(forged.data) + b"q" * 50
    assert store.append(body, topic="mine").physic_offset == around
    offsets += [
        store.append(BODY + b"%d" % number, topic="t0").physic_offset for number in range(4, 30)
    ]
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    if clean:
        store.close()
    disk = disk.kill()
    with_replica(disk)
    poke(disk, around, b"\xff" * 8)
    return disk, around, offsets


def without_queues(disk):
    for path in list(disk.inodes):
        if path.startswith("/d/consumequeue/"):
            disk.remove(path)
    return disk


def topics_of(disk):
    """The topics that a start dispatches, and the numbers of the messages that it serves."""
    store = recover(disk)
    store.dispatch()
    return {topic for topic, _ in store.queue_contents()}, bodies(store)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_planted_records_are_set_aside_with_the_record_around_them(clean):
    """Its unit says how long it was; all other messages stay, and dispatch finds no planted one."""
    disk, around, offsets = planted(clean=clean)
    plan, report = repair(disk)
    (part,) = plan.parts
    assert (part.start, part.stop) == (around, offsets[4])
    assert (part.action, part.unconfirmed, report.units_blanked) == (RepairAction.FILL, 2, 1)
    topics, found = topics_of(disk)
    assert "secret" not in topics
    assert found == list(range(30))


def test_without_queues_a_repair_sets_the_rest_of_the_file_aside():
    """The next file begins with a record; a rebuild from the repaired log serves no planted one."""
    disk, around, offsets = planted()
    plan, _ = repair(without_queues(disk))
    next_file = around - around % FILE_SIZE + FILE_SIZE
    (part,) = plan.parts
    assert (part.start, part.stop, part.action) == (around, next_file, RepairAction.FILL)
    assert part.unconfirmed == 2 + sum(around < offset < next_file for offset in offsets)
    topics, found = topics_of(disk)
    assert "secret" not in topics
    kept = [n for n, offset in enumerate(offsets) if offset < around or offset >= next_file]
    assert found == kept


def test_the_same_bytes_in_a_replica_confirm_what_follows_damage():
    """Without queues, too: nothing but the damaged record is replaced, and nothing is lost."""
    disk, around, offsets = planted()
    plan, _ = repair(without_queues(disk), source=source_of(disk))
    (part,) = plan.parts
    assert (part.start, part.stop) == (around, offsets[4])
    assert (part.action, plan.is_lossy) == (RepairAction.REPLACE, False)
    assert disk.files("/d/commitlog/") == disk.files("/r/commitlog/")
    topics, found = topics_of(disk)
    assert "secret" not in topics
    assert found == list(range(30))


def test_a_start_that_refuses_planted_records_can_be_repaired():
    """After a clean stop a start trims no end with what looks like records; a repair cuts it."""
    disk = FakeDisk()
    store = recover(disk)
    store.append(BODY + b"0", topic="t0")
    around = store.log.max_offset
    forged = LogBuilder(file_size=1 << 20, min_offset=around + 88 + 50, prop_crc=False)
    store.append(b"p" * 50 + bytes(forged.add(topic="secret").data) + b"q" * 50, topic="mine")
    store.close()
    disk = without_queues(disk.kill())
    disk.remove("/d/checkpoint")
    poke(disk, around, b"\xff" * 8)
    with pytest.raises(LogDamagedError, match="an intact record follows"):
        recover(disk)
    plan, _ = repair(disk)
    (part,) = plan.parts
    assert (part.start, part.action, part.unconfirmed) == (around, RepairAction.CUT, 1)
    topics, found = topics_of(disk)
    assert (topics, found) == ({"t0"}, [0])
