"""Walking logs that are intact, damaged, cut, missing files, or being written."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.env.real import RealDisk
from hastore.errors import DiskError, NotAStoreError
from hastore.store.record.record_check import RecordKind
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from hastore.store.tools.log_walker import CHUNK_SIZE, LogWalker
from tests.support.store.log_builder import FILE_SIZE, LogBuilder


def walk(disk, log=None, **options):
    """Walk a log, check that the results are contiguous, and return them with the log's end."""
    log = log or find_log(disk, "/d")
    walker = LogWalker(disk, log, **options)
    seen = []
    at = None
    for offset, check in walker.walk():
        assert at is None or offset == at
        assert check.size > 0
        at = offset + check.size
        seen.append((offset, check.kind))
    return seen, walker.end_offset


def messages(seen):
    return [offset for offset, kind in seen if kind is RecordKind.MESSAGE]


def damage(seen):
    good = {RecordKind.MESSAGE, RecordKind.BLANK}
    return [(offset, kind) for offset, kind in seen if kind not in good]


@pytest.mark.parametrize("min_offset", [0, 5 * FILE_SIZE])
@pytest.mark.parametrize("check_crc", [True, False])
def test_walk_visits_every_message_and_filler_in_order(min_offset, check_crc):
    """The walk ends after the last message."""
    builder = LogBuilder(min_offset=min_offset).fill(60)
    seen, end = walk(builder.on_disk(), check_crc=check_crc)
    assert messages(seen) == builder.offsets
    assert [offset for offset, kind in seen if kind is RecordKind.BLANK] == builder.blanks
    assert not damage(seen)
    assert end == builder.end


def test_prepared_file_of_zeros_is_not_part_of_the_log():
    """A file that is created ahead does not move the log's end."""
    builder = LogBuilder().fill(20)
    _, end = walk(builder.on_disk(bytes(builder.data).ljust(4 * FILE_SIZE, b"\0")))
    assert end == builder.end


def test_empty_log_ends_where_it_begins():
    """A file of zeros and a directory without files both hold nothing."""
    builder = LogBuilder(min_offset=FILE_SIZE)
    assert walk(builder.on_disk(bytes(10))) == ([], FILE_SIZE)
    assert walk(builder.on_disk(b"")) == ([], 0)


def test_log_that_ends_with_a_blank_ends_at_the_file_end():
    """A BLANK is part of the log even if no file follows."""
    builder = LogBuilder().fill(3)
    builder.blank(FILE_SIZE - len(builder.data))
    assert walk(builder.on_disk())[1] == FILE_SIZE


def test_walk_reads_records_larger_than_a_chunk():
    """Small records before, between and after them are found too."""
    builder = LogBuilder(file_size=8 * CHUNK_SIZE).fill(3)
    builder.add(bytes(CHUNK_SIZE)).fill(1).add(bytes(3 * CHUNK_SIZE + 5)).fill(2)
    seen, _ = walk(builder.on_disk())
    assert messages(seen) == builder.offsets


def test_records_across_chunk_ends_are_visited_once():
    """None is lost, and none is returned twice."""
    builder = LogBuilder(file_size=4 * CHUNK_SIZE)
    for size in range(3_000):
        builder.add(bytes(size % 1_777))
    seen, end = walk(builder.on_disk())
    assert messages(seen) == builder.offsets
    assert end == builder.end


def test_damaged_size_does_not_cause_a_large_read():
    """A damaged size of megabytes costs one chunk of memory."""
    builder = LogBuilder(file_size=8 * CHUNK_SIZE).fill(30)
    disk = builder.on_disk(builder.flipped(builder.offsets[5] + 1, 0x40))
    asked = []
    disk.before("pread", lambda read: asked.append(read.size))
    seen, _ = walk(disk)
    assert damage(seen) == [(builder.offsets[5], RecordKind.BAD_LENGTHS)]
    assert max(asked) <= CHUNK_SIZE + 3


def test_walk_continues_after_damage():
    """After a record with a wrong size, the next record and all later ones are found."""
    builder = LogBuilder().fill(60)
    bad = builder.offsets[7]
    seen, end = walk(builder.on_disk(builder.flipped(bad + 2)))
    assert damage(seen) == [(bad, RecordKind.TORN)]
    assert messages(seen) == [offset for offset in builder.offsets if offset != bad]
    assert end == builder.end


def test_damaged_blank_hides_no_later_file():
    """Whichever byte of its size or magic is wrong, the next file is read from its start."""
    builder = LogBuilder().fill(60)
    blank = builder.blanks[0]
    for position in range(8):
        seen, _ = walk(builder.on_disk(builder.flipped(blank + position)))
        assert [offset for offset, _ in damage(seen)] == [blank]
        assert messages(seen) == builder.offsets


def test_damaged_last_record_of_a_file_is_the_only_damage():
    """The BLANK after it is found."""
    builder = LogBuilder().fill(60)
    blank = builder.blanks[0]
    bad = max(offset for offset in builder.offsets if offset < blank)
    seen, _ = walk(builder.on_disk(builder.flipped(bad)))
    assert damage(seen) == [(bad, RecordKind.BAD_SIZE)]
    assert (blank, RecordKind.BLANK) in seen


def test_zeros_before_records_are_damage_not_the_end():
    """They may lie inside one file, over a BLANK, or over a whole file."""
    builder = LogBuilder().fill(80)
    for start, end in (
        (builder.offsets[3], builder.offsets[6]),
        (builder.offsets[3], FILE_SIZE),
        (builder.offsets[3], 2 * FILE_SIZE),
    ):
        data = bytearray(builder.data)
        data[start:end] = bytes(end - start)
        seen, log_end = walk(builder.on_disk(data))
        assert damage(seen)[0] == (start, RecordKind.HOLE)
        assert messages(seen) == [o for o in builder.offsets if not start <= o < end]
        assert log_end == builder.end


def test_torn_tail_reaches_to_its_last_nonzero_byte():
    """The log ends before the torn tail."""
    builder = LogBuilder().fill(10)
    last = builder.offsets[-1]
    torn = builder.data[: last + 150] + bytes(200)
    disk = builder.on_disk(torn)
    walker = LogWalker(disk, find_log(disk, "/d"))
    *_, (offset, check) = walker.walk()
    written = len(torn.rstrip(b"\0"))
    assert (offset, offset + check.size) == (last, written)
    assert walker.end_offset == last


def test_nonzero_bytes_after_the_end_are_damage():
    """They are reported even if they contain no record."""
    builder = LogBuilder().fill(5)
    seen, end = walk(builder.on_disk(builder.data + bytes(50) + b"x" + bytes(10)))
    assert damage(seen) == [(builder.end, RecordKind.HOLE)]
    assert end == builder.end


def test_stale_record_with_another_offset_is_damage():
    """Its stored physical offset shows that it belongs elsewhere."""
    builder = LogBuilder().fill(5)
    stale = LogBuilder(min_offset=FILE_SIZE).fill(2)
    seen, end = walk(builder.on_disk(builder.data + stale.data))
    assert {kind for _, kind in damage(seen)} == {RecordKind.BAD_PHYSIC_OFFSET}
    assert messages(seen) == builder.offsets
    assert end == builder.end


def test_missing_file_is_returned_as_a_gap(tmp_path):
    """The gap has the missing file's offset, and the walk continues after it."""
    builder = LogBuilder().fill(100)
    store = builder.write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE:020d}").unlink()
    seen, end = walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert damage(seen) == [(FILE_SIZE, RecordKind.MISSING)]
    assert messages(seen) == [o for o in builder.offsets if o // FILE_SIZE != 1]
    assert end == builder.end


def test_truncated_file_is_damage(tmp_path):
    """The walk returns the torn record, the gap, then the next file."""
    builder = LogBuilder().fill(100)
    store = builder.write(tmp_path / "store")
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    path.write_bytes(path.read_bytes()[:2_000])
    seen, _ = walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert [kind for _, kind in damage(seen)] == [RecordKind.TORN, RecordKind.MISSING]


def test_walk_from_an_offset_begins_with_the_file_that_holds_it():
    """Earlier files are not read."""
    builder = LogBuilder().fill(100)
    seen, end = walk(builder.on_disk(), from_offset=2 * FILE_SIZE + 1)
    assert seen[0][0] == 2 * FILE_SIZE
    assert end == builder.end


def test_log_that_is_being_written_is_not_damaged():
    """A record that looks torn is read again; if it is complete by then, it is a message."""
    builder = LogBuilder().fill(12)
    half = builder.offsets[-1] + 60
    disk = builder.on_disk(builder.data[:half], queues=False)
    (inode,) = disk.inodes.values()

    def finish_the_record(_read):
        inode.cache[: builder.end] = builder.data

    disk.after("pread", finish_the_record)
    seen, end = walk(disk)
    assert messages(seen) == builder.offsets
    assert not damage(seen)
    assert end == builder.end


@given(st.data())
def test_damage_hides_no_record_outside_its_range(data):
    """Random ranges are overwritten with random bytes; every other record is still found."""
    builder = LogBuilder(prop_crc=data.draw(st.booleans())).fill(data.draw(st.integers(5, 60)))
    damaged = bytearray(builder.data)
    touched = set()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(damaged) - 1))
        rubbish = data.draw(
            st.one_of(st.binary(min_size=1, max_size=300), st.builds(bytes, st.integers(1, 6_000)))
        )
        rubbish = rubbish[: len(damaged) - start]
        damaged[start : start + len(rubbish)] = rubbish
        touched.update(
            offset
            for offset, end in zip(
                builder.offsets, [*builder.offsets[1:], builder.end], strict=True
            )
            if offset < start + len(rubbish) and start < end
        )
    found = messages(walk(builder.on_disk(damaged))[0])
    assert set(builder.offsets) - touched <= set(found) <= set(builder.offsets)


def test_walk_changes_nothing(tmp_path):
    """A log can be walked on a read-only file system."""
    store = LogBuilder().fill(100).write(tmp_path / "store")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}
    walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert before == {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()
    }


def test_log_is_found_by_store_or_log_directory(tmp_path):
    """The store's root, its commitlog, and a copy of it under any name all work."""
    store = LogBuilder().fill(3).write(tmp_path / "store")
    (store / "commitlog" / "notes.txt").write_text("x")
    (store / "commitlog" / "lost+found").mkdir()
    disk = RealDisk()
    by_root, by_log = find_log(disk, f"{store}/"), find_log(disk, str(store / "commitlog"))
    assert by_root.files == by_log.files
    assert by_root.strays == ("lost+found/", "notes.txt")
    (store / "commitlog").rename(tmp_path / "copy")
    assert find_log(disk, str(tmp_path / "copy")).root is None


@pytest.mark.parametrize("name", ["nothing", "empty", "other", "file"])
def test_path_without_a_log_is_refused(tmp_path, name):
    """A missing directory, an empty one, one of other files, or a file: the error has a hint."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00000000000000000001.txt").write_text("x")
    with pytest.raises(NotAStoreError) as caught:
        find_log(RealDisk(), str(tmp_path / name))
    assert name in str(caught.value)
    assert caught.value.hint


def test_pipe_instead_of_a_file_is_an_error(tmp_path):
    """Opening it would wait for a writer forever."""
    os.mkfifo(tmp_path / f"{0:020d}")
    with pytest.raises(DiskError, match=r"cannot open .*: not a regular file"):
        RealDisk().open_file(str(tmp_path / f"{0:020d}"), writable=False)


@pytest.mark.parametrize("torn", [False, True])
def test_unwritten_part_of_a_file_is_not_read(tmp_path, torn):
    """The zeros after a few messages are skipped, also after a torn record."""
    size = 256 * 1024 * 1024
    builder = LogBuilder(file_size=size).fill(3)
    (tmp_path / "commitlog").mkdir()
    path = tmp_path / "commitlog" / f"{0:020d}"
    disk = RealDisk()
    disk_file = disk.create_file(str(path), size)
    disk_file.close()
    with path.open("r+b") as file:
        file.write(builder.data[: -5 if torn else None])
        os.fsync(file.fileno())
    before = read_bytes()
    report = verify_log(disk, find_log(disk, str(tmp_path)))
    assert read_bytes() - before < 16 * 1024 * 1024
    assert report.messages == (2 if torn else 3)


def read_bytes():
    """Return how many bytes this process has read, cached or not."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
