"""Which directories can be opened as a store, who may open them, and the errors otherwise."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.errors import (
    DiskError,
    FileSizeMismatchError,
    LogDamagedError,
    NotAStoreError,
    StoreLockedError,
)
from hastore.store.commit_log import CommitLog
from tests.support.env.fake_disk import FakeDisk
from tests.support.env.fake_env import fake_env
from tests.support.store.open_log import FILE_SIZE, append, close, open_log

COMMIT_LOG = "/d/commitlog/"


def name(offset):
    return f"{COMMIT_LOG}{offset:020d}"


def store(*, files=1):
    """A disk with a closed log of ``files`` files."""
    disk = FakeDisk()
    log = open_log(fake_env(disk))
    while len(log.mapped_file_queue.files) < files:
        append(log, body=bytes(1500))
    close(log)
    return disk


def open_fake(disk, **config):
    config.setdefault("mapped_file_size", None)
    return open_log(fake_env(disk), **config)


def open_real(path, **config):
    return CommitLog.open(
        real_env(),
        StoreConfig(data_dir=str(path), **config),
        store_host=("127.0.0.1", 1),
        needs_queue_offsets=True,
    )


# -- sizes and names -----------------------------------------------------------------------------


def test_file_size_of_a_store_is_that_of_its_files():
    """It need not be configured again."""
    assert open_fake(store()).file_size == FILE_SIZE


def test_new_store_has_files_of_1_gib():
    """RocketMQ's default; the first file is created only when it is needed."""
    assert open_fake(FakeDisk()).file_size == 1024**3


def test_another_configured_file_size_is_refused():
    """The error names both sizes, and its hint the right one."""
    disk = store()
    with pytest.raises(FileSizeMismatchError, match="have 4096 bytes, 8192 were asked") as caught:
        open_fake(disk, mapped_file_size=8192)
    assert (caught.value.size_found, caught.value.size_wanted) == (FILE_SIZE, 8192)
    assert "4096" in caught.value.hint
    assert caught.value.exit_code == 6
    open_fake(disk, mapped_file_size=FILE_SIZE)  # the refused open left nothing behind


@pytest.mark.parametrize("size", [100, FILE_SIZE - 1, FILE_SIZE + 1])
def test_file_of_another_size_is_refused(size):
    """A crash leaves only a last file that is empty, or short and all zeros."""
    disk = store(files=3)
    disk.put(name(FILE_SIZE), b"x" * size)
    with pytest.raises(FileSizeMismatchError, match=f"{FILE_SIZE:020d} has {size} bytes"):
        open_fake(disk)
    last = store(files=2)
    last.put(name(FILE_SIZE), b"x" * size)
    with pytest.raises(FileSizeMismatchError):
        open_fake(last)


def test_empty_file_before_the_last_is_refused():
    """A crash cannot leave it: RocketMQ, too, removes only an empty last file."""
    disk = store(files=3)
    disk.put(name(0), b"")
    with pytest.raises(FileSizeMismatchError):
        open_fake(disk)


def test_file_too_small_for_a_log_is_refused():
    """A name of twenty digits does not make it a log file."""
    disk = FakeDisk()
    disk.put(name(0), b"hello")
    with pytest.raises(NotAStoreError, match="has 5 bytes"):
        open_fake(disk)


def test_missing_file_is_damage():
    """A gap in the log is damage, whatever lies after it."""
    disk = store(files=4)
    disk.remove(name(FILE_SIZE))
    with pytest.raises(LogDamagedError, match=f"{FILE_SIZE:020d} is missing") as caught:
        open_fake(disk)
    assert caught.value.physic_offset == FILE_SIZE


def test_start_that_is_not_a_multiple_of_the_file_size_is_refused():
    """The file was renamed, or belongs to another log."""
    disk = FakeDisk()
    disk.put(name(FILE_SIZE + 1), bytes(FILE_SIZE))
    with pytest.raises(LogDamagedError, match="does not start at a multiple"):
        open_fake(disk)


def test_foreign_files_in_the_log_directory_are_reported_and_ignored():
    """An editor's or a file system's files do not stop a start; RocketMQ would not start."""
    disk = store()
    disk.put(f"{COMMIT_LOG}notes.txt", b"x")
    disk.put(f"{COMMIT_LOG}{'9' * 19}", b"x")
    disk.make_dirs(f"{COMMIT_LOG}lost+found")
    disk.make_dirs(f"{COMMIT_LOG}old")
    report = open_fake(disk).load_report
    assert set(report.foreign_names) == {"notes.txt", "9" * 19, "old/"}


# -- which directories are stores ----------------------------------------------------------------


@pytest.mark.parametrize("entry", ["thesis.tex", ".bashrc", "locks", "config.yaml"])
def test_directory_with_other_files_is_refused(entry):
    """Nothing is created there, not even a lock."""
    disk = FakeDisk()
    disk.put(f"/d/{entry}", b"x")
    before = disk.files("/d/")
    with pytest.raises(NotAStoreError, match=entry) as caught:
        open_fake(disk)
    assert caught.value.exit_code == 6
    assert disk.files("/d/") == before
    assert disk.changes == []


def test_commitlog_directory_without_a_log_file_is_refused():
    """It may be another program's directory of that name."""
    disk = FakeDisk()
    disk.put(f"{COMMIT_LOG}journal.bin", b"x")
    with pytest.raises(NotAStoreError, match=r"journal\.bin"):
        open_fake(disk)


def test_files_of_rocketmq_and_file_systems_are_accepted():
    """A store whose commitlog was moved away is still a store."""
    disk = FakeDisk()
    for entry in ("abort", "abort.bak", "checkpoint", "lock", "node.json", "node.json.tmp"):
        disk.put(f"/d/{entry}", b"")
    for entry in ("consumequeue", "index", "config", "lost+found"):
        disk.make_dirs(f"/d/{entry}")
    log = open_fake(disk)
    assert (log.load_report.files, log.max_offset) == (0, 0)


def test_file_in_place_of_the_directory_is_an_error(tmp_path):
    """It names the path and the operating system's reason."""
    (tmp_path / "data").write_text("x")
    with pytest.raises(DiskError, match="data: Not a directory"):
        open_real(tmp_path / "data")


# -- lock and abort ------------------------------------------------------------------------------


def test_open_store_cannot_be_opened_again():
    """Either role is refused until the first one closes the store."""
    disk = store()
    first = open_fake(disk)
    for master in (True, False):
        with pytest.raises(StoreLockedError) as caught:
            open_fake(disk, master=master)
        assert caught.value.exit_code == 6
    first.close(clean=False)
    open_fake(disk)


def test_lock_of_another_process_is_released_by_a_kill(tmp_path):
    """The operating system holds the lock; ``abort`` shows the kill, and holds the process id."""
    code = f"""
        import sys
        from hastore.config import StoreConfig
        from hastore.env.real import real_env
        from hastore.store.commit_log import CommitLog
        log = CommitLog.open(
            real_env(),
            StoreConfig(data_dir={str(tmp_path)!r}, mapped_file_size=4096),
            store_host=("127.0.0.1", 1),
            needs_queue_offsets=True,
        )
        print("open", flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(StoreLockedError, match="held by another process"):
            open_real(tmp_path)
        assert (tmp_path / "abort").read_text() == str(process.pid)
        assert (tmp_path / "lock").read_bytes() == b"lock"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    log = open_real(tmp_path)
    assert log.load_report.last_exit_ok is False
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    log.close(clean=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["commitlog", "lock"]
    assert open_real(tmp_path).load_report.last_exit_ok is True


def test_rocketmqs_empty_abort_file_means_an_unclean_stop():
    """RocketMQ 4.x writes no process id into it."""
    disk = store()
    disk.put("/d/abort", b"")
    assert open_fake(disk).load_report.last_exit_ok is False


def test_refused_open_releases_the_lock():
    """After the cause is fixed, the same process can open the store."""
    disk = store()
    with pytest.raises(FileSizeMismatchError):
        open_fake(disk, mapped_file_size=8192)
    assert disk.locked == set()
    assert open_fake(disk).load_report.last_exit_ok
