"""Reads of the real disk's files."""

import errno
import os
from unittest import mock

import pytest

from hastore.env.real import RealDisk, real_env
from hastore.errors import DiskError, DiskFullError


@pytest.fixture
def file(tmp_path):
    """A file of 8 KiB whose pages were just written."""
    opened = real_env().disk.create_file(str(tmp_path / "f"), 8192)
    opened.pwrite(bytes(range(256)) * 32, 0)
    yield opened
    opened.close()


def test_what_is_in_the_page_cache_is_read_now(file):
    """As much as there is; a file system that cannot tell reads nothing."""
    buffer = memoryview(bytearray(4096))
    count = file.read_now(buffer, 100)
    if count:
        assert (count, bytes(buffer)) == (4096, file.pread(4096, 100))
        assert file.read_now(buffer, 8000) == 192
        assert buffer[:192] == file.pread(192, 8000)
        assert file.read_now(buffer, 8192) == 0
    else:
        pytest.skip("this file system has no RWF_NOWAIT")


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_nothing_is_read_that_may_wait(file, monkeypatch, error):
    """Not cached, or a kernel or file system that cannot tell."""
    monkeypatch.setattr(os, "preadv", lambda *_: failing(error))
    assert file.read_now(memoryview(bytearray(10)), 0) == 0


def test_failed_read_is_a_disk_error(file, monkeypatch):
    """It names the file."""
    monkeypatch.setattr(os, "preadv", lambda *_: failing(errno.EIO))
    with pytest.raises(DiskError, match="/f"):
        file.read_now(memoryview(bytearray(10)), 0)


def test_made_pages_are_zeros(file):
    """Nothing else is written, and an error is not raised: it is advice."""
    file.make_pages(4000, 200)
    written = bytes(range(256)) * 32
    assert file.pread(8192, 0) == written[:4000] + bytes(200) + written[4200:]
    file.close()
    file.make_pages(0, 1)


def failing(error):
    raise OSError(error, os.strerror(error))


def test_a_file_that_cannot_fit_takes_no_room(tmp_path):
    """Allocating what there is, up to the last block, would fail every other write meanwhile."""
    disk = RealDisk()
    path = tmp_path / "large"
    with mock.patch.object(os, "posix_fallocate", side_effect=AssertionError("allocates")):
        with pytest.raises(DiskFullError, match="No space left"):
            disk.create_file(str(path), 2 * disk.space(str(tmp_path)).free_bytes + (1 << 40))
    assert not path.exists()


@pytest.mark.parametrize(("user", "fits"), [(0, True), (1_000, False)])
def test_reserved_blocks_are_room_for_root_only(tmp_path, monkeypatch, user, fits):
    """Another user's attempt would take what is left from small files, and then fail."""
    free = mock.Mock(f_bfree=4, f_bavail=1, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda _path: free)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if fits:
        real_env().disk.create_file(str(tmp_path / "f"), 8_192).close()
    else:
        with pytest.raises(DiskFullError):
            real_env().disk.create_file(str(tmp_path / "f"), 8_192)
        assert not (tmp_path / "f").exists()
