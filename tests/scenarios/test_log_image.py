"""Reading a log that a crash left behind: its records, damage, and torn tail."""

from __future__ import annotations

from pathlib import Path

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore_scenarios.judge.log_image import find_damage, first_difference, log_end, read_records
from tests.support.store.log_builder import FILE_SIZE, overwrite


def write_log(path: Path, count: int) -> list[int]:
    """Write a killed master's log; return the offsets of its records and of its end."""
    log = CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path), mapped_file_size=FILE_SIZE),
        store_host=("127.0.0.1", 10911),
        needs_queue_offsets=True,
    )
    queue = log.mapped_file_queue
    starts = []
    for number in range(count):
        message = Message("T", bytes([number]) * 300, properties={"UNIQ_KEY": f"K{number}"})
        result = log.append_message(message)
        while result.status.value == "END_OF_FILE":
            wanted = queue.wanted_file_offset()
            queue.offer(queue.create_file(log.max_offset if wanted is None else wanted))
            result = log.append_message(message)
        starts.append(result.physic_offset)
    end = log.max_offset
    log.close(clean=False)
    return [*starts, end]


def test_records_are_read_across_files(tmp_path: Path) -> None:
    """Offsets, keys and body CRCs of all messages are returned, and the log's end."""
    starts = write_log(tmp_path, 30)
    disk = real_env().disk
    records = list(read_records(disk, str(tmp_path)))
    assert [record.physic_offset for record in records] == starts[:-1]
    assert [record.key for record in records] == [f"K{number}" for number in range(30)]
    assert len({record.body_crc for record in records}) == 30
    assert records[-1].next_offset == log_end(disk, str(tmp_path)) == starts[-1]
    assert find_damage(disk, str(tmp_path)) is None


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    """A node that never started or never wrote has no records."""
    disk = real_env().disk
    assert list(read_records(disk, str(tmp_path))) == []
    assert log_end(disk, str(tmp_path)) == 0
    assert find_damage(disk, str(tmp_path)) is None
    assert first_difference(disk, str(tmp_path), str(tmp_path)) is None


@pytest.mark.parametrize(("index", "is_torn_end"), [(28, True), (20, False)])
def test_a_torn_tail_is_distinguished_from_other_damage(
    tmp_path: Path, index: int, is_torn_end: bool
) -> None:
    """A crash may damage the last record, but not one with intact records after it."""
    starts = write_log(tmp_path, 29)
    overwrite(tmp_path, starts[index] + 150, b"\xff\xff")
    damage = find_damage(real_env().disk, str(tmp_path))
    assert damage is not None
    assert (damage.physic_offset, damage.is_torn_end) == (starts[index], is_torn_end)
