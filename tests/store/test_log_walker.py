"""A walk over logs that are whole, damaged, cut, holed, or written at that very moment."""

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
from tests.support.store.log_builder import FILE_SIZE, LogBuilder, MemoryDisk


def walk(disk, log=None, **options):
    """Walk, check that what is yielded lies end to end, and give it with the end."""
    log = log or disk.log
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
def test_a_whole_log(min_offset, check_crc):
    """Every message and filler is met in order; the end is that of the last message."""
    builder = LogBuilder(min_offset=min_offset).fill(60)
    seen, end = walk(MemoryDisk(builder), check_crc=check_crc)
    assert messages(seen) == builder.offsets
    assert [offset for offset, kind in seen if kind is RecordKind.BLANK] == builder.blanks
    assert not damage(seen)
    assert end == builder.end


def test_a_prepared_file_of_zeros_is_no_part_of_the_log():
    """The next file that is made in advance does not move the log's end."""
    builder = LogBuilder().fill(20)
    _, end = walk(MemoryDisk(builder, bytes(builder.data).ljust(4 * FILE_SIZE, b"\0")))
    assert end == builder.end


def test_an_empty_log_ends_where_it_begins():
    """A file of zeros holds nothing; a directory without files neither."""
    builder = LogBuilder(min_offset=FILE_SIZE)
    assert walk(MemoryDisk(builder, bytes(10))) == ([], FILE_SIZE)
    assert walk(MemoryDisk(builder, b"")) == ([], 0)


def test_a_log_that_ends_with_a_filler_ends_at_the_file():
    """A filler is part of the log even if no file follows."""
    builder = LogBuilder().fill(3)
    builder.blank(FILE_SIZE - len(builder.data))
    assert walk(MemoryDisk(builder))[1] == FILE_SIZE


def test_records_larger_than_a_chunk():
    """A record of several MiB, between small ones and at any place of a chunk, is read whole."""
    builder = LogBuilder(file_size=8 * CHUNK_SIZE).fill(3)
    builder.add(bytes(CHUNK_SIZE)).fill(1).add(bytes(3 * CHUNK_SIZE + 5)).fill(2)
    seen, _ = walk(MemoryDisk(builder))
    assert messages(seen) == builder.offsets


def test_many_records_in_many_chunks():
    """Records that lie across the ends of chunks are neither lost nor met twice."""
    builder = LogBuilder(file_size=4 * CHUNK_SIZE)
    for size in range(3_000):
        builder.add(bytes(size % 1_777))
    seen, end = walk(MemoryDisk(builder))
    assert messages(seen) == builder.offsets
    assert end == builder.end


def test_a_claimed_size_is_not_believed_before_more_than_a_chunk_is_read():
    """A damaged size of megabytes costs one chunk of memory, not the megabytes."""
    builder = LogBuilder(file_size=8 * CHUNK_SIZE).fill(30)
    disk = MemoryDisk(builder, builder.flipped(builder.offsets[5] + 1, 0x40))
    asked = []
    open_file = disk.open_file

    def spying_open(path, *, writable):
        file = open_file(path, writable=writable)
        pread = file.pread
        file.pread = lambda size, position: (asked.append(size), pread(size, position))[1]
        return file

    disk.open_file = spying_open
    seen, _ = walk(disk)
    assert damage(seen) == [(builder.offsets[5], RecordKind.BAD_LENGTHS)]
    assert max(asked) <= CHUNK_SIZE + 3


def test_the_walk_goes_on_behind_damage():
    """Behind a record whose size is wrong the next one is found and all later ones are read."""
    builder = LogBuilder().fill(60)
    bad = builder.offsets[7]
    seen, end = walk(MemoryDisk(builder, builder.flipped(bad + 2)))
    assert damage(seen) == [(bad, RecordKind.TORN)]
    assert messages(seen) == [offset for offset in builder.offsets if offset != bad]
    assert end == builder.end


def test_a_damaged_filler_hides_no_later_file():
    """Whatever byte of a filler's size or magic is wrong, the next file is read from its start."""
    builder = LogBuilder().fill(60)
    blank = builder.blanks[0]
    for position in range(8):
        seen, _ = walk(MemoryDisk(builder, builder.flipped(blank + position)))
        assert [offset for offset, _ in damage(seen)] == [blank]
        assert messages(seen) == builder.offsets


def test_the_last_record_of_a_file_damaged():
    """Behind it the filler is found, so only that record is called unreadable."""
    builder = LogBuilder().fill(60)
    blank = builder.blanks[0]
    bad = max(offset for offset in builder.offsets if offset < blank)
    seen, _ = walk(MemoryDisk(builder, builder.flipped(bad)))
    assert damage(seen) == [(bad, RecordKind.BAD_SIZE)]
    assert (blank, RecordKind.BLANK) in seen


def test_a_hole_of_zeros_does_not_end_the_log():
    """Zeros with records behind them are damage: in one file, over a filler, over a whole file."""
    builder = LogBuilder().fill(80)
    for start, end in (
        (builder.offsets[3], builder.offsets[6]),
        (builder.offsets[3], FILE_SIZE),
        (builder.offsets[3], 2 * FILE_SIZE),
    ):
        data = bytearray(builder.data)
        data[start:end] = bytes(end - start)
        seen, log_end = walk(MemoryDisk(builder, data))
        assert damage(seen)[0] == (start, RecordKind.HOLE)
        assert messages(seen) == [o for o in builder.offsets if not start <= o < end]
        assert log_end == builder.end


def test_a_torn_tail_is_measured():
    """An unreadable end reaches to its last written byte, and the log's end lies before it."""
    builder = LogBuilder().fill(10)
    last = builder.offsets[-1]
    torn = builder.data[: last + 150] + bytes(200)
    walker = LogWalker(MemoryDisk(builder, torn), MemoryDisk(builder, torn).log)
    *_, (offset, check) = walker.walk()
    written = len(torn.rstrip(b"\0"))
    assert (offset, offset + check.size) == (last, written)
    assert walker.end_offset == last


def test_rubbish_behind_the_end_is_damage():
    """Bytes that are not zero behind zeros are named, also where no record is among them."""
    builder = LogBuilder().fill(5)
    seen, end = walk(MemoryDisk(builder, builder.data + bytes(50) + b"x" + bytes(10)))
    assert damage(seen) == [(builder.end, RecordKind.HOLE)]
    assert end == builder.end


def test_a_record_of_an_earlier_life_is_not_taken():
    """A whole record that says that it stands elsewhere is damage, and never a message."""
    builder = LogBuilder().fill(5)
    stale = LogBuilder(min_offset=FILE_SIZE).fill(2)
    seen, end = walk(MemoryDisk(builder, builder.data + stale.data))
    assert {kind for _, kind in damage(seen)} == {RecordKind.BAD_PHYSIC_OFFSET}
    assert messages(seen) == builder.offsets
    assert end == builder.end


def test_a_missing_file_is_met_as_a_gap(tmp_path):
    """Where no file holds some offsets, that is yielded with its size, and the walk goes on."""
    builder = LogBuilder().fill(100)
    store = builder.write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE:020d}").unlink()
    seen, end = walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert damage(seen) == [(FILE_SIZE, RecordKind.MISSING)]
    assert messages(seen) == [o for o in builder.offsets if o // FILE_SIZE != 1]
    assert end == builder.end


def test_a_cut_file_is_met_as_damage(tmp_path):
    """A file that lost its end: the record cut there, then the gap, then the next file."""
    builder = LogBuilder().fill(100)
    store = builder.write(tmp_path / "store")
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    path.write_bytes(path.read_bytes()[:2_000])
    seen, _ = walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert [kind for _, kind in damage(seen)] == [RecordKind.TORN, RecordKind.MISSING]


def test_from_an_offset_only_later_files_are_read():
    """The walk begins with the file that holds the offset."""
    builder = LogBuilder().fill(100)
    seen, end = walk(MemoryDisk(builder), from_offset=2 * FILE_SIZE + 1)
    assert seen[0][0] == 2 * FILE_SIZE
    assert end == builder.end


def test_a_log_that_is_written_meanwhile_is_not_called_damaged():
    """What looks torn is read again: a record that has become whole by then is a message."""
    builder = LogBuilder().fill(12)
    half = builder.offsets[-1] + 60
    disk = MemoryDisk(builder, builder.data[:half])
    name = next(iter(disk.files))

    def finish_the_record():
        disk.files[name][:] = bytes(builder.data).ljust(FILE_SIZE, b"\0")

    disk.on_read = finish_the_record
    seen, end = walk(disk)
    assert messages(seen) == builder.offsets
    assert not damage(seen)
    assert end == builder.end


@given(st.data())
def test_no_damage_hides_a_record_that_it_did_not_touch(data):
    """Whatever ranges are overwritten with whatever bytes, every other record is still found."""
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
    found = messages(walk(MemoryDisk(builder, damaged))[0])
    assert set(builder.offsets) - touched <= set(found) <= set(builder.offsets)


def test_a_walk_changes_nothing(tmp_path):
    """A log can be walked where nothing may be written, and every file stays as it was."""
    store = LogBuilder().fill(100).write(tmp_path / "store")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()}
    walk(RealDisk(), find_log(RealDisk(), str(store)))
    assert before == {
        p: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.rglob("*") if p.is_file()
    }


def test_a_log_is_found_by_its_store_by_itself_and_without_a_store(tmp_path):
    """The store's root, its commitlog, and a directory of log files of any name all do."""
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
def test_what_is_no_log_is_refused(tmp_path, name):
    """No directory, an empty one, one of other files, a file: each with a next step."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00000000000000000001.txt").write_text("x")
    with pytest.raises(NotAStoreError) as caught:
        find_log(RealDisk(), str(tmp_path / name))
    assert name in str(caught.value)
    assert caught.value.hint


def test_a_pipe_instead_of_a_file_is_an_error(tmp_path):
    """Opening it would wait for a writer, for ever."""
    os.mkfifo(tmp_path / f"{0:020d}")
    with pytest.raises(DiskError, match=r"cannot open .*: not a regular file"):
        RealDisk().open_file(str(tmp_path / f"{0:020d}"), writable=False)


@pytest.mark.parametrize("torn", [False, True])
def test_what_was_never_written_is_not_read(tmp_path, torn):
    """The 1 GiB of zeros behind a few messages are skipped, also behind a torn record."""
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
    """What this process has read, cached or not."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])
