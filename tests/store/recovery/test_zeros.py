"""Records that end in zeros before intact ones: a hole of a power cut, or a value's end."""

import pytest

from hastore.env.interface import SECTOR_SIZE
from tests.support.env.fake_disk import FakeDisk
from tests.support.store.log_builder import LogBuilder
from tests.support.store.recovering import FILE_SIZE, poke, recover


def slave_with(log, *, flushed, clean=False):
    """A stopped slave's disk with a log that was flushed up to ``flushed``."""
    disk = FakeDisk()
    store = recover(disk, master=False)
    store.append_data(0, bytes(log.data[:flushed]))
    store.dispatch()
    store.flush_log()
    store.flush_queues()
    store.append_data(flushed, bytes(log.data[flushed:]))
    if clean:
        store.close()
    return disk.kill()


def log_of(*texts, prop_crc=False, body=b"x" * 50):
    """A log with one message for each properties text."""
    log = LogBuilder(file_size=FILE_SIZE, prop_crc=prop_crc)
    for text in texts:
        log.add(body, properties_raw=text)
    return log


def master_with(count, *, flushed, prop_crc=True):
    """A killed master's disk, each record's offset, and the log's end."""
    disk = FakeDisk()
    store = recover(disk, append_prop_crc=prop_crc)
    offsets = []
    for number in range(count):
        if number == flushed:
            store.dispatch()
            store.flush_log()
            store.flush_queues()
        fields = {"properties": {"KEYS": f"key {number}"}} if number % 2 else {}
        offsets.append(store.append(b"x" * 50, **fields).physic_offset)
    return disk.kill(), [*offsets, store.log.max_offset]


@pytest.mark.parametrize("zeros", [12, 20])
@pytest.mark.parametrize("number", [4, 5, 6])
def test_log_is_cut_at_a_record_that_lost_its_checksum(number, zeros):
    """No checksum covers the record any more, and the records after it were not flushed."""
    disk, offsets = master_with(8, flushed=4)
    poke(disk, offsets[number + 1] - zeros, bytes(zeros))
    store = recover(disk)
    assert store.log.max_offset == offsets[number]
    assert len(store.bodies()) == number
    assert store.report.trimmed.physic_offset == offsets[number]


def test_log_is_cut_at_a_record_that_lost_a_sector_at_its_end():
    """A value may be torn at any byte, but the lost zeros end where a sector ends."""
    log = log_of(b"A\x01first\x02", b"A\x01second\x02")
    size = SECTOR_SIZE - log.end % SECTOR_SIZE
    log.add(b"x" * (size - 91 - len("orders") - 40), properties_raw=b"A\x01" + b"v" * 37 + b"\x02")
    end = log.end
    assert end % SECTOR_SIZE == 0
    log.add(b"behind")
    log.data[end - 25 : end] = bytes(25)
    disk = slave_with(log, flushed=log.offsets[2])
    store = recover(disk, master=False)
    assert store.log.max_offset == log.offsets[2]
    assert len(store.bodies()) == 2


@pytest.mark.parametrize("flushed", [1, 3])
@pytest.mark.parametrize(
    "text",
    [b"A\x011\x02B\x01ends in\0", b"A\x01\0\0\0\0", b"", b"A\x01intact\x02"],
    ids=["a value ends in zero", "a value of zeros", "no properties", "intact"],
)
def test_record_whose_properties_end_in_zeros_is_kept(text, flushed):
    """RocketMQ 4.9.3 to 5.1.4 writes no separator after the last property."""
    log = log_of(b"A\x01first\x02", text, b"A\x01behind\x02")
    assert log.offsets[2] % SECTOR_SIZE
    disk = slave_with(log, flushed=(log.offsets[1], log.end)[flushed == 3])
    store = recover(disk, master=False)
    assert store.log.max_offset == log.end
    assert len(store.bodies()) == 3


def test_flushed_record_that_ends_in_zeros_is_kept():
    """After a flush or a clean stop, the zeros cannot be a power cut's hole."""
    log = log_of(b"A\x01first\x02", b"B\x02" + bytes(20), b"A\x01behind\x02")
    for flushed, clean in ((log.end, False), (log.offsets[1], True)):
        store = recover(slave_with(log, flushed=flushed, clean=clean), master=False)
        assert store.log.max_offset == log.end
    store = recover(slave_with(log, flushed=log.offsets[1]), master=False)
    assert store.log.max_offset == log.offsets[1]


def test_records_without_checksum_and_properties_are_walked_fast(monkeypatch):
    """Their properties length is two zeros, but that alone must not cost extra reads."""
    disk, offsets = master_with(40, flushed=0, prop_crc=False)
    reads = disk.reads
    store = recover(disk, append_prop_crc=False)
    assert store.log.max_offset == offsets[-1]
    assert disk.reads - reads < 60
