"""A slave that was stopped inside a BLANK, or right after one, and starts again."""

import pytest

from hastore.store.record.message_codec import encode_blank
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import (
    FILE_SIZE,
    all_bytes,
    append,
    append_data,
    make_file,
    open_log,
)


@pytest.fixture(scope="module")
def master():
    """The bytes of a master's log of a file and a half, and where its BLANK begins."""
    log = open_log(fake_env())
    end = 0
    while log.max_offset < FILE_SIZE:
        blank, end = end, append(log, body=b"x" * 300).next_offset
    data = all_bytes(log)
    assert data[blank : blank + 8] == encode_blank(FILE_SIZE - blank)
    return data, blank


def slave_with(data, end):
    """A killed slave's disk that holds the log up to ``end``."""
    disk = FakeDisk()
    log = open_log(fake_env(disk), master=False)
    for start in range(0, end, FILE_SIZE):
        append_data(log, start, data[start : min(end, start + FILE_SIZE)])
    make_file(log)
    return disk.kill()


@pytest.mark.parametrize("received", [8, 9, 100, None])
def test_slave_stopped_at_a_blank_ends_its_log_before_it(master, received):
    """The master sends the BLANK again, and the logs are equal."""
    data, blank = master
    disk = slave_with(data, FILE_SIZE if received is None else blank + received)
    log = open_log(fake_env(disk), master=False)
    assert log.max_offset == log.flushed_offset == blank
    assert log.load_report.trimmed is None
    assert not disk.files("/d/trimmed/")
    append_data(log, blank, data[blank:FILE_SIZE])
    append_data(log, FILE_SIZE, data[FILE_SIZE:])
    assert all_bytes(log) == data


def test_blank_before_received_data_is_kept(master):
    """Bytes arrive in order, so data in the next file proves that the BLANK is complete."""
    data, _ = master
    log = open_log(fake_env(slave_with(data, len(data))), master=False)
    assert log.max_offset == len(data)


def test_master_keeps_its_blank(master):
    """A master's own BLANK closes the file for good."""
    data, _ = master
    assert open_log(fake_env(slave_with(data, FILE_SIZE))).max_offset == FILE_SIZE
