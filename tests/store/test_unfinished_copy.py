"""A kill in the middle of a long copy: what it leaves is trimmed, whatever the order of its stores.

Found by the soak test: 1,000,000 messages, the slave killed every 5 s.
"""

import random
import struct

import pytest

from hastore.errors import LogDamagedError
from hastore.message import Message
from hastore.store.unfinished_copy import (
    FileWithoutCopy,
    UnfinishedCopy,
    copy_guarded,
    find_unfinished_copy,
)
from tests.store.fake_disk import FakeDisk, fake_env
from tests.store.open_log import FILE_SIZE, all_bytes, append, append_data, open_log

MARK_TEXT = b"unfinished copy\0"
LOG = "/d/commitlog/00000000000000000000"


class TornView:
    """A view whose slice assignments are numbered, and whose last one comes to be only in part."""

    def __init__(self, buffer, stop_in, spared):
        self.buffer = buffer
        self.stores = 0
        self.stop_in = stop_in
        self.spared = spared

    def __setitem__(self, where, data):
        if self.stores == self.stop_in:
            for at in range(where.start, where.stop):
                if not self.spared(at - where.start):
                    self.buffer[at] = data[at - where.start]
            raise KilledError
        self.stores += 1
        self.buffer[where] = bytes(data)


class KilledError(Exception):
    """The process is no more."""


def log_bytes(count=12, *, append_prop_crc=True, size=150):
    """The bytes of a master's log, and where its records begin."""
    log = open_log(append_prop_crc=append_prop_crc)
    starts = [
        append(
            log, body=bytes([number]) * size, topic=f"t{number % 3}", properties={"K": "v" * 20}
        ).physic_offset
        for number in range(count)
    ]
    return all_bytes(log), [*starts, log.max_offset]


def killed_slave(data, start, image, end):
    """The disk of a slave that had ``data[:start]`` and was killed while copying up to ``end``."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), master=False)
    append_data(log, 0, data[:start])
    disk = disk.kill()
    content = bytearray(disk.inodes[LOG].view())
    content[start:end] = image[start:end]
    disk.put(LOG, bytes(content))
    return disk


def test_a_copy_that_ends_leaves_the_data():
    """No trace of the mark, for every size around the limit below which there is none."""
    for size in (1, 31, 32, 33, 127, 128, 129, 5_000):
        data = random.Random(size).randbytes(size)
        buffer = bytearray(size + 20)
        copy_guarded(memoryview(buffer), 10, memoryview(data), 0)
        assert bytes(buffer) == bytes(10) + data + bytes(10)


# What a torn store may have spared: all of it, the head (glibc's memcpy), the tail, stripes.
SPARED = {
    "everything": lambda _: True,
    "the head": lambda at: at < 64,
    "the tail": lambda at: at >= 700,
    "stripes": lambda at: at // 100 % 2 == 0,
    "nothing": lambda _: False,
}


@pytest.mark.parametrize("master", [True, False], ids=["as a master", "as a slave"])
@pytest.mark.parametrize("append_prop_crc", [True, False], ids=["crc", "no crc"])
@pytest.mark.parametrize(
    ("stop_in", "spared"),
    [
        pytest.param(stop_in, spared, id=f"{name} at step {stop_in}")
        for name, spared in SPARED.items()
        for stop_in in (1, 2)
        if stop_in == 1 or spared(0)  # else the second step is the last: the copy is finished
    ],
)
@pytest.mark.parametrize("into_record", [0, 1, 60, 200, 240])
def test_a_slave_killed_in_a_copy_starts_with_what_it_had(
    into_record, spared, stop_in, append_prop_crc, master
):
    """Whole records before the copy stay, nothing of the copy does, and all of it is kept aside."""
    data, starts = log_bytes(append_prop_crc=append_prop_crc)
    start, end = starts[4] + into_record, starts[11] + 70
    image = bytearray(len(data))
    image[:start] = data[:start]
    with pytest.raises(KilledError):
        copy_guarded(TornView(image, stop_in, spared), start, data[start:end], start)
    disk = killed_slave(data, start, image, end)

    log = open_log(fake_env(disk), master=master)
    assert log.max_offset == starts[4]
    assert all_bytes(log) == data[: starts[4]]
    trimmed = log.load_report.trimmed
    assert trimmed is not None
    kept = b"".join(content for _, content in sorted(disk.files("/d/trimmed/").items()))
    assert kept.startswith(bytes(image[starts[4] : starts[4] + 20]))
    assert not any(disk.inodes[LOG].view()[starts[4] :])
    if not master:  # the master sends it again
        append_data(log, log.max_offset, data[log.max_offset :])
        assert all_bytes(log) == data
    else:
        assert append(log, topic="t1").queue_offset == sum(n % 3 == 1 for n in range(4))


def test_a_hole_without_a_mark_is_still_damage():
    """Only a mark makes a hole an unfinished copy: damage in the middle is refused as before."""
    data, starts = log_bytes()
    image = bytearray(data)
    image[starts[4] + 90 : starts[4] + 140] = bytes(50)
    with pytest.raises(LogDamagedError):
        open_log(fake_env(killed_slave(data, starts[4], image, len(data))))


def test_sound_records_behind_an_unfinished_copy_are_damage():
    """A mark whose copy does not reach to the log's end cannot have been left by a kill."""
    data, starts = log_bytes()
    image = bytearray(data)
    view = TornView(image, 1, SPARED["the head"])
    with pytest.raises(KilledError):
        copy_guarded(view, starts[3], data[starts[3] : starts[6]], starts[3])
    with pytest.raises(LogDamagedError):
        open_log(fake_env(killed_slave(data, starts[3], image, len(data))))


@pytest.mark.parametrize("append_prop_crc", [True, False], ids=["crc", "no crc"])
def test_a_body_that_quotes_the_mark_is_a_body(append_prop_crc):
    """A mark in a stored message hides nothing, though it names the offset where it stands."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), append_prop_crc=append_prop_crc)
    for _ in range(4):
        offset = log.max_offset + 88
        append(log, body=MARK_TEXT + struct.pack(">qq", offset, 150) + bytes(300))
    before = all_bytes(log)
    assert find_unfinished_copy(Pages(before.ljust(FILE_SIZE, b"\0")), 0, len(before)) is not None
    log = open_log(fake_env(disk.kill()), append_prop_crc=append_prop_crc)
    assert all_bytes(log) == before
    assert log.load_report.trimmed is None


def test_a_batch_is_copied_under_guard():
    """A master's batch is many records in one copy, too."""
    log = open_log()
    append(log, [Message("t", b"x" * 100) for _ in range(5)])
    data = all_bytes(log)
    assert b"unfinished" not in data
    assert log.max_offset == len(data)


class Pages:
    """A DiskFile's reading half over bytes."""

    path, buffer = "p", None

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def pread(self, size, position):
        return self.data[position : position + size]


def test_the_last_mark_near_the_end_is_found():
    """Its size says where the copy ends; one that cannot be is none."""
    data = bytearray(10_000)
    with pytest.raises(KilledError):
        copy_guarded(TornView(data, 1, SPARED["everything"]), 5_000, bytes(3_000), 25_000)
    data[9_000:9_016] = MARK_TEXT  # no size, another offset
    data[9_990:10_000] = MARK_TEXT[:10]
    pages = Pages(bytes(data))
    assert find_unfinished_copy(pages, 20_000, 4_900) == UnfinishedCopy(5_000, 8_000)
    assert find_unfinished_copy(pages, 20_001, 4_900) is None
    assert find_unfinished_copy(Pages(bytes(data[:7_999])), 20_000, 4_900) is None
    assert find_unfinished_copy(Pages(bytes(10_000)), 20_000, 4_900) is None


def test_what_is_hidden_reads_as_zeros():
    """Reads that touch the copy at either side, or not at all."""
    data = bytes(range(1, 101))
    file = FileWithoutCopy(Pages(data), UnfinishedCopy(20, 30))
    hidden = data[:20] + bytes(10) + data[30:]
    for position in range(0, 100, 7):
        for size in (1, 5, 40, 200):
            assert file.pread(size, position) == hidden[position : position + size]
    assert file.size == 100


def test_file_size_is_what_these_tests_assume():
    """All records of these tests lie in one file."""
    assert log_bytes()[1][-1] < FILE_SIZE
