"""The index after kills, power cuts and log truncation: no key is missing or doubled."""

import itertools
import random
import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hastore.env.interface import SECTOR_SIZE
from hastore.env.real import RealDisk
from hastore.errors import FlushFailedError
from hastore.store.index.file import IndexFile
from hastore.store.index.layout import IndexLayout
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.scripted_disk import ScriptedDisk, ScriptedFile, sync_failed
from tests.support.store.index_stores import (
    CheckpointStandIn,
    delete_expired,
    fake_service,
    flush,
    query_index,
)

KEYS = [f"k{number}" for number in range(12)]
DIR = "/d/index/"


class Record:
    """One record of the log that is indexed."""

    def __init__(self, offset, at, topic, keys):
        self.offset, self.at, self.topic, self.keys = offset, at, topic, keys


class IndexModel(RuleBasedStateMachine):
    """A log in memory and its index, compared at the end with an index of the same log."""

    @initialize(slots=st.sampled_from([1, 3, 7, 300]), entries=st.sampled_from([2, 3, 7, 40, 400]))
    def begin(self, slots, entries):
        self.slots, self.entries = slots, entries
        self.disk, self.checkpoint = FakeDisk(), CheckpointStandIn()
        self.log = []
        self.min_offset = 0
        self.end, self.at = 0, START_MS
        self.open(last_exit_ok=True)

    def open(self, *, last_exit_ok):
        self.service = fake_service(
            self.disk,
            slots=self.slots,
            entries=self.entries,
            checkpoint=self.checkpoint,
            last_exit_ok=last_exit_ok,
        )
        self.pending = []

    def put(self, record):
        if record.keys:
            self.service.put(record.topic, record.keys, record.offset, record.at)
        self.service.record_seen(record.offset, record.offset)

    # -- events ----------------------------------------------------------------------------------

    @rule(
        count=st.integers(1, 12),
        data=st.randoms(use_true_random=False),
        step_ms=st.sampled_from([0, 1, 700, 5000]),
    )
    def put_records(self, count, data, step_ms):
        for _ in range(count):
            keys = data.choices(KEYS, k=data.choice([0, 1, 1, 2, 2, 3]))
            self.log.append(Record(self.end, self.at, data.choice("ab"), keys))
            self.end += 100
            self.at += step_ms
            self.put(self.log[-1])

    @rule()
    def commit(self):
        self.service.commit()

    @rule()
    def begin_flush(self):
        """Begin a pass of the flush service; other rules sync its files and end it."""
        if not self.pending:
            self.commit()
            self.pending = self.service.dirty_files()
            self.unsynced = list(self.pending)

    @precondition(lambda self: self.pending and self.unsynced)
    @rule()
    def sync_one(self):
        self.unsynced.pop(0).sync()

    @precondition(lambda self: self.pending)
    @rule()
    def end_flush(self):
        for file in self.unsynced:
            file.sync()
        self.service.mark_flushed(self.pending)
        self.pending = []

    @rule()
    def flush_all(self):
        if not self.pending:
            self.commit()
            flush(self.service)

    @rule()
    def checkpoint_flush(self):
        self.checkpoint.flush()

    @rule(keep=st.integers(0, 6))
    def expire(self, keep):
        self.commit()
        files = self.service.files
        if len(files) > keep + 1:
            offset = files[-keep - 1].begin_physic_offset
            delete_expired(self.service, offset)
            self.min_offset = max(self.min_offset, offset)

    @rule()
    def restart(self):
        self.commit()
        if self.pending:  # the flush service ends first
            self.end_flush()
        self.service.close()
        self.disk = self.disk.kill()
        self.open(last_exit_ok=True)
        assert self.service.redispatch_from() is None

    @rule()
    def kill(self):
        self.crash(self.disk.kill(), lost=0)

    @rule(data=st.randoms(use_true_random=False), odds=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def cut_power(self, data, odds):
        self.crash(self.disk.cut_power(lambda: data.random() < odds), lost=0)

    @rule(data=st.randoms(use_true_random=False), lost=st.integers(1, 30))
    def cut_power_and_lose_the_logs_tail(self, data, lost):
        self.crash(self.disk.cut_power(lambda: data.random() < 0.5), lost=lost)

    def crash(self, disk, *, lost):
        self.disk = disk
        self.checkpoint = CheckpointStandIn(self.checkpoint.on_disk)
        if lost and self.log:
            del self.log[max(len(self.log) - lost, 0) :]
            self.end = self.log[-1].offset + 100 if self.log else 0
        self.open(last_exit_ok=False)
        self.service.truncate(self.end)
        start = self.service.redispatch_from()
        assert start is not None
        for record in self.log:
            if record.offset >= max(start, self.min_offset):
                self.put(record)
        self.service.commit()

    # -- checks ----------------------------------------------------------------------------------

    def teardown(self):
        """Check that queries find exactly the right keys and files equal those of a new index."""
        if not hasattr(self, "log"):
            return
        self.put_records(1, random.Random(1), 1)
        self.commit()
        for topic in "ab":
            for key in KEYS:
                expected = [
                    record.offset
                    for record in reversed(self.log)
                    if record.topic == topic and key in record.keys
                ]
                found = query_index(self.service, topic, key)
                found = [offset for offset in found if self.has(offset, topic, key)]
                assert [offset for offset in found if offset >= self.min_offset] == [
                    offset for offset in expected if offset >= self.min_offset
                ]
        if self.min_offset:
            return
        if self.pending:
            self.end_flush()
        self.service.close()
        rebuilt = fake_service(slots=self.slots, entries=self.entries)
        for record in self.log:
            if record.keys:
                rebuilt.put(record.topic, record.keys, record.offset, record.at)
            rebuilt.record_seen(record.offset, record.offset)
        rebuilt.close()
        files = list(self.disk.files(DIR).values())
        # A start may leave a file without entries.
        if self.service is not None and len(files) > len(rebuilt.env.disk.files(DIR)):
            *files, last = files
            assert struct.unpack_from(">i", last, 36)[0] <= 1
        assert files == list(rebuilt.env.disk.files(DIR).values())

    def has(self, offset, topic, key):
        record = self.log[offset // 100]
        return record.topic == topic and key in record.keys


TestIndexModel = IndexModel.TestCase
TestIndexModel.__doc__ = (
    "After any kill at any time, each key is found once and the bytes equal RocketMQ's."
)
TestIndexModel.settings = settings(stateful_step_count=40)


# -- power cuts at every write, with every mixture of sectors ------------------------------------


def record(number):
    """Return the offset and the keys (one or two) of the n-th record."""
    return number * 100, [KEYS[number % 5], f"u{number}"][: 1 + number % 2]


def put_many(service, start, end):
    for number in range(start, end):
        offset, keys = record(number)
        service.put("t", keys, offset, START_MS + number * 300)
    service.commit()


def missing_keys(service, count):
    """Return offset and key of those among the first records that a query does not find."""
    missing = []
    for number in range(count):
        offset, keys = record(number)
        missing += [(offset, key) for key in keys if offset not in ask(service, key)]
    return missing


def ask(service, key):
    return query_index(service, "t", key)


def entries_of(service):
    return sum(file.index_count - 1 for file in service.files)


@pytest.fixture
def disk_states(monkeypatch):
    """Record both images of each file, cached and durable, after each write and each sync."""
    states = []

    def after(method):
        def call(self, *arguments):
            method(self, *arguments)
            inodes = self.disk.inodes.items()
            states.append({path: (inode.seen(), inode.durable) for path, inode in inodes})

        return call

    monkeypatch.setattr(ScriptedFile, "pwrite", after(ScriptedFile.pwrite))
    monkeypatch.setattr(ScriptedFile, "sync", after(ScriptedFile.sync))
    return states


def disks_after_power_cuts(state, patterns):
    """Yield a disk for each mixture of the differing sectors, at most ``patterns`` of them."""
    differing = [
        (path, at)
        for path, (seen, synced) in state.items()
        for at in range(0, len(seen), SECTOR_SIZE)
        if seen[at : at + SECTOR_SIZE] != synced[at : at + SECTOR_SIZE]
    ]
    assert 2 ** len(differing) <= patterns, len(differing)
    for kept in itertools.product([False, True], repeat=len(differing)):
        images = {path: bytearray(synced) for path, (_, synced) in state.items()}
        for (path, at), is_kept in zip(differing, kept, strict=True):
            if is_kept:
                images[path][at : at + SECTOR_SIZE] = state[path][0][at : at + SECTOR_SIZE]
        disk = FakeDisk()
        for path, image in images.items():
            disk.put(path, bytes(image))
        yield disk


@pytest.mark.parametrize(("slots", "entries"), [(3, 200), (150, 60), (150, 200)])
def test_power_cut_at_any_write_loses_no_key(disk_states, slots, entries):
    """All keys are found again after each write and each sync, whichever sectors are on disk.

    The run has a first file, flushes with puts between their halves, a roll, a clean stop, and
    a second run without a stop.
    """
    checkpoint = CheckpointStandIn()
    sizes = {"slots": slots, "entries": entries}
    service = fake_service(checkpoint=checkpoint, **sizes)
    put_many(service, 0, 9)
    flush(service)
    put_many(service, 9, 30)
    files = service.dirty_files()
    put_many(service, 30, 41)
    for file in files:
        file.sync()
    service.mark_flushed(files)
    put_many(service, 41, 50)
    flush(service)
    service.close()
    first_run = len(disk_states)
    disk = service.env.disk.kill()
    service = fake_service(disk, checkpoint=checkpoint, **sizes)
    put_many(service, 50, 60)
    flush(service)
    put_many(service, 60, 64)
    states, total = list(disk_states), 0
    assert len(states) > 25
    for number, state in enumerate(states):
        for disk in disks_after_power_cuts(state, 64):
            disk_states.clear()
            known = CheckpointStandIn(checkpoint.on_disk if number >= first_run else 0)
            again = fake_service(disk, checkpoint=known, last_exit_ok=False, **sizes)
            start = again.redispatch_from()
            assert start % 100 == 0
            put_many(again, start // 100, 64)
            assert not missing_keys(again, 64), (number, start)
            assert entries_of(again) == 96
            total += 1
    assert total > len(states)


def test_recovery_interrupted_by_a_power_cut_is_repeated(disk_states):
    """After a cut at any of its writes, the second recovery finds the same as the first."""
    sizes = {"slots": 150, "entries": 60}
    service = fake_service(**sizes)
    put_many(service, 0, 20)
    flush(service)
    put_many(service, 20, 50)
    flushes = service.dirty_files()
    for file in flushes:
        file.sync()
    disk = service.env.disk.kill()
    disk_states.clear()
    again = fake_service(disk, last_exit_ok=False, **sizes)
    start = again.redispatch_from()
    states = list(disk_states)
    assert len(states) > 4
    for state in states:
        for after in disks_after_power_cuts(state, 64):
            third = fake_service(after, last_exit_ok=False, **sizes)
            assert third.redispatch_from() == start
            put_many(third, start // 100, 50)
            assert not missing_keys(third, 50)
            assert entries_of(third) == 75


def test_flushed_records_are_not_indexed_again():
    """Two flushes (data, then the mark) survive a power cut, and dispatch resumes after them."""
    service = fake_service(slots=50, entries=100)
    put_many(service, 0, 30)
    flush(service)
    flush(service)
    put_many(service, 30, 40)
    again = fake_service(service.env.disk.cut_power(), slots=50, entries=100, last_exit_ok=False)
    assert again.redispatch_from() == 2900
    assert entries_of(again) == 45
    assert not missing_keys(again, 30)
    assert flush(service) == 1
    assert flush(service) == 1
    assert flush(service) == 0  # an idle store syncs nothing


def test_kill_redispatches_records_since_the_last_flush():
    """The mark needs no second flush, because the page cache survives a kill."""
    service = fake_service(slots=50, entries=100)
    put_many(service, 0, 30)
    flush(service)
    put_many(service, 30, 40)
    again = fake_service(service.env.disk.kill(), slots=50, entries=100, last_exit_ok=False)
    assert again.redispatch_from() == 2900


def test_unclean_stop_redispatches_no_more_than_a_kill():
    """The files record how far they are flushed, so dispatch need not begin at the front."""
    service = fake_service(slots=50, entries=100)
    put_many(service, 0, 10)
    flush(service)
    flush(service)
    put_many(service, 10, 13)
    service.close(clean=False)
    again = fake_service(service.env.disk.kill(), slots=50, entries=100, last_exit_ok=False)
    assert again.redispatch_from() == 900
    put_many(again, 9, 13)
    assert not missing_keys(again, 13)


def test_records_without_keys_are_not_dispatched_again():
    """The dispatcher reports how far it has come."""
    service = fake_service(slots=50, entries=100)
    put_many(service, 0, 3)
    service.record_seen(0, 900_000)
    flush(service)
    put_many(service, 0, 0)
    again = fake_service(service.env.disk.kill(), slots=50, entries=100, last_exit_ok=False)
    assert again.redispatch_from() == 900_000
    assert not missing_keys(again, 3)


def dispatch(service, first, last):
    """Dispatch records without keys and commit, as a pass does."""
    service.record_seen(first, last)
    service.commit()


def start_after_kill(service, **kwargs):
    """Return the index that the next start finds after kill -9."""
    return fake_service(service.env.disk.kill(), last_exit_ok=False, **kwargs)


def test_index_without_keys_records_how_far_it_is_dispatched():
    """RocketMQ creates this file too. A kill costs records since the last flush, not the log."""
    service = fake_service()
    dispatch(service, 0, 5_000)
    assert start_after_kill(service).redispatch_from() == 5_000
    dispatch(service, 6_000, 700_000)
    assert start_after_kill(service).redispatch_from() == 5_000
    assert flush(service) == 1
    assert flush(service) == 0
    for disk in (service.env.disk.kill(), service.env.disk.cut_power()):
        again = fake_service(disk, last_exit_ok=False)
        assert again.redispatch_from() == 700_000
        again.close()
    dispatch(service, 800_000, 900_000)
    assert flush(service) == 1
    assert start_after_kill(service).redispatch_from() == 900_000


def test_index_without_keys_equals_rocketmqs_after_a_clean_stop():
    """The header counts from 1, the rest is zeros, and there is no mark."""
    service = fake_service()
    dispatch(service, 0, 5_000)
    disk = service.env.disk
    service.close()
    ((name, data),) = disk.files(DIR).items()
    assert (len(name), len(data)) == (17, service.layout.file_size)
    assert data == bytes(36) + b"\0\0\0\1" + bytes(len(data) - 40)
    again = fake_service(disk.kill())
    assert again.redispatch_from() is None
    again.put("t", ["k"], 6_000, START_MS)
    again.commit()
    assert query_index(again, "t", "k", max_count=10) == [6_000]
    assert len(again.files) == 1


@pytest.mark.parametrize("has_keys", [False, True])
def test_kill_after_a_clean_start_redispatches_the_new_records(has_keys):
    """This needs no flush: all records before the new run's first one are on disk."""
    service = fake_service()
    if has_keys:
        put_many(service, 0, 1)
    dispatch(service, 0, 900_000)
    disk = service.env.disk
    service.close()
    service = fake_service(disk.kill())
    assert start_after_kill(service).redispatch_from() == 0
    dispatch(service, 950_000, 990_000)
    assert start_after_kill(service).redispatch_from() == 950_000
    flush(service)
    dispatch(service, 1_000_000, 1_000_000)
    assert start_after_kill(service).redispatch_from() == 990_000
    service.close()
    assert not any(disk.files(DIR).popitem()[1][40 + 8 * 4 : 40 + 8 * 4 + 20])


def test_first_key_goes_into_the_file_created_without_keys():
    """The file begins at that key's record, and nothing of the mark remains."""
    late, prompt = fake_service(), fake_service()
    dispatch(late, 0, 5_000)
    flush(late)
    for service in (late, prompt):
        service.put("t", ["a", "b"], 6_000, START_MS)
        dispatch(service, 6_000, 6_000)
        flush(service)
    assert start_after_kill(late).redispatch_from() == 5_000  # only the next commit shows its flush
    for service in (late, prompt):
        service.close()
    assert late.env.disk.files(DIR) == prompt.env.disk.files(DIR)


def test_record_after_a_full_file_creates_the_next_even_without_keys():
    """The new file begins where the full one ended; the record that filled it creates none."""
    service = fake_service(entries=3)
    service.put("t", ["a", "b"], 100, START_MS)
    dispatch(service, 0, 100)
    assert len(service.env.disk.files(DIR)) == 1
    dispatch(service, 200, 200)
    assert len(service.env.disk.files(DIR)) == 2
    while flush(service):
        service.commit()
    assert start_after_kill(service, entries=3).redispatch_from() == 200
    disk = service.env.disk
    service.close()
    _, last = disk.files(DIR).values()
    assert last == struct.pack(">qqqqii", START_MS, START_MS, 100, 100, 0, 1) + bytes(
        len(last) - 40
    )


def test_removes_the_mark_of_a_full_file_once_the_next_is_durable():
    """For RocketMQ, the checkpoint then covers the full files."""
    checkpoint = CheckpointStandIn()
    service = fake_service(slots=50, entries=10, checkpoint=checkpoint)
    put_many(service, 0, 3)
    flush(service)
    put_many(service, 3, 20)
    while flush(service):
        pass
    assert [file.mark is not None for file in service.files] == [False, False, False, True]
    assert checkpoint.index_msg_timestamp == service.files[-2].end_timestamp_ms
    service.close()
    assert checkpoint.on_disk == START_MS + 19 * 300
    paths = service.env.disk.files(DIR)
    again = fake_service(service.env.disk.kill(), slots=50, entries=10)
    assert [file.mark for file in again.files] == [None] * 4
    again.close()
    assert again.env.disk.files(DIR) == paths


def test_power_cut_that_removes_a_new_file_loses_no_key():
    """Its directory was not synced yet, so the mark is still in the previous file."""
    service = fake_service(slots=50, entries=10)
    put_many(service, 0, 3)
    flush(service)
    put_many(service, 3, 10)
    disk = service.env.disk.kill()
    disk.remove(f"{DIR}{service.files[-1].name}")
    again = fake_service(disk, slots=50, entries=10, last_exit_ok=False)
    put_many(again, again.redispatch_from() // 100, 10)
    assert not missing_keys(again, 10)


def test_syncs_the_directory_with_a_new_file():
    """The mark may move to the new file only after that."""
    service = fake_service(slots=50, entries=10)
    put_many(service, 0, 20)
    names = {file.name for file in service.files}
    assert len(names) == 4
    service.env.disk.syncs.clear()
    flush(service)
    assert service.env.disk.syncs.count("/d/index") == 3  # the first file's was synced at once


# -- files of RocketMQ, and damage ---------------------------------------------------------------


def test_indexes_an_unflushed_file_of_rocketmq_again():
    """It has no mark and ends after the checkpoint, so nothing of it may be on disk."""
    service = fake_service(slots=50, entries=10)
    put_many(service, 0, 15)
    service.close()
    disk = service.env.disk.kill()
    flushed = CheckpointStandIn(service.checkpoint.index_msg_timestamp - 1)
    again = fake_service(disk, slots=50, entries=10, checkpoint=flushed, last_exit_ok=False)
    start = again.redispatch_from()
    assert start == 1200
    assert [file.index_count for file in again.files] == [10, 10, 1]
    put_many(again, start // 100, 15)
    assert not missing_keys(again, 15)
    assert entries_of(again) == 22
    # After another kill without any put, the mark leads to the same offset.
    third = fake_service(again.env.disk.kill(), slots=50, entries=10, last_exit_ok=False)
    assert third.redispatch_from() == 1200


def test_restores_slots_that_point_above_the_count():
    """A kill between slots and header leaves them; RocketMQ would take them for empty."""
    service = fake_service(slots=2, entries=100)
    put_many(service, 0, 10)
    service.close()
    disk = service.env.disk.kill()
    (name,) = disk.files(DIR)
    layout = IndexLayout(2, 100)
    image = bytearray(disk.files(DIR)[name])
    numbers = struct.unpack_from(">2i", image, 40)
    for slot, number in enumerate(numbers):
        struct.pack_into(">iqii", image, layout.entry_position(16 + slot), slot, 5000, 0, number)
        struct.pack_into(">i", image, 40 + 4 * slot, 16 + slot)
    disk.put(f"{DIR}{name}", bytes(image))
    found = CheckpointStandIn(START_MS + 9 * 300)
    again = fake_service(disk, slots=2, entries=100, checkpoint=found, last_exit_ok=False)
    assert tuple(again.files[0].slots.numbers) == numbers
    assert not missing_keys(again, 10)
    assert again.redispatch_from() == 900
    assert not disk.files(DIR)[name][layout.entry_position(16) :].strip(b"\0")


def test_drops_a_torn_entry():
    """Its second half, with the link, is in a sector that did not reach the disk."""
    service = fake_service(slots=64, entries=100)
    for number in range(9):
        service.put("t", ["k"], number * 100, START_MS)
    service.commit()
    flush(service)
    flush(service)
    assert IndexLayout(64, 100).entry_position(10) == SECTOR_SIZE - 16
    service.put("t", ["k"], 900, START_MS)
    service.commit()
    (file,) = service.dirty_files()
    service.env.disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        file.sync()
    sectors = iter([True, False])
    disk = service.env.disk.cut_power(lambda: next(sectors))
    again = fake_service(disk, slots=64, entries=100, last_exit_ok=False)
    assert again.files[0].index_count == 10
    assert ask(again, "k") == [number * 100 for number in range(8, -1, -1)]


def test_restores_a_slot_whose_entries_are_lost():
    """Its old value is unknown, so recovery checks the hashes of all remaining entries."""
    service = fake_service(slots=3, entries=100)
    put_many(service, 0, 20)
    service.close()
    disk = service.env.disk.kill()
    (name,) = disk.files(DIR)
    image = bytearray(disk.files(DIR)[name])
    numbers = struct.unpack_from(">3i", image, 40)
    struct.pack_into(">3i", image, 40, 40, 41, -7)
    disk.put(f"{DIR}{name}", bytes(image))
    found = CheckpointStandIn(START_MS + 19 * 300)
    again = fake_service(disk, slots=3, entries=100, checkpoint=found, last_exit_ok=False)
    assert tuple(again.files[0].slots.numbers) == numbers
    assert not missing_keys(again, 20)


def test_first_flush_after_a_clean_start_keeps_earlier_entries_safe():
    """It writes a mark first; otherwise the whole file would have to be indexed again."""
    checkpoint = CheckpointStandIn()
    service = fake_service(slots=200, entries=100, checkpoint=checkpoint)
    put_many(service, 0, 20)
    service.close()
    again = fake_service(service.env.disk.kill(), slots=200, entries=100, checkpoint=checkpoint)
    put_many(again, 20, 30)
    (file,) = again.dirty_files()
    disk, syncs = again.env.disk, []
    disk.before("sync", lambda sync: syncs.append(disk.inodes[sync.path].seen()))
    file.sync()
    assert len(syncs) == 2
    header_only = again.env.disk.cut_power()
    (path,) = [path for path in header_only.inodes if path.startswith(DIR)]
    image = syncs[1][:SECTOR_SIZE] + syncs[0][SECTOR_SIZE:]
    header_only.put(path, image)
    for disk in (again.env.disk.kill(), again.env.disk.cut_power(), header_only):
        third = fake_service(
            disk, slots=200, entries=100, checkpoint=checkpoint, last_exit_ok=False
        )
        assert third.redispatch_from() == 1900
        assert third.files[0].index_count == 31
        assert not missing_keys(third, 20)


@pytest.mark.parametrize("header", [b"\xff" * 40, struct.pack(">4q2i", 0, 0, 9, 5, 1, 3)])
def test_indexes_a_file_with_an_impossible_header_again(header):
    """Indexing begins at the end of the previous file, even after a clean stop."""
    service = fake_service(slots=50, entries=10)
    put_many(service, 0, 10)
    service.close()
    disk = service.env.disk.kill()
    name = list(disk.files(DIR))[-1]
    disk.put(f"{DIR}{name}", header + disk.files(DIR)[name][40:])
    again = fake_service(disk, slots=50, entries=10)
    assert again.redispatch_from() == 500
    put_many(again, again.redispatch_from() // 100, 10)
    assert not missing_keys(again, 10)
    assert entries_of(again) == 15


def test_query_ends_in_a_circular_chain():
    """Damaged links point to a later entry, to their own entry, or out of the file."""
    service = fake_service(slots=1, entries=100)
    put_many(service, 0, 10)
    service.close()
    disk = service.env.disk.kill()
    (name,) = disk.files(DIR)
    for previous in (9, 5, 2**31 - 1, -1):
        image = bytearray(disk.files(DIR)[name])
        struct.pack_into(">i", image, IndexLayout(1, 100).entry_position(5) + 16, previous)
        disk.put(f"{DIR}{name}", bytes(image))
        again = fake_service(disk.kill(), slots=1, entries=100)
        assert set(ask(again, "k0")) <= {0, 500}


def test_truncate_removes_the_keys_of_lost_records():
    """It removes whole files too, and new records in their place are indexed."""
    service = fake_service(slots=50, entries=10)
    put_many(service, 0, 20)
    service.close()
    again = fake_service(service.env.disk.kill(), slots=50, entries=10)
    again.truncate(750)
    assert again.end_physic_offset == 700
    assert len(again.files) == 2
    assert not missing_keys(again, 8)
    assert ask(again, "u9") == []
    again.put("t", ["new"], 800, START_MS)
    again.commit()
    assert ask(again, "new") == [800]
    again.truncate(10_000)  # after the end of the log
    assert ask(again, "new") == [800]


def test_zeroing_skips_what_was_never_written(tmp_path):
    """Of a file with room for two million entries, and nine in it, little is read."""
    disk = ScriptedDisk(RealDisk())
    layout = IndexLayout(1_000, 2_000_000)
    file = IndexFile.new(disk, str(tmp_path / "index"), layout, None)
    for number in range(10):
        file.put(number, number * 100, START_MS + number)
    file.commit()
    stale = layout.entry_position(1_500_000)
    file.made_file().pwrite(b"stale", stale)
    disk.bytes_read.clear()
    file.clear_after(2_000_000)
    assert disk.bytes_read[file.path] < 4 * 1024 * 1024 < layout.file_size
    assert file.made_file().pread(5, stale) == bytes(5)
    assert file.read_entry(9).physic_offset == 900 - 100
    file.close()
