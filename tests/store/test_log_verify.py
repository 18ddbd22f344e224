"""What a verification finds, what it only warns of, and what it leaves alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.env.real import RealDisk
from hastore.store.record.layout import INNER_BATCH_FLAG
from hastore.store.tools import log_finding
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from tests.support.store.log_builder import (
    FILE_SIZE,
    FIRST_MS,
    LogBuilder,
    MemoryDisk,
    damage_of,
    warnings_of,
)


def verify(builder, data=None):
    return MemoryDisk(builder, data).verify()


def three_files(**options):
    return LogBuilder(**options).fill(20, queue_id=1).fill(30)


@pytest.mark.parametrize("min_offset", [0, 7 * FILE_SIZE])
def test_a_whole_log_is_whole(min_offset):
    """Counts are right and there is nothing to say, also where front files are gone."""
    builder = three_files(min_offset=min_offset)
    report = verify(builder)
    assert report.is_whole
    assert not report.findings
    assert report.messages == len(builder.offsets)
    assert report.fillers == len(builder.blanks)
    assert report.uncovered_messages == 0
    assert (report.min_offset, report.max_offset) == (min_offset, builder.end)


def test_records_without_a_whole_checksum_are_counted():
    """How many messages carry no __CRC32# is said, for nothing vouches for their headers."""
    builder = LogBuilder(prop_crc=False).fill(3)
    builder.prop_crc = True
    assert verify(builder.fill(2)).uncovered_messages == 3


@pytest.mark.parametrize("victim", [0, 9, 23, "last of a file", "last"])
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_covered_record_is_found_at_its_offset(victim, flip):
    """Each byte of a record with __CRC32#, its lengths too; all other messages are still read."""
    builder = three_files()
    edges = sorted([*builder.offsets, *builder.blanks, builder.end])
    if victim == "last of a file":
        bad = edges[edges.index(builder.blanks[0]) - 1]
    else:
        bad = builder.offsets[-1 if victim == "last" else victim]
    end = edges[edges.index(bad) + 1]
    for position in range(bad, end):
        report = verify(builder, builder.flipped(position, flip))
        found = damage_of(report)
        assert [offset for _, offset, _ in found] == [bad], position
        assert report.messages == len(builder.offsets) - 1, position
        if victim != "last":
            assert found[0][2] == end, position


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_body_without_whole_checksum_is_found(flip):
    """The body CRC finds it, and the record's topic, queue and key are named."""
    builder = three_files(prop_crc=False)
    bad = builder.offsets[25]
    for position in (*range(bad + 8, bad + 12), *range(bad + 88, bad + 188)):
        report = verify(builder, builder.flipped(position, flip))
        assert damage_of(report) == [("bad-body-crc", bad, builder.offsets[26])]
        (finding,) = report.findings
        assert (finding.topic, finding.queue_id, finding.queue_offset, finding.key) == (
            "orders",
            0,
            5,
            "k25",
        )


@pytest.mark.parametrize("position", [*range(8), *range(20, 36), *range(84, 88)])
def test_flipped_head_fields_that_are_compared_are_found_without_a_checksum(position):
    """Size, magic, queue offset, stored offset and body length: each breaks something."""
    builder = three_files(prop_crc=False)
    bad = builder.offsets[10]
    report = verify(builder, builder.flipped(bad + position, 0x41))
    assert [offset for _, offset, _ in damage_of(report)] == [bad]


@pytest.mark.parametrize("position", range(8))
def test_a_flipped_byte_of_a_filler_head_is_found(position):
    """The filler's size and magic are checked: it must reach exactly to the file's end."""
    builder = three_files()
    blank = builder.blanks[0]
    report = verify(builder, builder.flipped(blank + position))
    assert damage_of(report)[0][1:] == (blank, FILE_SIZE)
    assert report.messages == len(builder.offsets)


def test_a_filler_that_is_not_zero_is_a_warning():
    """Nobody reads a filler's bytes, but they are replicated: odd, not damage."""
    builder = three_files()
    report = verify(builder, builder.flipped(builder.blanks[0] + 9))
    assert report.is_whole
    assert warnings_of(report) == [("filler", builder.blanks[0])]


def test_a_store_time_that_falls_is_a_warning():
    """A clock may be set back; the record from which on it was is named."""
    builder = LogBuilder().fill(3).add(store_timestamp_ms=FIRST_MS - 7).fill(1)
    report = verify(builder)
    assert warnings_of(report) == [("store-time", builder.offsets[3])]
    assert "9 ms" in report.findings[0].detail


@pytest.mark.parametrize("missing", [0, 1])
def test_files_are_missing_or_cut(tmp_path, missing):
    """A missing middle file and a file of another size are named by offset; the rest is read."""
    builder = LogBuilder().fill(100)
    store = builder.write(tmp_path / "store")
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    if missing:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:3_000])
    report = verify_log(RealDisk(), find_log(RealDisk(), str(store)))
    kinds = {kind for kind, _, _ in damage_of(report)}
    assert kinds == ({"missing"} if missing else {"torn", "missing", "file-size"})
    assert report.max_offset == builder.end


def test_an_unfinished_last_file_is_a_warning(tmp_path):
    """A last file without a byte of the log, and too short, was only being made."""
    store = LogBuilder().fill(3).write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE:020d}").write_bytes(bytes(100))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(store)))
    assert report.is_whole
    assert [kind for kind, _ in warnings_of(report)] == ["file-size"]


def test_files_that_lie_over_each_other(tmp_path):
    """A file whose name lies inside the file before it is damage."""
    store = LogBuilder().fill(3).write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE - 5:020d}").write_bytes(bytes(FILE_SIZE))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(store)))
    assert ("file-order", FILE_SIZE - 5, FILE_SIZE) in damage_of(report)


@pytest.mark.parametrize(
    ("raw", "severity"),
    [
        (b"KEYS\x01k\x02", None),
        (b"KEYS\x01k", None),  # RocketMQ 4.9.3 to 5.1.4
        (b"KEYS\x01\x02", None),  # an empty value is written, and passed over when read
        ("KEYS\x01ключ\x02".encode(), None),
        (b"", None),
        (b"KEYS\x01k\x00\x00", "damage"),
        (b"KEYS\x01k\x02TAGS", "damage"),
        (b"KEYS\x01k\x02\x01v\x02", "damage"),
        (b"KEYS\x01k\x02\x02", "damage"),
        (b"KEYS\x01\xff\x02", "damage"),
        (b"KEYS\x01a\x01b\x02", "warning"),
    ],
)
def test_property_texts_that_no_checksum_covers_are_looked_at(raw, severity):
    """NULs, pairs without a name and what is no UTF-8 are damage; both good endings are good."""
    builder = LogBuilder(prop_crc=False).fill(1).add(properties_raw=raw).fill(1)
    report = verify(builder)
    expected = [] if severity is None else [(severity, "properties", builder.offsets[1])]
    assert [(f.severity.value, f.kind, f.physic_offset) for f in report.findings] == expected


def test_odd_property_texts_under_a_checksum_are_as_they_were_written():
    """Where __CRC32# vouches for a text it is not second-guessed."""
    assert not verify(LogBuilder().add(properties_raw=b"no pair\x02")).findings


@pytest.mark.parametrize(
    ("topic", "severity"),
    [
        ("%RETRY%a-b_c|1", None),
        ("a b", "warning"),
        ("a\x00b", "damage"),
        ("\udcffx", "damage"),
        ("", "damage"),
    ],
)
def test_topics_are_looked_at(topic, severity):
    """A topic that RocketMQ would refuse is a warning, one that is no text is damage."""
    report = verify(LogBuilder(prop_crc=False).add(topic=topic))
    assert [f.severity.value for f in report.findings] == ([] if severity is None else [severity])


def test_unknown_sys_flags_are_a_warning():
    """Bits that no RocketMQ sets are named."""
    report = verify(LogBuilder().add(sys_flag=0x4000))
    assert [kind for kind, _ in warnings_of(report)] == ["sys-flag"]


def test_queues_count_up_through_transactions_and_batches():
    """PREPARED and ROLLBACK have no queue offset, a batch in one record takes several."""
    builder = LogBuilder(prop_crc=False).fill(2)
    builder.add(sys_flag=4, queue_offset=0).add(sys_flag=8, queue_offset=2)
    builder.add(sys_flag=12, queue_offset=0)
    builder.add(
        sys_flag=INNER_BATCH_FLAG, queue_offset=3, properties_raw=b"INNER_NUM\x015\x02"
    ).add(queue_offset=8)
    assert not verify(builder).findings


@pytest.mark.parametrize(
    ("queue_offsets", "found"),
    [
        ([0, 1, 977, 3], [("damage", 2)]),  # was 2 once
        ([0, 1, 977, 978], [("warning", 2)]),  # was written so
        ([0, 1, 0, 1], [("warning", 2)]),  # the topic was made anew
        ([0, 1, 0], [("warning", 2)]),
        ([0, 1, 977], [("damage", 2)]),
        ([5, 1, 2], [("damage", 0)]),  # the log is there from its start
        ([5, 6], [("warning", 0)]),
        ([0, 7, 9, 11], [("warning", 1), ("warning", 2), ("damage", 3)]),
    ],
)
def test_what_breaks_the_count_of_a_queue(queue_offsets, found):
    """The next record of the queue tells a damaged queue offset from a queue that went on."""
    builder = LogBuilder(prop_crc=False)
    for queue_offset in queue_offsets:
        builder.add(queue_offset=queue_offset)
    report = verify(builder)
    assert [
        (f.severity.value, builder.offsets.index(f.physic_offset)) for f in report.findings
    ] == found
    assert {f.kind for f in report.findings} == {"queue-offset"}


def test_an_odd_queue_offset_under_a_checksum_is_only_odd():
    """Where __CRC32# vouches for it, it was written so."""
    builder = LogBuilder().add().add(queue_offset=9)
    assert [kind for kind, _ in warnings_of(verify(builder))] == ["queue-offset"]


def test_a_queue_may_begin_anywhere_when_front_files_are_gone():
    """What is first seen of a queue is where it begins, unless the log begins at 0."""
    builder = LogBuilder(min_offset=FILE_SIZE, prop_crc=False).add(queue_offset=41).add()
    assert not verify(builder).findings


def test_behind_unreadable_bytes_queues_may_skip():
    """Records that are lost in damage are not reported a second time as a gap in their queue."""
    builder = LogBuilder(prop_crc=False).fill(30)
    data = bytearray(builder.data)
    start, end = builder.offsets[5], builder.offsets[9]
    data[start:end] = b"x" * (end - start)
    assert damage_of(verify(builder, data)) == [("bad-magic", start, end)]


def test_findings_are_counted_where_they_are_too_many_to_keep(monkeypatch):
    """Damage is never crowded out of the report by warnings."""
    monkeypatch.setattr(log_finding, "FINDINGS_MAX", 3)
    builder = LogBuilder(prop_crc=False)
    for _ in range(10):
        builder.add(store_timestamp_ms=FIRST_MS - len(builder.offsets))
    builder.add()
    report = verify(builder, builder.flipped(builder.offsets[-1] + 90))
    assert report.counts[log_finding.Severity.WARNING, "store-time"] == 9
    assert len(report.findings) == 4
    assert damage_of(report)


@given(st.binary(max_size=3 * FILE_SIZE))
def test_no_bytes_bring_a_verification_down(data):
    """A log of rubbish is reported, not raised."""
    report = verify(LogBuilder(), data)
    assert report.messages == 0
    assert report.is_whole == (not any(data))


def test_a_gap_before_a_file_of_zeros_is_a_warning(tmp_path):
    """Nothing is lost by it, but a node refuses to open such a log."""
    root = LogBuilder().fill(3).write(tmp_path / "D")
    (root / "commitlog" / f"{3 * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(root)))
    assert (damage_of(report), warnings_of(report)) == ([], [("file-order", FILE_SIZE)])
