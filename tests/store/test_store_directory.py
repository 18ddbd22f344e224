"""What a directory may hold to be opened as a store, who may open it, and what its errors say."""

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
    """A disk with a closed log of so many files."""
    disk = FakeDisk()
    log = open_log(fake_env(disk))
    while len(log.mapped_file_queue.files) < files:
        append(log, body=bytes(1500))
    close(log)
    return disk


def opening(disk, **config):
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


def test_the_file_size_of_a_store_is_that_of_its_files():
    """Nobody needs to remember it."""
    assert opening(store()).file_size == FILE_SIZE


def test_a_new_store_has_files_of_1_gib():
    """RocketMQ's default; the first file is only made when it is needed."""
    assert opening(FakeDisk()).file_size == 1024**3


def test_another_size_is_refused_with_both_named():
    """And the hint says which one to ask for."""
    disk = store()
    with pytest.raises(FileSizeMismatchError, match="have 4096 bytes, 8192 were asked") as caught:
        opening(disk, mapped_file_size=8192)
    assert (caught.value.size_found, caught.value.size_wanted) == (FILE_SIZE, 8192)
    assert "4096" in caught.value.hint
    assert caught.value.exit_code == 6
    opening(disk, mapped_file_size=FILE_SIZE)  # the refusal left nothing behind


@pytest.mark.parametrize("size", [100, FILE_SIZE - 1, FILE_SIZE + 1])
def test_a_file_of_another_size_among_the_others_is_named(size):
    """Only a last file that is empty, or short and all zeros, is what a crash leaves."""
    disk = store(files=3)
    disk.put(name(FILE_SIZE), b"x" * size)
    with pytest.raises(FileSizeMismatchError, match=f"{FILE_SIZE:020d} has {size} bytes"):
        opening(disk)
    last = store(files=2)
    last.put(name(FILE_SIZE), b"x" * size)
    with pytest.raises(FileSizeMismatchError):
        opening(last)


def test_an_empty_file_that_is_not_the_last_is_no_crash():
    """RocketMQ removes the last file alone."""
    disk = store(files=3)
    disk.put(name(0), b"")
    with pytest.raises(FileSizeMismatchError):
        opening(disk)


def test_files_too_small_for_a_log_are_none():
    """Twenty digits do not make a log file."""
    disk = FakeDisk()
    disk.put(name(0), b"hello")
    with pytest.raises(NotAStoreError, match="has 5 bytes"):
        opening(disk)


def test_a_missing_file_is_named():
    """A gap in the log is damage, whatever lies behind it."""
    disk = store(files=4)
    disk.remove(name(FILE_SIZE))
    with pytest.raises(LogDamagedError, match=f"{FILE_SIZE:020d} is missing") as caught:
        opening(disk)
    assert caught.value.physic_offset == FILE_SIZE


def test_a_start_that_is_no_multiple_of_the_size_is_named():
    """A file was renamed, or is no part of this log."""
    disk = FakeDisk()
    disk.put(name(FILE_SIZE + 1), bytes(FILE_SIZE))
    with pytest.raises(LogDamagedError, match="no multiple"):
        opening(disk)


def test_foreign_names_in_the_log_are_told_and_ignored():
    """An editor's or a file system's leavings stop nothing; RocketMQ would not start."""
    disk = store()
    disk.put(f"{COMMIT_LOG}notes.txt", b"x")
    disk.put(f"{COMMIT_LOG}{'9' * 19}", b"x")
    disk.make_dirs(f"{COMMIT_LOG}lost+found")
    disk.make_dirs(f"{COMMIT_LOG}old")
    report = opening(disk).load_report
    assert set(report.foreign_names) == {"notes.txt", "9" * 19, "old/"}


# -- is it a store at all ------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["thesis.tex", ".bashrc", "locks", "config.yaml"])
def test_a_directory_that_holds_something_else_is_refused(entry):
    """Nothing is created there, not even a lock."""
    disk = FakeDisk()
    disk.put(f"/d/{entry}", b"x")
    before = disk.files("/d/")
    with pytest.raises(NotAStoreError, match=entry) as caught:
        opening(disk)
    assert caught.value.exit_code == 6
    assert disk.files("/d/") == before
    assert disk.changes == []


def test_a_commitlog_directory_without_a_log_file_is_refused():
    """It may be somebody else's directory of that name."""
    disk = FakeDisk()
    disk.put(f"{COMMIT_LOG}journal.bin", b"x")
    with pytest.raises(NotAStoreError, match=r"journal\.bin"):
        opening(disk)


def test_what_rocketmq_and_file_systems_leave_is_no_obstacle():
    """A store whose commitlog was moved away is still a store."""
    disk = FakeDisk()
    for entry in ("abort", "abort.bak", "checkpoint", "lock", "node.json", "node.json.tmp"):
        disk.put(f"/d/{entry}", b"")
    for entry in ("consumequeue", "index", "config", "lost+found"):
        disk.make_dirs(f"/d/{entry}")
    log = opening(disk)
    assert (log.load_report.files, log.max_offset) == (0, 0)


def test_a_file_in_the_place_of_the_directory_is_one_line(tmp_path):
    """The operating system's reason, and the path."""
    (tmp_path / "data").write_text("x")
    with pytest.raises(DiskError, match="data: Not a directory"):
        open_real(tmp_path / "data")


# -- lock and abort ------------------------------------------------------------------------------


def test_a_store_is_opened_once():
    """A second open is refused, by either role, until the first is closed."""
    disk = store()
    first = opening(disk)
    for master in (True, False):
        with pytest.raises(StoreLockedError) as caught:
            opening(disk, master=master)
        assert caught.value.exit_code == 6
    first.close(clean=False)
    opening(disk)


def test_another_process_holds_the_lock_and_a_kill_gives_it_up(tmp_path):
    """The lock is the operating system's; ``abort`` tells of the kill and holds the process id."""
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


def test_rocketmqs_empty_abort_means_an_unclean_stop_too():
    """RocketMQ 4.x writes nothing into it."""
    disk = store()
    disk.put("/d/abort", b"")
    assert opening(disk).load_report.last_exit_ok is False


def test_a_refused_open_gives_the_lock_up():
    """After the error is mended the same process can open the store."""
    disk = store()
    with pytest.raises(FileSizeMismatchError):
        opening(disk, mapped_file_size=8192)
    assert disk.locked == set()
    assert opening(disk).load_report.last_exit_ok
