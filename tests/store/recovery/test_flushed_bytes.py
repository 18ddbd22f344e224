"""Recovery by checkpoint and consume queues: flushed bytes must be intact, or the node stops."""

import itertools

import attrs
import pytest

from hastore.errors import DiskError, FileSizeMismatchError, FlushFailedError, LogDamagedError
from hastore.store.queue import stale_units
from hastore.store.recovery.trim import write_again
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import FakeClock
from tests.support.env.scripted_disk import read_failed, sync_failed
from tests.support.store.recovering import FILE_SIZE, log_name, poke, recover

both_roles = pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])
BODY = b"x" * 200


def written(count=8, *, flushed=4, clean=False, gap_ms=10_000):
    """A stopped master's disk, each record's offset, and the log's end.

    The first ``flushed`` records were flushed and dispatched, the others only written. A pause of
    ``gap_ms`` separates the two groups, so that the first ones count as settled.
    """
    disk = FakeDisk()
    store = recover(disk)
    offsets = []
    for number in range(count):
        if number == flushed:
            store.dispatch()
            store.flush_log()
            store.flush_queues()
            store.clock.ms += gap_ms
        offsets.append(store.append(BODY, topic=f"t{number % 2}").physic_offset)
    end = store.log.max_offset
    if clean:
        store.close()
    return disk.kill(), offsets, end


def images(disk):
    """All files except ``abort`` and ``lock``, which show that a process was here."""
    return {name: data for name, data in disk.files("/d/").items() if name not in ("abort", "lock")}


# -- nothing wrong -------------------------------------------------------------------------------


@both_roles
def test_start_after_a_kill_recovers_and_syncs_everything(master):
    """Bytes that may be only in the page cache are written again; the checkpoint covers them."""
    disk, offsets, end = written()
    store = recover(disk, master=master)
    assert store.log.max_offset == store.log.flushed_offset == end
    assert store.bodies() == [BODY] * 8
    assert store.checkpoint.flushed_offset == end
    assert store.report.written_again == end - offsets[4]
    assert store.report.redispatch_from <= offsets[4]
    assert (store.report.trimmed, store.report.last_exit_ok) == (None, False)
    if master:
        assert store.append(topic="t0").queue_offset == 4
        assert store.append(topic="t1").queue_offset == 4
    store.dispatch()
    contents = store.queue_contents()
    assert contents["t0", 0] == dict(enumerate([*offsets[::2], end][: 5 if master else 4]))


def test_start_after_a_clean_stop_writes_nothing():
    """The whole log is on disk and dispatched, so nothing is synced or dispatched again."""
    disk, _, end = written(clean=True)
    disk.syncs.clear()
    store = recover(disk)
    assert disk.syncs == []
    assert store.report.written_again == 0
    assert store.report.redispatch_from == store.log.max_offset == end
    assert store.append(topic="t1").queue_offset == 4


def long_log(files=10, *, clean=False, settled=True):
    """A disk with a log of several files; only its last records are recent."""
    disk = FakeDisk()
    store = recover(disk)
    while store.log.max_offset < (files - 1) * FILE_SIZE + 2_000:
        store.clock.ms += 1_000
        store.append(BODY)
    if settled:
        store.dispatch()
        store.flush_log()
        store.flush_queues()
    store.clock.ms += 10_000
    for _ in range(3):
        store.append(BODY)
    end = store.log.max_offset
    if clean:
        store.close()
    return disk.kill(), end


def files_read(disk):
    """The log files of which more than the first record was read."""
    read = disk.bytes_read.items()
    return [path for path, size in read if "/commitlog/" in path and size > 1_000]


@both_roles
def test_long_log_is_walked_from_its_last_settled_file(master, monkeypatch):
    """Of the nine older files, at most the first record is read, and heads for the last units."""
    monkeypatch.setattr(stale_units, "UNITS_CHECKED_MAX", 1)
    disk, end = long_log()
    disk = disk.kill()
    store = recover(disk, master=master)
    assert store.log.max_offset == end
    walked = files_read(disk)
    assert walked == [log_name(end)]
    assert store.report.records < 20
    assert store.report.redispatch_from >= 9 * FILE_SIZE
    if master:
        assert store.append(BODY, topic="orders").queue_offset == len(store.bodies()) - 1


@both_roles
def test_cleanly_stopped_log_is_walked_from_its_third_last_file(master):
    """This is RocketMQ's normal recovery."""
    disk, end = long_log(clean=True)
    disk = disk.kill()
    recover(disk, master=master)
    walked = files_read(disk)
    assert sorted(walked) == [log_name(end - back * FILE_SIZE) for back in (2, 1, 0)]


def test_log_that_was_never_dispatched_is_walked_from_its_start():
    """So are logs of older hastore versions: only the records hold the queue offsets."""
    disk, _ = long_log(settled=False)
    store = recover(disk)
    assert store.report.redispatch_from == 0
    count = len(store.bodies())
    assert store.report.records == count
    assert store.append(BODY, topic="orders").queue_offset == count


def test_walk_begins_earlier_if_consume_queues_lag():
    """Every record without a unit is dispatched again."""
    disk, _ = long_log(clean=True)
    for path in sorted(p for p in disk.inodes if "/consumequeue/" in p)[1:]:
        disk.remove(path)
    store = recover(disk)
    assert store.report.redispatch_from < 5 * FILE_SIZE  # 50 units are left
    assert store.report.records > len(store.bodies()) - 50
    assert store.append(BODY, topic="orders").queue_offset == len(store.bodies()) - 1
    store.dispatch()
    assert len(store.queue_contents()["orders", 0]) == len(store.bodies())


def test_lost_consume_queues_are_rebuilt():
    """Their directory was removed, so the whole log is dispatched again."""
    disk, _ = long_log(clean=True)
    for path in [p for p in disk.inodes if "/consumequeue/" in p]:
        disk.remove(path)
    store = recover(disk)
    assert store.report.redispatch_from == 0
    store.dispatch()
    assert len(store.queue_contents()["orders", 0]) == len(store.bodies())


def test_consume_queues_ahead_of_the_log_are_cut():
    """Units of records that did not survive are dropped."""
    disk = FakeDisk()
    store = recover(disk)
    for number in range(6):
        offset = store.append(BODY).physic_offset
        if number == 2:
            store.flush_log()
            cut = store.log.max_offset
    store.dispatch()
    store.flush_queues()
    after = disk.cut_power()
    store = recover(after)
    assert store.log.max_offset == cut <= offset
    assert store.append().queue_offset == 3
    store.dispatch()
    assert len(store.queue_contents()["orders", 0]) == 4


def test_queue_units_lost_in_a_power_cut_are_dispatched_again():
    """Other queues may hold later units, so the time of the queue flush decides."""
    disk = FakeDisk()
    store = recover(disk)
    for number in range(20):
        store.append(BODY, topic=f"t{number % 2}")
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    store.clock.ms += 10_000
    for number in range(20):
        store.append(BODY, topic=f"t{number % 2}")
    store.dispatch()
    store.flush_log()
    for path in [path for path in disk.inodes if "consumequeue/t1" in path]:
        disk.inodes[path].durable = disk.inodes[path].seen()  # t1 made it to the disk, t0 did not
    store = recover(disk.cut_power())
    store.dispatch()
    contents = store.queue_contents()
    assert [len(contents[f"t{number}", 0]) for number in (0, 1)] == [20, 20]
    assert store.append(topic="t0").queue_offset == 20


# -- damage below the durable boundary -----------------------------------------------------------


@both_roles
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_flipped_byte_below_the_flushed_offset_is_never_trimmed(master, clean):
    """The start fails and names the record's offset, also for the last flushed record."""
    disk, offsets, end = written(clean=clean)
    flushed = end if clean else offsets[4]
    starts = [*offsets, end]
    whole = disk.inodes[log_name(0)].seen()
    for offset in range(0, flushed, 3):
        crashed = disk.kill()
        poke(crashed, offset, bytes([whole[offset] ^ 0x20]))
        before = images(crashed)
        with pytest.raises(LogDamagedError, match="nothing was changed") as caught:
            recover(crashed, master=master)
        assert caught.value.physic_offset == max(s for s in starts if s <= offset), offset
        assert "hastore log repair /d" in caught.value.hint
        assert images(crashed) == before
        assert crashed.locked == set()


@both_roles
def test_log_that_lost_flushed_records_at_its_end_is_refused(master):
    """Zeros in place of flushed records are not the log's end."""
    disk, offsets, end = written()
    poke(disk, offsets[2], bytes(end - offsets[2]))
    with pytest.raises(LogDamagedError, match=f"on disk up to {offsets[4]}") as caught:
        recover(disk, master=master)
    assert caught.value.physic_offset == offsets[2]


@both_roles
def test_missing_last_file_is_refused(master):
    """The checkpoint's flushed offset shows that the log was longer."""
    disk, end = long_log(clean=True)
    disk.remove(log_name(end))
    with pytest.raises(LogDamagedError, match=f"on disk up to {end}") as caught:
        recover(disk, master=master)
    assert caught.value.physic_offset == 9 * FILE_SIZE


@both_roles
def test_missing_log_is_refused(master):
    """An empty commitlog/ beside a checkpoint with a flushed offset is not a new store."""
    disk, _, end = written(clean=True)
    disk.remove(log_name(0))
    with pytest.raises(LogDamagedError, match=f"on disk up to {end}"):
        recover(disk, master=master)
    disk.remove("/d/checkpoint")
    assert recover(disk, master=master).log.max_offset == 0


@both_roles
def test_file_missing_in_the_middle_is_refused(master):
    """The error names the missing file."""
    disk, _ = long_log(clean=True)
    disk.remove(log_name(4 * FILE_SIZE))
    with pytest.raises(LogDamagedError, match=f"{4 * FILE_SIZE:020d} is missing") as caught:
        recover(disk, master=master)
    assert caught.value.physic_offset == 4 * FILE_SIZE


@both_roles
@pytest.mark.parametrize("files", [(9, 8), (9, 7), (9, 0), (8, 2)])
def test_swapped_files_are_refused(master, files):
    """Their records are intact, but each holds another physical offset."""
    disk, _ = long_log(clean=True)
    one, other = (log_name(number * FILE_SIZE) for number in files)
    first, second = disk.inodes[one].seen(), disk.inodes[other].seen()
    disk.put(one, second)
    disk.put(other, first)
    with pytest.raises(LogDamagedError, match=r"bad-physic-offset|empty") as caught:
        recover(disk, master=master)
    assert caught.value.physic_offset % FILE_SIZE == 0


@both_roles
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_copy_of_an_older_file_is_refused(master, clean):
    """It replaces the last file, with records that pass their checksums."""
    disk, end = long_log(clean=clean)
    disk.put(log_name(end), disk.inodes[log_name(3 * FILE_SIZE)].seen())
    with pytest.raises(LogDamagedError, match="bad-physic-offset"):
        recover(disk, master=master)


@both_roles
def test_older_version_of_the_last_file_is_refused(master):
    """A backup was restored: its records are intact, but some are missing."""
    disk, offsets, end = written(clean=True)
    poke(disk, offsets[6], bytes(end - offsets[6]))
    with pytest.raises(LogDamagedError, match="empty") as caught:
        recover(disk, master=master)
    assert caught.value.physic_offset == offsets[6]


@both_roles
@pytest.mark.parametrize("size", [FILE_SIZE - 1, 100, FILE_SIZE + 1])
def test_file_of_another_size_is_refused(master, size):
    """A start never extends or shortens such a file."""
    disk, _ = long_log(clean=True)
    for number in (9, 5):
        changed = disk.kill()
        image = changed.inodes[log_name(number * FILE_SIZE)].seen()
        changed.put(log_name(number * FILE_SIZE), image.ljust(size, b"\1")[:size])
        with pytest.raises(FileSizeMismatchError):
            recover(changed, master=master)


@both_roles
def test_unreadable_log_file_stops_the_start(master):
    """The error names the file, nothing is changed, and the lock is released."""
    disk, _, _ = written()
    before = images(disk)

    disk.fail("pread", read_failed, path="/commitlog/")
    with pytest.raises(DiskError, match=f"cannot read {log_name(0)}"):
        recover(disk, master=master)
    assert images(disk) == before
    assert disk.locked == set()


# -- holes above the durable boundary ------------------------------------------------------------


@both_roles
@pytest.mark.parametrize("lost", [4, 5, 6, 7])
def test_log_is_cut_at_a_hole_above_the_flushed_offset(master, lost):
    """A power cut under ASYNC_FLUSH can lose one sector; intact records after it are cut too."""
    disk, offsets, end = written()
    tail = disk.inodes[log_name(0)].seen()[offsets[lost] : end]
    poke(disk, offsets[lost] + 20, bytes(60))
    cut = disk.inodes[log_name(0)].seen()[offsets[lost] : end]
    store = recover(disk, master=master)
    assert store.log.max_offset == offsets[lost]
    trimmed = store.report.trimmed
    assert (trimmed.physic_offset, trimmed.size) == (offsets[lost], len(cut))
    assert trimmed.intact_offset == (offsets[lost + 1] if lost < 7 else None)
    assert list(disk.files("/d/trimmed/").values()) == [cut]
    assert disk.inodes[log_name(0)].durable[offsets[lost] :] == bytes(FILE_SIZE - offsets[lost])
    assert store.checkpoint.flushed_offset == offsets[lost]
    if master:
        store.append(BODY[:-1], topic="other")  # one byte shorter than the old record
    else:
        store.append_data(offsets[lost], tail[:10])
    again = recover(disk.kill(), master=master)
    assert again.log.max_offset == (store.log.max_offset if master else offsets[lost])
    assert again.report.trimmed is None or not master


@both_roles
def test_cut_at_a_hole_clears_all_later_files(master):
    """The intact records after the hole are kept in trimmed/."""
    disk = FakeDisk()
    store = recover(disk)
    store.append(BODY)
    store.flush_log()
    offsets = []
    while store.log.max_offset < 4 * FILE_SIZE:
        offsets.append(store.append(BODY).physic_offset)
    end = store.log.max_offset
    whole = store.all_bytes()
    disk = disk.kill()
    poke(disk, offsets[2] + 20, bytes(60))
    store = recover(disk, master=master)
    assert store.log.max_offset == offsets[2]
    assert store.log.mapped_file_queue.prepared.file_from_offset == FILE_SIZE
    assert list(disk.files()) == [f"{0:020d}", f"{FILE_SIZE:020d}"]
    assert disk.files()[f"{FILE_SIZE:020d}"] == bytes(FILE_SIZE)
    kept = disk.files("/d/trimmed/")
    for name, data in kept.items():
        start = int(name[:20])
        expected = whole[start : start + len(data)]
        assert data == expected or start == offsets[2]
    assert sum(map(len, kept.values())) == store.report.trimmed.size
    assert max(int(name[:20]) + len(data) for name, data in kept.items()) == end
    assert recover(disk.kill(), master=master).report.trimmed is None


def test_intact_records_are_never_trimmed_after_a_clean_stop():
    """A clean stop flushes everything, whatever the checkpoint says: a bad record is damage."""
    disk, offsets, _ = written()
    disk.remove("/d/abort")  # as if an older hastore had stopped cleanly
    poke(disk, offsets[5] + 20, bytes(60))
    with pytest.raises(LogDamagedError, match=f"an intact record follows at {offsets[6]}"):
        recover(disk)


def test_bad_record_is_damage_without_a_checkpoint():
    """The flushed offset is unknown, so a bad record before an intact one may have been flushed."""
    disk, offsets, _ = written()
    disk.remove("/d/checkpoint")
    poke(disk, offsets[5] + 20, bytes(60))
    with pytest.raises(LogDamagedError, match=f"an intact record follows at {offsets[6]}"):
        recover(disk)


# -- incomplete records and fillers of a slave ---------------------------------------------------


def test_slave_flushed_inside_a_record_resumes_at_its_start():
    """Any frame's end can become its flushed offset; the master sends the record again."""
    source, offsets, end = written()
    data = source.inodes[log_name(0)].seen()[:end]
    for size in range(offsets[3], offsets[4]):
        disk = FakeDisk()
        slave = recover(disk, master=False)
        slave.append_data(0, data[:size])
        slave.flush_log()
        for more in (size, min(size + 7, offsets[4] - 1)):
            if more > size:
                slave.append_data(size, data[size:more])
            crashed = disk.kill()
            again = recover(crashed, master=False)
            assert again.log.max_offset == offsets[3], (size, more)
            assert again.checkpoint.flushed_offset == offsets[3]
            after = recover(crashed.kill(), master=False)
            assert after.log.max_offset == offsets[3]
            after.append_data(offsets[3], data[offsets[3] :])
            assert after.all_bytes() == data


def test_damage_before_a_slaves_incomplete_record_is_not_trimmed():
    """Checksums cover every byte of the records that were flushed completely."""
    source, offsets, end = written()
    data = source.inodes[log_name(0)].seen()[:end]
    disk = FakeDisk()
    slave = recover(disk, master=False)
    slave.append_data(0, data[: offsets[3] + 50])
    slave.flush_log()
    for offset in range(0, offsets[3], 2):
        crashed = disk.kill()
        for flip in (0x01, 0x80):
            poke(crashed, offset, bytes([data[offset] ^ flip]))
            with pytest.raises(LogDamagedError):
                recover(crashed, master=False)
            poke(crashed, offset, data[offset : offset + 1])


@pytest.mark.parametrize("size_byte", [0, 1, 2, 3])
def test_damaged_size_of_the_last_record_is_not_an_incomplete_record(size_byte):
    """The size reaches beyond the flushed offset, but the record ended exactly there."""
    disk, offsets, _ = written(clean=True)
    poke(disk, offsets[-1] + size_byte, b"\x7f")
    for master in (True, False):
        with pytest.raises(LogDamagedError) as caught:
            recover(disk, master=master)
        assert caught.value.physic_offset == offsets[-1]


@pytest.mark.parametrize("received", [3, 8, 9, 100, None])
def test_slave_flushed_inside_a_blank_starts(received):
    """Each start moves its log's end back to the BLANK, below the flushed offset."""
    source, _ = long_log(2, clean=True)
    blank = max(
        offset
        for offset in range(FILE_SIZE)
        if source.inodes[log_name(0)].seen()[offset + 4 : offset + 8] == b"\xcb\xd4\x31\x94"
    )
    data = source.inodes[log_name(0)].seen()
    disk = FakeDisk()
    slave = recover(disk, master=False)
    slave.append_data(0, data[: FILE_SIZE if received is None else blank + received])
    slave.flush_log()
    for _ in range(3):
        disk = disk.kill()
        slave = recover(disk, master=False)
        assert slave.log.max_offset == blank
        slave.flush_log()
    slave.append_data(blank, data[blank:])
    slave.append_data(FILE_SIZE, source.inodes[log_name(FILE_SIZE)].seen()[:500])
    assert slave.all_bytes()[:FILE_SIZE] == data


def test_empty_slave_with_a_known_log_start_starts():
    """Nothing was written yet, although the checkpoint holds a flushed offset."""
    disk = FakeDisk()
    slave = recover(disk, master=False)
    assert not slave.log.append_data(5 * FILE_SIZE, memoryview(b"x"))
    slave.checkpoint.flushed_offset = slave.log.flushed_offset
    slave.checkpoint.flush()
    again = recover(disk.kill(), master=False)
    again.append_data(7 * FILE_SIZE, b"x")


# -- RocketMQ's checkpoint -----------------------------------------------------------------------


def put_rocketmq_checkpoint(disk, physic_ms, logics_ms=None):
    head = b"".join(ms.to_bytes(8) for ms in (physic_ms, logics_ms or physic_ms, 0))
    disk.put("/d/checkpoint", head.ljust(4096, b"\0"))


@both_roles
def test_rocketmqs_physic_time_bounds_what_was_flushed(master):
    """A hole before records of that time is damage; after it, a crash may have left the hole."""
    disk, offsets, _ = written()
    flushed_ms = FakeClock().ms + 4
    put_rocketmq_checkpoint(disk, flushed_ms)
    below, above = disk.kill(), disk.kill()
    poke(below, offsets[2] + 20, bytes(60))
    with pytest.raises(LogDamagedError, match="an intact record follows"):
        recover(below, master=master)
    poke(above, offsets[5] + 20, bytes(60))
    store = recover(above, master=master)
    assert store.log.max_offset == offsets[5]
    assert store.report.trimmed.intact_offset == offsets[6]


def test_bad_last_record_is_damage_if_rocketmq_had_flushed_it():
    """Its own store time is earlier than the checkpoint's."""
    disk, offsets, _ = written(4)
    put_rocketmq_checkpoint(disk, FakeClock().ms + 100)
    poke(disk, offsets[3] + 100, b"\xff")
    with pytest.raises(LogDamagedError, match="its store time says") as caught:
        recover(disk)
    assert caught.value.physic_offset == offsets[3]


# -- failed syncs --------------------------------------------------------------------------------


def mark_cache_clean(disk, *, is_ext4=False):
    """Mark the contents of the page cache as written, as a failed sync does.

    On ext4, writes to such a block reach the disk only after it was read from the disk again.
    Returns the paths of the files that are forgotten from now on.
    """
    for inode in disk.inodes.values():
        inode.clean = inode.seen()
        if is_ext4:
            inode.stale = frozenset(range(-(-len(inode.cache) // 4096)))

    forgotten = []

    def check_clean(forget):
        inode = disk.inodes[forget.path]
        written = inode.durable if inode.clean is None else inode.clean
        assert inode.seen() == written, "dirty pages must not be forgotten"
        forgotten.append(forget.path)

    disk.before("forget", check_clean)
    return forgotten


@both_roles
@pytest.mark.parametrize("is_ext4", [False, True])
def test_bytes_lost_by_a_failed_sync_are_written_again(master, is_ext4):
    """fsyncgate: the cache holds the bytes and the next sync succeeds, but the disk lacks them."""
    disk, offsets, end = written()
    inode = disk.inodes[log_name(0)]
    inode.durable = inode.durable[: offsets[4]] + bytes(FILE_SIZE - offsets[4])
    mark_cache_clean(disk, is_ext4=is_ext4)
    store = recover(disk, master=master)
    assert store.log.flushed_offset == end
    after = recover(disk.cut_power(), master=master)
    assert after.log.max_offset == end
    assert after.bodies() == [BODY] * 8


@both_roles
def test_trim_lost_by_a_failed_sync_is_written_again(master):
    """The sync of a trim fails, and the cache holds zeros that the disk does not have."""
    disk, offsets, _ = written()
    poke(disk, offsets[6] + 20, bytes(60))
    dead = disk.inodes[log_name(0)].seen()
    disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        recover(disk, master=master)
    disk = disk.kill()
    disk.inodes[log_name(0)].durable = dead
    mark_cache_clean(disk)
    store = recover(disk, master=master)
    assert store.log.max_offset == offsets[6]
    assert disk.inodes[log_name(0)].durable[offsets[6] :] == bytes(FILE_SIZE - offsets[6])
    assert recover(disk.cut_power(), master=master).report.trimmed is None


@pytest.mark.parametrize("is_blank", [False, True], ids=["torn", "blank"])
def test_cached_bytes_after_the_log_are_forgotten(is_blank):
    """A failed sync may have left bytes after the log's end in the cache that are not on disk."""
    disk = FakeDisk()
    store = recover(disk)
    for _ in range(8):
        store.append(BODY)
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    end = store.log.max_offset
    disk = disk.kill()
    synced = disk.inodes[log_name(0)].seen()
    code = b"\xcb\xd4\x31\x94" if is_blank else bytes(4)
    poke(disk, end, (FILE_SIZE - end).to_bytes(4, "big") + code)
    disk.inodes[log_name(0)].durable = synced
    forgotten = mark_cache_clean(disk, is_ext4=True)
    after = recover(disk, master=False)
    assert after.log.max_offset == after.log.flushed_offset == end
    inode = disk.inodes[log_name(0)]
    assert inode.seen() == inode.durable
    assert inode.durable[:end] == synced[:end]
    assert log_name(0) in forgotten


@both_roles
def test_log_that_changes_during_the_start_is_refused(master):
    """The cache may drop bytes that a failed sync left off the disk; the next start ends there."""
    disk, offsets, _ = written()
    inode = disk.inodes[log_name(0)]
    inode.durable = inode.durable[: offsets[6]] + bytes(FILE_SIZE - offsets[6])

    def evict(opening):
        """Let the kernel drop clean pages just before they are read to be written again."""
        if opening.is_writable:
            inode.cache[:] = inode.clean = inode.durable

    mark_cache_clean(disk)
    disk.before("open_file", evict, path="/commitlog/")
    with pytest.raises(DiskError, match=f"changed at offset {offsets[6]} while") as caught:
        recover(disk, master=master)
    assert "start again" in caught.value.hint
    after = recover(disk.kill(), master=master)
    assert after.log.max_offset == after.log.flushed_offset == offsets[6]
    assert after.bodies() == [BODY] * 6


def test_cached_bytes_after_a_log_flushed_by_rocketmq_are_forgotten():
    """Its checkpoint is later than all records, so nothing is written again."""
    disk, _, end = written()
    put_rocketmq_checkpoint(disk, FakeClock().ms + 100_000)
    poke(disk, end, b"\x00\x00\x00\x70torn")
    forgotten = mark_cache_clean(disk, is_ext4=True)
    store = recover(disk)
    assert store.log.max_offset == end
    assert log_name(0) in forgotten


MIB = 1024 * 1024


@attrs.define
class RecordingFile:
    """A file of ``size`` bytes that records each call."""

    size: int
    read: list = attrs.field(factory=list)
    done: list = attrs.field(factory=list)

    def pread(self, size, position):
        self.read.append((position, position + size))
        return b"x" * size

    def pwrite(self, data, position):
        self.done.append(("write", position, position + len(data)))

    def forget(self, position=0, size=0):
        end = position + size if size else self.size
        self.done.append(("forget", position, min(end, self.size)))


@pytest.mark.parametrize(
    ("start", "stop", "written_again"),
    [
        (0, 0, None),
        (5, 5, (0, 4_096)),
        (4_096, 4_096, None),
        (4_000, 4_097, (0, 8_192)),
        (8 * MIB - 1, 8 * MIB, (8 * MIB - 4_096, 8 * MIB)),
        (8 * MIB, 8 * MIB, None),
        (8 * MIB - 1, 8 * MIB + 1, (8 * MIB - 4_096, 8 * MIB + 4_096)),
        (100, 20 * MIB + 77, (0, 20 * MIB + 77)),
        (20 * MIB + 77, 20 * MIB + 77, (20 * MIB, 20 * MIB + 77)),
    ],
)
def test_write_again_writes_whole_pages_and_forgets_the_rest(start, stop, written_again):
    """Each page is read, forgotten and written, in this order; written pages are not forgotten."""
    file = RecordingFile(20 * MIB + 77)
    write_again(file, start, stop)
    writes = [(begin, end) for what, begin, end in file.done if what == "write"]
    assert writes == file.read
    assert (writes[0][0], writes[-1][1]) == written_again if writes else written_again is None
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(writes))
    forgotten_to = written_to = 0
    for what, begin, end in file.done:
        if what == "forget":
            assert begin % (8 * MIB) == 0
            assert begin >= written_to
            assert begin <= max(forgotten_to, start - start % (8 * MIB))
            forgotten_to = end
        else:
            assert end <= forgotten_to
            written_to = end
    assert forgotten_to == file.size
