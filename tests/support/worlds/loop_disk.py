"""Real disks that can fail: ext4 in an image file behind a loop device, mounted for one test.

::

    PLACE/NAME.img ── /dev/loopN ── ext4 ── PLACE/NAME       (the node's directory)

``cut_power`` is ``EXT4_IOC_SHUTDOWN`` with NOLOGFLUSH: from that instant on the file system writes
nothing more, not even its journal, and every call on it fails.  The next mount finds only the bytes
that had reached the device: the page cache is gone, as after a power cut.  (The device itself loses
nothing: a volatile cache in the drive cannot be simulated here.)

``write_back_some`` makes such a cut as bad as a kernel may: it picks pages at random, writes them,
and commits the journal so that they survive, while their neighbours are lost.

Mounting needs root and loop devices; without them ``loop_disks`` skips the test and prints the
command that failed.  The next test removes a mount that a killed test left behind: the process id
is in its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from hastore_scenarios.worlds.netns.network import is_gone
from tests.patience import PROCESS_WITHIN_S

_IOC_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, the same number as XFS's
_NOLOGFLUSH = 2
_SYNC_FILE_RANGE_ALL = 1 | 2 | 4  # wait before, write, wait after
_PAGE_SIZE = 4096
_IOC_FIEMAP = 0xC020660B
_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 1, 2
_POOL_SIZE = 72 * 1024 * 1024
_LIBC = ctypes.CDLL(None, use_errno=True)
_MOUNT_NAME = "loop-disk-of-"


class NoLoopDisk(Exception):
    """This machine cannot mount an image; the text says what failed."""


@attrs.define(eq=False)
class LoopDisk:
    """One mounted image; ``path`` is where it is mounted."""

    path: Path
    image: Path

    @property
    def _own(self) -> Path:
        """A directory that no store uses."""
        return self.path / "lost+found"

    @property
    def _device(self) -> str:
        """The name of its loop device."""
        return next(
            fields[0].rpartition("/")[2] for fields in _mounts() if fields[1] == str(self.path)
        )

    @classmethod
    def make(cls, image: Path, path: Path, size: int, *options: str) -> LoopDisk:
        """Make an image of ``size`` bytes with an empty ext4 and mount it."""
        with image.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(_PAGE_SIZE), *options, str(image))
        path.mkdir(parents=True)
        disk = cls(path, image)
        disk.mount()
        return disk

    def mount(self) -> None:
        """Mount it; ext4 replays its journal first."""
        _run("mount", "-t", "ext4", "-o", "loop,noatime", str(self.image), str(self.path))

    def unmount(self) -> None:
        """Unmount it; no process may have one of its files open."""
        _run("umount", str(self.path))

    def turn_read_only(self) -> None:
        """Let ext4 find an error in itself; it must have been made with ``-e remount-ro``."""
        _write(f"/sys/fs/ext4/{self._device}/trigger_fs_error", "test")

    def check_and_mount(self) -> None:
        """Repair it as an operator does, with e2fsck."""
        self.unmount()
        done = subprocess.run(["e2fsck", "-fy", self.image], capture_output=True, check=False)
        assert done.returncode <= 1, done.stdout  # 1: errors were corrected
        self.mount()

    def cut_power(self) -> None:
        """Let nothing more reach the device."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _IOC_SHUTDOWN, struct.pack("=I", _NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        """Mount it again after a cut; all processes that used it must have ended."""
        self.unmount()
        self.mount()

    def write_back_some(self, rng: random.Random, files: list[Path], share: float) -> None:
        """Have about ``share`` of each file's pages reach the device, in any order, and stay."""
        for path in files:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                pages = [page * _PAGE_SIZE for page in range(os.fstat(file.fileno()).st_size >> 12)]
                for position in rng.sample(pages, int(len(pages) * share)):
                    _sync_file_range(file.fileno(), position, _PAGE_SIZE)
        # Allocated blocks read as zeros until the journal has recorded that they were written; an
        # fsync of any file commits that.
        descriptor = os.open(self._own / "commit", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b".")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def fill(self, *, leave: int = 0) -> None:
        """Fill it up to ``leave`` bytes, even while others write."""
        piece = 1024 * 1024
        with (self._own / "ballast").open("ab") as file:
            while piece >= _PAGE_SIZE:
                stat = os.statvfs(self.path)
                size = min(piece, stat.f_bavail * stat.f_frsize - leave)
                try:
                    if size > 0:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size = 0
                if size < piece:
                    piece //= 2

    def make_room(self) -> None:
        """Free the space that ``fill`` took."""
        (self._own / "ballast").unlink(missing_ok=True)


class Tmpfs(LoopDisk):
    """A small file system in memory; it has no image, and forgets all once it is unmounted."""

    @classmethod
    def make(cls, image: Path, path: Path, size: int, *options: str) -> Tmpfs:
        """Mount an empty one of ``size`` bytes; ``options`` are mount's."""
        path.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tmpfs", str(path))
        disk = cls(path, image)
        disk._own.mkdir()
        return disk


class ThinDisk(LoopDisk):
    """A disk whose image is in a tmpfs; when that is full, some blocks cannot be written.

    As on a thin-provisioned volume, the file system does not know.  ext4's own blocks are safe:
    only those below the bytes of one file are returned to the pool.
    """

    def take_all(self) -> None:
        """Allocate every block, including those that mkfs has skipped."""
        with self.image.open("r+b") as image:
            os.posix_fallocate(image.fileno(), 0, os.fstat(image.fileno()).st_size)

    def run_out_under(self, path: Path) -> None:
        """Make writes to all pages of a file fail that hold only zeros now.

        The loop driver reports a partial write as a success, so requests are limited to one page.
        """
        _write(f"/sys/block/{self._device}/queue/max_sectors_kb", str(_PAGE_SIZE // 1024))
        os.sync()
        data = path.read_bytes().rstrip(b"\0")
        unused = -(-len(data) // _PAGE_SIZE) * _PAGE_SIZE
        with path.open("rb") as file, self.image.open("r+b") as image:
            for position, place, size in _extents(file.fileno()):
                start = max(position, unused)
                if start < position + size:
                    _punch(image.fileno(), place + start - position, position + size - start)
        pool = os.statvfs(self.image)
        with (self.image.parent / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, pool.f_bavail * pool.f_frsize)

    def write_back_in_vain(self, path: Path) -> None:
        """Let the write of each dirty page of a file fail, and consume the error.

        The kernel reports an unseen error to the next process that opens the file.
        """
        with path.open("rb") as file, contextlib.suppress(OSError):
            os.fsync(file.fileno())

    def find_room(self) -> None:
        """Let all writes succeed again."""
        (self.image.parent / "ballast").unlink()


@pytest.fixture
def loop_disks(tmp_path: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Return a function that makes a disk at a path; the disks are unmounted after the test."""
    yield from _mounted(tmp_path, LoopDisk, "ext4 on a loop device")


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Callable[..., LoopDisk]]:
    """Return the same for file systems in memory, which need no loop devices."""
    yield from _mounted(tmp_path, Tmpfs, "tmpfs")


def _mounted(tmp_path: Path, kind: type[LoopDisk], what: str) -> Iterator[Callable[..., LoopDisk]]:
    remove_leftovers()
    disks: list[LoopDisk] = []
    images = tmp_path / f"{_MOUNT_NAME}{os.getpid()}"
    images.mkdir(exist_ok=True)

    def make(path: Path, *options: str, size: int = 96 * 1024 * 1024) -> LoopDisk:
        """Mount a new disk at ``path``, a link to the mount point."""
        mount_point = images / path.name
        try:
            disk = kind.make(images / f"{path.name}.img", mount_point, size, *options)
        except NoLoopDisk as error:
            pytest.skip(f"no {what} here: {error}")
        disks.append(disk)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(mount_point)
        return disk

    yield make
    for disk in disks:
        with contextlib.suppress(NoLoopDisk):
            _run("umount", "--lazy", str(disk.path))


@pytest.fixture
def thin_disk(tmp_path: Path) -> Iterator[Callable[[Path], ThinDisk]]:
    """Return a function that makes a disk that can run out of room below its file system."""
    remove_leftovers()
    pool = tmp_path / f"{_MOUNT_NAME}{os.getpid()}-pool"
    pool.mkdir()
    mounted: list[Path] = []

    def make(path: Path) -> ThinDisk:
        mount_point = pool.with_name(pool.name + "-disk")
        try:
            _run("mount", "-t", "tmpfs", "-o", f"size={_POOL_SIZE}", "tmpfs", str(pool))
            mounted.append(pool)
            disk = ThinDisk.make(
                pool / "image",
                mount_point,
                _POOL_SIZE - 8 * 1024 * 1024,
                # Nothing but the test may return blocks to the pool.
                *("-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
            )
            mounted.append(mount_point)
            assert isinstance(disk, ThinDisk)
            disk.take_all()
        except NoLoopDisk as error:
            pytest.skip(f"no ext4 on a loop device on tmpfs here: {error}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(mount_point)
        return disk

    yield make
    for path in reversed(mounted):
        with contextlib.suppress(NoLoopDisk):
            _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROCESS_WITHIN_S
        )
    except OSError as error:
        raise NoLoopDisk(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise NoLoopDisk(f"{' '.join(command)}: {' '.join(done.stderr.split())}")


def _extents(descriptor: int) -> list[tuple[int, int, int]]:
    """Return a file's extents: position in the file, place on the device, size (ioctl FIEMAP)."""
    head, extent = struct.Struct("=QQIIII"), struct.Struct("=QQQQQIIII")
    count_max = 256
    request = bytearray(head.pack(0, 2**63, 0, 0, count_max, 0) + bytes(extent.size * count_max))
    fcntl.ioctl(descriptor, _IOC_FIEMAP, request)
    count = head.unpack_from(request)[3]
    found = [extent.unpack_from(request, head.size + n * extent.size)[:3] for n in range(count)]
    return [(position, place, size) for position, place, size in found]


def _punch(descriptor: int, position: int, size: int) -> None:
    mode = _FALLOC_KEEP_SIZE | _FALLOC_PUNCH_HOLE
    if _LIBC.fallocate(descriptor, mode, ctypes.c_int64(position), ctypes.c_int64(size)):
        raise OSError(ctypes.get_errno(), "fallocate")


def _sync_file_range(descriptor: int, position: int, size: int) -> None:
    failed = _LIBC.sync_file_range(
        descriptor, ctypes.c_int64(position), ctypes.c_int64(size), _SYNC_FILE_RANGE_ALL
    )
    if failed:
        raise OSError(ctypes.get_errno(), "sync_file_range")


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")


def _mounts() -> list[list[str]]:
    text = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines()]


def remove_leftovers(over: int | None = None) -> list[str]:
    """Unmount the disks of ended test processes, or of process ``over``; return their paths."""
    removed = []
    for _, path, *_ in reversed(_mounts()):
        owner = re.search(rf"/{_MOUNT_NAME}(\d+)", path)
        if owner is None:
            continue
        if int(owner[1]) == over or is_gone(owner[1]):
            with contextlib.suppress(NoLoopDisk):
                _run("umount", "--lazy", path)
                removed.append(path)
    return removed
