"""Two logs are compared by digests, which cover every byte."""

import zlib

import pytest

from hastore.columnar.log_range import Bounds, find_ranges
from hastore.columnar.range_decoder import RangeDecoder
from hastore.env.real import real_env
from tests.support.store.log_builder import LogBuilder

DISK = real_env().disk
COLUMNS = ("physic_offset", "size", "digest", "topic", "record_ok", "fault")


def pieces(path):
    """Return all rows of a store: records, fillers and damage."""
    decoder = RangeDecoder(DISK, COLUMNS, fillers=True)
    return [
        row
        for log_range in find_ranges(DISK, str(path), Bounds())
        for batch in decoder.decode(log_range)
        for row in batch.to_pylist()
    ]


def signed_crc(data):
    """Return the CRC32 as a signed 32-bit number."""
    return int.from_bytes(zlib.crc32(data).to_bytes(4, "big"), "big", signed=True)


@pytest.mark.parametrize("name", ["clean", "crashed_torn", "propcrc", "replica"])
def test_rows_cover_the_log_and_digests_match_their_bytes(golden, name):
    """Records and fillers leave no gap, and each digest is the CRC32 of the row's bytes."""
    files = sorted((golden / name / "commitlog").glob("0*"))
    data = b"".join(path.read_bytes() for path in files)
    base = int(files[0].name)
    at = base
    for row in pieces(golden / name):
        assert row["physic_offset"] == at
        at += row["size"]
        assert row["digest"] == signed_crc(data[row["physic_offset"] - base : at - base])
    assert not data[at - base :].strip(b"\0")


def test_damage_has_a_digest_and_a_missing_file_has_none(tmp_path):
    """Damaged bytes can be compared, too; those of a missing file cannot."""
    log = LogBuilder().fill(100)
    log.write(tmp_path, data=log.flipped(log.offsets[3]), queues=True)
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    damage = [row for row in pieces(tmp_path) if not row["record_ok"]]
    data = log.flipped(log.offsets[3])[log.offsets[3] : log.offsets[4]]
    assert [row["digest"] for row in damage] == [signed_crc(data), None]


def test_fillers_are_rows_only_on_request(tmp_path):
    """A BLANK is intact and has no topic, and does not belong in a table of messages."""
    log = LogBuilder().fill(100)
    log.write(tmp_path)
    fillers = [row["physic_offset"] for row in pieces(tmp_path) if row["topic"] is None]
    assert fillers == log.blanks
    decoder = RangeDecoder(DISK, COLUMNS)
    for log_range in find_ranges(DISK, str(tmp_path), Bounds()):
        for batch in decoder.decode(log_range):
            assert batch["topic"].null_count == 0
