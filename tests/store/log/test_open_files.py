"""How many descriptors an open log needs, and the error when there are no more."""

import contextlib
import gc
import logging
import os
import resource

import pytest

from hastore.config import DEFAULT_MAPPED_FILE_SIZE, MasterConfig, StoreConfig
from hastore.env.real import RealDisk
from hastore.errors import DiskError
from hastore_cli.node.runner import raise_file_limit
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, all_bytes, append, close, open_log


@pytest.fixture
def soft_limit():
    """Sets the soft limit of open files, for one test."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("is_clean", [True, False])
def test_only_the_last_two_files_and_the_prepared_one_are_mapped(is_clean):
    """A map is a second descriptor, so opening a long log must not map every file."""
    disk = FakeDisk()
    log = open_log(fake_env(disk))
    while log.max_offset < 5 * FILE_SIZE + FILE_SIZE // 2:
        append(log, body=b"x" * 300)
    data = all_bytes(log)
    if is_clean:
        close(log)
    disk = disk.kill()
    disk.put(f"/d/commitlog/{6 * FILE_SIZE:020d}", bytes(FILE_SIZE))
    log = open_log(fake_env(disk))
    queue = log.mapped_file_queue
    mapped = [file.disk_file.buffer is not None for file in queue.files]
    assert mapped == [False, False, False, False, True, True]
    assert queue.prepared.disk_file.buffer is not None
    assert all_bytes(log) == data
    for number, file in enumerate(queue.files):
        with file.view[100:200] as part:
            assert part == data[number * FILE_SIZE + 100 : number * FILE_SIZE + 200]
    append(log)
    close(log)


def test_real_file_opened_for_reading_can_be_synced(tmp_path, monkeypatch):
    """After a kill every file is synced, also those that are not mapped."""
    disk = RealDisk()
    disk.create_file(str(tmp_path / "f"), FILE_SIZE).close()
    disk_file = disk.open_file(str(tmp_path / "f"), writable=False)
    synced = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (fdatasync(file), synced.append(file)))
    disk_file.sync()
    assert synced == [disk_file.fileno()]
    disk_file.close()


def test_error_for_too_many_open_files_has_a_hint(tmp_path, soft_limit):
    """It names both remedies."""
    gc.collect()  # what it closes later would make room
    with (tmp_path / "open").open("w") as last, contextlib.ExitStack() as filling:
        soft_limit(last.fileno() + 1)
        with contextlib.suppress(OSError):
            while True:  # a lower number may be free
                filling.callback(os.close, os.dup(last.fileno()))
        with pytest.raises(DiskError) as caught:
            RealDisk().create_file(str(tmp_path / "f"), FILE_SIZE)
    assert caught.value.hint == "raise ulimit -n, or use a larger --mapped-file-size"


def test_node_raises_its_file_limit_to_the_hard_limit(soft_limit):
    """The soft limit is often only 1024."""
    soft_limit(1024)
    raise_file_limit(MasterConfig(store=StoreConfig(data_dir="d")))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


@pytest.mark.parametrize("wanted", [FILE_SIZE, 2 * FILE_SIZE, None])
def test_partly_allocated_first_file_does_not_fix_the_file_size(wanted, caplog):
    """A power cut left it without data: it is removed, and the configured size applies."""
    disk = FakeDisk()
    disk.put(f"/d/commitlog/{0:020d}", bytes(FILE_SIZE + 512))
    with caplog.at_level(logging.INFO):
        log = open_log(fake_env(disk), mapped_file_size=wanted)
    assert log.file_size == (wanted or DEFAULT_MAPPED_FILE_SIZE)
    assert log.load_report.removed_files == (f"/d/commitlog/{0:020d}",)
    assert "empty_file_removed" in caplog.text
    assert disk.files() == {}


def test_fully_allocated_first_file_is_kept():
    """A store that was started but received no message has its first file prepared."""
    disk = FakeDisk()
    disk.put(f"/d/commitlog/{0:020d}", bytes(FILE_SIZE))
    assert open_log(fake_env(disk)).mapped_file_queue.prepared is not None


def test_list_dir_skips_names_without_a_file(tmp_path):
    """A file may vanish between the listing and its stat call; a dangling link looks the same."""
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "there").write_bytes(b"1")
    assert [entry.name for entry in RealDisk().list_dir(str(tmp_path))] == ["there"]
