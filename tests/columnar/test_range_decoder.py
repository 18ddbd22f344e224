"""Arrow batches hold the same messages and the same damage as a walk record by record."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hastore.columnar import range_decoder, record_reader
from hastore.columnar.log_range import Bounds, find_ranges, group_ranges
from hastore.columnar.log_schema import arrow_schema
from hastore.columnar.range_decoder import RangeDecoder
from hastore.columnar.record_reader import RecordReader
from hastore.columnar.row_filter import RowFilter
from hastore.env.real import real_env
from hastore.errors import ConfigError, DiskError, LogDamagedError, NotAStoreError
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.layout import MESSAGE_MAGIC_CODE, MESSAGE_MAGIC_CODE_V2
from tests.support.store.expected_rows import check_manifest, plain, walked
from tests.support.store.log_builder import FIRST_MS, LogBuilder

DISK = real_env().disk
GOLDEN = ["clean", "crashed", "crashed_torn", "crashed_torn_props", "propcrc", "replica_master"]


def read(path, columns=None, *, groups=1, bounds=None, **options):
    """Return the rows of a store, read in ``groups`` groups of ranges."""
    bounds = bounds or Bounds()
    decoder = RangeDecoder(
        DISK,
        columns,
        RowFilter(
            start_offset=bounds.start_offset,
            end_offset=bounds.end_offset,
            start_time_ms=bounds.start_time_ms,
            end_time_ms=bounds.end_time_ms,
            **{
                name: options.pop(name)
                for name in ("topic", "queue_id", "damaged")
                if name in options
            },
        ),
        **options,
    )
    ranges = find_ranges(DISK, str(path), bounds)
    rows = []
    for group in group_ranges(DISK, ranges, groups):
        for log_range in group:
            for batch in decoder.decode(log_range):
                assert batch.schema.equals(decoder.schema)
                batch.validate(full=True)
                rows += batch.to_pylist(maps_as_pydicts="strict")
    return rows


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("groups", [1, 7])
def test_golden_stores_equal_the_walk_row_by_row(golden, name, groups):
    """RocketMQ wrote these logs."""
    path = golden / name
    rows = plain(read(path, groups=groups))
    assert rows == walked(path)
    assert len(rows) > 50


@pytest.mark.parametrize("name", ["clean", "propcrc", "replica_master"])
def test_golden_stores_match_their_manifest(golden, name):
    """The manifest lists offsets, places in the queues, and bodies."""
    rows = plain(read(golden / name))
    check_manifest(rows, golden / f"{name}.manifest.json")


texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), max_size=12
)
messages = st.builds(
    dict,
    body=st.binary(max_size=300),
    topic=st.sampled_from(["t", "other", "日本", "v2" * 80]),
    queue_id=st.integers(0, 3),
    properties_raw=st.binary(max_size=60)
    | st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a"]), texts)).map(
        lambda pairs: "".join(f"{k}\x01{v}\x02" for k, v in pairs).encode()
    ),
    sys_flag=st.sampled_from([0, 0, 0, 4, 16, 32, 48]),
)
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=4)


@st.composite
def logs(draw):
    """Draw a log, and its bytes with damage."""
    builder = LogBuilder(prop_crc=draw(st.booleans()))
    for fields in draw(st.lists(messages, min_size=1, max_size=40)):
        is_long = len(fields["topic"]) > 127
        flag = fields["sys_flag"]
        hosts = {
            "born_host": ("::1" if flag & 16 else "127.0.0.1", 1),
            "store_host": ("fe80::1" if flag & 32 else "10.0.0.1", 2),
        }
        builder.add(
            **fields, **hosts, magic=MESSAGE_MAGIC_CODE_V2 if is_long else MESSAGE_MAGIC_CODE
        )
    data = bytearray(builder.data)
    for place, flip in draw(flips):
        data[int(place * len(data))] ^= flip
    return builder, data


@settings(max_examples=60)
@given(logs(), st.integers(1, 5), st.sampled_from([600, 4096, 1 << 22]))
def test_random_logs_equal_the_walk(tmp_path_factory, log, groups, chunk):
    """Random records, IPv6 hosts, V2 topics, damage anywhere, split and chunked in any way."""
    builder, data = log
    path = builder.write(tmp_path_factory.mktemp("log"), data=data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_reader, "CHUNK_SIZE", chunk)
        rows = plain(read(path, groups=groups))
        damaged = plain(read(path, groups=groups, damaged=True))
    expected = walked(path)
    for row in expected:  # a flipped bit may make a time that no calendar has
        for name in ("born_timestamp", "store_timestamp"):
            if row[name] is not None and not -62_135_596_800_000 <= row[name] < 253_402_300_800_000:
                row[name] = None
    assert rows == expected
    assert damaged == [row for row in expected if not row["record_ok"]]


def test_any_selection_of_columns_has_the_same_values(tmp_path):
    """Columns can be selected in any order."""
    path = LogBuilder().fill(30).write(tmp_path)
    whole = read(path)
    for columns in (["fault"], ["body", "store"], ["tags", "properties", "physic_offset"]):
        assert read(path, columns) == [{name: row[name] for name in columns} for row in whole]
    with pytest.raises(ConfigError, match="no column is named 'bdy'"):
        arrow_schema(["bdy"])
    with pytest.raises(ConfigError, match="no column is asked for"):
        arrow_schema([])


def test_bounds_and_filters_select_rows(tmp_path):
    """Offsets are half-open, times inclusive; files that cannot match are not read."""
    builder = LogBuilder().fill(100)
    builder.fill(20, topic="other", queue_id=3)
    path = builder.write(tmp_path)
    rows = read(path)
    offsets = builder.offsets
    some = read(path, bounds=Bounds(start_offset=offsets[30] - 5, end_offset=offsets[40]))
    assert [row["physic_offset"] for row in some] == offsets[30:40]
    times = [row["store_timestamp"].timestamp() * 1000 for row in rows]
    bounds = Bounds(start_time_ms=round(times[50]), end_time_ms=round(times[60]))
    some = read(path, bounds=bounds)
    assert [row["physic_offset"] for row in some] == offsets[50:61]
    assert len(find_ranges(DISK, str(path), bounds)) < len(find_ranges(DISK, str(path), Bounds()))
    assert read(path, topic="other") == rows[100:]
    assert read(path, ["body"], queue_id=3) == [{"body": row["body"]} for row in rows[100:]]
    assert read(path, topic="none") == []


def test_ranges_never_begin_inside_a_body(tmp_path):
    """Each body holds a complete forged record with the physical offset at which it lies."""
    builder = LogBuilder(file_size=1 << 20)
    for _ in range(200):
        # The forged record claims the offset at which its bytes will be.
        inner = LogBuilder(file_size=1 << 20, min_offset=0)
        forged_at = builder.end + 88
        inner.add(b"forged", physic_offset=forged_at)
        builder.add(bytes(inner.data) + bytes(500))
    path = builder.write(tmp_path)
    ranges = find_ranges(DISK, str(path), Bounds())
    groups = group_ranges(DISK, ranges, 9)
    starts = [log_range.start_offset for group in groups for log_range in group]
    assert len(starts) == 9
    assert set(starts) <= set(builder.offsets)
    assert [row["physic_offset"] for row in read(path, groups=9)] == builder.offsets


def test_groups_have_similar_sizes_and_cover_all_ranges(tmp_path):
    """Small files share a group, and large ones are split."""
    path = LogBuilder().fill(400).write(tmp_path)
    ranges = find_ranges(DISK, str(path), Bounds())
    for count in (1, 2, 3, 8, 50):
        groups = group_ranges(DISK, ranges, count)
        assert len(groups) == count
        flat = [log_range for group in groups for log_range in group]
        assert flat[0].start_offset == 0
        assert sum(log_range.size for log_range in flat) == sum(r.size for r in ranges)
        sizes = [sum(log_range.written for log_range in group) for group in groups]
        assert max(sizes) < 1.5 * sum(sizes) / count + 500
    assert group_ranges(DISK, [], 4) == []


def test_separate_ranges_of_one_file_are_not_merged(tmp_path):
    """A log that is read twice has each record twice, and none is lost."""
    builder = LogBuilder(file_size=1 << 16).fill(100)
    path = builder.write(tmp_path)
    ranges = 2 * find_ranges(DISK, str(path), Bounds())
    for count in (1, 2, 5):
        found = [
            offset
            for group in group_ranges(DISK, ranges, count)
            for log_range in group
            for batch in RangeDecoder(DISK, ["physic_offset"]).decode(log_range)
            for offset in batch["physic_offset"].to_pylist()
        ]
        assert sorted(found) == sorted(2 * builder.offsets)


def test_time_bounds_read_only_the_first_record_of_a_file(tmp_path, monkeypatch):
    """They read a few KiB of each file, or all of a first record that is larger."""
    monkeypatch.setattr("hastore.columnar.log_range._FIRST_SIZE", 128)
    builder = LogBuilder(file_size=1 << 16)
    for _ in range(40):
        builder.add(b"x" * 9_000)
    path = builder.write(tmp_path)
    bounds = Bounds(start_time_ms=FIRST_MS + 30)
    assert [r.segment for r in find_ranges(DISK, str(path), bounds)] == [
        f"{start:020d}" for start in range(4 << 16, builder.end, 1 << 16)
    ]


def test_missing_file_is_one_row(tmp_path):
    """Bytes that no file has are named once, with their size."""
    path = LogBuilder().fill(100).write(tmp_path)
    whole = read(path)
    (path / "commitlog" / f"{4096:020d}").unlink()
    rows = read(path, groups=3)
    (damage,) = [row for row in rows if not row["record_ok"]]
    assert (damage["physic_offset"], damage["size"]) == (4096, 4096)
    assert damage["fault"].startswith("missing")
    assert [row for row in rows if row["record_ok"]] == [
        row for row in whole if not 4096 <= row["physic_offset"] < 8192
    ]
    for bounds, has_gap in (
        (Bounds(end_offset=4096), False),
        (Bounds(end_offset=4097), True),
        (Bounds(start_offset=4096, end_offset=8192), True),
        (Bounds(start_offset=4097, end_offset=9000), False),
    ):
        assert (damage in read(path, groups=3, bounds=bounds)) == has_gap


def test_fail_fast_names_the_first_damage(tmp_path):
    """All rows before it are intact, and the error has its offset."""
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path, data=builder.flipped(builder.offsets[50] + 95))
    with pytest.raises(LogDamagedError, match=f"at offset {builder.offsets[50]}: bad-body-crc"):
        read(path, ["topic"], fail_fast=True)
    bounds = Bounds(end_offset=builder.offsets[50])
    assert len(read(path, ["topic"], fail_fast=True, bounds=bounds)) == 50


@pytest.mark.parametrize("damaged", [False, True], ids=["all rows", "damage only"])
def test_chunk_is_freed_before_the_next_is_read(tmp_path, monkeypatch, damaged):
    """The next one reuses its memory, which is in the CPU's caches; else small records are slow."""
    read_at, alive = [], []

    class Chunk(bytes):
        def __del__(self):
            alive.pop()

    class SmallReader(RecordReader):
        def read(self, position):
            assert not alive
            read_at.append(position)
            alive.append(position)
            return Chunk(super().read(position, 1024))

    monkeypatch.setattr(range_decoder, "RecordReader", SmallReader)
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path, data=builder.flipped(builder.offsets[50]), queues=True)
    assert len(read(path, damaged=damaged)) == (1 if damaged else 100)
    assert len(read_at) > 10


@pytest.mark.parametrize("queues", [True, False])
def test_planted_records_are_rows_only_on_request(tmp_path, queues):
    """Then with all columns, and none of them is ``record_ok``."""
    builder = LogBuilder(file_size=1 << 16).fill(3).plant().fill(2)
    around = builder.offsets[3]
    data = builder.data[:around] + b"\xff" * 8 + builder.data[around + 8 :]
    path = builder.write(tmp_path, data=data, queues=queues)
    rows = plain(read(path))
    assert rows == walked(path)
    assert "secret" not in [row["topic"] for row in rows]
    shown = read(path, unconfirmed=True)
    planted = [row for row in shown if row["topic"] == "secret"]
    assert [row["physic_offset"] for row in planted] == builder.planted
    assert [row["body"] for row in planted] == [b"FORGED-%d" % number for number in range(3)]
    assert not any(row["record_ok"] for row in planted)
    assert all(row["fault"].startswith("unconfirmed: ") for row in planted)
    of_topic = read(path, topic="secret", unconfirmed=True)
    assert [row["physic_offset"] for row in of_topic] == builder.planted


def test_missing_store_and_shrinking_file_are_errors(tmp_path):
    """Both errors name the place."""
    with pytest.raises(NotAStoreError):
        find_ranges(DISK, str(tmp_path), Bounds())
    path = LogBuilder().fill(10).write(tmp_path)
    (log_range,) = find_ranges(DISK, str(path), Bounds())
    os.truncate(log_range.path, 1000)
    with pytest.raises(DiskError, match="was cut while it was read: 4096 bytes before, 1000 now"):
        list(RangeDecoder(DISK).decode(log_range))


def test_expired_file_becomes_a_row_from_its_damage_on(tmp_path):
    """Rows that were read before are returned; the rest cannot be checked, but is not skipped."""
    builder = LogBuilder().fill(100)
    path = builder.write(tmp_path, data=builder.flipped(builder.offsets[5]))
    log_range = find_ranges(DISK, str(path), Bounds())[0]
    batches = RangeDecoder(DISK).decode(log_range)
    assert next(batches)["physic_offset"].to_pylist() == builder.offsets[:5]
    Path(log_range.path).unlink()
    (row,) = [row for batch in batches for row in batch.to_pylist()]
    assert (row["physic_offset"], row["record_ok"]) == (builder.offsets[5], False)
    assert row["size"] == 4096 - builder.offsets[5]
    assert row["fault"] == "missing: its file went while it was read"


def test_empty_log_has_no_rows(tmp_path):
    """Its file consists of zeros, as on a new node."""
    path = LogBuilder().write(tmp_path, data=bytes(4096))
    assert read(path) == []


def test_a_log_is_listed_once_for_all_of_its_ranges(tmp_path, monkeypatch):
    """Each file has damage, and each is a range of its own."""
    builder = LogBuilder().fill(100)
    data = bytearray(builder.data)
    for offset in builder.offsets[5::15]:
        data[offset] ^= 0x40
    builder.write(tmp_path, data=data, queues=True)
    listed, made = [], []
    find_log, make = range_decoder.find_log, ConfirmedRecords.__init__

    def finding(disk, store):
        listed.append(store)
        return find_log(disk, store)

    def noted(self, *args):
        made.append(args)
        make(self, *args)

    monkeypatch.setattr(range_decoder, "find_log", finding)
    monkeypatch.setattr(ConfirmedRecords, "__init__", noted)
    rows = read(tmp_path, ["physic_offset", "record_ok"])
    assert sum(not row["record_ok"] for row in rows) == len(builder.offsets[5::15])
    assert (len(listed), len(made)) == (1, 1)
