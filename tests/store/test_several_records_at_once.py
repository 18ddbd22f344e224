"""Several records in one write, a batch or a slave's data: all are written, or a prefix, or none.

A kill in the middle of a large memcpy through the map left a hole before intact records (found by
the soak test: 1,000,000 messages, the slave killed every 5 s), so several records are written by
pwrite instead.
"""

import pytest

from hastore.errors import DiskError
from hastore.message import Message
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import disk_full
from tests.support.store.open_log import all_bytes, append, append_data, open_log

BATCH = [Message("t", bytes([number]) * 150) for number in range(12)]


class KilledError(Exception):
    """The process was killed."""


def batch_bytes():
    """The bytes of a master's batch, its record offsets, and its end."""
    log = open_log()
    result = append(log, BATCH)
    return all_bytes(log), [*result.batch_offsets, log.max_offset]


def write(log, data, *, master):
    if master:
        append(log, BATCH)
    else:
        append_data(log, 0, data)


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("reached", [0, 1, 17, 250, 251, 1000, 2500])
def test_kill_during_a_write_leaves_only_complete_records(master, reached):
    """The next process finds each record that was written completely, and trims the torn one."""
    data, starts = batch_bytes()
    disk = FakeDisk()
    disk.fail("pwrite", KilledError(), reaches=reached)
    log = open_log(fake_env(disk), master=master)
    with pytest.raises(KilledError):
        write(log, data, master=master)
    again = open_log(fake_env(disk.kill()), master=master)
    assert again.max_offset == max(start for start in starts if start <= reached)
    assert all_bytes(again) == data[: again.max_offset]


@pytest.mark.parametrize("master", [True, False])
def test_failed_write_leaves_the_log_unchanged(master):
    """No position moves, no byte stays, and the write succeeds once the disk works again."""
    data, _ = batch_bytes()
    disk = FakeDisk()
    disk.fail("pwrite", disk_full(), reaches=1000)
    log = open_log(fake_env(disk), master=master)
    with pytest.raises(DiskError):
        write(log, data, master=master)
    assert log.max_offset == 0
    assert not any(disk.files()["00000000000000000000"])
    disk.heal()
    write(log, data, master=master)
    assert all_bytes(log) == data


def test_single_message_is_written_through_the_map():
    """One record needs no write order, and a copy is cheaper than a system call."""
    disk = FakeDisk()
    disk.fail("pwrite", KilledError())
    log = open_log(fake_env(disk))
    assert append(log).next_offset == log.max_offset
