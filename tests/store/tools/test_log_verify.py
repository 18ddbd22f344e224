"""Verification: which findings are damage, which are warnings, and which bytes are fine."""

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
    damage_of,
    warnings_of,
)


def verify(builder, data=None, now_ms=None):
    disk = builder.on_disk(data)
    return verify_log(disk, find_log(disk, "/d"), now_ms=now_ms)


def three_files(**options):
    return LogBuilder(**options).fill(20, queue_id=1).fill(30)


@pytest.mark.parametrize("min_offset", [0, 7 * FILE_SIZE])
def test_intact_log_has_no_findings(min_offset):
    """The counts are right, also where the first files are missing."""
    builder = three_files(min_offset=min_offset)
    report = verify(builder)
    assert report.is_whole
    assert not report.findings
    assert report.messages == len(builder.offsets)
    assert report.fillers == len(builder.blanks)
    assert report.uncovered_messages == 0
    assert (report.min_offset, report.max_offset) == (min_offset, builder.end)


def test_messages_without_crc_property_are_counted():
    """Without __CRC32# no checksum covers a message's header."""
    builder = LogBuilder(prop_crc=False).fill(3)
    builder.prop_crc = True
    assert verify(builder.fill(2)).uncovered_messages == 3


@pytest.mark.parametrize("victim", [0, 9, 23, "last of a file", "last"])
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_flipped_byte_of_a_record_with_crc_property_is_found(victim, flip):
    """The finding names the record's offset, and all other messages are still read."""
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
def test_any_flipped_body_byte_is_found_without_crc_property(flip):
    """The body CRC detects it; the finding names the record's topic, queue and key."""
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
def test_flipped_header_byte_is_found_without_crc_property(position):
    """Size, magic, queue offset, physical offset and body length are checked against other data."""
    builder = three_files(prop_crc=False)
    bad = builder.offsets[10]
    report = verify(builder, builder.flipped(bad + position, 0x41))
    assert [offset for _, offset, _ in damage_of(report)] == [bad]


@pytest.mark.parametrize("position", range(8))
def test_flipped_byte_of_a_blank_header_is_found(position):
    """A BLANK's magic is checked, and its size must reach exactly to the file's end."""
    builder = three_files()
    blank = builder.blanks[0]
    report = verify(builder, builder.flipped(blank + position))
    assert damage_of(report)[0][1:] == (blank, FILE_SIZE)
    assert report.messages == len(builder.offsets)


def test_blank_with_nonzero_bytes_is_a_warning():
    """No reader uses these bytes, but they are replicated: unusual, not damage."""
    builder = three_files()
    report = verify(builder, builder.flipped(builder.blanks[0] + 9))
    assert report.is_whole
    assert warnings_of(report) == [("filler", builder.blanks[0])]


def test_decreasing_store_time_is_a_warning():
    """The clock may have been set back; the finding names the first record after that."""
    builder = LogBuilder().fill(3).add(store_timestamp_ms=FIRST_MS - 7).fill(1)
    report = verify(builder)
    assert warnings_of(report) == [("store-time", builder.offsets[3])]
    assert "9 ms" in report.findings[0].detail


def test_store_times_in_the_future_are_one_warning():
    """The clock was ahead once; ten minutes are a difference between two machines."""
    day_ms = 86_400_000
    builder = LogBuilder().fill(3).add(store_timestamp_ms=FIRST_MS + 5 * day_ms)
    builder.add(store_timestamp_ms=FIRST_MS + 5 * day_ms)
    report = verify(builder, now_ms=FIRST_MS + day_ms)
    assert warnings_of(report) == [("store-time", builder.offsets[3])]
    assert report.findings[0].detail == (
        "stored 4 days after this machine's time now, the first of 2 messages from the future"
    )
    assert report.is_whole
    assert not warnings_of(verify(builder, now_ms=FIRST_MS + 5 * day_ms - 600_000))
    assert not warnings_of(verify(builder))


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_or_short_file_is_damage(tmp_path, missing):
    """The findings name the offsets, and the rest of the log is read."""
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


def test_unfinished_last_file_is_a_warning(tmp_path):
    """A short last file without log bytes is left by an interrupted creation."""
    store = LogBuilder().fill(3).write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE:020d}").write_bytes(bytes(100))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(store)))
    assert report.is_whole
    assert [kind for kind, _ in warnings_of(report)] == ["file-size"]


def test_overlapping_files_are_damage(tmp_path):
    """The second file's offset lies inside the first file."""
    store = LogBuilder().fill(3).write(tmp_path / "store")
    (store / "commitlog" / f"{FILE_SIZE - 5:020d}").write_bytes(bytes(FILE_SIZE))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(store)))
    assert ("file-order", FILE_SIZE - 5, FILE_SIZE) in damage_of(report)


@pytest.mark.parametrize(
    ("raw", "severity"),
    [
        (b"KEYS\x01k\x02", None),
        (b"KEYS\x01k", None),  # RocketMQ 4.9.3 to 5.1.4
        (b"KEYS\x01\x02", None),  # RocketMQ writes an empty value and skips it when reading
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
def test_properties_without_a_checksum_are_validated(raw, severity):
    """NULs, pairs without a name and invalid UTF-8 are damage; RocketMQ's two endings are valid."""
    builder = LogBuilder(prop_crc=False).fill(1).add(properties_raw=raw).fill(1)
    report = verify(builder)
    expected = [] if severity is None else [(severity, "properties", builder.offsets[1])]
    assert [(f.severity.value, f.kind, f.physic_offset) for f in report.findings] == expected


def test_odd_properties_with_a_checksum_have_no_findings():
    """__CRC32# proves that they were written like this."""
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
def test_topics_are_validated(topic, severity):
    """A topic that RocketMQ would refuse is a warning; one that is empty or not text is damage."""
    report = verify(LogBuilder(prop_crc=False).add(topic=topic))
    assert [f.severity.value for f in report.findings] == ([] if severity is None else [severity])


def test_unknown_sys_flags_are_a_warning():
    """RocketMQ never sets these bits."""
    report = verify(LogBuilder().add(sys_flag=0x4000))
    assert [kind for kind, _ in warnings_of(report)] == ["sys-flag"]


def test_transactions_and_batches_keep_queue_offsets_valid():
    """PREPARED and ROLLBACK have no queue offset; an inner batch takes several."""
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
        ([0, 1, 977, 3], [("damage", 2)]),  # the 2 was damaged
        ([0, 1, 977, 978], [("warning", 2)]),  # was written like this
        ([0, 1, 0, 1], [("warning", 2)]),  # the topic was created again
        ([0, 1, 0], [("warning", 2)]),
        ([0, 1, 977], [("damage", 2)]),
        ([5, 1, 2], [("damage", 0)]),  # the log begins at 0
        ([5, 6], [("warning", 0)]),
        ([0, 7, 9, 11], [("warning", 1), ("warning", 2), ("damage", 3)]),
    ],
)
def test_unexpected_queue_offset_is_damage_or_a_warning(queue_offsets, found):
    """The queue's next record shows whether one offset is damaged or the queue continued there."""
    builder = LogBuilder(prop_crc=False)
    for queue_offset in queue_offsets:
        builder.add(queue_offset=queue_offset)
    report = verify(builder)
    assert [
        (f.severity.value, builder.offsets.index(f.physic_offset)) for f in report.findings
    ] == found
    assert {f.kind for f in report.findings} == {"queue-offset"}


def test_unexpected_queue_offset_with_a_checksum_is_a_warning():
    """__CRC32# proves that it was written like this."""
    builder = LogBuilder().add().add(queue_offset=9)
    assert [kind for kind, _ in warnings_of(verify(builder))] == ["queue-offset"]


def test_queue_may_begin_at_any_offset_after_expiry():
    """Only in a log that begins at 0 must a queue begin at 0."""
    builder = LogBuilder(min_offset=FILE_SIZE, prop_crc=False).add(queue_offset=41).add()
    assert not verify(builder).findings


def test_messages_lost_in_damage_are_not_queue_offset_findings():
    """The damage is reported once, not a second time as a gap in the queue."""
    builder = LogBuilder(prop_crc=False).fill(30)
    data = bytearray(builder.data)
    start, end = builder.offsets[5], builder.offsets[9]
    data[start:end] = b"x" * (end - start)
    assert damage_of(verify(builder, data)) == [("bad-magic", start, end)]


def test_findings_beyond_the_limit_are_only_counted(monkeypatch):
    """Warnings never crowd damage out of the report."""
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
def test_verify_reports_random_bytes_without_raising(data):
    """A log of nonzero garbage is reported as damage."""
    report = verify(LogBuilder(), data)
    assert report.messages == 0
    assert report.is_whole == (not any(data))


def test_gap_before_a_zeroed_file_is_a_warning(tmp_path):
    """No message is lost, but a node refuses to open such a log."""
    root = LogBuilder().fill(3).write(tmp_path / "D")
    (root / "commitlog" / f"{3 * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    report = verify_log(RealDisk(), find_log(RealDisk(), str(root)))
    assert (damage_of(report), warnings_of(report)) == ([], [("file-order", FILE_SIZE)])
