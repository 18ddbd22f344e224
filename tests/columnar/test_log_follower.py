"""A growing log is readable up to its last intact record, or up to the confirm offset."""

import pytest

from hastore.columnar import log_follower
from hastore.columnar.log_follower import StoreFollower
from hastore.columnar.log_position import offset_at_time, record_at
from hastore.env.real import real_env
from hastore.errors import ConfigError, NotAStoreError
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from tests.support.env.scripted_disk import ScriptedDisk
from tests.support.store.log_builder import FIRST_MS, LogBuilder

DISK = real_env().disk


def ends_of(builder):
    """Return where each message of a log ends, which is where the next one or a filler begins."""
    starts = sorted([*builder.offsets, *builder.blanks, builder.end])
    return [next(s for s in starts if s > offset) for offset in builder.offsets]


def confirm(path, offset):
    """Write a checkpoint as a node does."""
    checkpoint = StoreCheckpoint.open(DISK, str(path))
    checkpoint.confirm_offset = offset
    checkpoint.physic_msg_timestamp = FIRST_MS
    checkpoint.flush()
    checkpoint.close()


def write_up_to(path, builder, end):
    """Write the log files as they were when the log ended at ``end``."""
    log = path / "commitlog"
    log.mkdir(exist_ok=True)
    size = builder.file_size
    for start in range(0, end, size):
        data = bytes(builder.data[start : min(start + size, end)]).ljust(size, b"\0")
        (log / f"{start:020d}").write_bytes(data)


def test_end_follows_a_growing_log(tmp_path):
    """It is always that of the last complete record, even if the next is half written."""
    builder = LogBuilder().fill(60)
    follower = StoreFollower(DISK, str(tmp_path))
    ends = ends_of(builder)
    (tmp_path / "commitlog").mkdir()
    assert follower.end() == 0
    for moment in range(0, builder.end, 97):
        write_up_to(tmp_path, builder, moment)
        whole = max((end for end in ends if end <= moment), default=0)
        fresh = StoreFollower(DISK, str(tmp_path)).end()
        assert follower.end() == fresh
        assert fresh >= whole
        assert fresh == whole or fresh % builder.file_size == 0
        assert follower.fault_at(fresh) is None
        assert follower.end_after(fresh) == fresh


@pytest.mark.parametrize("confirmed", [0, 1, 700, 4096, 5000, 9_999_999])
def test_end_is_limited_by_the_confirm_offset(tmp_path, confirmed):
    """The confirm offset may lie inside a record; 0 means that it is unknown."""
    builder = LogBuilder().fill(60)
    path = builder.write(tmp_path)
    confirm(path, confirmed)
    limit = confirmed or builder.end
    fits = [end for end in [*ends_of(builder), *range(4096, builder.end, 4096)] if end <= limit]
    assert StoreFollower(DISK, str(path)).end() == max(fits, default=0)


def test_unreadable_checkpoint_keeps_the_confirm_offset(tmp_path):
    """Otherwise one failed read would make the whole log readable."""
    builder = LogBuilder().fill(60)
    path = builder.write(tmp_path)
    follower = StoreFollower(DISK, str(path))
    confirm(path, builder.offsets[10])
    assert follower.end() == builder.offsets[10]
    (path / "checkpoint").write_bytes(b"")
    assert follower.end() == builder.offsets[10]
    confirm(path, builder.offsets[50])
    assert follower.end() == builder.offsets[50]


@pytest.mark.parametrize("size_max", [1, 300, 1000, 4000, 10_000])
def test_batches_of_limited_size_cover_the_log(tmp_path, size_max):
    """Each has at most that size, or is one record or one filler."""
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path)
    boundaries = {0, *ends_of(builder), *range(4096, builder.end, 4096)}
    follower = StoreFollower(DISK, str(path))
    at, seen = 0, []
    while (end := follower.end_after(at, size_max)) > at:
        assert end in boundaries
        records = [offset for offset in builder.offsets if at <= offset < end]
        assert end - at <= size_max or len(records) <= 1
        seen += records
        at = end
    assert seen == builder.offsets
    assert at == builder.end


def test_following_reads_only_what_is_new(tmp_path, monkeypatch):
    """The first look at 100 files reads two of them; each later one reads a chunk."""
    monkeypatch.setattr("hastore.columnar.record_reader.CHUNK_SIZE", 512)
    builder = LogBuilder().fill(2_000)
    path = builder.write(tmp_path)
    assert len(list((path / "commitlog").iterdir())) > 90
    disk = ScriptedDisk(DISK)
    follower = StoreFollower(disk, str(path))
    assert follower.end() == builder.end
    assert disk.bytes_read.total() < 3 * builder.file_size
    disk.bytes_read.clear()
    for _ in range(10):
        assert follower.end_after(builder.end) == builder.end
        assert follower.fault_at(builder.end) is None
    assert disk.bytes_read.total() < 10 * 3 * 600
    disk.bytes_read.clear()
    assert StoreFollower(disk, str(path)).end_after(0, 5_000) <= 5_000
    assert disk.bytes_read.total() < 5 * builder.file_size


def test_damage_is_skipped_if_an_intact_record_follows(tmp_path):
    """A missing file is skipped, too; a damaged last record waits for the next one."""
    builder = LogBuilder().fill(100)
    for place in (builder.offsets[50] + 2, builder.offsets[90] + 90):
        path = builder.write(tmp_path / str(place), data=builder.flipped(place))
        assert StoreFollower(DISK, str(path)).end() == builder.end
    (path / "commitlog" / f"{8192:020d}").unlink()
    assert StoreFollower(DISK, str(path)).end() == builder.end
    assert StoreFollower(DISK, str(path)).end_after(8000, 1) >= 8192
    path = builder.write(tmp_path / "last", data=builder.flipped(builder.offsets[-1] + 90))
    assert StoreFollower(DISK, str(path)).end() == builder.offsets[-1]


def test_damage_that_fills_a_chunk_does_not_stop_a_stream(tmp_path, monkeypatch):
    """Two records do not fit one chunk together; the first is damaged, the second intact."""
    monkeypatch.setattr("hastore.columnar.record_reader.CHUNK_SIZE", 4096)
    builder = LogBuilder(file_size=1 << 16).fill(3)
    builder.add(b"x" * 3000).add(b"y" * 3000).fill(5)
    bad = builder.offsets[3]
    path = builder.write(tmp_path, data=builder.flipped(bad + 100))
    follower = StoreFollower(DISK, str(path))
    assert follower.end() == builder.end
    assert follower.end_after(bad, 100) == builder.offsets[4]
    assert follower.end_after(0) == builder.end


def test_detects_a_log_that_was_cut_or_replaced(tmp_path):
    """An earlier offset is refused if it is now after the end, or inside a record."""
    builder = LogBuilder().fill(60)
    path = builder.write(tmp_path)
    follower = StoreFollower(DISK, str(path))
    end = follower.end()
    assert follower.fault_at(end) is None
    assert StoreFollower(DISK, str(path)).fault_at(builder.offsets[33]) is None
    assert "no record begins at" in StoreFollower(DISK, str(path)).fault_at(builder.offsets[33] + 1)
    write_up_to(tmp_path, builder, builder.offsets[-3])
    for each in (follower, StoreFollower(DISK, str(path))):
        fault = each.fault_at(end)
        assert fault.startswith(f"the log ends at {builder.offsets[-3]}, before offset {end}, ")
    other = LogBuilder().fill(60, topic="another topic")
    write_up_to(tmp_path, other, other.end)
    for each in (follower, StoreFollower(DISK, str(path))):
        assert "no record begins at" in each.fault_at(end)
    for file in (path / "commitlog").iterdir():
        file.unlink()
    assert "the log ends at 0" in follower.fault_at(end)
    (path / "commitlog").rmdir()
    with pytest.raises(NotAStoreError):
        follower.end()


def test_finds_the_record_at_an_offset_or_a_time(tmp_path):
    """Inside a record it finds the next one; offsets before and after the log are errors."""
    builder = LogBuilder(min_offset=4096).fill(60)
    path = builder.write(tmp_path)
    assert record_at(DISK, str(path), builder.offsets[40]) == builder.offsets[40]
    assert record_at(DISK, str(path), builder.offsets[40] - 3) == builder.offsets[40]
    assert record_at(DISK, str(path), 4096) == 4096
    assert record_at(DISK, str(path), builder.end) == builder.end
    with pytest.raises(ConfigError, match="begins at offset 4096: 100 has expired"):
        record_at(DISK, str(path), 100)
    with pytest.raises(ConfigError, match=f"ends at offset {builder.end}: there is no"):
        record_at(DISK, str(path), builder.end + 1)
    assert offset_at_time(DISK, str(path), FIRST_MS + 45) == builder.offsets[45]
    assert offset_at_time(DISK, str(path), FIRST_MS + 999) == builder.end
    assert offset_at_time(DISK, str(path), 0) == 4096


def test_returned_offsets_are_remembered(tmp_path, monkeypatch):
    """Each batch begins where the last one ended; the number of remembered offsets is limited."""
    monkeypatch.setattr(log_follower, "_GOOD_MAX", 5)
    builder = LogBuilder().fill(60)
    follower = StoreFollower(DISK, str(builder.write(tmp_path)))
    at = 0
    for _ in range(20):
        at = follower.end_after(at, 400)
        assert at in follower._good
        assert follower.fault_at(at) is None
    assert len(follower._good) <= 5
