"""Reopening a store: find the log's end, trim and keep a torn tail, refuse damage."""

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.errors import DiskError, FlushFailedError, LogDamagedError
from hastore.message import Message
from hastore.store.record import message_codec
from tests.support.env.fake_disk import START_MS, FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full, sync_failed
from tests.support.store.open_log import (
    FILE_SIZE,
    all_bytes,
    append,
    append_data,
    close,
    flush,
    open_log,
)
from tests.support.store.recovering import log_name, poke

both_roles = pytest.mark.parametrize("master", [True, False], ids=["master", "slave"])


def written(count=3, size=200, *, append_prop_crc=True, prepared=False):
    """A killed master's disk, each record's offset, and the log's end."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), append_prop_crc=append_prop_crc)
    offsets = [
        append(log, body=number.to_bytes(2) * (size // 2), topic=f"topic{number % 3}").physic_offset
        for number in range(count)
    ]
    disk = disk.kill()
    if prepared:
        disk.put(log_name(len(log.mapped_file_queue.files) * FILE_SIZE), bytes(FILE_SIZE))
    return disk, offsets, log.max_offset


def reopen(disk, *, master=True, **config):
    return open_log(fake_env(disk), master=master, **config)


def trimmed_files(disk):
    return disk.files("/d/trimmed/")


# -- nothing wrong -------------------------------------------------------------------------------


def test_new_directory_becomes_an_empty_store():
    """commitlog/, lock and abort are created; a log file is created only when it is needed."""
    disk = FakeDisk()
    log = reopen(disk)
    assert disk.files("/d/") == {"abort": b"4711", "lock": b"lock"}
    assert (log.min_offset, log.max_offset, log.flushed_offset) == (0, 0, 0)
    assert log.load_report.last_exit_ok
    assert log.mapped_file_queue.wanted_file_offset() == 0
    log.close(clean=True)
    assert disk.files("/d/") == {"lock": b"lock"}


@both_roles
@pytest.mark.parametrize("count", [1, 12, 40])
def test_reopening_after_a_kill_recovers_the_whole_log(master, count):
    """All records and bytes are intact, the prepared file is kept, and the log is synced."""
    disk, _, end = written(count, prepared=True)
    before = disk.files()
    log = reopen(disk, master=master)
    report = log.load_report
    assert log.max_offset == log.flushed_offset == report.max_offset == end
    assert (report.last_exit_ok, report.trimmed, report.removed_files) == (False, None, ())
    assert log.mapped_file_queue.prepared.file_from_offset == len(before) * FILE_SIZE - FILE_SIZE
    assert disk.files() == before
    assert set(disk.syncs) >= {log_name(0)}
    if master:
        assert report.records == count
        assert append(log).queue_offset == 0
        assert append(log, topic="topic0").queue_offset == (count + 2) // 3


def test_clean_store_is_not_synced_again():
    """Only after an unclean stop can bytes exist in the page cache alone."""
    disk = FakeDisk()
    log = reopen(disk)
    append(log)
    close(log)
    disk.syncs.clear()
    reopen(disk)
    assert disk.syncs == []


def test_slave_walks_only_the_last_three_files():
    """A slave's start does not get slower as its log grows."""
    disk, offsets, end = written(100)
    report = reopen(disk, master=False).load_report
    last_three = (end // FILE_SIZE - 2) * FILE_SIZE
    assert report.records == sum(offset >= last_three for offset in offsets) < 100
    assert report.max_offset == end


def test_log_without_its_first_files_opens():
    """Expiry may have deleted old files; the log starts with the first remaining one."""
    disk, offsets, end = written(40)
    for offset in (0, FILE_SIZE):
        disk.remove(log_name(offset))
    log = reopen(disk)
    assert (log.min_offset, log.max_offset) == (2 * FILE_SIZE, end)
    assert log.load_report.records == sum(offset >= 2 * FILE_SIZE for offset in offsets)


def test_log_that_fills_its_last_file_continues_in_the_next():
    """A log that ends exactly at a file's end needs no BLANK there."""
    disk = FakeDisk()
    log = reopen(disk)
    append(log, body=bytes(2000))
    assert log.append_message(Message("orders", bytes(3000))).status.value == "END_OF_FILE"
    log = reopen(disk.kill())
    assert log.max_offset == FILE_SIZE
    assert append(log).physic_offset == FILE_SIZE


def test_walks_records_larger_than_a_chunk():
    """Such records are read whole only to check them."""
    disk = FakeDisk()
    log = reopen(disk, mapped_file_size=8 * 1024 * 1024)
    for size in (3_000_000, 10, 2_000_000, 1_048_576 - 100, 5):
        append(log, body=bytes(size))
    end = log.max_offset
    for master in (True, False):
        again = reopen(disk.kill(), master=master, mapped_file_size=None)
        assert (again.max_offset, again.load_report.records) == (end, 5)


def test_queue_offsets_count_half_messages_and_batches_as_rocketmq_does():
    """A half message takes no place in its queue; an inner batch takes as many as it holds."""
    disk = FakeDisk()
    log = reopen(disk, append_prop_crc=False)
    append(log)
    append(log, sys_flag=0x4)
    append(log, sys_flag=0xC)
    append(log, sys_flag=0x80, properties={"INNER_NUM": "5"})
    again = reopen(disk.kill(), append_prop_crc=False)
    assert again.load_report.records == 4
    assert append(again).queue_offset == 6


# -- a torn tail ---------------------------------------------------------------------------------


@both_roles
@pytest.mark.parametrize("append_prop_crc", [True, False])
def test_log_torn_at_any_byte_ends_at_the_last_complete_record(master, append_prop_crc):
    """The earlier records stay, and another start finds nothing more to trim."""
    disk, offsets, end = written(3, size=60, append_prop_crc=append_prop_crc)
    start = offsets[-1]
    whole = disk.inodes[log_name(0)].seen()
    # Without a checksum of the whole record, a cut that removes only zeros at its end changes
    # nothing: the record is still intact.
    for cut in range(start, end):
        torn = whole[:cut] + bytes(FILE_SIZE - cut)
        if torn == whole:
            continue
        disk.put(log_name(0), torn)
        disk.inodes.pop("/d/lock", None)
        crashed = disk.kill()
        log = reopen(crashed, master=master)
        assert log.max_offset == start, cut
        trimmed = log.load_report.trimmed
        remains = whole[start:cut].rstrip(b"\0")
        if remains:
            assert trimmed.physic_offset == start
            assert trimmed.size == len(remains)
            assert list(trimmed_files(crashed).values()) == [remains]
        else:
            assert trimmed is None
        assert crashed.files()[f"{0:020d}"] == whole[:start] + bytes(FILE_SIZE - start)
        before = crashed.files()
        again = reopen(crashed.kill(), master=master)
        assert again.load_report.trimmed is None
        assert again.max_offset == start
        assert again.mapped_file_queue.disk.files() == before


@both_roles
def test_trimmed_bytes_are_reported_and_kept(master, caplog):
    """The report and one log line name their offset, size and kind, and where they are saved."""
    disk, offsets, end = written(3)
    poke(disk, end - 1, b"\x03")  # the record's last byte, the end of its checksum
    with caplog.at_level(logging.WARNING, logger="hastore"):
        log = reopen(disk, master=master)
    trimmed = log.load_report.trimmed
    name = f"/d/trimmed/{offsets[-1]:020d}-{START_MS}"
    assert trimmed.saved_paths == (name,)
    assert (trimmed.size, trimmed.kind, trimmed.topic) == (
        end - offsets[-1],
        "bad-prop-crc",
        "topic2",
    )
    (line,) = [record.msg for record in caplog.records]
    assert (line["event"], line["physic_offset"]) == ("torn_tail_trimmed", offsets[-1])
    assert (line["topic"], line["saved"]) == ("topic2", [name])


def test_torn_tail_is_saved_before_it_is_zeroed():
    """A full disk fails the start before the log is changed."""
    disk, _, end = written(2)
    poke(disk, end - 1, b"\x03")
    before = disk.files()
    disk.fail("write_file", disk_full("/d/trimmed"))
    with pytest.raises(DiskError, match="no space"):
        reopen(disk)
    assert disk.files() == before
    disk.heal()
    disk.changes.clear()
    reopen(disk)
    assert [change.split("/")[2] for change in disk.changes] == ["abort", "trimmed"]
    assert log_name(0) in disk.syncs


def test_large_torn_tail_is_saved_in_pieces():
    """A tail of more than 8 MiB is saved in several files, each named by its offset."""
    disk = FakeDisk()
    size = 32 * 1024 * 1024
    log = open_log(fake_env(disk), mapped_file_size=size, max_message_size=size)
    first = append(log, body=b"whole")
    torn = append(log, body=b"\xaa" * (20 * 1024 * 1024))
    disk = disk.kill()
    image = bytearray(disk.inodes[log_name(0)].seen())
    image[torn.physic_offset + 100] ^= 1
    disk.put(log_name(0), bytes(image))
    log = open_log(fake_env(disk), mapped_file_size=size)
    assert log.max_offset == first.next_offset
    pieces = trimmed_files(disk)
    assert b"".join(pieces.values()) == image[torn.physic_offset : torn.next_offset]
    starts = [int(name[:20]) - torn.physic_offset for name in pieces]
    assert starts == [0, 8 * 1024 * 1024, 16 * 1024 * 1024]


@both_roles
def test_records_appended_after_a_trim_survive(master):
    """Nothing of the old tail reappears after shorter new records."""
    disk, offsets, end = written(3)
    poke(disk, end - 1, b"\x03")
    log = reopen(disk, master=master)
    source = all_bytes(log)
    if master:
        append(log, body=b"new")
    else:
        append_data(log, offsets[-1], b"\0\0\0")
    again = reopen(disk.kill(), master=master)
    assert all_bytes(again)[: len(source)] == source
    assert again.load_report.trimmed is None


def test_slave_trims_an_incomplete_record():
    """A slave resumes at a record boundary: the master sends the incomplete record again."""
    source, offsets, end = written(3)
    data = source.inodes[log_name(0)].seen()
    for size in range(offsets[-1], end):
        disk = FakeDisk()
        slave = reopen(disk, master=False)
        append_data(slave, 0, data[:size])
        again = reopen(disk.kill(), master=False)
        assert again.max_offset == offsets[-1]
        append_data(again, offsets[-1], data[offsets[-1] : end])
        assert all_bytes(again) == data[:end]


def test_file_with_a_torn_first_record_becomes_the_prepared_file():
    """The log ends with the file before it, and the torn file is all zeros again."""
    disk, offsets, _ = written(20)
    first = next(offset for offset in offsets if offset % FILE_SIZE == 0 and offset)
    path = log_name(first)
    disk.put(path, disk.inodes[path].seen()[:150] + bytes(FILE_SIZE - 150))
    for later in [name for name in disk.inodes if name > path and "commitlog" in name]:
        disk.remove(later)
    log = reopen(disk)
    assert log.max_offset == first
    assert log.mapped_file_queue.prepared.file_from_offset == first
    assert disk.files()[f"{first:020d}"] == bytes(FILE_SIZE)
    assert append(log).physic_offset == first


@both_roles
def test_log_whose_only_record_is_torn_is_empty(master):
    """A master continues at the file's start; a slave asks its master where to begin."""
    disk = FakeDisk()
    disk.put(log_name(2 * FILE_SIZE), b"\x00\x00\x00\xff" + b"rubbish".ljust(FILE_SIZE - 4, b"\0"))
    log = reopen(disk, master=master)
    assert list(trimmed_files(disk).values()) == [b"\x00\x00\x00\xffrubbish"]
    if master:
        assert (log.min_offset, log.max_offset) == (2 * FILE_SIZE, 2 * FILE_SIZE)
        assert append(log).physic_offset == 2 * FILE_SIZE
    else:
        assert (log.min_offset, log.max_offset) == (0, 0)
        assert disk.files() == {}
        append_data(log, 5 * FILE_SIZE, b"x")


@both_roles
def test_torn_record_that_claims_2_gib_is_trimmed(master):
    """The size in a torn record's header is not trusted, so it costs no memory."""
    disk, _, end = written(2)
    head = (2**31 - 1).to_bytes(4) + b"\xda\xa3\x20\xa7" + b"\xff" * 60
    poke(disk, end, head)
    log = reopen(disk, master=master)
    assert log.max_offset == end
    assert log.load_report.trimmed.size == len(head)


# -- files without data --------------------------------------------------------------------------


def test_keeps_one_zeroed_file_and_removes_the_others():
    """RocketMQ may have created two files ahead; one is enough."""
    disk, _, end = written(2)
    for offset in (FILE_SIZE, 2 * FILE_SIZE, 3 * FILE_SIZE):
        disk.put(log_name(offset), bytes(FILE_SIZE))
    log = reopen(disk)
    assert log.max_offset == end
    assert log.mapped_file_queue.prepared.file_from_offset == FILE_SIZE
    assert log.load_report.removed_files == (log_name(3 * FILE_SIZE), log_name(2 * FILE_SIZE))
    close(log)
    assert list(disk.files()) == [f"{0:020d}"]


@pytest.mark.parametrize("size", [0, 512, FILE_SIZE - 1])
def test_unfinished_last_file_is_removed(size):
    """A crash during the creation of a file leaves it empty, or short and all zeros."""
    disk, _, end = written(2)
    disk.put(log_name(FILE_SIZE), bytes(size))
    log = reopen(disk)
    assert log.max_offset == end
    assert log.load_report.removed_files == (log_name(FILE_SIZE),)


def test_empty_slave_removes_a_prepared_file():
    """Its master decides where the log starts, so a file prepared for another offset is useless."""
    disk = FakeDisk()
    disk.put(log_name(0), bytes(FILE_SIZE))
    log = reopen(disk, master=False)
    assert disk.files() == {}
    append_data(log, 7 * FILE_SIZE, b"x")


# -- damage --------------------------------------------------------------------------------------


@both_roles
@pytest.mark.parametrize("append_prop_crc", [True, False])
def test_bad_record_before_an_intact_one_is_damage(master, append_prop_crc):
    """The store is not opened, the error names the offset, and nothing is changed."""
    disk, offsets, _ = written(3, append_prop_crc=append_prop_crc)
    poke(disk, offsets[1] + 100, b"\xff\xff")
    before = dict(disk.files("/d/"))
    disk.changes.clear()
    with pytest.raises(LogDamagedError, match="nothing was changed") as caught:
        reopen(disk, master=master)
    assert caught.value.physic_offset == offsets[1]
    assert caught.value.exit_code == 4
    assert "hastore log verify /d" in caught.value.hint
    assert dict(disk.files("/d/")) == before
    assert disk.changes == []
    assert disk.locked == set()


@both_roles
def test_bad_record_before_an_intact_one_in_a_later_file_is_damage(master):
    """The rest of this file and all later files are searched for an intact record."""
    disk, offsets, _ = written(16)
    second_file = [offset for offset in offsets if FILE_SIZE <= offset < 2 * FILE_SIZE]
    assert len(second_file) < len(offsets)
    last_of_first = max(offset for offset in offsets if offset < FILE_SIZE)
    poke(disk, last_of_first, bytes(FILE_SIZE - last_of_first))
    with pytest.raises(LogDamagedError) as caught:
        reopen(disk, master=master)
    assert caught.value.physic_offset == last_of_first


def test_zeros_before_an_intact_record_are_damage():
    """A lost sector in the middle is not the log's end."""
    disk, offsets, _ = written(3)
    poke(disk, offsets[1], bytes(offsets[2] - offsets[1]))
    with pytest.raises(LogDamagedError, match="empty"):
        reopen(disk)


@pytest.mark.parametrize("position", range(4080, 4100))
def test_finds_an_intact_record_across_a_chunk_boundary(position, monkeypatch):
    """Its magic may be split between two reads."""
    monkeypatch.setattr("hastore.store.recovery.tail_scan.CHUNK_SIZE", 4096)
    monkeypatch.setattr("hastore.store.recovery.tail_scan._ZEROS", bytes(4096))
    disk = FakeDisk()
    log = open_log(fake_env(disk), mapped_file_size=16_384)
    append(log)
    append(log, body=bytes(position - log.max_offset - 4 - 117))
    bad = log.max_offset - 1
    assert log.max_offset == position - 4
    append(log, body=b"behind")
    disk = disk.kill()
    image = bytearray(disk.inodes[log_name(0)].seen())
    image[bad] ^= 1
    disk.put(log_name(0), bytes(image))
    with pytest.raises(LogDamagedError, match=f"follows at {position - 4}"):
        open_log(fake_env(disk), mapped_file_size=16_384)


def test_intact_record_with_another_offset_is_trimmed():
    """Its stored physical offset shows that it was never appended here."""
    disk, offsets, end = written(3)
    stale = disk.inodes[log_name(0)].seen()[offsets[0] : offsets[1]]
    poke(disk, end, stale)
    log = reopen(disk)
    assert log.max_offset == end
    assert log.load_report.trimmed.kind == "bad-physic-offset"
    assert list(trimmed_files(disk).values()) == [stale]


@both_roles
def test_any_flipped_byte_in_the_last_file_is_detected(master):
    """A bad last record is trimmed; an earlier bad record is damage."""
    disk, offsets, end = written(3, size=40)
    whole = disk.inodes[log_name(0)].seen()
    for offset in range(end):
        if offset < 4:
            continue  # a flipped size is detected too, but may look like a shorter BLANK
        disk.put(log_name(0), whole[:offset] + bytes([whole[offset] ^ 0x40]) + whole[offset + 1 :])
        crashed = disk.kill()
        if offset < offsets[-1]:
            with pytest.raises(LogDamagedError):
                reopen(crashed, master=master)
        else:
            assert reopen(crashed, master=master).max_offset == offsets[-1], offset


def test_checksums_of_old_files_are_not_checked_at_start():
    """Files before the last three were flushed long ago; `log verify` checks all of them."""
    disk, offsets, end = written(100)
    poke(disk, offsets[1] + 100, b"\xff")
    assert reopen(disk).max_offset == end


def test_failed_sync_fails_the_start():
    """Unsynced bytes must not count as flushed; the lock is released."""
    disk, _, _ = written(2)
    disk.fail("sync", sync_failed())
    with pytest.raises(FlushFailedError):
        reopen(disk)
    assert disk.locked == set()
    disk.heal()
    reopen(disk)


# -- nothing acknowledged is lost ----------------------------------------------------------------


@given(
    sizes=st.lists(st.tuples(st.integers(0, 1500), st.booleans()), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
    master=st.booleans(),
)
def test_power_cut_loses_no_flushed_bytes(sizes, seed, master):
    """Whichever unsynced sectors are lost, the log keeps at least its flushed bytes, or damage is
    reported at or after the flushed offset. The remaining bytes are those that were written.
    """
    disk = FakeDisk()
    log = open_log(fake_env(disk))
    for size, is_flushed in sizes:
        append(log, body=b"\xee" * size)
        if is_flushed:
            flush(log)
    written_bytes, flushed = all_bytes(log), log.flushed_offset
    choice = random.Random(seed)
    after = disk.cut_power(lambda: choice.random() < 0.5)
    damage = None
    try:
        again = reopen(after, master=master)
    except LogDamagedError as error:
        damage = error
    if damage is not None:
        assert damage.physic_offset >= flushed
        return
    assert again.max_offset >= flushed
    assert all_bytes(again) == written_bytes[: again.max_offset]
    end = again.max_offset
    third = reopen(after.kill(), master=master)
    assert (third.max_offset, third.load_report.trimmed) == (end, None)
    if master:
        stored = append(third).physic_offset
        assert message_codec.decode(third.read(stored, FILE_SIZE)).body == b"body"


@pytest.mark.parametrize("size", [0, FILE_SIZE])
def test_a_log_whose_only_file_is_empty_keeps_its_offset(size):
    """The files before it have expired; the queues and the groups' offsets continue there."""
    disk = FakeDisk()
    offset = 3 * FILE_SIZE
    disk.put(f"/d/commitlog/{offset:020d}", bytes(size))
    log = open_log(fake_env(disk))
    assert (log.min_offset, log.max_offset) == (offset, offset)
    assert append(log).physic_offset == offset
