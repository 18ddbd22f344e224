"""The real outside world: Linux files, the system clock, worker threads, sendfile(2).

``docs/assumptions.md`` lists the assumptions about disk and kernel.  Three shape this file:
fdatasync on the descriptor also flushes pages dirtied through the map and, unlike ``mmap.flush``,
releases the GIL; a directory entry is durable only after an fsync of the directory; writing to a
hole in a map on a full disk is SIGBUS, so every mapped file is allocated first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import shutil
import struct
import time
from stat import S_IMODE, S_ISDIR, S_ISREG
from typing import TYPE_CHECKING, Final, TypeVar, final

import attrs
import trio

from hastore.env.descriptors import EXHAUSTED, map_descriptor, open_descriptor
from hastore.env.interface import (
    DiskFile,
    DiskSpace,
    Env,
    FileStamp,
    FileStat,
    HeldName,
    NamedFile,
)
from hastore.env.kernel_clock import is_clock_synchronised
from hastore.env.machine_memory import RealMachineMemory
from hastore.env.memory import RealMemory, forget_pages
from hastore.env.name_check import RealHeldName, first_lost, lost_name, name_check_of
from hastore.env.sending import (
    CANNOT_PROBE,
    RealSecondReceiver,
    RealSendFile,
    real_poll,
    real_receive,
    real_send_now,
    real_send_while,
)
from hastore.env.sync_thread import RealSyncThread, sync_error
from hastore.errors import DiskError, DiskFullError, StoreLockedError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOO_MANY_FILES_HINT: Final = "raise ulimit -n, or use a larger --mapped-file-size"
_HINTS: Final = {
    errno.EACCES: "check owner and mode of the directory",
    **dict.fromkeys(EXHAUSTED, _TOO_MANY_FILES_HINT),
}
_SMALL_FILE_SIZE_MAX: Final = 64 * 1024 * 1024
_START_ID: Final = os.urandom(16).hex()
# struct flock of 64-bit Linux: type, whence, start, length, process id.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"
_locked_in_process: dict[tuple[int, int], str] = {}  # fcntl locks do not exclude their own process


@contextlib.contextmanager
def _disk_errors(doing: str, path: str) -> Iterator[None]:
    """Turn an OSError into a DiskError that names the operation and the path."""
    try:
        yield
    except OSError as error:
        raise _disk_error(doing, path, error) from error


def _disk_error(doing: str, path: str, error: OSError) -> DiskError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        msg = f"no space to {doing} {path}: {reason}"
        hint = "free space on that file system; reads continue meanwhile"
        return DiskFullError(msg, path=path, hint=hint)
    msg = f"cannot {doing} {path}: {reason}"
    return DiskError(msg, path=path, hint=_HINTS.get(error.errno or 0))


def _check_room(path: str, size: int) -> None:
    """Raise ENOSPC if a file cannot fit; trying it would take what room other files need."""
    stat = os.statvfs(os.path.dirname(path) or ".")
    blocks = stat.f_bavail if os.geteuid() else stat.f_bfree  # root may take the reserved ones
    if blocks * stat.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync_parent(path: str) -> None:
    _sync_dir(os.path.dirname(os.path.abspath(path)))


def _sync_dir(path: str) -> None:
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@final
@attrs.define(eq=False)
class RealDiskFile:
    """A file descriptor, and the map of a writable file."""

    path: str
    size: int
    buffer: mmap.mmap | None
    _descriptor: int
    name_check: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Take the identity that the name is compared with."""
        self.name_check = name_check_of(self._descriptor, self.path)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._descriptor < 0

    def lost_name(self) -> str | None:
        """Compare the identity with that of the file at the name."""
        return None if self.is_closed else lost_name(self.name_check)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def pread(self, size: int, position: int) -> bytes:
        """Read without the map."""
        try:  # not _disk_errors, here and in pwrite: it costs more than the call
            return os.pread(self._descriptor, size, position)
        except OSError as error:
            raise _disk_error("read", self.path, error) from error

    def read_now(self, buffer: memoryview, position: int) -> int:
        """Read from the page cache."""
        try:
            return os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in CANNOT_PROBE:
                return 0
            raise _disk_error("read", self.path, error) from error

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write without the map: large pieces cost less, since there are no page faults."""
        try:
            written = os.pwrite(self._descriptor, data, position)
            while written < len(data):
                data, position = data[written:], position + written
                written = os.pwrite(self._descriptor, data, position)
        except OSError as error:
            raise _disk_error("write", self.path, error) from error

    def make_pages(self, position: int, size: int) -> None:
        """Write zeros: for a page fault the kernel does several times as much work."""
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, bytes(size), position)

    def next_data(self, position: int) -> int:
        """Skip holes and blocks that were allocated but never written (SEEK_DATA knows both).

        SEEK_DATA counts cached pages as data, and read-ahead caches pages after each read.  So
        clean pages are dropped first, and read-ahead is off until the end is reached (a node killed
        with 5 KiB in its 1 GiB file: a start took 2.7 s without this, 0.46 s with it).
        """
        with _disk_errors("seek in", self.path):
            os.posix_fadvise(self._descriptor, position, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            try:
                found = os.lseek(self._descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                found = self.size
            if found >= self.size:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_NORMAL)
            return found

    def forget(self, position: int = 0, size: int = 0) -> None:
        """Write out dirty pages and drop all that are not mapped."""
        with _disk_errors("write", self.path):
            forget_pages(self._descriptor, position, size)

    def sync(self) -> None:
        """Force to disk.  An error is final: the kernel has marked the pages clean."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise sync_error(self.path, error.errno or 0) from error

    def sync_descriptor(self) -> int | None:
        """Return the descriptor; negative if the file is closed."""
        return self._descriptor

    def unmap(self) -> None:
        """Unmap, which also closes the map's own descriptor."""
        if self.buffer is not None:
            self.buffer.close()
            self.buffer = None

    def close(self) -> None:
        """Unmap and close."""
        if self._descriptor < 0:
            return
        self.unmap()
        os.close(self._descriptor)
        self._descriptor = -1


@final
@attrs.define(eq=False)
class RealDirectoryLock:
    """An fcntl lock; closing the descriptor releases it."""

    _descriptor: int
    _key: tuple[int, int]

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_in_process.pop(self._key, None)


@attrs.frozen
class LockHolder:
    """The process that has a store open; ``pid`` None: one that this process cannot see."""

    pid: int | None

    def __str__(self) -> str:
        """Return it as the subject of a sentence."""
        return "a process of another container" if self.pid is None else f"process {self.pid}"


def lock_holder(path: str) -> LockHolder | None:
    """Return which process holds the lock that ``RealDisk.lock`` takes; None if none does.

    Takes nothing, not even for a moment, so a node that starts now does not notice.  Raises
    DiskError if the file cannot be read.
    """
    with _disk_errors("open", path):
        try:
            stat = os.stat(path)
            if (stat.st_dev, stat.st_ino) in _locked_in_process:
                return LockHolder(os.getpid())
            descriptor = open_descriptor(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
    try:
        with _disk_errors("query the lock on", path):
            wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            lock_type, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, wanted))
    finally:
        os.close(descriptor)
    if lock_type == fcntl.F_UNLCK:
        return None
    return LockHolder(pid if pid > 0 else None)


def _mount_id(path: str) -> str:
    """Return the kernel's number of the mount that a directory is on.  Raises OSError."""
    descriptor = open_descriptor(path, os.O_PATH)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as fields:
            return next(line for line in fields if line.startswith("mnt_id:"))
    finally:
        os.close(descriptor)


@final
class RealDisk:
    """The file system of this machine."""

    def list_dir(self, path: str) -> Sequence[FileStat]:
        """List entries by name; empty if the directory does not exist."""
        with _disk_errors("list", path):
            try:
                names = sorted(os.listdir(path))
            except FileNotFoundError:
                return []
            found = []
            for name in names:
                try:
                    stat = os.stat(os.path.join(path, name))
                except FileNotFoundError:  # removed meanwhile, or a dangling link
                    continue
                found.append(
                    FileStat(
                        name=name,
                        size=stat.st_size,
                        is_dir=S_ISDIR(stat.st_mode),
                        modified_ms=stat.st_mtime_ns // 1_000_000,
                    )
                )
            return found

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return os.path.exists(path)

    def stamp(self, path: str) -> FileStamp:
        """Return what stat says."""
        with _disk_errors("read", path):
            stat = os.stat(path)
        return FileStamp(
            mode=S_IMODE(stat.st_mode),
            size=stat.st_size,
            modified_ns=stat.st_mtime_ns,
            inode=stat.st_ino,
            device=stat.st_dev,
        )

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents, durably."""
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            self.make_dirs(parent)
        with _disk_errors("make directory", path), contextlib.suppress(FileExistsError):
            os.mkdir(path)
            _sync_dir(parent)
        if not os.path.isdir(path):
            msg = f"cannot make directory {path}: a file is in the way"
            raise DiskError(msg, path=path)

    def create_file(self, path: str, size: int) -> DiskFile:
        """Create, allocate, sync the directory, map."""
        with _disk_errors("create", path):
            _check_room(path, size)
            descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(descriptor, 0, size)
                os.fsync(descriptor)
                _sync_parent(path)
                return RealDiskFile(path, size, map_descriptor(descriptor, size), descriptor)
            except BaseException:
                os.close(descriptor)
                os.unlink(path)
                raise

    def open_file(self, path: str, *, writable: bool) -> DiskFile:
        """Open an existing file, allocated and mapped when writable."""
        with _disk_errors("open", path):
            mode = os.O_RDWR if writable else os.O_RDONLY
            descriptor = open_descriptor(path, mode | os.O_NONBLOCK)  # a pipe would block
            try:
                found = os.fstat(descriptor)
                if not S_ISREG(found.st_mode):
                    raise OSError("not a regular file")
                size = found.st_size
                if not writable or size == 0:
                    return RealDiskFile(path, size, None, descriptor)
                os.posix_fallocate(descriptor, 0, size)
                return RealDiskFile(path, size, map_descriptor(descriptor, size), descriptor)
            except BaseException:
                os.close(descriptor)
                raise

    def open_sparse_file(
        self, path: str, size: int, *, creates: bool = True, make_dirs: bool = True
    ) -> DiskFile:
        """Open for pread and pwrite; create a sparse file if there is none."""
        with _disk_errors("open", path):
            flags = os.O_RDWR | (os.O_CREAT if creates else 0)
            try:
                descriptor = open_descriptor(path, flags)
            except FileNotFoundError:
                if not (creates and make_dirs):
                    raise
                os.makedirs(os.path.dirname(path), exist_ok=True)
                descriptor = open_descriptor(path, flags)
            try:
                found = os.fstat(descriptor).st_size
                if not found:
                    os.ftruncate(descriptor, size)
                    found = size
                return RealDiskFile(path, found, None, descriptor)
            except BaseException:
                os.close(descriptor)
                raise

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        with _disk_errors("sync", path):
            _sync_dir(path)

    def read_file(self, path: str) -> bytes:
        """Read a small file."""
        with _disk_errors("read", path), open(path, "rb", opener=open_descriptor) as file:
            data = file.read(_SMALL_FILE_SIZE_MAX + 1)
        if len(data) > _SMALL_FILE_SIZE_MAX:
            msg = f"{path} is larger than {_SMALL_FILE_SIZE_MAX} bytes"
            raise DiskError(msg, path=path)
        return data

    def write_file(self, path: str, data: bytes) -> None:
        """Write a temporary file, sync, rename, sync the directory."""
        temporary = f"{path}.tmp"
        with _disk_errors("write", path):
            with open(temporary, "wb", opener=open_descriptor) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_parent(path)

    def remove(self, path: str) -> None:
        """Remove durably."""
        with _disk_errors("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            _sync_parent(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree; links are removed, not followed."""
        with _disk_errors("remove", path), contextlib.suppress(FileNotFoundError):
            if os.path.islink(path):
                os.unlink(path)
            else:
                shutil.rmtree(path)
            _sync_parent(path)

    def rename(self, path: str, new_path: str) -> None:
        """Rename durably."""
        with _disk_errors("rename", path):
            os.rename(path, new_path)
            _sync_parent(new_path)

    def cannot_move(self, path: str) -> str | None:
        """Tell links and mounts, also one of a directory of the same file system (bind)."""
        if os.path.islink(path):
            return "a symbolic link"
        with _disk_errors("open", path), contextlib.suppress(FileNotFoundError):
            is_mount = _mount_id(path) != _mount_id(os.path.dirname(os.path.abspath(path)))
            return "a mount point" if is_mount else None
        return None

    def lock(self, path: str) -> RealDirectoryLock:
        """Lock byte 0 as a Java FileLock does, and write ``lock`` into the file."""
        hint = "stop the other process, or use another directory"
        # Closing any descriptor of a file releases this process's fcntl lock on it, so a file that
        # this process has locked must not even be opened.
        with _disk_errors("check", path), contextlib.suppress(FileNotFoundError):
            stat = os.stat(path)
            if (stat.st_dev, stat.st_ino) in _locked_in_process:
                msg = f"{path} is held by a store that this process has open"
                raise StoreLockedError(msg, path=path, hint=hint)
        with _disk_errors("open", path):
            descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT)
        stat = os.fstat(descriptor)
        key = (stat.st_dev, stat.st_ino)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                msg = f"cannot lock {path}: {os.strerror(error.errno or 0)}"
                raise DiskError(msg, path=path) from error
            msg = f"{path} is held by another process"
            raise StoreLockedError(msg, path=path, hint=hint) from error
        _locked_in_process[key] = path
        try:
            with _disk_errors("write", path):
                os.pwrite(descriptor, b"lock", 0)
                os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            del _locked_in_process[key]
            raise
        return RealDirectoryLock(descriptor, key)

    def hold(self, path: str) -> HeldName:
        """Open the path only, without a right to its bytes."""
        with _disk_errors("open", path):
            return RealHeldName(path, open_descriptor(path, os.O_PATH))

    def first_lost(self, named: Sequence[NamedFile]) -> NamedFile | None:
        """Compare identities."""
        return first_lost(named)

    def space(self, path: str) -> DiskSpace:
        """Return how full the file system is, as `df` counts it."""
        with _disk_errors("query the file system of", path):
            stat, device = os.statvfs(path), os.stat(path).st_dev
        used = stat.f_blocks - stat.f_bfree
        return DiskSpace(
            device=device,
            used_ratio=used / (used + stat.f_bavail) if used else 0.0,
            free_bytes=stat.f_bavail * stat.f_frsize,
            free_inodes=stat.f_favail if stat.f_files else None,
        )


@final
class RealWallClock:
    """The system clock."""

    now_s = staticmethod(time.time)

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def boot_s(self) -> float:
        """Return CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def local_name(self, ms: int) -> str:
        """Format a time in the zone of TZ or /etc/localtime."""
        seconds, rest = divmod(ms, 1000)
        return f"{time.strftime('%Y%m%d%H%M%S', time.localtime(seconds))}{rest:03d}"


@final
class RealOffload:
    """trio's worker threads."""

    async def run(self, call: Callable[[], T]) -> T:
        """Run in a worker thread."""
        return await trio.to_thread.run_sync(call)

    def sync_thread(self) -> RealSyncThread:
        """Return a thread of its own."""
        return RealSyncThread()


def real_env() -> Env:
    """Return the real environment; only composition roots call this."""
    offload = RealOffload()
    return Env(
        disk=RealDisk(),
        memory=RealMemory(),
        machine_memory=RealMachineMemory(),
        wall_clock=RealWallClock(),
        randomness=random.SystemRandom(),
        offload=offload,
        send_file=RealSendFile(offload),
        send_now=real_send_now,
        send_while=real_send_while,
        receive=real_receive,
        second_receiver=RealSecondReceiver,
        poll=real_poll,
        process_id=os.getpid(),
        boot_id=_boot_id(),
        start_id=_START_ID,
        is_clock_synchronised=is_clock_synchronised,
    )


def _boot_id() -> str | None:
    """Return the kernel's random name of this boot; None where /proc does not have it."""
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.readline().strip() or None
    except (OSError, ValueError):
        return None
