"""Whether a name still leads to an open file: what is found lost, and what is not."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hastore.env import name_check
from hastore.env.real import RealDisk
from hastore.native.in_use import extension
from hastore.sim.disk import SimDisk


@pytest.fixture(params=["C", "Python"])
def code(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(name_check, "extension", None)
    elif extension is None:
        pytest.skip("there is no C extension")


def made(path):
    RealDisk().create_file(str(path), 4096).close()
    return RealDisk().open_file(str(path), writable=False)


@pytest.mark.usefixtures("code")
def test_the_first_lost_name_is_returned(tmp_path):
    """Of open files and of directories that are held; a closed one is never lost."""
    disk = RealDisk()
    (tmp_path / "dir").mkdir()
    files = [made(tmp_path / name) for name in "abc"]
    held = disk.hold(str(tmp_path / "dir"))
    named = [held, *files]
    assert disk.first_lost(named) is None
    (tmp_path / "b").unlink()
    (tmp_path / "c").unlink()
    assert disk.first_lost(named) is files[1]
    (tmp_path / "dir").rmdir()
    assert disk.first_lost(named) is held
    for each in named:
        each.close()
        assert each.lost_name() is None


def test_what_has_happened_is_said(tmp_path):
    """Removed and replaced are told apart."""
    file = made(tmp_path / "a")
    (tmp_path / "a").unlink()
    assert file.lost_name() == "was removed or renamed"
    (tmp_path / "a").write_bytes(b"")
    assert "leads to another file" in file.lost_name()
    file.close()


def test_a_file_that_is_put_back_is_not_lost(tmp_path):
    """The name leads to it again, and all that was written meanwhile is in it."""
    file = made(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert file.lost_name() is not None
    (tmp_path / "b").rename(tmp_path / "a")
    assert file.lost_name() is None
    file.close()


def test_another_link_to_a_file_changes_nothing(tmp_path):
    """A backup by hard links leaves the name as it is."""
    file = made(tmp_path / "a")
    os.link(tmp_path / "a", tmp_path / "backup")
    assert file.lost_name() is None
    (tmp_path / "backup").unlink()
    assert file.lost_name() is None
    file.close()


def test_a_name_that_never_led_to_the_file_is_not_checked(tmp_path):
    """On some file systems the two have other numbers from the start."""
    descriptor = os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR)
    (tmp_path / "b").write_bytes(b"")
    assert name_check.name_check_of(descriptor, str(tmp_path / "b")) == b""
    assert name_check.lost_name(b"") is None
    os.close(descriptor)


def test_holding_a_name_keeps_the_locks_of_the_file(tmp_path):
    """Closing another descriptor of a locked file would release the lock; a path's does not."""
    path = str(tmp_path / "lock")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    RealDisk().hold(path).close()
    is_free = (
        "import fcntl, os, sys; file = os.open(sys.argv[1], os.O_RDWR);"
        " fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
    )
    tried = subprocess.run([sys.executable, "-c", is_free, path], capture_output=True, check=False)
    assert b"BlockingIOError" in tried.stderr
    os.close(descriptor)


@pytest.mark.parametrize("disk", [RealDisk(), SimDisk(lambda: 0)], ids=["real", "simulated"])
def test_real_and_simulated_disk_agree(tmp_path, disk):
    """On a file and its directory, removed together."""
    root = str(tmp_path) if isinstance(disk, RealDisk) else "/d"
    disk.make_dirs(f"{root}/log")
    file = disk.create_file(f"{root}/log/0", 4096)
    held = disk.hold(f"{root}/log")
    assert (file.lost_name(), held.lost_name()) == (None, None)
    disk.remove_tree(f"{root}/log")
    assert (file.lost_name(), held.lost_name()) == ("was removed or renamed",) * 2
    assert disk.first_lost([held, file]) is held
    file.close()
    held.close()
    assert not Path(root, "log").exists()
